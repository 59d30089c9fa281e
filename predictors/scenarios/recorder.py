"""The measuring loop: what happens between two readings of the clock, and between two queries."""

from array import array
from collections.abc import Callable, Sequence
from threading import Event
from time import perf_counter_ns
from typing import Any, Protocol

from predictors.errors import CancelledError

Issue = Callable[[list[int], list[int]], None]
"""Called by the load generator with the ids and the sample indices of one query."""
NEVER = 2**62


class Completion(Protocol):
    """The two calls by which the load generator is told that samples are done."""

    QuerySamplesComplete: Callable[..., None]
    QuerySampleResponse: Callable[[int, int, int], Any]


class Recorder:
    """Runs predictions for the load generator and keeps three numbers of each.

    Nothing it does raises into the load generator, which would abort the process: an error is kept, the
    query completed, and every later query is completed at once without a prediction. `done` is set as soon
    as no further row can come.
    """

    def __init__(self, predict: Callable[[int], None], cancelled: Callable[[], bool]) -> None:
        self.predict = predict
        self.cancelled = cancelled
        self.batch, self.issued, self.completed = array("q"), array("q"), array("q")
        self.done = Event()
        self.error: BaseException | None = None
        self.stopped = ""
        """Why the load was ended from here; empty while it flows."""
        self.drained = 0
        self.log_thread = ""
        """How the load generator's log thread was scheduled."""
        self.warmup = 0
        self.max_ns = NEVER
        self.check_at = 0
        """The clock at which the window must be looked at again; 0 until the warm-up is over."""

    def limit(self, warmup: int, max_duration_s: float) -> None:
        """Set how many queries warm up and how long may be measured after them."""
        self.warmup = warmup
        self.max_ns = int(max_duration_s * 1e9)

    def stop(self, reason: str, error: BaseException | None = None) -> None:
        """End the load; the first reason stays."""
        if not self.stopped:
            self.error = error
            self.stopped = reason
            self.done.set()

    def estimate(self, batch: int, *, most: int = 5, budget_ns: int = 20_000_000) -> list[int]:
        """Return the durations of a few predictions: one at least, more while they fit in `budget_ns`."""
        found: list[int] = []
        while not found or (len(found) < most and sum(found) < budget_ns):
            if self.cancelled():
                raise CancelledError("the evaluation was cancelled before its measurement")
            start = perf_counter_ns()
            self.predict(batch)
            found.append(perf_counter_ns() - start)
        return found

    def check(self, now: int) -> None:
        """After a query: end the load when it was cancelled or has been measured for long enough."""
        if self.cancelled():
            self.stop("cancelled", CancelledError("the evaluation was cancelled during its measurement"))
        if now >= self.check_at and len(self.issued) > self.warmup:
            self.check_at = self.issued[self.warmup] + self.max_ns
            if now >= self.check_at:
                self.stop("max_duration")

    def callback(self, drawn: Sequence[int], load_generator: Completion) -> Issue:
        """Return what the load generator calls for each query: of one sample or, offline, of all of them.

        Sample n is the prepared batch `drawn[n]`. Only `predict` lies between the two readings of the clock;
        the load generator is told at once, and the rest happens before the next query is due.
        """
        predict, clock, check = self.predict, perf_counter_ns, self.check
        add_batch, add_issued, add_completed = self.batch.append, self.issued.append, self.completed.append
        complete, respond = load_generator.QuerySamplesComplete, load_generator.QuerySampleResponse

        def issue(ids: list[int], samples: list[int]) -> None:
            answered = 0
            try:
                for sample in samples:
                    if self.stopped:
                        break
                    batch = drawn[sample]
                    issued = clock()
                    predict(batch)
                    completed = clock()
                    complete([respond(ids[answered], 0, 0)])
                    answered += 1
                    add_batch(batch)
                    add_issued(issued)
                    add_completed(completed)
                    check(completed)
            except BaseException as error:  # noqa: BLE001 - kept and raised again by run_scenario
                self.stop("error", error)
            rest = ids[answered:]
            if rest:
                self.drained += len(rest)
                complete([respond(id_, 0, 0) for id_ in rest])

        return issue
