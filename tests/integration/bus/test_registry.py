"""The registry: leases that end, manifests by version, evaluations that are created once and updated in order."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager

import pytest

from bus.connection import Bus
from bus.errors import BusNotReadyError, PayloadTooLargeError, RevisionConflictError
from bus.registry import Registry
from bus.server import NatsServer
from bus.streams import bucket_stream, key_subject
from schemas.agents import AgentRegistered, Hardware, Load, Stack
from schemas.events import EvaluationState
from schemas.manifests import FrameworkManifest, PythonEnvironment
from schemas.settings import Settings

Eventually = Callable[[Callable[[], Awaitable[bool]]], Awaitable[None]]

WAIT_S = 15.0


@pytest.fixture
def registry(bus: Bus) -> Registry:
    """A registry on the test's own bus."""
    return Registry(bus)


def agent(agent_id: str, completed: int = 0) -> AgentRegistered:
    return AgentRegistered(
        agent_id=agent_id,
        hostname="h",
        pid=1,
        stack=Stack(architecture="amd64", device="cpu", framework="onnxruntime", version="1.31.1"),
        formats=("onnx",),
        hardware=Hardware(system_id="s"),
        load=Load(completed=completed),
        started_ns=1,
        heartbeat_ns=2,
    )


def manifest(name: str = "pytorch", version: str = "2.13.0", description: str = "") -> FrameworkManifest:
    return FrameworkManifest(
        name=name, version=version, description=description, python=PythonEnvironment(requirements=("torch",))
    )


def state(evaluation_id: str = "e1", **fields: object) -> EvaluationState:
    return EvaluationState.model_validate(
        {"evaluation_id": evaluation_id, "status": "running", "updated_ns": 1, **fields}
    )


async def test_agent_is_there_until_its_lease_ends(registry: Registry, eventually: Eventually) -> None:
    """A registered agent is listed; one that stops renewing is gone; one that comes back is there again."""
    await registry.heartbeat(agent("dies"), 0.5)
    await registry.heartbeat(agent("lives"), 60.0)
    assert await registry.agents() == [agent("dies"), agent("lives")]

    async def gone() -> bool:
        return await registry.agents() == [agent("lives")]

    await eventually(gone)
    await registry.heartbeat(agent("dies", completed=1), 60.0)
    assert await registry.agents() == [agent("dies", completed=1), agent("lives")]


async def test_heartbeat_renews_the_lease(registry: Registry) -> None:
    """An agent whose heartbeats go on outlives its lease, and its entry is the last that it sent."""
    for beat in range(10):
        await registry.heartbeat(agent("a", completed=beat), 1.0)
        await asyncio.sleep(0.3)
        assert await registry.agents() == [agent("a", completed=beat)]


async def test_removed_agent_is_gone_at_once(registry: Registry) -> None:
    """An agent that stops in order does not wait for its lease; removing one that is not there is no error."""
    await registry.heartbeat(agent("a"), 60.0)
    await registry.remove_agent("a")
    await registry.remove_agent("never-there")
    assert await registry.agents() == []


async def test_watch_shows_arrival_renewal_expiry_and_return(registry: Registry) -> None:
    """A watcher first sees what there is, perhaps nothing, then every change, the end of a lease included."""
    async with aclosing(registry.watch_agents()) as changes, asyncio.timeout(WAIT_S):
        assert await anext(changes) == []
        await registry.heartbeat(agent("a"), 60.0)
        assert await anext(changes) == [agent("a")]
        await registry.heartbeat(agent("a", completed=1), 1.0)
        assert await anext(changes) == [agent("a", completed=1)]
        assert await anext(changes) == []
        await registry.heartbeat(agent("a", completed=2), 60.0)
        assert await anext(changes) == [agent("a", completed=2)]
        await registry.remove_agent("a")
        assert await anext(changes) == []


async def test_watch_sees_what_changed_while_the_server_was_away(nats_server: NatsServer, registry: Registry) -> None:
    """After a restart a watcher is told what holds then, a lease that ended meanwhile included."""
    await registry.heartbeat(agent("dies"), 1.0)
    await registry.heartbeat(agent("lives"), 3600.0)
    async with aclosing(registry.watch_agents()) as changes, asyncio.timeout(WAIT_S):
        assert len(await anext(changes)) == 2
        os.kill(nats_server.pid, signal.SIGKILL)
        await nats_server.wait()
        await asyncio.sleep(1.2)
        await nats_server.restart()
        while await anext(changes) != [agent("lives")]:
            pass
        await registry.heartbeat(agent("new"), 3600.0)
        while await anext(changes) != [agent("lives"), agent("new")]:
            pass


