"""`mlmodelscope schema`: what travels and what people write, as JSON Schema."""

from typing import Annotated

import typer

import schemas  # noqa: F401 - registers every message type
from mlmodelscope.cli.output import print_json
from mlmodelscope.errors import RequestRefusedError
from schemas.codec import registered
from schemas.result import Evaluation
from schemas.settings import Settings


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command("schema")(schema)


def schema(
    name: Annotated[str | None, typer.Argument(help="One schema: evaluation_requested, model_manifest...")] = None,
    names: Annotated[bool, typer.Option("--list", help="Only the names.")] = False,
) -> None:
    """Print the JSON Schema of every message, manifest and result, by name; or of one."""
    found = {type_ if version == 1 else f"{type_}@{version}": model for (type_, version), model in registered().items()}
    found |= {"evaluation": Evaluation, "settings": Settings}
    if names:
        typer.echo("\n".join(sorted(found)))
    elif name is None:
        print_json({key: found[key].model_json_schema() for key in sorted(found)})
    elif name in found:
        print_json(found[name].model_json_schema())
    else:
        raise RequestRefusedError(f"there is no schema {name!r}", hint=f"there are {', '.join(sorted(found))}")
