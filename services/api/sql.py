"""Read-only SQL over the documented views."""

import asyncio

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from schemas.base import Request as Strict
from services.api.context import context_of
from services.api.endpoint import Endpoint
from services.api.exchange import JSON, body_of, json_response
from services.api.problems import invalid
from services.read_only_sql import SqlRefusedError, select


class Query(Strict):
    """A SELECT over the `mlms_*` views."""

    query: str
    params: dict[str, str | int | float | bool] = {}
    """Values of its `{name:Type}` placeholders."""


class Answer(BaseModel):
    """What was selected."""

    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]
    truncated: bool = False
    """There were more rows than an answer holds."""


async def run(request: Request) -> Response:
    """Run a SELECT and return its rows."""
    wanted = Query.model_validate_json(await body_of(request, JSON))
    try:
        found, truncated = await asyncio.to_thread(select, context_of(request).store, wanted.query, wanted.params)
    except SqlRefusedError as error:
        hint = "SELECT from the mlms_* views; parameters are written {name:Type}. See docs/api.md."
        raise invalid("sql_refused", str(error), hint) from error
    return json_response({"columns": found.columns, "rows": found.rows, "truncated": truncated})


def endpoints() -> list[Endpoint]:
    """Return the routes."""
    return [
        Endpoint(
            "POST",
            "/api/v1/sql",
            run,
            "Read-only SQL over the mlms_* views",
            "sql",
            Answer,
            body=Query,
            body_types=JSON,
        )
    ]
