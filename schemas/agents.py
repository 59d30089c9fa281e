"""Agents and the stacks they serve: what the registry says is live."""

from schemas.base import Event, Identifier
from schemas.codec import register
from schemas.evaluation import Device


class Stack(Event):
    """What a task is scheduled on: agents of one stack are interchangeable."""

    architecture: str
    device: Device
    framework: str
    version: str
    """The framework's own, exactly as it reports it."""

    def __str__(self) -> str:
        return f"{self.framework} {self.version} on {self.architecture} {self.device}"


class Hardware(Event):
    """What constraints are solved against."""

    system_id: str
    cpu: str | None = None
    logical_cores: int | None = None
    memory_bytes: int | None = None
    gpus: tuple[str, ...] = ()
    gpu_memory_bytes: int | None = None
    """Of the smallest GPU."""
    interconnects: tuple[str, ...] = ()


class Load(Event):
    """Work an agent has in hand."""

    running: int = 0
    completed: int = 0
    failed: int = 0


@register("agent_registered")
class AgentRegistered(Event):
    """An agent's entry in the registry, renewed by every heartbeat, gone when its lease ends."""

    agent_id: Identifier
    hostname: str
    pid: int
    stack: Stack
    formats: tuple[str, ...]
    """Model formats the predictor opens."""
    hardware: Hardware
    load: Load = Load()
    available: bool = True
    unavailable_reason: str | None = None
    """Exactly which library or device is missing. An agent that is not available is never given a task."""
    environment_digest: str = ""
    started_ns: int
    heartbeat_ns: int
