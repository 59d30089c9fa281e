"""The data manager with files of this machine: cache, mirror, addresses, and the real assets."""

import json
import threading
from pathlib import Path

import fsspec
import pytest

from predictors.data.datasets import open_dataset
from predictors.data.download import TransferPolicy
from predictors.data.manager import DataManager
from predictors.errors import (
    AssetDigestError,
    AssetNotFoundError,
    AssetRefusedError,
    AssetUnreachableError,
    CancelledError,
    PredictorError,
)
from schemas.manifests import DatasetFormat, DatasetManifest
from schemas.steps import AssetRef
from tests.integration.data_assets import CONTENT, asset, cached, sha256


def mirror_of(directory: Path, **files: bytes) -> Path:
    """Make a mirror; the digests in its index are those of CONTENT, whatever the files hold."""
    directory.mkdir()
    for name, content in files.items():
        (directory / name).write_bytes(content)
    index = {"note": "x", "files": [{"path": name, "sha256": sha256(CONTENT), "licence": "y"} for name in files]}
    (directory / "index.json").write_text(json.dumps(index))
    return directory


def test_a_file_is_fetched_once_and_lies_by_its_digest(tmp_path: Path) -> None:
    """The result is at `sha256/ab/<digest>`, read-only, and its address is not needed again."""
    source = tmp_path / "my weights.onnx"
    source.write_bytes(CONTENT)
    told: list[tuple[int, int]] = []
    data = DataManager(tmp_path / "cache")
    found = data.fetch(asset(source.as_uri()), progress=lambda done, total: told.append((done, total)))
    assert found == tmp_path / "cache" / "sha256" / sha256(CONTENT)[:2] / sha256(CONTENT)
    assert found.read_bytes() == CONTENT
    assert found.stat().st_mode & 0o222 == 0
    assert told[-1] == (len(CONTENT), len(CONTENT))
    source.unlink()
    assert data.fetch(asset(source.as_uri())) == found
    assert DataManager(tmp_path / "cache").fetch(asset("https://nowhere.invalid/x")) == found


def test_a_cached_file_that_was_changed_is_fetched_anew(tmp_path: Path) -> None:
    """The cache does not hand out bytes that are no longer what their name says, in this process or a later one."""
    source = tmp_path / "a"
    source.write_bytes(CONTENT)
    data = DataManager(tmp_path / "cache")
    for reader in (data, DataManager(tmp_path / "cache")):
        found = data.fetch(asset(source.as_uri()))
        found.chmod(0o644)
        found.write_bytes(b"rotten")
        assert reader.fetch(asset(source.as_uri())).read_bytes() == CONTENT


def test_a_wrong_digest_names_file_expected_and_found_and_leaves_nothing(tmp_path: Path) -> None:
    """The error has the file, its address, both digests and what to do; no byte of it stays."""
    source = tmp_path / "model.onnx"
    source.write_bytes(b"other")
    with pytest.raises(AssetDigestError) as caught:
        DataManager(tmp_path / "cache").fetch(asset(source.as_uri()))
    for part in ("model.onnx", source.as_uri(), sha256(CONTENT), sha256(b"other")):
        assert part in caught.value.message
    assert caught.value.hint
    assert caught.value.code == "asset_digest_mismatch"
    assert cached(tmp_path / "cache") == []


def test_the_mirror_comes_before_the_address(tmp_path: Path) -> None:
    """What a mirror has by digest is taken from there, under any name and whatever the address."""
    mirror = mirror_of(tmp_path / "mirror", file=CONTENT)
    data = DataManager(tmp_path / "cache", mirror=str(mirror))
    assert data.fetch(asset("https://nowhere.invalid/x")).read_bytes() == CONTENT


