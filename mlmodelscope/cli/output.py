"""What commands print: JSON to stdout for programs, tables for people, complaints to stderr."""

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import BaseModel
from rich.console import Console
from rich.table import Table

MINIMUM_WIDTH = 150
"""Of tables that are written to a file or a pipe, where there is no terminal to ask."""


def console() -> Console:
    """Return a console on stdout: as wide as the terminal, or wide enough when there is none."""
    return Console(width=None if sys.stdout.isatty() else MINIMUM_WIDTH, soft_wrap=False, highlight=False)


def print_json(value: BaseModel | Sequence[BaseModel] | Any) -> None:
    """Print one JSON document."""
    json.dump(_plain(value), sys.stdout, indent=2, ensure_ascii=False)
    sys.stdout.write("\n")


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str | None = None) -> None:
    """Print a table; numbers to the right."""
    table = Table(title=title, title_justify="left", header_style="bold")
    rows = [list(row) for row in rows]
    for index, name in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[index], (int, float)) or row[index] is None for row in rows)
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*["-" if cell is None else str(cell) for cell in row])
    console().print(table)


def complain(message: str, hint: str = "", code: str = "") -> None:
    """Print an error, and what to do about it, to stderr."""
    sys.stderr.write(f"error: {message}{f' [{code}]' if code else ''}\n")
    if hint:
        sys.stderr.write(f"hint: {hint}\n")
