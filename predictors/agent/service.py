"""The agent: serves one framework on one machine.

It registers, takes tasks one at a time, has a worker process do them, and tells what came of them. It never
imports a framework.
"""

import asyncio
import contextlib
import logging
from collections import OrderedDict

from bus import subjects
from bus.connection import Bus
from bus.consumers import Consumer, Received
from bus.errors import BusError
from bus.registry import Registry
from bus.streams import TASKS
from predictors.agent.attempt import Attempt, Ending
from predictors.agent.identity import Identity, identify
from predictors.agent.keep_alive import KeepAlive, ended
from predictors.agent.reporter import Reporter, event_id, task_failed
from predictors.agent.task_queue import TaskQueue
from predictors.agent.task_runner import Place, TaskRunner
from predictors.data.manager import DataManager
from predictors.machine.lock import MachineLock
from predictors.worker.warm import WarmWorker
from schemas.agents import Load
from schemas.evaluation import Device
from schemas.failure import Failure
from schemas.settings import Settings
from schemas.system import SystemDescribed
from schemas.tasks import TaskAssigned

log = logging.getLogger(__name__)

FINISH_S = 1.0
"""A task this close to its end when the agent is stopped may still end; any other is given back."""
GOODBYE_S = 1.0
REMEMBERED = 1000
"""Tasks whose end is remembered: one delivered again because its acknowledgement was lost is not done again."""


async def run(
    settings: Settings, stop: asyncio.Event, *, framework: str, device: Device = "cpu", agent_id: str | None = None
) -> None:
    """Serve `framework` until `stop` is set, then give back what is in hand and be gone within five seconds.

    A framework that cannot run here is registered with the reason, and takes no tasks. Raises
    BusUnavailableError when there is no bus at the start; afterwards its absence is waited out.
    """
    starting = asyncio.create_task(_start(settings, framework, device, agent_id), name="start-agent")
    stopped = asyncio.create_task(stop.wait(), name="stop-agent")
    try:
        await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            agent = starting.result()
            try:
                await agent.serve(stop)
            finally:
                await agent.close()
    finally:
        await ended(starting, stopped)


async def _start(settings: Settings, framework: str, device: Device, agent_id: str | None) -> "Agent":
    bus = await Bus.connect(settings.bus_url, name=f"agent-{framework}", timeout_s=settings.bus_connect_timeout_s)
    try:
        await bus.prepare(settings)
        identity = await identify(framework, device, agent_id, memory_bytes=settings.worker_memory_bytes)
        return Agent(settings, bus, identity)
    except BaseException:
        await bus.close(GOODBYE_S)
        raise


