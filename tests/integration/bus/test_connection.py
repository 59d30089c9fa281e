"""Connecting, preparing, publishing and closing, with the server there, away, frozen and back."""

import asyncio
import os
import signal
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from pydantic import BaseModel

from bus import subjects
from bus.connection import Bus
from bus.errors import BusNotReadyError, BusUnavailableError, PayloadTooLargeError, RefusedError
from bus.server import NatsServer
from bus.streams import BUCKETS, EVENTS, bucket_stream
from bus.wire import header_size
from schemas.codec import decode, encode
from schemas.evaluation import CancellationRequested
from schemas.events import TaskProgressed
from schemas.settings import Settings

Stored = Callable[[str], Awaitable[int]]
MakeEvent = Callable[..., TaskProgressed]
Eventually = Callable[[Callable[[], Awaitable[bool]]], Awaitable[None]]

BOUND_S = 15.0
"""Of what must end by itself: generous, because the machine may be busy."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def test_absent_server_is_an_error_that_says_what_to_do() -> None:
    """Connecting gives up after its timeout and names the address and the setting."""
    url = f"nats://127.0.0.1:{free_port()}"
    async with asyncio.timeout(BOUND_S):
        with pytest.raises(BusUnavailableError, match=rf"{url}.*MLMODELSCOPE_BUS_URL"):
            await Bus.connect(url, name="t", timeout_s=0.5)


async def test_connect_waits_for_a_server_that_comes_up_later(tmp_path: Path) -> None:
    """Services may be started before the bus."""
    server = NatsServer(tmp_path / "nats", port=free_port())
    connecting = asyncio.create_task(Bus.connect(server.url, name="t", timeout_s=BOUND_S))
    await asyncio.sleep(0.3)
    assert not connecting.done()
    async with server:
        bus = await connecting
        assert bus.connected
        await bus.close()


async def test_connect_leaves_no_task_behind_when_it_fails_or_is_cancelled() -> None:
    """Whatever connecting started ends with it."""
    url = f"nats://127.0.0.1:{free_port()}"
    before = asyncio.all_tasks()
    with pytest.raises(BusUnavailableError):
        await Bus.connect(url, name="t", timeout_s=0.2)
    connecting = asyncio.create_task(Bus.connect(url, name="t", timeout_s=60))
    await asyncio.sleep(0.1)
    connecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await connecting
    assert asyncio.all_tasks() == before


async def test_prepare_by_everybody_at_once(nats_server: NatsServer, settings: Settings) -> None:
    """All services prepare at the same moment; all succeed, and everything is there."""
    buses = await asyncio.gather(*(Bus.connect(settings.bus_url, name=f"t{i}") for i in range(6)))
    try:
        await asyncio.gather(*(bus.prepare(settings) for bus in buses))
        names = {info.config.name for info in await buses[0].jetstream.streams_info()}
        assert names == {"EVALUATIONS", "TASKS", "EVENTS", "DEAD", *map(bucket_stream, BUCKETS)}
    finally:
        await asyncio.gather(*(bus.close() for bus in buses))


async def test_prepare_applies_changed_settings_and_keeps_messages(
    bus: Bus, settings: Settings, make_event: MakeEvent
) -> None:
    """A restart with other settings updates the streams."""
    await bus.publish_event(make_event(1))
    await bus.prepare(settings.model_copy(update={"events_max_age_s": 1000.0}))
    info = await bus.jetstream.stream_info(EVENTS)
    assert info.config.max_age == 1000.0
    assert info.state.messages == 1


async def test_server_with_too_little_storage_is_a_clear_error(nats_server: NatsServer, settings: Settings) -> None:
    """Streams that the server cannot hold name the setting to change."""
    bus = await Bus.connect(settings.bus_url, name="t")
    try:
        with pytest.raises(BusNotReadyError, match="MLMODELSCOPE_BUS_MAX_FILE_BYTES"):
            await bus.prepare(settings.model_copy(update={"bus_max_file_bytes": 2**50}))
    finally:
        await bus.close()


async def test_limit_that_was_lowered_and_raised_again_keeps_messages(tmp_path: Path, make_event: MakeEvent) -> None:
    """The disk that the bus may take can be changed between runs, together with the server's."""
    for run, limit in enumerate((2**30, 2**26, 2**31)):
        async with NatsServer(tmp_path / "nats", max_file_bytes=limit) as server:
            bus = await Bus.connect(server.url, name="t")
            await bus.prepare(Settings(bus_url=server.url, bus_max_file_bytes=limit))
            await bus.publish_event(make_event(run))
            info = await bus.jetstream.stream_info(EVENTS)
            assert info.state.messages == run + 1
            await bus.close()
    assert info.config.max_bytes == limit * 3 // 4


