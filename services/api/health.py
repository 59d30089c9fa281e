"""Whether the API is alive, whether it can work, and what it has done."""

import asyncio
import time
from http import HTTPStatus
from typing import Literal

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.api.context import Context, context_of
from services.api.endpoint import Endpoint
from services.api.exchange import json_response
from services.errors import StoreError

CHECK_S = 2.0
"""A part that does not answer within this is away."""
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Alive(BaseModel):
    """The process answers."""

    status: Literal["ok"] = "ok"


class Ready(BaseModel):
    """What the API needs; `ok`, or why not."""

    ready: bool
    bus: str
    store: str


class Metrics:
    """Counts requests as they pass. ASGI middleware; one registry an application."""

    def __init__(self, app: ASGIApp, registry: CollectorRegistry) -> None:
        self._app = app
        self._requests = Counter(
            "mlms_api_requests", "Requests answered", ("method", "route", "status"), registry=registry
        )
        self._seconds = Histogram(
            "mlms_api_request_seconds", "Until the answer began", ("route",), registry=registry, buckets=_BUCKETS
        )
        self._open = Gauge("mlms_api_requests_open", "Requests being answered, streams included", registry=registry)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on and count it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()

        async def counting(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = getattr(scope.get("route"), "path", "other")
                self._requests.labels(scope["method"], route, message["status"]).inc()
                self._seconds.labels(route).observe(time.perf_counter() - began)
            await send(message)

        with self._open.track_inprogress():
            await self._app(scope, receive, counting)


async def healthz(request: Request) -> Response:
    """Answer."""
    return json_response(Alive())


async def readyz(request: Request) -> Response:
    """Ask bus and store for a sign of life."""
    context = context_of(request)
    bus, store = ("ok" if context.bus.connected else f"no connection to {context.bus.url}"), await _store(context)
    ready = bus == store == "ok"
    status = HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE
    return json_response(Ready(ready=ready, bus=bus, store=store), status)


async def _store(context: Context) -> str:
    try:
        async with asyncio.timeout(CHECK_S):
            await asyncio.to_thread(context.store.query, "SELECT 1")
    except TimeoutError:
        return f"no answer within {CHECK_S:g} s"
    except StoreError as error:
        return str(error)
    return "ok"


def endpoints(registry: CollectorRegistry) -> list[Endpoint]:
    """Return the routes."""

    async def metrics(request: Request) -> Response:
        text = await asyncio.to_thread(generate_latest, registry)
        return Response(text, headers={"Content-Type": CONTENT_TYPE_LATEST})

    tag = "health"
    return [
        Endpoint("GET", "/healthz", healthz, "The process answers", tag, Alive),
        Endpoint("GET", "/readyz", readyz, "Bus and store answer; 503 when one does not", tag, Ready),
        Endpoint("GET", "/metrics", metrics, "Counters for Prometheus", tag, media_type="text/plain"),
    ]
