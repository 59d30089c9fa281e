"""The scheduler as a service."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from bus import subjects
from bus.connection import Bus
from bus.consumers import Consumer, Received
from bus.errors import BusUnavailableError
from bus.registry import Registry
from bus.streams import EVALUATIONS, EVENTS
from schemas.codec import type_of
from schemas.evaluation import CancellationRequested, EvaluationRequested
from schemas.events import TaskCompleted, TaskFailed, TaskStarted
from schemas.failure import Failure
from schemas.settings import Settings
from services.catalogue import register_shipped
from services.scheduler.ledger import Ledger, UnknownEvaluationError
from services.scheduler.lifecycle import Lifecycle, Outcome
from services.scheduler.view import View
from services.scheduler.watchdog import Watchdog
from services.stopping import end_tasks, until_stopped

log = logging.getLogger(__name__)

LOST_AFTER_S = 30.0
"""A task whose agent's lease ended this long ago has failed."""
CANCEL_GRACE_S = 15.0
"""A cancelled task that its agent has not ended by then is ended without it."""
DURABLE = "scheduler"
_ACK_WAIT_S = 10.0
_MAX_ATTEMPTS = 5
_CHECK_S = 1.0
_FETCH_S = 5.0
_BATCH = 64
_FINISH_S = 1.0


async def run(
    settings: Settings,
    stop: asyncio.Event,
    *,
    lost_after_s: float = LOST_AFTER_S,
    cancel_grace_s: float = CANCEL_GRACE_S,
) -> None:
    """Serve until `stop` is set: plan evaluations, hand out tasks, and say when all of an evaluation have ended.

    Registers the manifests that the platform ships. Several may run: each request and each event is taken by one,
    and what one leaves unfinished another finishes. Ends within about three seconds of `stop`, also when the bus is
    down; what it held then is delivered again to the next. Raises BusUnavailableError when there is no bus within
    the time that `settings` allow.
    """
    bus = await until_stopped(
        Bus.connect(settings.bus_url, name="scheduler", timeout_s=settings.bus_connect_timeout_s),
        stop,
        name="scheduler-connect",
    )
    if bus is None:
        return
    try:
        scheduler = Scheduler(bus, settings, lost_after_s=lost_after_s, cancel_grace_s=cancel_grace_s)
        if await until_stopped(scheduler.prepare(settings), stop, name="scheduler-prepare"):
            await scheduler.serve(stop)
    finally:
        await bus.close(1.0)


