"""Predictions and queries as chunks of columns, each far below what the bus takes in one message."""

from collections.abc import Iterator, Sequence

from predictors.pipeline.output import Prediction
from predictors.scenarios.measured import Measured
from predictors.worker.messages import Rows
from schemas.events import PREDICTION_COLUMNS

CHUNK_ROWS = 2000
QUERY_ROWS = 8192
CHUNK_BYTES = 400_000
"""Of a chunk of predictions as estimated; the bus takes a megabyte."""
MAX_TEXT = 1000
"""Characters of an error or a name that travel."""


def prediction_rows(predictions: Sequence[Prediction]) -> Iterator[Rows]:
    """Yield all `predictions` in order, by column."""
    columns = _empty()
    size = 0
    for prediction in predictions:
        row = _row(prediction)
        size += 120 + sum(len(text) * 4 for text in row if isinstance(text, str))
        size += sum(18 + len(name) * 4 for name in prediction.names)
        for column, value in zip(columns.values(), row, strict=True):
            column.append(value)
        if size >= CHUNK_BYTES or len(columns["input_index"]) >= CHUNK_ROWS:
            yield Rows(of="predictions", columns=columns)
            columns, size = _empty(), 0
    if columns["input_index"]:
        yield Rows(of="predictions", columns=columns)


def query_rows(measured: Measured) -> Iterator[Rows]:
    """Yield all queries of a measurement in order, by column."""
    for start in range(0, len(measured.query_index), QUERY_ROWS):
        chunk = slice(start, start + QUERY_ROWS)
        yield Rows(
            of="queries",
            columns={
                "query_index": measured.query_index[chunk].tolist(),
                "warmup": measured.warmup[chunk].tolist(),
                "scheduled_ns": measured.scheduled_ns[chunk].tolist(),
                "issued_ns": measured.issued_ns[chunk].tolist(),
                "completed_ns": measured.completed_ns[chunk].tolist(),
                "items": measured.items[chunk].tolist(),
            },
        )


def _empty() -> dict[str, list[object]]:
    return {name: [] for name in PREDICTION_COLUMNS}


def _row(prediction: Prediction) -> tuple[object, ...]:
    """Return the values in the order of PREDICTION_COLUMNS."""
    return (
        prediction.index,
        prediction.id,
        prediction.label,
        prediction.classes,
        prediction.scores,
        tuple(name[:MAX_TEXT] for name in prediction.names),
        prediction.correct_top1,
        prediction.correct_top5,
        prediction.error[:MAX_TEXT],
        prediction.output_digest,
    )
