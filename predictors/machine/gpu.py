"""NVIDIA GPUs by NVML: what they are, and how they are doing. Without NVML, exactly why not."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from schemas.system import Gpu

_THROTTLE_PREFIXES = ("nvmlClocksEventReason", "nvmlClocksThrottleReason")


@lru_cache(maxsize=1)
def open_nvml() -> tuple[Any | None, str]:
    """Return the initialised `pynvml` module and "", or None and the reason it is not there. Asked once."""
    try:
        import pynvml
    except ImportError as error:
        return None, f"nvidia-ml-py: {error}"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return None, f"NVML: {error}"
    return pynvml, ""


def read_gpus(nvml: Any) -> tuple[tuple[Gpu, ...], tuple[str, ...], dict[str, str]]:
    """Return the GPUs, the interconnects they have (`pcie`, `nvlink`), and what could not be read, by field.

    `nvml` is the module from `open_nvml`.
    """
    missing: dict[str, str] = {}
    driver = _text(_read(nvml, missing, "gpus.driver", nvml.nvmlSystemGetDriverVersion))
    gpus = tuple(_read_gpu(nvml, missing, index, driver) for index in range(nvml.nvmlDeviceGetCount()))
    found = set()
    for gpu in gpus:
        handle = nvml.nvmlDeviceGetHandleByIndex(gpu.index)
        if _succeeds(nvml, nvml.nvmlDeviceGetMaxPcieLinkGeneration, handle):
            found.add("pcie")
        if any(_link_is_up(nvml, handle, link) for link in range(nvml.NVML_NVLINK_MAX_LINKS)):
            found.add("nvlink")
    return gpus, tuple(sorted(found)), missing


def read_gpu_state(nvml: Any) -> tuple[tuple[float, ...], tuple[float, ...], tuple[str, ...], dict[str, str]]:
    """Return SM clocks, temperatures, throttle reasons and what could not be read.

    Clocks in MHz and temperatures in degrees Celsius, one for each GPU; a reason is `<index of GPU>:<name>`.
    """
    clocks: list[float] = []
    temperatures: list[float] = []
    reasons: list[str] = []
    missing: dict[str, str] = {}
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        where = f"gpus[{index}]"
        clock = _read(nvml, missing, f"{where}.clock", nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM)
        heat = _read(
            nvml, missing, f"{where}.temperature", nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU
        )
        held = _read(nvml, missing, f"{where}.throttle_reasons", nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
        if clock is not None:
            clocks.append(float(clock))
        if heat is not None:
            temperatures.append(float(heat))
        reasons += [f"{index}:{name}" for bit, name in throttle_names(nvml) if held is not None and held & bit]
    return tuple(clocks), tuple(temperatures), tuple(reasons), missing


def throttle_names(nvml: Any) -> list[tuple[int, str]]:
    """Return each single-bit throttle reason that NVML's bindings name, with the name it has there."""
    names: dict[int, str] = {}
    for attribute in sorted(dir(nvml)):
        for prefix in _THROTTLE_PREFIXES:
            value = getattr(nvml, attribute)
            if attribute.startswith(prefix) and isinstance(value, int) and value and value & (value - 1) == 0:
                names.setdefault(value, attribute.removeprefix(prefix))
    return sorted(names.items())


def _read_gpu(nvml: Any, missing: dict[str, str], index: int, driver: str | None) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)

    def read(field: str, call: Callable[..., Any], *arguments: Any) -> Any:
        return _read(nvml, missing, f"gpus[{index}].{field}", call, handle, *arguments)

    memory = read("memory_bytes", nvml.nvmlDeviceGetMemoryInfo)
    capability = read("compute_capability", nvml.nvmlDeviceGetCudaComputeCapability)
    clock = read("max_clock_mhz", nvml.nvmlDeviceGetMaxClockInfo, nvml.NVML_CLOCK_SM)
    memory_clock = read("max_memory_clock_mhz", nvml.nvmlDeviceGetMaxClockInfo, nvml.NVML_CLOCK_MEM)
    return Gpu(
        index=index,
        name=_text(nvml.nvmlDeviceGetName(handle)) or "",
        uuid=_text(read("uuid", nvml.nvmlDeviceGetUUID)),
        memory_bytes=None if memory is None else int(memory.total),
        driver=driver,
        compute_capability=None if capability is None else f"{capability[0]}.{capability[1]}",
        max_clock_mhz=None if clock is None else float(clock),
        max_memory_clock_mhz=None if memory_clock is None else float(memory_clock),
    )


def _read(nvml: Any, missing: dict[str, str], field: str, call: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except nvml.NVMLError as error:
        missing[field] = f"NVML: {error}"
        return None


def _succeeds(nvml: Any, call: Callable[..., Any], *arguments: Any) -> bool:
    try:
        call(*arguments)
    except nvml.NVMLError:  # NVML says by an error that the device has no such thing
        return False
    return True


def _link_is_up(nvml: Any, handle: Any, link: int) -> bool:
    try:
        return bool(nvml.nvmlDeviceGetNvLinkState(handle, link))
    except nvml.NVMLError:  # as above: no such link
        return False


def _text(value: Any) -> str | None:
    # Older bindings return bytes.
    return value.decode() if isinstance(value, bytes) else value
