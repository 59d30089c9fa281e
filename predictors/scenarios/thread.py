"""The thread that a predictor lives on, when it is not the caller's."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class PredictorThread:
    """One persistent thread on which a predictor is opened, called, measured and closed.

    Frameworks keep settings by thread (OpenMP's number of threads is one: PyTorch's `set_num_threads` on one
    thread leaves oneDNN on another at all cores), so a predictor must never be measured on another thread
    than it was opened on. With a thread of its own, whoever waits for a measurement goes on when its last
    query has been recorded, while the load generator closes its logs on this one. The interpreter waits for
    it at exit.
    """

    def __init__(self, name: str = "predictor") -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    def submit(self, function: Callable[[], T]) -> "Future[T]":
        """Run `function` there after everything submitted before; returns at once."""
        return self._executor.submit(function)

    def call(self, function: Callable[[], T]) -> T:
        """Run `function` there and return what it returns or raise what it raises; blocks. Not from there."""
        return self.submit(function).result()

    def close(self) -> None:
        """Wait for what was submitted and end the thread. May be called twice."""
        self._executor.shutdown()
