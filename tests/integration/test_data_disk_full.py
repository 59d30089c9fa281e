"""The cache's disk is full: a real file system of one megabyte, or, where none may be mounted, the kernel's limit."""

import resource
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from predictors.data.manager import DataManager
from predictors.errors import DiskFullError
from tests.integration.data_assets import asset, cached, packed
from tests.integration.data_server import serving

SIZE = 2**20
LARGE = bytes(range(256)) * (3 * SIZE // 256)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A directory that takes a megabyte. Unprivileged, no file may grow over it instead: also the kernel's refusal."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(disk)]
    if shutil.which("mount") and subprocess.run(command, capture_output=True).returncode == 0:
        yield disk
        subprocess.run(["umount", str(disk)], check=True)
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SIZE, hard))
    yield disk
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def check(error: DiskFullError, disk: Path) -> None:
    """The error says where, how much, and what to do."""
    assert error.code == "disk_full"
    assert str(disk) in error.message
    assert "bytes are free" in error.message
    assert "MLMODELSCOPE_CACHE_DIR" in error.hint


@pytest.mark.parametrize("say_length", [True, False])
def test_a_download_that_does_not_fit_gives_its_space_back(small_disk: Path, say_length: bool) -> None:
    """Announced or found out in the middle, a full disk is one clear error; a smaller asset still fits after it."""
    small = b"small" * 1000
    with serving({"/large": LARGE, "/small": small}) as server:
        server.say_length = say_length
        data = DataManager(small_disk / "cache")
        with pytest.raises(DiskFullError) as caught:
            data.fetch(asset(f"{server.url}/large", LARGE))
        check(caught.value, small_disk / "cache")
        assert cached(small_disk / "cache") == []
        assert data.fetch(asset(f"{server.url}/small", small)).read_bytes() == small


def test_an_archive_that_does_not_fit_leaves_no_directory(small_disk: Path, tmp_path: Path) -> None:
    """A disk that fills while unpacking is the same error, and no half of a directory passes for the whole."""
    content = packed("a", "b", content=LARGE)
    assert len(content) < SIZE // 4
    source = tmp_path / "a.tar.gz"
    source.write_bytes(content)
    data = DataManager(small_disk / "cache")
    with pytest.raises(DiskFullError) as caught:
        data.fetch(asset(source.as_uri(), content, unpack=True))
    check(caught.value, small_disk / "cache")
    assert list((small_disk / "cache" / "unpacked").iterdir()) == []