async def test_agents_survive_a_restart_within_their_lease(nats_server: NatsServer, registry: Registry) -> None:
    """A restart of the bus does not make every agent vanish."""
    await registry.heartbeat(agent("a"), 3600.0)
    await nats_server.restart()
    assert await registry.agents() == [agent("a")]


async def test_entry_that_cannot_be_decoded_hides_no_other(bus: Bus, registry: Registry) -> None:
    """Something foreign in the bucket is left out, and the others are listed."""
    await registry.heartbeat(agent("a"), 60.0)
    await bus.store(key_subject("predictors", "foreign"), b"garbage")
    assert await registry.agents() == [agent("a")]


@pytest.mark.parametrize("version", ["2.13.0", "2.13.0+cpu", "2.0.0-rc.1", "2.13.0.dev20260101+cu130"])
async def test_manifest_of_any_version_can_be_put_got_and_removed(registry: Registry, version: str) -> None:
    """Dots and plus signs in a version, and dots in a name, are no obstacle."""
    one = manifest("mobilenet-v1-0.25", version)
    assert await registry.get_manifest("framework", one.name, version) is None
    assert await registry.remove_manifest("framework", one.name, version) is False
    assert await registry.put_manifest("framework", one) is True
    assert await registry.get_manifest("framework", one.name, version) == one
    assert await registry.manifests("framework") == [one]
    assert await registry.remove_manifest("framework", one.name, version) is True
    assert await registry.get_manifest("framework", one.name, version) is None
    assert await registry.manifests("framework") == []
    assert await registry.put_manifest("framework", one) is True


async def test_putting_the_same_manifest_again_changes_nothing(registry: Registry) -> None:
    """The caller learns whether there is anything to tell others."""
    assert await registry.put_manifest("framework", manifest()) is True
    assert await registry.put_manifest("framework", manifest()) is False
    assert await registry.put_manifest("framework", manifest(description="changed")) is True
    assert await registry.manifests("framework") == [manifest(description="changed")]
    assert await registry.manifests("model") == []


async def test_manifests_are_listed_by_name_then_version(registry: Registry) -> None:
    """Versions are ordered as versions, not as text; more entries than one batch are all there."""
    versions = [f"1.{minor}.0" for minor in range(300)]
    await asyncio.gather(*(registry.put_manifest("framework", manifest("b", version)) for version in versions))
    await registry.put_manifest("framework", manifest("a", "9.0.0"))
    listed = [(one.name, one.version) for one in await registry.manifests("framework")]
    assert listed == [("a", "9.0.0"), *(("b", version) for version in versions)]


async def test_watch_manifests_shows_additions_and_removals(registry: Registry) -> None:
    """Manifests come and go at run time."""
    async with aclosing(registry.watch_manifests("framework")) as changes, asyncio.timeout(WAIT_S):
        assert await anext(changes) == []
        await registry.put_manifest("framework", manifest())
        assert await anext(changes) == [manifest()]
        await registry.remove_manifest("framework", "pytorch", "2.13.0")
        assert await anext(changes) == []


async def test_manifest_over_the_limit_is_refused(registry: Registry) -> None:
    """A manifest too large for the bus is a clear error."""
    with pytest.raises(PayloadTooLargeError):
        await registry.put_manifest("framework", manifest(description="x" * 2**20))


async def test_evaluation_is_created_once_however_many_try(settings: Settings, bus: Bus) -> None:
    """Of many schedulers at once exactly one creates the evaluation."""
    buses = [bus, *await asyncio.gather(*(Bus.connect(settings.bus_url, name=f"s{i}") for i in range(4)))]
    created = await asyncio.gather(*(Registry(one).create_evaluation(state()) for one in buses for _ in range(5)))
    assert sorted(created) == [False] * 24 + [True]
    await asyncio.gather(*(one.close() for one in buses[1:]))


