"""An evaluation of a null predictor with a warm worker: from publish to completed event.

One evaluation at a time through the bus, as a client with nothing but NATS would ask: the request is published,
scheduled, run in the warm worker, and its events come back. Target: p50 under 20 ms. With `single_stream` the
load goes through LoadGen, which takes some 30 ms to close its logs after the last query; that happens while the
results are on their way, so evaluations are asked for 100 ms apart, and a second row shows them back to back.
"""

import asyncio
import statistics
import time

import mlmodelscope
from benchmarks.report import print_rows
from bus.connection import Bus
from bus.consumers import follow
from bus.subjects import evaluation_requested
from mlmodelscope.directory import DataDirectory
from mlmodelscope.settings import read_settings
from schemas.evaluation import ArtifactRef, EvaluationRequested
from schemas.scenario import Scenario

ROUNDS = 60


def main() -> None:
    """Start a stack with a null agent, measure, print."""
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as directory, mlmodelscope.local(data=directory, frameworks=("null",)):
        announced = DataDirectory(Path(directory)).announced("bus")
        assert announced is not None
        rows = asyncio.run(_measure(str(announced["url"])))
    print_rows(rows)


async def _measure(url: str) -> list[dict[str, object]]:
    bus = await Bus.connect(url, name="benchmark", timeout_s=read_settings().bus_connect_timeout_s)
    try:
        rows = []
        for scenario, pause_s in (("accuracy", 0.0), ("single_stream", 0.1), ("single_stream", 0.0)):
            for _ in range(5):
                await _once(bus, scenario)
            taken = []
            for _ in range(ROUNDS):
                taken.append(await _once(bus, scenario))
                await asyncio.sleep(pause_s)
            cuts = statistics.quantiles(taken, n=100)
            rows.append(
                {
                    "scenario": scenario,
                    "asked for": f"{pause_s * 1e3:.0f} ms after the last" if pause_s else "back to back",
                    "rounds": ROUNDS,
                    "p50 ms": round(cuts[49], 2),
                    "p90 ms": round(cuts[89], 2),
                    "target p50 ms": 20,
                }
            )
        return rows
    finally:
        await bus.close()


async def _once(bus: Bus, scenario: str) -> float:
    """Return the milliseconds from publishing a request to its completed event."""
    request = EvaluationRequested(
        model=ArtifactRef(name="null"),
        dataset=ArtifactRef(name="digits"),
        scenario=Scenario.model_validate(
            {"name": scenario, "min_duration_s": 0.0, "min_query_count": 1, "warmup_query_count": 0}
        ),
        sample_limit=8,
    )
    events = follow(bus, request.evaluation_id)
    try:
        started = time.perf_counter_ns()
        await bus.publish(evaluation_requested(), request, id=request.evaluation_id)
        async for envelope in events:
            if envelope.type == "evaluation_completed":
                took = (time.perf_counter_ns() - started) / 1e6
                if envelope.data.status != "completed":  # type: ignore[attr-defined]
                    raise RuntimeError(f"the evaluation ended {envelope.data}")
                return took
        raise RuntimeError("the events ended before the evaluation did")
    finally:
        await events.aclose()


if __name__ == "__main__":
    main()
