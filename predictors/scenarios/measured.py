"""What came of a measurement: its queries by column, how it was made, and whether it may be quoted."""

from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from schemas import statistics
from schemas.result import Latency, Throughput, Validity

Column = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the load generator itself says of a run: its summary log."""

    valid: bool
    """MLPerf's own verdict, by MLPerf's own minimum counts."""
    values: dict[str, str]
    """Every `name : value` line of the summary."""
    early_stopping_ns: int | None
    """SingleStream: its early-stopping estimate of the 90th percentile, warm-up included."""
    text: str
    comparable: bool
    """False when the run was stopped from outside: the rest of its queries were answered without a prediction."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The queries of one run in order of issue, warm-up included, all columns equally long.

    Times are nanoseconds of `perf_counter_ns` since the first query was issued.
    """

    query_index: Column
    """0, 1, 2, ..."""
    batch_index: Column
    """Which prepared batch the query was."""
    warmup: npt.NDArray[np.bool_]
    scheduled_ns: Column
    issued_ns: Column
    completed_ns: Column
    items: Column
    settings: dict[str, object]
    """The scenario's settings and what came of them; plain JSON values."""
    load_generator: str
    validity: Validity
    verdict: "Future[Verdict]" = field(repr=False, compare=False)

    @property
    def durations_ns(self) -> Column:
        """Latency of each measured query, from when it was due; warm-up left out."""
        measured = ~self.warmup
        return self.completed_ns[measured] - self.scheduled_ns[measured]

    @property
    def window_s(self) -> float:
        """Seconds from the first measured query's issue to the last one's completion; 0 when there is none."""
        measured = ~self.warmup
        if not measured.any():
            return 0.0
        return float(self.completed_ns[measured].max() - self.issued_ns[measured][0]) / 1e9

    def latency(self, *, seed: int) -> Latency:
        """Return the statistics of the measured queries' latency."""
        return statistics.latency_summary(self.durations_ns, seed=seed)

    def throughput(self) -> Throughput | None:
        """Return the items a second of the measured window, None when nothing was measured."""
        window_s = self.window_s
        if not window_s > 0:
            return None
        measured = ~self.warmup
        ends_s = (self.completed_ns[measured] - self.issued_ns[measured][0]) / 1e9
        items = self.items[measured]
        return statistics.throughput(int(items.sum()), window_s, query_items=items, ends_s=ends_s)

    def finish(self, timeout_s: float | None = None) -> Verdict:
        """Return what the load generator itself says, once it has closed its logs (30 ms after the last query).

        Raises TimeoutError after `timeout_s`. Not needed for anything but that verdict.
        """
        return self.verdict.result(timeout_s)
