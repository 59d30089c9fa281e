"""The measured part of an evaluation: a scenario over batches that are ready, and nothing else."""

from collections.abc import Callable, Sequence
from pathlib import Path

from predictors.contract import Batch
from predictors.errors import PredictError
from predictors.scenarios import PredictorThread, run_scenario
from predictors.scenarios.measured import Measured
from predictors.worker.opened_model import OpenedModel, guarded
from schemas.evaluation import EvaluationRequested


def measure(
    request: EvaluationRequested,
    model: OpenedModel,
    batches: Sequence[Batch],
    log_dir: Path,
    thread: PredictorThread,
) -> Measured | None:
    """Run the scenario on `thread`, the predictor's; None for the one that measures nothing. Blocks.

    A last batch that is shorter than `batch_size` is not measured, and the settings say so. Raises
    PredictorError. A cancelled evaluation needs no flag here: its worker is killed.
    """
    if request.scenario.name == "accuracy":
        return None
    return guarded(
        lambda: run_scenario(
            request.scenario,
            _bound(model, batches),
            [len(batch[0]) for batch in batches],
            request.seeds,
            log_dir=log_dir,
            cancelled=_never,
            thread=thread,
        ),
        PredictError,
        "the predictor failed while it was measured",
    )


def _bound(model: OpenedModel, batches: Sequence[Batch]) -> Callable[[int], None]:
    """Return the call that is timed: the predictor's own, on a batch that is there."""
    predict = model.predictor.predict

    def run(index: int) -> None:
        predict(batches[index])

    return run


def _never() -> bool:
    return False