async def test_evaluation_is_updated_in_order(registry: Registry) -> None:
    """An update on top of what was read succeeds; one on top of something older is a conflict and changes nothing."""
    assert await registry.get_evaluation("e1") is None
    assert await registry.create_evaluation(state())
    found = await registry.get_evaluation("e1")
    assert found is not None
    assert found[0] == state()
    second = await registry.update_evaluation(state(published=True), found[1])
    with pytest.raises(RevisionConflictError, match="e1"):
        await registry.update_evaluation(state(cancel_requested=True), found[1])
    assert await registry.get_evaluation("e1") == (state(published=True), second)
    with pytest.raises(RevisionConflictError):
        await registry.update_evaluation(state("never-created"), 77)


async def test_evaluations_are_listed(registry: Registry) -> None:
    """The scheduler finds what it had in hand."""
    for number in (3, 1, 2):
        await registry.create_evaluation(state(f"e{number}"))
    assert [one.evaluation_id for one in await registry.evaluations()] == ["e1", "e2", "e3"]


async def test_watch_evaluation_shows_its_states_only(registry: Registry) -> None:
    """A watcher sees the state there is and each later one, of this evaluation alone."""
    await registry.create_evaluation(state("e1"))
    await registry.create_evaluation(state("e2"))
    async with aclosing(registry.watch_evaluation("e1")) as states, asyncio.timeout(WAIT_S):
        assert await anext(states) == state("e1")
        found = await registry.get_evaluation("e1")
        assert found is not None
        await registry.update_evaluation(state("e1", status="completed"), found[1])
        assert await anext(states) == state("e1", status="completed")


@asynccontextmanager
async def answers_cut_once(server: NatsServer, word: bytes) -> AsyncIterator[str]:
    """Stand between client and server; cut the connection once, after the server stored a message that has `word`."""
    cut: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", server.port)
        waiting = False

        async def forward() -> None:
            nonlocal waiting
            while data := await reader.read(2**16):
                if word in data and not cut:
                    cut.append(data)
                    waiting = True
                far_writer.write(data)
            far_writer.close()

        async def answer() -> None:
            while data := await far_reader.read(2**16):
                if waiting:
                    break
                writer.write(data)
            writer.close()
            far_writer.close()

        await asyncio.gather(forward(), answer(), return_exceptions=True)

    proxy = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"nats://127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
    finally:
        proxy.close()
    assert cut


async def test_write_whose_acknowledgement_was_lost_is_still_ours(
    nats_server: NatsServer, registry: Registry, settings: Settings
) -> None:
    """A creation and an update that the server stored, and whose answers never came, are not taken for another's."""
    async with answers_cut_once(nats_server, b"cut-create") as url:
        bus = await Bus.connect(url, name="cut")
        async with asyncio.timeout(WAIT_S):
            assert await Registry(bus).create_evaluation(state("cut-create"))
        assert bus.epoch == 2
        await bus.close()
    found = await registry.get_evaluation("cut-create")
    assert found is not None
    async with answers_cut_once(nats_server, b"cut-create") as url:
        bus = await Bus.connect(url, name="cut")
        async with asyncio.timeout(WAIT_S):
            revision = await Registry(bus).update_evaluation(state("cut-create", published=True), found[1])
        await bus.close()
    assert await registry.get_evaluation("cut-create") == (state("cut-create", published=True), revision)
    assert await registry.create_evaluation(state("cut-create")) is False


async def test_without_buckets_it_is_not_ready(nats_server: NatsServer, settings: Settings) -> None:
    """Before `prepare` every method says what is missing."""
    bus = await Bus.connect(settings.bus_url, name="t")
    bus.retry_for_s = 0.2
    registry = Registry(bus)
    try:
        with pytest.raises(BusNotReadyError, match="prepare"):
            await registry.agents()
        with pytest.raises(BusNotReadyError, match="prepare"):
            await registry.get_evaluation("e1")
        with pytest.raises(BusNotReadyError, match="prepare"):
            await registry.create_evaluation(state())
    finally:
        await bus.close()


async def test_readers_leave_nothing_on_the_server(bus: Bus, registry: Registry, eventually: Eventually) -> None:
    """Listing and watching make consumers, and take them away."""
    await registry.agents()
    async with aclosing(registry.watch_agents()) as changes:
        await anext(changes)

    async def nothing_left() -> bool:
        return not await bus.jetstream.consumers_info(bucket_stream("predictors"))

    await eventually(nothing_left)
