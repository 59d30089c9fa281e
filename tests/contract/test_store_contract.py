"""What every store must do, held against the embedded engine and against a real server."""

# ruff: noqa: S608 - only the names of the tables that these tests make are put into SQL

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from services.errors import StoreDataError, StoreError
from services.store import Store
from services.store.embedded import EmbeddedStore
from services.store.migrations import Migration, migrate, migrations
from services.store.server import ServerStore
from tests.clickhouse_server import clickhouse_url

TABLE = """
CREATE TABLE {name}
(
    i Int64, u UInt16, f Float64, s String, l LowCardinality(String), n Nullable(Float64), b Bool,
    a Array(String), x Array(Float64), m Map(LowCardinality(String), String),
    t DateTime64(6, 'UTC') DEFAULT toDateTime64('2024-02-29 12:00:00.5', 6, 'UTC'),
    d Int64 MATERIALIZED i * 2
)
ENGINE = MergeTree ORDER BY i SETTINGS non_replicated_deduplication_window = 1000
"""
NASTY = [
    "",
    "plain",
    "é 漢字 🙂",
    "quote ' double \" back\\slash",
    "tab\tnew\nline\rnul\0bell\a",
    "{x:String} %(x)s",
    "\\N",
]


@pytest.fixture(scope="module", params=["embedded", "server"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """One store for the module: each test has a table of its own."""
    directory: Path = tmp_path_factory.mktemp("store")
    opened: Store
    if request.param == "embedded":
        opened = EmbeddedStore(directory)
        yield opened
        opened.close()
    else:
        with clickhouse_url(directory) as url:
            opened = ServerStore(url)
            yield opened
            opened.close()


@pytest.fixture
def table(store: Store, request: pytest.FixtureRequest) -> str:
    """An empty table of every type in use."""
    name = "t_" + "".join(letter if letter.isalnum() else "_" for letter in request.node.originalname)
    store.execute(TABLE.format(name=name))
    return name


def count(store: Store, table: str) -> object:
    return store.query(f"SELECT count() AS n FROM {table}").rows[0][0]


def rows(number: int) -> dict[str, list[object]]:
    """Rows of every type."""
    return {
        "i": list(range(number)),
        "u": [65_535] * number,
        "f": [0.1] * number,
        "s": [NASTY[k % len(NASTY)] for k in range(number)],
        "l": ["low"] * number,
        "n": [None if k % 2 else 1.5 for k in range(number)],
        "b": [k % 2 == 0 for k in range(number)],
        "a": [["a", "b\n'"] if k % 2 else [] for k in range(number)],
        "x": [[1.5, -2.0]] * number,
        "m": [{"k'": "v\t", "é": ""} if k % 2 else {} for k in range(number)],
        "t": [datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)] * number,
    }


def test_values_come_back_as_they_were_put_in(store: Store, table: str) -> None:
    """Every type returns as the same Python type and value, whichever engine held it."""
    given = rows(7)
    assert store.insert(table, given) == 7
    found = store.query(f"SELECT * FROM {table} ORDER BY i")
    assert found.columns == tuple(given)
    assert found.rows == list(zip(*given.values(), strict=True))
    types = [type(value) for value in found.rows[1]]
    assert types == [int, int, float, str, str, type(None), bool, list, list, dict, datetime]
    assert found.rows[0][-1].tzinfo is UTC  # type: ignore[attr-defined]


def test_columns_left_out_take_their_defaults(store: Store, table: str) -> None:
    """A column that is not named has its default; a computed one is computed."""
    store.insert(table, {"i": [21]})
    found = store.query(f"SELECT d, s, n, m, t FROM {table}").rows
    assert found == [(42, "", None, {}, datetime(2024, 2, 29, 12, 0, 0, 500_000, tzinfo=UTC))]


@pytest.mark.parametrize("text", NASTY)
def test_parameters_are_values_and_never_sql(store: Store, text: str) -> None:
    """Whatever a string holds comes back as that string, alone and in a list."""
    found = store.query("SELECT {x:String} AS x, {y:Array(String)} AS y", {"x": text, "y": [text, "other"]})
    assert found.rows == [(text, [text, "other"])]


def test_parameters_of_every_type(store: Store) -> None:
    """Numbers, booleans, times and lists of numbers bind to their types."""
    moment = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    found = store.query(
        "SELECT {i:Int64} AS i, {f:Float64} AS f, {b:Bool} AS b, {t:DateTime64(6, 'UTC')} AS t, {a:Array(Int64)} AS a,"
        " {e:Array(String)} AS e",
        {"i": -(2**63), "f": 1e-300, "b": True, "t": moment, "a": [1, -2], "e": []},
    )
    assert found.rows == [(-(2**63), 1e-300, True, moment, [1, -2], [])]
    with pytest.raises(StoreError, match="cannot be bound"):
        store.query("SELECT {x:String} AS x", {"x": None})


def test_a_parameter_cannot_inject(store: Store, table: str) -> None:
    """A value that looks like SQL compares as a string."""
    store.insert(table, {"i": [1], "s": ["a"]})
    found = store.query(f"SELECT i FROM {table} WHERE s = {{s:String}}", {"s": "a' OR 1 = 1 --"})
    assert found.rows == []


def test_an_insert_repeated_under_its_token_changes_nothing(store: Store, table: str) -> None:
    """The same token once; no token, or another, every time."""
    for token in ("one", "one", "two", None, None):
        store.insert(table, {"i": [1, 2]}, token=token)
    assert count(store, table) == 8


def test_empty_and_large_inserts(store: Store, table: str) -> None:
    """No rows are no rows; three hundred thousand arrive whole, and once under a token."""
    assert store.insert(table, {"i": [], "s": []}) == 0
    big: dict[str, list[object]] = {"i": list(range(300_000)), "s": ["x" * 50] * 300_000}
    for _ in range(2):
        assert store.insert(table, big, token="big") == 300_000
    found = store.query(f"SELECT count() AS n, uniqExact(i) AS u, sum(length(s)) AS s FROM {table}").rows
    assert found == [(300_000, 300_000, 15_000_000)]


def test_no_rows_still_have_columns(store: Store, table: str) -> None:
    """An empty answer says which columns it would have had."""
    found = store.query(f"SELECT i, m FROM {table}")
    assert (found.columns, found.rows) == (("i", "m"), [])


@pytest.mark.parametrize(
    ("column", "value"),
    [("u", 65_536), ("u", -1), ("u", None), ("i", "one"), ("i", 2**63), ("s", None), ("s", 5), ("s", "\ud800"),
     ("n", "x"), ("a", [None]), ("m", {"k": 5})],
)  # fmt: skip
def test_a_value_that_does_not_fit_is_refused_whole(store: Store, column: str, value: object) -> None:
    """Poison is a StoreDataError, nothing of the batch is in, and the next insert works."""
    store.execute("DROP TABLE IF EXISTS poison")
    store.execute(TABLE.format(name="poison"))
    good = {name: values[0] for name, values in rows(1).items()}[column]
    with pytest.raises(StoreDataError):
        store.insert("poison", {column: [good, value]})
    assert count(store, "poison") == 0
    store.insert("poison", {column: [good]})
    assert count(store, "poison") == 1


def test_columns_must_be_there_and_equally_long(store: Store, table: str) -> None:
    """A wrong name, a wrong table and ragged columns are errors that name what is wrong."""
    with pytest.raises(StoreError, match="nope"):
        store.insert(table, {"i": [1], "nope": [1]})
    with pytest.raises(StoreError, match="absent"):
        store.insert("absent", {"i": [1]})
    with pytest.raises(StoreDataError, match="length"):
        store.insert(table, {"i": [1], "s": []})
    for name in ("a b", "i) VALUES (1); --", ""):
        with pytest.raises(StoreError):
            store.insert(table, {name: [1]})
        with pytest.raises(StoreError):
            store.insert(name, {"i": [1]})
    with pytest.raises(StoreError, match="token"):
        store.insert(table, {"i": [1]}, token="x', a = 'y")
    assert count(store, table) == 0


def test_errors_are_in_the_engines_words(store: Store) -> None:
    """A query that cannot run is a permanent error with ClickHouse's code and message."""
    for sql, said in (("SELEC 1", "Syntax error"), ("SELECT * FROM absent", "absent"), ("SELECT {x:Int64}", "x")):
        with pytest.raises(StoreError, match=said) as caught:
            store.query(sql)
        assert type(caught.value) is StoreError
        assert "Code: " in str(caught.value)
    assert store.query("SELECT 1 AS one").rows == [(1,)]


def test_reading_and_writing_from_several_threads(store: Store, table: str) -> None:
    """Four threads insert while four read: every insert is there, no reader fails or sees half a batch."""
    failures: list[BaseException] = []

    def guarded(work: Callable[[int], None], index: int) -> threading.Thread:
        def body() -> None:
            try:
                work(index)
            except BaseException as error:  # noqa: BLE001 - it is what the test asks about
                failures.append(error)

        return threading.Thread(target=body, name=f"{work.__name__}-{index}")

    def write(index: int) -> None:
        for k in range(10):
            store.insert(table, {"i": [index * 100 + k] * 50, "s": ["x"] * 50})

    def read(_: int) -> None:
        for _ in range(10):
            found = store.query(f"SELECT i, count() AS n FROM {table} GROUP BY i").rows
            assert all(n == 50 for _, n in found)

    threads = [guarded(work, index) for index in range(4) for work in (write, read)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert count(store, table) == 2000


def test_migrating_from_several_threads_applies_each_once(store: Store) -> None:
    """Whoever migrates at the same time, each migration is recorded once; doing it again does nothing."""
    numbers = [migration.number for migration in migrations()]
    applied: list[list[int]] = []
    threads = [threading.Thread(target=lambda: applied.append(migrate(store)), name=f"migrate-{k}") for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(applied) == [[], [], [], numbers]
    assert store.query("SELECT number FROM schema_migrations ORDER BY number").rows == [(n,) for n in numbers]
    assert migrate(store) == []


def test_every_column_of_the_views_says_what_it_is(store: Store) -> None:
    """The stable surface is documented where people look: in the columns' comments."""
    migrate(store)
    views = store.query("SELECT name FROM system.tables WHERE database = currentDatabase() AND name LIKE 'mlms_%'").rows
    assert {str(name).removeprefix("mlms_") for (name,) in views} >= {
        "evaluations", "tasks", "predictions", "queries", "spans", "metrics", "systems", "manifests",
    }  # fmt: skip
    silent = store.query(
        "SELECT table, name FROM system.columns WHERE database = currentDatabase() AND table LIKE 'mlms_%'"
        " AND comment = ''"
    )
    assert silent.rows == []
    for (view,) in views:
        assert store.query(f"SELECT * FROM {view}").rows == []


def test_a_store_of_a_newer_or_another_version_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Older code keeps its hands off a newer schema, and a migration may not change after it was applied."""
    migrate(store)
    known = migrations()
    monkeypatch.setattr("services.store.migrations.migrations", lambda: known[:-1])
    with pytest.raises(StoreError, match="upgrade mlmodelscope"):
        migrate(store)
    changed = [Migration(known[0].number, known[0].name, known[0].text + "-- changed\n"), *known[1:]]
    monkeypatch.setattr("services.store.migrations.migrations", lambda: changed)
    with pytest.raises(StoreError, match="not the one this store was made with"):
        migrate(store)


def test_a_query_that_failed_in_the_middle_leaves_nothing_to_the_next(store: Store) -> None:
    """Each query is answered with its own rows, also after one that broke off while it was sending."""
    for _ in range(6):
        with pytest.raises(StoreError):
            store.query("SELECT throwIf(number = 5000000) AS x FROM numbers(10000000)")
        answer = store.query("SELECT 4 AS z")
        assert answer.columns == ("z",)
        assert list(answer.rows) == [(4,)]
