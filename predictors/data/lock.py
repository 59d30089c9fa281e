"""A lock between processes that dies with its holder."""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

POLL_S = 0.05


class Held:
    """A lock that is held. Its file can carry one number for those who wait: the size of what is being fetched."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def announce(self, total: int) -> None:
        """Tell the waiters how many bytes the work has."""
        with suppress(OSError):  # a full disk: they go without the number, and the work itself tells of the disk
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, str(total).encode(), 0)


@contextmanager
def locked(descriptor: int, waiting: Callable[[int], None]) -> Iterator[Held]:
    """Hold the exclusive lock on an open file, and close it at the end.

    It is flock's: it excludes threads that opened the file themselves as well, and the kernel frees it when its
    holder is killed. While another holds it, `waiting(total)` is called about twenty times a second, with the
    announced total or 0; what it raises ends the wait. The file itself must stay where it is: were it removed,
    two processes could hold its lock.
    """
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                text = os.pread(descriptor, 32, 0)
                waiting(int(text) if text.isdigit() else 0)
                time.sleep(POLL_S)
        try:
            yield Held(descriptor)
        finally:
            # Not left to close(): a forked child may hold a copy of the descriptor.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)
