"""Why a worker process died, as far as its exit and its last words tell."""

import re
import signal
from dataclasses import dataclass
from pathlib import Path

from predictors.errors import PredictorError, WorkerCrashedError, WorkerOutOfMemoryError

_ALLOCATION_FAILED = re.compile(
    r"MemoryError|bad_alloc|can't allocate memory|cannot allocate memory|failed to allocate memory|out of memory"
    r"|failed to map segment",
    re.IGNORECASE,
)
_HINT = "use a smaller batch, a smaller model or a machine with more memory"


@dataclass(frozen=True, slots=True)
class KernelKills:
    """How often the kernel had killed for want of memory: in the control group, and on the whole machine."""

    group: int | None
    machine: int | None

    def since(self, before: "KernelKills") -> bool:
        """Return whether a process was killed between `before` and this reading."""
        pairs = ((before.group, self.group), (before.machine, self.machine))
        return any(was is not None and now is not None and now > was for was, now in pairs)


def kernel_kills() -> KernelKills:
    """Read the kernel's counters; a system without them gives None."""
    return KernelKills(_counter(_group_file(), "oom_kill"), _counter(Path("/proc/vmstat"), "oom_kill"))


def looks_like_no_memory(text: str) -> bool:
    """Return whether a framework's words say that an allocation failed."""
    return _ALLOCATION_FAILED.search(text) is not None


def explain_death(code: int | None, output: str, killed_before: KernelKills) -> PredictorError:
    """Return the error for a worker that ended with `code` (negative: by that signal) and wrote `output` last."""
    detail = output.strip()
    if code is not None and code < 0:
        name = _signal_name(-code)
        if -code == signal.SIGKILL and kernel_kills().since(killed_before):
            return WorkerOutOfMemoryError("the kernel killed the worker for memory", hint=_HINT, detail=detail)
        if looks_like_no_memory(output):
            return WorkerOutOfMemoryError(f"the worker ran out of memory ({name})", hint=_HINT, detail=detail)
        hint = "run it again; when it repeats, the framework crashes on this model"
        return WorkerCrashedError(f"the worker was killed by {name}", hint=hint, detail=detail)
    if looks_like_no_memory(output):
        return WorkerOutOfMemoryError(f"the worker ran out of memory (exit code {code})", hint=_HINT, detail=detail)
    return WorkerCrashedError(f"the worker exited with code {code}", hint="its last words say why", detail=detail)


def out_of_memory(error: BaseException) -> WorkerOutOfMemoryError:
    """Return the error for an allocation that failed inside the worker."""
    return WorkerOutOfMemoryError("the worker ran out of memory", hint=_HINT, detail=f"{type(error).__name__}: {error}")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def _group_file() -> Path | None:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            return Path("/sys/fs/cgroup") / path.lstrip("/") / "memory.events"
        if "memory" in controllers.split(","):
            return Path("/sys/fs/cgroup/memory") / path.lstrip("/") / "memory.oom_control"
    return None


def _counter(path: Path | None, name: str) -> int | None:
    if path is None:
        return None
    try:
        for line in path.read_text().splitlines():
            if line.startswith(f"{name} "):
                return int(line.split()[1])
    except (OSError, ValueError):
        return None  # no such counter here: the exit code alone must do
    return None