class Agent:
    """One agent on a bus. `serve` may be called once."""

    def __init__(self, settings: Settings, bus: Bus, identity: Identity) -> None:
        self._settings = settings
        self._bus = bus
        self._identity = identity
        self._registry = Registry(bus)
        self._load = Load()
        self._ended: OrderedDict[str, Ending] = OrderedDict()
        self._lock = MachineLock(settings.machine_lock)
        self._worker = WarmWorker(
            settings.cache_dir / "work", inherit=(self._lock.descriptor,), memory_bytes=settings.worker_memory_bytes
        )
        self._runner = TaskRunner(
            Place(
                settings=settings,
                framework=identity.stack.framework,
                system_id=identity.system.system_id,
                environment=identity.environment,
                data=DataManager(
                    settings.cache_dir,
                    mirror=settings.asset_mirror,
                    max_asset_bytes=settings.asset_max_bytes,
                ),
                lock=self._lock,
                worker=self._worker,
            )
        )

    async def serve(self, stop: asyncio.Event) -> None:
        """Register and take tasks until `stop` is set; then give back what is in hand."""
        identity = self._identity
        log.info("agent %s: %s", identity.agent_id, identity.unavailable or identity.stack)
        heartbeat = asyncio.create_task(self._heartbeat(), name="heartbeat")
        working = asyncio.create_task(self._work(stop), name="tasks")
        stopped = asyncio.create_task(stop.wait(), name="stop")
        try:
            await asyncio.wait({heartbeat, working, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if stop.is_set() and self._load.running:
                await asyncio.wait({working}, timeout=FINISH_S)
        finally:
            await ended(working, heartbeat, stopped)

    async def close(self) -> None:
        """Leave nothing behind: no worker, no lock, no registration. Bounded, also when the bus is down."""
        await self._worker.discard()
        self._lock.close()
        try:
            async with asyncio.timeout(GOODBYE_S):
                await self._registry.remove_agent(self._identity.agent_id)
        except (BusError, TimeoutError) as error:
            log.info("agent %s: its registration ends with its lease: %s", self._identity.agent_id, error)
        await self._bus.close(GOODBYE_S)

    async def _heartbeat(self) -> None:
        """Register at once, then renew: on time, and when the load changed."""
        described = False
        while True:
            try:
                await self._registry.heartbeat(self._identity.entry(self._load), self._settings.lease_s)
                if not described:
                    event = SystemDescribed(agent_id=self._identity.agent_id, system=self._identity.system)
                    await self._bus.publish_event(event)
                    described = True
            except BusError as error:
                log.warning("agent %s: heartbeat: %s", self._identity.agent_id, error)
            await asyncio.sleep(self._settings.heartbeat_s)

    async def _work(self, stop: asyncio.Event) -> None:
        if self._identity.unavailable is not None:
            await asyncio.Event().wait()  # registered for people to see; there is nothing it can do
        ack_wait_s = self._settings.task_ack_wait_s
        own = self._consumer(self._identity.agent_id)
        queue = TaskQueue(self._consumer(None), own, ack_wait_s=ack_wait_s)
        try:
            while not stop.is_set():
                received = await queue.next()
                try:
                    async with KeepAlive(received, ack_wait_s):
                        await self._do(received)
                except asyncio.CancelledError:
                    await _give_back(received)
                    raise
                except Exception:  # its end could not be told: it is delivered again, and counted
                    log.exception("agent %s: task of %s", self._identity.agent_id, received.subject)
                    await _give_back(received, delay_s=1.0)
        finally:
            await queue.close()

    async def _do(self, received: Received) -> None:
        task = received.envelope.data if received.envelope is not None else None
        if not isinstance(task, TaskAssigned):
            await received.dead_letter(f"not a task: {received.envelope.type if received.envelope else 'nothing'}")
            return
        if task.task_id in self._ended:
            await received.ack()  # done before; the acknowledgement was lost on the way
            return
        reporter = Reporter(
            self._bus,
            task,
            attempt=received.attempt,
            agent_id=self._identity.agent_id,
            system_id=self._identity.system.system_id,
            trace=received.envelope.trace if received.envelope is not None else None,
        )
        self._load = self._load.model_copy(update={"running": 1})
        ending: Ending | None = None
        try:
            ending = await Attempt(self._bus, self._runner, received, task, reporter).run()
        finally:
            self._load = _after(self._load, ending)
        self._ended[task.task_id] = ending
        if len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)

    async def _lost(self, received: Received, reason: str) -> None:
        """Tell that a task was delivered too often: whoever takes it dies of it."""
        task = received.envelope.data if received.envelope is not None else None
        if not isinstance(task, TaskAssigned):
            return
        failure = Failure(
            code="agent_lost",
            message=f"the task was {reason}: every agent that took it went away",
            hint="look at the agents' logs; the task may take down the machine",
        )
        event = task_failed(task, received.attempt, failure, agent_id=self._identity.agent_id)
        trace = received.envelope.trace if received.envelope is not None else None
        await self._bus.publish_event(event, id=event_id(task.task_id, received.attempt, "failed"), trace=trace)

    def _consumer(self, agent_id: str | None) -> Consumer:
        """Return the consumer of the stack's tasks, or of the agent's own."""
        stack = self._identity.stack
        return Consumer(
            self._bus,
            stream=TASKS,
            durable=subjects.agent_consumer(agent_id) if agent_id else subjects.stack_consumer(stack),
            filters=[subjects.task(stack, agent_id)],
            ack_wait_s=self._settings.task_ack_wait_s,
            max_attempts=self._settings.task_max_attempts,
            on_dead=self._lost,
        )


async def _give_back(received: Received, delay_s: float = 0) -> None:
    """Have the task delivered again; when that cannot be told, the server does so by itself later."""
    with contextlib.suppress(BusError):
        await received.nak(delay_s)


def _after(load: Load, ending: Ending | None) -> Load:
    done = load.completed + (ending == "completed")
    return Load(running=0, completed=done, failed=load.failed + (ending == "failed"))
