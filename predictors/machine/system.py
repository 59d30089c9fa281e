"""The machine: what it is (read once) and how it is doing (read before and after every measurement)."""

import hashlib
import json
import os
import platform
import re
import socket
from functools import lru_cache
from pathlib import Path

import psutil

from predictors.machine.cpu import Reader, read_cpu
from predictors.machine.gpu import open_nvml, read_gpu_state, read_gpus
from schemas.system import Gpu, SystemDescription, SystemState

_ARCHITECTURES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
_HYPERVISORS = {
    "kvm": ("kvm", "qemu"),
    "amazon": ("amazon ec2",),
    "google": ("google compute engine",),
    "hyperv": ("microsoft corporation virtual machine",),
    "vmware": ("vmware",),
    "virtualbox": ("virtualbox", "innotek"),
    "xen": ("xen",),
}
_SAMPLED_CPUS = 8
"""Reading the clock of every core of a large machine would take longer than the state may."""
_PACKAGE_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "cpu-thermal")


def architecture() -> str:
    """Return the machine's architecture as manifests and subjects name it: `amd64`, `arm64`, `ppc64le`."""
    machine = platform.machine().lower()
    return _ARCHITECTURES.get(machine, machine)


def describe_system() -> SystemDescription:
    """Return what the machine is. Read once; blocks for some 20 ms the first time (GPUs: up to a second).

    What cannot be read is None and stands in `not_read` with the reason. `system_id` is a digest of the rest
    without the host's name: the same on every call and after every restart.
    """
    return _described()


@lru_cache(maxsize=1)
def _described() -> SystemDescription:
    reader = Reader()
    gpus: tuple[Gpu, ...] = ()
    interconnects: tuple[str, ...] = ()
    nvml, why = open_nvml()
    missing = {"gpus": why}
    if nvml is not None:
        gpus, interconnects, missing = read_gpus(nvml)
    described = SystemDescription(
        system_id="",
        hostname=socket.gethostname(),
        architecture=architecture(),
        operating_system=_operating_system(reader),
        kernel=f"{platform.system()} {platform.release()}",
        cpu=read_cpu(reader).model_copy(update={"usable_cores": usable_cores(reader.root)}),
        virtualization=_virtualization(reader),
        memory_bytes=memory_bytes(reader.root),
        gpus=gpus,
        interconnects=interconnects,
        not_read=dict(sorted((reader.missing | missing).items())),
    )
    return described.model_copy(update={"system_id": system_id(described)})


def system_id(described: SystemDescription) -> str:
    """Return a digest, of 32 hex digits, of all that `described` says but the host's name.

    What was not read is None there already; the wording of the reasons is left out with `not_read`.
    """
    content = described.model_dump(mode="json", exclude={"system_id", "hostname", "not_read"})
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


