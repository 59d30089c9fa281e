"""Ingest: events from the bus into the store, in batches, acknowledged after they are inserted."""

import asyncio
import contextlib
import logging
import time

from bus.connection import Bus
from bus.consumers import Consumer, Received
from bus.errors import BusError, BusNotReadyError
from bus.streams import EVENTS
from bus.subjects import all_events
from schemas.settings import Settings
from services.insertion import Inserter, Pending, StoppedError, bury
from services.rows import count_rows, rows_of
from services.stopping import end_tasks, until_stopped
from services.store import Store

DURABLE = "ingest"
ACK_WAIT_S = 30.0
"""Messages of an ingest that died go to another after this long; those in hand are kept alive well within it."""
FETCH_MESSAGES = 64
"""Asked for at once: a message holds up to thousands of rows."""
FETCH_WAIT_S = 0.5
"""How long an idle ingest may take to notice that it is told to stop."""
LAST_LOOK_S = 0.005
"""How long the last look for messages of a batch takes, when there are none."""
STOP_S = 2.5

log = logging.getLogger(__name__)


async def run(settings: Settings, stop: asyncio.Event, store: Store) -> None:
    """Ingest until `stop` is set, then insert what is in hand and return, within five seconds.

    What could not be inserted by then is given back to the bus. Several processes may run this on one server
    store. Raises BusUnavailableError when the bus cannot be reached at the start; later it is waited for. The
    store is not closed.
    """
    timeout_s = settings.bus_connect_timeout_s
    bus = await until_stopped(
        Bus.connect(settings.bus_url, name=DURABLE, timeout_s=timeout_s), stop, name="ingest-connect"
    )
    if bus is None:
        return
    consumer = Consumer(
        bus, stream=EVENTS, durable=DURABLE, filters=[all_events()], ack_wait_s=ACK_WAIT_S, max_attempts=None
    )
    try:
        await until_stopped(bus.prepare(settings), stop, name="ingest-prepare")
        await _Ingest(settings, stop, bus, consumer, store).run()
    finally:
        await consumer.close()
        await bus.close()


class _Ingest:
    """A reader that gathers the next batch while a writer inserts the last; and what keeps both batches ours."""

    def __init__(self, settings: Settings, stop: asyncio.Event, bus: Bus, consumer: Consumer, store: Store) -> None:
        self._settings = settings
        self._stop = stop
        self._bus = bus
        self._consumer = consumer
        self._inserter = Inserter(store, stop)
        self._batches: asyncio.Queue[list[Pending] | None] = asyncio.Queue(maxsize=1)
        self._held: dict[int, Received] = {}

    async def run(self) -> None:
        """Return when stopped. Raises what the reader or the writer failed with."""
        reader = asyncio.create_task(self._read(), name="ingest-reader")
        writer = asyncio.create_task(self._write(), name="ingest-writer")
        keeper = asyncio.create_task(self._keep_alive(), name="ingest-keeper")
        stopped = asyncio.create_task(self._stop.wait(), name="ingest-stop")
        try:
            await asyncio.wait({reader, writer, keeper, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if self._stop.is_set():
                await asyncio.wait({reader, writer}, timeout=STOP_S)
        finally:
            await end_tasks(reader, writer, keeper, stopped)
            await self._give_back()
        for task in (reader, writer, keeper):
            if task.done() and not task.cancelled():
                task.result()

    async def _read(self) -> None:
        while not self._stop.is_set():
            if batch := await self._gather():
                await self._batches.put(batch)
        await self._batches.put(None)

    async def _gather(self) -> list[Pending]:
        """Return a batch: full, or what came within the batch wait after its first message."""
        batch = await self._fetch(FETCH_WAIT_S)
        if not batch:
            return []
        deadline = time.monotonic() + self._settings.ingest_batch_wait_s
        rows = sum(count_rows(item.rows) for item in batch)
        while rows < self._settings.ingest_batch_rows and (left_s := deadline - time.monotonic()) > 0:
            if len(batch) < FETCH_MESSAGES:
                # Events that come one by one are of evaluations in work: waking up for each would take the
                # processor from them.
                await asyncio.sleep(left_s)
            more = await self._fetch(max(deadline - time.monotonic(), LAST_LOOK_S))
            rows += sum(count_rows(item.rows) for item in more)
            batch += more
        return batch

    async def _fetch(self, wait_s: float) -> list[Pending]:
        try:
            found = await self._consumer.fetch(FETCH_MESSAGES, wait_s)
        except BusNotReadyError as error:
            log.warning("making the streams again: %s", error)
            with contextlib.suppress(BusError):  # the next fetch says so again
                await self._bus.prepare(self._settings)
            return []
        pending = []
        for received in found:
            assert received.envelope is not None, "the consumer hands out decoded messages only"
            self._held[received.sequence] = received
            try:
                pending.append(Pending(received, rows_of(received.envelope)))
            except Exception as error:  # noqa: BLE001 - whatever an event's content makes fail, it fails for ever: poison
                await bury(received, f"no rows can be made of it: {type(error).__name__}: {error}")
                self._held.pop(received.sequence, None)
        return pending

    async def _write(self) -> None:
        while (batch := await self._batches.get()) is not None:
            try:
                good = await self._inserter.insert(batch)
            except StoppedError:
                return
            for item in good:
                with contextlib.suppress(BusError):  # it comes again, and its rows replace themselves
                    await item.received.ack()
            for item in batch:
                self._held.pop(item.received.sequence, None)

    async def _keep_alive(self) -> None:
        """Tell the bus that messages are in work for as long as the store is slow or away."""
        while True:
            await asyncio.sleep(ACK_WAIT_S / 3)
            for received in list(self._held.values()):
                try:
                    await received.in_progress()
                except BusError:
                    break  # the bus is away; what it delivers again replaces itself

    async def _give_back(self) -> None:
        for received in self._held.values():
            try:
                await received.nak()
            except BusError:
                return  # the bus delivers them again after the acknowledgement wait
