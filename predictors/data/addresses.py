"""From an asset's address to the source that reads it."""

from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from predictors.data.download import TransferPolicy
from predictors.data.http import HttpSource
from predictors.data.paths import confined
from predictors.data.sources import FsspecSource, LocalSource, Source
from predictors.data.urls import scheme, shown
from predictors.errors import AssetNotFoundError, AssetRefusedError


def open_address(address: str, policy: TransferPolicy, bundled: Path | None = None) -> Source:
    """Return the source for an address; nothing is opened yet.

    `repo:NAME` is a file under `bundled`, by default the `assets` that the platform's manifests come with.
    Raises AssetRefusedError for an address that leads where it may not, AssetNotFoundError for one that is none.
    """
    kind = scheme(address)
    try:
        urlsplit(address)
    except ValueError as error:
        raise AssetNotFoundError(f"{shown(address)} is no address: {error}") from error
    if kind == "mirror":
        raise AssetNotFoundError(
            f"{shown(address)} has no public address: only an asset mirror has it",
            hint="set MLMODELSCOPE_ASSET_MIRROR to one where the agents are started (`up`, `agent`)",
        )
    if kind == "repo":
        return _shipped(address, bundled)
    if kind == "file":
        return LocalSource(_local(address), shown(address))
    if kind in ("http", "https"):
        return HttpSource(address, connect_timeout_s=policy.connect_timeout_s, read_timeout_s=policy.read_timeout_s)
    if not kind:
        raise AssetNotFoundError(
            f"'{shown(address)}' is no address: it has no scheme",
            hint="a file of this machine is file:///its/absolute/path",
        )
    if "::" in address:
        # A chain downloads through drivers of its own, into places and up to sizes nobody here bounds.
        raise AssetRefusedError(f"{shown(address)}: chained addresses ('::') are not followed")
    return FsspecSource(address)


def _shipped(address: str, bundled: Path | None) -> Source:
    name = address.partition(":")[2]
    try:
        path = confined(name)
    except ValueError as error:
        raise AssetRefusedError(f"{address}: the name of a file of the platform {error}") from error
    root: Traversable = bundled if bundled is not None else resources.files("manifests") / "assets"
    return LocalSource(root.joinpath(*path.parts), address)


def _local(address: str) -> Path:
    parts = urlsplit(address)
    path = Path(unquote(parts.path))
    if parts.netloc not in ("", "localhost") or not path.is_absolute():
        raise AssetNotFoundError(
            f"{shown(address)}: a file: address has an absolute path of this machine",
            hint="write file:///its/absolute/path",
        )
    return path
