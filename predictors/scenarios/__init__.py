"""Scenarios: a model measured under the loads of MLPerf Inference, by its own load generator."""

from predictors.scenarios.measured import Measured, Verdict
from predictors.scenarios.run import run_scenario
from predictors.scenarios.thread import PredictorThread

__all__ = ["Measured", "PredictorThread", "Verdict", "run_scenario"]
