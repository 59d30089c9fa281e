"""Options that commands share."""

from pathlib import Path
from typing import Annotated

import typer

from mlmodelscope.client import Client
from mlmodelscope.directory import DataDirectory
from mlmodelscope.errors import ServerUnreachableError
from mlmodelscope.server import find_server
from mlmodelscope.settings import read_settings

Url = Annotated[
    str | None,
    typer.Option(
        "--url", help="Address of the API. Default: MLMODELSCOPE_API_URL, or the stack in the data directory."
    ),
]
Port = Annotated[int | None, typer.Option("--port", help="Port of an API on this machine.")]
Data = Annotated[Path | None, typer.Option("--data", help="Data directory of the stack.", file_okay=False)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def connect(url: str | None, port: int | None = None, data: Path | None = None) -> Client:
    """Return a client of the server that the options, else the settings, name."""
    settings = read_settings(data_dir=data)
    if data is not None and not (url or port) and DataDirectory(data).announced("api") is None:
        raise ServerUnreachableError(f"no stack runs in {data}", hint=f"start one: mlmodelscope up --data {data}")
    address = url or (f"http://127.0.0.1:{port}" if port else find_server(settings))
    return Client(address, token=settings.api_token)
