"""The worker an agent keeps between tasks, and when it takes another one."""

import contextlib
import fcntl
import logging
import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from predictors.agent.daemon_thread import in_daemon_thread
from predictors.errors import DeviceUnavailableError
from predictors.worker.process import WorkerProcess, WorkerSettings
from schemas.manifest_yaml import manifest_digest
from schemas.scenario import Threads
from schemas.tasks import TaskAssigned
from schemas.trace import TraceLevel

log = logging.getLogger(__name__)

_OWNED = ".lock"
_NEW_S = 60.0
"""A directory so young may not be locked yet."""


@dataclass(frozen=True, slots=True)
class WorkerKey:
    """How a worker's model was opened: a task with an equal key may use it as it is."""

    model: str
    entry: str
    device: str
    batch_size: int
    threads: Threads
    options: tuple[tuple[str, bool | int | float | str], ...]
    trace_level: TraceLevel
    trusted: bool

    @classmethod
    def of(cls, task: TaskAssigned, *, trusted: bool) -> "WorkerKey":
        """Return the key of the worker that `task` needs."""
        request = task.request
        return cls(
            model=manifest_digest(task.model),
            entry=manifest_digest(task.framework_model),
            device=task.stack.device,
            batch_size=request.batch_size,
            threads=request.threads,
            options=tuple(sorted(request.options.items())),
            trace_level=request.trace_level,
            trusted=trusted,
        )


class WarmWorker:
    """At most one worker process, with its scratch directory. For one event loop and one task at a time."""

    def __init__(self, work_dir: Path, *, inherit: tuple[int, ...] = (), memory_bytes: int | None = None) -> None:
        self._work_dir = work_dir
        self._inherit = inherit
        self._memory_bytes = memory_bytes
        self._worker: WorkerProcess | None = None
        self._key: WorkerKey | None = None
        self._scratch: Scratch | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the worker, if there is one."""
        return self._worker.pid if self._worker is not None else None

    @property
    def scratch(self) -> Path:
        """The worker's directory for spilled inputs and logs."""
        assert self._scratch is not None
        return self._scratch.path

    async def get(self, framework: str, task: TaskAssigned, *, trusted: bool) -> WorkerProcess:
        """Return the warm worker when it fits `task` and still lives, or else a fresh one, ready.

        Raises WorkerCrashedError or WorkerOutOfMemoryError when a fresh one dies while it imports, and
        DeviceUnavailableError when the framework can no longer run here.
        """
        key = WorkerKey.of(task, trusted=trusted)
        if self._worker is not None and self._worker.alive and key == self._key and not task.request.cold:
            return self._worker
        await self.discard()
        self._scratch = await in_daemon_thread("make-scratch", lambda: Scratch(self._work_dir))
        settings = WorkerSettings(framework, task.stack.device, task.request.threads, self._memory_bytes)
        inherit = (*self._inherit, self._scratch.descriptor)
        self._worker = await WorkerProcess.start(settings, inherit=inherit)
        ready = await self._worker.ready()
        if ready.unavailable is not None:
            raise DeviceUnavailableError(ready.unavailable)
        if ready.version and ready.version != task.stack.version:
            raise DeviceUnavailableError(
                f"this agent serves {framework} {task.stack.version}, and what imports now is {ready.version}",
                hint="the installation was changed under the agent: restart it",
            )
        log.debug("worker %d for %s %s is ready", self._worker.pid, framework, ready.version)
        self._key = key
        return self._worker

    async def discard(self) -> None:
        """Kill the worker and remove its directory. Idempotent."""
        worker, self._worker, self._key = self._worker, None, None
        if worker is not None:
            await worker.kill()
        scratch, self._scratch = self._scratch, None
        if scratch is not None:
            await in_daemon_thread("remove-scratch", scratch.close)


class Scratch:
    """A directory of one worker. Locked as long as agent or worker live, so that leftovers can be told.

    Making one removes those whose owners were killed. Blocking.
    """

    def __init__(self, work_dir: Path) -> None:
        work_dir.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(work_dir)
        self.path = Path(tempfile.mkdtemp(dir=work_dir, prefix="worker-"))
        self.descriptor = os.open(self.path / _OWNED, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self.descriptor, fcntl.LOCK_EX)

    def close(self) -> None:
        """Remove it. Called once."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self.descriptor)


def _remove_leftovers(work_dir: Path) -> None:
    for directory in work_dir.glob("worker-*"):
        with contextlib.suppress(OSError):  # gone meanwhile, or another user's: theirs to clean
            if time.time() - directory.stat().st_mtime < _NEW_S:
                continue
            descriptor = os.open(directory / _OWNED, os.O_RDWR)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(directory, ignore_errors=True)
            finally:
                os.close(descriptor)
