"""Ingest on a real bus and a real engine: everything told is in the store once, whatever happens in between."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from bus.connection import Bus
from bus.consumers import Consumer
from bus.server import NatsServer
from bus.streams import DEAD, EVENTS
from bus.subjects import all_dead, all_events, event
from schemas.base import new_id
from schemas.dead import DeadLetter
from schemas.events import TaskProgressed
from schemas.settings import Settings
from services import ingest, insertion, records
from services.errors import StoreError, StoreUnavailableError
from services.rows import rows_of
from services.store import Store, open_store
from tests import sample_events as sample
from tests.clickhouse_server import ClickHouseServer

VIEWS = ("mlms_evaluations", "mlms_tasks", "mlms_predictions", "mlms_queries", "mlms_spans", "mlms_metrics")
WHOLE = {"mlms_evaluations": 1, "mlms_tasks": 2, "mlms_predictions": 40, "mlms_queries": 60, "mlms_spans": 20,
         "mlms_metrics": 8}  # fmt: skip


@pytest.fixture
def store(settings: Settings) -> Iterator[Store]:
    """The embedded store of the test's stack."""
    opened = open_store(settings)
    yield opened
    opened.close()


@asynccontextmanager
async def ingesting(settings: Settings, store: Store) -> AsyncIterator[asyncio.Event]:
    """Run ingest inside the block and give its stop event; leaving the block stops it."""
    stop = asyncio.Event()
    task = asyncio.create_task(ingest.run(settings, stop, store), name="ingest")
    try:
        yield stop
        stop.set()
        await task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def until(condition: Callable[[], Awaitable[bool]], what: str, timeout_s: float = 30.0) -> None:
    """Wait until `condition` holds."""
    deadline = time.monotonic() + timeout_s
    while not await condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {timeout_s} s"
        await asyncio.sleep(0.02)


async def counts(store: Store, evaluation_id: str) -> dict[str, object]:
    """Return how many rows of an evaluation each view shows."""
    sql = "SELECT count() AS n FROM {view} WHERE evaluation_id = {{id:String}}"

    def ask() -> dict[str, object]:
        return {view: store.query(sql.format(view=view), {"id": evaluation_id}).rows[0][0] for view in VIEWS}

    return await asyncio.to_thread(ask)


async def is_in(store: Store, evaluation_id: str) -> None:
    """Wait until an evaluation is in the store, complete."""

    async def there() -> bool:
        try:
            found = await asyncio.to_thread(records.get_evaluation, store, evaluation_id)
        except StoreUnavailableError:
            return False
        return found is not None and found.status == "completed"

    await until(there, f"{evaluation_id} in the store")
    assert await counts(store, evaluation_id) == WHOLE


async def all_acknowledged(bus: Bus) -> None:
    """Wait until the consumer has nothing undelivered and nothing unacknowledged."""

    async def settled() -> bool:
        info = await bus.jetstream.consumer_info(EVENTS, ingest.DURABLE)
        return bool(info.num_pending == 0 and info.num_ack_pending == 0)

    await until(settled, "acknowledgement of every event")


async def dead_letters(bus: Bus, count: int) -> list[DeadLetter]:
    """Return the letters on the DEAD stream, `count` of them."""
    consumer = Consumer(bus, stream=DEAD, durable=new_id(), filters=[all_dead()], ack_wait_s=30, max_attempts=None)
    letters: list[DeadLetter] = []
    while len(letters) < count:
        found = await consumer.fetch(100, 5.0)
        assert found, f"{len(letters)} of {count} dead letters"
        letters += [r.envelope.data for r in found if r.envelope and isinstance(r.envelope.data, DeadLetter)]
    await consumer.close()
    return letters


async def publish_whole(bus: Bus, evaluation_id: str) -> None:
    for told in sample.whole_evaluation(evaluation_id):
        await bus.publish_event(told)


async def test_events_become_rows_and_are_acknowledged(settings: Settings, bus: Bus, store: Store) -> None:
    """An evaluation told on the bus is read back whole; events that make no rows are acknowledged too."""
    async with ingesting(settings, store):
        progress = TaskProgressed(evaluation_id="e1", task_id="t", attempt=1, phase="fetch", time_ns=1)
        await bus.publish_event(progress)
        await publish_whole(bus, "e1")
        await is_in(store, "e1")
        await all_acknowledged(bus)
    found = records.get_evaluation(store, "e1")
    assert found is not None
    assert found.tasks[0].record == sample.record()


