"""One source into one `.part` file: resumed, retried, bounded, verified."""

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from predictors.data.cache import Cache, hash_file
from predictors.data.meter import Meter
from predictors.data.readahead import ReadAhead
from predictors.data.sources import Source
from predictors.errors import AssetDigestError, AssetRefusedError, AssetUnreachableError


@dataclass(frozen=True, slots=True)
class TransferPolicy:
    """How patient a transfer is."""

    connect_timeout_s: float = 10.0
    read_timeout_s: float = 30.0
    """A source that sends nothing for so long is silent."""
    attempts: int = 4
    """Failures in a row, without progress between them, after which the address is unreachable."""
    backoff_s: float = 0.5
    """Wait before the second attempt; doubled before each further one."""
    progress_bytes: int = 2**20
    """An attempt that brought as much was progress: the count of failures begins anew."""

    @property
    def stall_s(self) -> float:
        """Silence that ends an attempt where a source does not notice it by itself."""
        return 1.5 * (self.connect_timeout_s + self.read_timeout_s)


class Partial:
    """A growing `.part` file and the hash of all that is in it."""

    def __init__(self, cache: Cache, digest: str, meter: Meter) -> None:
        self._cache = cache
        self.path: Path = cache.part(digest)
        self.size = 0
        self.total: int | None = None
        self.stretches = 0
        """How many separate transfers the content comes from. More than one may not fit together."""
        self._hasher = hashlib.sha256()
        with cache.writing():
            self._file = self.path.open("ab", buffering=0)
            self.size = self._file.tell()
            if self.size:
                self.stretches = 1
                hash_file(self.path, self._hasher, meter)

    def digest(self) -> str:
        """Return the sha256 of the content."""
        return self._hasher.hexdigest()

    def append(self, chunk: bytes) -> None:
        """Write a chunk. Raises DiskFullError, PredictorError."""
        with self._cache.writing(self._missing):
            view = memoryview(chunk)
            while view:
                written = self._file.write(view)
                self._hasher.update(view[:written])
                self.size += written
                view = view[written:]

    def restart(self) -> None:
        """Forget the content."""
        with self._cache.writing():
            self._file.truncate(0)
        self.size = self.stretches = 0
        self._hasher = hashlib.sha256()

    def flush(self) -> None:
        """Make the content durable. Raises DiskFullError, PredictorError."""
        with self._cache.writing(self._missing):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file; what is in it stays, for the next attempt."""
        self._file.close()
        if not self.size:
            self.path.unlink(missing_ok=True)

    def _missing(self) -> int:
        return max(0, (self.total or 0) - self.size)


@dataclass(frozen=True, slots=True)
class Transfer:
    """The rules of one download: what must come, how large it may be, who is told."""

    cache: Cache
    digest: str
    max_bytes: int
    policy: TransferPolicy
    meter: Meter
    announce: Callable[[int], None]
    """Told the size, once it is known."""

    def run(self, source: Source) -> None:
        """Bring the source's bytes into the digest's `.part`, complete, verified and flushed. Blocks.

        What an earlier attempt left is continued where the source can, and begun anew where it cannot or where
        the parts prove not to belong together. On CancelledError and AssetUnreachableError the `.part` stays,
        for the next attempt; otherwise the caller removes it.
        Raises AssetNotFoundError, AssetUnreachableError, AssetRefusedError, AssetDigestError, DiskFullError,
        CancelledError.
        """
        with closing(Partial(self.cache, self.digest, self.meter)) as partial:
            if partial.size and partial.digest() == self.digest:
                partial.flush()  # killed between the last byte and the final name
                return
            for pieced in (True, False):
                self._fill(source, partial)
                if partial.digest() == self.digest:
                    partial.flush()
                    self.meter.report(partial.size, partial.size, last=True)
                    return
                if not pieced or partial.stretches <= 1:
                    break
                partial.restart()
            raise AssetDigestError(
                f"{source.address}: expected sha256 {self.digest}, found {partial.digest()} ({partial.size} bytes)"
            )

    def _fill(self, source: Source, partial: Partial) -> None:
        """Take the source to its end, through interruptions."""
        failures = 0
        while True:
            before = partial.size
            try:
                self._attempt(source, partial)
                return
            except AssetUnreachableError as error:
                failures = 1 if partial.size - before >= self.policy.progress_bytes else failures + 1
                if failures >= self.policy.attempts:
                    raise AssetUnreachableError(f"{error.message} (tried {failures} times)") from error
                self.meter.pause(self.policy.backoff_s * 2 ** (failures - 1))

    def _attempt(self, source: Source, partial: Partial) -> None:
        with closing(ReadAhead(source, partial.size, stall_s=self.policy.stall_s, meter=self.meter)) as stream:
            head = stream.head()
            if head.start != partial.size:
                if head.start != 0:
                    raise AssetUnreachableError(f"{source.address}: answers with another range than asked for")
                partial.restart()
            if head.total is not None:
                self._expect(source, partial, head.total)
            partial.stretches += 1
            for chunk in stream:
                if partial.size + len(chunk) > self.max_bytes:
                    raise self._too_large(source, f"more than {self.max_bytes}")
                partial.append(chunk)
                self.meter.report(partial.size, head.total)
            if head.total is not None and partial.size < head.total:
                raise AssetUnreachableError(f"{source.address}: ended after {partial.size} of {head.total} bytes")

    def _expect(self, source: Source, partial: Partial, total: int) -> None:
        """Refuse early what will not fit."""
        if total > self.max_bytes:
            raise self._too_large(source, str(total))
        partial.total = total
        needed = total - partial.size
        with self.cache.writing():
            short = needed > self.cache.free()
        if short:
            raise self.cache.full(needed, "found before anything was written")
        self.announce(total)

    def _too_large(self, source: Source, size: str) -> AssetRefusedError:
        return AssetRefusedError(
            f"{source.address}: has {size} bytes, and an asset may have {self.max_bytes}",
            hint="raise MLMODELSCOPE_ASSET_MAX_BYTES if the asset is meant to be so large",
        )


def read_small(source: Source, max_bytes: int, policy: TransferPolicy, meter: Meter) -> bytes:
    """Return all bytes of a small source. Raises as `Transfer.run` does, digest and disk apart."""
    for attempt in range(1, policy.attempts + 1):
        try:
            return b"".join(_bounded(source, max_bytes, policy, meter))
        except AssetUnreachableError as error:
            if attempt == policy.attempts:
                raise AssetUnreachableError(f"{error.message} (tried {attempt} times)") from error
            meter.pause(policy.backoff_s * 2 ** (attempt - 1))
    raise AssertionError("attempts is at least 1")


def _bounded(source: Source, max_bytes: int, policy: TransferPolicy, meter: Meter) -> Iterator[bytes]:
    with closing(ReadAhead(source, 0, stall_s=policy.stall_s, meter=meter)) as stream:
        stream.head()
        size = 0
        for chunk in stream:
            size += len(chunk)
            if size > max_bytes:
                raise AssetRefusedError(f"{source.address}: has more than {max_bytes} bytes")
            yield chunk
