"""Durable consumers: sharing, redelivery, attempts, and giving back."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from bus import subjects
from bus.connection import Bus
from bus.consumers import Consumer, Received
from bus.errors import BusError, BusNotReadyError, BusUnavailableError
from bus.server import NatsServer
from bus.streams import EVENTS, TASKS
from schemas.agents import Stack
from schemas.events import TaskProgressed
from schemas.settings import Settings

MakeEvent = Callable[..., TaskProgressed]
Stored = Callable[[str], Awaitable[int]]
Eventually = Callable[[Callable[[], Awaitable[bool]]], Awaitable[None]]
MakeConsumer = Callable[..., Consumer]

STACK = Stack(architecture="amd64", device="cpu", framework="onnxruntime", version="1.31.1")
OTHER = Stack(architecture="amd64", device="cpu", framework="pytorch", version="2.13.0+cpu")
WAIT_S = 10.0


@pytest.fixture
async def consumer_of(bus: Bus) -> AsyncIterator[MakeConsumer]:
    """Make consumers of the tasks of one stack, as its agents do."""
    made: list[Consumer] = []

    def make(agent_id: str | None = None, *, stack: Stack = STACK, ack_wait_s: float = 1.0) -> Consumer:
        durable = subjects.agent_consumer(agent_id) if agent_id else subjects.stack_consumer(stack)
        filters = [subjects.task(stack, agent_id)]
        made.append(
            Consumer(bus, stream=TASKS, durable=durable, filters=filters, ack_wait_s=ack_wait_s, max_attempts=None)
        )
        return made[-1]

    yield make
    for consumer in made:
        await consumer.close()


def numbers(received: list[Received]) -> list[int]:
    found = []
    for one in received:
        assert one.envelope is not None
        assert isinstance(one.envelope.data, TaskProgressed)
        found.append(one.envelope.data.done)
    return found


async def test_acknowledged_message_leaves_the_work_queue(
    bus: Bus, consumer_of: MakeConsumer, make_event: MakeEvent, stored: Stored
) -> None:
    """A task that is done is gone, and is not delivered again."""
    await bus.publish(subjects.task(STACK), make_event(1))
    consumer = consumer_of()
    (received,) = await consumer.fetch(1, WAIT_S)
    assert (received.attempt, received.subject) == (1, subjects.task(STACK))
    await received.ack_sync()
    await received.nak()
    assert await stored(TASKS) == 0
    assert await consumer.fetch(1, 0.1) == []


async def test_fetch_returns_what_there_is_without_waiting_for_more(
    bus: Bus, consumer_of: MakeConsumer, make_event: MakeEvent
) -> None:
    """Fewer messages than asked for come at once, in order, and the limit is kept."""
    for number in range(5):
        await bus.publish(subjects.task(STACK), make_event(number))
    consumer = consumer_of()
    async with asyncio.timeout(WAIT_S):
        assert numbers(await consumer.fetch(3, 3600)) == [0, 1, 2]
        assert numbers(await consumer.fetch(100, 3600)) == [3, 4]


async def test_fetch_without_waiting_still_asks(bus: Bus, consumer_of: MakeConsumer, make_event: MakeEvent) -> None:
    """A timeout of zero takes what is there."""
    await bus.publish(subjects.task(STACK), make_event(7))
    assert numbers(await consumer_of().fetch(1, 0)) == [7]


async def test_message_published_later_ends_the_wait(
    bus: Bus, consumer_of: MakeConsumer, make_event: MakeEvent
) -> None:
    """A waiting fetch brings what comes."""
    fetching = asyncio.create_task(consumer_of().fetch(10, WAIT_S))
    await asyncio.sleep(0.2)
    await bus.publish(subjects.task(STACK), make_event(1))
    assert numbers(await fetching) == [1]


async def test_agents_of_a_stack_share_its_tasks(bus: Bus, consumer_of: MakeConsumer, make_event: MakeEvent) -> None:
    """Each task goes to one of them, none to another stack, and one agent's own to it alone."""
    for number in range(6):
        await bus.publish(subjects.task(STACK), make_event(number))
    await bus.publish(subjects.task(STACK, "a2"), make_event(100))
    first, second, own, other = consumer_of(), consumer_of(), consumer_of("a2"), consumer_of(stack=OTHER)
    taken = []
    for _ in range(3):
        taken += numbers(await first.fetch(1, WAIT_S)) + numbers(await second.fetch(1, WAIT_S))
    assert sorted(taken) == list(range(6))
    assert await first.fetch(1, 0) == await second.fetch(1, 0) == await other.fetch(1, 0) == []
    assert numbers(await own.fetch(10, WAIT_S)) == [100]