async def test_an_evaluation_told_twice_counts_once(settings: Settings, bus: Bus, store: Store) -> None:
    """Everything delivered a second time leaves every count as it was."""
    async with ingesting(settings, store):
        for _ in range(2):
            await publish_whole(bus, "twice")
            await is_in(store, "twice")
            await all_acknowledged(bus)
        assert await counts(store, "twice") == WHOLE


async def test_poison_is_put_aside_and_the_rest_goes_in(settings: Settings, bus: Bus, store: Store) -> None:
    """Undecodable bytes and rows that fit no column go to DEAD with the reason; their neighbours are inserted."""
    too_many = sample.queried("poison").model_copy(update={"items": (2**40,) * 30})
    attempt = sample.started("poison").model_copy(update={"attempt": -1})
    await bus.store(event("queries_recorded", "poison"), b"\xc1 not msgpack")
    await bus.publish_event(too_many)
    await bus.publish_event(attempt)
    await publish_whole(bus, "poison")
    async with ingesting(settings, store):
        await is_in(store, "poison")
        await all_acknowledged(bus)
    letters = await dead_letters(bus, 3)
    reasons = " | ".join(sorted(letter.reason for letter in letters))
    assert "cannot be decoded" in reasons
    assert "queries: " in reasons
    assert "column items (UInt32)" in reasons
    assert "tasks: " in reasons
    assert "column attempt (UInt32)" in reasons


