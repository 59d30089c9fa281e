"""Why something did not work, in words for the person who asked for it."""

from typing import Literal

from schemas.base import Event

FailureCode = Literal[
    "invalid_request",
    "unknown_model",
    "unknown_dataset",
    "unknown_evaluation",
    "no_predictor",
    "manifest_invalid",
    "asset_not_found",
    "asset_digest_mismatch",
    "asset_unreachable",
    "asset_refused",
    "disk_full",
    "dataset_invalid",
    "input_invalid",
    "model_refused",
    "pipeline_failed",
    "option_unknown",
    "predictor_failed",
    "worker_crashed",
    "worker_out_of_memory",
    "deadline_exceeded",
    "agent_lost",
    "cancelled",
    "store_unavailable",
    "internal",
]


class Failure(Event):
    """One error: what happened and what to do about it."""

    code: FailureCode
    message: str
    """What happened, naming the thing: file, field, model, agent."""
    hint: str = ""
    """What to do."""
    detail: str = ""
    """Evidence: a traceback, the last lines a dead process wrote."""
