"""Worker processes as an agent sees them: what they are born with, what they say, how they end."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from predictors.agent.task_assets import assets_of
from predictors.agent.task_record import evaluation_key
from predictors.contract import Batch, Opened, OpenModel, Outputs
from predictors.errors import DeviceUnavailableError, PredictError, WorkerCrashedError, WorkerOutOfMemoryError
from predictors.frameworks.registry import load_framework
from predictors.machine.environment import describe_environment
from predictors.machine.lock import MachineLock
from predictors.worker.messages import Failed, Finished, Job, Message, Progress, Rows
from predictors.worker.opened_model import OpenedModel
from predictors.worker.process import WorkerProcess, WorkerSettings
from predictors.worker.warm import WarmWorker
from schemas.agents import Stack
from schemas.codec import encode
from schemas.scenario import Threads
from schemas.tasks import TaskAssigned
from tests.conftest import REPOSITORY
from tests.integration.agent_driver import is_alive, null_task, until

STACK = Stack(architecture="amd64", device="cpu", framework="null", version="1.0.0")


@asynccontextmanager
async def started(settings: WorkerSettings, *, inherit: tuple[int, ...] = ()) -> AsyncIterator[WorkerProcess]:
    """Return a worker that is killed in the end."""
    worker = await WorkerProcess.start(settings, inherit=inherit)
    try:
        yield worker
    finally:
        await worker.kill()


def job(assigned: TaskAssigned, scratch: Path) -> Job:
    """Return a task as the agent hands it to a worker, its files those of the repository."""
    files = {
        key: str(REPOSITORY / "manifests" / "assets" / asset.url.removeprefix("repo:"))
        for key, asset in assets_of(assigned).items()
    }
    return Job(task=encode(assigned), files=files, trusted=False, max_pixels=10**6, scratch=str(scratch))


def _of_process(pid: int, file: str) -> str:
    return Path(f"/proc/{pid}/{file}").read_text()


async def answers(worker: WorkerProcess) -> list[Message]:
    """Return all that a worker says to a job."""
    said: list[Message] = []
    while not said or not isinstance(said[-1], (Finished, Failed)):
        said.append(await worker.receive())
    return said


async def test_a_worker_says_what_its_framework_is() -> None:
    """The first message is the framework's own version, formats and build."""
    async with started(WorkerSettings("null")) as worker:
        ready = await worker.ready()
    framework = load_framework("null")
    assert (ready.version, ready.formats, ready.unavailable) == (framework.version(), framework.formats, None)


async def test_a_worker_of_an_unknown_framework_says_so() -> None:
    """A framework that nobody declares is not available, with its name in the reason."""
    async with started(WorkerSettings("caffe3")) as worker:
        assert "caffe3" in ((await worker.ready()).unavailable or "")


async def test_a_worker_answers_with_rows_and_then_figures(tmp_path: Path) -> None:
    """Progress may come before the measurement, rows after it, the figures last."""
    async with started(WorkerSettings("null")) as worker:
        await worker.ready()
        await worker.send(job(null_task(STACK), tmp_path))
        said = await answers(worker)
        await worker.send(job(null_task(STACK), tmp_path))
        again = await answers(worker)
    kinds = [type(message) for message in said]
    assert kinds[-1] is Finished and Rows in kinds
    assert Progress not in kinds[kinds.index(Rows) :]
    first, second = said[-1], again[-1]
    assert isinstance(first, Finished) and isinstance(second, Finished)
    assert first.cold_start.of_this_task and not second.cold_start.of_this_task
    assert first.accuracy == second.accuracy and first.pipeline.digest == second.pipeline.digest


async def test_a_worker_is_born_with_no_credentials_and_with_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """No token and no address of the platform reach a worker; the thread counts asked for do, before any import."""
    monkeypatch.setenv("MLMODELSCOPE_API_TOKEN", "secret-1")
    monkeypatch.setenv("MLMODELSCOPE_BUS_URL", "nats://user:secret-2@host")
    monkeypatch.setenv("CLICKHOUSE_URL", "clickhouse://user:secret-3@host")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-4")
    for name in ("NATS_CREDS", "DATABASE_DSN", "STRIPE_KEY", "PGPASSFILE", "GITHUB_PAT", "redis_url"):
        monkeypatch.setenv(name, "secret-5")
    monkeypatch.setenv("HARMLESS", "kept")
    settings = WorkerSettings("null", threads=Threads(intra_op=3), memory_bytes=8 * 2**30)
    async with started(settings) as worker:
        await worker.ready()
        variables = _of_process(worker.pid, "environ").split("\0")
        limits = _of_process(worker.pid, "limits")
    assert not [variable for variable in variables if "secret" in variable]
    assert "HARMLESS=kept" in variables
    assert "OMP_NUM_THREADS=3" in variables and "OPENBLAS_NUM_THREADS=3" in variables
    (line,) = [line for line in limits.splitlines() if line.startswith("Max address space")]
    assert str(8 * 2**30) in line


async def test_a_worker_is_apart_from_the_terminal() -> None:
    """A worker leads a session of its own: Ctrl-C at the agent's terminal does not reach it."""
    async with started(WorkerSettings("null")) as worker:
        await worker.ready()
        assert os.getsid(worker.pid) == worker.pid != os.getsid(0)


async def test_a_worker_too_small_for_python_is_told_as_such() -> None:
    """A limit on memory under which not even the framework imports is a failure that says memory, not a hang."""
    async with started(WorkerSettings("null", memory_bytes=60 * 2**20)) as worker:
        with pytest.raises(WorkerOutOfMemoryError, match="memory"):
            await worker.ready()


