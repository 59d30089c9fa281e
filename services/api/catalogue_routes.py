"""Models, frameworks and data sets: what is registered, added and removed at run time."""

from collections.abc import Awaitable, Callable
from http import HTTPStatus

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from bus.registry import Registry
from schemas.base import Request as Strict
from schemas.manifest_yaml import parse_manifest
from schemas.manifests import MODELS, DatasetManifest, Kind, Manifest, ModelManifest, Version, VersionRange
from schemas.versions import newest, parse_version
from services.api.context import context_of
from services.api.endpoint import Endpoint, Handler
from services.api.exchange import JSON_OR_YAML, PageQuery, body_of, json_response, page_response, query_of
from services.api.problems import invalid, not_found
from services.catalogue import register, unregister
from services.record_rows import decode_cursor, encode_cursor


class ManifestsQuery(PageQuery):
    """Which manifests. All that are given must hold."""

    limit: int = Field(1000, ge=1, le=1000)
    """At most so many items."""
    name: str | None = None
    modality: str | None = None
    framework: str | None = None
    """Models: one they have files for. Frameworks: the name."""
    search: str | None = None
    """Words that occur in name, description or authors, any case."""


class OneManifestQuery(Strict):
    """Which version."""

    version: VersionRange = "*"
    """A range; the newest version in it is returned."""


class RemoveQuery(Strict):
    """Which version."""

    version: Version
    """Exactly this one."""


class AddQuery(Strict):
    """How errors name the manifest."""

    source: str = Field("manifest", max_length=500)
    """What errors call the manifest: a file's path."""
    user: str = ""


def endpoints() -> list[Endpoint]:
    """Return the routes of every kind of manifest."""
    return [endpoint for kind in MODELS for endpoint in _of_kind(kind)]


def _of_kind(kind: Kind) -> list[Endpoint]:
    base, model = f"/api/v1/{kind}s", MODELS[kind]

    def bound(handler: Callable[[Request, Kind], Awaitable[Response]]) -> Handler:
        async def handle(request: Request) -> Response:
            return await handler(request, kind)

        handle.__name__ = f"{handler.__name__.strip('_')}_{kind}"
        return handle

    return [
        Endpoint(
            "GET",
            base,
            bound(_list),
            f"List {kind}s, by name, newest version first",
            "manifests",
            returns=model,
            paged=True,
            query=ManifestsQuery,
        ),
        Endpoint(
            "POST",
            base,
            bound(_add),
            f"Register a {kind}: its manifest as YAML or JSON",
            "manifests",
            returns=model,
            status=HTTPStatus.CREATED,
            query=AddQuery,
            body=model,
            body_types=JSON_OR_YAML,
        ),
        Endpoint(
            "GET",
            f"{base}/{{name}}",
            bound(_get),
            f"The newest version of a {kind}, or the newest in a range",
            "manifests",
            returns=model,
            query=OneManifestQuery,
        ),
        Endpoint(
            "DELETE",
            f"{base}/{{name}}",
            bound(_remove),
            f"Remove a {kind}; what it evaluated stays",
            "manifests",
            status=HTTPStatus.NO_CONTENT,
            query=RemoveQuery,
        ),
    ]


async def _list(request: Request, kind: Kind) -> Response:
    query = query_of(request, ManifestsQuery)
    after = decode_cursor(query.cursor, ("", "")) if query.cursor else None
    found = [one for one in await context_of(request).registry.manifests(kind) if _wanted(one, query)]
    by_version = sorted(found, key=lambda one: parse_version(one.version), reverse=True)
    ordered = sorted(by_version, key=lambda one: one.name)
    start = 0
    if after is not None:
        # Where the last page ended; its last item may have been removed since.
        passed = [i for i, one in enumerate(ordered) if _passed(one, str(after[0]), str(after[1]))]
        start = passed[-1] + 1 if passed else 0
    page = ordered[start : start + query.limit]
    more = len(ordered) > start + query.limit
    return page_response(page, encode_cursor(page[-1].name, page[-1].version) if more else None)


async def _get(request: Request, kind: Kind) -> Response:
    name = request.path_params["name"]
    wanted = query_of(request, OneManifestQuery).version
    named = await _named(context_of(request).registry, kind, name)
    version = newest(list(named), wanted)
    if version is None:
        raise not_found(f"unknown_{kind}", f"no version of {name} is in {wanted}", f"Registered: {', '.join(named)}.")
    return json_response(named[version])


async def _add(request: Request, kind: Kind) -> Response:
    query = query_of(request, AddQuery)
    body = await body_of(request, JSON_OR_YAML)
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise invalid("manifest_invalid", f"{query.source}: not UTF-8: {error}") from error
    manifest = parse_manifest(text, kind, query.source)
    context = context_of(request)
    changed = await register(context.bus, context.registry, manifest, user=query.user)
    status = HTTPStatus.CREATED if changed else HTTPStatus.OK
    location = f"/api/v1/{kind}s/{manifest.name}?version={manifest.version}"
    return json_response(manifest, status, headers={"Location": location})


async def _remove(request: Request, kind: Kind) -> Response:
    context, name = context_of(request), request.path_params["name"]
    version = query_of(request, RemoveQuery).version
    if not await unregister(context.bus, context.registry, kind, name, version):
        named = await _named(context.registry, kind, name)
        raise not_found(f"unknown_{kind}", f"there is no {name} {version}", f"Registered: {', '.join(named)}.")
    return Response(status_code=HTTPStatus.NO_CONTENT)


async def _named(registry: Registry, kind: Kind, name: str) -> dict[str, Manifest]:
    """Return the versions of one name, newest first. Raises ProblemError when there are none."""
    everything = await registry.manifests(kind)
    named = {one.version: one for one in reversed(everything) if one.name == name}
    if not named:
        names = ", ".join(dict.fromkeys(one.name for one in everything)) or "none"
        raise not_found(f"unknown_{kind}", f"there is no {kind} called {name}", f"Registered: {names}.")
    return named


def _passed(manifest: Manifest, name: str, version: str) -> bool:
    """Return whether a manifest comes up to and including (name, version) in the order of the listing."""
    if manifest.name != name:
        return manifest.name < name
    return parse_version(manifest.version) >= parse_version(version)


def _wanted(manifest: Manifest, query: ManifestsQuery) -> bool:
    if query.name is not None and manifest.name != query.name:
        return False
    if query.modality is not None:
        modality = manifest.modality if isinstance(manifest, ModelManifest | DatasetManifest) else None
        if modality != query.modality:
            return False
    if query.framework is not None and query.framework not in _frameworks(manifest):
        return False
    authors = manifest.authors if isinstance(manifest, ModelManifest) else ()
    text = " ".join((manifest.name, manifest.description, *authors)).lower()
    return all(word in text for word in (query.search or "").lower().split())


def _frameworks(manifest: Manifest) -> set[str]:
    if isinstance(manifest, ModelManifest):
        return {entry.name for entry in manifest.frameworks}
    return set() if isinstance(manifest, DatasetManifest) else {manifest.name}
