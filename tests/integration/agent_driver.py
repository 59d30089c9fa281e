"""What the tests of agents share: agents that run, tasks for them, and the events that come back."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from bus import subjects
from bus.connection import Bus
from bus.consumers import follow
from bus.registry import Registry
from predictors.agent import service as agent
from schemas.agents import AgentRegistered, Stack
from schemas.base import new_id
from schemas.codec import Envelope
from schemas.evaluation import EvaluationRequested
from schemas.events import TaskCompleted, TaskFailed
from schemas.manifest_yaml import parse_manifest
from schemas.manifests import DatasetManifest, ModelManifest
from schemas.settings import Settings, to_environ
from schemas.tasks import TaskAssigned
from tests.conftest import REPOSITORY

T = TypeVar("T")
Events = list[Envelope[BaseModel]]

PATIENCE_S = 30.0
TINY: dict[str, Any] = {"name": "single_stream", "min_duration_s": 0, "min_query_count": 20, "warmup_query_count": 2}
"""A scenario of a few milliseconds."""
LONG: dict[str, Any] = {"name": "single_stream", "min_duration_s": 60, "max_duration_s": 90, "min_query_count": 10}
"""A scenario that no test waits for the end of."""


def model(name: str, **changes: Any) -> ModelManifest:
    """Return a model manifest of the repository, with `changes` made to it."""
    path = REPOSITORY / "manifests" / "models" / f"{name}.yml"
    manifest = parse_manifest(path.read_text(), "model", str(path))
    assert isinstance(manifest, ModelManifest)
    return ModelManifest.model_validate({**manifest.model_dump(), **changes})


def dataset(name: str = "digits", **changes: Any) -> DatasetManifest:
    """Return a dataset manifest of the repository, with `changes` made to it."""
    path = REPOSITORY / "manifests" / "datasets" / f"{name}.yml"
    manifest = parse_manifest(path.read_text(), "dataset", str(path))
    assert isinstance(manifest, DatasetManifest)
    return DatasetManifest.model_validate({**manifest.model_dump(), **changes})


def task(
    stack: Stack, manifest: ModelManifest, data: DatasetManifest, *, agent_id: str | None = None, **asked: Any
) -> TaskAssigned:
    """Return a task as the scheduler makes it; `asked` are fields of the request."""
    request = EvaluationRequested.model_validate(
        {"model": manifest.name, "dataset": data.name, "scenario": TINY, "sample_limit": 10, **asked}
    )
    return TaskAssigned(
        task_id=new_id(),
        evaluation_id=request.evaluation_id,
        stack=stack,
        agent_id=agent_id,
        request=request,
        model=manifest,
        framework_model=next(entry for entry in manifest.frameworks if entry.name == stack.framework),
        dataset=data,
    )


def null_task(stack: Stack, **asked: Any) -> TaskAssigned:
    """Return a task for the null framework; `asked` are fields of the request."""
    return task(stack, model("null"), dataset(), **asked)


async def assign(bus: Bus, assigned: TaskAssigned, *, trace: str | None = None) -> None:
    """Publish a task as the scheduler does."""
    await bus.publish(subjects.task(assigned.stack, assigned.agent_id), assigned, id=assigned.task_id, trace=trace)


async def do(bus: Bus, assigned: TaskAssigned, *, trace: str | None = None) -> Events:
    """Publish a task and return its events when it has ended."""
    await assign(bus, assigned, trace=trace)
    return await events_until(bus, assigned, is_final)


async def events_until(bus: Bus, assigned: TaskAssigned, wanted: Callable[[BaseModel], bool]) -> Events:
    """Return the events of a task's evaluation up to and with the first that is `wanted`."""
    found: Events = []
    async with asyncio.timeout(PATIENCE_S), aclosing(follow(bus, assigned.evaluation_id)) as following:
        async for envelope in following:
            found.append(envelope)
            if wanted(envelope.data):
                return found
    raise AssertionError("the events ended")


def is_final(event: BaseModel) -> bool:
    """Return whether a task ends with this event."""
    return isinstance(event, (TaskCompleted, TaskFailed))


def in_phase(phase: str) -> Callable[[BaseModel], bool]:
    """Return what tells that a task has come to `phase`."""
    return lambda event: getattr(event, "phase", None) == phase


def only(events: Events, kind: type[T]) -> T:
    """Return the one event of a kind."""
    found = [envelope.data for envelope in events if isinstance(envelope.data, kind)]
    assert len(found) == 1, [envelope.type for envelope in events]
    return found[0]


def failed(events: Events) -> TaskFailed:
    """Return how a task failed; it must have."""
    return only(events, TaskFailed)


def completed(events: Events) -> TaskCompleted:
    """Return how a task completed; it must have."""
    assert not [e.data for e in events if isinstance(e.data, TaskFailed)], events[-1].data
    return only(events, TaskCompleted)


async def until(condition: Callable[[], T | None], what: str) -> T:
    """Wait until `condition` returns something that is true, and return it."""
    async with asyncio.timeout(PATIENCE_S):
        while not (found := condition()):  # noqa: ASYNC110 - processes set no event
            await asyncio.sleep(0.01)
    assert found, what
    return found


async def registered(bus: Bus, agent_id: str) -> AgentRegistered:
    """Wait until an agent is in the registry, and return its entry."""
    registry = Registry(bus)
    async with asyncio.timeout(PATIENCE_S):
        while True:
            for entry in await registry.agents():
                if entry.agent_id == agent_id:
                    return entry
            await asyncio.sleep(0.05)


@asynccontextmanager
async def running_agent(
    settings: Settings, bus: Bus, framework: str = "null", agent_id: str = "agent-1"
) -> AsyncIterator[AgentRegistered]:
    """An agent in this process, its workers in their own. Yields its registration."""
    stop = asyncio.Event()
    serving = asyncio.create_task(agent.run(settings, stop, framework=framework, agent_id=agent_id), name="agent")
    try:
        waiting = asyncio.create_task(registered(bus, agent_id), name="registered")
        await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            serving.result()
        yield await waiting
    finally:
        stop.set()
        await asyncio.wait_for(serving, PATIENCE_S)


class AgentProcess:
    """An agent in a process of its own, to be killed."""

    def __init__(self, settings: Settings, framework: str, agent_id: str, log: Path) -> None:
        code = (
            "import asyncio, os, sys\n"
            "from predictors.agent.service import run\n"
            "from schemas.settings import load_settings\n"
            "settings, (framework, agent_id) = load_settings(os.environ), sys.argv[1:]\n"
            "asyncio.run(run(settings, asyncio.Event(), framework=framework, agent_id=agent_id))\n"
        )
        environment = {**os.environ, **to_environ(settings), "PYTHONPATH": str(REPOSITORY)}
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-c", code, framework, agent_id], env=environment, stdout=output, stderr=output
            )

    def kill(self) -> None:
        """SIGKILL: it gets no chance to clean up."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def workers_of(pid: int) -> list[int]:
    """Return the process ids of an agent's living workers."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            _, _, rest = status.read_text().rpartition(")")
            command = (status.parent / "cmdline").read_bytes()
        except OSError:
            continue  # it ended meanwhile
        state, parent = rest.split()[:2]
        if int(parent) == pid and state != "Z" and b"predictors.worker" in command:
            found.append(int(status.parent.name))
    return found


def is_alive(pid: int) -> bool:
    """Return whether a process still runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
