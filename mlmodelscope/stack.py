"""A whole stack on this machine: bus, store with API, scheduler and agents, started in the order they need."""

import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import httpx

from mlmodelscope.client import Client
from mlmodelscope.directory import DataDirectory
from mlmodelscope.errors import RequestRefusedError, ScopeError, StackError
from mlmodelscope.processes import POLL_S, ServiceProcess
from schemas.agents import AgentRegistered
from schemas.settings import Settings, to_environ

DEFAULT_FRAMEWORKS = ("onnxruntime", "pytorch")
BUS_AND_API = ("bus", "api")
LOOPBACK = ("127.0.0.1", "localhost", "::1")
STOP_BOUND_S = 4.5
RESTART_DELAY_S = 1.0
MAX_RESTARTS = 5
SETTLED_S = 60.0
"""A process that has lived for so long has come up; earlier deaths count no more."""

Report = Callable[[str], None]


@dataclass(frozen=True)
class AgentSpec:
    """An agent to start: a framework on a device."""

    framework: str
    device: str = "cpu"

    @classmethod
    def parse(cls, text: str) -> "AgentSpec":
        """Return the agent that `onnxruntime` or `pytorch:gpu` names."""
        framework, _, device = text.partition(":")
        return cls(known_framework(framework), device or "cpu")

    @property
    def name(self) -> str:
        """Return what its process and its log are called."""
        return f"agent-{self.framework}-{self.device}"


def known_framework(name: str) -> str:
    """Return `name`. Raises RequestRefusedError when there is no such framework: its agent would serve nothing."""
    from predictors.frameworks.registry import framework_names  # it brings NumPy, which no other command needs

    known = framework_names()
    if name not in known:
        raise RequestRefusedError(f"there is no framework {name!r}", hint=f"there are {', '.join(known)}")
    return name


