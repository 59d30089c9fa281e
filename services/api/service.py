"""The API as a service."""

import asyncio
import contextlib
import errno
import json
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import uvicorn

from bus.connection import Bus
from schemas.settings import Settings
from services.api.app import create_app
from services.api.guard import check_exposure
from services.errors import ServiceError
from services.stopping import end_tasks, until_stopped
from services.store import Store

log = logging.getLogger(__name__)

CLOSE_S = 1
"""Requests in work when the service stops may take this long to end."""


class Server(uvicorn.Server):
    """Uvicorn that says when it is ready, without its signal handlers: signals are the command line's."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept connections."""
        await super().startup(sockets)
        self.ready.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


async def run(settings: Settings, stop: asyncio.Event, store: Store) -> None:
    """Serve HTTP until `stop` is set; gone within three seconds of it, also when the bus is down.

    The address is taken first, and written to `data_dir/run/api.json` (`url`, `host`, `port`, `pid`) once requests are
    answered. The store is not closed. Raises SettingsError: beyond loopback without a token; ServiceError: the address
    cannot be had; BusUnavailableError: no bus within the time that `settings` allow.
    """
    check_exposure(settings)
    listener = _listen(settings.api_host, settings.api_port)
    try:
        bus = await until_stopped(
            Bus.connect(settings.bus_url, name="api", timeout_s=settings.bus_connect_timeout_s),
            stop,
            name="api-connect",
        )
        if bus is None:
            return
        try:
            await until_stopped(bus.prepare(settings), stop, name="api-prepare")
            if not stop.is_set():
                await _serve(settings, stop, store, bus, listener)
        finally:
            await bus.close(1.0)
    finally:
        listener.close()


async def _serve(settings: Settings, stop: asyncio.Event, store: Store, bus: Bus, listener: socket.socket) -> None:
    app = create_app(settings, store, bus)
    config = uvicorn.Config(
        app,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        timeout_graceful_shutdown=CLOSE_S,
    )
    server = Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]), name="api-serve")
    stopping = asyncio.create_task(stop.wait(), name="api-stop")
    announcement = settings.data_dir / "run" / "api.json"
    try:
        if await until_stopped(server.ready.wait(), stop, name="api-ready"):
            _announce(announcement, listener)
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        announcement.unlink(missing_ok=True)
        app.state.context.stopping.set()
        server.should_exit = True
        await end_tasks(serving, grace_s=CLOSE_S + 0.5, bound_s=0.5)
        await end_tasks(stopping)
    if serving.done() and not serving.cancelled():
        serving.result()


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that has the address and does not accept yet. Raises ServiceError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except BaseException:
            listener.close()
            raise
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ServiceError(
                f"port {port} on {host} is taken by another process: stop it, or choose another with "
                "MLMODELSCOPE_API_PORT (0: any free one)"
            ) from error
        raise ServiceError(f"the API cannot listen on {host} port {port}: {error.strerror or error}") from error
    listener.setblocking(False)
    return listener


def _announce(path: Path, listener: socket.socket) -> None:
    """Write where the API listens, in one piece."""
    host, port = listener.getsockname()[:2]
    called = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    url = f"http://[{called}]:{port}" if ":" in called else f"http://{called}:{port}"
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_text(json.dumps({"url": url, "host": host, "port": port, "pid": os.getpid()}))
    temporary.replace(path)
    log.info("listening on %s", url)