def memory_bytes(root: Path = Path("/")) -> int:
    """Return the memory there is to use: the machine's, or a smaller limit of the control group."""
    total = int(psutil.virtual_memory().total)
    limits = [total]
    for directory in _own_groups(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            try:
                text = (directory / name).read_text().strip()
            except OSError:  # no such controller, or no limit: the machine's memory stands
                continue
            if text.isdigit():
                limits.append(int(text))
    return min(limits)


def usable_cores(root: Path = Path("/")) -> float:
    """Return the cores this process may use: its affinity's, or a smaller quota of the control group's."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = [float(len(affinity(0)))] if affinity is not None else [float(os.cpu_count() or 1)]
    for directory in _own_groups(root, "cpu"):
        try:
            if (directory / "cpu.max").exists():
                quota, period = (directory / "cpu.max").read_text().split()
            else:
                quota, period = ((directory / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
            if quota != "max" and int(quota) > 0:
                cores.append(int(quota) / int(period))
        except (OSError, ValueError):  # no such controller, or no limit: the affinity stands
            continue
    return min(cores)


def read_state() -> SystemState:
    """Return how the machine is doing, from a few small files, in well under 2 ms where there is no GPU.

    Frequency is the mean over some cores. What cannot be read is None and stands in `not_read`.
    """
    reader = Reader()
    clocks: tuple[float, ...] = ()
    temperatures: tuple[float, ...] = ()
    reasons: tuple[str, ...] = ()
    nvml, why = open_nvml()
    if nvml is None:
        missing = {"gpus": why}
    else:
        clocks, temperatures, reasons, missing = read_gpu_state(nvml)
    return SystemState(
        load_average_1m=os.getloadavg()[0],
        available_memory_bytes=int(psutil.virtual_memory().available),
        frequency_mhz=_frequency_mhz(reader),
        temperature_c=_temperature_c(reader),
        gpu_clock_mhz=clocks,
        gpu_temperature_c=temperatures,
        gpu_throttle_reasons=reasons,
        not_read=reader.missing | missing,
    )


def _own_groups(root: Path, controller: str) -> list[Path]:
    """Return the directories of this process's groups for `controller`, up to the root of each hierarchy."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # no control groups: nothing limits
        return []
    found = []
    for line in lines:
        controllers, _, path = line.partition(":")[2].partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / (controllers if controllers else "")
        here = top / path.strip("/")
        found += [here, *(parent for parent in here.parents if parent.is_relative_to(top))]
    return found


def _operating_system(reader: Reader) -> str:
    text = reader.text("operating_system", "etc/os-release", "usr/lib/os-release") or ""
    named = re.search(r'^PRETTY_NAME="?(.*?)"?$', text, re.MULTILINE)
    if named:
        return named.group(1)
    return platform.system()


def _virtualization(reader: Reader) -> str | None:
    """Return which hypervisor this runs on, `none`, or None when that cannot be told."""
    files = ("sys/class/dmi/id/sys_vendor", "sys/class/dmi/id/product_name", "sys/hypervisor/type")
    known = Reader(reader.root)
    said = " ".join(filter(None, (known.text(path, path) for path in files))).lower()
    for name, words in _HYPERVISORS.items():
        if any(word in said for word in words):
            return name
    info = known.text("flags", "proc/cpuinfo") or ""
    if re.search(r"^flags\s*:.*\bhypervisor\b", info, re.MULTILINE):
        reasons = "; ".join(known.missing.values()) or f"{said!r} is not one that is known here"
        reader.missing["virtualization"] = f"the processor says there is a hypervisor, nothing says which: {reasons}"
        return None
    if said:
        return "none"
    reader.missing["virtualization"] = "; ".join(known.missing.values())
    return None


def _frequency_mhz(reader: Reader) -> float | None:
    paths = _frequency_files(reader.root)
    found = [reader.number("frequency_mhz", path) for path in paths]
    values = [value / 1000 for value in found if value is not None]
    if values:
        return sum(values) / len(values)
    info = reader.text("frequency_mhz", "proc/cpuinfo") or ""
    values = [float(value) for value in re.findall(r"^cpu MHz\s*:\s*([\d.]+)", info, re.MULTILINE)]
    if not values:
        reader.missing["frequency_mhz"] = "no cpufreq in /sys, and /proc/cpuinfo says none"
        return None
    reader.missing.pop("frequency_mhz", None)
    return sum(values) / len(values)


@lru_cache(maxsize=4)
def _frequency_files(root: Path) -> tuple[str, ...]:
    cpus = sorted((root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_cur_freq"))
    step = max(1, len(cpus) // _SAMPLED_CPUS)
    return tuple(str(path.relative_to(root)) for path in cpus[::step][:_SAMPLED_CPUS])


def _temperature_c(reader: Reader) -> float | None:
    path = _temperature_file(reader.root)
    if path is None:
        reader.missing["temperature_c"] = "no sensor of the processor in /sys/class/hwmon or /sys/class/thermal"
        return None
    value = reader.number("temperature_c", path)
    return None if value is None else value / 1000


@lru_cache(maxsize=4)
def _temperature_file(root: Path) -> str | None:
    """Return the file of the package's sensor: by hwmon driver, else by the type of a thermal zone."""
    for directory in sorted((root / "sys/class/hwmon").glob("hwmon*")):
        name = Reader(root).text("name", str((directory / "name").relative_to(root)))
        if name in _PACKAGE_SENSORS and (directory / "temp1_input").exists():
            return str((directory / "temp1_input").relative_to(root))
    for zone in sorted((root / "sys/class/thermal").glob("thermal_zone*")):
        kind = Reader(root).text("type", str((zone / "type").relative_to(root))) or ""
        if "cpu" in kind.lower() or "pkg" in kind.lower():
            return str((zone / "temp").relative_to(root))
    return None
