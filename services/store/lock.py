"""One process per data directory: an advisory lock that the kernel lets go of however its holder ends."""

import fcntl
import os
from pathlib import Path

from services.errors import StoreError

LOCK_NAME = "mlmodelscope.lock"


class DirectoryLock:
    """The lock on a data directory, taken when it is made. The file says who holds it."""

    def __init__(self, directory: Path) -> None:
        """Take the lock. Raises StoreError: the directory cannot be used, or another process, named, has it."""
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._descriptor: int | None = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StoreError(f"the store in {directory} cannot be opened: {error}") from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(self._descriptor, 64).decode(errors="replace").strip() or "unknown"
            self.release()
            raise StoreError(
                f"the store in {directory} is in use by process {holder}; stop it, or name another data directory "
                "(MLMODELSCOPE_DATA_DIR)"
            ) from None
        os.ftruncate(self._descriptor, 0)
        os.write(self._descriptor, f"{os.getpid()}\n".encode())

    def release(self) -> None:
        """Let go of the lock. May be called twice."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
