"""The agent's side of a worker process: start it, talk to it, notice its death, end it."""

import asyncio
import contextlib
import os
import re
import signal
import site
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from predictors.errors import PredictorError, WorkerCrashedError
from predictors.worker.death import explain_death, kernel_kills
from predictors.worker.messages import Message, Ready, pack, receive_frame
from schemas.evaluation import Device
from schemas.scenario import Threads

OUTPUT_KEPT_BYTES = 16 * 1024
"""Of what a worker writes to stdout and stderr, the last so many bytes are kept as evidence."""

_SECRET = re.compile(
    r"TOKEN|SECRET|PASS|_PWD$|CRED|AUTH|COOKIE|NETRC|KUBECONFIG|CONNECTION_?STRING|PROXY"
    r"|(^|_)(DSN|UR[IL]|PAT)(_|$)|KEY(_|$)|KEYID",
    re.IGNORECASE,
)
"""Names of variables that a worker has no use for and that may hold a credential; addresses often carry one."""
_INTRA_OP = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "BLIS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What must be settled before the framework is imported."""

    framework: str
    device: Device = "cpu"
    threads: Threads = field(default_factory=Threads)
    memory_bytes: int | None = None
    """Limit on the worker's address space."""


class WorkerProcess:
    """One running worker. For one event loop, from the thread that runs it: the worker dies with that thread."""

    def __init__(
        self, process: "subprocess.Popen[bytes]", reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._output = bytearray()
        self._kills_before = kernel_kills()
        self._exit: asyncio.Task[int | None] | None = None
        self._loop = asyncio.get_running_loop()
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        self._loop.add_reader(process.stdout.fileno(), self._drain)

    @classmethod
    async def start(cls, settings: WorkerSettings, *, inherit: tuple[int, ...] = ()) -> "WorkerProcess":
        """Start a worker in a session of its own; it does not wait until it is ready.

        `inherit`: descriptors the worker holds open as long as it lives. Raises WorkerCrashedError when no
        process can be made.
        """
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-P", "-m", "predictors.worker", "--framework", settings.framework]
        command += ["--device", settings.device, "--channel", str(theirs.fileno()), "--parent", str(os.getpid())]
        if settings.memory_bytes is not None:
            command += ["--memory-bytes", str(settings.memory_bytes)]
        command += ["--asked-ns", str(time.perf_counter_ns())]
        try:
            process = subprocess.Popen(  # noqa: ASYNC220 - a fork takes a millisecond, and must be of this thread
                command,
                pass_fds=(theirs.fileno(), *inherit),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=worker_environment(os.environ, settings.threads),
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            raise WorkerCrashedError(
                f"no worker process can be started: {error}", hint="free memory or processes"
            ) from error
        finally:
            theirs.close()
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        return cls(process, reader, writer)

    @property
    def pid(self) -> int:
        """Process id, also the id of its process group."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the worker still holds its end of the channel."""
        return self._exit is None and not self._reader.at_eof()

    @property
    def exit_code(self) -> int | None:
        """How it ended, negative for a signal; None until it was waited for."""
        return self._process.returncode

    @property
    def output(self) -> str:
        """The last of what it wrote to stdout and stderr."""
        return self._output.decode(errors="replace")

    async def ready(self) -> Ready:
        """Wait until the framework is imported. Raises what `receive` raises."""
        message = await self.receive()
        if not isinstance(message, Ready):
            raise WorkerCrashedError(f"the worker began with {message.kind!r}", detail=self.output)
        return message

    async def send(self, message: Message) -> None:
        """Send; a worker that is gone is noticed by the next `receive`."""
        self._writer.write(pack(message))
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()

    async def receive(self) -> Message:
        """Wait for the next message. Raises WorkerCrashedError or WorkerOutOfMemoryError when the worker died."""
        message = await receive_frame(self._reader)
        if message is None:
            raise await self.death()
        return message

    async def death(self) -> PredictorError:
        """Return why the worker is gone, after it is. One that has closed its channel is given a second to end."""
        code = await self._ended(grace_s=1.0)
        self._drain()
        return explain_death(code, self.output, self._kills_before)

    async def kill(self) -> None:
        """End the worker and all its children at once, and wait until it is gone. Idempotent."""
        await self._ended(grace_s=0.0)

    async def close(self) -> None:
        """Let the worker end by itself, or kill it after a second. Idempotent."""
        self._writer.close()
        await self._ended(grace_s=1.0)

    async def _ended(self, grace_s: float) -> int | None:
        if self._exit is None:
            self._exit = asyncio.create_task(self._end(grace_s), name=f"end-worker-{self.pid}")
        elif grace_s == 0.0:
            self._kill_group()
        return await asyncio.shield(self._exit)

    async def _end(self, grace_s: float) -> int | None:
        """Wait, kill the group, reap: in this order, for the group's id is ours only until it is reaped."""
        exited = asyncio.ensure_future(asyncio.to_thread(os.waitid, os.P_PID, self.pid, os.WEXITED | os.WNOWAIT))
        if grace_s > 0:
            await asyncio.wait([exited], timeout=grace_s)
        self._kill_group()
        await exited
        code = self._process.wait()
        self._drain()
        assert self._process.stdout is not None
        self._loop.remove_reader(self._process.stdout.fileno())
        self._process.stdout.close()
        self._writer.close()
        return code

    def _kill_group(self) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def _drain(self) -> None:
        """Read what there is of its output; a framework that writes a lot must never block on us."""
        assert self._process.stdout is not None
        if self._process.stdout.closed:
            return
        with contextlib.suppress(BlockingIOError):
            for _ in range(16):  # a worker that never stops writing must not keep the agent from everything else
                part = os.read(self._process.stdout.fileno(), 65_536)
                self._output += part
                del self._output[:-OUTPUT_KEPT_BYTES]
                if not part:
                    self._loop.remove_reader(self._process.stdout.fileno())
                    break


def worker_environment(environ: Mapping[str, str], threads: Threads) -> dict[str, str]:
    """Return `environ` for a worker: no credentials, none of the platform's settings, threads set.

    Libraries read their thread counts when they are loaded, so they are set here and not in the worker.
    """
    kept = {
        name: value
        for name, value in environ.items()
        if not name.startswith("MLMODELSCOPE_") and not _SECRET.search(name)
    }
    if threads.intra_op is not None:
        kept.update(dict.fromkeys(_INTRA_OP, str(threads.intra_op)))
        kept["TF_NUM_INTRAOP_THREADS"] = str(threads.intra_op)
    if threads.inter_op is not None:
        kept["TF_NUM_INTEROP_THREADS"] = str(threads.inter_op)
    root = str(Path(__file__).resolve().parents[2])
    if root not in site.getsitepackages():  # run from a source tree: the worker imports this very one
        kept["PYTHONPATH"] = os.pathsep.join(filter(None, [root, environ.get("PYTHONPATH", "")]))
    return kept
