"""One row of the route table: what the application serves, and what the OpenAPI document says of it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A method on a path."""

    method: str
    path: str
    handler: Handler
    summary: str
    tag: str
    returns: Any = None
    """The type of the answer; with `paged`, of one item of it. None: no body, or one that `media_type` says all of."""
    paged: bool = False
    status: HTTPStatus = HTTPStatus.OK
    query: type[BaseModel] | None = None
    body: type[BaseModel] | None = None
    body_types: tuple[str, ...] = ()
    media_type: str = "application/json"

    def route(self) -> Route:
        """Return it for Starlette."""
        return Route(self.path, self.handler, methods=[self.method])
