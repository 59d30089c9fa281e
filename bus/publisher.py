"""Publishing many messages without waiting for each one's acknowledgement."""

import asyncio
import contextlib
import itertools
import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from pydantic import BaseModel

from bus import subjects
from bus.errors import BusError, BusNotReadyError, BusUnavailableError
from schemas.codec import encode

if TYPE_CHECKING:
    from bus.connection import Bus

RESEND_AFTER_S = 5.0
"""Silence for so long means that a message or its acknowledgement was lost."""
_CHECK_S = 0.1
_YIELD_AFTER = 32
_BYTES_AS_MESSAGE = 2048


@dataclass(slots=True)
class _Unacknowledged:
    subject: str
    payload: bytes
    headers: dict[str, str] | None
    epoch: int = -1
    sent_s: float = 0.0
    no_stream: bool = False


class BatchPublisher:
    """A window of messages on their way. For one event loop and one task at a time.

    What a lost connection leaves unacknowledged is sent again, so it may arrive twice (not with an `id`, inside the
    server's deduplication window) and later than what was published after it.
    """

    def __init__(self, bus: "Bus", *, max_pending: int = 512) -> None:
        self._bus = bus
        self._max_pending = max(1, max_pending)
        self._pending: dict[str, _Unacknowledged] = {}
        self._tokens = itertools.count(1)
        self._changed = asyncio.Event()
        self._progress_s = 0.0
        self._unyielded = 0
        self._failure: BusError | None = None
        self._client: Client | None = None
        self._inbox = ""
        self._subscription: Subscription | None = None

    @property
    def pending(self) -> int:
        """Messages not acknowledged yet."""
        return len(self._pending)

    async def publish(self, subject: str, data: BaseModel, *, id: str | None = None, trace: str | None = None) -> None:
        """Send one message. Waits only when the window is full, until half of it is acknowledged.

        Raises PayloadTooLargeError (nothing was sent), and BusUnavailableError when nothing was acknowledged for the
        bus's `retry_for_s`.
        """
        headers = {"Nats-Msg-Id": id} if id else None
        payload = encode(data, id=id, trace=trace)
        self._bus.check_size(subject, payload, headers)
        if len(self._pending) >= self._max_pending:
            await self._until(self._max_pending // 2)
        if not self._pending:
            self._progress_s = time.monotonic()
        token = str(next(self._tokens))
        self._pending[token] = _Unacknowledged(subject, payload, headers)
        await self._send(token, self._pending[token])
        self._unyielded += 1 + len(payload) // _BYTES_AS_MESSAGE
        if self._unyielded >= _YIELD_AFTER:
            # Sending never suspends by itself: let acknowledgements and everybody else in. Not every time, as each
            # turn of the loop is a system call for what has gathered.
            self._unyielded = 0
            await asyncio.sleep(0)

    async def publish_event(self, data: BaseModel, *, id: str | None = None, trace: str | None = None) -> None:
        """Send one event under its type and its evaluation's id. Raises as `publish` does."""
        await self.publish(subjects.event_of(data), data, id=id, trace=trace)

    async def flush(self) -> None:
        """Return when all that was published is stored.

        Raises the first failure since the last flush: BusError when the server refused a message; BusUnavailableError
        (BusNotReadyError when no stream takes it) when nothing was acknowledged for the bus's `retry_for_s`; what is
        pending is then forgotten.
        """
        try:
            await self._until(0)
        finally:
            await self._unsubscribe()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    async def _until(self, level: int) -> None:
        """Wait until at most `level` messages are pending."""
        while len(self._pending) > level:
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), _CHECK_S)
            except TimeoutError:
                await self._resend()
            if time.monotonic() - self._progress_s > self._bus.retry_for_s or self._bus.closed:
                raise self._given_up()

    def _given_up(self) -> BusError:
        count, message = len(self._pending), next(iter(self._pending.values()))
        self._pending.clear()
        if message.no_stream:
            return BusNotReadyError(f"no stream takes {message.subject}; Bus.prepare makes it ({count} messages)")
        return BusUnavailableError(f"{count} messages were not acknowledged by the NATS server at {self._bus.url}")

    async def _resend(self) -> None:
        """Send again what this connection has not carried, or what has been without an answer for long."""
        if not self._bus.connected:
            return
        before = time.monotonic() - RESEND_AFTER_S
        for token, message in list(self._pending.items()):
            if token in self._pending and (message.epoch != self._bus.epoch or message.sent_s < before):
                await self._send(token, message)

    async def _send(self, token: str, message: _Unacknowledged) -> None:
        if not self._bus.connected:
            return  # sent by _resend: the client's own buffer would be a second copy
        epoch = self._bus.epoch
        try:
            await self._subscribe()
            await self._bus.client.publish(
                message.subject, message.payload, reply=f"{self._inbox}.{token}", headers=message.headers
            )
        except (nats.errors.ConnectionClosedError, nats.errors.OutboundBufferLimitError, OSError):
            return  # the connection went in between: sent by _resend
        message.epoch = epoch
        message.sent_s = time.monotonic()

    async def _subscribe(self) -> None:
        client = self._bus.client
        if self._client is client and self._subscription is not None:
            return
        self._inbox = client.new_inbox()
        self._subscription = await client.subscribe(
            f"{self._inbox}.*", cb=self._on_acknowledged, pending_msgs_limit=0, pending_bytes_limit=0
        )
        self._client = client

    async def _unsubscribe(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None and self._client is self._bus.client and not self._client.is_closed:
            # Suppressed: the connection went, and the subscription with it.
            with contextlib.suppress(nats.errors.Error, OSError):
                await subscription.unsubscribe()

    async def _on_acknowledged(self, message: Msg) -> None:
        token = message.subject.rpartition(".")[2]
        pending = self._pending.get(token)
        if pending is None:
            return  # the second acknowledgement of a message that was sent twice
        if message.headers and message.headers.get("Status"):
            pending.sent_s = 0.0  # no stream listens, as while a server comes up: sent by _resend
            pending.no_stream = True
            return
        if b'"error"' in message.data:
            error = json.loads(message.data).get("error", {})
            if error.get("code") == 503:
                pending.sent_s = 0.0
                return
            self._failure = self._failure or BusError(
                f"the server refuses a message for {pending.subject}: {error.get('description', 'unknown error')}"
            )
        del self._pending[token]
        self._progress_s = time.monotonic()
        self._changed.set()
