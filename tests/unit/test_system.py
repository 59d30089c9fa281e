"""The description of the machine: everything that can be read, a reason for everything that cannot."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from predictors.machine import gpu, system
from predictors.machine.cpu import Reader, read_cpu
from schemas.system import Cpu, SystemDescription


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


CPU0 = "sys/devices/system/cpu/cpu0"
BARE_METAL = {
    "proc/cpuinfo": "model name\t: AMD EPYC 9654 96-Core Processor\ncpu MHz\t\t: 3700.1\n"
    "flags\t\t: fpu smep sse4_2 avx2 avx512f fma\n",
    f"{CPU0}/cpufreq/scaling_governor": "performance",
    f"{CPU0}/cpufreq/cpuinfo_min_freq": "1500000",
    f"{CPU0}/cpufreq/cpuinfo_max_freq": "3707812",
    f"{CPU0}/cpufreq/scaling_cur_freq": "2400000",
    f"{CPU0}/cache/index0/level": "1",
    f"{CPU0}/cache/index0/type": "Data",
    f"{CPU0}/cache/index0/size": "32K",
    f"{CPU0}/cache/index3/level": "3",
    f"{CPU0}/cache/index3/type": "Unified",
    f"{CPU0}/cache/index3/size": "32768K",
    "sys/devices/system/cpu/smt/active": "1",
    "sys/devices/system/cpu/cpufreq/boost": "0",
    "sys/class/hwmon/hwmon0/name": "nvme",
    "sys/class/hwmon/hwmon0/temp1_input": "30000",
    "sys/class/hwmon/hwmon1/name": "k10temp",
    "sys/class/hwmon/hwmon1/temp1_input": "61250",
    "sys/class/dmi/id/sys_vendor": "Supermicro",
}


def test_bare_metal_is_read_in_full(tmp_path: Path) -> None:
    """Governor, turbo, SMT, frequencies, caches and vector extensions come from the kernel's files."""
    reader = Reader(tree(tmp_path, BARE_METAL))
    cpu = read_cpu(reader)
    assert cpu.model == "AMD EPYC 9654 96-Core Processor"
    assert (cpu.governor, cpu.turbo, cpu.smt) == ("performance", False, True)
    assert (cpu.min_frequency_mhz, cpu.max_frequency_mhz) == (1500.0, 3707.812)
    assert cpu.cache_bytes == {"L1d": 32 * 1024, "L3": 32 * 2**20}
    assert cpu.flags == ("avx2", "avx512f", "fma", "sse4_2")
    assert reader.missing == {}


def test_intel_says_turbo_the_other_way_round(tmp_path: Path) -> None:
    """`no_turbo` 0 means that there is turbo."""
    root = tree(tmp_path, BARE_METAL | {"sys/devices/system/cpu/intel_pstate/no_turbo": "0"})
    assert read_cpu(Reader(root)).turbo is True


def test_what_is_not_there_is_not_guessed(tmp_path: Path) -> None:
    """Every field without a source is None and named, with the file that was not there."""
    reader = Reader(tree(tmp_path, {"proc/cpuinfo": BARE_METAL["proc/cpuinfo"]}))
    cpu = read_cpu(reader)
    assert (cpu.governor, cpu.turbo, cpu.smt, cpu.max_frequency_mhz, cpu.cache_bytes) == (None, None, None, None, {})
    for field in ("governor", "turbo", "smt", "min_frequency_mhz", "max_frequency_mhz", "cache_bytes"):
        assert reader.missing[f"cpu.{field}"]
    assert "scaling_governor: No such file or directory" in reader.missing["cpu.governor"]
    assert "no_turbo" in reader.missing["cpu.turbo"]
    assert "boost" in reader.missing["cpu.turbo"]


def test_this_machine_describes_itself() -> None:
    """On any machine: every empty field has a reason, and the description is the same on every call."""
    described = system.describe_system()
    assert described == system.describe_system()
    assert described.cpu.model
    assert described.memory_bytes is not None
    assert described.architecture in ("amd64", "arm64", "ppc64le")
    cpu = described.cpu.model_dump()
    for field in ("governor", "turbo", "smt", "min_frequency_mhz", "max_frequency_mhz", "physical_cores"):
        assert (cpu[field] is None) == (f"cpu.{field}" in described.not_read), field
    assert bool(described.gpus) != ("gpus" in described.not_read)
    assert all(described.not_read.values())


def test_system_id_is_of_the_machine_not_of_its_name() -> None:
    """Another host name gives the same id, another processor another."""
    one = SystemDescription(
        system_id="", hostname="a", architecture="amd64", operating_system="x", kernel="y", cpu=Cpu(model="P")
    )
    assert system.system_id(one) == system.system_id(one.model_copy(update={"hostname": "b", "not_read": {"x": "y"}}))
    assert system.system_id(one) != system.system_id(one.model_copy(update={"cpu": Cpu(model="Q")}))
    assert system.system_id(one) == system.system_id(one.model_copy(update={"system_id": "z"}))


def test_state_is_read_or_says_why() -> None:
    """Load and memory are always there; a frequency, a temperature and GPUs are, or have a reason."""
    state = system.read_state()
    assert state.load_average_1m is not None
    assert state.available_memory_bytes
    for field in ("frequency_mhz", "temperature_c"):
        assert (getattr(state, field) is None) == (field in state.not_read)
    assert bool(state.gpu_clock_mhz) or state.not_read["gpus"]


