"""Messages that cannot be used go to the DEAD stream, whole and with the reason, and stop nobody."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from bus import subjects
from bus.connection import Bus
from bus.consumers import Consumer, Received
from bus.streams import DEAD, EVALUATIONS, EVENTS
from schemas.codec import decode
from schemas.dead import DeadLetter
from schemas.evaluation import CancellationRequested
from schemas.events import TaskProgressed

MakeEvent = Callable[..., TaskProgressed]
Stored = Callable[[str], Awaitable[int]]
Eventually = Callable[[Callable[[], Awaitable[bool]]], Awaitable[None]]

WAIT_S = 10.0
SUBJECT = subjects.cancellation_requested()
Told = list[tuple[Received, str]]


@pytest.fixture
def told() -> Told:
    """What the caller was told of."""
    return []


@pytest.fixture
async def consumer(bus: Bus, told: Told) -> AsyncIterator[Consumer]:
    """A consumer of cancellations that allows two attempts."""

    async def on_dead(received: Received, reason: str) -> None:
        told.append((received, reason))

    made = Consumer(
        bus, stream=EVALUATIONS, durable="c", filters=[SUBJECT], ack_wait_s=30.0, max_attempts=2, on_dead=on_dead
    )
    yield made
    await made.close()


async def letter(bus: Bus, stream: str = EVALUATIONS) -> DeadLetter:
    found = await bus.jetstream.get_last_msg(DEAD, subjects.dead(stream))
    assert found.data is not None
    data = decode(found.data).data
    assert isinstance(data, DeadLetter)
    return data


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"\xc1 not msgpack", "not msgpack"),
        (b"", "not msgpack"),
        (b"\x01", "an envelope is a map"),
        (b"\x82\xa4type\xa7unknown\xa7version\x01", "unknown message type 'unknown'"),
    ],
)
async def test_undecodable_message_is_buried_and_the_others_come_through(
    bus: Bus, consumer: Consumer, told: Told, stored: Stored, payload: bytes, reason: str
) -> None:
    """Garbage between good messages is kept with the reason; the good ones are handed out."""
    await bus.publish(SUBJECT, CancellationRequested(evaluation_id="before"))
    await bus.store(SUBJECT, payload, {"X-From": "elsewhere"})
    await bus.publish(SUBJECT, CancellationRequested(evaluation_id="after"))
    received = await consumer.fetch(10, WAIT_S)
    assert [getattr(one.envelope and one.envelope.data, "evaluation_id", "") for one in received] == ["before", "after"]
    assert consumer.dead_letters == 1
    assert told == []
    buried = await letter(bus)
    assert reason in buried.reason
    assert (buried.payload, buried.headers, buried.sequence) == (payload, {"X-From": "elsewhere"}, 2)
    assert (buried.stream, buried.subject, buried.consumer, buried.deliveries) == (EVALUATIONS, SUBJECT, "c", 1)
    for one in received:
        await one.ack_sync()
    assert await stored(EVALUATIONS) == 0


async def test_undecodable_message_alone_is_an_empty_fetch(bus: Bus, consumer: Consumer) -> None:
    """Nothing usable is nothing, and a fetch that was given time goes on waiting."""
    await bus.store(SUBJECT, b"garbage")
    assert await consumer.fetch(10, 0) == []
    await bus.store(SUBJECT, b"garbage")
    fetching = asyncio.create_task(consumer.fetch(10, WAIT_S))
    await asyncio.sleep(0.2)
    await bus.publish(SUBJECT, CancellationRequested(evaluation_id="good"))
    assert len(await fetching) == 1
    assert consumer.dead_letters == 2


async def test_message_delivered_too_often_is_buried_and_the_caller_told(
    bus: Bus, consumer: Consumer, told: Told, stored: Stored, eventually: Eventually
) -> None:
    """After the allowed attempts the message is handed out no more; whoever asked can be told that it failed."""
    await bus.publish(SUBJECT, CancellationRequested(evaluation_id="poison"))
    for attempt in (1, 2):
        (received,) = await consumer.fetch(1, WAIT_S)
        assert received.attempt == attempt
        await received.nak()
    assert await consumer.fetch(1, 1.0) == []
    ((dead, reason),) = told
    assert dead.envelope is not None
    assert dead.envelope.data == CancellationRequested(evaluation_id="poison")
    assert "2 times" in reason
    buried = await letter(bus)
    assert (buried.reason, buried.deliveries) == (reason, 3)
    assert consumer.dead_letters == 1

    async def gone() -> bool:
        return await stored(EVALUATIONS) == 0

    await eventually(gone)


async def test_message_stays_when_the_caller_could_not_be_told(bus: Bus, stored: Stored) -> None:
    """The message is taken out only when the failure was told; the second time there is still one letter."""
    outcomes: list[Exception | None] = [RuntimeError("the bus is away"), None]
    calls = []

    async def on_dead(received: Received, reason: str) -> None:
        calls.append(received.attempt)
        if error := outcomes.pop(0):
            raise error

    consumer = Consumer(
        bus, stream=EVALUATIONS, durable="c", filters=[SUBJECT], ack_wait_s=0.5, max_attempts=1, on_dead=on_dead
    )
    await bus.publish(SUBJECT, CancellationRequested(evaluation_id="poison"))
    (received,) = await consumer.fetch(1, WAIT_S)
    await received.nak()
    assert await consumer.fetch(1, 0.2) == []
    assert (calls, consumer.dead_letters, await stored(EVALUATIONS)) == ([2], 0, 1)
    assert await consumer.fetch(1, 2.0) == []
    assert (calls, consumer.dead_letters, await stored(DEAD)) == ([2, 3], 1, 1)
    await consumer.close()


async def test_message_stays_in_its_stream_until_the_letter_is_stored(
    bus: Bus, consumer: Consumer, stored: Stored
) -> None:
    """Without a DEAD stream to write to, nothing is taken out of the other."""
    bus.retry_for_s = 0.2
    await bus.jetstream.delete_stream(DEAD)
    await bus.store(SUBJECT, b"garbage")
    assert await consumer.fetch(1, 0) == []
    assert (consumer.dead_letters, await stored(EVALUATIONS)) == (0, 1)


async def test_caller_buries_a_message_himself(
    bus: Bus, consumer: Consumer, stored: Stored, eventually: Eventually
) -> None:
    """A message that decodes and makes no sense is dead-lettered by whoever finds that out. Once."""
    await bus.publish(SUBJECT, CancellationRequested(evaluation_id="odd"), id="m1")
    (received,) = await consumer.fetch(1, WAIT_S)
    await received.dead_letter("makes no sense")
    await received.dead_letter("makes no sense")
    await received.ack()
    buried = await letter(bus)
    assert buried.reason == "makes no sense"
    assert buried.headers == {"Nats-Msg-Id": "m1"}
    assert decode(buried.payload).data == CancellationRequested(evaluation_id="odd")
    assert (consumer.dead_letters, await stored(DEAD)) == (1, 1)

    async def gone() -> bool:
        return await stored(EVALUATIONS) == 0

    await eventually(gone)


async def test_payload_as_large_as_the_limit_can_be_buried(bus: Bus, consumer: Consumer) -> None:
    """The letter has fields of its own: the payload is cut to leave them room, and the reason says so."""
    payload = b"\xc1" * 2**20
    await bus.store(SUBJECT, payload)
    assert await consumer.fetch(1, 0.5) == []
    buried = await letter(bus)
    assert consumer.dead_letters == 1
    assert 2**20 - 8192 < len(buried.payload) < 2**20
    assert f"{len(buried.payload)} of {2**20} bytes" in buried.reason


async def test_letters_of_events_leave_the_event_in_its_stream(bus: Bus, stored: Stored) -> None:
    """On a stream kept by limits, terminating a message only takes it from this consumer."""
    consumer = Consumer(
        bus, stream=EVENTS, durable="i", filters=[subjects.all_events()], ack_wait_s=0.3, max_attempts=None
    )
    await bus.store(subjects.event("x", "e1"), b"garbage")
    assert await consumer.fetch(1, 1.0) == []
    assert (await letter(bus, EVENTS)).stream == EVENTS
    assert (consumer.dead_letters, await stored(EVENTS), await stored(DEAD)) == (1, 1, 1)
    await consumer.close()
