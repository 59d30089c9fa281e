"""The processor, as the kernel describes it."""

import re
from pathlib import Path

import psutil

from schemas.system import Cpu

FLAG = re.compile(
    r"sse4_[12]|avx\w*|f16c|fma|vnni\w*|amx_\w+|vaes|vpclmulqdq|neon|asimd\w*|sve\d?|sve[a-z_]\w+|sme\d?|sme_\w+|i8mm|bf16|fp16|fphp|vsx"
)
"""Vector and matrix extensions, as x86, ARM and POWER name them."""
_SIZE = re.compile(r"(\d+)([KMG]?)B?")
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
_CPUS = "sys/devices/system/cpu"


class Reader:
    """Reads small files beneath a root and keeps, for each field that had none, the reason."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root
        self.missing: dict[str, str] = {}

    def text(self, field: str, *paths: str) -> str | None:
        """Return the stripped text of the first of `paths` that can be read; otherwise note why for `field`."""
        reasons = []
        for path in paths:
            try:
                found = (self.root / path).read_text(errors="replace").strip()
            except OSError as error:
                reasons.append(f"/{path}: {error.strerror}")
                continue
            if found:
                return found
            reasons.append(f"/{path}: empty")
        self.missing[field] = "; ".join(reasons)
        return None

    def number(self, field: str, *paths: str) -> float | None:
        """Return the number that a file holds; otherwise note why not."""
        found = self.text(field, *paths)
        try:
            return None if found is None else float(found)
        except ValueError:
            self.missing[field] = f"not a number: {found!r}"
            return None


def read_cpu(reader: Reader) -> Cpu:
    """Return the processor. What cannot be read is None or empty, and `reader.missing` says why."""
    info = reader.text("cpu.flags", "proc/cpuinfo") or ""
    logical, physical = psutil.cpu_count(logical=True), psutil.cpu_count(logical=False)
    for field, count in (("cpu.logical_cores", logical), ("cpu.physical_cores", physical)):
        if count is None:
            reader.missing[field] = "the operating system does not say"
    low = reader.number("cpu.min_frequency_mhz", f"{_CPUS}/cpu0/cpufreq/cpuinfo_min_freq")
    high = reader.number("cpu.max_frequency_mhz", f"{_CPUS}/cpu0/cpufreq/cpuinfo_max_freq")
    flags = set(re.findall(r"^(?:flags|Features)\s*:\s*(.*)$", info, re.MULTILINE)[:1] or [""])
    smt = reader.text("cpu.smt", f"{_CPUS}/smt/active")
    return Cpu(
        model=_model(reader, info),
        physical_cores=physical,
        logical_cores=logical,
        smt=None if smt is None else smt == "1",
        governor=reader.text("cpu.governor", f"{_CPUS}/cpu0/cpufreq/scaling_governor"),
        turbo=_turbo(reader),
        min_frequency_mhz=None if low is None else low / 1000,
        max_frequency_mhz=None if high is None else high / 1000,
        cache_bytes=_caches(reader),
        flags=tuple(sorted(flag for flag in " ".join(flags).split() if FLAG.fullmatch(flag))),
    )


def _model(reader: Reader, info: str) -> str | None:
    """x86 and POWER name it in /proc/cpuinfo; ARM only by numbers, which py-cpuinfo looks up (slow, so last)."""
    named = re.search(r"^(?:model name|cpu)\s*:\s*(\S.*)$", info, re.MULTILINE)
    if named:
        return named.group(1).strip()
    import cpuinfo

    try:
        brand = cpuinfo.get_cpu_info().get("brand_raw")
    except Exception as error:  # noqa: BLE001 - py-cpuinfo raises bare exceptions where it does not know the machine
        reader.missing["cpu.model"] = f"py-cpuinfo: {error}"
        return None
    if not brand:
        reader.missing["cpu.model"] = "neither /proc/cpuinfo nor py-cpuinfo names it"
    return str(brand) if brand else None


def _turbo(reader: Reader) -> bool | None:
    """intel_pstate says that it is off; acpi-cpufreq and amd-pstate say that it is on."""
    off = reader.text("cpu.turbo", f"{_CPUS}/intel_pstate/no_turbo")
    if off is not None:
        return off == "0"
    why = reader.missing.pop("cpu.turbo")
    on = reader.text("cpu.turbo", f"{_CPUS}/cpufreq/boost")
    if on is None:
        reader.missing["cpu.turbo"] = f"{why}; {reader.missing['cpu.turbo']}"
    return None if on is None else on == "1"


def _caches(reader: Reader) -> dict[str, int]:
    """Return the bytes of each level as one core sees it: `L1d`, `L1i`, `L2`, `L3`."""
    directory = reader.root / _CPUS / "cpu0/cache"
    found = {}
    for index in sorted(directory.glob("index*")):
        try:
            level, kind = (index / "level").read_text().strip(), (index / "type").read_text().strip()
            size = _SIZE.fullmatch((index / "size").read_text().strip())
        except OSError as error:
            reader.missing["cpu.cache_bytes"] = f"/{_CPUS}/cpu0/cache/{index.name}: {error.strerror}"
            continue
        if size:
            suffix = {"Data": "d", "Instruction": "i"}.get(kind, "")
            found[f"L{level}{suffix}"] = int(size.group(1)) * _UNITS[size.group(2)]
    if not found:
        reader.missing.setdefault("cpu.cache_bytes", f"/{_CPUS}/cpu0/cache: nothing there")
    return found
