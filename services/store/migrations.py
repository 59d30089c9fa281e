"""Numbered migrations of the schema: each applied once, in order, recorded in the store itself."""

import hashlib
import importlib.resources
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from services.errors import StoreError, StoreUnavailableError
from services.store.codes import TABLE_ALREADY_EXISTS, UNKNOWN_TABLE, code_of
from services.store.interface import Columns, Store
from services.store.sql import statement

LOCK_TABLE = "schema_migrations_lock"
LOCK_STALE_S = 60
"""A lock this old belongs to a process that died: migrations take seconds."""

_FILE = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")


@dataclass(frozen=True, slots=True)
class Migration:
    """One file of statements."""

    number: int
    name: str
    text: str

    @property
    def digest(self) -> str:
        """sha256 of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def statements(self) -> list[str]:
        """Return the statements: each ends with a semicolon at the end of a line."""
        bare = re.sub(r"^--.*\n", "", self.text, flags=re.MULTILINE)
        return [part.strip() for part in re.split(r";\s*$", bare, flags=re.MULTILINE) if part.strip()]


def migrations() -> list[Migration]:
    """Return all migrations that come with this version, in order."""
    found = []
    for file in importlib.resources.files("infra.migrations").iterdir():
        match = _FILE.fullmatch(file.name)
        if match:
            found.append(Migration(int(match[1]), match[2], file.read_text(encoding="utf-8")))
    return sorted(found, key=lambda migration: migration.number)


def migrate(store: Store, *, wait_s: float = 2 * LOCK_STALE_S) -> list[int]:
    """Bring the schema up to date and return the numbers applied now. Blocks; safe when several processes do it.

    Raises StoreError when the store was migrated by a newer version, or a migration changed after it was
    applied; StoreUnavailableError when another process is migrating for longer than `wait_s`.
    """
    known = migrations()
    store.execute(statement("create_schema_migrations"))
    if not _missing(store, known):
        return []
    with _migrating(store, wait_s):
        missing = _missing(store, known)
        for migration in missing:
            for text in migration.statements():
                store.execute(text)
            row: Columns = {"number": [migration.number], "name": [migration.name], "digest": [migration.digest]}
            store.insert("schema_migrations", row)
    return [migration.number for migration in missing]


def _missing(store: Store, known: list[Migration]) -> list[Migration]:
    applied = {int(str(number)): digest for number, digest in store.query(statement("applied_migrations")).rows}
    newest = known[-1].number if known else 0
    unknown = [number for number in applied if number > newest]
    if unknown:
        raise StoreError(f"the store has migration {max(unknown)}, this version knows {newest}: upgrade mlmodelscope")
    for migration in known:
        if applied.get(migration.number, migration.digest) != migration.digest:
            raise StoreError(
                f"migration {migration.number:04} ({migration.name}) is not the one this store was made with: "
                "it was made by another version; name another data directory or database"
            )
    return [migration for migration in known if migration.number not in applied]


@contextmanager
def _migrating(store: Store, wait_s: float) -> Iterator[None]:
    """Hold the lock: a table, because creating one is what ClickHouse does atomically."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            store.execute(statement("lock_migrations"))
            break
        except StoreUnavailableError:
            raise
        except StoreError as error:
            if code_of(str(error)) != TABLE_ALREADY_EXISTS:
                raise
        if _lock_age_s(store) > LOCK_STALE_S:
            store.execute(statement("unlock_migrations"))
        elif time.monotonic() > deadline:
            raise StoreUnavailableError(
                f"another process has been migrating the store for {wait_s:.0f} s; if there is none, drop {LOCK_TABLE}"
            )
        else:
            time.sleep(0.1)
    try:
        yield
    finally:
        store.execute(statement("unlock_migrations"))


def _lock_age_s(store: Store) -> int:
    """Return how long the lock has been held; 0 when it was just let go."""
    try:
        rows = store.query(statement("migrations_lock_age")).rows
    except StoreUnavailableError:
        raise
    except StoreError as error:
        if code_of(str(error)) == UNKNOWN_TABLE:
            return 0
        raise
    return max((age for (age,) in rows if isinstance(age, int)), default=0)
