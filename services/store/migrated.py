"""A store whose schema is brought up to date before it is first used."""

import threading
from collections.abc import Mapping

from services.store.interface import Columns, Rows, Store
from services.store.migrations import migrate


class MigratedStore:
    """A `Store` that migrates at its first use, once it can be reached, and passes everything on."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner
        self._guard = threading.Lock()
        self._done = False

    def ready(self) -> None:
        """Migrate unless that was done. Raises what `migrate` raises; the next call tries again."""
        if not self._done:
            with self._guard:
                if not self._done:
                    migrate(self._inner)
                    self._done = True

    def query(self, sql: str, params: Mapping[str, object] | None = None) -> Rows:
        """See `Store.query`."""
        self.ready()
        return self._inner.query(sql, params)

    def insert(self, table: str, columns: Columns, *, token: str | None = None) -> int:
        """See `Store.insert`."""
        self.ready()
        return self._inner.insert(table, columns, token=token)

    def execute(self, sql: str, params: Mapping[str, object] | None = None) -> None:
        """See `Store.execute`."""
        self.ready()
        self._inner.execute(sql, params)

    def close(self) -> None:
        """See `Store.close`."""
        self._inner.close()
