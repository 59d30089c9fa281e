"""What a client asks for."""

from typing import Literal

from pydantic import Field, model_validator

from schemas.base import Identifier, Name, Request, new_id
from schemas.codec import register
from schemas.manifests import Architecture, VersionRange
from schemas.scenario import Scenario, Seeds, Threads
from schemas.trace import TraceLevel

Device = Literal["cpu", "gpu"]


class ArtifactRef(Request):
    """A model or a data set by name and range of versions; the newest that satisfies it is taken."""

    name: Name
    version: VersionRange = "*"

    @model_validator(mode="before")
    @classmethod
    def _short(cls, data: object) -> object:
        """Accept `squeezenet` and `squeezenet ^1.1` (also `squeezenet@^1.1`) beside the mapping."""
        if isinstance(data, str):
            name, _, version = data.strip().replace("@", " ", 1).partition(" ")
            return {"name": name, "version": version.strip() or "*"}
        return data


class Constraints(Request):
    """What the predictor must be. All that are given must hold."""

    frameworks: tuple[ArtifactRef, ...] = ()
    """Any of these; empty: any framework the model has files for."""
    device: Device | None = None
    architecture: Architecture | None = None
    gpu: str | None = None
    """Part of the GPU's name, any case: `H100`, `a100-sxm`."""
    interconnect: str | None = None
    """Name of an interconnect the machine has: `nvlink`, `pcie`."""
    min_memory_bytes: int | None = Field(None, ge=0)
    min_gpu_memory_bytes: int | None = Field(None, ge=0)
    agent: Identifier | None = None
    """This agent and no other."""


@register("evaluation_requested")
class EvaluationRequested(Request):
    """Evaluate a model on a data set, on one or all predictors that satisfy the constraints."""

    evaluation_id: Identifier = Field(default_factory=new_id)
    """Chosen by the client. The same id asked for twice is evaluated once."""
    model: ArtifactRef
    dataset: ArtifactRef
    constraints: Constraints = Constraints()
    targets: Literal["one", "all"] = "one"
    scenario: Scenario = Scenario()
    batch_size: int = Field(1, ge=1, le=65_536)
    sample_limit: int | None = Field(None, ge=1)
    """Evaluate this many items; the others are not asked for, and no accuracy is divided by them."""
    seeds: Seeds = Seeds()
    threads: Threads = Threads()
    trace_level: TraceLevel = TraceLevel.NONE
    cold: bool = False
    """Open the model in a fresh worker process even when a warm one is there."""
    deadline_s: float = Field(3600.0, gt=0, le=7 * 86_400)
    """A task that works for longer has failed. Waiting for the machine to be free does not count."""
    options: dict[str, bool | int | float | str] = {}
    """Handed to the predictor; one it does not know is an error."""
    user: str = ""


@register("cancellation_requested")
class CancellationRequested(Request):
    """Stop an evaluation: tasks not begun never begin, tasks in work are ended."""

    evaluation_id: Identifier
    reason: str = ""
    user: str = ""
