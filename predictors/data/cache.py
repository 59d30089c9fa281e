"""The directory of verified files, by content."""

import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from predictors.data.lock import Held, locked
from predictors.data.meter import Meter
from predictors.errors import DiskFullError, PredictorError

CHUNK = 2**20
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class Cache:
    """`sha256/ab/<digest>` holds files, with `.part` and `.lock` beside them; `unpacked/<digest>/` directories.

    What has its final name is complete and was verified. Shared by any number of processes: whoever writes
    anything of a digest holds that digest's lock. Safe for use from many threads.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._verified: dict[str, tuple[int, int, int]] = {}

    def file(self, digest: str) -> Path:
        """Return where the file of this digest lies or would lie."""
        return self.directory / "sha256" / digest[:2] / digest

    def part(self, digest: str) -> Path:
        """Return where its download grows."""
        return self.file(digest).with_name(f"{digest}.part")

    def part_size(self, digest: str) -> int:
        """Return how much of a download is there. Needs no lock: whoever holds it may finish at any moment."""
        try:
            return self.part(digest).stat().st_size
        except FileNotFoundError:
            return 0

    def unpacked(self, digest: str) -> Path:
        """Return the directory that the archive of this digest unpacks to."""
        return self.directory / "unpacked" / digest

    def find(self, digest: str, meter: Meter) -> Path | None:
        """Return the cached file, or None when it is not there or no longer what its name says.

        Its bytes are hashed when this process sees the file for the first time, and again when it has changed.
        """
        path = self.file(digest)
        try:
            stat = path.stat()
            stamp = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
            if self._verified.get(digest) == stamp:
                return path
            if hash_file(path, hashlib.sha256(), meter).hexdigest() != digest:
                return None
        except FileNotFoundError:
            return None
        self._verified[digest] = stamp
        return path

    def lock(self, digest: str, waiting: Callable[[int], None]) -> AbstractContextManager[Held]:
        """Return the lock of one digest, to be entered at once; see `locked`."""
        path = self.file(digest).with_name(f"{digest}.lock")
        with self.writing():
            path.parent.mkdir(parents=True, exist_ok=True)
            return locked(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644), waiting)

    def commit(self, digest: str) -> Path:
        """Give the verified, flushed `.part` its final name. The lock is held."""
        path = self.file(digest)
        with self.writing():
            self.part(digest).chmod(0o444)
            os.replace(self.part(digest), path)
            flush_directory(path.parent)
        stat = path.stat()
        self._verified[digest] = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
        return path

    def discard(self, digest: str) -> None:
        """Remove the file of this digest and what was downloaded of it. The lock is held."""
        self.part(digest).unlink(missing_ok=True)
        self.file(digest).unlink(missing_ok=True)

    def free(self) -> int:
        """Return the bytes free for this user on the cache's disk."""
        return shutil.disk_usage(self.directory).free

    def full(self, needed: int, reason: str) -> DiskFullError:
        """Return the error for a disk that cannot take `needed` more bytes (0: not known)."""
        free: int | str = "an unknown number of"
        with suppress(OSError):  # the disk may be gone altogether; the error must still be told
            free = self.free()
        wanted = f"{needed} more bytes are needed" if needed else "more bytes are needed (the total is not known)"
        return DiskFullError(
            f"no space in the cache directory {self.directory}: {wanted}, {free} bytes are free ({reason})",
            hint="free space there, or set MLMODELSCOPE_CACHE_DIR to a directory on a larger disk",
        )

    @contextmanager
    def writing(self, needed: Callable[[], int] = lambda: 0) -> Iterator[None]:
        """Turn an OSError of the cache's disk into DiskFullError or, when it is not full, PredictorError."""
        try:
            yield
        except OSError as error:
            if error.errno in FULL:
                raise self.full(needed(), error.strerror or str(error)) from error
            raise PredictorError(
                f"the cache directory {self.directory} cannot be used: {error}",
                hint="make it writable for this user, or set MLMODELSCOPE_CACHE_DIR to another directory",
            ) from error


def hash_file(path: Path, hasher: "hashlib._Hash", meter: Meter) -> "hashlib._Hash":
    """Feed a file's bytes to `hasher` and return it. Raises OSError, CancelledError."""
    with path.open("rb", buffering=0) as file:
        total = os.fstat(file.fileno()).st_size
        done = 0
        while chunk := file.read(CHUNK):
            hasher.update(chunk)
            done += len(chunk)
            meter.report(done, total)
    return hasher


def flush_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
