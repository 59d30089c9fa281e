"""Results read back from the store. Everything here blocks; errors are those of `Store`."""

import json
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter

from schemas.failure import Failure
from schemas.result import Evaluation, NearMiss, TaskRecord, TaskResult
from schemas.system import SystemDescription
from schemas.trace import Span
from services.record_rows import ManifestRow, PredictionRow, QueryRow, decode_cursor, encode_cursor
from services.store import Store
from services.store.sql import statement

__all__ = [
    "ManifestRow",
    "PredictionRow",
    "QueryRow",
    "get_evaluation",
    "list_evaluations",
    "manifest",
    "predictions",
    "queries",
    "spans",
    "system",
    "systems",
]

_NEAR_MISSES = TypeAdapter(tuple[NearMiss, ...])
_LEAST = -(2**63)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
WINDOW = 10_000
"""Rows among which a status is looked for first."""

Row = TypeVar("Row", bound=BaseModel)


def get_evaluation(store: Store, evaluation_id: str) -> Evaluation | None:
    """Return an evaluation, complete with its tasks' records, or None when the store has not heard of it."""
    found = _evaluations(store, [evaluation_id], whole=True)
    return found[0] if found else None


def list_evaluations(
    store: Store,
    *,
    model: str | None = None,
    dataset: str | None = None,
    framework: str | None = None,
    device: str | None = None,
    status: str | None = None,
    user: str | None = None,
    since: datetime | None = None,
    limit: int = 50,
    cursor: str | None = None,
) -> tuple[list[Evaluation], str | None]:
    """Return the newest evaluations for which all that is given holds, and a cursor to those before them.

    Their tasks have figures and no `record`. The cursor is None at the end. `since` is an aware datetime.
    Raises InvalidCursorError.
    """
    (before,) = decode_cursor(cursor, ("",))
    asked = {
        "model": model,
        "dataset": dataset,
        "framework": framework,
        "device": device,
        "status": status,
        "user": user,
    }
    params: dict[str, str | int] = {name: value for name, value in asked.items() if value is not None}
    if before:
        params["before"] = before
    if since is not None:
        params["since_ns"] = (since - _EPOCH) // timedelta(microseconds=1) * 1000
    ids = _ids(store, params, limit + 1)
    page = ids[:limit]
    following = encode_cursor(page[-1]) if len(ids) > limit else None
    return _evaluations(store, page, whole=False), following


def predictions(
    store: Store,
    evaluation_id: str,
    *,
    task_id: str | None = None,
    only_wrong: bool = False,
    limit: int = 1000,
    cursor: str | None = None,
) -> tuple[list[PredictionRow], str | None]:
    """Return predictions of the final attempts, by task and position in the data set, and the next cursor.

    `only_wrong`: those whose best class is not the label, unreadable items among them.
    """
    after_task, after_index = decode_cursor(cursor, ("", _LEAST))
    params = {"only_wrong": only_wrong, "after_task": after_task, "after_index": after_index}
    rows, more = _page(store, "predictions_page", PredictionRow, evaluation_id, task_id, limit, params)
    return rows, encode_cursor(rows[-1].task_id, rows[-1].input_index) if more else None


def queries(
    store: Store, evaluation_id: str, *, task_id: str | None = None, limit: int = 1000, cursor: str | None = None
) -> tuple[list[QueryRow], str | None]:
    """Return queries of the final attempts, by task, measured ones before warm-up, and the next cursor."""
    after_task, after_warmup, after_index = decode_cursor(cursor, ("", _LEAST, _LEAST))
    params = {"after_task": after_task, "after_warmup": after_warmup, "after_index": after_index}
    rows, more = _page(store, "queries_page", QueryRow, evaluation_id, task_id, limit, params)
    return rows, encode_cursor(rows[-1].task_id, int(rows[-1].warmup), rows[-1].query_index) if more else None


def spans(
    store: Store, evaluation_id: str, *, task_id: str | None = None, limit: int = 10_000, cursor: str | None = None
) -> tuple[list[Span], str | None]:
    """Return spans of the final attempts and of the evaluation itself, by task and start, and the next cursor."""
    after_task, after_start, after_span = decode_cursor(cursor, ("", _LEAST, ""))
    params = {"after_task": after_task, "after_start": after_start, "after_span": after_span}
    rows, more = _page(store, "spans_page", Span, evaluation_id, task_id, limit, params)
    return rows, encode_cursor(rows[-1].task_id or "", rows[-1].start_ns, rows[-1].span_id) if more else None


def system(store: Store, system_id: str) -> SystemDescription | None:
    """Return a machine as it was last described."""
    rows = store.query(statement("system"), {"system_id": system_id}).rows
    return SystemDescription.model_validate_json(str(rows[0][0])) if rows else None