def test_a_mirror_with_wrong_bytes_is_passed_over(tmp_path: Path) -> None:
    """Its next file, or the asset's own address, may be right; if none is, the wrong digest is what is told."""
    source = tmp_path / "right"
    source.write_bytes(CONTENT)
    mirror = mirror_of(tmp_path / "mirror", wrong=b"wrong", missing=b"")
    (mirror / "missing").unlink()
    data = DataManager(tmp_path / "cache", mirror=str(mirror))
    with pytest.raises(AssetDigestError) as caught:
        data.fetch(asset((tmp_path / "absent").as_uri()))
    for part in (str(mirror / "wrong"), sha256(b"wrong"), str(mirror / "missing"), "absent: no such file"):
        assert part in caught.value.message
    assert data.fetch(asset(source.as_uri())).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("index", "why"),
    [
        ("{", "not an index"),
        ('{"files": [{"path": "x"}]}', r"files\.0\.sha256"),
        ('{"files": []}', "does not list"),
        (json.dumps({"files": [{"path": "../right", "sha256": sha256(CONTENT)}]}), "leads out"),
        (None, "no such file"),
    ],
)
def test_a_mirror_that_is_none_is_told(tmp_path: Path, index: str | None, why: str) -> None:
    """A broken, empty, escaping or missing index is one of the reasons given, beside the address tried after it."""
    (tmp_path / "right").write_bytes(CONTENT)
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    if index is not None:
        (mirror / "index.json").write_text(index)
    with pytest.raises(AssetNotFoundError, match=why) as caught:
        DataManager(tmp_path / "cache", mirror=str(mirror)).fetch(asset("file:///nowhere/x"))
    assert "file:///nowhere/x: no such file" in caught.value.message
    assert str(mirror) in caught.value.message
    assert "MLMODELSCOPE_ASSET_MIRROR" in caught.value.hint


def test_files_shipped_with_the_platform_cannot_lead_elsewhere(tmp_path: Path) -> None:
    """`repo:` names a file below the platform's assets, and nothing above them."""
    (tmp_path / "assets" / "sub").mkdir(parents=True)
    (tmp_path / "assets" / "sub" / "a.onnx").write_bytes(CONTENT)
    (tmp_path / "secret").write_bytes(CONTENT)
    data = DataManager(tmp_path / "cache", bundled=tmp_path / "assets")
    for url in ("repo:../secret", f"repo:{tmp_path}/secret", "repo:"):
        with pytest.raises(AssetRefusedError, match="refused"):
            data.fetch(asset(url))
    with pytest.raises(AssetNotFoundError, match="repo:b"):
        data.fetch(asset("repo:b"))
    assert data.fetch(asset("repo:sub/a.onnx")).read_bytes() == CONTENT


def test_without_a_directory_given_repo_files_come_from_the_manifests(tmp_path: Path) -> None:
    """The default place is the package data beside the manifests, and a name it lacks is told."""
    with pytest.raises(AssetNotFoundError, match="repo:no-such-file"):
        DataManager(tmp_path / "cache").fetch(asset("repo:no-such-file"))


@pytest.mark.parametrize(
    ("url", "error", "why"),
    [
        ("models/x.onnx", AssetNotFoundError, "no scheme"),
        ("file:relative", AssetNotFoundError, "absolute path"),
        ("file://elsewhere/x", AssetNotFoundError, "absolute path"),
        ("file:///dev/zero", AssetNotFoundError, "no such file"),
        ("file:///etc", AssetNotFoundError, "no such file"),
        ("nonsense://x/y", AssetNotFoundError, "nonsense"),
        ("s3://bucket/key?sig=secret", AssetNotFoundError, "s3fs"),
        ("simplecache::https://x/y", AssetRefusedError, "chained"),
        ("https://[bad/x", AssetNotFoundError, "no address: Invalid"),
    ],
)
def test_an_address_that_cannot_work_says_why(tmp_path: Path, url: str, error: type[PredictorError], why: str) -> None:
    """Each address that has no chance fails at once with its reason, and without its secrets."""
    with pytest.raises(error, match=why) as caught:
        DataManager(tmp_path / "cache").fetch(asset(url))
    assert "secret" not in caught.value.message
    assert caught.value.hint


def test_any_scheme_of_fsspec_is_an_address(tmp_path: Path) -> None:
    """An address of another scheme is read through fsspec's driver for it."""
    with fsspec.open("memory://bucket/weights", "wb") as file:
        file.write(CONTENT)
    data = DataManager(tmp_path / "cache")
    assert data.fetch(asset("memory://bucket/weights")).read_bytes() == CONTENT
    with pytest.raises(AssetNotFoundError, match="memory://bucket/other"):
        data.fetch(asset("memory://bucket/other", b"other"))
    assert len(cached(tmp_path / "cache")) == 1


