"""Room for prepared inputs: in memory, or in a file where they would take too much of it."""

import errno
import math
import mmap
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from predictors.contract import Array
from predictors.errors import DiskFullError

SPILL_BYTES: Final = 512 * 2**20
"""More than this goes to a file."""

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_ALIGNMENT: Final = 4096


@dataclass(slots=True)
class Prepared:
    """The items of a task, ready for the predictor.

    Arrays in a file are mapped: a batch is read from the page cache, or from disk where memory is short.
    The file has no name from the moment it is made, so that nothing is left of it however the process ends.
    """

    arrays: tuple[Array, ...]
    """One for each input, C-contiguous, of shape (readable items, *item shape). Empty once closed."""
    positions: tuple[int, ...]
    """Data set index of each row, in the order asked for."""
    unreadable: dict[int, str]
    """Data set index to reason, of the items that have no row."""
    items_per_s: float
    """Items asked for, over the time it took to prepare them."""
    spilled: bool = False
    """The arrays lie in a file."""

    def close(self) -> None:
        """Give memory and disk back, once nobody else holds a view of the arrays. Idempotent."""
        self.arrays = ()


def allocate(
    count: int, rows: Sequence[tuple[tuple[int, ...], np.dtype[np.generic]]], spill_dir: Path, spill_bytes: int
) -> tuple[tuple[Array, ...], mmap.mmap | None]:
    """Return one array of `count` rows for each shape and type in `rows`, and the file they lie in, if any.

    A file's blocks are taken here, so that a disk that is too full is DiskFullError now and not the death of
    the process at some later write.
    """
    sizes = [count * math.prod(shape) * dtype.itemsize for shape, dtype in rows]
    if sum(sizes) <= spill_bytes:
        return tuple(np.empty((count, *shape), dtype) for shape, dtype in rows), None
    offsets = [0]
    for size in sizes:
        offsets.append(-(-(offsets[-1] + size) // _ALIGNMENT) * _ALIGNMENT)
    mapped = _map_file(spill_dir, offsets[-1])
    arrays = tuple(
        np.frombuffer(mapped, dtype, count * math.prod(shape), offset).reshape(count, *shape)
        for (shape, dtype), offset in zip(rows, offsets[:-1], strict=True)
    )
    return arrays, mapped


def _map_file(directory: Path, size: int) -> mmap.mmap:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(directory).free
        if size > free:
            raise _disk_full(directory, size, f"{free:,} are free")
        with tempfile.TemporaryFile(dir=directory) as file:
            os.posix_fallocate(file.fileno(), 0, size)
            return mmap.mmap(file.fileno(), size)
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise _disk_full(directory, size, os.strerror(error.errno or 0)) from error


def _disk_full(directory: Path, size: int, found: str) -> DiskFullError:
    return DiskFullError(
        f"prepared inputs need {size:,} bytes in {directory}: {found}",
        hint="free space there, point cache_dir elsewhere, or evaluate fewer items with sample_limit",
    )
