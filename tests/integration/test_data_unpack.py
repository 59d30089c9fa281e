"""The data manager with archives: unpacked once, completely or not at all."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from predictors.data.manager import DataManager
from predictors.errors import AssetRefusedError
from tests.conftest import REPOSITORY
from tests.integration.data_assets import asset, packed, sha256


def test_an_archive_is_unpacked_once(tmp_path: Path) -> None:
    """The directory is there on every later fetch, untouched, without the address."""
    content = packed("a", "b/c")
    source = tmp_path / "a.tar.gz"
    source.write_bytes(content)
    data = DataManager(tmp_path / "cache")
    found = data.fetch(asset(source.as_uri(), content, unpack=True))
    assert found == tmp_path / "cache" / "unpacked" / sha256(content)
    assert (found / "b" / "c").read_bytes() == b"x"
    node = (found / "a").stat().st_ino
    source.unlink()
    assert data.fetch(asset(source.as_uri(), content, unpack=True)) == found
    assert (found / "a").stat().st_ino == node
    assert data.fetch(asset(source.as_uri(), content)).read_bytes() == content


def test_a_bad_archive_leaves_no_directory(tmp_path: Path) -> None:
    """An archive that would write outside is refused, and nothing passes for its contents, now or later."""
    content = packed("good", "../evil")
    source = tmp_path / "a.tar.gz"
    source.write_bytes(content)
    data = DataManager(tmp_path / "cache")
    for _ in range(2):
        with pytest.raises(AssetRefusedError, match="evil"):
            data.fetch(asset(source.as_uri(), content, unpack=True))
        assert os.listdir(tmp_path / "cache" / "unpacked") == []
    assert not list(tmp_path.rglob("evil"))


CRASH = """
import os, sys
from pathlib import Path
from predictors.data.manager import DataManager
from schemas.steps import AssetRef
os.fchmod = lambda *_: os._exit(9)  # dies when the first member is written
DataManager(Path(sys.argv[1])).fetch(AssetRef(url=sys.argv[2], sha256=sys.argv[3], unpack=True))
"""


def test_a_crash_while_unpacking_leaves_nothing_that_passes_for_complete(tmp_path: Path) -> None:
    """After a process ended in the middle of unpacking, the next one does it again, from the start."""
    content = packed("a", "b")
    source = tmp_path / "a.tar.gz"
    source.write_bytes(content)
    ref = asset(source.as_uri(), content, unpack=True)
    crashed = subprocess.run(
        [sys.executable, "-c", CRASH, str(tmp_path / "cache"), ref.url, ref.sha256],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        timeout=60,
    )
    assert crashed.returncode == 9
    assert os.listdir(tmp_path / "cache" / "unpacked") == [f"{ref.sha256}.tmp"]
    found = DataManager(tmp_path / "cache").fetch(ref)
    assert sorted(os.listdir(found)) == ["a", "b"]
    assert os.listdir(tmp_path / "cache" / "unpacked") == [ref.sha256]


def test_many_threads_share_one_manager(tmp_path: Path) -> None:
    """Threads that ask for one archive at once all get the one directory, complete."""
    content = packed(*(str(i) for i in range(50)))
    source = tmp_path / "a.tar.gz"
    source.write_bytes(content)
    data = DataManager(tmp_path / "cache")
    counts: list[int] = []
    threads = [
        threading.Thread(
            target=lambda: counts.append(len(os.listdir(data.fetch(asset(source.as_uri(), content, unpack=True)))))
        )
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert counts == [50] * 8
