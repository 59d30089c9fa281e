"""Unpacking archives that nobody vouches for: tar (plain, gzip, bzip2, xz) and zip.

Everything is checked before it is written: names by their text, kinds, numbers and sizes. No link is ever made
on disk, so a path below the directory stays below it; what an archive links to is given as the file itself.
That is stricter than tarfile's `data` filter, which also strips a leading '/' instead of refusing it and whose
handling of links has been got around (CVE-2025-4517).
"""

import bz2
import ctypes
import errno
import gzip
import lzma
import os
import posixpath
import shutil
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import IO, cast

from predictors.data.meter import Meter
from predictors.data.paths import confined
from predictors.errors import AssetRefusedError

CHUNK = 2**20
MAX_MEMBERS = 2_000_000
MAX_HEADER = 4 * 2**20
_UNREADABLE = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    NotImplementedError,
    # What the parsers of the standard library let through for headers that are made to confuse them.
    ArithmeticError,
    LookupError,
    RecursionError,
    ValueError,
    struct.error,
)
_CLASHES = frozenset({errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ENOTEMPTY, errno.EINVAL})


def unpack(
    archive: Path, directory: Path, *, name: str, max_bytes: int, meter: Meter, max_members: int = MAX_MEMBERS
) -> None:
    """Unpack `archive` into the empty `directory` and flush it to disk. Blocks. `name` is for errors.

    On any error the directory is left as it is then, for the caller to remove.
    Raises AssetRefusedError: not an archive, damaged, more than `max_bytes` or `max_members` in it, a member
    that is absolute, leads outside, or is neither file nor directory, a link to anything but a file of the
    archive. Raises OSError when the disk is full, and CancelledError.
    """
    writer = _Writer(directory, name, max_bytes, max_members, meter)
    try:
        with archive.open("rb") as raw:
            start = raw.read(6)
            raw.seek(0)
            if start.startswith((b"PK\x03\x04", b"PK\x05\x06")):
                _unzip(raw, writer)
            else:
                _untar(raw, start, writer, os.fstat(raw.fileno()).st_size)
        writer.finish()
    except _UNREADABLE as error:
        raise writer.refused(f"is not a readable archive (tar, tar.gz, zip): {error}") from error
    except OSError as error:
        if isinstance(error, gzip.BadGzipFile) or error.errno is None:  # bz2 and gzip raise a bare OSError
            raise writer.refused(f"is not a readable archive (tar, tar.gz, zip): {error}") from error
        if error.errno in _CLASHES:
            raise writer.refused(f"has members that cannot stand beside each other: {error.strerror}") from error
        raise
    _flush(directory)


class _Writer:
    """Writes members below one directory, within the limits."""

    def __init__(self, root: Path, name: str, max_bytes: int, max_members: int, meter: Meter) -> None:
        self._root = root
        self._name = name
        self._max_bytes = max_bytes
        self._max_members = max_members
        self._members = 0
        self._files: set[str] = set()
        self._links: dict[str, str] = {}
        self.meter = meter
        self.bytes = 0

    def refused(self, problem: str) -> AssetRefusedError:
        """Return the error for this archive."""
        return AssetRefusedError(f"the archive {self._name} {problem}")

    def path(self, member: str) -> PurePosixPath:
        """Count a member and return its path, checked."""
        self._members += 1
        if self._members > self._max_members:
            raise self.refused(f"has more than {self._max_members} members")
        self.meter.check()
        return self._confined(member)

    def directory(self, path: PurePosixPath) -> None:
        """Make a directory."""
        (self._root / path).mkdir(parents=True, exist_ok=True)

    def file(self, path: PurePosixPath, size: int, content: IO[bytes], tell: Callable[[], None]) -> None:
        """Write a file of `size` announced bytes."""
        self._reserve(path, size)
        target = self._root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)  # the later of two members of one name counts
        with target.open("xb", buffering=0) as file:
            while chunk := content.read(CHUNK):
                self._reserve(path, len(chunk))
                self.bytes += len(chunk)
                view = memoryview(chunk)
                while view:
                    view = view[file.write(view) :]
                tell()
            os.fchmod(file.fileno(), 0o444)
        self._links.pop(str(path), None)
        self._files.add(str(path))

    def link(self, path: PurePosixPath, target: str) -> None:
        """Note that `path` is to have the content of `target`, a path from the root of the archive."""
        self._links[str(path)] = str(self._confined(target))
        self._files.discard(str(path))

    def finish(self) -> None:
        """Make the links true."""
        for path, target in self._links.items():
            seen = {path}
            while target in self._links and target not in seen:
                seen.add(target)
                target = self._links[target]
            if target not in self._files:
                raise self.refused(f"has a link {path[:200]!r} to {target[:200]!r}, which is no file of it")
            place = self._root / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.unlink(missing_ok=True)
            try:
                os.link(self._root / target, place)
            except OSError as error:
                if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK):
                    raise
                self._reserve(PurePosixPath(path), (self._root / target).stat().st_size)
                shutil.copyfile(self._root / target, place)
                self.bytes += place.stat().st_size

    def _confined(self, member: str) -> PurePosixPath:
        try:
            return confined(member)
        except ValueError as error:
            raise self.refused(f"has a member {member[:200]!r} that {error}") from error

    def _reserve(self, path: PurePosixPath, size: int) -> None:
        if self.bytes + size > self._max_bytes:
            raise self.refused(
                f"unpacks to more than {self._max_bytes} bytes (at member {str(path)[:200]!r}); "
                "MLMODELSCOPE_ASSET_MAX_BYTES is the limit"
            )


