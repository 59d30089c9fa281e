"""Scenarios: how queries are sent to a model while it is measured."""

from typing import Literal

from pydantic import Field, model_validator

from schemas.base import Request


class Scenario(Request):
    """A load pattern of MLPerf Inference, run by its own load generator.

    A query of `single_stream` is one batch of `batch_size` items (one item at batch 1, as MLPerf has it);
    the next is sent when the last has come back. `offline` sends all its samples at once; its figure is
    samples a second. `accuracy` sends no measured load: every item once, predictions only.
    """

    name: Literal["single_stream", "offline", "accuracy"] = "single_stream"
    min_duration_s: float = Field(1.0, ge=0, le=86_400)
    max_duration_s: float = Field(20.0, gt=0, le=86_400)
    """The measurement ends here, even when it has fewer queries than asked for."""
    min_query_count: int = Field(1024, ge=1, le=100_000_000)
    """For `single_stream`: queries measured. 662 are the floor of a p99. For `offline`: samples in the one query."""
    warmup_query_count: int = Field(16, ge=0)
    """Queries sent first and left out; the load flows on from them without a pause."""

    @model_validator(mode="after")
    def _order(self) -> "Scenario":
        if self.min_duration_s > self.max_duration_s:
            raise ValueError("min_duration_s is above max_duration_s")
        return self


class Seeds(Request):
    """Where randomness comes from; each apart, so that one can be varied alone."""

    sample: int = 1
    """Which items a limited evaluation takes (0: the first ones)."""
    order: int = 2
    """In which order the load generator draws them."""
    schedule: int = 3
    """When queries of an open-loop scenario arrive."""
    weights: int = 4
    """Weights of a network that comes without."""


class Threads(Request):
    """CPU threads of the framework. None: the framework's own default, which is recorded."""

    intra_op: int | None = Field(None, ge=1)
    inter_op: int | None = Field(None, ge=1)
