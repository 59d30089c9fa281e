"""Who may come in: the token, and the traps of browsers."""

import hmac
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from schemas.errors import SettingsError
from schemas.settings import Settings
from services.api.problems import ProblemError, forbidden, unauthorized

LOOPBACK = ("127.0.0.1", "::1", "localhost")
_SAFE = ("GET", "HEAD", "OPTIONS")


def check_exposure(settings: Settings) -> None:
    """Raise SettingsError when the API would listen beyond this machine without a token."""
    if settings.api_host not in LOOPBACK and not settings.api_token:
        raise SettingsError(
            f"MLMODELSCOPE_API_HOST is {settings.api_host}: beyond loopback the API wants a token; set "
            "MLMODELSCOPE_API_TOKEN, or listen on 127.0.0.1"
        )


class Guard:
    """ASGI middleware.

    With a token set, everything under /api wants it. Without one the API is for this machine alone: a request must
    call it by a name of loopback, or a web page anywhere could have its visitors' browsers read from it under a name
    of its own. Requests that change something and that a browser says come from another site's page are refused.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._token = settings.api_token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with a problem, or pass on."""
        problem = self._problem(scope) if scope["type"] == "http" else None
        await (self._app if problem is None else problem.response())(scope, receive, send)

    def _problem(self, scope: Scope) -> ProblemError | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        origin = headers.get("origin")
        if scope["method"] not in _SAFE and origin is not None and urlsplit(origin).netloc != host:
            return forbidden(f"a page of {origin} may not ask for this")
        if self._token is None:
            name = urlsplit(f"//{host}").hostname
            if name not in LOOPBACK:
                hint = "Call it by 127.0.0.1 or localhost, or set MLMODELSCOPE_API_TOKEN."
                return forbidden(f"this API is for its own machine; it is not called {name}", hint)
            return None
        given = headers.get("authorization", "")
        kind, _, token = given.partition(" ")
        right = kind.lower() == "bearer" and hmac.compare_digest(token.strip().encode(), self._token.encode())
        return None if right or not scope["path"].startswith("/api") else unauthorized()
