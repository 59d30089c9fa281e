"""How benchmarks print: one table each."""

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table


def print_rows(rows: Sequence[Mapping[str, object]]) -> None:
    """Print rows of equal keys as a table."""
    table = Table(header_style="bold")
    for name in rows[0]:
        table.add_column(name, justify="right" if isinstance(rows[0][name], (int, float)) else "left")
    for row in rows:
        table.add_row(*[str(value) for value in row.values()])
    Console(width=140).print(table)
