"""Input and output pipelines: items of a data set to arrays, a network's outputs to predictions."""

from predictors.pipeline.input import InputPipeline
from predictors.pipeline.output import OutputPipeline, Prediction
from predictors.pipeline.prepared import Prepared
from predictors.pipeline.record import pipeline_record

__all__ = ["InputPipeline", "OutputPipeline", "Prediction", "Prepared", "pipeline_record"]
