"""The scheduler on a real bus: what is asked for is handed out once, and ends once, whatever dies in between."""

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from pydantic import BaseModel

from bus import subjects
from bus.connection import Bus
from bus.consumers import Consumer, Received, follow
from bus.errors import BusUnavailableError
from bus.registry import Registry
from bus.server import NatsServer
from bus.streams import DEAD, TASKS
from schemas.agents import AgentRegistered, Hardware, Stack
from schemas.base import Event, new_id
from schemas.codec import Envelope, encode
from schemas.dead import DeadLetter
from schemas.evaluation import CancellationRequested, EvaluationRequested
from schemas.events import (
    EvaluationAccepted,
    EvaluationCompleted,
    EvaluationRejected,
    EvaluationState,
    TaskFailed,
    TaskStarted,
)
from schemas.failure import Failure
from schemas.manifests import ModelManifest
from schemas.result import FINAL
from schemas.settings import Settings
from schemas.tasks import TaskAssigned
from services.catalogue import register
from services.scheduler import service
from services.scheduler.ledger import Ledger
from services.scheduler.service import run

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
DEADLINE_S = 15.0


class Running:
    """A scheduler in this process, stopped by `stop`."""

    def __init__(self, settings: Settings, **bounds: float) -> None:
        self._stop = asyncio.Event()
        self.task = asyncio.create_task(run(settings, self._stop, **bounds), name="scheduler-under-test")

    async def stop(self) -> float:
        """Stop it and return how long that took."""
        started = time.monotonic()
        self._stop.set()
        await asyncio.wait_for(self.task, DEADLINE_S)
        return time.monotonic() - started

    async def kill(self) -> None:
        """End it without a goodbye."""
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task


@pytest.fixture
async def start(settings: Settings, bus: Bus) -> AsyncIterator[Callable[..., Running]]:
    """Start schedulers; those still running at the end are stopped."""
    started: list[Running] = []

    def begin(**bounds: float) -> Running:
        started.append(Running(settings, **bounds))
        return started[-1]

    yield begin
    for one in started:
        if not one.task.done():
            await one.stop()


class Scene:
    """A client and agents on the bus."""

    def __init__(self, bus: Bus, settings: Settings) -> None:
        self.bus = bus
        self.registry = Registry(bus)
        self._settings = settings
        self._consumers: dict[str, Consumer] = {}

    async def agent(
        self, agent_id: str = "a1", framework: str = "null 1.0.0", lease_s: float = 60.0
    ) -> AgentRegistered:
        """Register an agent and wait for the platform's manifests."""
        name, _, version = framework.partition(" ")
        entry = AgentRegistered(
            agent_id=agent_id,
            hostname="h",
            pid=1,
            stack=Stack(architecture="amd64", device="cpu", framework=name, version=version),
            formats=("null", "onnx", "torchscript"),
            hardware=Hardware(system_id="s"),
            started_ns=0,
            heartbeat_ns=0,
        )
        await self.registry.heartbeat(entry, lease_s)
        for kind in ("model", "dataset"):
            async with asyncio.timeout(DEADLINE_S), contextlib.aclosing(self.registry.watch_manifests(kind)) as changes:
                async for manifests in changes:
                    if manifests:
                        break
        return entry

    async def ask(self, *, dedup: bool = True, trace: str | None = None, **fields: Any) -> EvaluationRequested:
        """Publish a request; without `dedup` as one that comes after the server's window."""
        wanted = EvaluationRequested.model_validate({"model": "null", "dataset": "digits", **fields})
        id_ = wanted.evaluation_id if dedup else None
        await self.bus.publish(subjects.evaluation_requested(), wanted, id=id_, trace=trace)
        return wanted

    async def cancel(self, evaluation_id: str) -> None:
        data = CancellationRequested(evaluation_id=evaluation_id, reason="changed my mind", user="ann")
        await self.bus.publish(subjects.cancellation_requested(), data)

    async def tasks(self, agent: AgentRegistered, count: int = 1, wait_s: float = DEADLINE_S) -> list[Received]:
        """Take tasks of the agent's stack."""
        key = str(agent.stack)
        if key not in self._consumers:
            self._consumers[key] = Consumer(
                self.bus,
                stream=TASKS,
                durable=subjects.stack_consumer(agent.stack),
                filters=[subjects.task(agent.stack)],
                ack_wait_s=60,
                max_attempts=3,
            )
        found: list[Received] = []
        deadline = time.monotonic() + wait_s
        while len(found) < count and time.monotonic() < deadline:
            found += await self._consumers[key].fetch(count - len(found), max(deadline - time.monotonic(), 0.01))
        return found

    async def begin(self, agent: AgentRegistered, received: Received) -> TaskAssigned:
        task = assigned(received)
        event = TaskStarted(
            evaluation_id=task.evaluation_id,
            task_id=task.task_id,
            attempt=received.attempt,
            agent_id=agent.agent_id,
            stack=agent.stack,
            system_id="s",
            batch_size=1,
            time_ns=1,
        )
        await self.bus.publish_event(event, trace=envelope(received).trace)
        return task

    async def fail(self, received: Received, code: str = "predictor_failed") -> None:
        task = assigned(received)
        event = TaskFailed(
            evaluation_id=task.evaluation_id,
            task_id=task.task_id,
            attempt=received.attempt,
            failure=Failure.model_validate({"code": code, "message": "it did"}),
            time_ns=1,
        )
        await self.bus.publish_event(event, trace=envelope(received).trace)
        await received.ack()

    async def until(self, evaluation_id: str, *types: type[Event]) -> list[Envelope[BaseModel]]:
        """Return the evaluation's events up to the first of `types`."""
        seen: list[Envelope[BaseModel]] = []
        async with asyncio.timeout(DEADLINE_S), contextlib.aclosing(follow(self.bus, evaluation_id)) as events:
            async for event in events:
                seen.append(event)
                if isinstance(event.data, types):
                    return seen
        raise AssertionError("the events ended")

    async def state(self, evaluation_id: str, holds: Callable[[EvaluationState], bool]) -> EvaluationState:
        """Wait until the evaluation's entry in the registry is so."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                found = await self.registry.get_evaluation(evaluation_id)
                if found is not None and holds(found[0]):
                    return found[0]
                await asyncio.sleep(0.02)

    async def everything(self, evaluation_id: str) -> list[str]:
        """Return the types of all events there are, once the scheduler has nothing left to say: a later one's end."""
        marker = await self.ask(model="no-such-model")
        await self.until(marker.evaluation_id, EvaluationRejected)
        seen: list[Envelope[BaseModel]] = []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.5), contextlib.aclosing(follow(self.bus, evaluation_id)) as events:
                async for event in events:
                    seen += [event]
        return [event.type for event in seen]


