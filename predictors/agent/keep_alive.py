"""Telling the server that a task is still in work."""

import asyncio
import contextlib
from types import TracebackType
from typing import Any

from bus.consumers import Received
from bus.errors import BusError


class KeepAlive:
    """While the body runs, says every third of the acknowledgement wait that the task is in work."""

    def __init__(self, received: Received, ack_wait_s: float) -> None:
        self.received = received
        self._interval_s = ack_wait_s / 3
        self._telling: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "KeepAlive":
        self._telling = asyncio.create_task(self._tell(), name="keep-alive")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._telling is not None
        await ended(self._telling)

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            with contextlib.suppress(BusError):  # away: told again when it is back, or delivered again
                await self.received.in_progress()


async def ended(*tasks: "asyncio.Task[Any]") -> None:
    """Cancel tasks of one's own, wait until all are over, and raise the first error that one ended in."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error
