"""Reading what a request says, and writing JSON."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import TypeVar

import pydantic_core
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from schemas.base import Request as Strict
from services.api.problems import too_large, wrong_media_type

MAX_BODY_BYTES = 2 * 2**20
JSON = ("application/json",)
JSON_OR_YAML = ("application/json", "application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml")
"""None of them is sent by a browser for another site's page without asking first."""

Q = TypeVar("Q", bound=BaseModel)


class PageQuery(Strict):
    """Which page of a listing."""

    limit: int = Field(100, ge=1, le=1000)
    """At most so many items."""
    cursor: str | None = None
    """`next_cursor` of the page before."""


def query_of(request: Request, model: type[Q]) -> Q:
    """Return the parameters behind the `?`. Raises ValidationError, also for one that is unknown."""
    return model.model_validate(dict(request.query_params))


async def body_of(request: Request, allowed: Sequence[str]) -> bytes:
    """Return the body. Raises ProblemError: of another type, or above the limit."""
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given not in allowed:
        raise wrong_media_type(given, allowed)
    if int(request.headers.get("content-length") or 0) > MAX_BODY_BYTES:
        raise too_large(MAX_BODY_BYTES)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise too_large(MAX_BODY_BYTES)
    return bytes(body)


def json_response(
    data: object, status: HTTPStatus = HTTPStatus.OK, *, headers: dict[str, str] | None = None
) -> Response:
    """Return `data` (pydantic models, or what JSON has) as JSON; a number that is none becomes null."""
    content = pydantic_core.to_json(data, inf_nan_mode="null")
    return Response(content, status, media_type="application/json", headers=headers)


def page_response(items: Sequence[object], next_cursor: str | None) -> Response:
    """Return one page of a listing; `next_cursor` is null at the end."""
    return json_response({"items": items, "next_cursor": next_cursor})
