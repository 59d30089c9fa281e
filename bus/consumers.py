"""Durable consumers of the streams, and what becomes of messages that cannot be used."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence

import nats.errors
import nats.js.errors
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from pydantic import BaseModel

from bus.connection import Bus
from bus.errors import BusError, BusNotReadyError, BusUnavailableError
from bus.letters import bury
from bus.pull import ConsumerLostError, PullInbox
from bus.subjects import is_agent_consumer
from bus.tail import follow
from bus.wire import TRANSIENT
from schemas.codec import Envelope, decode
from schemas.errors import UndecodableError

__all__ = ["Consumer", "Received", "follow"]

log = logging.getLogger(__name__)

AGENT_CONSUMER_INACTIVE_S = 8 * 86_400.0
"""An agent's own consumer goes after this long without a fetch: longer than any task's deadline may be."""
MAX_UNACKNOWLEDGED = 50_000
_SLICE_S = 1.0
_PAUSE_S = 0.05
_STREAM_MISSING = 10059


class Received:
    """One message, to be settled once: acknowledged, given back or dead-lettered. Settling again does nothing.

    Until it is settled it belongs to this process for the consumer's `ack_wait_s`, counted again from every
    `in_progress`. Every method raises BusUnavailableError when the connection was closed.
    """

    def __init__(self, bus: Bus, message: Msg, count: Callable[[], None]) -> None:
        self._bus = bus
        self._message = message
        self._count = count
        self._settled = False
        self.envelope: Envelope[BaseModel] | None = None
        """None while undecoded, and for ever when it cannot be decoded."""

    @property
    def subject(self) -> str:
        """Where it was published."""
        return str(self._message.subject)

    @property
    def payload(self) -> bytes:
        """The bytes as they came."""
        return bytes(self._message.data)

    @property
    def attempt(self) -> int:
        """How many times it has been delivered, this one included."""
        return int(self._message.metadata.num_delivered)

    @property
    def sequence(self) -> int:
        """Its number in the stream."""
        return int(self._message.metadata.sequence.stream)

    async def ack(self) -> None:
        """Tell the server that it is done. Returns before the server has heard it."""
        await self._settle(b"+ACK")

    async def ack_sync(self, timeout_s: float | None = None) -> None:
        """Tell the server that it is done, and return when the server has noted it. Raises BusUnavailableError."""
        if not self._settled:
            await self._bus.retrying(
                lambda: self._bus.client.request(self._message.reply, b"+ACK", timeout=2.0),
                f"acknowledge {self.subject}",
                timeout_s,
            )
            self._settled = True

    async def nak(self, delay_s: float = 0) -> None:
        """Give it back, to be delivered again after `delay_s`, to this or another process."""
        await self._settle(b'-NAK {"delay": %d}' % int(delay_s * 1e9) if delay_s > 0 else b"-NAK")

    async def in_progress(self) -> None:
        """Say that it is still being worked on."""
        if not self._settled:
            await self._send(b"+WPI")

    async def dead_letter(self, reason: str) -> None:
        """Put it on the DEAD stream with the reason, then take it out of its own. Counted.

        Raises BusUnavailableError, and the message stays, when the letter cannot be stored.
        """
        await self.bury(reason)
        await self.terminate()

    async def bury(self, reason: str) -> None:
        """Put it on the DEAD stream and leave it where it is, for this package alone."""
        if not self._settled:
            await bury(self._bus, self._message, reason)

    async def terminate(self) -> None:
        """Take a buried message out of its stream and count it, for this package alone."""
        if not self._settled:
            await self._settle(b"+TERM")
            self._count()

    async def _settle(self, word: bytes) -> None:
        if not self._settled:
            await self._send(word)
            self._settled = True

    async def _send(self, word: bytes) -> None:
        try:
            # While the connection is down the client keeps it, and sends it when the server is back.
            await self._bus.client.publish(self._message.reply, word)
        except (nats.errors.Error, OSError) as error:
            raise BusUnavailableError(f"cannot answer for {self.subject}: {error}") from error


class Consumer:
    """A durable pull consumer of one stream. Makes itself on the server, again if the server lost it.

    Processes that name the same `durable` share its messages. Messages that cannot be decoded, and those delivered
    more than `max_attempts` times, go to the DEAD stream with the reason, are counted in `dead_letters` and are not
    handed out; for the latter `on_dead` is awaited after the letter is stored and before the message is taken out, so
    it is called again if the process dies in between, or if it raises. One task at a time may fetch.

    A durable outlives the process; an agent's own (`subjects.agent_consumer`) goes when it was not fetched from for
    `inactive_s`. The tasks it had stay in the stream.
    """

    def __init__(
        self,
        bus: Bus,
        *,
        stream: str,
        durable: str,
        filters: Sequence[str],
        ack_wait_s: float,
        max_attempts: int | None,
        on_dead: Callable[[Received, str], Awaitable[None]] | None = None,
        inactive_s: float | None = None,
    ) -> None:
        self._bus = bus
        self._stream = stream
        self._durable = durable
        self._filters = list(filters)
        self._ack_wait_s = ack_wait_s
        self._max_attempts = max_attempts
        self._on_dead = on_dead
        self._inactive_s = inactive_s or (AGENT_CONSUMER_INACTIVE_S if is_agent_consumer(durable) else None)
        self._inbox: PullInbox | None = None
        self._exists = False
        self._closed = False
        self.dead_letters = 0
        """Messages put on the DEAD stream by this object."""

    async def fetch(self, count: int, timeout_s: float) -> list[Received]:
        """Return up to `count` messages: those there are, or else the first that comes within `timeout_s`; else [].

        Waits out a server that restarts. Raises BusNotReadyError when the stream is not there, BusError when the
        server refuses the consumer (filters that overlap another's on a work queue), BusUnavailableError after `close`,
        its own or the bus's.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            if self._closed or self._bus.closed:
                raise BusUnavailableError(f"cannot fetch from {self._durable}: it was closed")
            left_s = deadline - time.monotonic()
            missing: ConsumerLostError | BusNotReadyError | None = None
            try:
                if await self._bus.wait_connected(left_s):
                    inbox = await self._ready()
                    await self._bus.unless_lost(inbox.pull(count, min(max(left_s, 0), _SLICE_S)))
                    if received := await self._usable(inbox, inbox.take(count, self._ack_wait_s)):
                        return received
            except ConsumerLostError:
                self._exists = False
                await asyncio.sleep(_PAUSE_S)
            except BusNotReadyError as error:  # also while a server is coming up
                missing = error
                await asyncio.sleep(_PAUSE_S)
            except TRANSIENT as error:
                log.debug("fetch from %s: %s", self._durable, error)
                await asyncio.sleep(_PAUSE_S)
            if time.monotonic() >= deadline:
                if missing is not None:
                    raise missing
                return []

    async def close(self) -> None:
        """Give back what was fetched and not handed out. The durable stays on the server. May be called twice."""
        self._closed = True
        inbox, self._inbox = self._inbox, None
        if inbox is None:
            return
        for message in await inbox.close():
            try:
                await self._received(message).nak()
            except BusUnavailableError:
                return  # the server delivers them again after the acknowledgement wait

    async def _ready(self) -> PullInbox:
        """Make the consumer unless it is known to be there, and return the inbox on the client of this moment."""
        if not self._exists:
            await self._make()
            self._exists = True
        if self._inbox is None or self._inbox.client is not self._bus.client:
            inbox = PullInbox(self._bus.client, self._stream, self._durable)
            await inbox.open()
            if self._inbox is not None:
                inbox.inherit(self._inbox)
            self._inbox = inbox
        return self._inbox

    async def _make(self) -> None:
        one = self._filters[0] if len(self._filters) == 1 else None
        config = ConsumerConfig(
            name=self._durable,
            durable_name=self._durable,
            deliver_policy=DeliverPolicy.ALL,
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=self._ack_wait_s,
            # Attempts are counted here: with a limit of its own the server would silently stop delivering.
            max_deliver=-1,
            max_ack_pending=MAX_UNACKNOWLEDGED,
            filter_subject=one,
            filter_subjects=None if one else self._filters,
            inactive_threshold=self._inactive_s,
        )
        try:
            await self._bus.unless_lost(self._bus.jetstream.add_consumer(self._stream, config))
        except nats.js.errors.ServiceUnavailableError:
            raise
        except nats.js.errors.APIError as error:
            if error.err_code == _STREAM_MISSING:
                raise BusNotReadyError(f"there is no stream {self._stream}: Bus.prepare makes it") from error
            raise BusError(f"the server refuses consumer {self._durable}: {error.description}") from error

    async def _usable(self, inbox: PullInbox, messages: list[Msg]) -> list[Received]:
        found = []
        for position, message in enumerate(messages):
            received = self._received(message)
            try:
                if await self._accept(received):
                    found.append(received)
            except asyncio.CancelledError:
                inbox.put_back([*(kept._message for kept in found), *messages[position:]])
                raise
        return found

    async def _accept(self, received: Received) -> bool:
        try:
            received.envelope = decode(received.payload)
        except UndecodableError as error:
            await self._reject(received, f"cannot be decoded: {error}", None)
            return False
        if self._max_attempts is not None and received.attempt > self._max_attempts:
            reason = f"delivered {received.attempt - 1} times, at most {self._max_attempts} are allowed"
            await self._reject(received, reason, self._on_dead)
            return False
        return True

    async def _reject(
        self, received: Received, reason: str, told: Callable[[Received, str], Awaitable[None]] | None
    ) -> None:
        log.warning("%s message %d of %s: %s", self._stream, received.sequence, received.subject, reason)
        try:
            await received.bury(reason)
            if told is not None:
                await told(received, reason)
            await received.terminate()
        except Exception:  # whatever failed, the message is still in its stream and will be delivered again
            log.exception("message %d of %s stays in %s", received.sequence, received.subject, self._stream)

    def _received(self, message: Msg) -> Received:
        return Received(self._bus, message, self._count)

    def _count(self) -> None:
        self.dead_letters += 1
