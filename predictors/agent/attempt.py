"""One delivery of a task, from taking it to settling it."""

import asyncio
import logging
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

from bus.connection import Bus
from bus.consumers import Received
from bus.errors import BusError
from bus.registry import Registry
from predictors.agent.keep_alive import ended
from predictors.agent.reporter import Reporter
from predictors.agent.task_runner import TaskRunner
from predictors.errors import CancelledError, PredictorError
from schemas.events import EvaluationState
from schemas.failure import Failure
from schemas.tasks import TaskAssigned

log = logging.getLogger(__name__)

CANCEL_POLL_S = 0.5
"""How soon a cancellation ends a task in work."""

Ending = Literal["completed", "failed"]


class Attempt:
    """Does a task that was received, tells how it ended, once, and acknowledges it.

    Cancelling `run` gives the task back, to be done by another agent, and leaves no process behind.
    """

    def __init__(
        self, bus: Bus, runner: TaskRunner, received: Received, task: TaskAssigned, reporter: Reporter
    ) -> None:
        self._runner = runner
        self._received = received
        self._task = task
        self._reporter = reporter
        self._registry = Registry(bus)
        self._cancelled = False

    async def run(self) -> Ending:
        """Return how it ended; everything is on the bus by then, and the task acknowledged."""
        ending: Ending
        state = await self._state()
        if state is not None and self._task.task_id in state.ended:
            log.info("task %s came again after its end", self._task.task_id)
            ending = "completed" if state.ended[self._task.task_id] == "completed" else "failed"
        elif state is not None and state.cancel_requested:
            await self._reporter.failed(_cancelled(self._task).failure())
            ending = "failed"
        else:
            await self._reporter.started()
            ending = await self._work()
        await self._received.ack()
        return ending

    async def _work(self) -> Ending:
        try:
            async with self._watched():
                record = await self._runner.run(self._task, self._reporter)
        except PredictorError as error:
            failure = error.failure()
        except BusError as error:
            failure = _internal(error, "the results cannot be sent")
        except Exception as error:  # a fault of ours: told whole to the user, who else would wait for ever
            log.exception("task %s", self._task.task_id)
            failure = _internal(error, "the agent failed")
        else:
            await self._reporter.completed(record)
            return "completed"
        log.info("task %s failed: %s: %s", self._task.task_id, failure.code, failure.message)
        await self._reporter.failed(failure)
        return "failed"

    @asynccontextmanager
    async def _watched(self) -> AsyncIterator[None]:
        """Raise our CancelledError in the body when the evaluation is cancelled meanwhile."""
        body = asyncio.current_task()
        assert body is not None
        watcher = asyncio.create_task(self._watch(body), name=f"watch-{self._task.task_id}")
        try:
            yield
        except asyncio.CancelledError:
            if not self._cancelled or body.uncancel() > 0:
                raise  # the agent is stopping
            raise _cancelled(self._task) from None
        finally:
            await ended(watcher)

    async def _watch(self, body: "asyncio.Task[object]") -> None:
        while True:
            await asyncio.sleep(CANCEL_POLL_S)
            state = await self._state()
            if state is not None and state.cancel_requested:
                self._cancelled = True
                body.cancel()
                return

    async def _state(self) -> EvaluationState | None:
        """Return what the registry says of the evaluation; None when it says nothing, or cannot be asked."""
        try:
            found = await self._registry.get_evaluation(self._task.evaluation_id)
        except BusError as error:
            log.debug("task %s: cannot see whether it is cancelled: %s", self._task.task_id, error)
            return None  # asked again soon, and a bus that is away must not end a task
        return found[0] if found is not None else None


def _cancelled(task: TaskAssigned) -> CancelledError:
    return CancelledError(f"evaluation {task.evaluation_id} was cancelled")


def _internal(error: Exception, what: str) -> Failure:
    return Failure(
        code="internal",
        message=f"{what}: {type(error).__name__}: {error}",
        hint="this is a fault in the platform; the detail says where",
        detail="".join(traceback.format_exception(error))[-8000:],
    )