class StuckFileSystem(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """A store that takes the connection and never answers."""

    protocol = "stuck"
    released = threading.Event()

    def info(self, path: str, **kwargs: object) -> dict[str, object]:
        self.released.wait(60)
        raise FileNotFoundError(path)


def test_a_driver_that_never_answers_is_unreachable(tmp_path: Path) -> None:
    """Silence of a driver that knows no timeout ends the attempt all the same."""
    fsspec.register_implementation("stuck", StuckFileSystem, clobber=True)
    policy = TransferPolicy(connect_timeout_s=0.1, read_timeout_s=0.1, attempts=1)
    try:
        with pytest.raises(AssetUnreachableError, match=r"stuck://x/y: silent"):
            DataManager(tmp_path / "cache", policy=policy).fetch(asset("stuck://x/y"))
    finally:
        StuckFileSystem.released.set()


def test_an_asset_over_the_limit_is_refused(tmp_path: Path) -> None:
    """Size and limit are told, with the setting that changes it, and nothing is kept."""
    source = tmp_path / "a"
    source.write_bytes(CONTENT)
    with pytest.raises(AssetRefusedError, match=rf"has {len(CONTENT)} bytes, and an asset may have 1000") as caught:
        DataManager(tmp_path / "cache", max_asset_bytes=1000).fetch(asset(source.as_uri()))
    assert "MLMODELSCOPE_ASSET_MAX_BYTES" in caught.value.hint
    assert cached(tmp_path / "cache") == []


def test_a_cancelled_fetch_says_so(tmp_path: Path) -> None:
    """A fetch that nobody wants any more ends with CancelledError and leaves nothing that passes for the file."""
    source = tmp_path / "a"
    source.write_bytes(CONTENT)
    with pytest.raises(CancelledError, match="cancelled while fetching a"):
        DataManager(tmp_path / "cache").fetch(asset(source.as_uri()), cancelled=lambda: True)
    assert not (tmp_path / "cache" / "sha256" / sha256(CONTENT)[:2] / sha256(CONTENT)).exists()


def test_a_cache_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    """Where the cache directory cannot be made, the error names it and the setting, instead of a traceback."""
    (tmp_path / "file").write_text("in the way")
    source = tmp_path / "a"
    source.write_bytes(CONTENT)
    with pytest.raises(PredictorError, match=str(tmp_path / "file")) as caught:
        DataManager(tmp_path / "file" / "cache").fetch(asset(source.as_uri()))
    assert "MLMODELSCOPE_CACHE_DIR" in caught.value.hint


def test_real_assets_come_from_the_mirror(tmp_path: Path, asset_mirror: Path) -> None:
    """A real model and a real data set are had by digest from the mirror, with addresses that do not answer."""
    index = json.loads((asset_mirror / "index.json").read_text())
    digests = {entry["path"]: entry["sha256"] for entry in index["files"]}
    data = DataManager(tmp_path / "cache", mirror=str(asset_mirror))

    def named(path: str, *, unpack: bool = False) -> AssetRef:
        return AssetRef(url=f"https://nowhere.invalid/{path}", sha256=digests[path], unpack=unpack)

    model = named("models/squeezenet_v1.1/squeezenet_v1.1.onnx")
    assert sha256(data.fetch(model).read_bytes()) == model.sha256
    manifest = DatasetManifest(
        name="imagenet-val-sample",
        version="1.0.0",
        license="research only",
        modality="image-classification",
        sources=(named("datasets/imagenet_val_sample_500.tar", unpack=True),),
        format=DatasetFormat(type="image_csv"),
        labels=named("labels/synset_words.txt"),
        size=500,
    )
    dataset = open_dataset(manifest, data.fetch)
    assert len(dataset.items) == 500
    assert dataset.items[0].label == "388"
    assert "giant panda" in dataset.class_names[388]
    assert all(bytes(dataset.read(item.index)[:3]) == b"\xff\xd8\xff" for item in dataset.items)
    mnist = manifest.model_copy(
        update={
            "sources": (named("datasets/mnist_test.npz"),),
            "format": DatasetFormat(type="npz"),
            "labels": tuple("0123456789"),
            "size": 10_000,
        }
    )
    digits = open_dataset(mnist, data.fetch)
    assert (digits.items[0].label, getattr(digits.read(0), "shape", None)) == ("7", (28, 28))
