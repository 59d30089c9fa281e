"""Agents at work: real processes, a real bus, real frameworks."""

import asyncio
import itertools
import os

import pytest

from bus import subjects
from bus.connection import Bus
from bus.consumers import follow
from bus.registry import Registry
from predictors.machine.lock import MachineLock
from schemas.events import EvaluationState, PredictionsRecorded, QueriesRecorded, TaskProgressed, TaskStarted
from schemas.settings import Settings
from schemas.system import SystemDescribed
from tests.integration.agent_driver import (
    TINY,
    Events,
    assign,
    completed,
    dataset,
    do,
    events_until,
    in_phase,
    is_final,
    model,
    null_task,
    only,
    running_agent,
    task,
    workers_of,
)

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["onnxruntime", "pytorch"])
async def test_a_real_model_is_evaluated(settings: Settings, bus: Bus, framework: str) -> None:
    """Every item is predicted, the load is measured, and all of it is told before the figures."""
    async with running_agent(settings, bus, framework) as entry:
        assigned = task(entry.stack, model("digits-cnn"), dataset(), sample_limit=None, batch_size=8)
        events = await do(bus, assigned, trace=TRACE)
        figures = completed(events)

    record = figures.record
    assert events[0].type == "task_started" and events[-1].type == "task_completed"
    assert only(events, TaskStarted).stack == entry.stack
    assert {envelope.trace for envelope in events} == {TRACE}
    assert record.accuracy is not None and record.accuracy.asked == 500 and record.accuracy.unreadable == 0
    assert record.accuracy.top1.value is not None and record.accuracy.top1.value > 0.95
    predictions = _predictions(events)
    assert [index for batch in predictions for index in batch.input_index] == list(range(500))
    assert sum(hit for batch in predictions for hit in batch.correct_top1) / 500 == record.accuracy.top1.value
    queries = [event for envelope in events if isinstance(event := envelope.data, QueriesRecorded)]
    assert sum(len(batch.query_index) for batch in queries) == TINY["min_query_count"] + TINY["warmup_query_count"]
    assert {items for batch in queries for items in batch.items} == {8}
    assert record.latency is not None and record.latency.query_count == TINY["min_query_count"]
    assert record.latency.p50 is not None and record.latency.p99 is None
    assert any("too few for" in reason for reason in record.validity.reasons)
    assert record.cold_start is not None and record.cold_start.of_this_task
    assert record.cold_start.process_start_ms > 0 and record.cold_start.open_ms > 0
    assert record.environment.framework_version == entry.stack.version
    assert {"fetch", "wait", "prepare", "open", "predict", "measure"} <= record.phases_ms.keys()
    assert len(record.evaluation_key) == 64


async def test_a_worker_stays_warm_for_the_same_model(settings: Settings, bus: Bus) -> None:
    """A second task of a model runs in the same process; `cold`, or another batch size, takes a fresh one."""
    async with running_agent(settings, bus) as entry:
        pids: list[int] = []
        cold_starts = []
        for asked in ({}, {}, {"cold": True}, {}, {"batch_size": 4}):
            record = completed(await do(bus, null_task(entry.stack, **asked))).record
            assert record.cold_start is not None
            cold_starts.append(record.cold_start.of_this_task)
            pids.append(*workers_of(os.getpid()))
    assert cold_starts == [True, False, True, False, True]
    assert pids[0] == pids[1] != pids[2] == pids[3] != pids[4]
    assert workers_of(os.getpid()) == []


async def test_a_warm_worker_evaluates_what_is_asked_for_now(settings: Settings, bus: Bus) -> None:
    """A warm worker and inputs kept from the last task never answer for another sample, seed or scenario."""
    async with running_agent(settings, bus) as entry:

        async def sampled(limit: int | None, seed: int) -> tuple[list[int], int]:
            asked = null_task(entry.stack, sample_limit=limit, seeds={"sample": seed}, scenario={"name": "accuracy"})
            events = await do(bus, asked)
            accuracy = completed(events).record.accuracy
            assert accuracy is not None
            return [index for batch in _predictions(events) for index in batch.input_index], accuracy.asked

        first, seeded, again, other, all_ = [
            await sampled(*asked) for asked in ((3, 0), (20, 7), (20, 7), (20, 8), (None, 7))
        ]
    assert first == ([0, 1, 2], 3)
    assert seeded == again and seeded != other
    assert len(set(seeded[0])) == 20 and seeded[0] == sorted(seeded[0])
    assert all_ == (list(range(500)), 500)


