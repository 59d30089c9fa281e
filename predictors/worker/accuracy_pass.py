"""Every item asked for goes through the model once, and becomes a prediction."""

from collections.abc import Callable, Sequence

import numpy as np

from predictors.contract import Array
from predictors.pipeline.output import OutputPipeline, Prediction
from predictors.worker.opened_model import OpenedModel
from predictors.worker.prepared_inputs import PreparedInputs

_GATHERED_ROWS = 1024
_GATHERED_BYTES = 32 * 2**20


def predict_all(
    model: OpenedModel,
    inputs: PreparedInputs,
    outputs: OutputPipeline,
    *,
    batch_size: int,
    progress: Callable[[int, int], None],
) -> tuple[list[Prediction], int]:
    """Return a prediction for every item asked for, in the data set's order, unreadable ones too.

    With them, of how many items the outputs are no finite numbers.

    Outputs are gathered and post-processed many rows at a time: a pipeline is as fast on a thousand rows as
    on one. Raises PredictorError.
    """
    predictions = [Prediction.unreadable(item, reason) for item, reason in inputs.unreadable]
    before = outputs.not_finite
    gathered: list[Sequence[Array]] = []
    first = 0
    for start in range(0, inputs.count, batch_size):
        stop = min(start + batch_size, inputs.count)
        # Copied: a predictor may reuse its outputs.
        gathered.append([np.array(array) for array in model.predict(inputs.rows(start, stop))])
        size = sum(array.nbytes for array in gathered[0]) * len(gathered)
        if stop == inputs.count or stop - first >= _GATHERED_ROWS or size >= _GATHERED_BYTES:
            together = [np.concatenate(column) for column in zip(*gathered, strict=True)]
            predictions += outputs.apply(together, inputs.items[first:stop])
            gathered, first = [], stop
        progress(stop, inputs.count)
    return sorted(predictions, key=lambda prediction: prediction.index), outputs.not_finite - before
