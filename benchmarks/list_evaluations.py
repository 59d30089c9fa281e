"""Listing the newest evaluations among 100,000 in the embedded store. Limit: 50 ms p95.

Every evaluation has two completed tasks with whole records. The bare loop beside it selects the newest fifty rows
of one table with nothing joined and nothing decoded.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.report import print_rows
from schemas.base import new_id
from schemas.codec import Envelope
from schemas.settings import Settings
from services.records import get_evaluation, list_evaluations
from services.rows import TableRows, rows_of
from services.store import Store, open_store
from tests import sample_events as sample

EVALUATIONS = 100_000
CHUNK = 2_000
MODELS = 50
CALLS = 60
LIMIT_MS = 50
BARE = "SELECT evaluation_id, status, model, request FROM evaluations ORDER BY evaluation_id DESC LIMIT 50"


def template() -> list[TableRows]:
    """Return the rows of one evaluation and its tasks."""
    told = [event for event in sample.whole_evaluation("template") if hasattr(event, "time_ns")]
    return [rows_of(Envelope("id", "type", 1, sample.START_NS, None, event)) for event in told]


def chunk_of(parts: list[TableRows], table: str, ids: list[str]) -> dict[str, list[object]]:
    """Return the rows of one table for these evaluations."""
    columns: dict[str, list[object]] = {}
    for part in parts:
        for name, values in part.get(table, {}).items():
            columns.setdefault(name, []).extend(values * len(ids))
            if name == "evaluation_id":
                columns[name][-len(values) * len(ids) :] = [each for each in ids for _ in values]
    models = {each: f"model-{position % MODELS}" for position, each in enumerate(ids)}
    columns["model"] = [models[str(each)] if model else "" for each, model in
                        zip(columns["evaluation_id"], columns["model"], strict=True)]  # fmt: skip
    return columns


def fill(store: Store) -> list[str]:
    """Insert the evaluations, oldest first, and return their ids."""
    parts = template()
    ids = [new_id(1_780_000_000_000 + k) for k in range(EVALUATIONS)]
    for first in range(0, EVALUATIONS, CHUNK):
        for table in ("tasks", "evaluations"):
            store.insert(table, chunk_of(parts, table, ids[first : first + CHUNK]))
    return ids


def calls(store: Store, ids: list[str]) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield what readers do."""
    _, cursor = list_evaluations(store, limit=50)
    for _ in range(20):
        _, cursor = list_evaluations(store, limit=50, cursor=cursor)
    yield "newest 50", lambda: list_evaluations(store)
    yield "a page further down", lambda: list_evaluations(store, cursor=cursor)
    yield "of one model", lambda: list_evaluations(store, model="model-7")
    yield "of a model that nobody has", lambda: list_evaluations(store, model="absent")
    yield (
        "completed, of one model and framework",
        lambda: list_evaluations(store, model="model-7", framework="pytorch", status="completed"),
    )
    yield "running", lambda: list_evaluations(store, status="running")
    yield "one evaluation, whole", lambda: get_evaluation(store, ids[len(ids) // 2])
    yield "bare: 50 rows of one table", lambda: store.query(BARE)


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        store = open_store(Settings(data_dir=Path(scratch)))
        begun = time.perf_counter()
        ids = fill(store)
        print(f"{EVALUATIONS:,} evaluations inserted in {time.perf_counter() - begun:.0f} s")
        found = []
        for name, call in calls(store, ids):
            times = []
            for _ in range(CALLS):
                begun = time.perf_counter()
                call()
                times.append((time.perf_counter() - begun) * 1e3)
            p95 = statistics.quantiles(times, n=20)[-1]
            found.append((name, statistics.median(times), p95))
        store.close()
    bare_p95 = found[-1][2]
    print_rows(
        [
            {"list": name, "median ms": f"{median:.1f}", "p95 ms": f"{p95:.1f}", "limit ms": LIMIT_MS,
             "p95 over bare": f"{p95 / bare_p95:.1f}"}
            for name, median, p95 in found
        ]
    )  # fmt: skip


if __name__ == "__main__":
    main()
