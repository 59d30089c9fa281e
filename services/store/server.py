"""The store on a ClickHouse server or cluster, over its native protocol."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime

from clickhouse_driver import Client
from clickhouse_driver.errors import Error, NetworkError, ServerException, SocketTimeoutError, TypeMismatchError
from clickhouse_driver.util.helpers import parse_url

from services.errors import StoreDataError, StoreError, StoreUnavailableError
from services.store.codes import error_of
from services.store.interface import Columns, Rows, checked_token, identifier, plain_parameter, row_count

CONNECT_TIMEOUT_S = 5
REPLY_TIMEOUT_S = 60
IDLE_CLIENTS = 8
"""Connections kept for the next call; more are opened when more calls come at once."""

_INSERT_SETTINGS: dict[str, object] = {"async_insert": 0}


class ServerStore:
    """A `Store` by clickhouse-driver: a connection per call in flight, opened when first needed."""

    def __init__(self, url: str) -> None:
        """Take `clickhouse://user:password@host:port/database` (`clickhouses://` with TLS). Connects later."""
        host, options = parse_url(url)
        options.setdefault("connect_timeout", CONNECT_TIMEOUT_S)
        options.setdefault("send_receive_timeout", REPLY_TIMEOUT_S)
        options["settings"] = {**options.get("settings", {}), "server_side_params": True}
        self._host, self._options = host, options
        self._guard = threading.Lock()
        self._idle: list[Client] = []
        self._busy: set[Client] = set()
        self._closed = False

    def query(self, sql: str, params: Mapping[str, object] | None = None) -> Rows:
        """See `Store.query`."""
        bound = {name: plain_parameter(name, value) for name, value in (params or {}).items()}
        with self._client(inserting=False) as client:
            rows, header = client.execute(sql, bound or None, with_column_types=True)
        rows = _in_utc(rows, [index for index, (_, type_) in enumerate(header) if "DateTime" in type_])
        return Rows(tuple(name for name, _ in header), rows)

    def execute(self, sql: str, params: Mapping[str, object] | None = None) -> None:
        """See `Store.execute`."""
        self.query(sql, params)

    def insert(self, table: str, columns: Columns, *, token: str | None = None) -> int:
        """See `Store.insert`."""
        count = row_count(table, columns)
        if count == 0:
            return 0
        statement = f"INSERT INTO {identifier(table)} ({', '.join(map(identifier, columns))}) VALUES"
        once = {"insert_deduplication_token": checked_token(token)} if token else {"deduplicate_insert": "disable"}
        with self._client(inserting=True) as client:
            data = list(columns.values())
            client.execute(statement, data, columnar=True, settings={**_INSERT_SETTINGS, **once})
        return count

    def close(self) -> None:
        """Hang up, also on calls in flight: they fail with StoreUnavailableError. May be called twice."""
        with self._guard:
            self._closed = True
            clients = [*self._idle, *self._busy]
            self._idle = []
        for client in clients:
            client.disconnect()

    @contextmanager
    def _client(self, *, inserting: bool) -> Iterator[Client]:
        """Lend a connection; it is kept only when the server is known to be in step with us."""
        with self._guard:
            if self._closed:
                raise StoreError("the store is closed")
            client = self._idle.pop() if self._idle else Client(self._host, **self._options)
            self._busy.add(client)
        keep = False
        try:
            yield client
            keep = True
        except ServerException as error:
            raise error_of(error.code, f"Code: {error.code}. {error.message}", inserting=inserting) from error
        except (NetworkError, SocketTimeoutError, EOFError, OSError) as error:
            raise StoreUnavailableError(f"ClickHouse at {self._host} cannot be reached: {error}") from error
        except (TypeMismatchError, AttributeError, TypeError, ValueError, OverflowError) as error:
            # What the driver's column writers raise on a value that is not of the column's type.
            kind = StoreDataError if inserting else StoreError
            raise kind(f"a value does not fit: {error}") from error
        except Error as error:
            raise StoreUnavailableError(f"ClickHouse at {self._host} answered out of protocol: {error}") from error
        finally:
            self._give_back(client, keep)

    def _give_back(self, client: Client, keep: bool) -> None:
        with self._guard:
            self._busy.discard(client)
            keep = keep and not self._closed and len(self._idle) < IDLE_CLIENTS
            if keep:
                self._idle.append(client)
        if not keep:
            client.disconnect()


def _in_utc(rows: list[tuple[object, ...]], positions: list[int]) -> list[tuple[object, ...]]:
    if not positions:
        return rows
    return [
        tuple(
            value.astimezone(UTC) if index in positions and isinstance(value, datetime) else value
            for index, value in enumerate(row)
        )
        for row in rows
    ]
