"""The scheduler: finds the predictors that satisfy a request, hands out tasks, and says when all have ended."""