def test_sensors_of_the_processor_are_found_among_others(tmp_path: Path) -> None:
    """The package's temperature is taken, not the disk's; the frequency is that of now."""
    reader = Reader(tree(tmp_path, BARE_METAL))
    assert system._temperature_c(reader) == 61.25
    assert system._frequency_mhz(reader) == 2400.0


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"sys/class/dmi/id/sys_vendor": "Supermicro"}, "none"),
        ({"sys/class/dmi/id/sys_vendor": "QEMU"}, "kvm"),
        ({"sys/class/dmi/id/sys_vendor": "Amazon EC2"}, "amazon"),
        ({"sys/class/dmi/id/sys_vendor": "VMware, Inc."}, "vmware"),
        ({"proc/cpuinfo": "flags : fpu hypervisor"}, None),
    ],
)
def test_hypervisor_is_named_or_not_guessed(tmp_path: Path, files: dict[str, str], expected: str | None) -> None:
    """Known by its firmware strings; a bare hypervisor flag says that there is one, not which."""
    reader = Reader(tree(tmp_path, files))
    assert system._virtualization(reader) == expected
    assert ("virtualization" in reader.missing) == (expected is None)


def test_a_container_has_its_limit_of_memory(tmp_path: Path) -> None:
    """The smaller of the machine's memory and the control group's limit, also a limit further up."""
    files = {"proc/self/cgroup": "0::/pod/worker", "sys/fs/cgroup/pod/memory.max": str(64 * 2**20)}
    assert system.memory_bytes(tree(tmp_path, files)) == 64 * 2**20
    unlimited = tree(tmp_path / "b", {"proc/self/cgroup": "0::/", "sys/fs/cgroup/memory.max": "max"})
    assert system.memory_bytes(unlimited) > 64 * 2**20


def test_cores_that_may_not_be_used_are_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pinned to some cores, or held to a quota further up, in either version of control groups, an agent says so."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert system.usable_cores(tree(tmp_path / "a", {"proc/self/cgroup": "0::/"})) == 8
    files = {"proc/self/cgroup": "0::/pod/worker", "sys/fs/cgroup/pod/cpu.max": "150000 100000"}
    assert system.usable_cores(tree(tmp_path / "b", files)) == 1.5
    old = {"cpu.cfs_quota_us": "200000", "cpu.cfs_period_us": "100000"}
    files = {f"sys/fs/cgroup/cpu,cpuacct/pod/{name}": text for name, text in old.items()}
    assert system.usable_cores(tree(tmp_path / "c", files | {"proc/self/cgroup": "4:cpu,cpuacct:/pod"})) == 2
    unlimited = {"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "max 100000"}
    assert system.usable_cores(tree(tmp_path / "d", unlimited)) == 8


class NvmlError(Exception):
    pass


def nvml_of_a_gpu_machine(**overrides: Any) -> SimpleNamespace:
    """NVML's documented answers on a machine with one H100: its library does not run where there is no driver."""

    def refused(*_: object) -> None:
        raise NvmlError("Not Supported")

    answers = {
        "NVMLError": NvmlError,
        "NVML_CLOCK_SM": 1,
        "NVML_CLOCK_MEM": 2,
        "NVML_TEMPERATURE_GPU": 0,
        "NVML_NVLINK_MAX_LINKS": 18,
        "nvmlClocksThrottleReasonGpuIdle": 1,
        "nvmlClocksThrottleReasonSwPowerCap": 4,
        "nvmlClocksThrottleReasonHwSlowdown": 8,
        "nvmlSystemGetDriverVersion": lambda: "550.54.15",
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetName": lambda _: b"NVIDIA H100 80GB HBM3",
        "nvmlDeviceGetUUID": lambda _: "GPU-1",
        "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(total=80 * 2**30),
        "nvmlDeviceGetCudaComputeCapability": lambda _: (9, 0),
        "nvmlDeviceGetMaxClockInfo": lambda _, kind: {1: 1980, 2: 2619}[kind],
        "nvmlDeviceGetMaxPcieLinkGeneration": lambda _: 5,
        "nvmlDeviceGetNvLinkState": lambda _, link: 1 if link == 3 else refused(),
        "nvmlDeviceGetClockInfo": lambda _, kind: 1755,
        "nvmlDeviceGetTemperature": lambda _, kind: 41,
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda _: 4 | 8,
        "refused": refused,
    }
    return SimpleNamespace(**(answers | overrides))


def test_gpus_are_described() -> None:
    """Name, driver, clocks, memory, compute capability, and both interconnects."""
    gpus, interconnects, missing = gpu.read_gpus(nvml_of_a_gpu_machine())
    assert gpus[0].name == "NVIDIA H100 80GB HBM3"
    assert (gpus[0].driver, gpus[0].compute_capability, gpus[0].memory_bytes) == ("550.54.15", "9.0", 80 * 2**30)
    assert (gpus[0].max_clock_mhz, gpus[0].max_memory_clock_mhz) == (1980.0, 2619.0)
    assert interconnects == ("nvlink", "pcie")
    assert missing == {}


def test_gpu_state_names_why_clocks_are_held_down() -> None:
    """Every bit of the throttle mask by its name."""
    clocks, temperatures, reasons, missing = gpu.read_gpu_state(nvml_of_a_gpu_machine())
    assert (clocks, temperatures, reasons, missing) == ((1755.0,), (41.0,), ("0:SwPowerCap", "0:HwSlowdown"), {})


def test_what_a_gpu_does_not_tell_has_its_reason() -> None:
    """A virtual GPU refuses clocks: the field is None, with NVML's own words."""
    nvml = nvml_of_a_gpu_machine()
    nvml.nvmlDeviceGetMaxClockInfo = nvml.nvmlDeviceGetTemperature = nvml.refused
    gpus, _, missing = gpu.read_gpus(nvml)
    assert gpus[0].max_clock_mhz is None
    assert missing["gpus[0].max_clock_mhz"] == "NVML: Not Supported"
    assert gpu.read_gpu_state(nvml)[3] == {"gpus[0].temperature": "NVML: Not Supported"}
