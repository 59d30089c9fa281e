"""Evaluations: ask for one, look at it, cancel it, read what it found."""

import asyncio
import re
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from pydantic import AwareDatetime, BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from bus import subjects
from schemas.base import Request as Strict
from schemas.evaluation import CancellationRequested, Device, EvaluationRequested
from schemas.result import FINAL, Evaluation, EvaluationStatus
from schemas.trace import Span
from services import records
from services.api.context import Context, context_of
from services.api.endpoint import Endpoint
from services.api.exchange import JSON, PageQuery, body_of, json_response, page_response, query_of
from services.api.live import live, pending
from services.api.problems import not_found
from services.api.progress import events
from services.errors import StoreUnavailableError
from services.record_rows import PredictionRow, QueryRow
from services.store import Store

BASE = "/api/v1/evaluations"
_TRACEPARENT = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


class EvaluationsQuery(PageQuery):
    """Which evaluations. All that are given must hold; for a framework and a device, of one of the tasks."""

    model: str | None = None
    dataset: str | None = None
    framework: str | None = None
    device: Device | None = None
    status: EvaluationStatus | None = None
    user: str | None = None
    since: AwareDatetime | None = None
    """Created at this time or later, as 2026-01-31T12:00:00Z."""


class RowsQuery(PageQuery):
    """Which rows of an evaluation."""

    limit: int = Field(1000, ge=1, le=10_000)
    """At most so many items."""
    task_id: str | None = None


class PredictionsQuery(RowsQuery):
    """Which predictions."""

    only_wrong: bool = False
    """Those whose best class is not the label, unreadable items among them."""


class Cancellation(Strict):
    """Why an evaluation is cancelled."""

    reason: str = ""
    user: str = ""


class Links(BaseModel):
    """Where to look next."""

    self: str
    events: str
    cancel: str
    predictions: str
    queries: str
    spans: str


class Submitted(BaseModel):
    """The request is on the bus."""

    evaluation_id: str
    links: Links


class Cancelling(BaseModel):
    """The cancellation is on the bus, or there is nothing left to cancel."""

    evaluation_id: str
    status: EvaluationStatus
    """As it was when it was asked."""


async def create(request: Request) -> Response:
    """Pass a request on to the scheduler and return at once."""
    context = context_of(request)
    wanted = EvaluationRequested.model_validate_json(await body_of(request, JSON))
    given = request.headers.get("traceparent", "")
    trace = given if _TRACEPARENT.fullmatch(given) else None
    await context.bus.publish(subjects.evaluation_requested(), wanted, id=wanted.evaluation_id, trace=trace)
    context.remember(wanted)
    here = f"{BASE}/{wanted.evaluation_id}"
    rest = {name: f"{here}/{name}" for name in Links.model_fields if name != "self"}
    submitted = Submitted(evaluation_id=wanted.evaluation_id, links=Links(self=here, **rest))
    return json_response(submitted, HTTPStatus.ACCEPTED, headers={"Location": here})


async def list_(request: Request) -> Response:
    """Return a page of evaluations, newest first; their tasks have figures and no record."""
    filters = query_of(request, EvaluationsQuery)
    store = context_of(request).store
    items, cursor = await asyncio.to_thread(lambda: records.list_evaluations(store, **dict(filters)))
    return page_response(items, cursor)


async def get(request: Request) -> Response:
    """Return one evaluation: from the store, or as far as the bus knows it."""
    return json_response(await find(context_of(request), request.path_params["evaluation_id"]))


async def cancel(request: Request) -> Response:
    """Pass a cancellation on to the scheduler. What has ended stays as it is."""
    context = context_of(request)
    has_body = request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers
    why = Cancellation.model_validate_json(await body_of(request, JSON)) if has_body else Cancellation()
    found = await find(context, request.path_params["evaluation_id"])
    if found.status not in FINAL:
        data = CancellationRequested(evaluation_id=found.evaluation_id, reason=why.reason, user=why.user)
        await context.bus.publish(subjects.cancellation_requested(), data)
    answer = Cancelling(evaluation_id=found.evaluation_id, status=found.status)
    return json_response(answer, HTTPStatus.ACCEPTED)


