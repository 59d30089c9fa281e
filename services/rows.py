"""Events to rows of the store's tables. Pure: the same event gives the same rows, whenever it is told again."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel

from schemas import events
from schemas.codec import Envelope
from schemas.result import Estimate, TaskRecord
from schemas.system import SystemDescribed
from schemas.trace import SPAN_COLUMNS, SpansRecorded

TableRows = dict[str, dict[str, list[Any]]]
"""Columns by name, by table. All rows of a table have the same columns, whatever event they come from."""

TABLES = ("predictions", "queries", "spans", "metrics", "systems", "manifests", "tasks", "evaluations")
"""In the order of insertion: what is told last is inserted last, so whoever sees the end sees all before it."""

FIGURES = {"accuracy", "latency", "throughput", "cold_start", "validity"}
"""What of a task's record is also kept by itself, for lists that need no more."""

_EVALUATION: dict[str, object] = {
    "evaluation_id": "", "stage": "", "time_ns": 0, "status": "", "model": "", "model_version": "", "dataset": "",
    "dataset_version": "", "user": "", "scenario": "", "frameworks": (), "devices": (), "planned": 0, "completed": 0,
    "failed": 0, "cancelled": 0, "request": "", "model_manifest": "", "dataset_manifest": "", "near_misses": "",
    "failure": "",
}  # fmt: skip
_TASK: dict[str, object] = {
    "evaluation_id": "", "task_id": "", "attempt": 0, "stage": "", "time_ns": 0, "status": "", "model": "",
    "model_version": "", "dataset": "", "dataset_version": "", "user": "", "scenario": "", "framework": "",
    "framework_version": "", "device": "", "architecture": "", "agent_id": "", "system_id": "", "batch_size": 0,
    "accuracy_top1": None, "accuracy_top1_low": None, "accuracy_top1_high": None, "accuracy_top5": None,
    "accuracy_top5_low": None, "accuracy_top5_high": None, "items_asked": None, "items_unreadable": None,
    "query_count": None, "mean_ms": None, "trimmed_mean_ms": None, "min_ms": None, "max_ms": None, "median_ms": None,
    "median_low_ms": None, "median_high_ms": None, "p50_ms": None, "p90_ms": None, "p95_ms": None, "p97_ms": None,
    "p99_ms": None, "p99_9_ms": None, "throughput": None, "throughput_low": None, "throughput_high": None,
    "process_start_ms": None, "open_ms": None, "first_predict_ms": None, "cold_start_measured_here": None,
    "preparation_items_per_s": None, "valid": None, "load_generator": "", "evaluation_key": "", "pipeline_digest": "",
    "environment_digest": "", "figures": "", "record": "", "failure": "",
}  # fmt: skip


def rows_of(envelope: Envelope[BaseModel]) -> TableRows:
    """Return the rows that an event adds; none for an event that the store does not keep."""
    rows = _ROWS.get(type(envelope.data))
    return rows(envelope.data, envelope) if rows else {}


def count_rows(rows: TableRows) -> int:
    """Return how many rows there are in all tables together."""
    return sum(len(next(iter(columns.values()))) for columns in rows.values())


def merged(parts: list[TableRows], table: str) -> dict[str, list[Any]]:
    """Return the rows of one table from several events as one set of columns; empty when there are none."""
    found = [part[table] for part in parts if table in part]
    if not found:
        return {}
    columns: dict[str, list[Any]] = {name: [] for name in found[0]}
    for name, column in columns.items():
        for part in found:
            column += part[name]
    return columns


def _one(defaults: Mapping[str, object], **values: object) -> dict[str, list[Any]]:
    return {name: [value] for name, value in {**defaults, **values}.items()}


def _json(model: BaseModel | None) -> str:
    return "" if model is None else model.model_dump_json()


