"""The store as the services see it: SQL with bound parameters in, rows of plain Python values out."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from services.errors import StoreDataError, StoreError

Columns = Mapping[str, Sequence[object]]
"""Rows by column, all columns equally long."""

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_TOKEN = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


@dataclass(frozen=True, slots=True)
class Rows:
    """The answer to a query."""

    columns: tuple[str, ...]
    rows: list[tuple[object, ...]]

    def dicts(self) -> Iterator[dict[str, object]]:
        """Yield each row as a mapping of column to value."""
        return (dict(zip(self.columns, row, strict=True)) for row in self.rows)


class Store(Protocol):
    """A ClickHouse engine, wherever it runs. Every method blocks and may be called from any thread.

    Values come back as: integers `int`, floats `float`, Bool `bool`, String and LowCardinality `str`, Array
    `list`, Map `dict`, Tuple `tuple` or `dict`, NULL `None`, `DateTime64(_, 'UTC')` an aware `datetime` in UTC
    (microseconds; a column finer than that is read as an integer).

    Errors: StoreUnavailableError where trying again may help, StoreDataError for rows that never fit,
    StoreError, in ClickHouse's own words, for everything else.
    """

    def query(self, sql: str, params: Mapping[str, object] | None = None) -> Rows:
        """Return what `sql` selects. `params` are bound on the server to `{name:Type}` placeholders.

        A parameter is a str, int, float, bool, aware datetime, or a list or tuple of str, int or float.
        """
        ...

    def insert(self, table: str, columns: Columns, *, token: str | None = None) -> int:
        """Insert rows and return how many they are, once the store holds them.

        Columns that are not named take their defaults. With `token`, a repetition of an insert that already
        succeeded under that token (among the table's last thousand) changes nothing.
        """
        ...

    def execute(self, sql: str, params: Mapping[str, object] | None = None) -> None:
        """Run a statement that returns nothing."""
        ...

    def close(self) -> None:
        """Let go of connections, files and locks. What is in flight ends or fails. May be called twice."""
        ...


def identifier(name: str) -> str:
    """Return `name` when it may stand in SQL as a table or a column. Names are never data."""
    if not _IDENTIFIER.fullmatch(name):
        raise StoreError(f"{name!r} is not the name of a table or a column")
    return name


def checked_token(token: str) -> str:
    """Return `token` when it is one: letters, digits and `_.:-`."""
    if not _TOKEN.fullmatch(token):
        raise StoreError(f"{token!r} is not an insert token: up to 128 letters, digits and _.:-")
    return token


def row_count(table: str, columns: Columns) -> int:
    """Return how many rows `columns` are. Raises StoreDataError when they differ in length or are none."""
    if not columns:
        raise StoreDataError(f"insert into {table}: no columns")
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise StoreDataError(f"insert into {table}: columns differ in length: {lengths}")
    return next(iter(lengths.values()))


def plain_parameter(name: str, value: object) -> str | int | float | list[object]:
    """Return a parameter as text, a number, or a list of those: what both adapters know how to bind."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return value
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise StoreError(f"parameter {name}: a datetime needs its time zone")
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
    if isinstance(value, list | tuple) and all(type(item) in (str, int, float) for item in value):
        return list(value)
    raise StoreError(f"parameter {name}: {type(value).__name__} cannot be bound")
