"""The connection to the bus: connect, make the streams, publish, close."""

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import PubAck, StreamConfig
from pydantic import BaseModel

from bus import streams, subjects
from bus.errors import BusError, BusNotReadyError, BusUnavailableError, PayloadTooLargeError, RefusedError
from bus.publisher import BatchPublisher
from bus.wire import TRANSIENT, header_size
from schemas.codec import encode
from schemas.settings import Settings

log = logging.getLogger(__name__)

T = TypeVar("T")

REQUEST_TIMEOUT_S = 5.0
RETRY_FOR_S = 30.0
NO_STREAM_FOR_S = 3.0
"""A server that is coming up knows its streams by then."""
_RETRY_PAUSE_S = 0.05
_RECONNECT_PAUSE_S = 0.2


class Bus:
    """A connection that, once made, is made again for ever when it is lost. Made by `connect`.

    All methods are for the event loop that connected, and none blocks it. Waiting for the server is bounded everywhere
    and ends in BusUnavailableError.
    """

    def __init__(self, url: str, name: str) -> None:
        self.url = url
        self.name = name
        self.epoch = 0
        """Grows with every connection made: what the server forgot with the last one must be asked for again."""
        self.retry_for_s = RETRY_FOR_S
        """How long a publish or a request waits for a server that is away."""
        self._client = Client()
        self._up = asyncio.Event()
        self._lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._closing = False
        self._reviver: asyncio.Task[None] | None = None
        self._last_error = "no answer"

    @classmethod
    async def connect(cls, url: str, *, name: str, timeout_s: float = RETRY_FOR_S) -> "Bus":
        """Return a connection to the server at `url` (several, separated by commas), trying for `timeout_s`.

        Raises BusUnavailableError when there is none by then.
        """
        bus = cls(url, name)
        try:
            await bus._open(timeout_s)
        except BusUnavailableError:
            await bus.close()
            raise
        return bus

    @property
    def connected(self) -> bool:
        """Whether the server is there now."""
        return bool(self._client.is_connected)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closing

    @property
    def client(self) -> Client:
        """The client of this moment; for the modules of this package alone."""
        return self._client

    @property
    def jetstream(self) -> JetStreamContext:
        """JetStream on the client of this moment; for the modules of this package alone."""
        return self._client.jetstream(timeout=REQUEST_TIMEOUT_S)

    async def wait_connected(self, timeout_s: float) -> bool:
        """Wait for the connection for at most `timeout_s` and return whether it is there."""
        if self.connected:
            return True
        try:
            await asyncio.wait_for(self._up.wait(), max(timeout_s, 0))
        except TimeoutError:
            return False
        return self.connected

    async def prepare(self, settings: Settings) -> None:
        """Create or update every stream and bucket. All services may do so at the same time.

        Raises BusNotReadyError when the server refuses one, BusUnavailableError.
        """
        for config in streams.definitions(settings):
            await self.retrying(functools.partial(self._define, config), f"define {config.name}")

    async def publish(self, subject: str, data: BaseModel, *, id: str | None = None, trace: str | None = None) -> None:
        """Publish `data` and return when JetStream has stored it.

        `id` is the envelope's id and the server's deduplication key. Without one, an acknowledgement lost with the
        connection makes the message arrive twice. Raises PayloadTooLargeError before anything is sent,
        BusUnavailableError when the server does not come back, BusNotReadyError when no stream takes the subject.
        """
        await self.store(subject, encode(data, id=id, trace=trace), {"Nats-Msg-Id": id} if id else None)

    async def publish_event(self, data: BaseModel, *, trace: str | None = None, id: str | None = None) -> None:
        """Publish an event under its type and its evaluation's id. Raises as `publish` does."""
        await self.publish(subjects.event_of(data), data, id=id, trace=trace)

    def stream_publisher(self, *, max_pending: int = 512) -> BatchPublisher:
        """Return a publisher that does not wait for each message's acknowledgement."""
        return BatchPublisher(self, max_pending=max_pending)

    async def store(self, subject: str, payload: bytes, headers: dict[str, str] | None = None) -> PubAck:
        """Store bytes under a subject and return the server's acknowledgement; for this package alone.

        Raises as `publish` does, and RefusedError.
        """
        self.check_size(subject, payload, headers)
        try:
            return await self.retrying(
                lambda: self.jetstream.publish(subject, payload, headers=dict(headers) if headers else None),
                f"publish to {subject}",
            )
        except nats.js.errors.APIError as error:
            raise RefusedError(
                f"the server refuses a message for {subject}: {error.description}", error.err_code
            ) from error

    def check_size(self, subject: str, payload: bytes, headers: dict[str, str] | None = None) -> None:
        """Raise PayloadTooLargeError when the server would refuse a message."""
        size = len(payload) + header_size(headers)
        limit = int(self._client.max_payload)
        if size > limit:
            raise PayloadTooLargeError(subject, size, limit)

    async def retrying(
        self, request: Callable[[], Coroutine[Any, Any, T]], what: str, timeout_s: float | None = None
    ) -> T:
        """Return what `request` returns, called again after transient failures; for this package alone.

        `request` may have succeeded on the server and be called again all the same.
        """
        timeout_s = self.retry_for_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + timeout_s
        no_stream_since: float | None = None
        while True:
            if await self.wait_connected(deadline - time.monotonic()):
                try:
                    return await self.unless_lost(request())
                except nats.js.errors.NoStreamResponseError:
                    no_stream_since = no_stream_since or time.monotonic()
                    if time.monotonic() - no_stream_since > min(NO_STREAM_FOR_S, timeout_s):
                        raise BusNotReadyError(f"cannot {what}: no stream takes it; Bus.prepare makes it") from None
                except TRANSIENT as error:
                    no_stream_since = None
                    self._last_error = str(error) or type(error).__name__
                except nats.errors.MaxPayloadError as error:  # the limit fell with a restart, after the check
                    raise BusError(f"cannot {what}: {error}") from error
            if self._closing:
                raise BusUnavailableError(f"cannot {what}: the connection was closed")
            if time.monotonic() > deadline:
                raise self._unavailable(f"cannot {what}", timeout_s)
            await asyncio.sleep(_RETRY_PAUSE_S)

    async def unless_lost(self, request: Coroutine[Any, Any, T]) -> T:
        """Return what `request` returns, or raise ConnectionReconnectingError as soon as the connection goes.

        The client would wait out the request's timeout for an answer that went with the connection. For this package
        alone.
        """
        task = asyncio.create_task(request, name="bus-request")
        waited: set[asyncio.Future[Any]] = {task, self._lost}
        try:
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise nats.errors.ConnectionReconnectingError
        finally:
            task.cancel()

    async def close(self, timeout_s: float = 2.0) -> None:
        """Send what is buffered and close, within `timeout_s`, whether the server is there or not. Call it twice."""
        self._closing = True
        self._up.set()  # whoever waits for the connection learns that it is not coming
        self._lost_now()
        if self._reviver is not None:
            self._reviver.cancel()
            await asyncio.wait({self._reviver}, timeout=timeout_s / 2)
        await _bounded(self._shut(self._client, timeout_s / 2), timeout_s, "nats-close")

    async def _open(self, timeout_s: float | None) -> None:
        """Connect a fresh client. The client itself would try for ever, so it runs in a task that is bounded here."""
        client = Client()
        task = asyncio.create_task(
            client.connect(
                servers=[part.strip() for part in self.url.split(",")],
                name=self.name,
                error_cb=self._on_error,
                disconnected_cb=self._on_disconnected,
                reconnected_cb=self._on_connected,
                closed_cb=self._on_closed,
                max_reconnect_attempts=-1,
                reconnect_time_wait=_RECONNECT_PAUSE_S,  # type: ignore[arg-type]
                connect_timeout=2,
                ping_interval=10,
                pending_size=8 * 2**20,
            ),
            name="nats-connect",
        )
        try:
            done, _ = await asyncio.wait({task}, timeout=timeout_s)
        except asyncio.CancelledError:
            await _abandon(task)
            raise
        if not done:
            await _abandon(task)
            raise self._unavailable("no connection", timeout_s or 0.0)
        if error := task.exception():
            raise BusUnavailableError(f"no connection to the NATS server at {self.url}: {error}") from error
        self._client = client
        await self._on_connected()

    async def _define(self, config: StreamConfig) -> None:
        await streams.define(self.jetstream, config)

    def _unavailable(self, what: str, timeout_s: float) -> BusUnavailableError:
        return BusUnavailableError(
            f"{what}: the NATS server at {self.url} did not answer within {timeout_s:g} s ({self._last_error}); "
            "is it running, and is MLMODELSCOPE_BUS_URL its address?"
        )

    async def _on_error(self, error: Exception) -> None:
        self._last_error = str(error) or type(error).__name__
        log.debug("%s: bus: %s", self.name, self._last_error)

    async def _on_connected(self) -> None:
        if self.epoch:
            log.info("%s: connected to the bus again", self.name)
        self.epoch += 1
        self._lost = asyncio.get_running_loop().create_future()
        self._up.set()

    async def _on_disconnected(self) -> None:
        self._lost_now()
        if not self._closing:
            self._up.clear()
            log.warning("%s: lost the bus (%s); reconnecting", self.name, self._last_error)

    def _lost_now(self) -> None:
        if not self._lost.done():
            self._lost.set_result(None)

    async def _on_closed(self) -> None:
        """Revive a client that gave up by itself, as it does after some errors that the server sends."""
        if not self._closing and (self._reviver is None or self._reviver.done()):
            self._reviver = asyncio.create_task(self._revive(), name="nats-revive")

    async def _revive(self) -> None:
        while not self._closing:
            try:
                await self._open(None)
            except BusUnavailableError as error:
                log.warning("%s: %s", self.name, error)
                await asyncio.sleep(_RECONNECT_PAUSE_S)
            else:
                return

    @staticmethod
    async def _shut(client: Client, flush_s: float) -> None:
        if client.is_connected:
            # A server that does not answer is left all the same.
            with contextlib.suppress(nats.errors.Error, OSError):
                await client.flush(flush_s)  # type: ignore[arg-type]
        await client.close()


async def _abandon(task: "asyncio.Task[None]") -> None:
    task.cancel()
    # The client swallows a cancellation in places: do not wait for it without a bound.
    await asyncio.wait({task}, timeout=1.0)


async def _bounded(work: Awaitable[None], timeout_s: float, name: str) -> None:
    task = asyncio.ensure_future(work)
    done, _ = await asyncio.wait({task}, timeout=timeout_s)
    if not done:
        task.cancel()
        await asyncio.wait({task}, timeout=0.2)
        log.warning("%s did not end within %g s and was abandoned", name, timeout_s)
    elif not task.cancelled() and (error := task.exception()):
        log.debug("%s: %s", name, error)  # a connection that is gone need not be closed properly
