"""Pull requests of JetStream consumers, on one reply subject that is kept open.

The client library's own `fetch` waits for a whole batch and takes a deleted consumer for an empty one. This one returns
as soon as there is anything, never loses what arrived when it is cancelled, and says when the consumer has gone.
Protocol: https://docs.nats.io/reference/reference-protocols/nats_api_reference#fetching-from-a-consumer
"""

import asyncio
import contextlib
import json
import math
import time
from collections import deque

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

ANSWER_TIMEOUT_S = 2.0
MAX_BYTES = 32 * 2**20
"""Of one request: bounds the memory that a batch takes."""
_EXPIRY_MARGIN_S = 0.5
_OVER = ("404", "408")


class ConsumerLostError(Exception):
    """The server knows no such consumer (now). Inside this package only: the consumer is made again."""


class PullInbox:
    """Messages that pull requests bring. Belongs to one client; lives until `close`."""

    def __init__(self, client: Client, stream: str, consumer: str) -> None:
        self.client = client
        self._next = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._inbox = client.new_inbox()
        self._requests = 0
        self._messages: deque[tuple[float, Msg]] = deque()
        self._ended: dict[str, Msg] = {}
        self._arrived = asyncio.Event()
        self._subscription: Subscription | None = None

    async def open(self) -> None:
        """Subscribe. Raises what the client raises."""
        self._subscription = await self.client.subscribe(
            f"{self._inbox}.*", cb=self._on_message, pending_msgs_limit=0, pending_bytes_limit=0
        )

    async def close(self) -> list[Msg]:
        """Unsubscribe and return what had arrived and was not handed out."""
        subscription, self._subscription = self._subscription, None
        if subscription is not None and not self.client.is_closed:
            # Suppressed: the connection went, and the subscription with it.
            with contextlib.suppress(nats.errors.Error, OSError):
                await subscription.unsubscribe()
        return self.take(len(self._messages))

    async def pull(self, count: int, wait_s: float) -> None:
        """Have up to `count` messages ready to `take`: those there are, or else the first that comes within `wait_s`.

        Raises ConsumerLostError. A cancelled pull loses nothing: what it brought is there for the next.
        """
        if len(self._messages) < count and (count > 1 or wait_s <= 0):
            await self._request(count - len(self._messages), None, count)
        if not self._messages and wait_s > 0:
            await self._request(1, wait_s, 1)
            if self._messages and count > 1:
                await self._request(count - len(self._messages), None, count)

    def take(self, count: int, fresh_s: float = math.inf) -> list[Msg]:
        """Return up to `count` messages that have arrived, those older than `fresh_s` left out.

        A message may have waited here since a fetch that was cancelled: past the acknowledgement wait it is another's.
        """
        oldest = time.monotonic() - fresh_s
        taken = [self._messages.popleft() for _ in range(min(count, len(self._messages)))]
        return [message for arrived, message in taken if arrived > oldest]

    def put_back(self, messages: list[Msg]) -> None:
        """Hand these out again first, in this order."""
        now = time.monotonic()
        self._messages.extendleft((now, message) for message in reversed(messages))

    def inherit(self, other: "PullInbox") -> None:
        """Take over what had arrived in the inbox of a client that is no more."""
        self._messages.extendleft(reversed(other._messages))
        other._messages.clear()

    async def _request(self, batch: int, wait_s: float | None, enough: int) -> None:
        """Ask for `batch` messages and return when `enough` are here or the server says that is all."""
        self._requests += 1
        token = str(self._requests)
        body: dict[str, object] = {"batch": batch, "max_bytes": MAX_BYTES}
        if wait_s is None:
            body["no_wait"] = True
        else:
            body["expires"] = int(wait_s * 1e9)
        await self.client.publish(self._next, json.dumps(body).encode(), reply=f"{self._inbox}.{token}")
        deadline = time.monotonic() + (ANSWER_TIMEOUT_S if wait_s is None else wait_s + _EXPIRY_MARGIN_S)
        while len(self._messages) < enough and token not in self._ended:
            self._arrived.clear()
            try:
                await asyncio.wait_for(self._arrived.wait(), max(deadline - time.monotonic(), 0))
            except TimeoutError:
                return
        status = self._ended.pop(token, None)
        self._ended.clear()
        if status is not None and not self._messages:
            _check(status)

    async def _on_message(self, message: Msg) -> None:
        if message.subject.startswith(self._inbox):
            self._ended[message.subject.rpartition(".")[2]] = message
        else:
            self._messages.append((time.monotonic(), message))
        self._arrived.set()


def _check(status: Msg) -> None:
    headers = status.headers or {}
    code, description = headers.get("Status", ""), headers.get("Description", "")
    if code in _OVER:
        return
    if code == "409" and "Consumer" not in description and "Server Shutdown" not in description:
        return  # a limit of the request was met
    raise ConsumerLostError(f"{code} {description}".strip())
