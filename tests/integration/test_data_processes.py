"""Several processes and one cache: one download, and one that takes over when the downloader is killed."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tests.conftest import REPOSITORY
from tests.integration.data_assets import cached, sha256
from tests.integration.data_server import serving

CONTENT = bytes(range(256)) * 8192
HALF = len(CONTENT) // 2

FETCH = """
import sys
from pathlib import Path
from predictors.data.manager import DataManager
from schemas.steps import AssetRef
found = DataManager(Path(sys.argv[1])).fetch(
    AssetRef(url=sys.argv[2], sha256=sys.argv[3]),
    progress=lambda done, total: print(f"progress {done} {total}", flush=True),
)
print(f"found {found}", flush=True)
"""


class Fetching:
    """A process that fetches, and the lines it has said so far."""

    def __init__(self, cache: Path, url: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", FETCH, str(cache), url, sha256(CONTENT)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        )
        self.lines: list[str] = []
        self._thread = threading.Thread(target=self._read, name="lines")
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as output:
            self.lines.extend(iter(output.readline, ""))

    def join(self) -> int:
        status = self.process.wait(60)
        self._thread.join(60)
        return status

    def end(self) -> None:
        """Leave no process behind, also when the test fails."""
        self.process.kill()
        self.join()


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition, for a minute at most."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, f"waited a minute for {what}"
        time.sleep(0.02)


def test_four_processes_share_one_download(tmp_path: Path) -> None:
    """Four processes that ask at once cause one request; those that wait show the progress of the one that works."""
    with serving({"/m": CONTENT}) as server:
        server.pause_at = HALF
        processes = [Fetching(tmp_path / "cache", f"{server.url}/m") for _ in range(4)]
        try:
            until(lambda: all(process.lines for process in processes), "progress of all four")
            halfway = f"progress {HALF} {len(CONTENT)}\n"
            until(lambda: sum(halfway in process.lines for process in processes) >= 3, "the waiters' figures")
            server.resume.set()
            assert [process.join() for process in processes] == [0, 0, 0, 0]
        finally:
            for process in processes:
                process.end()
    assert server.requests == [("/m", "")]
    assert len({process.lines[-1] for process in processes}) == 1
    assert len(cached(tmp_path / "cache")) == 1


def test_when_the_downloader_is_killed_another_takes_over(tmp_path: Path) -> None:
    """After SIGKILL in the middle, a waiting process continues where the dead one was, and asks for the rest only."""
    digest = sha256(CONTENT)
    part = tmp_path / "cache" / "sha256" / digest[:2] / f"{digest}.part"
    with serving({"/m": CONTENT}) as server:
        server.pause_at = HALF
        processes = [Fetching(tmp_path / "cache", f"{server.url}/m")]
        try:
            until(lambda: part.exists() and part.stat().st_size == HALF, "half of the file")
            processes.append(Fetching(tmp_path / "cache", f"{server.url}/m"))
            until(lambda: f"progress {HALF} {len(CONTENT)}\n" in processes[1].lines, "the second to wait")
            server.pause_at = None
            processes[0].process.kill()
            assert processes[1].join() == 0
        finally:
            for process in processes:
                process.end()
    assert server.requests == [("/m", ""), ("/m", f"bytes={HALF}-")]
    assert part.with_suffix("").read_bytes() == CONTENT
    assert len(cached(tmp_path / "cache")) == 1
