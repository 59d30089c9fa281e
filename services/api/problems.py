"""Errors as the API tells them: problem+json (RFC 9457) that says what to do. Statuses are chosen here alone."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from bus.errors import BusError, PayloadTooLargeError
from schemas.codec import explain
from schemas.errors import ManifestError, VersionError
from services.errors import InvalidCursorError, StoreError, StoreUnavailableError

log = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"


class FieldError(BaseModel):
    """One field of a request that is wrong."""

    field: str
    message: str


class Problem(BaseModel):
    """The body of every error."""

    type: str
    """Identifies the kind of problem: `/problems/` and the code."""
    title: str
    status: int
    detail: str
    """What happened, naming the thing."""
    hint: str = ""
    """What to do."""
    code: str
    """For programs."""
    errors: tuple[FieldError, ...] = ()
    """Of a request that is none: each field that is wrong."""


class ProblemError(Exception):
    """An answer that is a problem."""

    def __init__(
        self,
        status: HTTPStatus,
        code: str,
        detail: str,
        *,
        hint: str = "",
        errors: Sequence[FieldError] = (),
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.headers = headers or {}
        self.problem = Problem(
            type=f"/problems/{code}",
            title=status.phrase,
            status=status,
            detail=detail,
            hint=hint,
            code=code,
            errors=tuple(errors),
        )

    def response(self) -> Response:
        """Return the answer."""
        return Response(
            self.problem.model_dump_json(), self.problem.status, media_type=MEDIA_TYPE, headers=self.headers
        )


def not_found(code: str, detail: str, hint: str = "") -> ProblemError:
    """Return the problem of something that is not there."""
    return ProblemError(HTTPStatus.NOT_FOUND, code, detail, hint=hint)


def invalid(code: str, detail: str, hint: str = "") -> ProblemError:
    """Return the problem of a request that is understood and makes no sense."""
    return ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, code, detail, hint=hint)


def invalid_fields(error: ValidationError) -> ProblemError:
    """Return the problem of a request with wrong fields, each named."""
    fields = [
        FieldError(field=".".join(str(step) for step in item["loc"]), message=item["msg"])
        for item in error.errors(include_url=False, include_input=False)
    ]
    hint = "See /api/openapi.json for what the request may hold."
    return ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid_request", explain(error), hint=hint, errors=fields)


def too_large(limit_bytes: int) -> ProblemError:
    """Return the problem of a body above the limit."""
    detail = f"the body is larger than {limit_bytes} bytes"
    return ProblemError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "payload_too_large", detail)


def wrong_media_type(given: str, allowed: Sequence[str]) -> ProblemError:
    """Return the problem of a body whose type is none of those allowed."""
    detail = f"the body's Content-Type is {given or 'missing'}; it must be {' or '.join(allowed)}"
    return ProblemError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", detail)


def unauthorized() -> ProblemError:
    """Return the problem of a request without the right token."""
    return ProblemError(
        HTTPStatus.UNAUTHORIZED,
        "unauthorized",
        "this API wants a token",
        hint="Send the header Authorization: Bearer TOKEN.",
        headers={"WWW-Authenticate": "Bearer"},
    )


def forbidden(detail: str, hint: str = "") -> ProblemError:
    """Return the problem of a request that comes from where none may come from."""
    return ProblemError(HTTPStatus.FORBIDDEN, "forbidden", detail, hint=hint)


def unavailable(code: str, detail: str, retry_after_s: int) -> ProblemError:
    """Return the problem of a part that is away for now."""
    return ProblemError(
        HTTPStatus.SERVICE_UNAVAILABLE,
        code,
        detail,
        hint=f"Try again in {retry_after_s} seconds; /readyz says what is missing.",
        headers={"Retry-After": str(retry_after_s)},
    )


def problem_of(error: Exception) -> ProblemError:
    """Return the problem that an exception is."""
    match error:
        case ProblemError():
            return error
        case ValidationError():
            return invalid_fields(error)
        case ManifestError():
            return invalid("manifest_invalid", str(error), "See docs/manifests.md for what a manifest may hold.")
        case VersionError():
            return invalid("invalid_request", str(error))
        case InvalidCursorError():
            return invalid("invalid_request", str(error), "Use the next_cursor of the page before, unchanged.")
        case StoreUnavailableError():
            return unavailable("store_unavailable", f"the store does not answer: {error}", 5)
        case StoreError():
            return ProblemError(HTTPStatus.INTERNAL_SERVER_ERROR, "store_failed", str(error))
        case PayloadTooLargeError():
            return ProblemError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "payload_too_large", str(error))
        case BusError():
            return unavailable("bus_unavailable", str(error), 2)
        case HTTPException():
            status = HTTPStatus(error.status_code)
            code = status.name.lower()
            headers = dict(error.headers or {})
            return ProblemError(status, code, error.detail, hint="See /api/openapi.json.", headers=headers)
    return ProblemError(
        HTTPStatus.INTERNAL_SERVER_ERROR,
        "internal",
        f"{type(error).__name__}: {error}",
        hint="This is a fault in the platform; its log says where.",
    )


async def answer(request: Request, error: Exception) -> Response:
    """Return the response for an exception that a route raised. A fault of ours is logged whole."""
    problem = problem_of(error)
    if problem.problem.status == HTTPStatus.INTERNAL_SERVER_ERROR:
        log.error("%s %s: %s", request.method, request.url.path, error, exc_info=error)
    return problem.response()


_KINDS = (
    HTTPException,
    ProblemError,
    ValidationError,
    ManifestError,
    VersionError,
    StoreError,
    InvalidCursorError,
    BusError,
)
HANDLERS: dict[Any, Callable[[Request, Exception], Awaitable[Response]]] = dict.fromkeys((*_KINDS, Exception), answer)
"""For Starlette: every exception becomes a problem."""