async def test_death_is_noticed_and_explained() -> None:
    """Whoever waits for a worker that is killed gets an error that names the signal."""
    async with started(WorkerSettings("null")) as worker:
        await worker.ready()
        waiting = asyncio.create_task(worker.receive())
        os.kill(worker.pid, signal.SIGTERM)
        with pytest.raises(WorkerCrashedError, match="SIGTERM"):
            await waiting
        assert not worker.alive


async def test_killing_and_closing_may_be_done_twice() -> None:
    """Killing a worker that is dead, or being killed, does nothing."""
    async with started(WorkerSettings("null")) as worker:
        await asyncio.gather(worker.kill(), worker.kill(), worker.close())
        await worker.kill()
        await worker.close()
    assert not is_alive(worker.pid)


async def test_a_worker_ends_by_itself_when_its_channel_closes() -> None:
    """An idle worker whose agent closes the channel exits in order, with code 0."""
    async with started(WorkerSettings("null")) as worker:
        await worker.ready()
        await worker.close()
        assert worker.exit_code == 0


async def test_a_worker_does_not_outlive_its_agent(tmp_path: Path) -> None:
    """The worker of an agent that is killed is gone, though it was busy, and so is the lock it inherited."""
    program = """
import asyncio, sys
from pathlib import Path
from predictors.machine.lock import MachineLock
from predictors.worker.process import WorkerProcess, WorkerSettings
from tests.integration.test_worker import STACK, job, null_task

async def main(directory):
    lock = MachineLock(directory / "lock")
    assert lock.try_acquire()
    worker = await WorkerProcess.start(WorkerSettings("null"), inherit=(lock.descriptor,))
    await worker.ready()
    await worker.send(job(null_task(STACK, options={"fail": "hang"}), directory))
    await worker.receive()
    print(worker.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main(Path(sys.argv[1])))
"""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    agent = subprocess.Popen(  # noqa: ASYNC220 - it is to be killed, not awaited
        [sys.executable, "-c", program, str(tmp_path)], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert agent.stdout is not None
    pid = int(await asyncio.to_thread(agent.stdout.readline))
    lock = MachineLock(tmp_path / "lock")
    assert is_alive(pid) and not lock.try_acquire()
    agent.kill()
    agent.wait()
    agent.stdout.close()
    await asyncio.wait_for(lock.acquire(), 10)
    await until(lambda: not is_alive(pid), "the worker is dead")
    lock.close()


async def test_a_waiter_that_gives_up_does_not_keep_the_machine(tmp_path: Path) -> None:
    """Waiting for the machine can be cancelled, and waited for again; nobody else is kept out by it."""
    holder, waiter, third = (MachineLock(tmp_path / "lock") for _ in range(3))
    assert holder.try_acquire()
    for _ in range(2):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(waiter.acquire(), 0.05)
    waiting = asyncio.create_task(waiter.acquire())
    await asyncio.sleep(0)
    holder.release()
    await asyncio.wait_for(waiting, 10)
    assert not third.try_acquire()

    with_nobody = asyncio.create_task(third.acquire())
    await asyncio.sleep(0.05)
    with_nobody.cancel()
    await asyncio.wait({with_nobody})
    waiter.release()
    await asyncio.wait_for(holder.acquire(), 10)
    for lock in (holder, waiter, third):
        lock.close()
        lock.close()


async def test_a_lock_file_that_was_removed_still_keeps_two_apart(tmp_path: Path) -> None:
    """What cleans up temporary directories does not let two agents measure at once from then on."""
    old = MachineLock(tmp_path / "lock")
    assert old.try_acquire()
    old.release()
    (tmp_path / "lock").unlink()
    new = MachineLock(tmp_path / "lock")
    assert new.try_acquire() and not old.try_acquire()
    new.release()
    assert old.try_acquire() and not new.try_acquire()
    for lock in (old, new):
        lock.close()


async def test_another_version_than_the_stacks_is_not_measured(tmp_path: Path) -> None:
    """An installation that was changed under a running agent never passes for the version the agent registered."""
    warm = WarmWorker(tmp_path)
    with pytest.raises(DeviceUnavailableError, match=r"0\.9\.0.*1\.0\.0"):
        await warm.get("null", null_task(STACK.model_copy(update={"version": "0.9.0"})), trusted=False)
    await warm.discard()


def test_a_model_that_writes_into_its_input_is_refused() -> None:
    """Inputs are used again and again: accuracy would fall from task to task on one warm worker."""

    class InPlace:
        def open(self, model: OpenModel) -> Opened:
            raise AssertionError("it is open")

        def predict(self, batch: Batch) -> Outputs:
            np.negative(batch[0], out=batch[0])
            return batch

        def close(self) -> None:
            pass

    model = OpenedModel(InPlace(), Opened(threads=Threads()), 1.0, 1.0)
    with pytest.raises(PredictError, match="writes into its input"):
        model.begin_task((np.ones((2, 3), np.float32),))


async def test_the_key_tells_environments_apart(tmp_path: Path) -> None:
    """Another Python, or another build of the same version, is not the same measurement."""
    assigned = null_task(STACK)
    async with started(WorkerSettings("null")) as worker:
        await worker.ready()
        await worker.send(job(assigned, tmp_path))
        finished = (await answers(worker))[-1]
    assert isinstance(finished, Finished)
    here = describe_environment("null", "1.0.0", {"blas": "openblas"})
    others: tuple[dict[str, object], ...] = (
        {},
        {"python": "CPython 3.99.0"},
        {"build": {"blas": "mkl"}},
        {"digest": "0" * 64},
    )
    environments = [here, *(here.model_copy(update=changes) for changes in others)]
    keys = [evaluation_key(assigned, finished, environment=each, system_id="s") for each in environments]
    assert keys[0] == keys[1] and len(set(keys)) == 4
