"""An evaluation as the table people read."""

from mlmodelscope.cli.output import console, print_table
from schemas.result import Estimate, Evaluation, TaskResult

COLUMNS = [
    "framework", "version", "device", "top-1 [95 %]", "top-5", "p50 ms", "p90 ms", "p99 ms",
    "items/s", "cold start ms", "state",
]  # fmt: skip
WIDE = 140
"""Characters that a row of all columns takes."""


def print_evaluation(evaluation: Evaluation) -> None:
    """Print the table of an evaluation, and beneath it whatever a reader must know before quoting it."""
    request = evaluation.request
    title = (
        f"{evaluation.model} {evaluation.model_version} on {evaluation.dataset} {evaluation.dataset_version}, "
        f"{request.scenario.name}, batch {request.batch_size}: {evaluation.status}"
    )
    out = console()
    rows = [_row(task) for task in evaluation.tasks]
    if not rows:
        out.print(title)
    elif out.width >= WIDE:
        print_table(COLUMNS, rows, title=title)
    else:  # a column a task: a word cut in three is no word
        print_table(
            ["", *(row[0] for row in rows)], zip(COLUMNS[1:], *(row[1:] for row in rows), strict=True), title=title
        )
    if evaluation.failure:
        out.print(f"{evaluation.failure.code}: {evaluation.failure.message}")
        if evaluation.failure.hint:
            out.print(f"hint: {evaluation.failure.hint}")
    for miss in evaluation.near_misses:
        failed = "; ".join(f"{item.constraint}: wanted {item.wanted}, offered {item.offered}" for item in miss.failed)
        out.print(f"near miss {miss.agent_id} ({miss.stack}): {failed}" if miss.stack else f"near miss: {failed}")
    for task in evaluation.tasks:
        name = f"{task.framework} {task.framework_version}"
        if task.failure:
            out.print(f"{name}: {task.failure.code}: {task.failure.message}")
            if task.failure.hint:
                out.print(f"  hint: {task.failure.hint}")
            if task.failure.detail:
                out.print(f"  {task.failure.detail}", markup=False)
        for reason in task.validity.reasons if task.validity else ():
            out.print(f"{name}: note: {reason}", markup=False)
        if task.accuracy and task.accuracy.unreadable:
            out.print(f"{name}: {task.accuracy.unreadable} of {task.accuracy.asked} items could not be read")
    out.print(f"evaluation {evaluation.evaluation_id}")


def _row(task: TaskResult) -> list[str]:
    latency, cold = task.latency, task.cold_start
    return [
        task.framework,
        task.framework_version,
        task.device,
        _interval(task.accuracy.top1) if task.accuracy else "-",
        _fraction(task.accuracy.top5.value) if task.accuracy else "-",
        _milliseconds(latency.p50 if latency else None),
        _milliseconds(latency.p90 if latency else None),
        _milliseconds(latency.p99 if latency else None),
        f"{task.throughput.value:.1f}" if task.throughput else "-",
        f"{cold.open_ms + cold.first_predict_ms:.1f}" + ("" if cold.of_this_task else " (warm now)") if cold else "-",
        task.status,
    ]


def _fraction(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _interval(estimate: Estimate) -> str:
    if estimate.value is None or estimate.low is None or estimate.high is None:
        return _fraction(estimate.value)
    return f"{estimate.value:.4f} [{estimate.low:.4f}, {estimate.high:.4f}]"


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
