"""Accuracy over the items that were asked for."""

from collections.abc import Sequence

from predictors.pipeline.output import Prediction
from schemas.result import Accuracy
from schemas.statistics import wilson


def score(predictions: Sequence[Prediction], asked: int, unreadable: int) -> Accuracy:
    """Return top-1 and top-5 as fractions of `asked`, with Wilson intervals.

    An item that could not be read counts as wrong, whether or not `predictions` has an entry with its error.
    Raises ValueError when there are more items than were asked for.
    """
    readable = sum(1 for prediction in predictions if not prediction.error)
    if unreadable < 0 or readable + unreadable > asked:
        raise ValueError(f"{readable} predictions and {unreadable} unreadable items of {asked} asked for")
    return Accuracy(
        top1=wilson(sum(prediction.correct_top1 for prediction in predictions), asked),
        top5=wilson(sum(prediction.correct_top5 for prediction in predictions), asked),
        asked=asked,
        unreadable=unreadable,
    )
