"""The embedded store as its operator meets it: other processes, crashes, directories, closing."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from schemas.settings import Settings
from services.errors import StoreError
from services.store import open_store
from services.store.lock import LOCK_NAME

WRITER = """
import sys
from pathlib import Path
from schemas.settings import Settings
from services.store import open_store
store = open_store(Settings(data_dir=Path(sys.argv[1])))
batch = 0
while True:
    rows = {"evaluation_id": ["e"] * 100, "task_id": ["t"] * 100, "attempt": [1] * 100,
            "query_index": list(range(batch * 100, batch * 100 + 100))}
    store.insert("queries", rows)
    batch += 1
    print(batch, flush=True)
"""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings of a stack without a bus."""
    return Settings(data_dir=tmp_path)


def test_what_was_inserted_is_there_after_closing(settings: Settings) -> None:
    """Closing twice is fine; a closed store says so; opening again finds the rows and migrates nothing."""
    store = open_store(settings)
    store.insert("metrics", {"evaluation_id": ["e"], "value": [1.5]})
    store.close()
    store.close()
    for use in (lambda: store.query("SELECT 1"), lambda: store.insert("metrics", {"value": [1.0]})):
        with pytest.raises(StoreError, match="closed"):
            use()
    store = open_store(settings)
    assert store.query("SELECT evaluation_id, value FROM metrics").rows == [("e", 1.5)]
    store.close()


def test_a_directory_in_use_names_its_holder(settings: Settings) -> None:
    """A second opening, here or in another process, says which process has it; the first is not disturbed."""
    store = open_store(settings)
    with pytest.raises(StoreError, match=f"in use by process {os.getpid()}"):
        open_store(settings)
    child = subprocess.run(
        [sys.executable, "-c", WRITER, str(settings.data_dir)], capture_output=True, text=True, timeout=60, check=False
    )
    assert child.returncode != 0
    assert f"in use by process {os.getpid()}" in child.stderr
    assert store.query("SELECT 1 AS one").rows == [(1,)]
    store.close()


@pytest.mark.slow
def test_no_batch_that_was_inserted_is_lost_to_sigkill(settings: Settings) -> None:
    """A process killed in its insert loop: every batch it reported is there, and the directory opens at once."""
    child = subprocess.Popen([sys.executable, "-c", WRITER, str(settings.data_dir)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    reported = 0
    while reported < 25:
        reported = int(child.stdout.readline())
    child.send_signal(signal.SIGKILL)
    reported = max([reported, *(int(line) for line in child.stdout if line.endswith("\n"))])
    child.wait()
    child.stdout.close()
    store = open_store(settings)
    (found, highest), *_ = store.query("SELECT uniqExact(query_index) AS n, max(query_index) AS m FROM queries").rows
    store.close()
    assert isinstance(found, int)
    assert found >= reported * 100
    assert found % 100 == 0, "half a batch is in the store"
    assert highest == found - 1


def test_a_stale_lock_file_is_no_obstacle(settings: Settings) -> None:
    """The file that a dead process left behind locks nobody out."""
    directory = settings.data_dir / "store"
    directory.mkdir()
    (directory / LOCK_NAME).write_text("1\n")
    open_store(settings).close()


def test_a_directory_that_cannot_be_used_is_one_clear_error(tmp_path: Path) -> None:
    """A file where the directory should be: an error with its path, and nothing left locked."""
    (tmp_path / "store").write_text("not a directory")
    with pytest.raises(StoreError, match="store"):
        open_store(Settings(data_dir=tmp_path))


def test_signals_stay_the_programs_own(settings: Settings) -> None:
    """Opening the engine takes no signal handler away from the service around it."""
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    store = open_store(settings)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    store.close()
