"""ClickHouse, embedded or a server, behind one small interface."""

from schemas.settings import Settings
from services.errors import StoreError
from services.store.interface import Columns, Rows, Store
from services.store.migrated import MigratedStore

__all__ = ["Columns", "Rows", "Store", "open_store"]


def open_store(settings: Settings) -> Store:
    """Return the store that the settings name: a server's, or the embedded one in `data_dir/store`. Blocks.

    The embedded one is opened and migrated here; a server is connected to, and migrated, at the first use, so
    that a service starts while the server is away. Raises StoreError: the directory is in use by another
    process, chdb is not installed, the schema is newer than this version.
    """
    # Each engine is imported where it is asked for: chdb takes 200 MB of memory, and either may be missing.
    if settings.clickhouse_url is not None:
        from services.store.server import ServerStore

        return MigratedStore(ServerStore(settings.clickhouse_url))
    try:
        from services.store.embedded import EmbeddedStore
    except ImportError as error:
        raise StoreError(
            f"the embedded store needs chdb ({error}): install mlmodelscope[embedded], or name a ClickHouse server "
            "with MLMODELSCOPE_CLICKHOUSE_URL"
        ) from error
    store = MigratedStore(EmbeddedStore(settings.data_dir / "store"))
    try:
        store.ready()
    except BaseException:
        store.close()
        raise
    return store
