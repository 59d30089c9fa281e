"""What the routes work with."""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field

from starlette.requests import Request

from bus.connection import Bus
from bus.registry import Registry
from schemas.evaluation import EvaluationRequested
from schemas.settings import Settings
from services.store import Store

REMEMBERED = 10_000


@dataclass(frozen=True)
class Context:
    """Of one application. The store blocks: it is called in threads."""

    settings: Settings
    store: Store
    bus: Bus
    registry: Registry
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the service ends: streams end too."""
    recent: OrderedDict[str, EvaluationRequested] = field(default_factory=OrderedDict)
    """Requests that were passed on here a moment ago, and that the scheduler may not have seen yet."""

    def remember(self, request: EvaluationRequested) -> None:
        """Keep a request that was passed on, among the latest."""
        self.recent[request.evaluation_id] = request
        while len(self.recent) > REMEMBERED:
            self.recent.popitem(last=False)


def context_of(request: Request) -> Context:
    """Return the context of the application that a request came to."""
    found = request.app.state.context
    assert isinstance(found, Context)
    return found
