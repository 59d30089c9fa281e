"""What goes wrong while a task runs: each is one clear failure, and the agent serves the next task."""

import asyncio
import hashlib
import os
import signal
import tarfile
import time
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from bus.connection import Bus
from bus.registry import Registry
from bus.server import NatsServer
from predictors.agent import service as agent
from schemas.events import EvaluationState, PredictionsRecorded, TaskProgressed, TaskStarted
from schemas.failure import FailureCode
from schemas.manifests import DatasetManifest
from schemas.settings import Settings
from schemas.tasks import TaskAssigned
from tests.integration.agent_driver import (
    LONG,
    PATIENCE_S,
    AgentProcess,
    assign,
    completed,
    dataset,
    do,
    events_until,
    failed,
    in_phase,
    is_alive,
    is_final,
    model,
    null_task,
    only,
    registered,
    running_agent,
    task,
    until,
    workers_of,
)

FAILING: list[tuple[dict[str, Any], FailureCode, str]] = [
    ({"options": {"fail": "raise"}}, "predictor_failed", "asked to raise"),
    ({"options": {"fail": "raise", "fail_at": "open"}}, "model_refused", "asked to raise"),
    ({"options": {"fail": "raise", "fail_after": 15}}, "predictor_failed", "asked to raise"),
    ({"options": {"fail": "crash"}}, "worker_crashed", "SIGSEGV"),
    ({"options": {"fail": "killed"}}, "worker_crashed", "SIGKILL"),
    ({"options": {"fail": "oom"}}, "worker_out_of_memory", "memory"),
    ({"options": {"fail": "hang"}, "deadline_s": 1.5}, "deadline_exceeded", "1.5 s"),
    ({"options": {"colour": "red"}}, "option_unknown", "colour"),
]


async def test_every_failure_of_a_predictor_is_told_once_and_the_next_task_is_served(
    settings: Settings, bus: Bus
) -> None:
    """A predictor that raises, crashes, is killed, eats all memory or hangs takes nothing with it but its worker."""
    async with running_agent(settings, bus) as entry:
        for asked, code, words in FAILING:
            events = await do(bus, null_task(entry.stack, **asked))
            assert (failed(events).failure.code, events[0].type) == (code, "task_started"), asked
            assert words in failed(events).failure.message, failed(events).failure
            assert workers_of(os.getpid()) == [], asked
        completed(await do(bus, null_task(entry.stack)))
        info = await bus.jetstream.stream_info("EVENTS", subjects_filter="mlms.v1.event.task_failed.*")
        assert sorted((info.state.subjects or {}).values()) == [1] * len(FAILING)
        (now,) = [e for e in await _after_heartbeat(bus, settings) if e.load.failed]
        assert (now.load.failed, now.load.completed, now.load.running) == (len(FAILING), 1, 0)


async def test_a_crash_leaves_its_last_words(settings: Settings, bus: Bus) -> None:
    """What a dying process wrote to stderr is in the failure."""
    async with running_agent(settings, bus) as entry:
        failure = failed(await do(bus, null_task(entry.stack, options={"fail": "crash"}))).failure
    assert "Segmentation fault" in failure.detail and "null.py" in failure.detail


async def test_a_worker_killed_from_outside(settings: Settings, bus: Bus) -> None:
    """SIGKILL for the worker in the middle of a measurement: one failure, and the next task has a new worker."""
    async with running_agent(settings, bus) as entry:
        assigned = null_task(entry.stack, scenario=LONG)
        await assign(bus, assigned)
        await events_until(bus, assigned, in_phase("measure"))
        (worker,) = workers_of(os.getpid())
        os.kill(worker, signal.SIGKILL)
        failure = failed(await events_until(bus, assigned, is_final)).failure
        assert failure.code == "worker_crashed" and "SIGKILL" in failure.message
        completed(await do(bus, null_task(entry.stack)))


async def test_a_warm_worker_that_died_between_tasks_is_replaced(settings: Settings, bus: Bus) -> None:
    """A worker that was killed while idle costs the next task a new one, and nothing else."""
    async with running_agent(settings, bus) as entry:
        completed(await do(bus, null_task(entry.stack)))
        (worker,) = workers_of(os.getpid())
        os.kill(worker, signal.SIGKILL)
        await until(lambda: not is_alive(worker), "the worker is dead")
        assert completed(await do(bus, null_task(entry.stack))).attempt == 1


@pytest.mark.slow
async def test_a_killed_agent_loses_nothing(settings: Settings, bus: Bus, tmp_path: Path) -> None:
    """SIGKILL for an agent in the middle of a task: its worker dies too, and another of its stack does the task."""
    settings = settings.model_copy(update={"task_ack_wait_s": 1.0})
    first = AgentProcess(settings, "null", "first", tmp_path / "first.log")
    try:
        entry = await registered(bus, "first")
        assigned = null_task(entry.stack, options={"delay_ms": 20.0}, scenario={**LONG, "min_duration_s": 1.5})
        await assign(bus, assigned)
        await events_until(bus, assigned, in_phase("measure"))
        (worker,) = workers_of(first.process.pid)
        async with running_agent(settings, bus, agent_id="second"):
            first.kill()
            await until(lambda: not is_alive(worker), "the worker of the killed agent is dead")
            events = await events_until(bus, assigned, is_final)
    finally:
        first.kill()
    done = completed(events)
    assert (done.agent_id, done.attempt) == ("second", 2)
    started = [event for e in events if isinstance(event := e.data, TaskStarted)]
    assert [(event.agent_id, event.attempt) for event in started] == [("first", 1), ("second", 2)]


