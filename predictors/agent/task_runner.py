"""One attempt at one task: fetch, wait for the machine, have the worker do it, hand on what it found."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from predictors.agent.daemon_thread import in_daemon_thread
from predictors.agent.reporter import Reporter
from predictors.agent.task_assets import assets_of
from predictors.agent.task_record import task_record
from predictors.data.manager import DataManager
from predictors.errors import DeadlineExceededError, PredictorError
from predictors.machine.lock import MachineLock
from predictors.worker.messages import Failed, Finished, Job, Progress, Rows
from predictors.worker.warm import WarmWorker
from schemas.codec import encode
from schemas.failure import Failure
from schemas.result import TaskRecord
from schemas.settings import Settings
from schemas.system import Environment
from schemas.tasks import TaskAssigned

PROGRESS_INTERVAL_S = 0.25


@dataclass(frozen=True, slots=True)
class Place:
    """Where an agent's tasks run: what does not change while it lives."""

    settings: Settings
    framework: str
    system_id: str
    environment: Environment
    data: DataManager
    lock: MachineLock
    worker: WarmWorker


class Deadline:
    """A task's time for work. Stands still while the task waits for the machine."""

    def __init__(self, seconds: float) -> None:
        self._left_s = seconds
        self._timeout = asyncio.timeout(seconds)

    @asynccontextmanager
    async def enforced(self, seconds: float) -> AsyncIterator[None]:
        """Raise DeadlineExceededError when the body works for longer."""
        try:
            async with self._timeout:
                yield
        except TimeoutError as error:
            if not self._timeout.expired():
                raise
            raise DeadlineExceededError(
                f"the task worked for longer than its deadline of {seconds:g} s",
                hint="ask for less (sample_limit, scenario) or set a longer deadline_s",
            ) from error

    def pause(self) -> None:
        """Stop counting."""
        when = self._timeout.when()
        assert when is not None
        self._left_s = when - asyncio.get_running_loop().time()
        self._timeout.reschedule(None)

    def resume(self) -> None:
        """Count on."""
        self._timeout.reschedule(asyncio.get_running_loop().time() + self._left_s)


class TaskRunner:
    """Does one task at a time. After anything that went wrong its worker is gone and its lock is free."""

    def __init__(self, place: Place) -> None:
        self._place = place

    async def run(self, task: TaskAssigned, reporter: Reporter) -> TaskRecord:
        """Do `task` and return its figures; its rows are told by then.

        Raises PredictorError when it cannot be done. Cancelling ends the worker and all its children at once.
        """
        seconds = task.request.deadline_s
        deadline = Deadline(seconds)
        phases: dict[str, float] = {}
        async with deadline.enforced(seconds):
            with _timed(phases, "fetch"):
                files = await self._fetch(task, reporter)
            with _timed(phases, "wait"):
                await self._machine(deadline, reporter)
            try:
                finished = await self._work(task, files, reporter)
            except BaseException:
                # Whatever it was, the worker may still be at it; it is gone before the machine is free.
                await asyncio.shield(self._place.worker.discard())
                raise
            finally:
                self._place.lock.release()
        place = self._place
        return task_record(task, finished, phases, environment=place.environment, system_id=place.system_id)

    async def _fetch(self, task: TaskAssigned, reporter: Reporter) -> dict[str, str]:
        """Return the local path of every asset of the task, fetched and verified."""
        fetch = _Fetch(self._place.data, task)
        fetching = asyncio.create_task(in_daemon_thread("fetch", fetch.run), name=f"fetch-{task.task_id}")
        try:
            while not (await asyncio.wait({fetching}, timeout=PROGRESS_INTERVAL_S))[0]:
                await reporter.progress("fetch", fetch.done, fetch.total, fetch.message)
            return fetching.result()
        finally:
            fetch.cancelled.set()
            fetching.cancel()

    async def _machine(self, deadline: Deadline, reporter: Reporter) -> None:
        """Wait for the machine; the deadline stands still meanwhile."""
        if self._place.lock.try_acquire():
            return
        deadline.pause()
        await reporter.progress("wait", message="another measurement runs on this machine")
        await self._place.lock.acquire()
        deadline.resume()

    async def _work(self, task: TaskAssigned, files: dict[str, str], reporter: Reporter) -> Finished:
        """Have the worker do the task, handing on what it tells."""
        place = self._place
        trusted = any(author in place.settings.trusted_authors for author in task.model.authors)
        worker = await place.worker.get(place.framework, task, trusted=trusted)
        await worker.send(
            Job(
                task=encode(task),
                files=files,
                trusted=trusted,
                max_pixels=place.settings.image_max_pixels,
                scratch=str(place.worker.scratch),
            )
        )
        while True:
            message = await worker.receive()
            if isinstance(message, Rows):
                await reporter.rows(message)
            elif isinstance(message, Progress):
                await reporter.progress(message.phase, message.done, message.total, message.message)
            elif isinstance(message, Finished):
                return message
            elif isinstance(message, Failed):
                raise ReportedError(message.failure)


class ReportedError(PredictorError):
    """What a worker said it could not do."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message, hint=failure.hint, detail=failure.detail)
        self.code = failure.code


class _Fetch:
    """Fetches a task's assets in a thread; says how far it is."""

    def __init__(self, data: DataManager, task: TaskAssigned) -> None:
        self._data = data
        self._task = task
        self.cancelled = threading.Event()
        self.done = 0
        self.total = 0
        self.message = ""

    def run(self) -> dict[str, str]:
        """Blocks. Raises what DataManager.fetch raises."""
        found = {}
        for key, asset in assets_of(self._task).items():
            self.done, self.total, self.message = 0, 0, asset.url.rsplit("/", 1)[-1]
            path = self._data.fetch(asset, progress=self._progress, cancelled=self.cancelled.is_set)
            found[key] = str(path)
        return found

    def _progress(self, done: int, total: int) -> None:
        self.done, self.total = done, total


@contextmanager
def _timed(phases: dict[str, float], name: str) -> Iterator[None]:
    began = time.perf_counter_ns()
    yield
    phases[name] = (time.perf_counter_ns() - began) / 1e6
