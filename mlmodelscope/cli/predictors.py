"""`mlmodelscope predictors` and `systems`: what is live, and the machines."""

import typer

from mlmodelscope.cli.options import Data, Json, Port, Url, connect
from mlmodelscope.cli.output import print_json, print_table


def add(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("predictors")(predictors)
    app.command("systems")(systems)


def predictors(url: Url = None, port: Port = None, data: Data = None, as_json: Json = False) -> None:
    """List the live predictor agents, those that cannot run included, with the reason."""
    with connect(url, port, data) as client:
        found = client.predictors()
    if as_json:
        print_json(found)
        return
    print_table(
        ["agent", "framework", "version", "device", "cpu", "memory", "work", "state"],
        [
            [
                agent.agent_id,
                agent.stack.framework,
                agent.stack.version,
                ", ".join(agent.hardware.gpus) if agent.stack.device == "gpu" else agent.stack.device,
                f"{agent.hardware.cpu or '?'} ({agent.hardware.logical_cores or '?'})",
                f"{agent.hardware.memory_bytes / 2**30:.1f} GiB" if agent.hardware.memory_bytes else None,
                agent.load.running,
                "ready" if agent.available else f"unavailable: {agent.unavailable_reason}",
            ]
            for agent in found
        ],
    )


def systems(url: Url = None, port: Port = None, data: Data = None, as_json: Json = False) -> None:
    """List the machines: what was read of each, and what could not be, with the reason."""
    with connect(url, port, data) as client:
        found = client.systems()
    if as_json:
        print_json(found)
        return
    for system in found:
        print_table(
            ["system", system.system_id[:16]],
            [
                ["host", system.hostname],
                ["cpu", f"{system.cpu.model} ({system.cpu.physical_cores} cores, {system.cpu.logical_cores} threads)"],
                ["governor, turbo", f"{system.cpu.governor}, {system.cpu.turbo}"],
                ["memory", f"{system.memory_bytes / 2**30:.1f} GiB" if system.memory_bytes else None],
                ["gpus", ", ".join(gpu.name for gpu in system.gpus) or None],
                ["kernel", f"{system.operating_system}, {system.kernel}, {system.virtualization or 'bare metal?'}"],
                *([f"not read: {field}", reason] for field, reason in system.not_read.items()),
            ],
        )
