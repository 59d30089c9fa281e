"""The data manager with HTTP servers, good and bad."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from predictors.data.download import TransferPolicy
from predictors.data.manager import DataManager
from predictors.errors import (
    AssetDigestError,
    AssetNotFoundError,
    AssetRefusedError,
    AssetUnreachableError,
    CancelledError,
    DiskFullError,
)
from tests.integration.data_assets import CONTENT, asset, cached, sha256
from tests.integration.data_server import AssetServer, serving

POLICY = TransferPolicy(connect_timeout_s=2, read_timeout_s=10, attempts=3, backoff_s=0.01)
HALF = len(CONTENT) // 2


@pytest.fixture
def server() -> Iterator[AssetServer]:
    with serving({"/m.onnx": CONTENT}) as running:
        yield running


@pytest.fixture
def data(tmp_path: Path) -> DataManager:
    return DataManager(tmp_path / "cache", policy=POLICY)


def part(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "sha256" / sha256(CONTENT)[:2] / f"{sha256(CONTENT)}.part"


def leave_part(tmp_path: Path, content: bytes) -> None:
    """Leave what a download that was interrupted would have left."""
    part(tmp_path).parent.mkdir(parents=True)
    part(tmp_path).write_bytes(content)


def test_a_file_is_downloaded_once(server: AssetServer, data: DataManager) -> None:
    """A second fetch asks nobody; progress ends with the whole size."""
    told: list[tuple[int, int]] = []
    found = data.fetch(asset(f"{server.url}/m.onnx"), progress=lambda done, total: told.append((done, total)))
    assert found.read_bytes() == CONTENT
    assert data.fetch(asset(f"{server.url}/m.onnx")) == found
    assert server.requests == [("/m.onnx", "")]
    assert told[-1] == (len(CONTENT), len(CONTENT))


def test_a_server_that_hangs_up_is_asked_for_the_rest(server: AssetServer, data: DataManager) -> None:
    """After a body that was cut short, only what is missing is asked for."""
    server.cuts = [HALF]
    assert data.fetch(asset(f"{server.url}/m.onnx")).read_bytes() == CONTENT
    assert server.requests == [("/m.onnx", ""), ("/m.onnx", f"bytes={HALF}-")]


def test_a_download_of_an_earlier_process_is_continued(server: AssetServer, data: DataManager, tmp_path: Path) -> None:
    """What was left of an earlier attempt is not downloaded again."""
    leave_part(tmp_path, CONTENT[:HALF])
    assert data.fetch(asset(f"{server.url}/m.onnx")).read_bytes() == CONTENT
    assert server.requests == [("/m.onnx", f"bytes={HALF}-")]
    assert cached(tmp_path / "cache") == [f"sha256/{sha256(CONTENT)[:2]}/{sha256(CONTENT)}"]


def test_a_complete_part_needs_no_server(data: DataManager, tmp_path: Path) -> None:
    """A process killed between the last byte and the final name costs no second download."""
    leave_part(tmp_path, CONTENT)
    assert data.fetch(asset("http://127.0.0.1:9/m.onnx")).read_bytes() == CONTENT


def test_a_server_without_ranges_sends_everything_again(server: AssetServer, data: DataManager, tmp_path: Path) -> None:
    """Where ranges are ignored the file is begun anew, not appended to."""
    leave_part(tmp_path, CONTENT[:HALF])
    server.ranges = False
    assert data.fetch(asset(f"{server.url}/m.onnx")).read_bytes() == CONTENT


@pytest.mark.parametrize("left", [b"something else", CONTENT + b"more"])
def test_a_part_of_something_else_is_thrown_away(
    server: AssetServer, data: DataManager, tmp_path: Path, left: bytes
) -> None:
    """A leftover that is no beginning of the file, or is longer than it, costs a clean start and nothing more."""
    leave_part(tmp_path, left)
    assert data.fetch(asset(f"{server.url}/m.onnx")).read_bytes() == CONTENT
    assert server.requests[-1] == ("/m.onnx", "")


def test_a_file_without_a_length_is_taken_to_its_end(server: AssetServer, data: DataManager) -> None:
    """A server that does not say how long the file is still gives it; the digest says whether it is whole."""
    server.say_length = False
    assert data.fetch(asset(f"{server.url}/m.onnx")).read_bytes() == CONTENT


def test_a_wrong_file_is_an_error_and_not_kept(server: AssetServer, data: DataManager, tmp_path: Path) -> None:
    """Other bytes than the manifest names are told with both digests; asked once, since they came whole."""
    with pytest.raises(AssetDigestError, match=sha256(CONTENT)) as caught:
        data.fetch(asset(f"{server.url}/m.onnx", b"what the manifest means"))
    assert sha256(b"what the manifest means") in caught.value.message
    assert f"{server.url}/m.onnx" in caught.value.message
    assert cached(tmp_path / "cache") == []
    assert len(server.requests) == 1


def test_errors_that_pass_are_waited_out(server: AssetServer, data: DataManager) -> None:
    """A server in trouble is asked again, a bounded number of times."""
    server.statuses = [503, 500]
    assert data.fetch(asset(f"{server.url}/m.onnx")).read_bytes() == CONTENT
    assert len(server.requests) == 3


def test_errors_that_stay_are_told(server: AssetServer, data: DataManager) -> None:
    """A server that stays in trouble is unreachable, after the attempts allowed, with its status."""
    server.statuses = [503] * 9
    with pytest.raises(AssetUnreachableError, match=r"HTTP 503 .*tried 3 times") as caught:
        data.fetch(asset(f"{server.url}/m.onnx"))
    assert len(server.requests) == 3
    assert "MLMODELSCOPE_ASSET_MIRROR" in caught.value.hint


@pytest.mark.parametrize("status", [401, 403, 404, 410])
def test_a_file_that_is_not_there_is_not_asked_for_again(
    server: AssetServer, data: DataManager, tmp_path: Path, status: int
) -> None:
    """A refusal is final: one request, an error with the address and the status, and where else to put the file."""
    server.statuses = [status]
    with pytest.raises(AssetNotFoundError, match=rf"{server.url}/m\.onnx: HTTP {status}") as caught:
        data.fetch(asset(f"{server.url}/m.onnx"))
    assert cached(tmp_path / "cache") == []
    assert len(server.requests) == 1
    assert "MLMODELSCOPE_ASSET_MIRROR" in caught.value.hint


def test_nobody_listening_is_unreachable(data: DataManager) -> None:
    """A refused connection is an error soon, not a hang."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/m.onnx"
        with pytest.raises(AssetUnreachableError, match="tried 3 times"):
            data.fetch(asset(url))