async def test_connects_to_whichever_of_several_servers_answers(nats_server: NatsServer) -> None:
    """Addresses of a cluster are separated by commas."""
    bus = await Bus.connect(f"nats://127.0.0.1:{free_port()}, {nats_server.url}", name="t", timeout_s=BOUND_S)
    assert bus.connected
    await bus.close()


async def test_published_message_is_stored_as_it_was(bus: Bus, make_event: MakeEvent) -> None:
    """What is published can be read back, with id and trace."""
    event = make_event(3)
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    await bus.publish_event(event, id="m1", trace=trace)
    found = await bus.jetstream.get_last_msg(EVENTS, subjects.event_of(event))
    assert found.data is not None
    envelope = decode(found.data)
    assert (envelope.id, envelope.trace, envelope.data) == ("m1", trace, event)


async def test_same_id_is_stored_once_and_no_id_each_time(bus: Bus, make_event: MakeEvent, stored: Stored) -> None:
    """The id is the server's deduplication key; without one nothing is dropped."""
    for _ in range(2):
        await bus.publish_event(make_event(1), id="same")
    assert await stored(EVENTS) == 1
    for _ in range(2):
        await bus.publish_event(make_event(1))
    assert await stored(EVENTS) == 3


async def test_cancellation_and_request_share_the_evaluations_stream(bus: Bus, stored: Stored) -> None:
    """Both reach the scheduler through one work queue."""
    await bus.publish(subjects.cancellation_requested(), CancellationRequested(evaluation_id="e"))
    assert await stored("EVALUATIONS") == 1


async def test_payload_over_the_limit_is_refused_before_it_is_sent(
    bus: Bus, make_event: MakeEvent, stored: Stored
) -> None:
    """The error says size, limit and what to do; the connection goes on."""
    with pytest.raises(PayloadTooLargeError, match=r"1048576 bytes: .*by reference") as caught:
        await bus.publish_event(make_event(1, message="x" * 2**20))
    assert caught.value.size > caught.value.limit == 2**20
    assert bus.connected
    await bus.publish_event(make_event(2))
    assert await stored(EVENTS) == 1


@pytest.mark.parametrize("id_", [None, "an-id"])
async def test_payload_of_exactly_the_limit_is_taken(
    bus: Bus, make_event: MakeEvent, stored: Stored, id_: str | None
) -> None:
    """The check counts what the server counts, headers included: not a byte is wasted, and none is too many."""

    def sized(length: int) -> BaseModel:
        return make_event(1, message="x" * length)

    headers = {"Nats-Msg-Id": id_} if id_ else None
    probe = 2**20 - 10_000
    spare = 2**20 - header_size(headers) - len(encode(sized(probe), id=id_))
    await bus.publish_event(sized(probe + spare), id=id_)
    with pytest.raises(PayloadTooLargeError):
        await bus.publish_event(sized(probe + spare + 1), id=id_)
    assert await stored(EVENTS) == 1
    assert bus.epoch == 1, "the server closes the connection of a client that sends too much"


async def test_subject_without_a_stream_is_not_ready(bus: Bus, make_event: MakeEvent) -> None:
    """Publishing where nothing is stored is an error, not a loss."""
    bus.retry_for_s = 0.3
    with pytest.raises(BusNotReadyError, match="prepare"):
        await bus.publish("mlms.v1.nowhere", make_event(1))


