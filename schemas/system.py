"""The machine an evaluation ran on. What could not be read is named in `not_read`, with the reason."""

from schemas.base import Event, Identifier
from schemas.codec import register


class Cpu(Event):
    """The processor."""

    model: str | None = None
    physical_cores: int | None = None
    logical_cores: int | None = None
    usable_cores: float | None = None
    """Those that the agent may use: by its affinity, or by a smaller quota of its control group."""
    smt: bool | None = None
    governor: str | None = None
    turbo: bool | None = None
    min_frequency_mhz: float | None = None
    max_frequency_mhz: float | None = None
    cache_bytes: dict[str, int] = {}
    """By level: `L1d`, `L2`, `L3`."""
    flags: tuple[str, ...] = ()
    """Vector and matrix extensions only: avx2, avx512f, amx_tile, neon, sve..."""


class Gpu(Event):
    """One GPU."""

    index: int
    name: str
    uuid: str | None = None
    memory_bytes: int | None = None
    driver: str | None = None
    compute_capability: str | None = None
    max_clock_mhz: float | None = None
    max_memory_clock_mhz: float | None = None


class SystemDescription(Event):
    """What does not change while an agent lives. `system_id` is a digest of all of it but `hostname`."""

    system_id: str
    hostname: str
    architecture: str
    operating_system: str
    kernel: str
    virtualization: str | None = None
    cpu: Cpu
    memory_bytes: int | None = None
    gpus: tuple[Gpu, ...] = ()
    interconnects: tuple[str, ...] = ()
    not_read: dict[str, str] = {}
    """Field path to reason."""


@register("system_described")
class SystemDescribed(Event):
    """An agent tells what machine it is on."""

    agent_id: Identifier
    system: SystemDescription


class SystemState(Event):
    """What changes: read before and after each measurement."""

    load_average_1m: float | None = None
    available_memory_bytes: int | None = None
    frequency_mhz: float | None = None
    temperature_c: float | None = None
    gpu_clock_mhz: tuple[float, ...] = ()
    gpu_temperature_c: tuple[float, ...] = ()
    gpu_throttle_reasons: tuple[str, ...] = ()
    not_read: dict[str, str] = {}


class Environment(Event):
    """The software that ran: an agent's Python environment."""

    python: str
    framework: str
    framework_version: str
    build: dict[str, str] = {}
    """How the framework was built: its own words."""
    libraries: dict[str, str] = {}
    """Version of every installed distribution, by name."""
    digest: str
    """sha256 over `libraries`, sorted."""
    container: str | None = None
