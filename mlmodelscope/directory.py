"""The data directory of a stack: who uses it, and where its parts listen."""

import fcntl
import json
import os
from pathlib import Path
from typing import Any, TextIO

from mlmodelscope.errors import DirectoryInUseError, StackError


class DataDirectory:
    """`nats/`, `store/`, `log/` and `run/` of one stack. One stack at a time: `lock` says so.

    `part` is what holds the lock: `stack` for a supervisor, `bus` for a bus that runs under another one.
    """

    def __init__(self, path: Path, part: str = "stack") -> None:
        self.path = path
        self.part = part
        self.run = path / "run"
        self.log = path / "log"
        self._lock: TextIO | None = None

    def lock(self) -> None:
        """Take the directory for this process; idempotent. Raises DirectoryInUseError naming who has it."""
        if self._lock is not None:
            return
        try:
            self.run.mkdir(parents=True, exist_ok=True)
            handle = (self.run / f"{self.part}.lock").open("a+")
        except OSError as error:
            raise StackError(f"cannot use {self.path} as data directory: {error.strerror}") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.seek(0)
            holder = handle.read().strip() or "unknown"
            handle.close()
            raise DirectoryInUseError(
                f"{self.path} is in use by another stack (process {holder})",
                hint="stop that one, or give this one another directory with --data DIR",
            ) from None
        handle.truncate(0)
        handle.write(f"{os.getpid()}\n")
        handle.flush()
        self._lock = handle

    def unlock(self) -> None:
        """Give the directory back. Idempotent."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def announce(self, part: str, **facts: Any) -> None:
        """Write where `part` listens, atomically."""
        self.run.mkdir(parents=True, exist_ok=True)
        target = self.run / f"{part}.json"
        temporary = target.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(facts))
        temporary.replace(target)

    def announced(self, part: str) -> dict[str, Any] | None:
        """Return what `announce` wrote, or None."""
        try:
            found = json.loads((self.run / f"{part}.json").read_text())
        except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError):
            return None
        return found if isinstance(found, dict) else None

    def withdraw(self, part: str) -> None:
        """Forget where `part` listened."""
        (self.run / f"{part}.json").unlink(missing_ok=True)
