"""One measurement at a time on a machine, whatever agents run on it."""

import asyncio
import fcntl
import os
import threading
from pathlib import Path


class MachineLock:
    """An advisory lock on a file, shared by all agents of a machine.

    The lock belongs to the open file, and workers inherit its descriptor: when an agent is killed, the lock is
    free only once its worker is gone too. Uncontended it costs one system call. When it is contended a thread
    waits in the kernel, which serves waiters in turn. For one event loop; one holder at a time.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self.descriptor = _open(path)
        """For a worker to inherit."""
        self._guard = threading.Lock()
        self._wanted: asyncio.Future[None] | None = None
        self._waiting = False
        self._closed = False

    def try_acquire(self) -> bool:
        """Take the lock if nobody has it. Never blocks."""
        with self._guard:
            if self._waiting:
                return False
            self._follow()
            try:
                fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

    async def acquire(self) -> None:
        """Wait for the lock. Cancelling gives up; a lock that comes afterwards is let go at once."""
        if self.try_acquire():
            return
        wanted = asyncio.get_running_loop().create_future()
        with self._guard:
            self._wanted = wanted
            if not self._waiting:
                self._waiting = True
                threading.Thread(target=self._wait, name="machine-lock", daemon=True).start()
        try:
            await wanted
        except asyncio.CancelledError:
            with self._guard:
                if self._wanted is wanted:
                    self._wanted = None
                held = wanted.done() and not wanted.cancelled()
            if held:
                self.release()
            raise

    def release(self) -> None:
        """Let the lock go."""
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Let go and close the file. Idempotent. A thread that still waits ends with its turn, or the process."""
        with self._guard:
            if self._closed:
                return
            self._closed = True
            self._wanted = None
            if not self._waiting:
                self.release()
                os.close(self.descriptor)

    def _follow(self) -> None:
        """Turn to the file that has the name now: what cleans up temporary directories may have removed ours."""
        ours = os.fstat(self.descriptor)
        try:
            found = os.stat(self._path, follow_symlinks=False)
        except FileNotFoundError:
            found = None
        if found is None or (found.st_dev, found.st_ino) != (ours.st_dev, ours.st_ino):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = _open(self._path)
            os.dup2(descriptor, self.descriptor, inheritable=False)
            os.close(descriptor)

    def _wait(self) -> None:
        fcntl.flock(self.descriptor, fcntl.LOCK_EX)
        with self._guard:
            self._waiting = False
            wanted, self._wanted = self._wanted, None
            if wanted is None or wanted.get_loop().is_closed():
                fcntl.flock(self.descriptor, fcntl.LOCK_UN)
            else:
                wanted.get_loop().call_soon_threadsafe(self._hand_over, wanted)
            if self._closed:
                os.close(self.descriptor)

    def _hand_over(self, wanted: "asyncio.Future[None]") -> None:
        if wanted.done():
            self.release()
        else:
            wanted.set_result(None)


def _open(path: Path) -> int:
    """Open the file, another user's too: a sticky directory lets others open it but not create over it."""
    try:
        return os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except (FileNotFoundError, PermissionError):
        pass  # not there yet, or only readable: both handled below
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
    except FileExistsError:
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    os.fchmod(descriptor, 0o666)
    return descriptor