async def test_an_event_that_breaks_the_conversion_is_put_aside(
    settings: Settings, bus: Bus, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An event of which no rows can be made is dead-lettered with what went wrong."""
    real = rows_of

    def conversion(envelope: object) -> object:
        if "poisoned" in repr(envelope):
            raise ZeroDivisionError("no rows from this")
        return real(envelope)  # type: ignore[arg-type]

    monkeypatch.setattr(ingest, "rows_of", conversion)
    async with ingesting(settings, store):
        await bus.publish_event(sample.started("poisoned"))
        await publish_whole(bus, "healthy")
        await is_in(store, "healthy")
        await all_acknowledged(bus)
    assert "ZeroDivisionError: no rows from this" in (await dead_letters(bus, 1))[0].reason


async def test_what_is_in_hand_when_told_to_stop_is_not_lost(settings: Settings, bus: Bus, store: Store) -> None:
    """Stopped in the middle of a stream of events, again and again: every event is in the store in the end."""
    for k in range(6):
        await publish_whole(bus, f"stop-{k}")
    for _ in range(3):
        async with ingesting(settings, store):
            await asyncio.sleep(0.05)  # long enough to have begun, or not: both must be right
    async with ingesting(settings, store):
        for k in range(6):
            await is_in(store, f"stop-{k}")
        await all_acknowledged(bus)


async def test_events_survive_a_restart_of_the_bus(
    settings: Settings, bus: Bus, store: Store, nats_server: NatsServer
) -> None:
    """The bus goes away and comes back: ingest goes on."""
    async with ingesting(settings, store):
        await publish_whole(bus, "before")
        await is_in(store, "before")
        await nats_server.stop()
        await nats_server.start()
        await publish_whole(bus, "after")
        await is_in(store, "after")


@pytest.mark.slow
async def test_nothing_is_lost_while_clickhouse_is_away(
    settings: Settings, bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Away at the start, killed later, ingest stopped meanwhile: it says so, and all is inserted when it is back."""
    monkeypatch.setattr(insertion, "LONGEST_PAUSE_S", 0.5)
    server = ClickHouseServer(tmp_path / "clickhouse")
    away = settings.model_copy(update={"clickhouse_url": server.url})
    store = open_store(away)

    async def said() -> bool:
        return any("the store takes no rows" in record.message for record in caplog.records)

    try:
        async with ingesting(away, store):
            await publish_whole(bus, "early")
            await until(said, "the log's word that ClickHouse is away")
            await asyncio.to_thread(server.start)
            await is_in(store, "early")
            await asyncio.to_thread(server.kill)
            caplog.clear()
            await publish_whole(bus, "late")
            await until(said, "the log's word that ClickHouse is away")
        info = await bus.jetstream.consumer_info(EVENTS, ingest.DURABLE)
        assert info.num_pending + info.num_ack_pending == len(sample.whole_evaluation("late"))
        await asyncio.to_thread(server.start)
        async with ingesting(away, store):
            await is_in(store, "late")
            await all_acknowledged(bus)
        assert await counts(store, "early") == WHOLE
    finally:
        store.close()
        server.kill()


@pytest.mark.slow
async def test_a_hanging_store_does_not_keep_ingest_from_stopping(settings: Settings, bus: Bus, tmp_path: Path) -> None:
    """Told to stop while the server is silent, ingest returns and gives back; closing ends the call that hangs."""
    server = ClickHouseServer(tmp_path / "clickhouse")
    away = settings.model_copy(update={"clickhouse_url": server.url})
    store = open_store(away)
    await asyncio.to_thread(server.start)
    assert server.process is not None
    try:
        async with ingesting(away, store):
            await publish_whole(bus, "answered")
            await is_in(store, "answered")
            await all_acknowledged(bus)
            server.process.send_signal(signal.SIGSTOP)
            await bus.publish_event(sample.started("hang"))

            async def in_hand() -> bool:
                info = await bus.jetstream.consumer_info(EVENTS, ingest.DURABLE)
                return bool(info.num_ack_pending > 0)

            await until(in_hand, "the event's arrival at ingest")
        hanging = asyncio.create_task(asyncio.to_thread(store.query, "SELECT 1 AS one"), name="hanging-query")
        await asyncio.sleep(0.2)  # until it hangs, or has not begun: both must end
        store.close()
        with pytest.raises(StoreError):
            await hanging
    finally:
        store.close()
        server.kill()
    consumer = Consumer(
        bus, stream=EVENTS, durable=ingest.DURABLE, filters=[all_events()], ack_wait_s=30, max_attempts=None
    )
    again = await consumer.fetch(1, 10.0)
    assert [received.attempt for received in again] == [2]
    await consumer.close()


async def test_a_server_that_is_not_there_is_transient_and_named(settings: Settings) -> None:
    """Opening does not need the server; using it says which server cannot be reached."""
    store = open_store(settings.model_copy(update={"clickhouse_url": "clickhouse://127.0.0.1:1/default"}))
    with pytest.raises(StoreUnavailableError, match=r"127\.0\.0\.1"):
        await asyncio.to_thread(store.query, "SELECT 1")
    store.close()


PROGRAM = """
import asyncio, sys
from pathlib import Path
from schemas.settings import Settings
from services import ingest
from services.store import open_store
settings = Settings(data_dir=Path(sys.argv[1]), bus_url=sys.argv[2])
store = open_store(settings)
print("open", flush=True)
asyncio.run(ingest.run(settings, asyncio.Event(), store))
"""


@pytest.mark.slow
async def test_an_ingest_killed_loses_nothing(settings: Settings, bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGKILL in the middle of inserting: what was acknowledged is in the store, the rest is delivered again."""
    for k in range(40):
        await publish_whole(bus, f"kill-{k:02}")
    total = 40 * len(sample.whole_evaluation("kill"))
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, str(settings.data_dir), settings.bus_url, stdout=asyncio.subprocess.PIPE
    )
    assert child.stdout is not None
    assert await asyncio.wait_for(child.stdout.readline(), 30) == b"open\n"

    async def begun() -> bool:
        with suppress(Exception):  # the consumer is made by the child
            return bool((await bus.jetstream.consumer_info(EVENTS, ingest.DURABLE)).ack_floor.stream_seq > 0)
        return False

    await until(begun, "the first acknowledgement")
    os.kill(child.pid, signal.SIGKILL)
    await child.wait()
    acknowledged = (await bus.jetstream.consumer_info(EVENTS, ingest.DURABLE)).ack_floor.stream_seq
    store = open_store(settings)
    try:
        whole = acknowledged * 40 // total
        for k in range(whole):
            assert await counts(store, f"kill-{k:02}") == WHOLE, f"acknowledged and lost: kill-{k:02}"
        # What the dead one held would come back after its acknowledgement wait: half a minute too long for a test.
        await bus.jetstream.delete_consumer(EVENTS, ingest.DURABLE)
        async with ingesting(settings, store):
            for k in range(40):
                await is_in(store, f"kill-{k:02}")
    finally:
        store.close()
