"""The evaluations of the registry, as this scheduler knows them, and every change it makes to them."""

import time
from collections import Counter, deque
from collections.abc import Callable

from bus.errors import RevisionConflictError
from bus.registry import Registry
from schemas.events import EvaluationState, PlannedTask
from schemas.result import FINAL
from services.scheduler.placement import Target

KEEP_PLAN_S = 3600.0
"""How long an evaluation that has ended keeps its plan in the registry, for readers whom the store has not told yet."""
SLIM_AT_ONCE = 100


class UnknownEvaluationError(Exception):
    """The registry has no such evaluation (yet). Inside this package only."""


class Ledger:
    """Reads and writes entries, and remembers those that have not ended.

    A change names the revision it was decided on; what is remembered may be old, and a change decided on it then
    fails and is decided again on what the registry has.
    """

    def __init__(self, registry: Registry, *, keep_plan_s: float = KEEP_PLAN_S) -> None:
        self._registry = registry
        self._keep_plan_s = keep_plan_s
        self.active: dict[str, EvaluationState] = {}
        """Evaluations that have a plan and have not ended."""
        self.recovered: set[str] = set()
        """Evaluations some of whose tasks may have been begun before this process listened."""
        self.outstanding: Counter[Target] = Counter()
        """Tasks handed out that have not ended, by target."""
        self.begun: dict[str, int] = {}
        """Of tasks that an agent has begun: the attempt, as last heard."""
        self._revisions: dict[str, int] = {}
        self._finished: deque[tuple[float, str]] = deque()
        """Evaluations that have ended and still have their plan, and since when."""

    async def recover(self) -> None:
        """Take up what the registry holds: evaluations that a scheduler before this one left unfinished."""
        for state in await self._registry.evaluations():
            if state.plan is not None and state.status not in FINAL:
                self.remember(state)
                if state.status != "pending":
                    self.recovered.add(state.evaluation_id)
            elif state.plan is not None:
                self._finished.append((time.monotonic(), state.evaluation_id))

    async def slim(self) -> None:
        """Take the plans out of entries that ended long ago: whoever starts next reads every entry there is.

        A few at once; raises BusUnavailableError.
        """
        due = time.monotonic() - self._keep_plan_s
        for _ in range(SLIM_AT_ONCE):
            if not self._finished or self._finished[0][0] > due:
                return
            found = await self._registry.get_evaluation(self._finished[0][1])
            if found is not None and found[0].plan is not None:
                try:
                    await self._registry.update_evaluation(found[0].model_copy(update={"plan": None}), found[1])
                except RevisionConflictError:
                    continue  # another scheduler is at it: look again
            self._finished.popleft()

    async def create(self, state: EvaluationState) -> bool:
        """Make the first entry of an evaluation. False: there is one. Raises PayloadTooLargeError."""
        return await self._registry.create_evaluation(state)

    async def change(
        self, evaluation_id: str, change: Callable[[EvaluationState], EvaluationState | None]
    ) -> EvaluationState:
        """Apply `change` to the entry as it is, again if it was changed meanwhile; None: leave it. Return the entry."""
        while True:
            state, revision = await self.read(evaluation_id)
            changed = change(state)
            if changed is None:
                return state
            changed = changed.model_copy(update={"updated_ns": time.time_ns()})
            try:
                await self.write(changed, revision)
            except RevisionConflictError:
                continue
            return changed

    async def read(self, evaluation_id: str) -> tuple[EvaluationState, int]:
        """Return the entry, as this process last wrote it or as the registry has it, and its revision.

        Raises UnknownEvaluationError.
        """
        if evaluation_id in self.active and evaluation_id in self._revisions:
            return self.active[evaluation_id], self._revisions[evaluation_id]
        found = await self._registry.get_evaluation(evaluation_id)
        if found is None:
            raise UnknownEvaluationError(evaluation_id)
        return found

    async def write(self, state: EvaluationState, revision: int) -> None:
        """Replace the entry that was read at `revision`. Raises RevisionConflictError: read again, decide again."""
        try:
            revision = await self._registry.update_evaluation(state, revision)
        except RevisionConflictError:
            self._revisions.pop(state.evaluation_id, None)
            raise
        if state.plan is not None and state.status not in FINAL:
            self.remember(state)
            self._revisions[state.evaluation_id] = revision
        else:
            self.forget(state.evaluation_id)
            if state.plan is not None:
                self._finished.append((time.monotonic(), state.evaluation_id))

    def remember(self, state: EvaluationState) -> None:
        """Keep an evaluation that has not ended, and count its tasks as outstanding."""
        old = self.active.get(state.evaluation_id)
        if old is not None:
            self._count(old, -1)
        self.active[state.evaluation_id] = state
        self._count(state, 1)

    def forget(self, evaluation_id: str) -> None:
        """Let go of an evaluation that has ended."""
        state = self.active.pop(evaluation_id, None)
        self._revisions.pop(evaluation_id, None)
        self.recovered.discard(evaluation_id)
        if state is not None:
            self._count(state, -1)
            for task in state.plan.tasks if state.plan else ():
                self.begun.pop(task.task_id, None)

    def _count(self, state: EvaluationState, step: int) -> None:
        for task in unfinished(state):
            target = task.stack, task.agent_id
            self.outstanding[target] += step
            if self.outstanding[target] <= 0:
                del self.outstanding[target]

    async def has_ended(self, evaluation_id: str, task_id: str) -> bool:
        """Return whether the registry says that a task has ended: another scheduler may have noted it."""
        found = await self._registry.get_evaluation(evaluation_id)
        if found is None or found[0].status in FINAL:
            self.forget(evaluation_id)
            return True
        return task_id in found[0].ended


def unfinished(state: EvaluationState) -> list[PlannedTask]:
    """Return the tasks of an evaluation that have not ended."""
    return [task for task in (state.plan.tasks if state.plan else ()) if task.task_id not in state.ended]