@pytest.fixture
def scene(bus: Bus, settings: Settings) -> Scene:
    return Scene(bus, settings)


def envelope(received: Received) -> Envelope[BaseModel]:
    assert received.envelope is not None
    return received.envelope


def assigned(received: Received) -> TaskAssigned:
    task = envelope(received).data
    assert isinstance(task, TaskAssigned)
    return task


async def test_a_request_becomes_a_task_and_its_end_the_evaluations_end(
    start: Callable[..., Running], scene: Scene
) -> None:
    """Accepted, handed out complete, ended: each told once, with the trace context of the request throughout."""
    start()
    agent = await scene.agent()
    wanted = await scene.ask(trace=TRACE, batch_size=4)
    (received,) = await scene.tasks(agent)
    task = await scene.begin(agent, received)
    assert task.request == wanted
    assert task.model.name == "null"
    assert task.framework_model.name == "null"
    assert task.dataset.name == "digits"
    assert (await scene.state(wanted.evaluation_id, lambda state: state.status == "running")).published
    await scene.fail(received)
    events = await scene.until(wanted.evaluation_id, EvaluationCompleted)
    assert [event.type for event in events] == [
        "evaluation_accepted",
        "task_started",
        "task_failed",
        "evaluation_completed",
    ]
    assert {event.trace for event in (*events, envelope(received))} == {TRACE}
    final = events[-1].data
    assert isinstance(final, EvaluationCompleted)
    assert (final.status, final.completed, final.failed) == ("failed", 0, 1)
    state = await scene.state(wanted.evaluation_id, lambda state: state.status in FINAL)
    assert state.ended == {task.task_id: "failed"}


async def test_the_same_request_again_is_evaluated_once(start: Callable[..., Running], scene: Scene) -> None:
    """While it runs, after it ended, and beyond the server's own deduplication."""
    start()
    agent = await scene.agent()
    wanted = await scene.ask()
    again = functools.partial(scene.ask, dedup=False, evaluation_id=wanted.evaluation_id)
    await again()
    await again(batch_size=2)
    (received,) = await scene.tasks(agent)
    await scene.begin(agent, received)
    await again()
    await scene.fail(received)
    await scene.until(wanted.evaluation_id, EvaluationCompleted)
    await again()
    types = await scene.everything(wanted.evaluation_id)
    assert types == ["evaluation_accepted", "task_started", "task_failed", "evaluation_completed"]
    assert await scene.tasks(agent, wait_s=0.1) == []


