"""The data manager: what a manifest names, as verified files of this machine."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from predictors.data.addresses import open_address
from predictors.data.archive import unpack
from predictors.data.cache import Cache, flush_directory
from predictors.data.download import Transfer, TransferPolicy
from predictors.data.lock import Held
from predictors.data.meter import Meter, never
from predictors.data.mirror import Mirror
from predictors.data.sources import Source
from predictors.data.urls import file_name, shown
from predictors.errors import (
    AssetDigestError,
    AssetNotFoundError,
    AssetRefusedError,
    AssetUnreachableError,
    PredictorError,
)
from schemas.steps import AssetRef

MIRROR_HINT = (
    "check the address, or set MLMODELSCOPE_ASSET_MIRROR to a directory or URL that holds the file "
    "and lists its sha256 in an index.json"
)
DIGEST_HINT = "the file at the address has changed, or the sha256 in the manifest is wrong; nothing was kept"
_WORST_FIRST: tuple[type[PredictorError], ...] = (
    AssetDigestError,
    AssetRefusedError,
    AssetUnreachableError,
    AssetNotFoundError,
)


class DataManager:
    """Fetches assets into a cache by content. Safe for use from many threads; the cache, from many processes.

    An asset is looked for in the cache, in the mirror by digest, and at its own address. One process at a time
    fetches a digest; the others wait for it, and one of them takes over where it was when it dies.
    """

    def __init__(
        self,
        cache_dir: Path,
        *,
        mirror: str | None = None,
        max_asset_bytes: int = 20 * 2**30,
        bundled: Path | None = None,
        policy: TransferPolicy | None = None,
    ) -> None:
        """`max_asset_bytes` bounds a file, and what an archive unpacks to. `bundled` is where `repo:` files lie."""
        self._policy = policy or TransferPolicy()
        self._cache = Cache(cache_dir)
        self._mirror = Mirror(mirror, self._policy) if mirror else None
        self._max_bytes = max_asset_bytes
        self._bundled = bundled

    def fetch(
        self,
        asset: AssetRef,
        *,
        progress: Callable[[int, int], None] | None = None,
        cancelled: Callable[[], bool] = never,
    ) -> Path:
        """Return the asset's verified file, or the directory it unpacks to when `asset.unpack`. Blocks.

        `progress(done, total)` is told bytes, of the transfer and then of the unpacking, also while another
        process does them; total is 0 while unknown. `cancelled` is asked often enough to stop within a second;
        what has come by then is kept for the next time. The result is read-only and stays.
        Raises AssetNotFoundError, AssetUnreachableError, AssetDigestError, AssetRefusedError, DiskFullError,
        CancelledError, and PredictorError when the cache directory cannot be used.
        """
        meter = Meter(file_name(asset.url), progress, cancelled)
        found = self._cached(asset, meter)
        if found is not None:
            return found
        with self._locked(asset.sha256, meter) as lock:
            found = self._cached(asset, meter)
            if found is not None:
                return found
            file = self._found(asset.sha256, meter)
            if file is None:
                file = self._download(asset, meter, lock)
            return self._unpack(asset, file, meter, lock) if asset.unpack else file

    @contextmanager
    def _locked(self, digest: str, meter: Meter) -> Iterator[Held]:
        def waiting(total: int) -> None:
            meter.report(self._cache.part_size(digest), total)

        with self._cache.lock(digest, waiting) as lock:
            yield lock

    def _found(self, digest: str, meter: Meter) -> Path | None:
        with self._cache.writing():
            return self._cache.find(digest, meter)

    def _cached(self, asset: AssetRef, meter: Meter) -> Path | None:
        if not asset.unpack:
            return self._found(asset.sha256, meter)
        directory = self._cache.unpacked(asset.sha256)
        with self._cache.writing():
            return directory if directory.is_dir() else None

    def _download(self, asset: AssetRef, meter: Meter, lock: Held) -> Path:
        """Try every address in turn. The lock is held."""
        transfer = Transfer(self._cache, asset.sha256, self._max_bytes, self._policy, meter, lock.announce)
        problems: list[PredictorError] = []
        for candidates in (self._mirrored, self._own):
            try:
                sources = candidates(asset, meter)
            except _WORST_FIRST as error:
                problems.append(error)
                continue
            for source in sources:
                problem = self._try(transfer, source)
                if problem is None:
                    return self._cache.commit(asset.sha256)
                problems.append(problem)
        raise _summary(asset, problems)

    def _try(self, transfer: Transfer, source: Source) -> PredictorError | None:
        """Return None when the `.part` is complete and right, or why this address did not do."""
        try:
            transfer.run(source)
        except (AssetNotFoundError, AssetUnreachableError) as error:
            return error
        except (AssetDigestError, AssetRefusedError) as error:
            self._cache.discard(transfer.digest)
            return error
        except PredictorError as error:
            if error.code == "disk_full":
                # The space goes back: a full disk hurts everybody on it, a transfer begun anew only its user.
                self._cache.discard(transfer.digest)
            raise
        return None

    def _mirrored(self, asset: AssetRef, meter: Meter) -> list[Source]:
        return self._mirror.sources(asset.sha256, meter) if self._mirror else []

    def _own(self, asset: AssetRef, meter: Meter) -> list[Source]:
        return [open_address(asset.url, self._policy, self._bundled)]

    def _unpack(self, asset: AssetRef, archive: Path, meter: Meter, lock: Held) -> Path:
        """Unpack beside the final place, and give the name only to what is complete. The lock is held."""
        directory = self._cache.unpacked(asset.sha256)
        unfinished = directory.with_name(f"{asset.sha256}.tmp")
        lock.announce(0)
        with self._cache.writing():
            if unfinished.exists():
                shutil.rmtree(unfinished)  # of a process that was killed: the lock is ours
            unfinished.mkdir(parents=True)
        try:
            with self._cache.writing():
                unpack(archive, unfinished, name=file_name(asset.url), max_bytes=self._max_bytes, meter=meter)
                unfinished.rename(directory)
                flush_directory(directory.parent)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)  # the first error is the one to tell
            raise
        return directory


def _summary(asset: AssetRef, problems: list[PredictorError]) -> PredictorError:
    """Return the one error for an asset that no address gave: the most telling kind, with every address."""
    worst = next(error for kind in _WORST_FIRST for error in problems if isinstance(error, kind))
    what = f"{file_name(asset.url)} ({shown(asset.url)})"
    tried = "; ".join(error.message for error in problems)
    message = {
        AssetDigestError: f"{what} is not the file that the manifest names. ",
        AssetRefusedError: f"{what} is refused. ",
        AssetUnreachableError: f"{what} cannot be reached. ",
        AssetNotFoundError: f"{what} was not found, sha256 {asset.sha256}. ",
    }[type(worst)]
    hint = DIGEST_HINT if isinstance(worst, AssetDigestError) else worst.hint or MIRROR_HINT
    return type(worst)(f"{message}Tried: {tried}", hint=hint)