async def test_a_task_that_loses_every_agent_fails(settings: Settings, bus: Bus, tmp_path: Path) -> None:
    """A task delivered more often than allowed is told as failed, once, by the agent that gets it next."""
    settings = settings.model_copy(update={"task_max_attempts": 1, "task_ack_wait_s": 1.0})
    first = AgentProcess(settings, "null", "first", tmp_path / "first.log")
    try:
        entry = await registered(bus, "first")
        assigned = null_task(entry.stack, scenario=LONG)
        await assign(bus, assigned)
        await events_until(bus, assigned, in_phase("measure"))
        first.kill()
        async with running_agent(settings, bus, agent_id="second"):
            lost = failed(await events_until(bus, assigned, is_final))
            assert (lost.failure.code, lost.attempt) == ("agent_lost", 2)
            completed(await do(bus, null_task(entry.stack)))
    finally:
        first.kill()


async def test_a_cancelled_evaluation_is_ended(settings: Settings, bus: Bus) -> None:
    """Cancelling during a measurement ends the task soon; its worker is gone, the agent is not."""
    async with running_agent(settings, bus) as entry:
        assigned = null_task(entry.stack, scenario=LONG)
        await assign(bus, assigned)
        await events_until(bus, assigned, in_phase("measure"))
        await _cancel(bus, assigned)
        assert failed(await events_until(bus, assigned, is_final)).failure.code == "cancelled"
        assert workers_of(os.getpid()) == []
        completed(await do(bus, null_task(entry.stack)))


async def test_a_task_cancelled_before_never_starts(settings: Settings, bus: Bus) -> None:
    """A task whose evaluation was cancelled while it lay on the bus ends without having begun."""
    async with running_agent(settings, bus) as entry:
        assigned = null_task(entry.stack)
        await _cancel(bus, assigned)
        events = await do(bus, assigned)
    assert [envelope.type for envelope in events] == ["task_failed"]
    assert failed(events).failure.code == "cancelled"


@pytest.mark.slow
async def test_a_restart_of_the_bus_in_the_middle_of_a_task(
    settings: Settings, bus: Bus, nats_server: NatsServer
) -> None:
    """The task completes, and every event arrives, once."""
    async with running_agent(settings, bus) as entry:
        assigned = null_task(entry.stack, scenario={**LONG, "min_duration_s": 1.5}, options={"delay_ms": 1.0})
        await assign(bus, assigned)
        await events_until(bus, assigned, in_phase("measure"))
        await nats_server.restart()
        events = await events_until(bus, assigned, is_final)
        done = completed(events)
        assert done.record.latency is not None
        counts = [e.type for e in events if not isinstance(e.data, TaskProgressed)]
        assert len([kind for kind in counts if kind == "task_started"]) == 1
        assert events[-1].type == "task_completed"
        completed(await do(bus, null_task(entry.stack)))


async def test_results_survive_a_bus_that_is_away_when_they_come(
    settings: Settings, bus: Bus, nats_server: NatsServer
) -> None:
    """A task that ends while the server is down is told when the server is back, rows first."""
    async with running_agent(settings, bus) as entry:
        assigned = null_task(entry.stack, options={"delay_ms": 10.0}, scenario={**LONG, "min_duration_s": 0.5})
        await assign(bus, assigned)
        await events_until(bus, assigned, in_phase("measure"))
        await nats_server.stop()
        (worker,) = workers_of(os.getpid())
        await asyncio.sleep(1.0)
        assert is_alive(worker)
        await nats_server.start()
        events = await events_until(bus, assigned, is_final)
        completed(events)
        assert only(events, PredictionsRecorded)
        assert events[-1].type == "task_completed"


@pytest.mark.parametrize("bus_is_there", [True, False])
async def test_an_agent_that_is_stopped_is_gone_in_time(
    settings: Settings, bus: Bus, nats_server: NatsServer, bus_is_there: bool
) -> None:
    """Stopping in the middle of a task takes under five seconds, with and without a bus, and leaves no process."""
    stop = asyncio.Event()
    serving = asyncio.create_task(agent.run(settings, stop, framework="null", agent_id="agent-1"))
    entry = await registered(bus, "agent-1")
    assigned = null_task(entry.stack, scenario=LONG)
    await assign(bus, assigned)
    await events_until(bus, assigned, in_phase("measure"))
    if not bus_is_there:
        await nats_server.stop()
    began = time.monotonic()
    stop.set()
    await asyncio.wait_for(serving, PATIENCE_S)
    assert time.monotonic() - began < 5.0
    assert workers_of(os.getpid()) == []
    if bus_is_there:
        assert await Registry(bus).agents() == []
        async with running_agent(settings, bus, agent_id="agent-2"):
            events = await events_until(bus, assigned, lambda event: getattr(event, "agent_id", "") == "agent-2")
        assert isinstance(events[-1].data, TaskStarted)
        assert events[-1].data.attempt == 2, "what was in hand is given back at once"