def _accepted(event: events.EvaluationAccepted, _: Envelope[BaseModel]) -> TableRows:
    identity: dict[str, object] = {
        "model": event.model.name,
        "model_version": event.model.version,
        "dataset": event.dataset.name,
        "dataset_version": event.dataset.version,
        "user": event.request.user,
        "scenario": event.request.scenario.name,
    }
    rows: TableRows = {
        "evaluations": _one(
            _EVALUATION,
            **identity,
            evaluation_id=event.evaluation_id,
            stage="accepted",
            time_ns=event.time_ns,
            status="pending",
            frameworks=sorted({task.stack.framework for task in event.tasks}),
            devices=sorted({task.stack.device for task in event.tasks}),
            planned=len(event.tasks),
            request=_json(event.request),
            model_manifest=_json(event.model),
            dataset_manifest=_json(event.dataset),
        )
    }
    planned = [
        {
            "tasks": _one(
                _TASK,
                **identity,
                **_stack(task),
                evaluation_id=event.evaluation_id,
                task_id=task.task_id,
                stage="planned",
                time_ns=event.time_ns,
                status="assigned",
                batch_size=event.request.batch_size,
            )
        }
        for task in event.tasks
    ]
    if planned:
        rows["tasks"] = merged(planned, "tasks")
    return rows


def _stack(task: events.PlannedTask | events.TaskStarted) -> dict[str, object]:
    return {
        "framework": task.stack.framework,
        "framework_version": task.stack.version,
        "device": task.stack.device,
        "architecture": task.stack.architecture,
        "agent_id": task.agent_id or "",
    }


def _rejected(event: events.EvaluationRejected, _: Envelope[BaseModel]) -> TableRows:
    request = event.request
    near_misses = [miss.model_dump(mode="json") for miss in event.near_misses]
    row = _one(
        _EVALUATION,
        evaluation_id=event.evaluation_id,
        stage="rejected",
        time_ns=event.time_ns,
        status="rejected",
        model=request.model.name,
        model_version=request.model.version,
        dataset=request.dataset.name,
        dataset_version=request.dataset.version,
        user=request.user,
        scenario=request.scenario.name,
        request=_json(request),
        near_misses=json.dumps(near_misses, ensure_ascii=False),
        failure=_json(event.failure),
    )
    return {"evaluations": row}


def _ended(event: events.EvaluationCompleted, _: Envelope[BaseModel]) -> TableRows:
    row = _one(
        _EVALUATION,
        evaluation_id=event.evaluation_id,
        stage="ended",
        time_ns=event.time_ns,
        status=event.status,
        completed=event.completed,
        failed=event.failed,
        cancelled=event.cancelled,
    )
    return {"evaluations": row}


def _task_started(event: events.TaskStarted, _: Envelope[BaseModel]) -> TableRows:
    row = _one(
        _TASK,
        **_stack(event),
        evaluation_id=event.evaluation_id,
        task_id=event.task_id,
        attempt=event.attempt,
        stage="started",
        time_ns=event.time_ns,
        status="running",
        system_id=event.system_id,
        batch_size=event.batch_size,
    )
    begun = _one(
        _EVALUATION, evaluation_id=event.evaluation_id, stage="started", time_ns=event.time_ns, status="running"
    )
    return {"tasks": row, "evaluations": begun}


def _task_completed(event: events.TaskCompleted, _: Envelope[BaseModel]) -> TableRows:
    row = _one(
        _TASK,
        **_figures(event.record),
        evaluation_id=event.evaluation_id,
        task_id=event.task_id,
        attempt=event.attempt,
        stage="ended",
        time_ns=event.time_ns,
        status="completed",
        agent_id=event.agent_id,
        system_id=event.system_id,
        figures=event.record.model_dump_json(include=FIGURES),
        record=_json(event.record),
    )
    return {"tasks": row}


def _task_failed(event: events.TaskFailed, _: Envelope[BaseModel]) -> TableRows:
    row = _one(
        _TASK,
        evaluation_id=event.evaluation_id,
        task_id=event.task_id,
        attempt=event.attempt,
        stage="ended",
        time_ns=event.time_ns,
        status="cancelled" if event.failure.code == "cancelled" else "failed",
        agent_id=event.agent_id,
        failure=_json(event.failure),
    )
    return {"tasks": row}


def _interval(name: str, estimate: Estimate, unit: str = "") -> dict[str, object]:
    return {
        f"{name}{unit}": estimate.value,
        f"{name}_low{unit}": estimate.low,
        f"{name}_high{unit}": estimate.high,
    }


