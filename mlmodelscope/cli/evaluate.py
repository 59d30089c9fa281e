"""`mlmodelscope evaluate`: one request, one table."""

from contextlib import AbstractContextManager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from mlmodelscope.cli.exit_codes import FAILED, OK, REJECTED
from mlmodelscope.cli.options import Data, Json, Port, Url, connect
from mlmodelscope.cli.output import complain, print_json
from mlmodelscope.cli.progress import EvaluationProgress
from mlmodelscope.cli.results import print_evaluation
from mlmodelscope.client import Client
from mlmodelscope.errors import RequestRefusedError
from mlmodelscope.local import local
from schemas.result import Evaluation
from schemas.trace import TraceLevel


class Targets(StrEnum):
    """On how many predictors."""

    ONE = "one"
    ALL = "all"


class ScenarioName(StrEnum):
    """How the load is sent."""

    SINGLE_STREAM = "single_stream"
    OFFLINE = "offline"
    ACCURACY = "accuracy"


Level = StrEnum("Level", {level.name: level.name.lower() for level in TraceLevel})  # type: ignore[misc]


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command("evaluate")(evaluate)


def evaluate(
    model: Annotated[
        str, typer.Option("--model", help="Model, with a range of versions if wanted: 'squeezenet ^1.1'.")
    ],
    dataset: Annotated[str, typer.Option("--dataset", help="Data set, likewise.")],
    targets: Annotated[Targets, typer.Option("--targets", help="One predictor, or all that satisfy.")] = Targets.ONE,
    framework: Annotated[
        list[str] | None, typer.Option("--framework", help="Any of these: 'onnxruntime <1.25'. Repeatable.")
    ] = None,
    device: Annotated[str | None, typer.Option("--device", help="cpu or gpu.")] = None,
    architecture: Annotated[str | None, typer.Option("--architecture", help="amd64, arm64, ppc64le.")] = None,
    gpu: Annotated[str | None, typer.Option("--gpu", help="Part of the GPU's name.")] = None,
    interconnect: Annotated[str | None, typer.Option("--interconnect", help="nvlink, pcie.")] = None,
    min_memory: Annotated[int | None, typer.Option("--min-memory", help="Bytes of memory.")] = None,
    min_gpu_memory: Annotated[int | None, typer.Option("--min-gpu-memory", help="Bytes of GPU memory.")] = None,
    agent: Annotated[str | None, typer.Option("--agent", help="This agent and no other.")] = None,
    scenario: Annotated[ScenarioName, typer.Option("--scenario")] = ScenarioName.SINGLE_STREAM,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1)] = 1,
    sample_limit: Annotated[int | None, typer.Option("--sample-limit", min=1, help="Evaluate so many items.")] = None,
    min_duration: Annotated[float | None, typer.Option("--min-duration", help="Seconds measured at least.")] = None,
    max_duration: Annotated[float | None, typer.Option("--max-duration", help="Seconds measured at most.")] = None,
    min_queries: Annotated[int | None, typer.Option("--min-queries", help="Queries measured at least.")] = None,
    warmup: Annotated[int | None, typer.Option("--warmup", help="Queries sent first and left out.")] = None,
    threads: Annotated[int | None, typer.Option("--threads", min=1, help="Threads within an operator.")] = None,
    inter_threads: Annotated[
        int | None, typer.Option("--inter-threads", min=1, help="Threads across operators.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of the sample, the order and the schedule.")] = None,
    trace: Annotated[Level, typer.Option("--trace", help="Trace level.")] = Level["NONE"],
    cold: Annotated[bool, typer.Option("--cold", help="In a fresh process.")] = False,
    deadline: Annotated[float | None, typer.Option("--deadline", help="Seconds a task may work.")] = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", help="NAME=VALUE for the predictor. Repeatable.")
    ] = None,
    use_local: Annotated[
        bool, typer.Option("--local", help="Start a stack for this one evaluation; its state stays in --data if given.")
    ] = False,
    url: Url = None,
    port: Port = None,
    data: Data = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
    as_json: Json = False,
) -> None:
    """Evaluate a model on a data set, wait, and print accuracy and latency of every predictor that ran it.

    Exit code 0: all tasks completed; 1: some failed; 3: no predictor satisfies the request.
    """
    fields: dict[str, Any] = {
        "model": model,
        "dataset": dataset,
        "targets": targets.value,
        "batch_size": batch_size,
        "sample_limit": sample_limit,
        "scenario": _given(
            name=scenario.value,
            min_duration_s=_below(min_duration, max_duration),
            max_duration_s=max_duration,
            min_query_count=min_queries,
            warmup_query_count=warmup,
        ),
        "constraints": _given(
            frameworks=framework or None,
            device=device,
            architecture=architecture,
            gpu=gpu,
            interconnect=interconnect,
            min_memory_bytes=min_memory,
            min_gpu_memory_bytes=min_gpu_memory,
            agent=agent,
        ),
        "threads": _given(intra_op=threads, inter_op=inter_threads),
        "seeds": {} if seed is None else {"sample": seed, "order": seed + 1, "schedule": seed + 2},
        "trace_level": TraceLevel[trace.name],
        "cold": cold,
        "options": _options(option or []),
        **_given(deadline_s=deadline),
    }
    with _client(use_local, url, port, data) as client, EvaluationProgress(quiet=quiet) as progress:
        try:
            found = client.evaluate(**fields, progress=progress)
        except SystemExit:  # Ctrl-C; the client has asked for it to be cancelled
            complain(f"interrupted; evaluation {progress.evaluation_id} is being cancelled")
            raise
    if as_json:
        print_json(found)
    else:
        print_evaluation(found)
    raise typer.Exit(exit_code(found))


def exit_code(evaluation: Evaluation) -> int:
    """Return what the command exits with after this evaluation."""
    return {"completed": OK, "rejected": REJECTED}.get(evaluation.status, FAILED)


def _client(use_local: bool, url: str | None, port: int | None, data: Path | None) -> AbstractContextManager[Client]:
    if not use_local:
        return connect(url, port, data)
    if url or port:
        raise RequestRefusedError("--local starts a stack of its own and takes no --url or --port")
    return local(data=data)


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _below(minimum: float | None, maximum: float | None) -> float | None:
    """Return the minimum to ask for: a maximum below the default minimum lowers it."""
    return maximum if minimum is None and maximum is not None and maximum < 1.0 else minimum


def _options(pairs: list[str]) -> dict[str, bool | int | float | str]:
    found: dict[str, bool | int | float | str] = {}
    for pair in pairs:
        name, sign, text = pair.partition("=")
        if not sign:
            raise RequestRefusedError(f"--option {pair}: an option is NAME=VALUE")
        found[name] = _value(text)
    return found


def _value(text: str) -> bool | int | float | str:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
