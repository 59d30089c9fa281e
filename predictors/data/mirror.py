"""A mirror: a place, local or not, that holds assets by digest.

Its `index.json` is `{"files": [{"path": ..., "sha256": ..., "size": ...}]}`, paths relative to the index.
"""

from pathlib import Path
from urllib.parse import quote

from pydantic import ValidationError

from predictors.data.addresses import open_address
from predictors.data.download import TransferPolicy, read_small
from predictors.data.meter import Meter
from predictors.data.paths import confined
from predictors.data.sources import LocalSource, Source
from predictors.data.urls import scheme, shown
from predictors.errors import AssetNotFoundError
from schemas.base import Event

MAX_INDEX_BYTES = 64 * 2**20


class MirrorFile(Event):
    """One file of a mirror."""

    path: str
    sha256: str


class MirrorIndex(Event):
    """What a mirror says it has."""

    files: tuple[MirrorFile, ...]


class Mirror:
    """The mirror at `root`: a directory, or a URL of any scheme that assets may have."""

    def __init__(self, root: str, policy: TransferPolicy) -> None:
        self.address = shown(root)
        self._policy = policy
        self._directory: Path | None = None if scheme(root) else Path(root).expanduser()
        self._root = root.rstrip("/")
        self._index: MirrorIndex | None = None

    def sources(self, digest: str, meter: Meter) -> list[Source]:
        """Return every file of the mirror with this digest, at least one. Blocks while the index is read.

        A remote index is kept, and read again when it lacks the digest. Raises AssetNotFoundError when the
        mirror lists no such file or its index is none, AssetUnreachableError, CancelledError.
        """
        known = self._index
        if known is not None and any(file.sha256.lower() == digest for file in known.files):
            return self._matching(known, digest)
        index = self._read(meter)
        if self._directory is None:
            self._index = index
        return self._matching(index, digest)

    def _matching(self, index: MirrorIndex, digest: str) -> list[Source]:
        paths = [file.path for file in index.files if file.sha256.lower() == digest]
        if not paths:
            raise AssetNotFoundError(f"mirror {self.address}: does not list this digest")
        return [self._source(path) for path in paths]

    def _read(self, meter: Meter) -> MirrorIndex:
        source = self._source("index.json")
        try:
            return MirrorIndex.model_validate_json(read_small(source, MAX_INDEX_BYTES, self._policy, meter))
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            where = ".".join(str(step) for step in problem["loc"])
            raise AssetNotFoundError(
                f"{source.address}: not an index of a mirror: {where + ': ' if where else ''}{problem['msg']}"
            ) from error

    def _source(self, path: str) -> Source:
        try:
            relative = confined(path)
        except ValueError as error:
            raise AssetNotFoundError(f"mirror {self.address}: its index lists '{path}', which {error}") from error
        if self._directory is not None:
            file = self._directory / relative
            return LocalSource(file, str(file))
        quoted = quote(str(relative)) if scheme(self._root) in ("http", "https", "file") else str(relative)
        return open_address(f"{self._root}/{quoted}", self._policy)