def _figures(record: TaskRecord) -> dict[str, object]:
    """Return the columns by which tasks are compared in SQL."""
    found: dict[str, object] = {
        "batch_size": record.batch_size,
        "preparation_items_per_s": record.pipeline.items_per_s,
        "valid": record.validity.valid,
        "load_generator": record.load_generator,
        "evaluation_key": record.evaluation_key,
        "pipeline_digest": record.pipeline.digest,
        "environment_digest": record.environment.digest,
    }
    if record.accuracy:
        found |= _interval("accuracy_top1", record.accuracy.top1) | _interval("accuracy_top5", record.accuracy.top5)
        found |= {"items_asked": record.accuracy.asked, "items_unreadable": record.accuracy.unreadable}
    if record.latency:
        found |= _interval("median", record.latency.median, "_ms") | {"query_count": record.latency.query_count}
        for name in ("mean", "trimmed_mean", "min", "max", "p50", "p90", "p95", "p97", "p99", "p99_9"):
            found[f"{name}_ms"] = getattr(record.latency, name)
    if record.throughput:
        found["throughput"] = record.throughput.value
        found |= {"throughput_low": record.throughput.low, "throughput_high": record.throughput.high}
    if record.cold_start:
        for name in ("process_start_ms", "open_ms", "first_predict_ms"):
            found[name] = getattr(record.cold_start, name)
        found["cold_start_measured_here"] = record.cold_start.of_this_task
    return found


def _batch(table: str, columns: tuple[str, ...]) -> Callable[[Any, Envelope[BaseModel]], TableRows]:
    """Return the function for a columnar event of one attempt of one task."""

    def rows(event: Any, _: Envelope[BaseModel]) -> TableRows:
        values = {name: list(getattr(event, name)) for name in columns}
        count = len(values[columns[0]])
        if not count:
            return {}
        keys = {"evaluation_id": event.evaluation_id, "task_id": event.task_id or "", "attempt": event.attempt}
        return {table: {**{name: [value] * count for name, value in keys.items()}, **values}}

    return rows


def _spans(event: SpansRecorded, envelope: Envelope[BaseModel]) -> TableRows:
    rows = _batch("spans", SPAN_COLUMNS)(event, envelope)
    for columns in rows.values():
        count = len(columns["span_id"])
        columns |= {"agent": [event.agent] * count, "process": [event.process] * count}
    return rows


def _system(event: SystemDescribed, envelope: Envelope[BaseModel]) -> TableRows:
    system = event.system
    row = _one(
        {},
        system_id=system.system_id,
        hostname=system.hostname,
        time_ns=envelope.time_ns,
        agent_id=event.agent_id,
        architecture=system.architecture,
        operating_system=system.operating_system,
        kernel=system.kernel,
        cpu_model=system.cpu.model or "",
        logical_cores=system.cpu.logical_cores,
        memory_bytes=system.memory_bytes,
        gpus=[gpu.name for gpu in system.gpus],
        record=_json(system),
    )
    return {"systems": row}


def _manifest(event: events.ManifestRegistered | events.ManifestRemoved, _: Envelope[BaseModel]) -> TableRows:
    registered = event if isinstance(event, events.ManifestRegistered) else None
    row = _one(
        {},
        kind=event.kind,
        name=event.name,
        version=event.version,
        time_ns=event.time_ns,
        removed=registered is None,
        digest=registered.digest if registered else "",
        user=event.user,
        body=registered.body if registered else "",
    )
    return {"manifests": row}


_ROWS: dict[type[BaseModel], Callable[[Any, Envelope[BaseModel]], TableRows]] = {
    events.EvaluationAccepted: _accepted,
    events.EvaluationRejected: _rejected,
    events.EvaluationCompleted: _ended,
    events.TaskStarted: _task_started,
    events.TaskCompleted: _task_completed,
    events.TaskFailed: _task_failed,
    events.PredictionsRecorded: _batch("predictions", events.PREDICTION_COLUMNS),
    events.QueriesRecorded: _batch("queries", events.QUERY_COLUMNS),
    events.MetricsRecorded: _batch("metrics", events.METRIC_COLUMNS),
    SpansRecorded: _spans,
    SystemDescribed: _system,
    events.ManifestRegistered: _manifest,
    events.ManifestRemoved: _manifest,
}