class Stack:
    """Starts and stops the processes. Used by one thread; `stop` may be called from any, and twice."""

    def __init__(
        self,
        settings: Settings,
        agents: Sequence[AgentSpec],
        *,
        bus_port: int = 0,
        report: Report = lambda line: None,
    ) -> None:
        self.directory = DataDirectory(settings.data_dir.absolute())
        self.agents = tuple(agents)
        self._report = report
        self._stopping = threading.Event()
        self._stop_lock = threading.Lock()
        self._processes: list[ServiceProcess] = []
        self._died_at: dict[str, float] = {}
        port = bus_port or free_port()
        self.settings = settings.model_copy(
            update={"data_dir": self.directory.path, "bus_url": f"nats://127.0.0.1:{port}"}
        )
        self.url = ""

    @property
    def client(self) -> Client:
        """Return a new client of this stack's API."""
        return Client(self.url, token=self.settings.api_token)

    @property
    def processes(self) -> tuple[ServiceProcess, ...]:
        """Return the processes in the order they were started."""
        return tuple(self._processes)

    def start(self, timeout_s: float = 120.0) -> None:
        """Start everything and return when every agent is registered.

        Raises DirectoryInUseError, StackError (a process that ended or was not ready in time, with the end
        of its output). Whatever was started is stopped again.
        """
        self.directory.lock()
        deadline = time.monotonic() + timeout_s
        try:
            for part in BUS_AND_API:
                self.directory.withdraw(part)
            self._launch("bus", ["serve", "bus"])
            self._wait_announced("bus", deadline)
            store = self._launch("store", ["serve", "store"])
            self._launch("scheduler", ["serve", "scheduler"])
            for agent in self.agents:
                self._launch(agent.name, ["agent", agent.framework, "--device", agent.device])
            announced = self._wait_announced("api", deadline)
            self.url = str(announced["url"])
            # Started again, it is to be found where its clients know it to be, also when the port was any free one.
            store.update_environ(to_environ(self.settings.model_copy(update={"api_port": announced["port"]})))
            self._report(f"api listens on {self.url}")
            self._wait(lambda: self._ready(), deadline, "the API", store)
            self._wait(lambda: len(self.registered()) >= len(self.agents), deadline, "every agent")
        except BaseException:
            self.stop()
            raise

    def registered(self) -> list[AgentRegistered]:
        """Return the agents that are registered at this moment, able or not."""
        with self.client as client:
            return client.predictors()

    def watch(self) -> None:
        """Return when `stop` was called. A process that dies meanwhile is started again, a few times in a row.

        Raises StackError when one keeps dying.
        """
        while not self._stopping.wait(0.2):
            for process in self._processes:
                if process.returncode() is None or self._stopping.is_set():
                    continue
                if process.name not in self._died_at and process.lived_s() > SETTLED_S:
                    process.restarts = 0  # it had settled: this death has nothing to do with those before
                died = self._died_at.setdefault(process.name, time.monotonic())
                if time.monotonic() - died < RESTART_DELAY_S:
                    continue
                if process.restarts >= MAX_RESTARTS:
                    raise StackError(
                        f"{process.name} died {process.restarts + 1} times:\n{process.last_lines()}",
                        hint=f"its whole output is in {process.log}",
                    )
                self._report(f"{process.name} died with exit code {process.returncode()}; starting it again")
                process.restarts += 1
                del self._died_at[process.name]
                process.start()

    def request_stop(self) -> None:
        """Make `watch` return. Safe in a signal handler."""
        self._stopping.set()

    def stop(self) -> None:
        """Stop every process, in reverse order, within five seconds in all. Idempotent."""
        self._stopping.set()
        with self._stop_lock:
            deadline = time.monotonic() + STOP_BOUND_S
            agents = [process for process in self._processes if process.name.startswith("agent-")]
            rest = [process for process in self._processes if not process.name.startswith("agent-")]
            for group in (agents, *([process] for process in reversed(rest))):
                for process in group:
                    process.terminate()
                for process in group:
                    # The bus goes last and needs a moment of its own, whatever the others took.
                    process.join(min(deadline, time.monotonic() + 2.5))
            self._processes.clear()
            for part in BUS_AND_API:
                self.directory.withdraw(part)
            self.directory.unlock()

    def _launch(self, name: str, arguments: list[str]) -> ServiceProcess:
        process = ServiceProcess(name, arguments, to_environ(self.settings), self.directory.log / f"{name}.log")
        self._processes.append(process)
        process.start()
        self._report(f"{name} started (process {process.pid})")
        return process

    def _ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/readyz", timeout=5).is_success
        except httpx.TransportError:
            return False

    def _wait_announced(self, part: str, deadline: float) -> dict[str, object]:
        self._wait(lambda: self.directory.announced(part) is not None, deadline, f"the {part}")
        return self.directory.announced(part) or {}

    def _wait(self, ready: Callable[[], bool], deadline: float, what: str, only: ServiceProcess | None = None) -> None:
        while not ready():
            for process in [only] if only else self._processes:
                process.check_running()
            if self._stopping.is_set():
                raise StackError("stopped while starting")
            if time.monotonic() > deadline:
                logs = "\n".join(f"{p.name}: {p.last_lines(3)}" for p in self._processes)
                raise StackError(f"{what} was not ready in time:\n{logs}", hint=f"the logs are in {self.directory.log}")
            time.sleep(POLL_S)


def free_port() -> int:
    """Return a TCP port that is free on loopback at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def port_is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Return whether something could listen on `port`."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def check_startable(settings: Settings) -> None:
    """Raise ScopeError, before anything is started, for a port that is taken or an open door without a key."""
    if settings.api_host not in LOOPBACK and not settings.api_token:
        raise ScopeError(
            f"the API would be open to everybody who reaches {settings.api_host}",
            hint="set MLMODELSCOPE_API_TOKEN, or serve on 127.0.0.1",
        )
    if settings.api_port and not port_is_free(settings.api_port, settings.api_host):
        raise ScopeError(
            f"port {settings.api_port} on {settings.api_host} is taken",
            hint="give another one with --port N, or stop what listens there",
        )
