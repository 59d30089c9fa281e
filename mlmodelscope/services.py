"""The services as coroutines, each imported only where it runs."""

import asyncio
from collections.abc import Awaitable
from urllib.parse import urlsplit

from mlmodelscope.directory import DataDirectory
from mlmodelscope.run_service import Service
from schemas.evaluation import Device
from schemas.settings import Settings


async def serve_bus(settings: Settings, stop: asyncio.Event) -> None:
    """Run the embedded NATS server on the port of `bus_url`, with its state in the data directory."""
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
            await stop.wait()
            await _outlast_clients(settings)
    finally:
        directory.withdraw("bus")
        directory.unlock()


async def _outlast_clients(settings: Settings) -> None:
    """Give the other services a moment to say goodbye when all were told to stop at once (honcho does)."""
    run = DataDirectory(settings.data_dir)
    for _ in range(10):
        if run.announced("api") is None:
            return
        await asyncio.sleep(0.1)


async def serve_store(settings: Settings, stop: asyncio.Event) -> None:
    """Run ingest and the API over one store: the embedded engine allows one process a directory."""
    from services.api import service as api
    from services.ingest import run as ingest
    from services.store import open_store

    store = await asyncio.to_thread(open_store, settings)
    try:
        async with asyncio.TaskGroup() as group:
            for name, work in (("ingest", ingest(settings, stop, store)), ("api", api.run(settings, stop, store))):
                group.create_task(_stopping_all(work, stop), name=name)
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
