"""One measurement from beginning to end."""

import gc
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import lru_cache
from pathlib import Path

import numpy as np

from predictors.scenarios import loadgen
from predictors.scenarios.measured import Column, Measured, Verdict
from predictors.scenarios.plan import QUERY_SET_MAX, LoadPlan, plan_load
from predictors.scenarios.recorder import Recorder
from predictors.scenarios.thread import PredictorThread
from schemas.result import Validity
from schemas.scenario import Scenario, Seeds


def run_scenario(
    scenario: Scenario,
    predict: Callable[[int], None],
    batch_items: Sequence[int],
    seeds: Seeds,
    *,
    log_dir: Path,
    cancelled: Callable[[], bool],
    thread: PredictorThread | None = None,
) -> Measured:
    """Measure `predict` under the load of `scenario`; blocks.

    `predict(i)` runs prepared batch `i`, of `batch_items[i]` items, and returns when the device has finished.
    A few timed calls come before the load, from which the size of the query set is estimated. It must be
    called on the thread that the predictor was opened on: the caller's own, where this returns when the load
    generator has closed its logs, 30 ms after the last query; or `thread`, where this returns as soon as the
    last query has been recorded, and whatever is submitted to that thread next waits for the logs.
    `cancelled` is asked after every query: it must be cheap. Logs go to a directory in `log_dir` (which must
    exist) and are removed. Garbage collection is off meanwhile, in the whole process.

    Whatever `predict` or `cancelled` raises is raised here, within one query; CancelledError when cancelled;
    ValueError for the scenario `accuracy`, which has no load, and for no batches; OSError without a log_dir.
    """
    if scenario.name == "accuracy":
        raise ValueError("the scenario 'accuracy' has no load to run")
    if not batch_items or min(batch_items) < 1:
        raise ValueError("nothing to measure: every batch must have an item")
    recorder = Recorder(predict, cancelled)
    plans: list[LoadPlan] = []

    def job() -> Verdict:
        with loadgen.RUNNING:
            predicted_ns = recorder.estimate(int(np.argmax(batch_items)))
            plan = plan_load(scenario, batch_items, predicted_ns)
            recorder.limit(plan.warmup, scenario.max_duration_s)
            plans.append(plan)
            return loadgen.drive(recorder, plan, scenario, seeds, log_dir)

    verdict = _without_collection(job, recorder, thread)
    if recorder.error is not None:
        raise recorder.error
    if not plans or (verdict.done() and verdict.exception() is not None):
        verdict.result()  # raises: it failed before the first query, or the generator itself did
    return _measured(recorder, plans[0], scenario, seeds, batch_items, verdict)


def _without_collection(
    job: Callable[[], Verdict], recorder: Recorder, thread: PredictorThread | None
) -> "Future[Verdict]":
    collecting = gc.isenabled()
    gc.disable()
    try:
        return _here(job) if thread is None else _there(job, recorder, thread)
    finally:
        if collecting:
            gc.enable()


def _here(job: Callable[[], Verdict]) -> "Future[Verdict]":
    verdict: Future[Verdict] = Future()
    verdict.set_result(job())
    return verdict


def _there(job: Callable[[], Verdict], recorder: Recorder, thread: PredictorThread) -> "Future[Verdict]":
    verdict = thread.submit(job)
    verdict.add_done_callback(lambda _: recorder.done.set())
    try:
        recorder.done.wait()
    except BaseException as error:  # the user's Ctrl-C: the load must not go on without us
        recorder.stop("error", error)
        raise
    return verdict


def _measured(
    recorder: Recorder,
    plan: LoadPlan,
    scenario: Scenario,
    seeds: Seeds,
    batch_items: Sequence[int],
    verdict: "Future[Verdict]",
) -> Measured:
    issued, completed, batch = (
        np.array(column, dtype=np.int64) for column in (recorder.issued, recorder.completed, recorder.batch)
    )
    first = issued[0] if len(issued) else 0
    index = np.arange(len(issued), dtype=np.int64)
    settings = _asked(plan, scenario, seeds)
    outcome, validity = _outcome(recorder, plan, scenario, issued, completed)
    items: Column = np.asarray(batch_items, dtype=np.int64)[batch]
    settings |= outcome | {"measured_items": int(items[plan.warmup :].sum())}
    return Measured(
        query_index=index,
        batch_index=batch,
        warmup=index < plan.warmup,
        scheduled_ns=issued - first,  # a closed loop: a query is due when the one before it has come back
        issued_ns=issued - first,
        completed_ns=completed - first,
        items=items,
        settings=settings,
        load_generator=loadgen.VERSION,
        validity=validity,
        verdict=verdict,
    )


def _asked(plan: LoadPlan, scenario: Scenario, seeds: Seeds) -> dict[str, object]:
    return {
        **scenario.model_dump(mode="json"),
        "load_generator": loadgen.VERSION,
        "seed_order": seeds.order,
        "seed_schedule": seeds.schedule,
        "batch_size": plan.batch_size,
        "batches_drawn_from": len(plan.drawn),
        "short_batches_left_out": plan.left_out,
        "planned_query_count": plan.count,
        "expected_latency_ns": plan.expected_ns,
        "clock": "perf_counter_ns",
        "clock_resolution_ns": clock_resolution_ns(),
        "garbage_collection": "off while measured",
    }


def _outcome(
    recorder: Recorder, plan: LoadPlan, scenario: Scenario, issued: Column, completed: Column
) -> tuple[dict[str, object], Validity]:
    """Return what came of it, why it ended, and what a reader must know."""
    measured = max(0, len(issued) - plan.warmup)
    window_s = float(completed[-1] - issued[plan.warmup]) / 1e9 if measured else 0.0
    short = measured < plan.asked or window_s < scenario.min_duration_s
    ended = "completed"
    if recorder.stopped or window_s >= scenario.max_duration_s:
        ended = "max_duration" if short else "completed"
    elif short and scenario.name == "offline":
        ended = "samples_done"
    elif short:
        ended = "query_set_exhausted" if len(issued) >= _NEARLY_ALL * QUERY_SET_MAX else "generator_ended"
    notes = []
    if measured < plan.asked:
        notes.append(f"measured {measured} of {plan.asked} queries: {_WHY[ended]}")
    if window_s < scenario.min_duration_s:
        notes.append(f"measured for {window_s:.3f} s of at least {scenario.min_duration_s:g} s: {_WHY[ended]}")
    outcome: dict[str, object] = {
        "ended": ended,
        "measured_query_count": measured,
        "warmup_done": min(len(issued), plan.warmup),
        "window_s": window_s,
        "unpredicted_queries": recorder.drained,
        "log_thread": recorder.log_thread,
    }
    return outcome, Validity(valid=measured > 0, reasons=tuple(notes))


_NEARLY_ALL = 0.85
"""Of the most queries there can be: the generator's own rounding keeps it from drawing all."""

_WHY = {
    "completed": "it ended",
    "max_duration": "max_duration_s was reached",
    "samples_done": "all samples of the one query were done sooner than a few predictions had made it seem",
    "query_set_exhausted": f"the load generator's query set, of {QUERY_SET_MAX} at most, was used up",
    "generator_ended": "the load generator ended it by its own clock, which counts the warm-up",
}


@lru_cache(maxsize=1)
def clock_resolution_ns() -> int:
    """Return the smallest step that two readings of the clock show: what no latency can be finer than."""
    steps = (later - earlier for earlier, later in _pairs(1000))
    return min(step for step in steps if step > 0)


def _pairs(count: int) -> list[tuple[int, int]]:
    return [(time.perf_counter_ns(), time.perf_counter_ns()) for _ in range(count)]
