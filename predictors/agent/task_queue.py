"""The next task of an agent: from the consumer its stack shares, or from its own."""

import asyncio
import contextlib
import logging
from typing import Literal

from bus.consumers import Consumer, Received
from bus.errors import BusError
from predictors.agent.keep_alive import KeepAlive

log = logging.getLogger(__name__)

FETCH_S = 1.0
_PAUSE_S = 0.5

Origin = Literal["own", "shared"]


class TaskQueue:
    """Hands out one task at a time. For one event loop.

    A request for a task cannot be recalled: when one consumer has brought a task, the other may bring one too,
    for a second at most. Such a task of the stack goes back for an agent that is free; one that has been given
    back already, and one that only this agent may do, is kept here and handed out next.
    """

    def __init__(self, shared: Consumer, own: Consumer, *, ack_wait_s: float) -> None:
        self._consumers: dict[Origin, Consumer] = {"own": own, "shared": shared}
        self._ack_wait_s = ack_wait_s
        self._fetching: dict[Origin, asyncio.Task[Received | None]] = {}
        self._kept: list[KeepAlive] = []
        self._wanted = False

    async def next(self) -> Received:
        """Wait for a task; the agent's own first. Cancelling loses nothing."""
        self._wanted = True
        try:
            while True:
                if self._kept:
                    kept = self._kept.pop(0)
                    await kept.__aexit__(None, None, None)
                    return kept.received
                for origin in self._consumers:
                    if origin not in self._fetching:
                        self._fetching[origin] = self._fetch(origin)
                await asyncio.wait(self._fetching.values(), return_when=asyncio.FIRST_COMPLETED)
                for origin in self._consumers:
                    if (received := self._arrived(origin)) is not None:
                        return received
        finally:
            self._wanted = False
            for origin in self._consumers:
                await self._put_aside(origin)

    async def close(self) -> None:
        """Give back what was not handed out. Call it twice, if you like."""
        fetching = list(self._fetching.values())
        for task in fetching:
            task.cancel()
        if fetching:
            await asyncio.wait(fetching)
        for origin in self._consumers:
            await self._put_aside(origin)
        while self._kept:
            kept = self._kept.pop()
            await kept.__aexit__(None, None, None)
            await _give_back(kept.received)
        for consumer in self._consumers.values():
            await consumer.close()

    def _fetch(self, origin: Origin) -> "asyncio.Task[Received | None]":
        return asyncio.create_task(self._one(origin), name=f"fetch-{origin}")

    async def _one(self, origin: Origin) -> Received | None:
        """Return a task; None when none is wanted any more. One that nobody waits for by then is put aside."""
        while self._wanted:
            try:
                found = await self._consumers[origin].fetch(1, FETCH_S)
            except BusError as error:
                log.warning("no tasks can be fetched: %s", error)
                await asyncio.sleep(_PAUSE_S)
                continue
            if found and self._wanted:
                return found[0]
            if found:
                await self._keep(origin, found[0])
        return None

    def _arrived(self, origin: Origin) -> Received | None:
        task = self._fetching.get(origin)
        if task is None or not task.done():
            return None
        del self._fetching[origin]
        return None if task.cancelled() else task.result()

    async def _put_aside(self, origin: Origin) -> None:
        """Keep a task that came beside the one handed out."""
        if (received := self._arrived(origin)) is not None:
            await self._keep(origin, received)

    async def _keep(self, origin: Origin, received: Received) -> None:
        if origin == "shared" and received.attempt == 1:
            await _give_back(received)
        else:
            self._kept.append(await KeepAlive(received, self._ack_wait_s).__aenter__())


async def _give_back(received: Received) -> None:
    with contextlib.suppress(BusError):  # it cannot be told: the server gives it to another by itself, later
        await received.nak()
