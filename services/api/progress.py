"""The events of one evaluation as server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html)."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import aclosing

import anyio
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from bus.consumers import follow
from bus.errors import BusError
from schemas.codec import Envelope
from schemas.events import EvaluationCompleted, EvaluationRejected
from schemas.result import FINAL
from services import records
from services.api.context import Context, context_of
from services.api.problems import not_found
from services.errors import StoreUnavailableError

log = logging.getLogger(__name__)

HEARTBEAT_S = 5.0
"""A comment is sent when nothing else was for so long, so that nobody on the way takes the connection for dead."""
SETTLED_S = 2.0
"""An evaluation that has ended and whose last event does not come within this: the bus keeps it no longer."""
UNKNOWN_S = 3.0
"""How long an evaluation that nothing knows of may take to appear."""


async def events(request: Request) -> Response:
    """Stream every event, those of the past first, until the final one.

    `event` is the type, `data` the event as JSON, `id` its number: sent back as `Last-Event-ID` after a broken
    connection, the stream goes on behind it.
    """
    context, evaluation_id = context_of(request), request.path_params["evaluation_id"]
    ended = await _known(context, evaluation_id)
    last = request.headers.get("last-event-id", "")
    stream = _stream(context, evaluation_id, skip=int(last) if last.isascii() and last.isdigit() else 0, ended=ended)
    return StreamingResponse(stream, media_type="text/event-stream", headers={"Cache-Control": "no-store"})


async def _known(context: Context, evaluation_id: str) -> bool:
    """Return whether the evaluation has ended. Raises ProblemError when it does not exist."""
    entry = await context.registry.get_evaluation(evaluation_id)
    if entry is None and evaluation_id in context.recent:
        return False
    if entry is None:
        try:
            found = await asyncio.to_thread(records.get_evaluation, context.store, evaluation_id)
        except StoreUnavailableError:
            found = None  # the bus may know it all the same
        if found is not None:
            return found.status in FINAL
        return await _appears(context, evaluation_id)
    return entry[0].status in FINAL


async def _appears(context: Context, evaluation_id: str) -> bool:
    """Wait a moment for an evaluation that was asked for elsewhere; return whether it has ended."""
    try:
        async with (
            asyncio.timeout(UNKNOWN_S),
            aclosing(context.registry.watch_evaluation(evaluation_id)) as states,
        ):
            async for state in states:
                return state.status in FINAL
    except TimeoutError:
        pass
    raise not_found("unknown_evaluation", f"there is no evaluation {evaluation_id}")


async def _stream(context: Context, evaluation_id: str, *, skip: int, ended: bool) -> AsyncIterator[bytes]:
    """Yield the stream. It ends with the final event, when the service stops, and when the bus is lost for good."""
    number = 0
    async with aclosing(follow(context.bus, evaluation_id)) as source:
        coming = asyncio.ensure_future(anext(source))
        stopping = asyncio.create_task(context.stopping.wait(), name="events-stop")
        try:
            while True:
                wait_s = SETTLED_S if ended else HEARTBEAT_S
                await asyncio.wait({coming, stopping}, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
                if not coming.done():
                    if stopping.done() or ended:
                        return
                    yield b": heartbeat\n\n"
                    if context.bus.connected:
                        entry = await context.registry.get_evaluation(evaluation_id)
                        ended = entry is not None and entry[0].status in FINAL
                    continue
                event = coming.result()
                number += 1
                if number > skip:
                    yield _encoded(number, event)
                if isinstance(event.data, EvaluationCompleted | EvaluationRejected):
                    return
                coming = asyncio.ensure_future(anext(source))
        except BusError as error:
            log.warning("events of %s: %s", evaluation_id, error)
        finally:
            stopping.cancel()
            coming.cancel()
            with anyio.CancelScope(shield=True):  # of a client that hung up: each await here would be cancelled anew
                await asyncio.wait({coming, stopping})


def _encoded(number: int, event: Envelope[BaseModel]) -> bytes:
    return f"id: {number}\nevent: {event.type}\ndata: {event.data.model_dump_json()}\n\n".encode()
