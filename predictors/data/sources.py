"""Where bytes come from: one class a kind of address, each able to begin in the middle."""

import os
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from importlib.resources.abc import Traversable
from typing import Protocol

import fsspec

from predictors.data.urls import shown
from predictors.errors import AssetNotFoundError, AssetUnreachableError

CHUNK = 2**20


@dataclass(frozen=True, slots=True)
class Stream:
    """An open source. `start` is the offset of its first byte, `total` the size of the whole, None when untold."""

    start: int
    total: int | None
    chunks: Iterator[bytes] = field(repr=False)


class Source(Protocol):
    """One address that may have the asset."""

    address: str
    """As errors show it: without password or signature."""

    def open(self, offset: int) -> AbstractContextManager[Stream]:
        """Open the source at `offset`, or at 0 where it cannot begin elsewhere. Blocks, within bounds.

        Raises, here and while reading, AssetNotFoundError when it does not have the asset and
        AssetUnreachableError when trying again may help.
        """
        ...

    def abort(self) -> None:
        """Make a blocked `open` or read of another thread fail soon, where that is possible."""
        ...


class LocalSource:
    """A file of this machine, or one shipped with the platform."""

    def __init__(self, file: Traversable, address: str) -> None:
        self.address = address
        self._file = file

    @contextmanager
    def open(self, offset: int) -> Iterator[Stream]:
        """Open the file; see Source."""
        try:
            # Asked before opening: to open a pipe would wait for a writer.
            if not self._file.is_file():
                raise AssetNotFoundError(f"{self.address}: no such file")
            with self._file.open("rb") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise AssetNotFoundError(f"{self.address}: not a regular file")
                start = offset if offset <= status.st_size else 0
                file.seek(start)
                yield Stream(start, status.st_size, iter(lambda: file.read(CHUNK), b""))
        except (FileNotFoundError, PermissionError, NotADirectoryError) as error:
            raise AssetNotFoundError(f"{self.address}: {error.strerror}") from error
        except OSError as error:
            raise AssetUnreachableError(f"{self.address}: {error.strerror or error}") from error

    def abort(self) -> None:
        """Do nothing: a read of a file ends by itself."""


class FsspecSource:
    """Whatever fsspec has a driver for: object stores, FTP, SSH, ..."""

    def __init__(self, url: str) -> None:
        self.address = shown(url)
        self._url = url

    @contextmanager
    def open(self, offset: int) -> Iterator[Stream]:
        """Open the address through its driver; see Source."""
        try:
            system, path = fsspec.core.url_to_fs(self._url)
            size = system.info(path).get("size")
            with system.open(path, "rb") as file:
                start = offset if size is not None and offset <= size and file.seekable() else 0
                file.seek(start) if start else None
                yield Stream(start, size, iter(lambda: file.read(CHUNK), b""))
        except (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError) as error:
            raise AssetNotFoundError(f"{self.address}: {error.strerror or error or type(error).__name__}") from error
        except (ImportError, ValueError, NotImplementedError) as error:
            # fsspec's own words: which protocol it does not know, or which package its driver wants.
            raise AssetNotFoundError(f"{self.address}: this machine cannot read it: {error}") from error
        except Exception as error:  # drivers raise their own types; tried again, then told
            raise AssetUnreachableError(f"{self.address}: {type(error).__name__}: {error}") from error

    def abort(self) -> None:
        """Do nothing: drivers have no common way to be interrupted."""