def systems(store: Store) -> list[SystemDescription]:
    """Return every machine that was ever described, by host name."""
    return [SystemDescription.model_validate_json(str(row[0])) for row in store.query(statement("systems")).rows]


def manifest(store: Store, kind: str, name: str, version: str) -> ManifestRow | None:
    """Return a manifest as it was last registered, also when it has been removed since."""
    found = store.query(statement("manifest"), {"kind": kind, "name": name, "version": version})
    return next((ManifestRow.model_validate(row) for row in found.dicts()), None)


def _ids(store: Store, params: dict[str, str | int], count: int) -> list[str]:
    """Return the ids of up to `count` evaluations, newest first."""
    if "status" in params:
        return _ids_by_status(store, params, count)
    found: dict[str, None] = {}
    bound = {**params, "limit": count}
    while len(found) < count:  # rows that are not merged yet give an id more than once
        ids = _column(store, "list_evaluation_ids", bound)
        found |= dict.fromkeys(ids)
        if len(ids) < count:
            break
        bound["before"] = ids[-1]
    return list(found)[:count]


def _ids_by_status(store: Store, params: dict[str, str | int], count: int) -> list[str]:
    """As `_ids`, where a status is asked for: that is of several rows together, so all of them are looked at.

    Most often the newest few thousand fill the page; only if not, all others are looked at too.
    """
    newest = _column(store, "newest_evaluation_id", {**params, "position": WINDOW})
    bound = {**params, "limit": count}
    if not newest:
        return _column(store, "list_evaluation_ids_by_status", bound)
    found = _column(store, "list_evaluation_ids_by_status", {**bound, "after": newest[0]})
    if len(found) < count:
        bound |= {"before": newest[0], "limit": count - len(found)}
        found += _column(store, "list_evaluation_ids_by_status", bound)
    return found


def _column(store: Store, name: str, bound: dict[str, str | int]) -> list[str]:
    """Return what a statement selects: one column of text."""
    return [str(value) for (value,) in store.query(statement(name, bound), bound).rows]


def _evaluations(store: Store, ids: Sequence[str], *, whole: bool) -> list[Evaluation]:
    """Return these evaluations, newest first; their tasks with the record when `whole`."""
    if not ids:
        return []
    # The store is told of an evaluation's end after its tasks' ends, so it is read before them: an evaluation
    # that has ended then has all its tasks.
    found = store.query(statement("evaluations_by_id"), {"ids": list(ids)}).dicts()
    tasks: defaultdict[str, list[TaskResult]] = defaultdict(list)
    for row in store.query(statement("tasks_by_evaluation", ("record",) if whole else ()), {"ids": list(ids)}).dicts():
        tasks[str(row["evaluation_id"])].append(_task(row))
    return [_evaluation(row, tasks[str(row["evaluation_id"])]) for row in found]


def _evaluation(row: dict[str, Any], tasks: list[TaskResult]) -> Evaluation:
    return Evaluation.model_validate(
        {
            **row,
            "created": _moment(row["created_ns"]),
            "ended": _moment(row["ended_ns"]),
            "request": json.loads(row["request"]),
            "near_misses": _NEAR_MISSES.validate_json(row["near_misses"] or "[]"),
            "failure": _failure(row["failure"]),
            "tasks": tasks,
        }
    )


def _task(row: dict[str, Any]) -> TaskResult:
    """Return a task from a row of `mlms_tasks`. Its figures are those of the record, kept by themselves too."""
    figures = json.loads(row["figures"]) if row["figures"] else {}
    record = TaskRecord.model_validate_json(row["record"]) if row.get("record") else None
    times = {name: _moment(row[f"{name}_ns"]) for name in ("created", "started", "ended")}
    return TaskResult.model_validate({**row, **figures, **times, "record": record, "failure": _failure(row["failure"])})


def _moment(time_ns: int) -> datetime | None:
    """Return nanoseconds since the epoch as a time, to the microsecond; None for 0, which means never."""
    return _EPOCH + timedelta(microseconds=time_ns // 1000) if time_ns else None


def _failure(text: str) -> Failure | None:
    return Failure.model_validate_json(text) if text else None


def _page(
    store: Store,
    name: str,
    model: type[Row],
    evaluation_id: str,
    task_id: str | None,
    limit: int,
    params: dict[str, str | int],
) -> tuple[list[Row], bool]:
    """Return up to `limit` rows of a paged statement, and whether there are more."""
    bound = {**params, "evaluation_id": evaluation_id, "task_id": task_id or "", "limit": limit + 1}
    rows = [model.model_validate(row) for row in store.query(statement(name), bound).dicts()]
    return rows[:limit], len(rows) > limit