async def test_many_rows_travel_in_chunks(settings: Settings, bus: Bus) -> None:
    """More queries than fit into one message arrive complete, in order, each once."""
    scenario = {**TINY, "min_query_count": 30_000}
    async with running_agent(settings, bus) as entry:
        events = await do(bus, null_task(entry.stack, scenario=scenario))
    batches = [event for envelope in events if isinstance(event := envelope.data, QueriesRecorded)]
    assert len(batches) > 1
    assert [index for batch in batches for index in batch.query_index] == list(range(30_002))
    assert completed(events).record.latency is not None


async def test_a_targeted_task_is_done_by_its_agent(settings: Settings, bus: Bus) -> None:
    """A task for one agent is not taken by another of its stack, however idle."""
    async with (
        running_agent(settings, bus, agent_id="one") as entry,
        running_agent(settings, bus, agent_id="two"),
    ):
        done_by = [
            completed(await do(bus, null_task(entry.stack, agent_id=name))).agent_id for name in ("two", "one", "two")
        ]
    assert done_by == ["two", "one", "two"]


async def test_many_tasks_at_once_are_each_done_once(settings: Settings, bus: Bus) -> None:
    """Tasks of the stack and of the agent's own that come together are all done, one after the other."""
    async with running_agent(settings, bus) as entry:
        tasks = [null_task(entry.stack, agent_id=name) for name in (None, entry.agent_id) * 4]
        for assigned in tasks:
            await assign(bus, assigned)
        for assigned in tasks:
            completed(await events_until(bus, assigned, is_final))
    info = await bus.jetstream.stream_info("EVENTS", subjects_filter="mlms.v1.event.task_completed.*")
    assert sorted((info.state.subjects or {}).values()) == [1] * len(tasks)


async def test_a_task_that_comes_again_is_not_done_again(settings: Settings, bus: Bus) -> None:
    """A task whose end the agent, or the registry, knows of is acknowledged and nothing else."""
    async with running_agent(settings, bus) as entry:
        known = null_task(entry.stack)
        await do(bus, known)
        ended = null_task(entry.stack)
        state = EvaluationState(
            evaluation_id=ended.evaluation_id, status="running", ended={ended.task_id: "completed"}, updated_ns=0
        )
        await Registry(bus).create_evaluation(state)
        for again in (known, ended):
            await bus.publish(subjects.task(entry.stack), again)
        await do(bus, null_task(entry.stack))
        info = await bus.jetstream.stream_info("EVENTS", subjects_filter="mlms.v1.event.task_started.*")
        assert sorted((info.state.subjects or {}).values()) == [1, 1]
    assert (await bus.jetstream.stream_info("TASKS")).state.messages == 0


async def test_finished_tasks_leave_the_bus(settings: Settings, bus: Bus) -> None:
    """A task that has ended, well or not, is acknowledged: nothing is left to be delivered again."""
    async with running_agent(settings, bus) as entry:
        await do(bus, null_task(entry.stack))
        await do(bus, null_task(entry.stack, options={"fail": "raise"}))
    assert (await bus.jetstream.stream_info("TASKS")).state.messages == 0


async def test_an_agent_says_what_it_is_and_leaves(settings: Settings, bus: Bus) -> None:
    """While it runs, and longer than its lease, an agent is in the registry with its machine; then it is gone."""
    registry = Registry(bus)
    async with running_agent(settings, bus) as entry:
        assert entry.available and entry.formats == ("null",) and entry.pid == os.getpid()
        described = None
        async for envelope in follow(bus, "-"):
            described = envelope.data
            break
        assert isinstance(described, SystemDescribed)
        assert described.agent_id == entry.agent_id
        assert described.system.system_id == entry.hardware.system_id
        await asyncio.sleep(settings.lease_s + 1)
        (again,) = await registry.agents()
        assert again.heartbeat_ns > entry.heartbeat_ns
    assert await registry.agents() == []


async def test_an_agent_that_cannot_run_says_why_and_takes_nothing(settings: Settings, bus: Bus) -> None:
    """A framework that is not here is registered as not available, with the reason, and its tasks stay."""
    async with running_agent(settings, bus, framework="caffe3") as entry:
        assert not entry.available
        assert "caffe3" in (entry.unavailable_reason or "")
        stack = entry.stack
        assigned = task(stack.model_copy(update={"framework": "null"}), model("null"), dataset())
        await assign(bus, assigned.model_copy(update={"stack": stack}))
        await asyncio.sleep(0.5)
    assert (await bus.jetstream.stream_info("TASKS")).state.messages == 1


