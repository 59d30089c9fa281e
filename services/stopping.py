"""Ending work when a service is told to stop."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def until_stopped(work: Coroutine[Any, Any, T], stop: asyncio.Event, *, name: str) -> T | None:
    """Return what `work` returns; None when `stop` is set first, and then `work` has been cancelled."""
    task = asyncio.create_task(work, name=name)
    stopping = asyncio.create_task(stop.wait(), name=f"{name}-stop")
    try:
        await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        await end_tasks(task, stopping)


async def end_tasks(*tasks: asyncio.Task[Any], grace_s: float = 0.0, bound_s: float = 1.0) -> None:
    """Give tasks `grace_s` to end by themselves, cancel those that have not, and wait for them at most `bound_s`.

    Their results and errors are left in them. A task that swallows its cancellation is left behind.
    """
    running = {task for task in tasks if not task.done()}
    if running and grace_s > 0:
        _, running = await asyncio.wait(running, timeout=grace_s)
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running, timeout=bound_s)
