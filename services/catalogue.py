"""Manifests: those the platform ships, and how any manifest gets into the registry and out of it."""

import asyncio
import logging
import time
from collections.abc import Iterator
from importlib import resources

from bus.connection import Bus
from bus.registry import Registry
from schemas.errors import ManifestError
from schemas.events import ManifestRegistered, ManifestRemoved
from schemas.manifest_yaml import manifest_digest, parse_manifest
from schemas.manifests import MODELS, Kind, Manifest

log = logging.getLogger(__name__)


def kind_of(manifest: Manifest) -> Kind:
    """Return the kind of a manifest."""
    return next(kind for kind, model in MODELS.items() if isinstance(manifest, model))


def shipped() -> Iterator[Manifest]:
    """Yield the manifests that come with the platform. Blocks on the disk.

    One that cannot be used is logged with file, line and field, and left out: the others work.
    """
    folder = resources.files("manifests")
    for kind in MODELS:
        entries = folder / f"{kind}s"
        if not entries.is_dir():
            continue
        for entry in sorted(entries.iterdir(), key=lambda one: one.name):
            if not entry.name.endswith(".yml"):
                continue
            try:
                yield parse_manifest(entry.read_text(encoding="utf-8"), kind, f"manifests/{kind}s/{entry.name}")
            except ManifestError as error:
                log.error("a manifest of the platform's own cannot be used: %s", error)


async def register(bus: Bus, registry: Registry, manifest: Manifest, *, user: str = "") -> bool:
    """Put a manifest into the registry and tell of it; return whether it is new or differs from what was there.

    The event goes first: should this process die in between, registering again tells again, whereas a manifest
    that is in the registry and was never told of would be missing from the store for ever.
    Raises BusUnavailableError, PayloadTooLargeError.
    """
    kind = kind_of(manifest)
    digest = manifest_digest(manifest)
    known = await registry.get_manifest(kind, manifest.name, manifest.version)
    if known is not None and manifest_digest(known) == digest:
        return False
    event = ManifestRegistered(
        kind=kind,
        name=manifest.name,
        version=manifest.version,
        digest=digest,
        body=manifest.model_dump_json(),
        user=user,
        time_ns=time.time_ns(),
    )
    await bus.publish_event(event)
    await registry.put_manifest(kind, manifest)
    return True


async def unregister(bus: Bus, registry: Registry, kind: Kind, name: str, version: str, *, user: str = "") -> bool:
    """Take a manifest out of the registry and tell of it; return whether it was there. What it evaluated stays.

    Raises BusUnavailableError.
    """
    if not await registry.remove_manifest(kind, name, version):
        return False
    event = ManifestRemoved(kind=kind, name=name, version=version, user=user, time_ns=time.time_ns())
    await bus.publish_event(event)
    return True


async def register_shipped(bus: Bus, registry: Registry) -> int:
    """Register what the platform ships and return how many were new or changed."""
    changed = 0
    for manifest in await asyncio.to_thread(lambda: list(shipped())):
        changed += await register(bus, registry, manifest)
    return changed
