"""Predictors: what runs a model on a machine and measures it there."""
