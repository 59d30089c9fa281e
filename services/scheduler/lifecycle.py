"""The life of evaluations: accepted or rejected, handed out, cancelled, ended. The registry is the memory.

Everything here may be done twice: by another scheduler after this one died in the middle, or because a message came
twice. What is published has an id made of what it is about, so that the bus drops the second of a pair; what was
finished is marked in the registry, where every change names the revision it was decided on.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterable
from typing import Literal

from bus import subjects
from bus.connection import Bus
from bus.errors import PayloadTooLargeError, RevisionConflictError
from schemas.evaluation import CancellationRequested, EvaluationRequested
from schemas.events import (
    EvaluationAccepted,
    EvaluationCompleted,
    EvaluationRejected,
    EvaluationState,
    PlannedTask,
    TaskFailed,
    TaskStarted,
)
from schemas.failure import Failure
from schemas.result import FINAL, EvaluationStatus
from schemas.tasks import TaskAssigned
from services.scheduler.ledger import Ledger, unfinished
from services.scheduler.solver import Plan, Rejection, assignments, plan
from services.scheduler.view import View

log = logging.getLogger(__name__)

Outcome = Literal["completed", "failed", "cancelled"]


class Lifecycle:
    """Decides and records. Used from one event loop; its methods may overlap."""

    def __init__(self, bus: Bus, ledger: Ledger, view: View, *, last_attempt: int) -> None:
        self._bus = bus
        self._ledger = ledger
        self._view = view
        self._last_attempt = last_attempt

    async def request(self, request: EvaluationRequested, trace: str | None) -> None:
        """Plan an evaluation and hand out its tasks, or reject it. Asked for again, it changes nothing."""
        result = self._solve(request)
        if isinstance(result, Rejection):
            # What was registered a moment ago may not have reached the view: look before saying no.
            await self._view.refresh()
            result = self._solve(request)
        try:
            state = self._first_state(request, result)
            created = await self._ledger.create(state)
        except PayloadTooLargeError as error:
            hint = "Shorten the manifests: pass what is large by reference."
            result = Rejection(Failure(code="invalid_request", message=str(error), hint=hint))
            state = self._first_state(request, result)
            created = await self._ledger.create(state)
        if created:
            await self._tell(state, request, result, trace)
        else:
            await self._resume(request, result, trace)

    async def reject(self, request: EvaluationRequested, failure: Failure, trace: str | None) -> None:
        """Reject a request that cannot be handled."""
        result = Rejection(failure)
        state = self._first_state(request, result)
        if await self._ledger.create(state):
            await self._tell(state, request, result, trace)

    async def cancel(self, wanted: CancellationRequested, trace: str | None) -> None:
        """Mark an evaluation as cancelled, and end its tasks that were never begun.

        Agents watch the mark: they end what they work on, and fail what they pick up. Raises UnknownEvaluationError.
        """
        state = await self._ledger.change(
            wanted.evaluation_id,
            lambda old: None if old.status in FINAL else old.model_copy(update={"cancel_requested": True}),
        )
        if state is None or state.status in FINAL:
            return
        by = f" by {wanted.user}" if wanted.user else ""
        why = f": {wanted.reason}" if wanted.reason else ""
        failure = Failure(code="cancelled", message=f"the evaluation was cancelled{by}{why}")
        for task in unfinished(state):
            if not self.maybe_begun(state, task):
                await self.fail(state, task, failure, trace)

    async def begun(self, event: TaskStarted) -> None:
        """Note that an agent works on a task; the first makes the evaluation `running`."""
        state = await self._ledger.change(
            event.evaluation_id,
            lambda old: old.model_copy(update={"status": "running"}) if old.status == "pending" else None,
        )
        if state.status not in FINAL:
            self._ledger.begun[event.task_id] = max(event.attempt, self._ledger.begun.get(event.task_id, 0))

    async def ended(self, evaluation_id: str, task_id: str, outcome: Outcome, trace: str | None) -> None:
        """Note how a task ended; the last of an evaluation ends it. The first word on a task stands.

        Raises UnknownEvaluationError.
        """
        while True:
            state, revision = await self._ledger.read(evaluation_id)
            if state.status in FINAL or state.plan is None or task_id in state.ended:
                return
            if all(task.task_id != task_id for task in state.plan.tasks):
                log.warning("evaluation %s has no task %s, which is said to have %s", evaluation_id, task_id, outcome)
                return
            ended = {**state.ended, task_id: outcome}
            status = final_status(state.plan.tasks, ended) or "running"
            if status in FINAL:
                # Told before it is noted: should this process die in between, the event that brought it here comes
                # again, and the bus drops the second telling.
                await self._tell_completed(evaluation_id, status, ended, trace)
            changed = state.model_copy(update={"ended": ended, "status": status, "updated_ns": time.time_ns()})
            if status in FINAL and status != "completed":
                # An agent that comes back to a task which was given up must not work on it.
                changed = changed.model_copy(update={"cancel_requested": True})
            try:
                await self._ledger.write(changed, revision)
                return
            except RevisionConflictError:
                continue

    async def fail(self, state: EvaluationState, task: PlannedTask, failure: Failure, trace: str | None = None) -> None:
        """Say in the agents' stead that a task failed; it ends when the event comes back."""
        attempt = self._ledger.begun.get(task.task_id, 0)
        if failure.code == "agent_lost" or (not attempt and state.evaluation_id in self._ledger.recovered):
            # Readers take the last attempt's word, and nothing an agent may still say is to come after this.
            attempt = self._last_attempt
        event = TaskFailed(
            evaluation_id=state.evaluation_id,
            task_id=task.task_id,
            attempt=attempt,
            agent_id=task.agent_id or "",
            failure=failure,
            time_ns=time.time_ns(),
        )
        await self._bus.publish_event(event, id=f"{task.task_id}-{failure.code}", trace=trace)

    def maybe_begun(self, state: EvaluationState, task: PlannedTask) -> bool:
        """Return whether an agent may be working on a task: it said so, or may have before this process listened."""
        return task.task_id in self._ledger.begun or state.evaluation_id in self._ledger.recovered

    def _solve(self, request: EvaluationRequested) -> Plan | Rejection:
        view = self._view
        return plan(request, view.agents, view.models, view.datasets, self._ledger.outstanding)

    def _first_state(self, request: EvaluationRequested, result: Plan | Rejection) -> EvaluationState:
        now_ns = time.time_ns()
        if isinstance(result, Rejection):
            return EvaluationState(evaluation_id=request.evaluation_id, status="rejected", updated_ns=now_ns)
        accepted = EvaluationAccepted(
            evaluation_id=request.evaluation_id,
            request=request,
            model=result.model,
            dataset=result.dataset,
            tasks=result.tasks,
            time_ns=now_ns,
        )
        return EvaluationState(evaluation_id=request.evaluation_id, status="pending", plan=accepted, updated_ns=now_ns)

    async def _resume(self, request: EvaluationRequested, result: Plan | Rejection, trace: str | None) -> None:
        """Finish what was begun for this id, if it was not finished."""
        state, _ = await self._ledger.read(request.evaluation_id)
        if state.published:
            log.info("evaluation %s was asked for again: it is %s", request.evaluation_id, state.status)
            return
        if state.plan is None and isinstance(result, Plan):
            message = "nothing satisfied the request when it came; something does now"
            result = Rejection(Failure(code="no_predictor", message=message, hint="Ask again, under a new id."))
        await self._tell(state, request, result, trace)

    async def _tell(
        self, state: EvaluationState, request: EvaluationRequested, result: Plan | Rejection, trace: str | None
    ) -> None:
        """Publish what was decided, and mark it published."""
        if state.plan is not None:
            await self._hand_out(state, state.plan, trace)
        elif isinstance(result, Rejection):
            event = EvaluationRejected(
                evaluation_id=state.evaluation_id,
                request=request,
                failure=result.failure,
                near_misses=result.near_misses,
                time_ns=time.time_ns(),
            )
            log.info("evaluation %s rejected: %s", state.evaluation_id, result.failure.message)
            await self._bus.publish_event(event, id=f"{state.evaluation_id}-rejected", trace=trace)
        await self._ledger.change(state.evaluation_id, lambda old: old.model_copy(update={"published": True}))

    async def _hand_out(self, state: EvaluationState, accepted: EvaluationAccepted, trace: str | None) -> None:
        self._ledger.remember(state)
        # In one flight, the event first: nobody hears of a task before he has heard of its evaluation.
        await asyncio.gather(
            self._bus.publish_event(accepted, id=f"{state.evaluation_id}-accepted", trace=trace),
            *(self._assign(state, task, trace) for task in assignments(accepted, self._view.agents)),
        )
        log.info("evaluation %s accepted: %d tasks", state.evaluation_id, len(accepted.tasks))

    async def _assign(self, state: EvaluationState, task: TaskAssigned, trace: str | None) -> None:
        if task.task_id in state.ended:
            return
        try:
            await self._bus.publish(subjects.task(task.stack, task.agent_id), task, id=task.task_id, trace=trace)
        except PayloadTooLargeError as error:
            planned = PlannedTask(task_id=task.task_id, stack=task.stack, agent_id=task.agent_id)
            await self.fail(state, planned, Failure(code="invalid_request", message=str(error)), trace)

    async def _tell_completed(
        self, evaluation_id: str, status: EvaluationStatus, ended: dict[str, Outcome], trace: str | None
    ) -> None:
        counts = Counter(ended.values())
        event = EvaluationCompleted(
            evaluation_id=evaluation_id,
            status=status,
            completed=counts["completed"],
            failed=counts["failed"],
            cancelled=counts["cancelled"],
            time_ns=time.time_ns(),
        )
        await self._bus.publish_event(event, id=f"{evaluation_id}-completed", trace=trace)
        log.info("evaluation %s %s", evaluation_id, status)


def final_status(tasks: Iterable[PlannedTask], ended: dict[str, Outcome]) -> EvaluationStatus | None:
    """Return how an evaluation ended whose tasks ended so; None while one has not."""
    outcomes = [ended.get(task.task_id) for task in tasks]
    if None in outcomes:
        return None
    if "cancelled" in outcomes:
        return "cancelled"
    if "failed" not in outcomes:
        return "completed"
    return "partial" if "completed" in outcomes else "failed"
