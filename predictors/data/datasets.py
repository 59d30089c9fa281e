"""Opening a data set: its files as its manifest says, or an error that says where they differ."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from predictors.data.image_csv import ImageCsvDataset
from predictors.data.items import Dataset, Item
from predictors.data.npz import NpzDataset
from predictors.errors import DatasetError
from schemas.manifests import DatasetManifest
from schemas.steps import AssetRef

__all__ = ["Dataset", "Item", "open_dataset"]

_INDEX = re.compile(r"^-?\d+$")


def open_dataset(manifest: DatasetManifest, fetch: Callable[[AssetRef], Path]) -> Dataset:
    """Return the data set that `manifest` describes; `fetch` gives its files. Blocks on both.

    Raises DatasetError when the files are not what the manifest says: format, columns or arrays, number of
    items, ids, labels. Raises what `fetch` does.
    """
    what = f"data set {manifest.name} {manifest.version}"
    class_names = _class_names(manifest, what, fetch)
    paths = [fetch(source) for source in manifest.sources]
    dataset = _open(manifest, what, paths, class_names)
    if len(dataset.items) != manifest.size:
        raise DatasetError(
            f"{what}: expected {manifest.size} items (the manifest's size), found {len(dataset.items)} in its files"
        )
    _check_labels(what, dataset.items, class_names)
    return dataset


def _open(manifest: DatasetManifest, what: str, paths: list[Path], class_names: tuple[str, ...]) -> Dataset:
    if manifest.format.type == "image_csv":
        for source, path in zip(manifest.sources, paths, strict=True):
            if not path.is_dir():
                raise DatasetError(
                    f"{what}: {source.url} is a file, and image_csv needs a directory",
                    hint="give the source 'unpack: true'",
                )
        return ImageCsvDataset(what, paths, manifest.format, class_names)
    if len(paths) != 1 or paths[0].is_dir():
        raise DatasetError(f"{what}: format npz takes one source, a file that is not unpacked")
    return NpzDataset(what, paths[0], manifest.format, class_names)


def _class_names(manifest: DatasetManifest, what: str, fetch: Callable[[AssetRef], Path]) -> tuple[str, ...]:
    """Return the names of the classes. Names may repeat: ImageNet has two kinds of crane."""
    if not isinstance(manifest.labels, AssetRef):
        return manifest.labels or ()
    path = fetch(manifest.labels)
    try:
        names = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DatasetError(f"{what}: labels {manifest.labels.url}: not a text file in UTF-8: {error}") from error
    while names and not names[-1].strip():
        names.pop()
    for line, name in enumerate(names, 1):
        if not name.strip():
            raise DatasetError(f"{what}: labels {manifest.labels.url}:{line}: no name on this line")
    return tuple(name.strip() for name in names)


def _check_labels(what: str, items: Sequence[Item], class_names: tuple[str, ...]) -> None:
    """Raise DatasetError for a label that is an index, and of no class."""
    if not class_names:
        return
    for item in items:
        # Also where a class is called so: what looks like an index is taken for one.
        if _INDEX.match(item.label) and not 0 <= int(item.label) < len(class_names):
            raise DatasetError(
                f"{what}: item {item.id} has label {item.label}, and there are {len(class_names)} classes from 0"
            )
