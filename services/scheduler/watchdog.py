"""Ends what no agent will: tasks whose agents are gone, and cancelled tasks of agents that do not answer."""

import time
from collections.abc import Callable

from schemas.events import PlannedTask
from schemas.failure import Failure
from services.scheduler.ledger import Ledger, unfinished
from services.scheduler.lifecycle import Lifecycle
from services.scheduler.placement import Target
from services.scheduler.view import View


class Watchdog:
    """Looks at everything unfinished whenever `check` is called; remembers since when who has been gone."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        ledger: Ledger,
        view: View,
        *,
        lost_after_s: float,
        cancel_grace_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lifecycle = lifecycle
        self._ledger = ledger
        self._view = view
        self._lost_after_s = lost_after_s
        self._cancel_grace_s = cancel_grace_s
        self._clock = clock
        self._absent: dict[Target, float] = {}
        self._cancelled: dict[str, float] = {}

    async def check(self) -> None:
        """Fail every task that has waited long enough for an agent that is gone, or that ignores a cancellation.

        Raises BusUnavailableError.
        """
        now = self._clock()
        self._note(now)
        for state in list(self._ledger.active.values()):
            for task in unfinished(state):
                failure = self._failure(state.evaluation_id, task, now)
                if failure is not None and not await self._ledger.has_ended(state.evaluation_id, task.task_id):
                    await self._lifecycle.fail(state, task, failure)

    def _note(self, now: float) -> None:
        """Note since when each target of an unfinished task has had no agent, and each cancellation has been asked."""
        live: set[Target] = set()
        for agent in self._view.agents:
            if agent.available:
                live |= {(agent.stack, None), (agent.stack, agent.agent_id)}
        gone = [target for target in self._ledger.outstanding if target not in live]
        self._absent = {target: self._absent.get(target, now) for target in gone}
        asked = [state.evaluation_id for state in self._ledger.active.values() if state.cancel_requested]
        self._cancelled = {one: self._cancelled.get(one, now) for one in asked}

    def _failure(self, evaluation_id: str, task: PlannedTask, now: float) -> Failure | None:
        absent_since = self._absent.get((task.stack, task.agent_id))
        cancelled_since = self._cancelled.get(evaluation_id)
        if cancelled_since is not None:
            if absent_since is None and now - cancelled_since < self._cancel_grace_s:
                return None
            who = "its agent is gone" if absent_since is not None else "its agent did not answer"
            return Failure(code="cancelled", message=f"the evaluation was cancelled; {who}")
        if absent_since is None or now - absent_since < self._lost_after_s:
            return None
        who = f"agent {task.agent_id}" if task.agent_id else f"an agent of {task.stack}"
        return Failure(
            code="agent_lost",
            message=f"{who} has not been live for {now - absent_since:.0f} s, and the task waits for it",
            hint=f"Start one (mlmodelscope agent {task.stack.framework}) and ask again.",
        )
