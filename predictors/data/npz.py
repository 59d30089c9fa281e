"""Data sets in one NumPy file: an array of items and an array of labels."""

import math
import zipfile
import zlib
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

from predictors.contract import Array
from predictors.data.items import Item
from predictors.errors import DatasetError
from schemas.manifests import DatasetFormat

MAX_ARRAY_BYTES = 16 * 2**30
_ZIP = b"PK\x03\x04"


class NpzDataset:
    """Items along the first axis of one array, labels in another. Ids are the positions: `0`, `1`, ..."""

    def __init__(self, name: str, path: Path, form: DatasetFormat, class_names: tuple[str, ...] = ()) -> None:
        """Load both arrays into memory.

        Raises DatasetError: not an npz, an array missing or too large, one that would need unpickling, labels
        that are not one number or one word an item.
        """
        self.class_names = class_names
        self._name = name
        try:
            with path.open("rb") as file:
                if file.read(len(_ZIP)) != _ZIP:  # NumPy would take it for an array, and load all of it
                    raise DatasetError(f"{name}: {path.name} is not an npz file")
            with np.load(path, allow_pickle=False) as found:
                self._array = self._load(found, form.items_array)
                labels = self._load(found, form.labels_array)
        except MemoryError as error:
            raise DatasetError(f"{name}: the arrays of {path.name} do not fit into memory") from error
        except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
            raise DatasetError(f"{name}: {path.name} is not an npz file that can be read: {error}") from error
        if self._array.ndim == 0:
            raise DatasetError(f"{name}: array '{form.items_array}' is one number, not items along an axis")
        self._array.setflags(write=False)
        texts = self._labels(labels, form)
        self.items: tuple[Item, ...] = tuple(Item(index, str(index), text) for index, text in enumerate(texts))

    def read(self, index: int) -> Array:
        """Return an item as a read-only view; see Dataset."""
        item: Array = np.asarray(self._array[self.items[index].index])
        return item

    def _load(self, found: "np.lib.npyio.NpzFile", name: str) -> Array:
        if name not in found.files:
            raise DatasetError(f"{self._name}: no array '{name}'; the file has {', '.join(found.files) or 'none'}")
        size = _announced_bytes(found, name)
        if size > MAX_ARRAY_BYTES:
            raise DatasetError(f"{self._name}: array '{name}' takes {size} bytes, and {MAX_ARRAY_BYTES} are allowed")
        array: Array = found[name]
        return array

    def _labels(self, labels: Array, form: DatasetFormat) -> list[str]:
        if labels.ndim != 1 or len(labels) != len(self._array):
            raise DatasetError(
                f"{self._name}: array '{form.labels_array}' has shape {labels.shape}; "
                f"one label for each of {len(self._array)} items is ({len(self._array)},)"
            )
        if labels.dtype.kind == "S":
            return [text.decode("utf-8", "strict") for text in labels.tolist()]
        if labels.dtype.kind not in "iuU":
            raise DatasetError(
                f"{self._name}: array '{form.labels_array}' is of {labels.dtype}; labels are integers or text"
            )
        texts = [str(label) for label in labels.tolist()]
        if "" in texts:
            raise DatasetError(f"{self._name}: item {texts.index('')} has no label")
        return texts


def _announced_bytes(found: "np.lib.npyio.NpzFile", name: str) -> int:
    """Return the size in memory of an array, from its header: few compressed bytes can make a huge one."""
    zipped = found.zip
    assert zipped is not None, "an open npz has its zip file"
    with zipped.open(name if name in zipped.namelist() else f"{name}.npy") as file:
        version = npy.read_magic(file)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, _, dtype = read(file)
    return math.prod(shape) * dtype.itemsize
