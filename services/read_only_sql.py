"""SQL of strangers: SELECTs over the documented views, and nothing else.

The engine's own parser is the judge, in four steps: it must read the text as one statement; that statement must be
possible as a subquery, which no INSERT, DDL, FORMAT or INTO OUTFILE is; its syntax tree may name no table but the
`mlms_*` views and its own WITH names, no table function that reaches outside and no function that reads files or
services; and it runs with `readonly = 1` and limits on rows, time and memory.
"""

import re
from collections.abc import Iterator, Mapping

from services.errors import StoreError
from services.store import Rows, Store
from services.store.codes import code_of

MAX_ROWS = 10_000
MAX_QUERY_BYTES = 100_000
MAX_BYTES = 64 * 2**20
"""Of the rows, as the engine counts them: as Python values they take many times that."""
_LIMITS = (
    f"readonly = 1, limit = {MAX_ROWS + 1}, max_result_bytes = {MAX_BYTES}, max_execution_time = 10, "
    f"max_memory_usage = {2 * 2**30}"
)
_TOO_MUCH = (159, 241)
"""ClickHouse's TIMEOUT_EXCEEDED and MEMORY_LIMIT_EXCEEDED: of a query with limits, the query's own fault."""
_NODE = re.compile(r"^( *)(TableIdentifier|Identifier|Function|TableExpression|Set)\b ?(\S*)")
_FORBIDDEN = re.compile(
    r"file|getserversetting|dict\w*|joinget\w*|ai\w*|sleep\w*|naivebayes\w*|catboost\w*|executable\w*", re.I
)
_MEMBERSHIP = re.compile(r"(global)?(not)?(null)?in(ignoreset)?", re.I)
"""The functions whose second argument, when it is a name, is a table's."""
_TABLE_FUNCTIONS = ("numbers", "generate_series", "generateseries", "values", "zeros")
_VIEW = "mlms_"


class SqlRefusedError(StoreError):
    """The text is no SELECT over the views, or the engine refuses it; in the engine's own words where it has any."""


def select(store: Store, query: str, params: Mapping[str, object] | None = None) -> tuple[Rows, bool]:
    """Return what `query` selects, at most MAX_ROWS rows, and whether there were more. Blocks.

    `params` are bound to its `{name:Type}` placeholders. Raises SqlRefusedError, StoreUnavailableError.
    """
    if len(query.encode()) > MAX_QUERY_BYTES:
        raise SqlRefusedError(f"a query has at most {MAX_QUERY_BYTES} bytes")
    statement = _one_statement(store, query)
    _check(store, statement, params or {})
    # The text was printed by the engine's own parser: one SELECT without comments and without settings.
    found = _run(store, f"{statement} SETTINGS {_LIMITS}", params)
    return Rows(found.columns, found.rows[:MAX_ROWS]), len(found.rows) > MAX_ROWS


def _one_statement(store: Store, query: str) -> str:
    (row,) = _run(
        store, "SELECT formatQuerySingleLine({query:String})", {"query": query.strip().removesuffix(";")}
    ).rows
    statement = str(row[0])
    if not re.match(r"\(*(SELECT|WITH)\b", statement):
        raise SqlRefusedError(f"only SELECT is possible here, not {statement.partition(' ')[0]}")
    return statement


def _check(store: Store, statement: str, params: Mapping[str, object]) -> None:
    # Nothing is executed here, and what does not parse as a subquery is refused here.
    tree = _run(store, f"EXPLAIN AST SELECT * FROM ({statement})", params).rows  # noqa: S608
    own = _run(store, "SELECT name FROM system.tables WHERE database = currentDatabase()", None).rows
    tables = {str(row[0]) for row in own}
    database = str(_run(store, "SELECT currentDatabase()", None).rows[0][0])
    for kind, name in _nodes(str(line[0]) for line in tree):
        short = name.removeprefix(f"{database}.")
        refused = {
            "TableIdentifier": "." in short or (short in tables and not short.startswith(_VIEW)),
            "Identifier": name.lower().startswith(("system.", "information_schema."))
            or bool(_FORBIDDEN.fullmatch(name)),
            "Function": bool(_FORBIDDEN.fullmatch(name)),
            "TableFunction": name.lower() not in _TABLE_FUNCTIONS,
            "Set": True,
        }[kind]
        if refused:
            what = "a SETTINGS clause" if kind == "Set" else name
            raise SqlRefusedError(f"{what} is not possible here: only the {_VIEW}* views can be read")


def _nodes(lines: Iterator[str]) -> Iterator[tuple[str, str]]:
    """Yield what a printed syntax tree names: tables, functions, identifiers, settings."""
    in_table = False
    arguments: dict[int, int] = {}
    """Of each IN around this line: how many arguments it has had, by the depth at which they stand."""
    for line in lines:
        depth = len(line) - len(line.lstrip(" "))
        arguments = {at: count + (at == depth) for at, count in arguments.items() if at - 2 < depth}
        match = _NODE.match(line)
        if match is None:
            in_table = False
            continue
        kind, name = match[2], match[3]
        if kind == "TableExpression":
            in_table = True
            continue
        if kind == "Identifier" and arguments.get(depth) == 2:
            kind = "TableIdentifier"
        elif kind == "Function" and in_table:
            kind = "TableFunction"
        elif kind == "Function" and _MEMBERSHIP.fullmatch(name):
            arguments[depth + 2] = 0
        yield kind, name
        in_table = False


def _run(store: Store, sql: str, params: Mapping[str, object] | None) -> Rows:
    try:
        return store.query(sql, params)
    except StoreError as error:
        if type(error) is StoreError or code_of(str(error)) in _TOO_MUCH:
            raise SqlRefusedError(str(error)) from error
        raise
    except UnicodeDecodeError as error:
        raise SqlRefusedError(f"the answer has a String that is not UTF-8 ({error}): select hex() of it") from error
