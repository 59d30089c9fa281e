"""Rows through the platform: published by one publisher, and from JetStream into the embedded store.

Query rows and spans, beside the same rows through a bare loop of msgpack (for publishing) and of msgpack and chdb
(for ingest) with nothing of ours in it, measured in the same run. Targets: 400k rows/s published, 100k rows/s
inserted and acknowledged.
"""

import asyncio
import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import chdb
import msgpack
import pyarrow as pa
from pydantic import BaseModel

from benchmarks.report import print_rows
from bus.connection import Bus
from bus.server import NatsServer
from bus.streams import EVENTS
from schemas.base import new_id
from schemas.events import QueriesRecorded
from schemas.settings import Settings
from schemas.trace import SpansRecorded
from services import ingest
from services.store import Store, open_store

ROWS = 400_000
ROWS_A_MESSAGE = 500
BARE_BATCH_ROWS = 20_000
BARE_ROUNDS = 3


def query_event(evaluation_id: str, first: int, count: int) -> QueriesRecorded:
    """Return a message of query rows."""
    times = tuple(range(first * 1000, (first + count) * 1000, 1000))
    return QueriesRecorded(
        evaluation_id=evaluation_id,
        task_id="task",
        attempt=1,
        query_index=tuple(range(first, first + count)),
        warmup=(False,) * count,
        scheduled_ns=times,
        issued_ns=times,
        completed_ns=times,
        items=(1,) * count,
    )


def span_event(evaluation_id: str, first: int, count: int) -> SpansRecorded:
    """Return a message of spans, every fourth with attributes."""
    numbers = range(first, first + count)
    return SpansRecorded(
        evaluation_id=evaluation_id,
        task_id="task",
        agent="agent",
        process=1,
        trace_id=(f"{1:032x}",) * count,
        span_id=tuple(f"{k:016x}" for k in numbers),
        parent_id=(f"{0:016x}",) * count,
        level=(3,) * count,
        name=tuple(f"layer {k % 78}" for k in numbers),
        start_ns=tuple(1_780_000_000_000_000_000 + k * 1000 for k in numbers),
        duration_ns=(900,) * count,
        thread=(1,) * count,
        stream=(0,) * count,
        simulated=(False,) * count,
        attributes=tuple({"op": "conv", "shape": "1x64x56x56"} if k % 4 == 0 else {} for k in numbers),
    )


async def publish(url: str, told: list[BaseModel]) -> float:
    """Return how many seconds one publisher takes, the last acknowledgement included."""
    bus = await Bus.connect(url, name="benchmark")
    publisher = bus.stream_publisher()
    begun = time.perf_counter()
    for message in told:
        await publisher.publish_event(message)
    await publisher.flush()
    elapsed = time.perf_counter() - begun
    await bus.close()
    return elapsed


async def consume(settings: Settings, store: Store) -> float:
    """Return how many seconds ingest takes from its start until every event is acknowledged."""
    bus = await Bus.connect(settings.bus_url, name="benchmark")
    stop = asyncio.Event()
    begun = time.perf_counter()
    task = asyncio.create_task(ingest.run(settings, stop, store), name="ingest")
    while True:
        await asyncio.sleep(0.01)
        with contextlib.suppress(Exception):  # ingest makes the consumer
            info = await bus.jetstream.consumer_info(EVENTS, ingest.DURABLE)
            if info.num_pending == 0 and info.num_ack_pending == 0 and (info.delivered.consumer_seq or 0) > 0:
                break
    elapsed = time.perf_counter() - begun
    stop.set()
    await task
    await bus.close()
    return elapsed


async def live_latency(settings: Settings, store: Store) -> list[float]:
    """Return milliseconds from publishing one event, in an idle system, until its row is seen by a query."""
    bus = await Bus.connect(settings.bus_url, name="benchmark")
    stop = asyncio.Event()
    task = asyncio.create_task(ingest.run(settings, stop, store), name="ingest")
    found = []
    for _ in range(20):
        await asyncio.sleep(0.1)
        evaluation_id = new_id()
        begun = time.perf_counter()
        await bus.publish_event(query_event(evaluation_id, 0, 1))
        sql, bound = "SELECT 1 AS one FROM queries WHERE evaluation_id = {id:String}", {"id": evaluation_id}
        while not (await asyncio.to_thread(store.query, sql, bound)).rows:
            pass
        found.append((time.perf_counter() - begun) * 1e3)
    stop.set()
    await task
    await bus.close()
    return found


