"""`mlmodelscope agent`: serve one framework on this machine."""

from enum import StrEnum
from typing import Annotated

import typer

from mlmodelscope.run_service import run_service
from mlmodelscope.services import agent as agent_service
from mlmodelscope.settings import read_settings
from mlmodelscope.stack import known_framework


class DeviceName(StrEnum):
    """What models run on."""

    CPU = "cpu"
    GPU = "gpu"


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command("agent")(agent)


def agent(
    framework: Annotated[str, typer.Argument(help="Framework to serve: onnxruntime, pytorch.")],
    device: Annotated[DeviceName, typer.Option("--device", help="Device to serve it on.")] = DeviceName.CPU,
    agent_id: Annotated[str | None, typer.Option("--id", help="Id in the registry. Default: made up.")] = None,
    bus_url: Annotated[str | None, typer.Option("--bus-url", help="The bus to join.")] = None,
) -> None:
    """Serve a framework until SIGINT or SIGTERM."""
    settings = read_settings(bus_url=bus_url)
    raise typer.Exit(run_service(agent_service(known_framework(framework), device.value, agent_id), settings))
