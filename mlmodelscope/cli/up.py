"""`mlmodelscope up`: a whole stack on this machine, until Ctrl-C."""

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from mlmodelscope.cli.exit_codes import INTERRUPTED, OK
from mlmodelscope.errors import ScopeError
from mlmodelscope.settings import read_settings
from mlmodelscope.stack import DEFAULT_FRAMEWORKS, AgentSpec, Stack, check_startable, port_is_free

DEFAULT_BUS_PORT = 4222


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command("up")(up)


def up(
    data: Annotated[Path | None, typer.Option("--data", help="Data directory.", file_okay=False)] = None,
    port: Annotated[int | None, typer.Option("--port", help="Port of the API; 0: any free one.")] = None,
    host: Annotated[
        str | None, typer.Option("--host", help="Address of the API; beyond loopback it wants a token.")
    ] = None,
    bus_port: Annotated[
        int | None, typer.Option("--bus-port", help="Port of NATS. Default: 4222 when free, else any.")
    ] = None,
    agent: Annotated[
        list[str] | None, typer.Option("--agent", help="Framework to serve, `pytorch:gpu` for a GPU. Repeatable.")
    ] = None,
    asset_mirror: Annotated[str | None, typer.Option("--asset-mirror", help="Directory or URL of assets.")] = None,
) -> None:
    """Start bus, store, scheduler, API and agents; stop them in reverse order on Ctrl-C."""
    settings = read_settings(data_dir=data, api_port=port, api_host=host, asset_mirror=asset_mirror)
    stack = Stack(
        settings,
        [AgentSpec.parse(name) for name in agent or DEFAULT_FRAMEWORKS],
        bus_port=bus_port or (DEFAULT_BUS_PORT if port_is_free(DEFAULT_BUS_PORT) else 0),
        report=say,
    )
    stack.directory.lock()  # a second stack on the directory is told so, before it is told that the port is taken
    received: list[int] = []

    def on_signal(number: int, frame: object) -> None:
        received.append(number)
        stack.request_stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
    try:
        check_startable(settings)
        stack.start()
        say_what_is_there(stack)
        stack.watch()
    except ScopeError:
        if not received:  # told to stop while it was starting: it cannot have come up
            raise
    finally:
        if received:
            say("stopping")
        stack.stop()
    raise typer.Exit(INTERRUPTED if signal.SIGINT in received else OK)


def say_what_is_there(stack: Stack) -> None:
    """Print where everything is."""
    for found in stack.registered():
        state = "ready" if found.available else f"unavailable: {found.unavailable_reason}"
        say(f"agent {found.agent_id}: {found.stack}, {state}")
    say(f"bus  {stack.settings.bus_url}")
    say(f"data {stack.directory.path}")
    say(f"api  {stack.url}")
    say("ready; stop with Ctrl-C")


def say(line: str) -> None:
    """Print a line at once: a supervisor may be reading a pipe."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
