"""Predictions in chunks that the bus takes."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from predictors.pipeline.output import Prediction
from predictors.worker.rows import MAX_TEXT, prediction_rows
from schemas.codec import encode
from schemas.events import PredictionsRecorded

LIMIT_BYTES = 2**20
"""Of a message, as a NATS server has it by default."""


@settings(max_examples=20, deadline=None)
@example(5000, "x" * 200, 5)
@example(5000, "漢" * 900, 5)
@given(st.integers(0, 5000), st.sampled_from(["a", "é", "漢", "x" * 200]), st.integers(0, 5))
def test_chunks_hold_every_row_once_and_fit(count: int, name: str, classes: int) -> None:
    """However long names are, every chunk fits a message, and together they are all predictions in order."""
    predictions = [_prediction(index, name, classes) for index in range(count)]
    events = [
        PredictionsRecorded.model_validate({"evaluation_id": "e", "task_id": "t", "attempt": 1, **rows.columns})
        for rows in prediction_rows(predictions)
    ]
    assert [index for event in events for index in event.input_index] == list(range(count))
    assert all(len(encode(event)) < LIMIT_BYTES for event in events)


def test_an_endless_error_is_cut() -> None:
    """Text of unknown origin never makes a row that does not fit."""
    (rows,) = prediction_rows([Prediction(0, "0", "0", error="x" * 10**7)])
    assert len(rows.columns["error"][0]) == MAX_TEXT


def _prediction(index: int, name: str, classes: int) -> Prediction:
    return Prediction(
        index=index,
        id=f"{name}{index}",
        label=name,
        classes=tuple(range(classes)),
        scores=(0.25,) * classes,
        names=(name,) * classes,
        output_digest="0" * 64,
    )
