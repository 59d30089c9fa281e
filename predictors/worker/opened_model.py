"""A model that is open in this worker, and what it took to get there."""

import hashlib
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from predictors.contract import Batch, Framework, Opened, OpenModel, Outputs, Predictor, TensorSpec
from predictors.errors import ModelRefusedError, PredictError, PredictorError
from predictors.worker.death import looks_like_no_memory, out_of_memory
from schemas.evaluation import Device
from schemas.result import ColdStart
from schemas.steps import AssetRef
from schemas.tasks import TaskAssigned

T = TypeVar("T")

MAX_EVIDENCE = 4000
"""Characters of a traceback that travel."""


class OpenedModel:
    """One predictor with its model, from `open_model`. Errors of any kind come out as PredictorError."""

    def __init__(self, predictor: Predictor, opened: Opened, process_start_ms: float, open_ms: float) -> None:
        self.predictor = predictor
        self.opened = opened
        self._process_start_ms = process_start_ms
        self._open_ms = open_ms
        self._first_predict_ms: float | None = None
        self._tasks = 0

    def begin_task(self, batch: Batch) -> ColdStart:
        """Return the cold start; the first task's call makes the first prediction, on `batch`.

        Raises PredictError also for a model that computes in place on its input: inputs are used many times,
        and every prediction after the first would be of something else.
        """
        if self._first_predict_ms is None:
            before = [hashlib.sha256(array.data).digest() for array in batch]
            began = time.perf_counter_ns()
            self.predict(batch)
            self._first_predict_ms = (time.perf_counter_ns() - began) / 1e6
            if before != [hashlib.sha256(array.data).digest() for array in batch]:
                raise PredictError(
                    "the model writes into its input: inputs are prepared once and predicted many times",
                    hint="have the network copy its input before it computes in place on it",
                )
        self._tasks += 1
        return ColdStart(
            process_start_ms=self._process_start_ms,
            open_ms=self._open_ms,
            first_predict_ms=self._first_predict_ms,
            of_this_task=self._tasks == 1,
        )

    def predict(self, batch: Batch) -> Outputs:
        """Run one batch. Raises PredictorError; for what is not measured."""
        return guarded(lambda: self.predictor.predict(batch), PredictError, "the predictor failed on a batch")


def open_model(
    framework: Framework,
    task: TaskAssigned,
    fetch: Callable[[AssetRef], Path],
    *,
    device: Device,
    trusted: bool,
    process_start_ms: float,
) -> OpenedModel:
    """Open the model of `task`; blocks. Raises PredictorError, ModelRefusedError above all."""
    model = _described(task, fetch, device, trusted)
    predictor = framework.create()
    began = time.perf_counter_ns()
    what = f"{framework.name} does not open {task.model.name} {task.model.version}"
    opened = guarded(lambda: predictor.open(model), ModelRefusedError, what)
    return OpenedModel(predictor, opened, process_start_ms, (time.perf_counter_ns() - began) / 1e6)


def guarded(call: Callable[[], T], wrapped: type[PredictorError], what: str) -> T:
    """Return what `call` returns; an exception that is not ours becomes `wrapped`, with its own words inside."""
    try:
        return call()
    except MemoryError as error:
        raise out_of_memory(error) from error
    except PredictorError as error:
        if looks_like_no_memory(f"{error.message} {error.detail}"):
            raise out_of_memory(error) from error
        raise
    except Exception as error:  # whatever a framework raises: told to the user as that framework's failure
        if looks_like_no_memory(str(error)):
            raise out_of_memory(error) from error
        evidence = traceback.format_exc()[-MAX_EVIDENCE:]
        raise wrapped(f"{what}: {type(error).__name__}: {error}", detail=evidence) from error


def _described(task: TaskAssigned, fetch: Callable[[AssetRef], Path], device: Device, trusted: bool) -> OpenModel:
    entry, request, manifest = task.framework_model, task.request, task.model
    files = entry.model
    input_names = entry.inputs or tuple(each.name for each in manifest.inputs)
    output_names = entry.outputs or tuple(each.name for each in manifest.outputs)
    counts = (("inputs", input_names, len(manifest.inputs)), ("outputs", output_names, len(manifest.outputs)))
    for kind, names, declared in counts:
        if len(names) != declared:
            raise ModelRefusedError(
                f"{manifest.name} {manifest.version} declares {declared} {kind}, its entry for {entry.name} "
                f"names {len(names)}",
                hint="name as many as the model has, in the same order",
            )
    return OpenModel(
        name=manifest.name,
        version=manifest.version,
        format=files.format,
        graph=None if files.graph is None else fetch(files.graph),
        weights=None if files.weights is None else fetch(files.weights),
        constructor=files.constructor,
        arguments=dict(files.arguments),
        inputs=tuple(
            TensorSpec(name, each.element_type, each.shape)
            for name, each in zip(input_names, manifest.inputs, strict=True)
        ),
        outputs=tuple(
            TensorSpec(name, each.element_type) for name, each in zip(output_names, manifest.outputs, strict=True)
        ),
        device=device,
        batch_size=request.batch_size,
        threads=request.threads,
        trace_level=request.trace_level,
        options=dict(request.options),
        trusted=trusted,
    )
