"""What the protocol makes of sizes, and the client library of failures."""

import asyncio

import nats.errors
import nats.js.errors

TRANSIENT = (
    nats.errors.TimeoutError,
    nats.errors.NoRespondersError,
    nats.errors.ConnectionClosedError,
    nats.errors.ConnectionReconnectingError,
    nats.errors.OutboundBufferLimitError,
    nats.errors.StaleConnectionError,
    nats.js.errors.NoStreamResponseError,
    nats.js.errors.ServiceUnavailableError,
    asyncio.TimeoutError,
    OSError,
)
"""What a server that restarts, or has not got up yet, makes a request end in."""


def header_size(headers: dict[str, str] | None) -> int:
    """Return how many bytes headers take on the wire; the server counts them as payload."""
    if not headers:
        return 0
    return len("NATS/1.0\r\n\r\n") + sum(len(key.encode()) + len(value.encode()) + 4 for key, value in headers.items())
