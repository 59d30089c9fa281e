"""`mlmodelscope sql`: read-only SQL over the documented views."""

from typing import Annotated

import typer

from mlmodelscope.cli.options import Data, Json, Port, Url, connect
from mlmodelscope.cli.output import print_json, print_table
from mlmodelscope.errors import RequestRefusedError


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command("sql")(sql)


def sql(
    query: Annotated[str, typer.Argument(help="A SELECT over the mlms_* views; parameters as {name:Type}.")],
    param: Annotated[list[str] | None, typer.Option("--param", help="NAME=VALUE of a parameter. Repeatable.")] = None,
    url: Url = None,
    port: Port = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Run a query and print its rows."""
    parameters = {}
    for pair in param or []:
        name, sign, value = pair.partition("=")
        if not sign:
            raise RequestRefusedError(f"--param {pair}: a parameter is NAME=VALUE")
        parameters[name] = value
    with connect(url, port, data) as client:
        found = client.sql(query, parameters)
    if as_json:
        print_json([dict(zip(found["columns"], row, strict=True)) for row in found["rows"]])
    else:
        print_table(found["columns"], found["rows"])