async def test_refused_message_says_why(bus: Bus, make_event: MakeEvent) -> None:
    """What the stream itself refuses is not retried."""
    await bus.jetstream.add_stream(name="SMALL", subjects=["small"], max_msg_size=10)
    with pytest.raises(RefusedError, match="size"):
        await bus.publish("small", make_event(1))


async def test_publish_waits_for_a_server_that_restarts(
    nats_server: NatsServer, bus: Bus, make_event: MakeEvent, stored: Stored
) -> None:
    """A message published while the server is away arrives when it is back, once."""
    await nats_server.stop()
    publishing = asyncio.create_task(bus.publish_event(make_event(1)))
    await asyncio.sleep(0.3)
    assert not publishing.done()
    await nats_server.start()
    async with asyncio.timeout(BOUND_S):
        await publishing
    assert await stored(EVENTS) == 1


async def test_publish_gives_up_when_the_server_stays_away(
    nats_server: NatsServer, bus: Bus, make_event: MakeEvent
) -> None:
    """Waiting is bounded."""
    await nats_server.stop()
    bus.retry_for_s = 0.3
    async with asyncio.timeout(BOUND_S):
        with pytest.raises(BusUnavailableError, match="publish"):
            await bus.publish_event(make_event(1))
    assert not bus.connected


async def test_connection_that_the_server_ends_with_an_error_is_made_again(
    bus: Bus, make_event: MakeEvent, stored: Stored, eventually: Eventually
) -> None:
    """The client library gives up for good after an error from the server; the bus does not."""
    client = bus.client
    client._max_payload = 2**30  # so that the library lets through what the server punishes
    await client.publish("mlms.v1.event.x.y", b"x" * (2**20 + 1))

    async def revived() -> bool:
        return bus.connected and bus.client is not client

    await eventually(revived)
    await bus.publish_event(make_event(1))
    assert await stored(EVENTS) == 1


async def test_close_is_quick_when_the_server_is_dead(nats_server: NatsServer, bus: Bus) -> None:
    """A service is gone in time also when the bus went first. Closing twice is fine."""
    os.kill(nats_server.pid, signal.SIGKILL)
    async with asyncio.timeout(BOUND_S):
        await bus.close(1.0)
        await bus.close(1.0)
    assert not bus.connected


@pytest.mark.usefixtures("bus")
async def test_close_is_quick_when_the_server_hangs(
    nats_server: NatsServer, settings: Settings, make_event: MakeEvent
) -> None:
    """A server that holds the connection and says nothing does not hold the client."""
    bus = await Bus.connect(settings.bus_url, name="hung")
    consumer_task = asyncio.create_task(bus.publish_event(make_event(1)))
    os.kill(nats_server.pid, signal.SIGSTOP)
    try:
        async with asyncio.timeout(BOUND_S):
            await bus.close(1.0)
            await asyncio.wait({consumer_task})
    finally:
        os.kill(nats_server.pid, signal.SIGCONT)
    assert consumer_task.exception() is None or isinstance(consumer_task.exception(), BusUnavailableError)


async def test_close_ends_those_who_wait(nats_server: NatsServer, bus: Bus, make_event: MakeEvent) -> None:
    """A publish that waits for the server ends at once when the connection is closed."""
    await nats_server.stop()
    publishing = asyncio.create_task(bus.publish_event(make_event(1)))
    await asyncio.sleep(0.1)
    await bus.close()
    async with asyncio.timeout(BOUND_S):
        with pytest.raises(BusUnavailableError, match="closed"):
            await publishing


async def test_no_task_is_left_after_close(nats_server: NatsServer, settings: Settings) -> None:
    """Closing ends all that connecting started."""
    before = asyncio.all_tasks()
    bus = await Bus.connect(settings.bus_url, name="t")
    await bus.prepare(settings)
    await bus.close()
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before
