"""The embedded server: it starts, says clearly why it does not, and never outlives its parent."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest

from bus.connection import Bus
from bus.errors import DataDirInUseError, PortTakenError, ServerStartError
from bus.server import NatsServer
from bus.subjects import event_of
from schemas.events import TaskProgressed
from schemas.settings import Settings

Eventually = Callable[[Callable[[], Awaitable[bool]]], Awaitable[None]]

PARENT = """
import asyncio, pathlib, sys
from bus.server import NatsServer

async def main():
    server = NatsServer(pathlib.Path(sys.argv[1]))
    await server.start()
    print(server.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_listens_on_loopback_only(nats_server: NatsServer) -> None:
    """Neither clients nor monitoring are reachable from another machine."""
    addresses = {c.laddr.ip for c in psutil.Process(nats_server.pid).net_connections() if c.status == "LISTEN"}
    assert addresses == {"127.0.0.1"}


async def test_second_server_on_one_data_directory_is_refused(nats_server: NatsServer) -> None:
    """Two servers would destroy each other's store; the error names the directory."""
    with pytest.raises(DataDirInUseError, match=str(nats_server.data_dir)):
        await NatsServer(nats_server.data_dir).start()
    assert nats_server.running


async def test_data_directory_is_free_after_stop_and_after_a_kill(tmp_path: Path) -> None:
    """The lock lives exactly as long as the server, however that ends."""
    first = NatsServer(tmp_path / "nats")
    await first.start()
    os.kill(first.pid, signal.SIGKILL)
    assert await first.wait() == -signal.SIGKILL
    async with NatsServer(tmp_path / "nats") as second:
        assert second.running
        await first.stop()
    async with NatsServer(tmp_path / "nats"):
        pass


async def test_taken_port_is_named(tmp_path: Path) -> None:
    """A port that another process listens on gives an error that says which."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(PortTakenError, match=str(port)):
            await NatsServer(tmp_path / "nats", port=port).start()


async def test_server_that_cannot_start_shows_its_log(tmp_path: Path) -> None:
    """When the store cannot be made, the error has the server's own words."""
    (tmp_path / "nats").mkdir()
    (tmp_path / "nats" / "jetstream").write_text("a file where a directory should be")
    with pytest.raises(ServerStartError, match="storage directory is not a directory"):
        await NatsServer(tmp_path / "nats").start()


async def test_stop_may_be_called_twice_and_before_start(tmp_path: Path) -> None:
    """Stopping is idempotent."""
    server = NatsServer(tmp_path / "nats")
    await server.stop()
    await server.start()
    await server.start()
    await server.stop()
    await server.stop()
    assert not server.running


async def test_server_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    """Stop is bounded: a server that does not react is killed."""
    server = NatsServer(tmp_path / "nats")
    await server.start()
    os.kill(server.pid, signal.SIGSTOP)
    await server.stop(timeout_s=0.1)
    assert await server.wait() == -signal.SIGKILL


async def test_restart_keeps_port_and_messages(nats_server: NatsServer, bus: Bus, settings: Settings) -> None:
    """After a restart the same address has the same content."""
    event = TaskProgressed(evaluation_id="e", task_id="t", attempt=1, phase="open", time_ns=1)
    await bus.publish_event(event)
    url, pid = nats_server.url, nats_server.pid
    await nats_server.restart()
    assert nats_server.url == url
    assert nats_server.pid != pid
    again = await Bus.connect(url, name="again")
    try:
        assert (await again.jetstream.get_last_msg("EVENTS", event_of(event))).seq == 1
    finally:
        await again.close()


async def test_dies_with_a_parent_that_is_killed(tmp_path: Path, eventually: Eventually) -> None:
    """SIGKILL to the parent leaves no server behind."""
    parent = await asyncio.to_thread(
        subprocess.Popen, [sys.executable, "-c", PARENT, str(tmp_path / "nats")], stdout=subprocess.PIPE
    )
    try:
        assert parent.stdout is not None
        pid = int(await asyncio.to_thread(parent.stdout.readline))
        assert psutil.pid_exists(pid)
        parent.kill()

        async def gone() -> bool:
            try:
                return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)  # nobody here may reap it
            except psutil.NoSuchProcess:
                return True

        await eventually(gone)
    finally:
        parent.kill()
        parent.wait()
        assert parent.stdout is not None
        parent.stdout.close()
