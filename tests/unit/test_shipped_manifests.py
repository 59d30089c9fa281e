"""The manifests that ship with the platform: all of them parse, and their assets are what they say."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from pydantic import BaseModel

from predictors.frameworks.registry import framework_names
from schemas.manifest_yaml import parse_manifest
from schemas.manifests import DatasetManifest, FrameworkManifest, Kind, Manifest, ModelManifest
from schemas.steps import AssetRef

MANIFESTS = Path(__file__).resolve().parents[2] / "manifests"
ASSETS = MANIFESTS / "assets"
FOLDERS: dict[str, Kind] = {"models": "model", "frameworks": "framework", "datasets": "dataset"}
FILES = sorted(path for folder in FOLDERS for path in (MANIFESTS / folder).glob("*.yml"))


def parsed(path: Path) -> Manifest:
    return parse_manifest(path.read_text(), FOLDERS[path.parent.name], str(path))


def assets(value: object) -> Iterator[AssetRef]:
    """Every asset that is named anywhere inside."""
    if isinstance(value, AssetRef):
        yield value
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from assets(getattr(value, name))
    elif isinstance(value, tuple):
        for each in value:
            yield from assets(each)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_shipped_manifest_parses_and_is_named_as_its_file(path: Path) -> None:
    """The file's name is the artifact's."""
    assert parsed(path).name == path.stem


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_assets_that_ship_are_the_bytes_the_manifest_names(path: Path) -> None:
    """`repo:` assets exist with the digest given; all others have an address or are a mirror's."""
    for asset in assets(parsed(path)):
        scheme, _, name = asset.url.partition(":")
        assert scheme in ("repo", "mirror", "https")
        if scheme == "repo":
            assert hashlib.sha256((ASSETS / name).read_bytes()).hexdigest() == asset.sha256, name


def test_every_shipped_asset_is_named_by_a_manifest() -> None:
    """Nothing lies around that no manifest uses."""
    named = {asset.url for path in FILES for asset in assets(parsed(path))}
    assert {f"repo:{path.name}" for path in ASSETS.iterdir()} == {url for url in named if url.startswith("repo:")}


def test_every_asset_that_does_not_ship_is_in_the_mirror(asset_mirror: Path) -> None:
    """The mirror's index has the digest, and the file has its bytes."""
    import json

    files = {each["sha256"]: each["path"] for each in json.loads((asset_mirror / "index.json").read_text())["files"]}
    for path in FILES:
        for asset in assets(parsed(path)):
            if not asset.url.startswith("repo:"):
                file = asset_mirror / files[asset.sha256]
                assert hashlib.sha256(file.read_bytes()).hexdigest() == asset.sha256


def test_every_framework_has_a_manifest_and_every_model_runs_on_known_ones() -> None:
    """Models name frameworks that predictors exist for."""
    manifests = [parsed(path) for path in FILES]
    frameworks = {each.name for each in manifests if isinstance(each, FrameworkManifest)}
    assert frameworks == set(framework_names())
    for model in manifests:
        if isinstance(model, ModelManifest):
            assert {entry.name for entry in model.frameworks} <= frameworks


def test_the_digits_data_set_is_as_large_as_it_says() -> None:
    """500 images of 8x8 with values 0 to 16, ten classes, in the types that the manifest's text gives."""
    manifest = parsed(MANIFESTS / "datasets" / "digits.yml")
    assert isinstance(manifest, DatasetManifest)
    with np.load(ASSETS / "digits-test.npz", allow_pickle=False) as file:
        x, y = file[manifest.format.items_array], file[manifest.format.labels_array]
    assert (x.dtype, x.shape, y.shape) == (np.uint8, (manifest.size, 8, 8), (manifest.size,))
    assert x.max() == 16
    assert isinstance(manifest.labels, tuple)
    assert set(y.tolist()) == set(range(len(manifest.labels)))


def test_nothing_that_ships_names_a_place_on_the_machine_it_was_made_on() -> None:
    """TorchScript archives usually carry the paths of their sources; ours do not."""
    for path in ASSETS.iterdir():
        content = path.read_bytes()
        assert not any(place in content for place in (b"/home/", b"/tmp/", b"/root/", b"/Users/", b".debug_pkl"))
