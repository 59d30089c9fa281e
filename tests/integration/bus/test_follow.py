"""Following one evaluation: from its beginning, live, and over restarts, each event once and in order."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import aclosing

import pytest

from bus import subjects
from bus.connection import Bus
from bus.consumers import follow
from bus.errors import BusUnavailableError
from bus.server import NatsServer
from bus.streams import EVENTS
from schemas.events import TaskProgressed

MakeEvent = Callable[..., TaskProgressed]
Eventually = Callable[[Callable[[], Awaitable[bool]]], Awaitable[None]]

WAIT_S = 30.0


async def collect(bus: Bus, last: int, *, from_start: bool = True) -> list[int]:
    """Return the numbers of the events of e1 until `last`."""
    found = []
    async with aclosing(follow(bus, "e1", from_start=from_start)) as events:
        async for envelope in events:
            assert isinstance(envelope.data, TaskProgressed)
            found.append(envelope.data.done)
            if found[-1] == last:
                break
    return found


async def is_followed(bus: Bus) -> bool:
    return bool(await bus.jetstream.consumers_info(EVENTS))


async def test_from_the_beginning_then_live(bus: Bus, make_event: MakeEvent) -> None:
    """Who comes late sees all that happened, more than one batch of it, and then what happens."""
    publisher = bus.stream_publisher()
    for number in range(600):
        await publisher.publish_event(make_event(number))
        await publisher.publish_event(make_event(number, "another"))
    await publisher.flush()
    following = asyncio.create_task(collect(bus, 601))
    await asyncio.sleep(0.2)
    await bus.publish_event(make_event(600))
    await bus.publish_event(make_event(601))
    async with asyncio.timeout(WAIT_S):
        assert await following == list(range(602))


async def test_live_only(bus: Bus, make_event: MakeEvent, eventually: Eventually) -> None:
    """Who does not care for the past sees only what comes."""
    await bus.publish_event(make_event(1))
    following = asyncio.create_task(collect(bus, 3, from_start=False))
    await eventually(lambda: is_followed(bus))
    await bus.publish_event(make_event(2))
    await bus.publish_event(make_event(3))
    async with asyncio.timeout(WAIT_S):
        assert await following == [2, 3]


@pytest.mark.parametrize("from_start", [True, False])
async def test_restarts_neither_lose_nor_repeat_an_event(
    nats_server: NatsServer, bus: Bus, make_event: MakeEvent, eventually: Eventually, from_start: bool
) -> None:
    """The server is killed again and again while events are published: the follower sees each once, in order."""
    following = asyncio.create_task(collect(bus, 149, from_start=from_start))
    await eventually(lambda: is_followed(bus))

    async def publish() -> None:
        for number in range(150):
            await bus.publish_event(make_event(number), id=f"event-{number}")
            await asyncio.sleep(0.01)

    publishing = asyncio.create_task(publish())
    for _ in range(3):
        await asyncio.sleep(0.3)
        os.kill(nats_server.pid, signal.SIGKILL)
        await nats_server.wait()
        await nats_server.restart()
    async with asyncio.timeout(WAIT_S):
        await publishing
        assert await following == list(range(150))


async def test_undecodable_event_is_passed_over(bus: Bus, make_event: MakeEvent) -> None:
    """An event of an unknown type does not end the following."""
    await bus.publish_event(make_event(1))
    await bus.store(subjects.event("novelty", "e1"), b"garbage")
    await bus.publish_event(make_event(2))
    async with asyncio.timeout(WAIT_S):
        assert await collect(bus, 2) == [1, 2]


async def test_stopping_leaves_nothing_on_the_server(bus: Bus, make_event: MakeEvent, eventually: Eventually) -> None:
    """Closing the iterator takes its consumer away, and so does cancelling who iterates."""
    await bus.publish_event(make_event(1))
    await collect(bus, 1)
    following = asyncio.create_task(collect(bus, 99))
    await asyncio.sleep(0.2)
    following.cancel()
    await asyncio.wait({following})
    assert following.cancelled()

    async def nothing_left() -> bool:
        return not await is_followed(bus)

    await eventually(nothing_left)


async def test_closed_connection_ends_the_following(bus: Bus) -> None:
    """A follower is not left waiting for a connection that was closed."""
    following = asyncio.create_task(collect(bus, 99))
    await asyncio.sleep(0.2)
    await bus.close()
    async with asyncio.timeout(WAIT_S):
        with pytest.raises(BusUnavailableError):
            await following
