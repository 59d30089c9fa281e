"""The store in this very process: the ClickHouse engine as a library, in a data directory.

One process may open a directory, and a process may open one directory at a time. A process that has opened
one must not fork (start children with spawn or exec): the engine's threads do not survive it.
"""

import queue
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import chdb

from services.errors import StoreError
from services.store.arrow import from_stream, to_stream
from services.store.codes import code_of, error_of
from services.store.interface import Columns, Rows, checked_token, identifier, plain_parameter, row_count
from services.store.lock import DirectoryLock

READERS = 4
"""Queries that run at the same time. A connection runs one; the rest wait their turn."""

_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r", "\0": "\\0"})
_QUOTED = str.maketrans({"\\": "\\\\", "'": "\\'", "\t": "\\t", "\n": "\\n", "\r": "\\r", "\0": "\\0"})
_SESSION = "SET async_insert = 0, input_format_null_as_default = 0"


class EmbeddedStore:
    """A `Store` by chdb. Inserts have a connection of their own, so that readers never wait for ingest."""

    def __init__(self, directory: Path) -> None:
        """Open `directory`, made when missing. Raises StoreError: in use, or not readable by the engine."""
        self._lock = DirectoryLock(directory)
        self._path = str(directory / "clickhouse")
        self._types: dict[str, dict[str, str]] = {}
        self._writing = threading.Lock()
        self._closing = threading.Lock()
        self._closed = False
        try:
            self._writer = self._connect()
            self._readers: queue.LifoQueue[Any] = queue.LifoQueue()
            for _ in range(READERS):
                self._readers.put(self._connect())
        except BaseException:
            self._lock.release()
            raise

    def query(self, sql: str, params: Mapping[str, object] | None = None) -> Rows:
        """See `Store.query`."""
        bound = {name: _bound(name, value) for name, value in (params or {}).items()}
        with self._reader() as connection:
            try:
                return from_stream(connection.query(sql, "ArrowStream", params=bound).bytes())
            except (chdb.ChdbError, RuntimeError) as error:
                raise error_of(code_of(str(error)), str(error), inserting=False) from error

    def execute(self, sql: str, params: Mapping[str, object] | None = None) -> None:
        """See `Store.execute`."""
        self.query(sql, params)
        self._types = {}

    def insert(self, table: str, columns: Columns, *, token: str | None = None) -> int:
        """See `Store.insert`."""
        count = row_count(table, columns)
        payload = to_stream(table, columns, self._types_of(identifier(table)))
        if count == 0:
            return 0
        # Settings of an insert cannot be bound: the token is checked to be letters and digits.
        once = f"insert_deduplication_token = '{checked_token(token)}'" if token else "deduplicate_insert = 'disable'"
        statement = f"INSERT INTO {table} ({', '.join(columns)}) SETTINGS {once}"
        with self._writing:
            if self._closed:
                raise StoreError("the store is closed")
            try:
                with self._writer.send_insert(statement, "ArrowStream") as stream:
                    stream.append(payload)
                    stream.finish()
            except RuntimeError as error:
                raise error_of(code_of(str(error)), str(error), inserting=True) from error
        return count

    def close(self) -> None:
        """Wait for what is running, then let go of the directory. May be called twice."""
        with self._closing:
            if self._closed:
                return
            with self._writing:
                self._closed = True
                self._writer.close()
            for _ in range(READERS):
                self._readers.get().close()
            self._readers.put(None)
            self._lock.release()

    def _connect(self) -> Any:
        try:
            connection: Any = chdb.connect(self._path)  # type: ignore[no-untyped-call]
            connection.query(_SESSION)
        except (chdb.ChdbError, RuntimeError) as error:
            raise StoreError(f"cannot open the store in {self._path}: {error}") from error
        return connection

    @contextmanager
    def _reader(self) -> Iterator[Any]:
        connection = None if self._closed else self._readers.get()
        if connection is None:  # closed while this call was waiting: the mark stays for the next in line
            self._readers.put(None)
            raise StoreError("the store is closed")
        try:
            yield connection
        except BaseException:
            # After a query that failed in the middle, the engine answers the connection's next query with the rows
            # of the failed one: a connection is not used again after an error.
            connection.close()
            connection = self._connect()
            raise
        finally:
            self._readers.put(connection)

    def _types_of(self, table: str) -> dict[str, str]:
        types = self._types.get(table)
        if types is None:
            found = self.query(
                "SELECT name, type FROM system.columns WHERE database = currentDatabase() AND table = {table:String} "
                "AND default_kind NOT IN ('MATERIALIZED', 'ALIAS') ORDER BY position",
                {"table": table},
            )
            types = {str(name): str(type_) for name, type_ in found.rows}
            if not types:
                raise StoreError(f"insert into {table}: there is no such table")
            self._types[table] = types
        return types


def _bound(name: str, value: object) -> str:
    """Return a parameter in ClickHouse's text form: scalars escaped, collections as literals."""
    plain = plain_parameter(name, value)
    if isinstance(plain, list):
        items = (f"'{item.translate(_QUOTED)}'" if isinstance(item, str) else repr(item) for item in plain)
        return f"[{', '.join(items)}]"
    text = str(plain).translate(_ESCAPES)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise StoreError(f"parameter {name} is not text: {error}") from error
    return text
