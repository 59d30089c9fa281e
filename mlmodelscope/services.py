"""The services as coroutines, each imported only where it runs."""

import asyncio
import logging
import shutil
from collections.abc import Awaitable
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from mlmodelscope.directory import DataDirectory
from mlmodelscope.run_service import Service
from schemas.evaluation import Device
from schemas.settings import Settings

if TYPE_CHECKING:
    from bus.server import NatsServer

log = logging.getLogger(__name__)

LOOK_S = 0.5
"""How often the bus looks whether its server still lives. Seldom: a machine that measures is not woken for nothing."""
LOOKS_AT_WRITING = 10
"""Every so many of these it asks the server whether it can write."""
ROOM_BYTES = 32 * 2**20
"""A server that could not write is started again when this much is free."""


async def serve_bus(settings: Settings, stop: asyncio.Event) -> None:
    """Run the embedded NATS server on the port of `bus_url`, with its state in the data directory.

    A server that dies is started again on its port and its state; one that could not write, because the disk was full,
    when there is room again. Raises ServerStartError when that fails.
    """
    from bus.server import NatsServer

    directory = DataDirectory(settings.data_dir, "bus")
    directory.lock()
    try:
        server = NatsServer(
            settings.data_dir / "nats",
            port=urlsplit(settings.bus_url).port or 4222,
            max_memory_bytes=settings.bus_max_memory_bytes,
            max_file_bytes=settings.bus_max_file_bytes,
        )
        async with server:
            directory.announce("bus", url=server.url, pid=server.pid)
            while not await _stopped_before_failure(server, stop):
                log.error("starting the NATS server again")
                await server.restart()
                directory.announce("bus", url=server.url, pid=server.pid)
            await _outlast_clients(settings)
    finally:
        directory.withdraw("bus")
        directory.unlock()


async def _stopped_before_failure(server: "NatsServer", stop: asyncio.Event) -> bool:
    """Wait for `stop`, or until the server must be started again, and return whether it was `stop`."""
    looks = 0
    while server.running:
        try:
            await asyncio.wait_for(stop.wait(), LOOK_S)
        except TimeoutError:
            looks += 1
        else:
            return True
        if looks % LOOKS_AT_WRITING == 0 and (reason := await server.write_error()):
            free = shutil.disk_usage(server.data_dir).free
            log.error("the NATS server cannot write to %s, where %d bytes are free: %s", server.data_dir, free, reason)
            if free >= ROOM_BYTES:
                return stop.is_set()
    return stop.is_set()


async def _outlast_clients(settings: Settings) -> None:
    """Give the other services a moment to say goodbye when all were told to stop at once (honcho does)."""
    run = DataDirectory(settings.data_dir)
    for _ in range(10):
        if run.announced("api") is None:
            return
        await asyncio.sleep(0.1)


async def serve_store(settings: Settings, stop: asyncio.Event) -> None:
    """Run ingest and the API over one store: the embedded engine allows one process a directory.

    Raises what the first of the two to fail raised.
    """
    from services.api import service as api
    from services.ingest import run as ingest
    from services.store import open_store

    store = await asyncio.to_thread(open_store, settings)
    try:
        async with asyncio.TaskGroup() as group:
            for name, work in (("ingest", ingest(settings, stop, store)), ("api", api.run(settings, stop, store))):
                group.create_task(_stopping_all(work, stop), name=name)
    except ExceptionGroup as failures:
        for other in failures.exceptions[1:]:
            log.error("%s", other)
        raise failures.exceptions[0] from None
    finally:
        DataDirectory(settings.data_dir).withdraw("api")
        await asyncio.to_thread(store.close)


async def _stopping_all(work: Awaitable[None], stop: asyncio.Event) -> None:
    """Await one half of the store; without it the other is no store, so its end is the end of both."""
    try:
        await work
    finally:
        stop.set()


async def serve_scheduler(settings: Settings, stop: asyncio.Event) -> None:
    """Run the scheduler."""
    from services.scheduler.service import run

    await run(settings, stop)


def agent(framework: str, device: Device, agent_id: str | None) -> Service:
    """Return the service of one agent."""

    async def serve(settings: Settings, stop: asyncio.Event) -> None:
        from predictors.agent.service import run

        await run(settings, stop, framework=framework, device=device, agent_id=agent_id)

    return serve


SERVICES: dict[str, Service] = {"bus": serve_bus, "store": serve_store, "scheduler": serve_scheduler}