async def test_what_a_scheduler_left_half_done_is_finished_by_the_next(
    start: Callable[..., Running], scene: Scene
) -> None:
    """It died after noting its plan and before telling anyone: the plan stands, and is told once."""
    first = start()
    agent = await scene.agent()
    wanted = await scene.ask()
    (received,) = await scene.tasks(agent)
    await received.ack()
    found = await scene.registry.get_evaluation(wanted.evaluation_id)
    assert found is not None
    await first.kill()
    left = found[0].model_copy(update={"evaluation_id": new_id(), "published": False})
    assert left.plan is not None
    renamed = left.plan.request.model_copy(update={"evaluation_id": left.evaluation_id})
    tasks = tuple(task.model_copy(update={"task_id": new_id()}) for task in left.plan.tasks)
    plan = left.plan.model_copy(update={"evaluation_id": left.evaluation_id, "request": renamed, "tasks": tasks})
    await scene.registry.create_evaluation(left.model_copy(update={"plan": plan}))
    await scene.registry.remove_agent(agent.agent_id)
    await scene.bus.publish(subjects.evaluation_requested(), renamed)
    await scene.bus.publish(subjects.evaluation_requested(), renamed)
    start()
    (received,) = await scene.tasks(agent)
    assert assigned(received).evaluation_id == left.evaluation_id
    await scene.state(left.evaluation_id, lambda state: state.published)
    assert await scene.everything(left.evaluation_id) == ["evaluation_accepted"]


async def test_an_evaluation_outlives_the_scheduler_that_began_it(start: Callable[..., Running], scene: Scene) -> None:
    """Another one hears of the task's end, and tells the evaluation's."""
    first = start()
    agent = await scene.agent()
    wanted = await scene.ask()
    (received,) = await scene.tasks(agent)
    await scene.begin(agent, received)
    await first.kill()
    await scene.fail(received)
    start()
    await scene.until(wanted.evaluation_id, EvaluationCompleted)


async def test_the_registry_forgets_plans_and_never_ids(start: Callable[..., Running], scene: Scene) -> None:
    """Long after its end an evaluation is a few bytes, and asking for it again still changes nothing."""
    scheduler = start()
    agent = await scene.agent()
    wanted = await scene.ask()
    (received,) = await scene.tasks(agent)
    running = await scene.ask()
    await scene.fail(received)
    await scene.state(wanted.evaluation_id, lambda state: state.status in FINAL)
    ledger = Ledger(scene.registry, keep_plan_s=0)
    await ledger.recover()
    await ledger.slim()
    state = await scene.state(wanted.evaluation_id, lambda state: state.plan is None)
    assert (state.status, len(state.ended)) == ("failed", 1)
    assert (await scene.state(running.evaluation_id, lambda state: state.published)).plan is not None
    assert set(ledger.active) == {running.evaluation_id}
    await scene.ask(dedup=False, evaluation_id=wanted.evaluation_id)
    assert (await scene.everything(wanted.evaluation_id)).count("evaluation_accepted") == 1
    await scheduler.stop()


