"""The contract between the platform and a framework.

A framework is a class named by an entry point of the group `mlmodelscope.predictors`. It is imported in a
worker process only, never in an agent. Its predictors live in one worker process and are called from one
thread; `predict` is synchronous: when it returns, the device has finished.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from schemas.evaluation import Device
from schemas.scenario import Threads
from schemas.trace import TraceLevel

Array = npt.NDArray[np.generic]
Batch = Sequence[Array]
"""One array for each input of the model, in the manifest's order, each of shape (batch, *item shape)."""
Outputs = Sequence[Array]
"""One array for each output of the manifest, in its order, first axis the batch. May be reused by the next call."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A named input or output. `shape` is of one item, without the batch axis; empty when not known."""

    name: str
    element_type: str
    shape: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class OpenModel:
    """All a predictor is told about the model it opens. Files are verified and local."""

    name: str
    version: str
    format: str
    graph: Path | None = None
    weights: Path | None = None
    constructor: str | None = None
    arguments: dict[str, bool | int | float | str] = field(default_factory=dict)
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    device: Device = "cpu"
    batch_size: int = 1
    threads: Threads = field(default_factory=Threads)
    trace_level: TraceLevel = TraceLevel.NONE
    options: dict[str, bool | int | float | str] = field(default_factory=dict)
    trusted: bool = False
    """The operator trusts the model's author: files that execute code when loaded may be loaded."""


@dataclass(frozen=True, slots=True)
class Opened:
    """What a predictor really does, after `open`: recorded with the result."""

    threads: Threads
    """As in force, read back from the framework where it can be."""
    options: dict[str, bool | int | float | str] = field(default_factory=dict)
    """Every option in force, defaults included: execution provider, precision, graph optimisation."""


class Predictor(Protocol):
    """One model, opened. Not safe for use from two threads."""

    def open(self, model: OpenModel) -> Opened:
        """Load the model. Called once.

        Raises ModelRefusedError when the framework does not accept the files (the framework's own words
        inside), UntrustedModelError when loading would execute code of an author who is not trusted,
        UnknownOptionError for an option this predictor does not have, DeviceUnavailableError.
        """
        ...

    def predict(self, batch: Batch) -> Outputs:
        """Run the model on one batch and return when the device has finished.

        The batch may be smaller than the one announced (the last of a data set). Raises PredictError.
        """
        ...

    def close(self) -> None:
        """Free everything. Idempotent; also after an `open` that failed."""
        ...


class Framework(Protocol):
    """A framework on this machine. Constructing one imports nothing heavy; its methods may."""

    name: str
    formats: tuple[str, ...]

    def version(self) -> str:
        """Return the framework's version, exactly as it reports it. Raises FrameworkUnavailableError."""
        ...

    def build(self) -> dict[str, str]:
        """Return how the framework was built, in its own words: BLAS, instruction sets, CUDA."""
        ...

    def unavailable(self, device: Device) -> str | None:
        """Return exactly which library or device is missing for `device`, or None when it can run there."""
        ...

    def create(self) -> Predictor:
        """Return a predictor that has opened nothing yet."""
        ...
