"""Exit codes that scripts can use."""

OK = 0
FAILED = 1
"""The evaluation failed, in part or whole; or something else did not work."""
USAGE = 2
"""The command, a setting, a manifest or a request is wrong."""
REJECTED = 3
"""No predictor satisfies the request, or the model or data set is unknown."""
CANNOT_REACH = 4
"""No server answers, or its store or bus is away."""
INTERRUPTED = 130
"""Ctrl-C."""
