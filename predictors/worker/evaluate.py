"""What happens inside a worker: prepare the inputs, open the model, predict every item, measure, tell.

Nothing is sent, encoded or logged between the first and the last measured query: rows are columns in memory
until the measurement is over.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from predictors.agent.task_assets import local_files
from predictors.contract import Framework
from predictors.machine.system import read_state
from predictors.pipeline.output import OutputPipeline
from predictors.scenarios import PredictorThread
from predictors.worker.accuracy_pass import predict_all
from predictors.worker.findings import Findings, finished
from predictors.worker.measurement import measure
from predictors.worker.messages import Job, Message, Progress
from predictors.worker.opened_model import OpenedModel, open_model
from predictors.worker.prepared_inputs import InputsKey, PreparedInputs, prepare_inputs
from predictors.worker.rows import prediction_rows, query_rows
from predictors.worker.scoring import score
from schemas.codec import decode
from schemas.evaluation import Device
from schemas.events import Phase
from schemas.tasks import TaskAssigned

PROGRESS_INTERVAL_NS = 250_000_000


class Evaluator:
    """One worker's state between jobs: the open model, and the inputs prepared last.

    The agent sends a worker only jobs of one model, opened one way; what differs between them is the data,
    the scenario and the sample. Blocking; for one thread. The predictor has a thread of its own: figures are
    told while the load generator still closes its logs there.
    """

    def __init__(
        self, framework: Framework, device: Device, tell: Callable[[Message], None], process_start_ms: float
    ) -> None:
        self._framework = framework
        self._device = device
        self._tell = tell
        self._process_start_ms = process_start_ms
        self._thread = PredictorThread()
        self._model: OpenedModel | None = None
        self._inputs: tuple[InputsKey, PreparedInputs] | None = None
        self._outputs: tuple[object, OutputPipeline] | None = None

    def run(self, job: Job) -> None:
        """Do one job: tells progress, then its rows, then Finished. Raises PredictorError."""
        task = decode(job.task).data
        assert isinstance(task, TaskAssigned)
        scratch = Path(job.scratch)
        phases = Phases(self._tell)
        state_before = read_state()
        with phases.timed("prepare"):
            inputs = self._prepared(task, job, scratch, phases)
            pipeline = self._output_pipeline(task, job, inputs)
        with phases.timed("settle"):  # the load generator may still be closing the last task's logs
            self._thread.call(_nothing)
        with phases.timed("open"):
            batches = inputs.batches(task.request.batch_size)
            model = self._thread.call(lambda: self._opened(task, job))
            cold_start = self._thread.call(lambda: model.begin_task(batches[0]))
        with phases.timed("predict"):
            predictions, not_finite = self._thread.call(
                lambda: predict_all(
                    model,
                    inputs,
                    pipeline,
                    batch_size=task.request.batch_size,
                    progress=lambda done, total: phases.progress("predict", done, total),
                )
            )
        with phases.timed("measure"):
            if task.request.scenario.name != "accuracy":
                self._tell(Progress(phase="measure", message=task.request.scenario.name))
            measured = measure(task.request, model, batches, scratch, self._thread)
        findings = Findings(
            task=task,
            inputs=inputs,
            model=model,
            cold_start=cold_start,
            accuracy=score(predictions, len(inputs.asked), len(inputs.unreadable)) if pipeline.classifies else None,
            not_finite=not_finite,
            measured=measured,
            state_before=state_before,
            state_after=read_state(),
            phases_ms=phases.spent_ms,
        )
        for rows in prediction_rows(predictions):
            self._tell(rows)
        for rows in query_rows(measured) if measured is not None else ():
            self._tell(rows)
        self._tell(finished(findings))

    def close(self) -> None:
        """Free the model and the inputs."""
        if self._model is not None:
            self._thread.call(self._model.predictor.close)
        self._thread.close()
        if self._inputs is not None:
            self._inputs[1].close()

    def _prepared(self, task: TaskAssigned, job: Job, scratch: Path, phases: "Phases") -> PreparedInputs:
        key = InputsKey.of(task, job.max_pixels)
        if self._inputs is not None:
            if self._inputs[0] == key:
                return self._inputs[1]
            self._inputs[1].close()
            self._inputs = None
        inputs = prepare_inputs(
            task,
            local_files(job.files),
            max_pixels=job.max_pixels,
            scratch=scratch,
            progress=lambda done, total: phases.progress("prepare", done, total),
        )
        self._inputs = (key, inputs)
        return inputs

    def _output_pipeline(self, task: TaskAssigned, job: Job, inputs: PreparedInputs) -> OutputPipeline:
        key = (task.model.outputs, inputs.class_names)
        if self._outputs is None or self._outputs[0] != key:
            self._outputs = (key, OutputPipeline(task.model.outputs, local_files(job.files), inputs.class_names))
        return self._outputs[1]

    def _opened(self, task: TaskAssigned, job: Job) -> OpenedModel:
        if self._model is None:
            self._tell(Progress(phase="open", message=f"{task.model.name} {task.model.version}"))
            self._model = open_model(
                self._framework,
                task,
                local_files(job.files),
                device=self._device,
                trusted=job.trusted,
                process_start_ms=self._process_start_ms,
            )
        return self._model


def _nothing() -> None:
    pass


class Phases:
    """Times the phases of a job, and tells how far each is, at most four times a second."""

    def __init__(self, tell: Callable[[Message], None]) -> None:
        self._tell = tell
        self._told_ns = time.perf_counter_ns()
        self.spent_ms: dict[str, float] = {}

    @contextmanager
    def timed(self, phase: Phase | Literal["settle"]) -> Iterator[None]:
        """Time the body as `phase`."""
        began = time.perf_counter_ns()
        yield
        self.spent_ms[phase] = (time.perf_counter_ns() - began) / 1e6

    def progress(self, phase: Phase, done: int, total: int) -> None:
        """Tell, unless something was told just before."""
        now = time.perf_counter_ns()
        if now - self._told_ns >= PROGRESS_INTERVAL_NS:
            self._told_ns = now
            self._tell(Progress(phase=phase, done=done, total=total))
