"""One child process of a stack: started in a session of its own, its output in a file, stopped within a bound."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path

from mlmodelscope.errors import StackError

POLL_S = 0.02


class ServiceProcess:
    """`mlmodelscope ARGUMENTS` as a child. Not a daemon: it is told to end when its parent dies."""

    def __init__(self, name: str, arguments: list[str], environ: Mapping[str, str], log: Path) -> None:
        self.name = name
        self.log = log
        self._command = [sys.executable, "-P", "-m", "mlmodelscope", *arguments]
        self._environ = {**os.environ, **environ, "MLMODELSCOPE_PARENT": str(os.getpid())}
        self._process: subprocess.Popen[bytes] | None = None
        self.restarts = 0
        """How often it was started again after a short life."""
        self._started = 0.0

    def update_environ(self, environ: Mapping[str, str]) -> None:
        """Set variables that the process gets when it is started the next time."""
        self._environ.update(environ)

    @property
    def pid(self) -> int | None:
        """Return the process id, or None before the start."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start the process. Its standard output and error are appended to `log`."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._started = time.monotonic()
        with self.log.open("ab") as output:
            # A session of its own: the terminal's Ctrl-C reaches the supervisor, which stops things in order.
            self._process = subprocess.Popen(
                self._command,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def returncode(self) -> int | None:
        """Return the exit code, or None while the process lives (or before it was started)."""
        return self._process.poll() if self._process else None

    def lived_s(self) -> float:
        """Return the seconds since it was started."""
        return time.monotonic() - self._started

    def running(self) -> bool:
        """Return whether the process lives."""
        return self._process is not None and self._process.poll() is None

    def terminate(self) -> None:
        """Ask the process to end. Does not wait."""
        if self.running():
            assert self._process is not None
            self._process.send_signal(signal.SIGTERM)

    def join(self, deadline: float) -> None:
        """Wait for the end until `deadline` (of time.monotonic), then kill the process and all of its session."""
        if self._process is None:
            return
        while self._process.poll() is None and time.monotonic() < deadline:
            time.sleep(POLL_S)
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it ended by itself in between
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def last_lines(self, count: int = 15) -> str:
        """Return the end of what the process wrote."""
        try:
            with self.log.open(errors="replace") as lines:
                return "".join(deque(lines, maxlen=count)).rstrip()
        except FileNotFoundError:
            return ""

    def check_running(self) -> None:
        """Raise StackError, with the end of the log, when the process has ended."""
        code = self.returncode()
        if code is not None:
            raise StackError(
                f"{self.name} ended with exit code {code} while the stack was starting:\n{self.last_lines()}",
                hint=f"its whole output is in {self.log}",
            )
