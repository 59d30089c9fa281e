"""An evaluation as the bus knows it, before the store does."""

import asyncio
from contextlib import aclosing

from bus.connection import Bus
from bus.consumers import follow
from schemas.evaluation import EvaluationRequested
from schemas.events import EvaluationRejected, EvaluationState
from schemas.result import Evaluation, TaskResult

_REJECTION_WAIT_S = 1.0


def pending(request: EvaluationRequested) -> Evaluation:
    """Return a request that was passed on and that the scheduler has not answered: versions as asked for."""
    return Evaluation(
        evaluation_id=request.evaluation_id,
        status="pending",
        model=request.model.name,
        model_version=request.model.version,
        dataset=request.dataset.name,
        dataset_version=request.dataset.version,
        request=request,
        user=request.user,
    )


async def live(bus: Bus, state: EvaluationState) -> Evaluation | None:
    """Return an evaluation from its entry in the registry: tasks and how they ended, no figures.

    A rejection is told on the events alone; None when they do not tell of it (any more).
    """
    if state.plan is None:  # none was made; or it ended long ago, and the store has it
        return await _rejection(bus, state.evaluation_id) if state.status == "rejected" else None
    plan = state.plan
    tasks = tuple(
        TaskResult(
            task_id=task.task_id,
            status=state.ended.get(task.task_id, "running" if state.status == "running" else "assigned"),
            framework=task.stack.framework,
            framework_version=task.stack.version,
            device=task.stack.device,
            architecture=task.stack.architecture,
            agent_id=task.agent_id or "",
            batch_size=plan.request.batch_size,
        )
        for task in plan.tasks
    )
    return pending(plan.request).model_copy(
        update={
            "status": state.status,
            "model_version": plan.model.version,
            "dataset_version": plan.dataset.version,
            "tasks": tasks,
        }
    )


async def _rejection(bus: Bus, evaluation_id: str) -> Evaluation | None:
    try:
        async with asyncio.timeout(_REJECTION_WAIT_S), aclosing(follow(bus, evaluation_id)) as events:
            async for event in events:
                if isinstance(event.data, EvaluationRejected):
                    rejected = event.data
                    return pending(rejected.request).model_copy(
                        update={
                            "status": "rejected",
                            "failure": rejected.failure,
                            "near_misses": rejected.near_misses,
                        }
                    )
    except TimeoutError:
        pass  # the event is older than the bus keeps them
    return None
