"""`mlmodelscope serve`: one service of a stack."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from mlmodelscope.run_service import run_service
from mlmodelscope.services import SERVICES
from mlmodelscope.settings import read_settings


class Part(StrEnum):
    """What can be served."""

    BUS = "bus"
    STORE = "store"
    SCHEDULER = "scheduler"


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command("serve")(serve)


def serve(
    part: Annotated[Part, typer.Argument(help="bus: NATS. store: ClickHouse, ingest and API. scheduler.")],
    data: Annotated[Path | None, typer.Option("--data", help="Data directory.", file_okay=False)] = None,
    port: Annotated[int | None, typer.Option("--port", help="Port of the API.")] = None,
    host: Annotated[str | None, typer.Option("--host", help="Address of the API.")] = None,
) -> None:
    """Run one service until SIGINT or SIGTERM."""
    settings = read_settings(data_dir=data, api_port=port, api_host=host)
    raise typer.Exit(run_service(SERVICES[part], settings))
