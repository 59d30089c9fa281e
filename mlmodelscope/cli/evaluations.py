"""`mlmodelscope evaluations`: what was evaluated, and everything that came of it."""

from typing import Annotated

import typer

from mlmodelscope.cli.options import Data, Json, Port, Url, connect
from mlmodelscope.cli.output import print_json, print_table
from mlmodelscope.cli.results import print_evaluation

Limit = Annotated[int, typer.Option("--limit", help="At most this many rows.")]
Task = Annotated[str | None, typer.Option("--task", help="Only this task.")]


def add(app: typer.Typer) -> None:
    """Add the group of commands."""
    group = typer.Typer(help="Evaluations: list, show, cancel; their predictions and queries.", no_args_is_help=True)
    for name, command in (
        ("list", list_),
        ("show", show),
        ("cancel", cancel),
        ("predictions", predictions),
        ("queries", queries),
    ):
        group.command(name)(command)
    app.add_typer(group, name="evaluations")


def list_(
    model: Annotated[str | None, typer.Option("--model")] = None,
    dataset: Annotated[str | None, typer.Option("--dataset")] = None,
    framework: Annotated[str | None, typer.Option("--framework")] = None,
    status: Annotated[str | None, typer.Option("--status")] = None,
    limit: Limit = 50,
    url: Url = None,
    port: Port = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """List evaluations, newest first."""
    with connect(url, port, data) as client:
        found = client.evaluations(model=model, dataset=dataset, framework=framework, status=status, limit=limit)
    if as_json:
        print_json(found)
        return
    print_table(
        ["evaluation", "created", "status", "model", "data set", "tasks", "frameworks"],
        [
            [
                item.evaluation_id,
                f"{item.created:%Y-%m-%d %H:%M:%S}" if item.created else None,
                item.status,
                f"{item.model} {item.model_version}",
                f"{item.dataset} {item.dataset_version}",
                len(item.tasks),
                ", ".join(f"{task.framework} {task.framework_version}" for task in item.tasks),
            ]
            for item in found
        ],
    )


def show(evaluation_id: str, url: Url = None, port: Port = None, data: Data = None, as_json: Json = False) -> None:
    """Show one evaluation with all its tasks."""
    with connect(url, port, data) as client:
        found = client.evaluation(evaluation_id)
    if as_json:
        print_json(found)
    else:
        print_evaluation(found)


def cancel(evaluation_id: str, url: Url = None, port: Port = None, data: Data = None, as_json: Json = False) -> None:
    """Stop an evaluation."""
    with connect(url, port, data) as client:
        client.cancel(evaluation_id, "cancelled on the command line")
    if as_json:
        print_json({"evaluation_id": evaluation_id, "cancel_requested": True})
    else:
        typer.echo(f"asked for {evaluation_id} to be cancelled")


def predictions(
    evaluation_id: str,
    task: Task = None,
    wrong: Annotated[bool, typer.Option("--wrong", help="Only inputs whose best answer is wrong.")] = False,
    limit: Limit = 50,
    url: Url = None,
    port: Port = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Show what was predicted for each input."""
    with connect(url, port, data) as client:
        found = client.predictions(evaluation_id, task_id=task, only_wrong=wrong or None, limit=limit)
    if as_json:
        print_json(found)
        return
    print_table(
        ["task", "input", "label", "predicted", "score", "top-1", "top-5", "error"],
        [
            [
                row["task_id"][-8:],
                row["input_id"],
                row["label"],
                (row["names"] or row["classes"] or [None])[0],
                f"{row['scores'][0]:.4f}" if row["scores"] else None,
                "right" if row["correct_top1"] else "wrong",
                "right" if row["correct_top5"] else "wrong",
                row["error"] or None,
            ]
            for row in found
        ],
    )


def queries(
    evaluation_id: str,
    task: Task = None,
    limit: Limit = 50,
    url: Url = None,
    port: Port = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Show the measured queries, warm-up included and marked."""
    with connect(url, port, data) as client:
        found = client.queries(evaluation_id, task_id=task, limit=limit)
    if as_json:
        print_json(found)
        return
    print_table(
        ["task", "query", "warm-up", "issued ms", "latency ms", "items"],
        [
            [
                row["task_id"][-8:],
                row["query_index"],
                "yes" if row["warmup"] else "no",
                f"{row['issued_ns'] / 1e6:.3f}",
                f"{(row['completed_ns'] - row['scheduled_ns']) / 1e6:.4f}",
                row["items"],
            ]
            for row in found
        ],
    )
