"""What the tests of the bus share."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from bus.connection import Bus
from schemas.events import TaskProgressed

Eventually = Callable[[Callable[[], Awaitable[bool]]], Awaitable[None]]
MakeEvent = Callable[..., TaskProgressed]

DEADLINE_S = 20.0


@pytest.fixture
def eventually() -> Eventually:
    """Wait until a condition holds; fail when it does not within the deadline."""

    async def wait(condition: Callable[[], Awaitable[bool]]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not await condition():
            assert time.monotonic() < deadline, "the condition did not come to hold"
            await asyncio.sleep(0.02)

    return wait


@pytest.fixture
def make_event() -> MakeEvent:
    """Make a small event: number `done` of evaluation `evaluation_id`."""

    def make(done: int, evaluation_id: str = "e1", message: str = "") -> TaskProgressed:
        return TaskProgressed(
            evaluation_id=evaluation_id,
            task_id="t1",
            attempt=1,
            phase="measure",
            done=done,
            message=message,
            time_ns=time.time_ns(),
        )

    return make


@pytest.fixture
async def stored(bus: Bus) -> Callable[[str], Awaitable[int]]:
    """Count the messages of a stream."""

    async def count(stream: str) -> int:
        return (await bus.jetstream.stream_info(stream)).state.messages

    return count
