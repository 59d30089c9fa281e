"""Fixtures that several suites share."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bus.connection import Bus
from bus.server import NatsServer
from schemas.settings import Settings

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def asset_mirror() -> Path:
    """The directory of real models and data, by digest. Without it the tests that need it fail, they do not skip."""
    named = os.environ.get("MLMODELSCOPE_ASSET_MIRROR")
    mirror = Path(named) if named else REPOSITORY.parent / "shared" / "assets"
    assert (mirror / "index.json").is_file(), (
        f"no asset mirror at {mirror}: set MLMODELSCOPE_ASSET_MIRROR to a directory with an index.json"
    )
    return mirror


@pytest.fixture
async def nats_server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    """A real NATS server with JetStream of its own, on a free port."""
    async with NatsServer(tmp_path / "nats") as server:
        yield server


@pytest.fixture
def settings(tmp_path: Path, nats_server: NatsServer) -> Settings:
    """Settings of a stack of its own: state under the test's directory, short leases."""
    return Settings(
        data_dir=tmp_path / "data",
        cache_dir=tmp_path / "cache",
        bus_url=nats_server.url,
        task_ack_wait_s=2.0,
        heartbeat_s=0.2,
        lease_s=1.5,
        machine_lock=tmp_path / "machine.lock",
    )


@pytest.fixture
async def bus(settings: Settings) -> AsyncIterator[Bus]:
    """A connection to the test's own server, streams and buckets made."""
    connection = await Bus.connect(settings.bus_url, name="test", timeout_s=10)
    await connection.prepare(settings)
    yield connection
    await connection.close()
