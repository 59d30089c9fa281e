"""Scenarios: a model measured under the loads of MLPerf Inference, by its own load generator."""

from predictors.scenarios.measured import Measured, Verdict
from predictors.scenarios.run import run_scenario

__all__ = ["Measured", "Verdict", "run_scenario"]
