"""Pipelined publishing: all that was flushed is stored, whatever happens to the server."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from bus.connection import Bus
from bus.errors import BusError, BusNotReadyError, BusUnavailableError, PayloadTooLargeError
from bus.server import NatsServer
from bus.streams import EVENTS
from schemas.events import TaskProgressed

MakeEvent = Callable[..., TaskProgressed]
Stored = Callable[[str], Awaitable[int]]

WAIT_S = 20.0


async def test_flush_returns_when_everything_is_stored(bus: Bus, make_event: MakeEvent, stored: Stored) -> None:
    """More messages than the window holds are all there after the flush; a second flush has nothing to do."""
    publisher = bus.stream_publisher(max_pending=16)
    for number in range(200):
        await publisher.publish_event(make_event(number))
        assert publisher.pending <= 16
    await publisher.flush()
    assert await stored(EVENTS) == 200
    assert publisher.pending == 0
    await publisher.flush()


async def test_id_deduplicates_here_as_well(bus: Bus, make_event: MakeEvent, stored: Stored) -> None:
    """The same id twice is one message."""
    publisher = bus.stream_publisher()
    for _ in range(3):
        await publisher.publish_event(make_event(1), id="same")
    await publisher.flush()
    assert await stored(EVENTS) == 1


async def test_too_large_a_message_is_refused_and_the_others_go_on(
    bus: Bus, make_event: MakeEvent, stored: Stored
) -> None:
    """One message over the limit does not hurt those around it."""
    publisher = bus.stream_publisher()
    await publisher.publish_event(make_event(1))
    with pytest.raises(PayloadTooLargeError):
        await publisher.publish_event(make_event(2, message="x" * 2**20))
    await publisher.publish_event(make_event(3))
    await publisher.flush()
    assert await stored(EVENTS) == 2


async def test_first_refusal_is_raised_by_flush(bus: Bus, make_event: MakeEvent, stored: Stored) -> None:
    """What the server refuses is told at the flush, once, and the rest is stored."""
    await bus.jetstream.add_stream(name="SMALL", subjects=["small"], max_msg_size=10)
    publisher = bus.stream_publisher()
    await publisher.publish("small", make_event(1))
    await publisher.publish_event(make_event(2))
    with pytest.raises(BusError, match="small"):
        await publisher.flush()
    await publisher.flush()
    assert await stored(EVENTS) == 1


async def test_subject_without_a_stream_is_not_ready(bus: Bus, make_event: MakeEvent) -> None:
    """Messages that nothing stores are an error, not a success."""
    bus.retry_for_s = 0.5
    publisher = bus.stream_publisher()
    await publisher.publish("mlms.v1.nowhere", make_event(1))
    with pytest.raises(BusNotReadyError, match="nowhere"):
        await publisher.flush()


async def test_flush_gives_up_when_the_server_stays_away(
    nats_server: NatsServer, bus: Bus, make_event: MakeEvent
) -> None:
    """Waiting is bounded, with the window full as well."""
    await nats_server.stop()
    bus.retry_for_s = 0.5
    publisher = bus.stream_publisher(max_pending=2)
    async with asyncio.timeout(WAIT_S):
        await publisher.publish_event(make_event(1))
        await publisher.publish_event(make_event(2))
        with pytest.raises(BusUnavailableError):
            await publisher.publish_event(make_event(3))
        await publisher.publish_event(make_event(4))
        with pytest.raises(BusUnavailableError):
            await publisher.flush()


async def test_flush_leaves_no_subscription(bus: Bus, make_event: MakeEvent) -> None:
    """A publisher per task costs nothing once it is flushed."""
    before = len(bus.client._subs)
    for number in range(5):
        publisher = bus.stream_publisher()
        await publisher.publish_event(make_event(number))
        await publisher.flush()
    assert len(bus.client._subs) == before
