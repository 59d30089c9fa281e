"""Python values to Arrow columns of a table's types, and Arrow results back to Python values."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from services.errors import StoreDataError, StoreError
from services.store.interface import Columns, Rows, identifier

_SCALARS = {
    "String": pa.string(),
    "Bool": pa.bool_(),
    "Float32": pa.float32(),
    "Float64": pa.float64(),
    **{f"Int{bits}": getattr(pa, f"int{bits}")() for bits in (8, 16, 32, 64)},
    **{f"UInt{bits}": getattr(pa, f"uint{bits}")() for bits in (8, 16, 32, 64)},
}
_WRAPPED = re.compile(r"(Nullable|LowCardinality|Array)\((.*)\)")
_MAP = re.compile(r"Map\((LowCardinality\(String\)|String), (.*)\)")
_DATETIME = re.compile(r"DateTime64\((\d), 'UTC'\)")
_UNITS = ("s", "ms", "us", "ns")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def arrow_type(clickhouse: str) -> pa.DataType:
    """Return the Arrow type in which values of a ClickHouse type are sent."""
    if clickhouse in _SCALARS:
        return _SCALARS[clickhouse]
    if match := _WRAPPED.fullmatch(clickhouse):
        inner = arrow_type(match[2])
        return pa.list_(inner) if match[1] == "Array" else inner
    if match := _MAP.fullmatch(clickhouse):
        return pa.map_(pa.string(), arrow_type(match[2]))
    if match := _DATETIME.fullmatch(clickhouse):
        return pa.timestamp(_UNITS[(int(match[1]) + 2) // 3], "UTC")
    raise StoreError(f"columns of type {clickhouse} cannot be inserted")


def to_stream(table: str, columns: Columns, types: Mapping[str, str]) -> memoryview:
    """Return `columns` as an Arrow IPC stream. `types` are the table's, in ClickHouse's words.

    Raises StoreError for a column the table does not have, StoreDataError for a value that does not fit.
    """
    arrays = []
    for name, values in columns.items():
        if identifier(name) not in types:
            raise StoreError(f"insert into {table}: no column {name}; it has {', '.join(types)}")
        try:
            array = pa.array(values, arrow_type(types[name]))
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            raise StoreDataError(f"insert into {table}: column {name} ({types[name]}): {error}") from error
        if array.null_count and "Nullable(" not in types[name]:
            raise StoreDataError(f"insert into {table}: column {name} ({types[name]}) takes no None")
        arrays.append(array)
    batch = pa.RecordBatch.from_arrays(arrays, names=list(columns))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return memoryview(sink.getvalue())


def from_stream(payload: bytes) -> Rows:
    """Return the rows of an Arrow IPC stream; no bytes are no columns."""
    if not payload:
        return Rows((), [])
    table = pa.ipc.open_stream(payload).read_all()
    values = [_values(column) for column in table.columns]
    return Rows(tuple(table.column_names), list(zip(*values, strict=True)))


def _values(column: pa.ChunkedArray) -> list[object]:
    if not pa.types.is_timestamp(column.type):
        return list(column.to_pylist(maps_as_pydicts="strict"))
    # Microseconds since the epoch, because a finer timestamp would come as a type of pandas'.
    microseconds = column.cast(pa.timestamp("us", column.type.tz), safe=False).cast(pa.int64()).to_pylist()
    return [None if value is None else _EPOCH + timedelta(microseconds=value) for value in microseconds]