async def test_unacknowledged_task_goes_to_another_agent(
    bus: Bus, consumer_of: MakeConsumer, make_event: MakeEvent
) -> None:
    """After the acknowledgement wait a task whose agent is silent is delivered to the next, as attempt 2."""
    await bus.publish(subjects.task(STACK), make_event(1))
    silent, other = consumer_of(), consumer_of()
    (lost,) = await silent.fetch(1, WAIT_S)
    assert await other.fetch(1, 0) == []
    (again,) = await other.fetch(1, WAIT_S)
    assert (lost.attempt, again.attempt, again.sequence) == (1, 2, lost.sequence)


async def test_task_in_progress_is_kept(bus: Bus, consumer_of: MakeConsumer, make_event: MakeEvent) -> None:
    """While an agent says that it works, the task is nobody else's, for longer than the acknowledgement wait."""
    await bus.publish(subjects.task(STACK), make_event(1))
    busy, other = consumer_of(), consumer_of()
    (received,) = await busy.fetch(1, WAIT_S)
    for _ in range(10):
        await received.in_progress()
        assert await other.fetch(1, 0.2) == []
    (again,) = await other.fetch(1, WAIT_S)
    assert again.attempt == 2


async def test_given_back_message_comes_again_at_once_or_after_its_delay(
    bus: Bus, consumer_of: MakeConsumer, make_event: MakeEvent
) -> None:
    """Giving back does not wait for the acknowledgement wait, and each delivery counts."""
    await bus.publish(subjects.task(STACK), make_event(1))
    consumer = consumer_of(ack_wait_s=60.0)
    (first,) = await consumer.fetch(1, WAIT_S)
    await first.nak()
    (second,) = await consumer.fetch(1, WAIT_S)
    await second.nak(0.5)
    assert await consumer.fetch(1, 0) == []
    (third,) = await consumer.fetch(1, WAIT_S)
    assert [one.attempt for one in (first, second, third)] == [1, 2, 3]


async def test_cancelled_fetch_loses_nothing(
    bus: Bus, consumer_of: MakeConsumer, make_event: MakeEvent, eventually: Eventually
) -> None:
    """What a cancelled fetch had asked for is there for the next fetch, with no redelivery needed."""
    consumer = consumer_of(ack_wait_s=60.0)
    taken: list[int] = []

    async def all_taken() -> bool:
        fetching = asyncio.create_task(consumer.fetch(3, WAIT_S))
        await bus.publish(subjects.task(STACK), make_event(len(sent)))
        sent.append(len(sent))
        await asyncio.sleep(0)
        fetching.cancel()
        await asyncio.wait({fetching})
        if not fetching.cancelled():
            taken.extend(numbers(fetching.result()))
        return len(sent) >= 100

    sent: list[int] = []
    await eventually(all_taken)
    while received := await consumer.fetch(100, 0.2):
        assert all(one.attempt == 1 for one in received)
        taken += numbers(received)
    assert taken == sent


async def test_closing_gives_back_what_was_not_handed_out(
    bus: Bus, consumer_of: MakeConsumer, make_event: MakeEvent
) -> None:
    """A message that arrived in a process that stops goes to another at once; the durable stays."""
    leaving, staying = consumer_of(ack_wait_s=60.0), consumer_of(ack_wait_s=60.0)
    fetching = asyncio.create_task(leaving.fetch(1, WAIT_S))
    await asyncio.sleep(0.2)
    fetching.cancel()
    await asyncio.wait({fetching})
    await bus.publish(subjects.task(STACK), make_event(1))
    await bus.client.flush()
    await leaving.close()
    await leaving.close()
    assert numbers(await staying.fetch(1, WAIT_S)) == [1]
    with pytest.raises(BusUnavailableError, match="closed"):
        await leaving.fetch(1, 0)
    assert (await bus.jetstream.consumer_info(TASKS, subjects.stack_consumer(STACK))).num_ack_pending == 1


async def test_only_an_agents_own_consumer_ends_with_inactivity(bus: Bus, consumer_of: MakeConsumer) -> None:
    """A dead agent leaves nothing for ever; a stack's consumer is for good."""
    await consumer_of("a1").fetch(1, 0)
    await consumer_of().fetch(1, 0)
    own = await bus.jetstream.consumer_info(TASKS, subjects.agent_consumer("a1"))
    shared = await bus.jetstream.consumer_info(TASKS, subjects.stack_consumer(STACK))
    assert own.config.inactive_threshold
    assert not shared.config.inactive_threshold


