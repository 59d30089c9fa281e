"""The server is killed while everybody works: nothing that was acknowledged is lost."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path

import psutil
import pytest

from bus import subjects
from bus.connection import Bus
from bus.consumers import Consumer, follow
from bus.server import NatsServer
from bus.streams import EVENTS, TASKS
from mlmodelscope import services
from mlmodelscope.directory import DataDirectory
from mlmodelscope.stack import free_port
from schemas.agents import Stack
from schemas.events import TaskProgressed
from schemas.settings import Settings

MakeEvent = Callable[..., TaskProgressed]
Stored = Callable[[str], Awaitable[int]]
Eventually = Callable[[Callable[[], Awaitable[bool]]], Awaitable[None]]

STACK = Stack(architecture="amd64", device="cpu", framework="onnxruntime", version="1.31.1")
WAIT_S = 60.0
KILLS = 3


async def kill_again_and_again(server: NatsServer) -> None:
    for _ in range(KILLS):
        await asyncio.sleep(0.4)
        os.kill(server.pid, signal.SIGKILL)
        await server.wait()
        await server.restart()


@pytest.mark.parametrize("pipelined", [False, True])
async def test_what_was_acknowledged_is_delivered(
    nats_server: NatsServer, bus: Bus, make_event: MakeEvent, pipelined: bool
) -> None:
    """SIGKILL to the server, three times, under a publisher and a consumer: every acknowledged message arrives."""
    consumer = Consumer(
        bus, stream=EVENTS, durable="ingest", filters=[subjects.all_events()], ack_wait_s=1.0, max_attempts=None
    )
    publisher = bus.stream_publisher(max_pending=64)
    acknowledged: set[int] = set()
    seen: set[int] = set()
    ended = asyncio.Event()
    published = asyncio.Event()

    async def publish() -> None:
        number = 0
        while not ended.is_set():
            block = range(number, number + 20)
            for number in block:
                if pipelined:
                    await publisher.publish_event(make_event(number))
                else:
                    await bus.publish_event(make_event(number))
            if pipelined:
                await publisher.flush()
            acknowledged.update(block)
            number += 1
            await asyncio.sleep(0.005)
        published.set()

    async def consume() -> None:
        while not published.is_set() or not acknowledged <= seen:
            for received in await consumer.fetch(50, 0.5):
                assert received.envelope is not None
                assert isinstance(received.envelope.data, TaskProgressed)
                seen.add(received.envelope.data.done)
                await received.ack()

    async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as work:
        work.create_task(publish())
        work.create_task(consume())
        await kill_again_and_again(nats_server)
        ended.set()
    assert len(acknowledged) > 100
    assert acknowledged <= seen
    assert bus.epoch == KILLS + 1
    await consumer.close()


@pytest.mark.parametrize("killed", [False, True])
async def test_acknowledged_task_is_not_done_twice(
    nats_server: NatsServer, bus: Bus, make_event: MakeEvent, killed: bool
) -> None:
    """A task whose acknowledgement the server has noted stays done over a restart; one in work is delivered again.

    A server that was killed may have forgotten the delivery, and then counts it as the first again.
    """
    consumer = Consumer(
        bus,
        stream=TASKS,
        durable=subjects.stack_consumer(STACK),
        filters=[subjects.task(STACK)],
        ack_wait_s=1.0,
        max_attempts=None,
    )
    for number in (1, 2):
        await bus.publish(subjects.task(STACK), make_event(number))
    done, working = [(await consumer.fetch(1, 10))[0] for _ in range(2)]
    await done.ack_sync()
    if killed:
        os.kill(nats_server.pid, signal.SIGKILL)
        await nats_server.wait()
    await nats_server.restart()
    (again,) = await consumer.fetch(2, 10)
    assert again.sequence == working.sequence
    assert again.attempt == 2 or (killed and again.attempt == 1)
    await again.ack_sync()
    assert await consumer.fetch(2, 0) == []
    await consumer.close()


async def test_acknowledgement_given_while_the_server_is_away_counts(
    nats_server: NatsServer, bus: Bus, make_event: MakeEvent, stored: Stored, eventually: Eventually
) -> None:
    """A task that ends during an outage is acknowledged when the server is back."""
    consumer = Consumer(
        bus, stream=TASKS, durable="d", filters=[subjects.task(STACK)], ack_wait_s=30.0, max_attempts=None
    )
    for number in (1, 2):
        await bus.publish(subjects.task(STACK), make_event(number))
    first, second = [(await consumer.fetch(1, 10))[0] for _ in range(2)]
    await nats_server.stop()
    await first.ack()
    settling = asyncio.create_task(second.ack_sync())
    await asyncio.sleep(0.2)
    await nats_server.start()
    async with asyncio.timeout(WAIT_S):
        await settling

    async def all_done() -> bool:
        return await stored(TASKS) == 0

    await eventually(all_done)
    await consumer.close()


async def test_a_server_that_could_not_write_is_started_again_when_there_is_room(
    tmp_path: Path, make_event: MakeEvent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failed write the server keeps its streams closed, room or not; `serve bus` does not leave it at that."""
    monkeypatch.setattr(services, "LOOK_S", 0.02)
    settings = Settings(data_dir=tmp_path, bus_url=f"nats://127.0.0.1:{free_port()}")
    stop = asyncio.Event()
    serving = asyncio.create_task(services.serve_bus(settings, stop), name="bus-under-test")
    async with asyncio.timeout(WAIT_S):
        connection = await Bus.connect(settings.bus_url, name="test")
        try:
            await connection.prepare(settings)
            await connection.publish_event(make_event(1))
            announced = DataDirectory(tmp_path).announced("bus")
            assert announced is not None
            # No file may grow any more, as on a full disk; the limit goes with the process.
            psutil.Process(announced["pid"]).rlimit(psutil.RLIMIT_FSIZE, (1, 1))
            await connection.publish_event(make_event(2))
            now = DataDirectory(tmp_path).announced("bus")
            assert now is not None and now["pid"] != announced["pid"] and now["url"] == announced["url"]
            found = []
            async with aclosing(follow(connection, "e1")) as events:
                async for event in events:
                    assert isinstance(event.data, TaskProgressed)
                    found.append(event.data.done)
                    if 2 in found:
                        break
            assert found == [1, 2]
        finally:
            await connection.close()
            stop.set()
            await serving