async def predictions(request: Request) -> Response:
    """Return a page of per-input predictions of the final attempts."""
    return await _rows(request, records.predictions, query_of(request, PredictionsQuery))


async def queries(request: Request) -> Response:
    """Return a page of measured queries of the final attempts."""
    return await _rows(request, records.queries, query_of(request, RowsQuery))


async def spans(request: Request) -> Response:
    """Return a page of spans."""
    return await _rows(request, records.spans, query_of(request, RowsQuery))


async def find(context: Context, evaluation_id: str) -> Evaluation:
    """Return an evaluation from the store, else from the bus. Raises ProblemError when neither knows it.

    With the store away, one that is running is still told, from the bus; for one that has ended the store's error is
    raised: its results are there alone.
    """
    away: StoreUnavailableError | None = None
    try:
        found = await asyncio.to_thread(records.get_evaluation, context.store, evaluation_id)
    except StoreUnavailableError as error:
        found, away = None, error
    if found is not None:
        return found
    entry = await context.registry.get_evaluation(evaluation_id)
    if away is not None and (entry is None or entry[0].status in FINAL):
        raise away
    seen = await live(context.bus, entry[0]) if entry is not None else None
    if seen is not None:
        # A final status promises results that can be read, and they are still on their way into the store.
        return seen.model_copy(update={"status": "running"}) if seen.status in FINAL else seen
    if evaluation_id in context.recent:
        return pending(context.recent[evaluation_id])
    raise not_found("unknown_evaluation", f"there is no evaluation {evaluation_id}", f"See {BASE} for those there are.")


async def _rows(request: Request, read: Callable[..., tuple[list[Any], str | None]], page: PageQuery) -> Response:
    context, evaluation_id = context_of(request), request.path_params["evaluation_id"]
    store: Store = context.store
    items, cursor = await asyncio.to_thread(lambda: read(store, evaluation_id, **dict(page)))
    if not items and page.cursor is None:
        await find(context, evaluation_id)  # nothing found yet, or nothing there at all: 404
    return page_response(items, cursor)


def endpoints() -> list[Endpoint]:
    """Return the routes."""
    one, tag = f"{BASE}/{{evaluation_id}}", "evaluations"
    return [
        Endpoint("GET", BASE, list_, "List evaluations, newest first", tag, Evaluation, True, query=EvaluationsQuery),
        Endpoint(
            "POST",
            BASE,
            create,
            "Ask for an evaluation; returns at once",
            tag,
            Submitted,
            status=HTTPStatus.ACCEPTED,
            body=EvaluationRequested,
            body_types=JSON,
        ),
        Endpoint("GET", one, get, "One evaluation with everything its tasks recorded", tag, Evaluation),
        Endpoint(
            "POST",
            f"{one}/cancel",
            cancel,
            "Cancel an evaluation",
            tag,
            Cancelling,
            status=HTTPStatus.ACCEPTED,
            body=Cancellation,
            body_types=JSON,
        ),
        Endpoint(
            "GET",
            f"{one}/events",
            events,
            "Its events from the first to the final one, as they happen",
            tag,
            media_type="text/event-stream",
        ),
        Endpoint(
            "GET",
            f"{one}/predictions",
            predictions,
            "Per-input predictions",
            tag,
            PredictionRow,
            True,
            query=PredictionsQuery,
        ),
        Endpoint("GET", f"{one}/queries", queries, "Measured queries", tag, QueryRow, True, query=RowsQuery),
        Endpoint("GET", f"{one}/spans", spans, "Spans of its trace", tag, Span, True, query=RowsQuery),
    ]
