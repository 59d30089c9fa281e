"""Small assets for the tests of the data manager."""

import hashlib
import io
import tarfile
from pathlib import Path

from schemas.steps import AssetRef

CONTENT = b"weights" * 10_000


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def asset(url: str, content: bytes = CONTENT, *, unpack: bool = False) -> AssetRef:
    return AssetRef(url=url, sha256=sha256(content), unpack=unpack)


def cached(cache: Path) -> list[str]:
    """Every file in a cache, locks apart."""
    return sorted(str(p.relative_to(cache)) for p in cache.rglob("*") if p.is_file() and p.suffix != ".lock")


def packed(*names: str, content: bytes = b"x") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()