def bare_publish(plain: list[dict[str, object]]) -> float:
    """Return how many seconds msgpack alone takes for the same messages."""
    begun = time.perf_counter()
    for data in plain:
        msgpack.packb({"id": "x" * 32, "type": "t", "version": 1, "time": 1, "trace": None, "data": data})
    return time.perf_counter() - begun


def bare_insert(directory: Path, payloads: list[bytes], columns: tuple[str, ...]) -> float:
    """Return how many seconds a loop of msgpack, Arrow and chdb takes: no bus, no validation, no keys."""
    connection = chdb.connect(str(directory))  # type: ignore[no-untyped-call]
    kinds: dict[type, tuple[pa.DataType, str]] = {
        bool: (pa.bool_(), "Bool"), int: (pa.int64(), "Int64"), str: (pa.string(), "String"),
        dict: (pa.map_(pa.string(), pa.string()), "Map(String, String)"),
    }  # fmt: skip
    first = msgpack.unpackb(payloads[0])
    schema = pa.schema([(name, kinds[type(first[name][0])][0]) for name in columns])
    types = ", ".join(f"{name} {kinds[type(first[name][0])][1]}" for name in columns)
    connection.query(f"CREATE TABLE bare ({types}) ENGINE = MergeTree ORDER BY {columns[0]}")
    per_insert = max(1, BARE_BATCH_ROWS // ROWS_A_MESSAGE)
    begun = time.perf_counter()
    for start in range(0, len(payloads), per_insert):
        messages = [msgpack.unpackb(payload) for payload in payloads[start : start + per_insert]]
        merged = [[value for message in messages for value in message[name]] for name in columns]
        batch = pa.RecordBatch.from_arrays(
            [pa.array(v, f.type) for v, f in zip(merged, schema, strict=True)], schema=schema
        )
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as writer:
            writer.write_batch(batch)
        with connection.send_insert("INSERT INTO bare SETTINGS async_insert = 0", "ArrowStream") as stream:
            stream.append(memoryview(sink.getvalue()))
            stream.finish()
    elapsed = time.perf_counter() - begun
    connection.close()
    return elapsed


@contextlib.contextmanager
def opened(settings: Settings) -> Iterator[Store]:
    """Lend the embedded store."""
    store = open_store(settings)
    try:
        yield store
    finally:
        store.close()


async def measure(name: str, make: Callable[[str, int, int], BaseModel]) -> list[dict[str, object]]:
    """Return the figures of one kind of rows."""
    told = [make("benchmark", first, ROWS_A_MESSAGE) for first in range(0, ROWS, ROWS_A_MESSAGE)]
    plain = [message.model_dump() for message in told]
    columns = tuple(key for key, value in plain[0].items() if isinstance(value, tuple))
    payloads = [bytes(msgpack.packb(data)) for data in plain]
    figures: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as scratch:
        async with NatsServer(Path(scratch) / "nats", max_file_bytes=10 * 2**30) as server:
            settings = Settings(data_dir=Path(scratch) / "data", bus_url=server.url)
            bus = await Bus.connect(server.url, name="benchmark")
            await bus.prepare(settings)
            await bus.close()
            bare = statistics.median(bare_publish(plain) for _ in range(BARE_ROUNDS))
            figures.append(row(f"{name} published", await publish(server.url, told), "msgpack", bare, 400_000))
            bare = bare_insert(Path(scratch) / "bare", payloads, columns)
            with opened(settings) as store:
                ours = await consume(settings, store)
                figures.append(row(f"{name} inserted, acknowledged", ours, "msgpack + chdb", bare, 100_000))
                # Only the names of this module's two tables are put into SQL.
                (stored,) = store.query(f"SELECT count() AS n FROM {name} FINAL").rows[0]  # noqa: S608
                assert stored == ROWS, f"{stored} of {ROWS} rows are in the store"
                if name == "queries":
                    latencies = sorted(await live_latency(settings, store))
                    print(
                        f"one event published in an idle system is a visible row after (median) "
                        f"{statistics.median(latencies):.0f} ms, worst of {len(latencies)} {latencies[-1]:.0f} ms"
                    )
    return figures


def row(what: str, ours_s: float, bare_name: str, bare_s: float, target: int) -> dict[str, object]:
    """Return one line of the table."""
    return {
        "rows": what,
        "rows/s": f"{ROWS / ours_s:,.0f}",
        "target": f"{target:,}",
        "bare loop": bare_name,
        "its rows/s": f"{ROWS / bare_s:,.0f}",
        "ratio": f"{bare_s / ours_s:.2f}",
    }


def main() -> None:
    queries = asyncio.run(measure("queries", query_event))
    print_rows([*queries, *asyncio.run(measure("spans", span_event))])


if __name__ == "__main__":
    main()