def test_a_name_that_does_not_resolve_is_unreachable(data: DataManager) -> None:
    """Without a network, or for a name that is none, the error names the address."""
    with pytest.raises(AssetUnreachableError, match=r"nowhere\.invalid"):
        data.fetch(asset("https://nowhere.invalid/m.onnx"))


def test_a_server_that_falls_silent_is_unreachable(server: AssetServer, tmp_path: Path) -> None:
    """Silence in the middle ends the attempt; what had come is kept and continued from."""
    server.pause_at = HALF
    impatient = TransferPolicy(connect_timeout_s=2, read_timeout_s=0.2, attempts=2, backoff_s=0.01)
    with pytest.raises(AssetUnreachableError, match="tried 2 times"):
        DataManager(tmp_path / "cache", policy=impatient).fetch(asset(f"{server.url}/m.onnx"))
    assert part(tmp_path).stat().st_size == HALF
    assert server.requests == [("/m.onnx", ""), ("/m.onnx", f"bytes={HALF}-")]


@pytest.mark.parametrize("pause_at", [0, HALF])
def test_a_cancellation_does_not_wait_for_the_server(
    server: AssetServer, data: DataManager, tmp_path: Path, pause_at: int
) -> None:
    """With the server silent for an hour, a cancellation still ends the fetch; the part stays and is continued."""
    server.pause_at = pause_at
    patient = DataManager(tmp_path / "cache", policy=TransferPolicy(read_timeout_s=3600))
    with pytest.raises(CancelledError):
        patient.fetch(
            asset(f"{server.url}/m.onnx"),
            cancelled=lambda: bool(server.requests) and part(tmp_path).stat().st_size == pause_at,
        )
    deadline = time.monotonic() + 10
    while any(thread.name.startswith("fetch ") for thread in threading.enumerate()):
        assert time.monotonic() < deadline, "the reading thread is still there"
        time.sleep(0.02)
    server.pause_at = None
    assert data.fetch(asset(f"{server.url}/m.onnx")).read_bytes() == CONTENT
    assert server.requests[-1] == ("/m.onnx", f"bytes={HALF}-" if pause_at else "")


@pytest.mark.parametrize("say_length", [True, False])
def test_a_file_over_the_limit_is_refused(server: AssetServer, tmp_path: Path, say_length: bool) -> None:
    """Announced or not, more bytes than allowed are refused, and none are kept."""
    server.say_length = say_length
    with pytest.raises(AssetRefusedError, match="an asset may have 1000"):
        DataManager(tmp_path / "cache", max_asset_bytes=1000).fetch(asset(f"{server.url}/m.onnx"))
    assert cached(tmp_path / "cache") == []


def test_a_file_larger_than_the_disk_is_refused_before_it_is_written(server: AssetServer, tmp_path: Path) -> None:
    """When the announced size exceeds what is free, the error says both, and nothing was written."""
    server.length = 2**60
    data = DataManager(tmp_path / "cache", max_asset_bytes=2**61)
    with pytest.raises(DiskFullError, match=rf"{2**60} more bytes are needed, \d+ bytes are free") as caught:
        data.fetch(asset(f"{server.url}/m.onnx"))
    assert str(tmp_path / "cache") in caught.value.message
    assert "MLMODELSCOPE_CACHE_DIR" in caught.value.hint
    assert cached(tmp_path / "cache") == []


def test_a_mirror_may_be_an_address(tmp_path: Path) -> None:
    """A mirror over HTTP is searched by digest; its index is read once, and again for what it does not list."""
    index = json.dumps({"files": [{"path": "models/my m.onnx", "sha256": sha256(CONTENT)}]})
    files = {"/base/index.json": index.encode(), "/base/models/my%20m.onnx": CONTENT}
    with serving(files) as server:
        data = DataManager(tmp_path / "cache", mirror=f"{server.url}/base/", policy=POLICY)
        assert data.fetch(asset("https://nowhere.invalid/x")).read_bytes() == CONTENT
        with pytest.raises(AssetNotFoundError, match="does not list this digest"):
            data.fetch(asset("repo:other", b"other"))
        assert [path for path, _ in server.requests] == [*files, "/base/index.json"]
        server.statuses = [500] * 9
        with pytest.raises(AssetUnreachableError, match=r"base/index\.json: HTTP 500"):
            data.fetch(asset("repo:third", b"third"))