async def test_two_agents_of_a_machine_never_measure_at_once(settings: Settings, bus: Bus) -> None:
    """What one agent's worker does lies wholly before or wholly after what another's does."""
    scenario = {**TINY, "min_query_count": 30}
    async with (
        running_agent(settings, bus, agent_id="one") as entry,
        running_agent(settings, bus, agent_id="two"),
    ):
        tasks = [
            null_task(entry.stack, agent_id=name, scenario=scenario, options={"delay_ms": 5.0})
            for name in ("one", "two", "one", "two")
        ]
        done = await asyncio.gather(*(do(bus, assigned) for assigned in tasks))
    intervals = sorted(_measuring(events) for events in done)
    for (_, ended), (began, _) in itertools.pairwise(intervals):
        assert ended < began
    waited = [e for events in done for e in events if isinstance(e.data, TaskProgressed) and e.data.phase == "wait"]
    assert waited, "nobody had to wait: the test proves nothing"


async def test_waiting_for_the_machine_does_not_count(settings: Settings, bus: Bus) -> None:
    """A task that waits for longer than its deadline, and then works for less, completes."""
    other = MachineLock(settings.machine_lock)
    async with running_agent(settings, bus) as entry:
        await do(bus, null_task(entry.stack))
        assert other.try_acquire()
        assigned = null_task(entry.stack, deadline_s=1.0)
        doing = asyncio.create_task(do(bus, assigned))
        await events_until(bus, assigned, in_phase("wait"))
        await asyncio.sleep(1.2)
        other.close()
        record = completed(await doing).record
    assert record.phases_ms["wait"] > 1000


async def test_the_record_says_how_it_was_made(settings: Settings, bus: Bus) -> None:
    """Scenario, batch, threads and options are those in force; what was not measured is not there."""
    async with running_agent(settings, bus) as entry:
        no_load = await do(bus, null_task(entry.stack, scenario={"name": "accuracy"}))
        asked = null_task(entry.stack, scenario={**TINY, "name": "offline"}, batch_size=8, threads={"intra_op": 2})
        offline = completed(await do(bus, asked)).record
        few = completed(await do(bus, null_task(entry.stack, sample_limit=3, batch_size=8))).record
        uneven = completed(await do(bus, null_task(entry.stack, batch_size=4, trace_level=2))).record

    record = completed(no_load).record
    assert record.accuracy is not None and record.latency is None and record.throughput is None
    assert not [envelope for envelope in no_load if isinstance(envelope.data, QueriesRecorded)]

    assert offline.scenario["name"] == "offline" and offline.throughput is not None
    assert offline.load_generator.startswith("mlcommons-loadgen")
    assert offline.batch_size == 8 and offline.threads.intra_op == 1  # the null predictor has one thread
    assert offline.options["fail"] == "never"

    assert offline.latency is None, "everything is sent at once: a batch's time is nobody's latency"

    assert (uneven.scenario["batches_drawn_from"], uneven.scenario["short_batches_left_out"]) == (2, 1)
    assert uneven.accuracy is not None and uneven.accuracy.asked == 10, "what is not measured is predicted"
    assert any("nothing was traced" in reason for reason in uneven.validity.reasons)

    assert few.accuracy is not None and few.accuracy.asked == 3
    assert any("repeated" in reason for reason in few.validity.reasons), "a batch larger than the sample is told"


async def test_the_key_tells_what_is_comparable(settings: Settings, bus: Bus) -> None:
    """The same request has the same key again; another batch size, or other data, has another."""
    async with running_agent(settings, bus) as entry:
        keys = [
            completed(await do(bus, null_task(entry.stack, **asked))).record.evaluation_key
            for asked in ({}, {}, {"sample_limit": 11}, {"batch_size": 2})
        ]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3


def _predictions(events: Events) -> list[PredictionsRecorded]:
    return [event for envelope in events if isinstance(event := envelope.data, PredictionsRecorded)]


def _measuring(events: Events) -> tuple[int, int]:
    """Return when the worker was at it at least: both ends are told while the machine is held."""
    completed(events)
    began = next(e.time_ns for e in events if isinstance(e.data, TaskProgressed) and e.data.phase == "measure")
    ended = max(envelope.time_ns for envelope in events if isinstance(envelope.data, QueriesRecorded))
    return began, ended
