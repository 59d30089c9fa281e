"""The entries of a KV bucket, now and as they change."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Iterable

from nats.aio.msg import Msg
from nats.js.api import DeliverPolicy
from pydantic import BaseModel

from bus.connection import Bus
from bus.errors import BusUnavailableError
from bus.streams import Bucket, bucket_stream, key_subject
from bus.tail import Tail
from schemas.codec import decode
from schemas.errors import UndecodableError

log = logging.getLogger(__name__)

_SLICE_S = 1.0
_PAUSE_S = 0.05


class _State:
    """Entries by subject, kept up to date from a tail."""

    def __init__(self, bus: Bus, bucket: Bucket, keys: str) -> None:
        self.entries: dict[str, BaseModel] = {}
        self.changed = True
        self._bus = bus
        self._tail = Tail(bus, bucket_stream(bucket), key_subject(bucket, keys), DeliverPolicy.LAST_PER_SUBJECT)
        self._beginnings = 0

    @property
    def complete(self) -> bool:
        """Whether all that the server had when it was last asked is in."""
        return self._beginnings > 0 and self._tail.behind == 0

    async def advance(self) -> None:
        """Take in what there is; wait a while for something when there is nothing and nothing is left to tell."""
        messages = await self._tail.read(0 if self.changed else _SLICE_S)
        if self._tail.beginnings != self._beginnings:
            self._beginnings = self._tail.beginnings
            self.entries.clear()
            self.changed = True
        elif not messages and self.changed:
            await asyncio.sleep(_PAUSE_S)  # the server is away
        self._apply(messages)

    async def close(self) -> None:
        await self._tail.close()

    def _apply(self, messages: Iterable[Msg]) -> None:
        for message in messages:
            self.changed = True
            self.entries.pop(message.subject, None)
            if not message.data:
                continue  # deleted, or the server's note that a lease ended
            try:
                self.entries[message.subject] = decode(message.data).data
            except UndecodableError as error:
                # Written by something newer or foreign: the others must stay readable.
                log.warning("%s cannot be decoded: %s", message.subject, error)


async def state_of(bus: Bus, bucket: Bucket, keys: str = ">") -> dict[str, BaseModel]:
    """Return the entries of a bucket by subject. Raises BusNotReadyError, BusUnavailableError."""
    state = _State(bus, bucket, keys)
    deadline = time.monotonic() + bus.retry_for_s
    try:
        while not state.complete:
            if time.monotonic() > deadline:
                raise BusUnavailableError(f"cannot read {bucket}: the NATS server at {bus.url} does not answer")
            await state.advance()
    finally:
        await state.close()
    return state.entries


async def watch(bus: Bus, bucket: Bucket, keys: str = ">") -> AsyncGenerator[dict[str, BaseModel], None]:
    """Yield the entries by subject, at once and after every change; changes that come together are one.

    After a lost connection the whole state is read again, so nothing that went meanwhile is missed. Raises
    BusNotReadyError, BusUnavailableError when the connection is closed.
    """
    state = _State(bus, bucket, keys)
    try:
        while True:
            await state.advance()
            if state.changed and state.complete:
                state.changed = False
                yield dict(state.entries)
    finally:
        await state.close()
