"""Keeping the load generator's log thread out of the way of what is measured.

LoadGen polls its logs every 10 ms on a thread of its own. With as many framework threads as cores each poll
preempts one of them, and the framework's other threads wait for it: a network of 3 ms on two cores was measured
1.5 to 2 % too slow. The thread is made to run only where nothing else wants to; it has nothing urgent to do.
"""

import os
import sys
from pathlib import Path

_THREADS = Path("/proc/self/task")


class LogThread:
    """Finds the one thread that the load generator starts, and has the kernel run it last. Linux only."""

    def __init__(self) -> None:
        """Look at the threads there are. Construct it right before the load generator is started."""
        self._before = _threads()
        self.policy = "as the process"
        """What was done, for the record."""

    def yield_to_predictions(self) -> None:
        """Lower the thread's policy to SCHED_IDLE. Nothing is done where it cannot be told which thread it is."""
        started = _threads() - self._before
        if len(started) != 1:
            return
        try:
            os.sched_setscheduler(started.pop(), os.SCHED_IDLE, os.sched_param(0))
        except OSError:
            return  # a sandbox that does not allow it: the measurement is as good as it was before
        self.policy = "SCHED_IDLE"


def _threads() -> set[int]:
    if not sys.platform.startswith("linux"):
        return set()
    return {int(entry.name) for entry in _THREADS.iterdir()}