async def test_an_end_that_cannot_be_noted_for_long_is_noted_later(
    start: Callable[..., Running], scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often it had to be left for later: given up, it would leave its evaluation running for ever."""
    monkeypatch.setattr(service, "_ACK_WAIT_S", 0.3)
    start()
    agent = await scene.agent()
    wanted = await scene.ask()
    (received,) = await scene.tasks(agent)
    await scene.begin(agent, received)
    update, refusals = Registry.update_evaluation, 0

    async def away(registry: Registry, state: EvaluationState, revision: int) -> int:
        nonlocal refusals
        if state.ended and refusals < 8:
            refusals += 1
            raise BusUnavailableError("the disk of the server is full")
        return await update(registry, state, revision)

    monkeypatch.setattr(Registry, "update_evaluation", away)
    await scene.fail(received)
    await scene.state(wanted.evaluation_id, lambda state: state.status in FINAL)
    assert refusals == 8


async def test_an_end_told_twice_ends_the_evaluation_once(start: Callable[..., Running], scene: Scene) -> None:
    """An agent that repeats itself, or another attempt of the same task, changes nothing."""
    start()
    one, two = await scene.agent("a1", "onnxruntime 1.31.1"), await scene.agent("a2", "pytorch 2.13.0+cpu")
    wanted = await scene.ask(model="digits-cnn", targets="all")
    (first,), (second,) = await scene.tasks(one), await scene.tasks(two)
    for received in (first, first, second, second, first):
        await scene.fail(received)
    await scene.until(wanted.evaluation_id, EvaluationCompleted)
    types = await scene.everything(wanted.evaluation_id)
    assert types.count("evaluation_completed") == 1


async def test_an_unknown_model_is_rejected_with_what_was_meant(start: Callable[..., Running], scene: Scene) -> None:
    """Told on the evaluation's own events, final in the registry, and once however often it is asked."""
    start()
    await scene.agent()
    wanted = await scene.ask(model="digits-cn")
    await scene.ask(dedup=False, model="digits-cn", evaluation_id=wanted.evaluation_id)
    (event,) = await scene.until(wanted.evaluation_id, EvaluationRejected)
    assert isinstance(event.data, EvaluationRejected)
    assert event.data.failure.code == "unknown_model"
    assert "digits-cnn" in event.data.failure.hint
    await scene.state(wanted.evaluation_id, lambda state: state.status == "rejected" and state.published)
    assert await scene.everything(wanted.evaluation_id) == ["evaluation_rejected"]


async def test_an_impossible_constraint_names_each_near_miss(start: Callable[..., Running], scene: Scene) -> None:
    """Wanted and offered, for the agent that came closest."""
    start()
    await scene.agent()
    wanted = await scene.ask(constraints={"device": "gpu", "gpu": "h100"})
    event = (await scene.until(wanted.evaluation_id, EvaluationRejected))[-1].data
    assert isinstance(event, EvaluationRejected)
    (miss,) = event.near_misses
    assert {(one.constraint, one.wanted, one.offered) for one in miss.failed} == {
        ("device", "gpu", "cpu"),
        ("gpu", "h100", "none"),
    }


async def test_what_was_registered_a_moment_ago_is_seen(start: Callable[..., Running], scene: Scene) -> None:
    """A request published after a manifest was registered is never told that there is none."""
    start()
    await scene.agent()
    known = await scene.registry.get_manifest("model", "null", "1.0.0")
    assert isinstance(known, ModelManifest)
    for number in range(10):
        name = f"fresh-{number}"
        await register(scene.bus, scene.registry, known.model_copy(update={"name": name}))
        wanted = await scene.ask(model=name)
        events = await scene.until(wanted.evaluation_id, EvaluationAccepted, EvaluationRejected)
        assert events[-1].type == "evaluation_accepted"


async def test_a_cancelled_task_that_was_never_begun_ends_at_once(start: Callable[..., Running], scene: Scene) -> None:
    """It waits behind others, or its agent is dead: the one who cancelled does not wait for either."""
    start()
    await scene.agent()
    wanted = await scene.ask()
    await scene.until(wanted.evaluation_id, EvaluationAccepted)
    await scene.cancel(wanted.evaluation_id)
    events = await scene.until(wanted.evaluation_id, EvaluationCompleted)
    final = events[-1].data
    assert isinstance(final, EvaluationCompleted)
    assert (final.status, final.cancelled) == ("cancelled", 1)
    failed = next(event.data for event in events if isinstance(event.data, TaskFailed))
    assert "ann" in failed.failure.message
    assert "changed my mind" in failed.failure.message
    assert (await scene.state(wanted.evaluation_id, lambda state: state.status in FINAL)).cancel_requested


async def test_a_cancelled_task_in_work_is_its_agents_to_end(start: Callable[..., Running], scene: Scene) -> None:
    """The registry says that it is cancelled; the evaluation ends when the agent says so."""
    start()
    agent = await scene.agent()
    wanted = await scene.ask()
    (received,) = await scene.tasks(agent)
    await scene.begin(agent, received)
    await scene.state(wanted.evaluation_id, lambda state: state.status == "running")
    await scene.cancel(wanted.evaluation_id)
    state = await scene.state(wanted.evaluation_id, lambda state: state.cancel_requested)
    assert state.status == "running"
    await scene.fail(received, "cancelled")
    events = await scene.until(wanted.evaluation_id, EvaluationCompleted)
    assert [event.type for event in events].count("task_failed") == 1
    assert (await scene.state(wanted.evaluation_id, lambda state: state.status in FINAL)).status == "cancelled"


async def test_a_cancelled_evaluation_ends_though_its_agent_does_not_answer(
    start: Callable[..., Running], scene: Scene
) -> None:
    """Live and silent: after the grace it is ended without the agent."""
    start(cancel_grace_s=0.5)
    agent = await scene.agent()
    wanted = await scene.ask()
    (received,) = await scene.tasks(agent)
    await scene.begin(agent, received)
    await scene.state(wanted.evaluation_id, lambda state: state.status == "running")
    await scene.cancel(wanted.evaluation_id)
    events = await scene.until(wanted.evaluation_id, EvaluationCompleted)
    assert "did not answer" in next(e.data for e in events if isinstance(e.data, TaskFailed)).failure.message


async def test_cancelling_what_nobody_asked_for_holds_nothing_up(start: Callable[..., Running], scene: Scene) -> None:
    """It is dropped after a moment, and others are served meanwhile."""
    start()
    agent = await scene.agent()
    await scene.cancel("nobody-asked")
    await scene.ask()
    assert await scene.tasks(agent)


async def test_a_task_whose_agents_are_gone_fails_in_clear_words(start: Callable[..., Running], scene: Scene) -> None:
    """The lease ends, nobody of the stack comes back within the bound: nobody waits for ever."""
    start(lost_after_s=0.5)
    await scene.agent(lease_s=1.0)
    wanted = await scene.ask()
    events = await scene.until(wanted.evaluation_id, EvaluationCompleted)
    failure = next(event.data for event in events if isinstance(event.data, TaskFailed)).failure
    assert failure.code == "agent_lost"
    assert "null 1.0.0 on amd64 cpu" in failure.message
    assert "mlmodelscope agent null" in failure.hint
    state = await scene.state(wanted.evaluation_id, lambda state: state.status in FINAL)
    assert state.cancel_requested, "an agent that comes back late must not work on it"


async def test_an_undecodable_request_goes_to_the_dead_letters(
    start: Callable[..., Running], scene: Scene, bus: Bus
) -> None:
    """With the reason; and the next request is served."""
    start()
    agent = await scene.agent()
    payload = encode(EvaluationRequested.model_validate({"model": "null", "dataset": "digits"}))
    await bus.store(subjects.evaluation_requested(), payload.replace(b"batch_size", b"batch_sise"))
    await bus.store(subjects.evaluation_requested(), b"\xc1 no msgpack")
    await scene.ask()
    assert len(await scene.tasks(agent)) == 1
    dead = Consumer(bus, stream=DEAD, durable="test", filters=[subjects.all_dead()], ack_wait_s=60, max_attempts=None)
    letters: list[DeadLetter] = []
    async with asyncio.timeout(DEADLINE_S):
        while len(letters) < 2:
            found = [envelope(one).data for one in await dead.fetch(2, 1.0)]
            letters += [one for one in found if isinstance(one, DeadLetter)]
    assert "batch_sise" in letters[0].reason
    assert "msgpack" in letters[1].reason


async def test_the_server_may_restart(start: Callable[..., Running], scene: Scene, nats_server: NatsServer) -> None:
    """Requests before, during and after come through; what was running ends."""
    start()
    agent = await scene.agent()
    before = await scene.ask()
    (received,) = await scene.tasks(agent)
    await scene.begin(agent, received)
    await nats_server.stop()
    during = asyncio.create_task(scene.ask())
    await nats_server.start()
    after = await scene.ask()
    others = await scene.tasks(agent, 2)
    assert {assigned(one).evaluation_id for one in others} == {(await during).evaluation_id, after.evaluation_id}
    await scene.fail(received)
    await scene.until(before.evaluation_id, EvaluationCompleted)


async def test_two_schedulers_hand_out_each_request_once(start: Callable[..., Running], scene: Scene) -> None:
    """Any number may run."""
    start(), start()
    agent = await scene.agent()
    asked = {(await scene.ask()).evaluation_id for _ in range(20)}
    received = await scene.tasks(agent, 20)
    assert {assigned(one).evaluation_id for one in received} == asked
    await asyncio.gather(*(scene.fail(one) for one in received))
    for one in asked:
        await scene.until(one, EvaluationCompleted)
    assert await scene.tasks(agent, wait_s=0.1) == []


async def test_it_stops_in_time_with_the_bus_down(
    start: Callable[..., Running], scene: Scene, nats_server: NatsServer
) -> None:
    """Also with a request in hand, and also when there never was a bus."""
    scheduler = start()
    await scene.agent()
    await scene.ask()
    await nats_server.stop()
    assert await scheduler.stop() < 5.0
    never = start()
    await asyncio.sleep(0)
    assert await never.stop() < 5.0