async def test_consumer_that_the_server_lost_is_made_again(
    bus: Bus, consumer_of: MakeConsumer, make_event: MakeEvent
) -> None:
    """A deleted consumer does not stop the work, not even in the middle of a fetch."""
    consumer = consumer_of()
    assert await consumer.fetch(1, 0) == []
    fetching = asyncio.create_task(consumer.fetch(1, WAIT_S))
    await asyncio.sleep(0.2)
    await bus.jetstream.delete_consumer(TASKS, subjects.stack_consumer(STACK))
    await bus.publish(subjects.task(STACK), make_event(1))
    assert numbers(await fetching) == [1]


async def test_work_goes_on_over_a_connection_made_anew(
    bus: Bus, consumer_of: MakeConsumer, make_event: MakeEvent, eventually: Eventually
) -> None:
    """When the client itself had to be replaced, a consumer made on the old one works on the new."""
    consumer, client = consumer_of(), bus.client
    for number in (1, 2):
        await bus.publish(subjects.task(STACK), make_event(number))
    (first,) = await consumer.fetch(1, WAIT_S)
    client._max_payload = 2**30  # so that the library lets through what the server punishes
    await client.publish("too.large", b"x" * (2**20 + 1))

    async def replaced() -> bool:
        return bus.connected and bus.client is not client

    await eventually(replaced)
    await first.ack_sync()
    (second,) = await consumer.fetch(1, WAIT_S)
    assert numbers([first, second]) == [1, 2]
    await second.ack_sync()


async def test_message_that_waited_too_long_is_left_to_others(
    bus: Bus, consumer_of: MakeConsumer, make_event: MakeEvent
) -> None:
    """A message that a cancelled fetch left behind is not handed out once it may be another's."""
    idle, other = consumer_of(ack_wait_s=0.5), consumer_of(ack_wait_s=0.5)
    fetching = asyncio.create_task(idle.fetch(1, WAIT_S))
    await asyncio.sleep(0.1)
    fetching.cancel()
    await asyncio.wait({fetching})
    await bus.publish(subjects.task(STACK), make_event(1))
    (taken,) = await other.fetch(1, WAIT_S)
    await taken.ack_sync()
    assert await idle.fetch(1, 0) == []


async def test_overlapping_filters_on_a_work_queue_are_refused(bus: Bus, consumer_of: MakeConsumer) -> None:
    """Two consumers that would both get a task are an error, not a task done twice."""
    await consumer_of().fetch(1, 0)
    greedy = Consumer(
        bus, stream=TASKS, durable="greedy", filters=[subjects.all_tasks()], ack_wait_s=1.0, max_attempts=None
    )
    with pytest.raises(BusError, match="greedy"):
        await greedy.fetch(1, 0)


async def test_several_filters_are_one_consumer(bus: Bus, make_event: MakeEvent) -> None:
    """A consumer may take some types of event and leave the others."""
    filters = [subjects.event("task_progressed", "*"), subjects.event("task_failed", "*")]
    consumer = Consumer(bus, stream=EVENTS, durable="some", filters=filters, ack_wait_s=5.0, max_attempts=None)
    await bus.publish_event(make_event(1))
    await bus.publish(subjects.event("something_else", "e1"), make_event(2))
    assert numbers(await consumer.fetch(10, WAIT_S)) == [1]
    assert await consumer.fetch(10, 0) == []
    await consumer.close()


async def test_missing_stream_is_not_ready(nats_server: NatsServer, settings: Settings) -> None:
    """Without `prepare` the error says what is missing."""
    bus = await Bus.connect(settings.bus_url, name="t")
    consumer = Consumer(bus, stream=TASKS, durable="d", filters=["mlms.v1.task.>"], ack_wait_s=1.0, max_attempts=None)
    try:
        with pytest.raises(BusNotReadyError, match="prepare"):
            await consumer.fetch(1, 0.2)
    finally:
        await bus.close()


async def test_fetch_ends_empty_while_the_server_is_away(nats_server: NatsServer, consumer_of: MakeConsumer) -> None:
    """An outage looks like silence, for as long as was asked for."""
    consumer = consumer_of()
    assert await consumer.fetch(1, 0) == []
    await nats_server.stop()
    async with asyncio.timeout(WAIT_S):
        assert await consumer.fetch(1, 0.5) == []