class Scheduler:
    """The parts of a scheduler on one connection."""

    def __init__(self, bus: Bus, settings: Settings, *, lost_after_s: float, cancel_grace_s: float) -> None:
        self._bus = bus
        self._registry = Registry(bus)
        self._view = View(self._registry)
        self._ledger = Ledger(self._registry)
        self._lifecycle = Lifecycle(bus, self._ledger, self._view, last_attempt=settings.task_max_attempts)
        self._watchdog = Watchdog(
            self._lifecycle, self._ledger, self._view, lost_after_s=lost_after_s, cancel_grace_s=cancel_grace_s
        )
        self._requests = Consumer(
            bus,
            stream=EVALUATIONS,
            durable=DURABLE,
            filters=[subjects.evaluation_requested(), subjects.cancellation_requested()],
            ack_wait_s=_ACK_WAIT_S,
            max_attempts=_MAX_ATTEMPTS,
            on_dead=self._on_dead,
        )
        self._events = Consumer(
            bus,
            stream=EVENTS,
            durable=DURABLE,
            filters=[subjects.event(type_of(one), "*") for one in (TaskStarted, TaskCompleted, TaskFailed)],
            ack_wait_s=_ACK_WAIT_S,
            # One that was left for later however often, as while the bus could not write, is the end of a task: given
            # up, it would leave its evaluation running for ever. What cannot be handled at all is given up below.
            max_attempts=None,
        )

    async def prepare(self, settings: Settings) -> bool:
        """Make the streams, register what the platform ships, take up what was left unfinished."""
        await self._bus.prepare(settings)
        changed = await register_shipped(self._bus, self._registry)
        await self._view.refresh()
        await self._ledger.recover()
        log.info("ready: %d manifests new, %d evaluations taken up", changed, len(self._ledger.active))
        return True

    async def serve(self, stop: asyncio.Event) -> None:
        """Work until `stop`. Raises what ends one of the tasks before."""
        tasks = [
            asyncio.create_task(work, name=f"scheduler-{name}")
            for name, work in {
                "agents": self._view.follow_agents(),
                "models": self._view.follow_models(),
                "datasets": self._view.follow_datasets(),
                "requests": self._consume(self._requests, self._take_requests, stop),
                "events": self._consume(self._events, self._take_events, stop),
                "watchdog": self._watch(stop),
            }.items()
        ]
        stopping = asyncio.create_task(stop.wait(), name="scheduler-stop")
        try:
            await asyncio.wait({*tasks, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            followers, workers = tasks[:3], tasks[3:]
            await end_tasks(*followers, stopping, bound_s=0.5)
            await end_tasks(*workers, grace_s=_FINISH_S if stop.is_set() else 0.0, bound_s=0.5)
            with contextlib.suppress(TimeoutError):  # the server is away; it delivers again what was not acknowledged
                async with asyncio.timeout(0.5):
                    await self._requests.close()
                    await self._events.close()
        for task in tasks:
            if task.done() and not task.cancelled():
                task.result()

    async def _consume(
        self, consumer: Consumer, take: Callable[[list[Received]], Awaitable[None]], stop: asyncio.Event
    ) -> None:
        while not stop.is_set():
            received = await until_stopped(consumer.fetch(_BATCH, _FETCH_S), stop, name="scheduler-fetch")
            if received:
                await take(received)

    async def _take_requests(self, received: list[Received]) -> None:
        await asyncio.gather(*(self._settle(one, self._on_request) for one in received))

    async def _take_events(self, received: list[Received]) -> None:
        for one in received:  # in order: started comes before ended
            await self._settle(one, self._on_event)

    async def _settle(self, received: Received, handle: Callable[[Received], Awaitable[None]]) -> None:
        """Handle one message and acknowledge it; give it back when that failed."""
        try:
            await handle(received)
            await received.ack()
        except UnknownEvaluationError as error:
            if received.attempt < _MAX_ATTEMPTS and received.subject == subjects.cancellation_requested():
                await received.nak(0.2 * received.attempt)  # its request may be in work this moment
            else:
                log.warning("%s is about evaluation %s, which nobody asked for", received.subject, error)
                await received.ack()
        except BusUnavailableError as error:
            log.warning("%s left for later: %s", received.subject, error)
        except Exception as error:  # delivered again, and dead-lettered when it fails every time
            log.exception("could not handle %s, attempt %d", received.subject, received.attempt)
            if handle == self._on_event and received.attempt >= _MAX_ATTEMPTS:
                with contextlib.suppress(BusUnavailableError):  # it stays, and comes again
                    await received.dead_letter(f"the scheduler cannot handle it: {type(error).__name__}: {error}")
            else:
                await received.nak(1.0)

    async def _on_request(self, received: Received) -> None:
        assert received.envelope is not None
        match received.envelope.data:
            case EvaluationRequested() as request:
                await self._lifecycle.request(request, received.envelope.trace)
            case CancellationRequested() as cancellation:
                await self._lifecycle.cancel(cancellation, received.envelope.trace)
            case other:
                await received.dead_letter(f"{type_of(other)} is no request")

    async def _on_event(self, received: Received) -> None:
        assert received.envelope is not None
        trace = received.envelope.trace
        match received.envelope.data:
            case TaskStarted() as event:
                await self._lifecycle.begun(event)
            case TaskCompleted() as event:
                await self._lifecycle.ended(event.evaluation_id, event.task_id, "completed", trace)
            case TaskFailed() as event:
                outcome: Outcome = "cancelled" if event.failure.code == "cancelled" else "failed"
                await self._lifecycle.ended(event.evaluation_id, event.task_id, outcome, trace)
            case other:
                await received.dead_letter(f"{type_of(other)} is not what its subject says")

    async def _on_dead(self, received: Received, reason: str) -> None:
        """Tell the one who asked that his request was given up."""
        if received.envelope is not None and isinstance(request := received.envelope.data, EvaluationRequested):
            failure = Failure(code="internal", message=f"the scheduler gave the request up: {reason}")
            await self._lifecycle.reject(request, failure, received.envelope.trace)

    async def _watch(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await until_stopped(asyncio.sleep(_CHECK_S), stop, name="scheduler-pause")
            if not self._bus.connected:
                continue  # who is live is not known
            try:
                await self._watchdog.check()
                await self._ledger.slim()
            except BusUnavailableError as error:
                log.warning("the watchdog is held up: %s", error)
