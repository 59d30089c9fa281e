"""The application: the route table, what stands before it, and the document that describes it."""

from importlib import metadata

import pydantic_core
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response

from bus.connection import Bus
from bus.registry import Registry
from schemas.settings import Settings
from services.api import catalogue_routes, evaluations, health, predictors, sql
from services.api.context import Context
from services.api.endpoint import Endpoint
from services.api.guard import Guard
from services.api.openapi import Document
from services.api.problems import HANDLERS
from services.store import Store

OPENAPI = "/api/openapi.json"


def create_app(settings: Settings, store: Store, bus: Bus) -> Starlette:
    """Return the application over an open store and a connected bus, neither of which it closes.

    `app.state.context.stopping` ends its streams.
    """
    counters = CollectorRegistry()
    table = [
        *catalogue_routes.endpoints(),
        *evaluations.endpoints(),
        *predictors.endpoints(),
        *sql.endpoints(),
        *health.endpoints(counters),
    ]
    document = pydantic_core.to_json(Document(_version()).of(table))

    async def openapi(request: Request) -> Response:
        return Response(document, media_type="application/json")

    described = Endpoint("GET", OPENAPI, openapi, "This document", "health")
    app = Starlette(
        routes=[endpoint.route() for endpoint in (*table, described)],
        middleware=[Middleware(health.Metrics, registry=counters), Middleware(Guard, settings=settings)],
        exception_handlers=HANDLERS,
    )
    app.state.context = Context(settings=settings, store=store, bus=bus, registry=Registry(bus))
    return app


def _version() -> str:
    try:
        return metadata.version("mlmodelscope")
    except metadata.PackageNotFoundError:  # run from a source tree that was never installed
        return "0"
