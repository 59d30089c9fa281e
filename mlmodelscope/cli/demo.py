"""`mlmodelscope demo`: the main job, from nothing to a table, on this machine."""

import time
from typing import Annotated

import typer

from mlmodelscope.cli.evaluate import exit_code
from mlmodelscope.cli.options import Json
from mlmodelscope.cli.output import print_json
from mlmodelscope.cli.progress import EvaluationProgress
from mlmodelscope.cli.results import print_evaluation
from mlmodelscope.cli.up import say
from mlmodelscope.local import local


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command("demo")(demo)


def demo(
    as_json: Json = False,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1)] = 1,
) -> None:
    """Start a stack, evaluate the built-in model on the built-in data set on every framework, stop the stack."""
    started = time.monotonic()
    tell = (lambda line: None) if as_json else say
    with local(report=tell) as client, EvaluationProgress(quiet=as_json) as progress:
        tell(f"stack ready after {time.monotonic() - started:.1f} s; evaluating digits-cnn on digits")
        found = client.evaluate(
            model="digits-cnn", dataset="digits", targets="all", batch_size=batch_size, progress=progress
        )
    if as_json:
        print_json(found)
    else:
        print_evaluation(found)
    raise typer.Exit(exit_code(found))