async def test_an_agent_can_be_stopped_before_there_is_a_bus(settings: Settings, nats_server: NatsServer) -> None:
    """Stopping does not wait for a connection that does not come."""
    await nats_server.stop()
    stop = asyncio.Event()
    serving = asyncio.create_task(agent.run(settings, stop, framework="null"))
    await asyncio.sleep(0.2)
    stop.set()
    began = time.monotonic()
    await asyncio.wait_for(serving, PATIENCE_S)
    assert time.monotonic() - began < 5.0


async def test_files_that_are_missing_wrong_or_garbage(settings: Settings, bus: Bus, tmp_path: Path) -> None:
    """A model file that is not there, is another, or is no model: three failures that name the file."""
    garbage = tmp_path / "garbage.onnx"
    garbage.write_bytes(b"this is no model")
    digest = hashlib.sha256(garbage.read_bytes()).hexdigest()
    files: list[tuple[str, str, FailureCode, str]] = [
        (f"file://{garbage}", digest, "model_refused", "digits-cnn"),
        (f"file://{garbage}", "0" * 64, "asset_digest_mismatch", digest),
        (f"file://{tmp_path}/absent.onnx", "1" * 64, "asset_not_found", "absent.onnx"),
    ]
    async with running_agent(settings, bus, "onnxruntime") as entry:
        for url, sha256, code, words in files:
            files_ = {"format": "onnx", "graph": {"url": url, "sha256": sha256}}
            manifest = model("digits-cnn", frameworks=[{"name": "onnxruntime", "model": files_}])
            failure = failed(await do(bus, task(entry.stack, manifest, dataset()))).failure
            assert failure.code == code, failure
            assert words in failure.message, failure
        completed(await do(bus, task(entry.stack, model("digits-cnn"), dataset())))


async def test_images_that_cannot_be_read_are_counted(settings: Settings, bus: Bus, tmp_path: Path) -> None:
    """An unreadable image is a wrong answer that is told apart; when all are unreadable, the task fails."""
    async with running_agent(settings, bus) as entry:
        manifest = model(
            "null",
            inputs=[
                {
                    "type": "image",
                    "name": "image",
                    "element_type": "float32",
                    "shape": [8, 8, 3],
                    "steps": [{"decode": {}}, {"cast": {"element_type": "float32"}}],
                }
            ],
        )
        some = task(entry.stack, manifest, _images(tmp_path / "some.tar.gz", good=3, bad=1), sample_limit=None)
        events = await do(bus, some)
        record = completed(events).record
        assert record.accuracy is not None
        assert (record.accuracy.asked, record.accuracy.unreadable) == (4, 1)
        assert record.accuracy.top1.value == 3 / 4  # the null predictor answers 0, which all labels are
        assert [bool(error) for error in only(events, PredictionsRecorded).error] == [False, False, False, True]
        assert any("1 of the 4 items" in reason for reason in record.validity.reasons)

        none = task(entry.stack, manifest, _images(tmp_path / "none.tar.gz", good=0, bad=2), sample_limit=None)
        assert failed(await do(bus, none)).failure.code == "input_invalid"


def _images(archive: Path, *, good: int, bad: int) -> DatasetManifest:
    """Return a data set of images of class 0, packed into `archive`, the last `bad` of which are no images."""
    names = [f"{index}.png" for index in range(good + bad)]
    files = {"labels.csv": "file,label\n" + "".join(f"{name},0\n" for name in names)}
    with tarfile.open(archive, "w:gz") as tar:
        for name, content in {**files, **dict.fromkeys(names, "")}.items():
            data = content.encode()
            if name in names:
                data = _png() if names.index(name) < good else b"no image"
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, BytesIO(data))
    source = {"url": f"file://{archive}", "sha256": hashlib.sha256(archive.read_bytes()).hexdigest(), "unpack": True}
    return dataset(sources=[source], format={"type": "image_csv"}, size=good + bad)


def _png() -> bytes:
    buffer = BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, "PNG")
    return buffer.getvalue()


async def _cancel(bus: Bus, assigned: TaskAssigned) -> None:
    """Ask for an evaluation's end as the scheduler does: in its registry entry."""
    state = EvaluationState(
        evaluation_id=assigned.evaluation_id, status="running", cancel_requested=True, updated_ns=time.time_ns()
    )
    assert await Registry(bus).create_evaluation(state)


async def _after_heartbeat(bus: Bus, settings: Settings) -> list[Any]:
    await asyncio.sleep(2 * settings.heartbeat_s)
    return await Registry(bus).agents()
