"""Reading a stream from its start, or the state of a bucket, and then whatever comes, without gap or repetition."""

import asyncio
import logging
from collections.abc import AsyncGenerator

import nats.js.errors
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from pydantic import BaseModel

from bus import subjects
from bus.connection import Bus
from bus.errors import BusError, BusNotReadyError, BusUnavailableError
from bus.pull import ConsumerLostError, PullInbox
from bus.streams import EVENTS
from bus.wire import TRANSIENT
from schemas.base import new_id
from schemas.codec import Envelope, decode
from schemas.errors import UndecodableError

log = logging.getLogger(__name__)

INACTIVE_S = 60.0
"""A reader that vanished leaves its consumer on the server for this long."""
BATCH = 256
_SLICE_S = 1.0
_PAUSE_S = 0.05
_STREAM_MISSING = 10059


class Tail:
    """An unacknowledged reader in stream order that begins again where it was when anything is lost.

    With DeliverPolicy.LAST_PER_SUBJECT it begins again with the whole state instead, and counts `beginnings`.
    Deliveries are numbered per consumer, so a gap in the numbers shows a message that was lost on the way.
    """

    def __init__(self, bus: Bus, stream: str, subject: str, policy: DeliverPolicy) -> None:
        self._bus = bus
        self._stream = stream
        self._subject = subject
        self._policy = policy
        self._inbox: PullInbox | None = None
        self._epoch = -1
        self._delivered = 0
        self._sequence = 0
        self._name = ""
        self.beginnings = 0
        """How many times reading began, the first time included."""
        self.behind: int | None = None
        """Messages on the server that have not been read, as of the last answer; None while not known."""

    async def read(self, wait_s: float) -> list[Msg]:
        """Return the next messages, or [] when none came within `wait_s`. Waits out a server that restarts.

        Raises BusNotReadyError when the stream is not there, BusUnavailableError when the connection was closed.
        """
        if self._bus.closed:
            raise BusUnavailableError(f"cannot read {self._subject}: the connection was closed")
        if not await self._bus.wait_connected(wait_s):
            return []
        try:
            inbox = await self._ready()
            await self._bus.unless_lost(inbox.pull(BATCH, min(wait_s, _SLICE_S)))
        except ConsumerLostError:
            await self._restart_later()
            return []
        except TRANSIENT as error:
            log.debug("reading %s: %s", self._subject, error)
            await self._restart_later()
            return []
        return await self._in_order(inbox.take(BATCH))

    async def close(self) -> None:
        """Leave nothing on the server. May be called twice."""
        inbox, self._inbox = self._inbox, None
        if inbox is None:
            return
        await inbox.close()
        if self._bus.connected:
            try:
                await asyncio.wait_for(self._bus.jetstream.delete_consumer(self._stream, self._name), _SLICE_S)
            except (*TRANSIENT, nats.js.errors.Error):
                pass  # the server drops it by itself, after INACTIVE_S

    async def _in_order(self, messages: list[Msg]) -> list[Msg]:
        found = []
        for message in messages:
            meta = message.metadata
            if meta.consumer != self._name:
                continue  # from before it began again
            if meta.sequence.consumer != self._delivered + 1:
                await self._restart_later()
                break
            self._delivered += 1
            self._sequence = meta.sequence.stream
            self.behind = meta.num_pending
            found.append(message)
        return found

    async def _restart_later(self) -> None:
        self._epoch = -1
        self.behind = None
        await asyncio.sleep(_PAUSE_S)

    async def _ready(self) -> PullInbox:
        """Return the inbox of a consumer made on this very connection: the server may have sent more to the last."""
        if self._inbox is not None and self._epoch == self._bus.epoch:
            return self._inbox
        await self.close()
        epoch = self._bus.epoch
        resumed = self._sequence > 0 and self._policy != DeliverPolicy.LAST_PER_SUBJECT
        self._name = f"tail-{new_id()}"
        config = ConsumerConfig(
            name=self._name,
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE if resumed else self._policy,
            opt_start_seq=self._sequence + 1 if resumed else None,
            ack_policy=AckPolicy.NONE,
            filter_subject=self._subject,
            inactive_threshold=INACTIVE_S,
            mem_storage=True,
            num_replicas=1,
        )
        try:
            info = await self._bus.unless_lost(self._bus.jetstream.add_consumer(self._stream, config))
        except nats.js.errors.ServiceUnavailableError:
            raise
        except nats.js.errors.APIError as error:
            if error.err_code == _STREAM_MISSING:
                raise BusNotReadyError(f"there is no stream {self._stream}: Bus.prepare makes it") from error
            raise BusError(f"the server refuses to read {self._subject}: {error.description}") from error
        self.behind = info.num_pending or 0
        self._delivered = 0
        if self._policy == DeliverPolicy.NEW and not resumed and info.delivered is not None:
            self._sequence = info.delivered.stream_seq  # where "new" began, should it have to begin again
        inbox = PullInbox(self._bus.client, self._stream, self._name)
        await inbox.open()
        self._inbox = inbox
        self._epoch = epoch
        self.beginnings += 1
        return inbox


async def follow(bus: Bus, evaluation_id: str, *, from_start: bool = True) -> AsyncGenerator[Envelope[BaseModel], None]:
    """Yield the events of one evaluation in order, each once: those there are (unless not `from_start`), then live.

    Never ends by itself: the caller stops at the event that is final for him, and closes the iterator (`aclosing`).
    Server restarts are waited out. Raises BusUnavailableError when the connection is closed.
    """
    policy = DeliverPolicy.ALL if from_start else DeliverPolicy.NEW
    tail = Tail(bus, EVENTS, subjects.events_of(evaluation_id), policy)
    try:
        while True:
            for message in await tail.read(_SLICE_S):
                try:
                    yield decode(message.data)
                except UndecodableError as error:
                    # Ingest puts it on the DEAD stream; a reader of progress has no use for it.
                    log.warning("an event of %s cannot be decoded: %s", evaluation_id, error)
    finally:
        await tail.close()
