"""docs/sql.md says what the store really has."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from schemas.settings import Settings
from services.store import Store, open_store

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "sql.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """An empty, migrated store."""
    opened = open_store(Settings(data_dir=tmp_path_factory.mktemp("sql")))
    yield opened
    opened.close()


def test_every_view_and_column_is_described_as_it_is(store: Store) -> None:
    """Views, columns, types and meanings of the page are those of the database, none missing and none too many."""
    described = []
    for section in re.split(r"^### ", PAGE, flags=re.MULTILINE)[1:]:
        view = section.split("\n", 1)[0].strip()
        described += [(view, *row) for row in re.findall(r"^\| `(\w+)` \| `(.+?)` \| (.+) \|$", section, re.MULTILINE)]
    real = store.query(
        "SELECT table, name, type, comment FROM system.columns"
        " WHERE database = currentDatabase() AND table LIKE 'mlms_%' ORDER BY table, position"
    ).rows
    assert sorted(described) == sorted(real)


@pytest.mark.parametrize("sql", re.findall(r"```sql\n(.+?)```", PAGE, re.DOTALL))
def test_every_example_runs(store: Store, sql: str) -> None:
    """The page's own queries are accepted."""
    assert store.query(sql).columns
