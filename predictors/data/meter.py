"""Progress out, cancellation in: what every long loop over bytes carries."""

import time
from collections.abc import Callable

from predictors.errors import CancelledError

INTERVAL_S = 0.1
"""Progress is told at most this often, whatever the size of the pieces."""


def never() -> bool:
    """Return False: nobody cancels."""
    return False


class Meter:
    """Tells `progress(done, total)` in bytes, total 0 while unknown, and raises CancelledError when `cancelled()`."""

    def __init__(
        self,
        what: str,
        progress: Callable[[int, int], None] | None = None,
        cancelled: Callable[[], bool] = never,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.what = what
        self._progress = progress
        self._cancelled = cancelled
        self._clock = clock
        self._told_at = float("-inf")

    def check(self) -> None:
        """Raise CancelledError when the work is no longer wanted."""
        if self._cancelled():
            raise CancelledError(f"cancelled while fetching {self.what}")

    def report(self, done: int, total: int | None, *, last: bool = False) -> None:
        """Say how far the work is. Raises CancelledError."""
        self.check()
        now = self._clock()
        if self._progress is not None and (last or now - self._told_at >= INTERVAL_S):
            self._told_at = now
            self._progress(done, total or 0)

    def pause(self, seconds: float) -> None:
        """Sleep, but not through a cancellation. Raises CancelledError."""
        end = self._clock() + seconds
        while True:
            self.check()
            left = end - self._clock()
            if left <= 0:
                return
            time.sleep(min(left, 0.05))
