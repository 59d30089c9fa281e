"""`mlmodelscope models`, `frameworks`, `datasets`: what is registered."""

from pathlib import Path
from typing import Annotated

import typer

from mlmodelscope.cli.options import Data, Json, Port, Url, connect
from mlmodelscope.cli.output import print_json, print_table
from mlmodelscope.errors import RequestRefusedError
from schemas.manifest_yaml import manifest_text, parse_manifest
from schemas.manifests import DatasetManifest, FrameworkManifest, Kind, Manifest, ModelManifest

Version = Annotated[str, typer.Option("--version", help="Range of versions; the newest in it is taken.")]


def add(app: typer.Typer) -> None:
    """Add one group of commands for each kind of artifact."""
    kinds: tuple[Kind, ...] = ("model", "framework", "dataset")
    for kind in kinds:
        app.add_typer(_group(kind), name=f"{kind}s")


def _group(kind: Kind) -> typer.Typer:
    group = typer.Typer(help=f"The {kind}s that are registered.", no_args_is_help=True)

    @group.command("list", help=f"List the registered {kind}s.")
    def list_(
        search: Annotated[str | None, typer.Option("--search", help="Words in name or description.")] = None,
        modality: Annotated[str | None, typer.Option("--modality")] = None,
        framework: Annotated[str | None, typer.Option("--framework")] = None,
        url: Url = None,
        port: Port = None,
        data: Data = None,
        as_json: Json = False,
    ) -> None:
        with connect(url, port, data) as client:
            found = client.manifests(kind, search=search, modality=modality, framework=framework)
        if as_json:
            print_json(found)
        else:
            print_table(["name", "version", *_HEADS[kind], "description"], [_row(item) for item in found])

    @group.command("show", help=f"Print the manifest of a {kind}.")
    def show(
        name: str, version: Version = "*", url: Url = None, port: Port = None, data: Data = None, as_json: Json = False
    ) -> None:
        with connect(url, port, data) as client:
            found = client.manifest(kind, name, version)
        if as_json:
            print_json(found)
        else:
            typer.echo(manifest_text(found).rstrip())

    @group.command("add", help=f"Register a {kind} from its YAML file.")
    def add_(file: Path, url: Url = None, port: Port = None, data: Data = None, as_json: Json = False) -> None:
        try:
            text = file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise RequestRefusedError(f"{file} cannot be read: {error}") from error
        parse_manifest(text, kind, str(file))  # wrong YAML is told without a server, with the file's own name
        with connect(url, port, data) as client:
            found = client.add_manifest(kind, text, str(file))
        if as_json:
            print_json(found)
        else:
            typer.echo(f"registered {kind} {found.name} {found.version}")

    @group.command("remove", help=f"Take a {kind} out of the registry; what was evaluated stays.")
    def remove(
        name: str, version: str, url: Url = None, port: Port = None, data: Data = None, as_json: Json = False
    ) -> None:
        with connect(url, port, data) as client:
            client.remove_manifest(kind, name, version)
        if as_json:
            print_json({"kind": kind, "name": name, "version": version, "removed": True})
        else:
            typer.echo(f"removed {kind} {name} {version}")

    return group


_HEADS: dict[Kind, list[str]] = {
    "model": ["modality", "frameworks"],
    "framework": ["requirements"],
    "dataset": ["modality", "items", "split"],
}


def _row(manifest: Manifest) -> list[object]:
    start: list[object] = [manifest.name, manifest.version]
    if isinstance(manifest, ModelManifest):
        start += [manifest.modality, ", ".join(f"{entry.name} {entry.version}" for entry in manifest.frameworks)]
    elif isinstance(manifest, FrameworkManifest):
        start += [", ".join(manifest.python.requirements)]
    elif isinstance(manifest, DatasetManifest):
        start += [manifest.modality, manifest.size, manifest.split]
    return [*start, manifest.description.strip().split("\n")[0]]