_COMPRESSIONS: dict[bytes, Callable[[IO[bytes]], IO[bytes]]] = {
    b"\x1f\x8b": lambda raw: cast(IO[bytes], gzip.GzipFile(fileobj=raw)),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ": lzma.LZMAFile,
}


class _Headers:
    """A file for tarfile that refuses to hand out headers of any size: they are read into memory in one piece."""

    def __init__(self, file: IO[bytes], writer: _Writer) -> None:
        self._file = file
        self._writer = writer

    def read(self, size: int) -> bytes:
        if not 0 <= size <= MAX_HEADER:
            raise self._writer.refused(f"has a header of {size} bytes")
        return self._file.read(size)

    def seek(self, offset: int) -> int:
        return self._file.seek(offset)

    def tell(self) -> int:
        return self._file.tell()


def _untar(raw: IO[bytes], start: bytes, writer: _Writer, packed: int) -> None:
    """Unpack a tar, found to be compressed by its first bytes."""
    plain = next((opened(raw) for magic, opened in _COMPRESSIONS.items() if start.startswith(magic)), raw)

    def tell() -> None:
        writer.meter.report(min(raw.tell(), packed), packed)

    with tarfile.TarFile(fileobj=_Headers(plain, writer), mode="r") as tar:  # type: ignore[arg-type]
        last = -1
        while (member := tar.next()) is not None:
            if member.size < 0 or member.offset <= last:
                raise writer.refused("has a header that leads backwards")  # read as it says, it would never end
            last = member.offset
            vars(tar)["members"].clear()  # else every header of a large archive stays in memory
            _tar_member(tar, member, writer, tell)


def _tar_member(tar: tarfile.TarFile, member: tarfile.TarInfo, writer: _Writer, tell: Callable[[], None]) -> None:
    path = writer.path(member.name)
    if member.isdir():
        writer.directory(path)
    elif member.isreg():
        content = tar.extractfile(member)
        assert content is not None, "a regular member has content"
        writer.file(path, member.size, content, tell)
    elif member.islnk():
        writer.link(path, member.linkname)
    elif member.issym():
        writer.link(path, _beside(path, member.linkname))
    else:
        raise writer.refused(f"has a member {member.name[:200]!r} that is neither file nor directory")


def _beside(path: PurePosixPath, target: str) -> str:
    """Return what a symbolic link at `path` points to, from the root of the archive."""
    return posixpath.normpath(target if target.startswith("/") else f"{path.parent}/{target}")


def _unzip(raw: IO[bytes], writer: _Writer) -> None:
    with zipfile.ZipFile(raw) as zipped:
        members = zipped.infolist()
        total = sum(member.file_size for member in members)

        def tell() -> None:
            writer.meter.report(writer.bytes, total)

        for member in members:
            path = writer.path(member.orig_filename)
            kind = stat.S_IFMT(member.external_attr >> 16)
            if member.is_dir():
                writer.directory(path)
                continue
            if kind not in (0, stat.S_IFREG):
                raise writer.refused(f"has a member {member.filename[:200]!r} that is neither file nor directory")
            if member.flag_bits & 0x1:
                raise writer.refused(f"has an encrypted member {member.filename[:200]!r}")
            with zipped.open(member) as content:
                writer.file(path, member.file_size, content, tell)


def _flush(directory: Path) -> None:
    """Make everything written below the directory durable, at the cost of its file system only, where that can be."""
    syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    if syncfs is None:
        os.sync()
        return
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if syncfs(descriptor):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(directory))
    finally:
        os.close(descriptor)
