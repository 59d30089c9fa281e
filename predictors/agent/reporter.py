"""What an agent tells about one attempt at a task."""

import asyncio
import contextlib
import logging
import time
from typing import Any

from pydantic import BaseModel

from bus.connection import Bus
from bus.errors import BusUnavailableError
from bus.publisher import BatchPublisher
from predictors.worker.messages import Rows
from schemas.events import (
    Phase,
    PredictionsRecorded,
    QueriesRecorded,
    TaskCompleted,
    TaskFailed,
    TaskProgressed,
    TaskStarted,
)
from schemas.failure import Failure
from schemas.result import TaskRecord
from schemas.tasks import TaskAssigned

log = logging.getLogger(__name__)

UNFLUSHED = 64
"""Messages kept until the server has confirmed them, to be sent again when it went away in between."""


class Reporter:
    """The events of one attempt, in order. The final one goes out once the server has stored all before it.

    What is reported survives a restart of the server: it waits and sends again, for ever, so whoever uses it
    bounds the whole. Ids are derived from task, attempt, kind and chunk: sending again does not duplicate.
    Progress is live only, and lost when the bus is away.
    """

    def __init__(
        self, bus: Bus, task: TaskAssigned, *, attempt: int, agent_id: str, system_id: str, trace: str | None
    ) -> None:
        self._bus = bus
        self._task = task
        self._attempt = attempt
        self._agent_id = agent_id
        self._system_id = system_id
        self._trace = trace
        self._publisher: BatchPublisher = bus.stream_publisher()
        self._unconfirmed: list[tuple[BaseModel, str]] = []
        self._chunks: dict[str, int] = {}

    async def started(self) -> None:
        """Tell that this agent has taken the task."""
        request = self._task.request
        event = TaskStarted(
            **self._common(),
            agent_id=self._agent_id,
            stack=self._task.stack,
            system_id=self._system_id,
            batch_size=request.batch_size,
            time_ns=time.time_ns(),
        )
        await self._publish(event, "started")

    async def progress(self, phase: Phase, done: int = 0, total: int = 0, message: str = "") -> None:
        """Tell where the task is; never waits for the server."""
        event = TaskProgressed(
            **self._common(), phase=phase, done=done, total=total, message=message, time_ns=time.time_ns()
        )
        if not self._bus.connected:
            return
        with contextlib.suppress(BusUnavailableError):  # live only; the events that count are sent again by the flush
            await self._publisher.publish_event(event, trace=self._trace)

    async def rows(self, rows: Rows) -> None:
        """Hand on a chunk of predictions or queries."""
        chunk = self._chunks.get(rows.of, 0)
        self._chunks[rows.of] = chunk + 1
        model = PredictionsRecorded if rows.of == "predictions" else QueriesRecorded
        event: BaseModel = model.model_validate({**self._common(), **rows.columns})
        await self._publish(event, f"{rows.of}-{chunk}")

    async def completed(self, record: TaskRecord) -> None:
        """Tell the figures, after everything else is stored."""
        await self.flush()
        event = TaskCompleted(
            **self._common(),
            agent_id=self._agent_id,
            system_id=self._system_id,
            record=record,
            time_ns=time.time_ns(),
        )
        await self._publish(event, "completed")
        await self.flush()

    async def failed(self, failure: Failure) -> None:
        """Tell that the task cannot be done, after everything else is stored."""
        await self.flush()
        await self._publish(task_failed(self._task, self._attempt, failure, agent_id=self._agent_id), "failed")
        await self.flush()

    async def flush(self) -> None:
        """Wait until the server has stored all that was told; sends again while it comes and goes."""
        while self._unconfirmed:
            try:
                await self._publisher.flush()
                self._unconfirmed.clear()
            except BusUnavailableError as error:
                log.warning("%s: sending %d events again: %s", self._task.task_id, len(self._unconfirmed), error)
                await asyncio.sleep(0.1)
                await self._send_again()

    async def _publish(self, event: BaseModel, kind: str) -> None:
        id_ = event_id(self._task.task_id, self._attempt, kind)
        self._unconfirmed.append((event, id_))
        with contextlib.suppress(BusUnavailableError):  # it is among the unconfirmed: the flush sends it again
            await self._publisher.publish_event(event, id=id_, trace=self._trace)
        if len(self._unconfirmed) >= UNFLUSHED:
            await self.flush()

    async def _send_again(self) -> None:
        self._publisher = self._bus.stream_publisher()
        for event, id_ in self._unconfirmed:
            try:
                await self._publisher.publish_event(event, id=id_, trace=self._trace)
            except BusUnavailableError:
                return  # the next flush fails too, and tries again

    def _common(self) -> dict[str, Any]:
        return {
            "evaluation_id": self._task.evaluation_id,
            "task_id": self._task.task_id,
            "attempt": self._attempt,
        }


def event_id(task_id: str, attempt: int, kind: str) -> str:
    """Return the id under which an event of a task is published, however often it is sent."""
    return f"{task_id}-{attempt}-{kind}"


def task_failed(task: TaskAssigned, attempt: int, failure: Failure, *, agent_id: str = "") -> TaskFailed:
    """Return the event that ends a task without figures."""
    return TaskFailed(
        evaluation_id=task.evaluation_id,
        task_id=task.task_id,
        attempt=attempt,
        agent_id=agent_id,
        failure=failure,
        time_ns=time.time_ns(),
    )
