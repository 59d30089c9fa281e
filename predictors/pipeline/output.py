"""What a network puts out, to predictions."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from predictors.contract import Array, Outputs
from predictors.data.datasets import Item
from predictors.errors import PipelineError
from predictors.pipeline.labels import Labels
from schemas.manifests import ModelOutput
from schemas.steps import Argsort, AssetRef, Softmax

TOP: Final = 5
"""Classes kept of each item."""

Scores = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the network said about one item."""

    index: int
    """Position in the data set."""
    id: str
    label: str
    """Truth, as the data set states it."""
    classes: tuple[int, ...] = ()
    """Best first, at most five, in the data set's numbering; below 0 for one that only the network has."""
    scores: tuple[float, ...] = ()
    names: tuple[str, ...] = ()
    correct_top1: bool = False
    correct_top5: bool = False
    error: str = ""
    """Why the item could not be read."""
    output_digest: str = ""
    """sha256 of the raw numbers of all outputs, in order, little-endian."""

    @classmethod
    def unreadable(cls, item: Item, reason: str) -> "Prediction":
        """Return what is recorded of an item that could not be read."""
        return cls(item.index, item.id, item.label, error=reason)


class OutputPipeline:
    """The declared steps of a model's outputs, executed as written. Not for use from two threads at once.

    A classification's numbers are one vector an item: axes of length 1 are dropped before the first step, as
    `(classes, 1, 1)` of a network that ends in a pooling. Computed in float64. A class whose score is not a
    number ranks after all others and is not predicted. Predictions are told in the data set's numbering.
    """

    def __init__(
        self, outputs: Sequence[ModelOutput], fetch: Callable[[AssetRef], Path], class_names: Sequence[str]
    ) -> None:
        """Raise PipelineError for steps that cannot be executed, and what `fetch` raises for labels."""
        self._outputs: Final = tuple(outputs)
        self._classifier: Final = _classifier(self._outputs)
        self._labels: Labels | None = None
        if self._classifier is not None:
            argsort = self._outputs[self._classifier].steps[-1]
            assert isinstance(argsort, Argsort)  # checked by _classifier
            self._labels = Labels(argsort, fetch, class_names)
        self.not_finite = 0
        """Items so far with a NaN or an infinity among their numbers: worth a remark beside the accuracy."""

    @property
    def classifies(self) -> bool:
        """Whether predictions have classes, so that there is an accuracy."""
        return self._classifier is not None

    def apply(self, outputs: Outputs, items: Sequence[Item]) -> list[Prediction]:
        """Return one prediction for each of `items`, which are the rows of `outputs`, in order.

        Raises PipelineError: outputs are not as many, not of the type or not of the shape that is declared,
        or a label is the name of no class.
        """
        self._check(outputs, len(items))
        digests = _digests(outputs, len(items))
        if not items:
            return []
        self.not_finite += _not_finite(outputs, len(items))
        if self._classifier is None or self._labels is None:
            return [
                Prediction(item.index, item.id, item.label, output_digest=digest)
                for item, digest in zip(items, digests, strict=True)
            ]
        declared = self._outputs[self._classifier]
        scores = _vectors(outputs[self._classifier], declared.name)
        self._labels.check(scores.shape[1], declared.name)
        for step in declared.steps:
            if isinstance(step, Softmax):
                scores = softmax(scores)
        order = np.argsort(-scores, axis=1, kind="stable")[:, :TOP]
        best = np.take_along_axis(scores, order, axis=1)
        return [
            self._prediction(item, digest, ranked, values, self._labels)
            for item, digest, ranked, values in zip(items, digests, order.tolist(), best.tolist(), strict=True)
        ]

    @staticmethod
    def _prediction(item: Item, digest: str, ranked: list[int], values: list[float], labels: Labels) -> Prediction:
        pairs = [(c, v) for c, v in zip(ranked, values, strict=True) if v == v]  # a NaN does not equal itself
        classes = tuple(labels.index(c) for c, _ in pairs)
        truth = labels.truth(item.label)
        return Prediction(
            index=item.index,
            id=item.id,
            label=item.label,
            classes=classes,
            scores=tuple(v for _, v in pairs),
            names=tuple(labels.name(c) for c, _ in pairs),
            correct_top1=bool(classes) and classes[0] in truth,
            correct_top5=not truth.isdisjoint(classes),
            output_digest=digest,
        )

    def _check(self, outputs: Outputs, count: int) -> None:
        if len(outputs) != len(self._outputs):
            raise PipelineError(f"expected {len(self._outputs)} outputs as declared, found {len(outputs)}")
        for declared, array in zip(self._outputs, outputs, strict=True):
            if array.ndim == 0 or len(array) != count:
                raise PipelineError(
                    f"output '{declared.name}': expected {count} rows, one an item, found shape {array.shape}"
                )
            if array.dtype.name != declared.element_type:
                raise PipelineError(
                    f"output '{declared.name}': expected {declared.element_type} as declared, found {array.dtype.name}"
                )


def softmax(scores: Scores) -> Scores:
    """Return `exp(x - max) / sum(exp(x - max))` along the last axis, in float64. A row with a NaN is all NaN."""
    with np.errstate(invalid="ignore", over="ignore"):
        powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=-1, keepdims=True), np.float64)


def _classifier(outputs: Sequence[ModelOutput]) -> int | None:
    """Return which output is the classification. Raises PipelineError for steps that cannot be executed."""
    found = None
    for k, output in enumerate(outputs):
        names = [step.step for step in output.steps]
        if output.type == "raw":
            if set(names) - {"raw"}:
                raise PipelineError(
                    f"output '{output.name}' is of type raw: expected no step but raw, found {', '.join(names)}"
                )
            continue
        if names[-1:] != ["argsort"] or names.count("argsort") > 1:
            raise PipelineError(
                f"output '{output.name}' is a classification: expected one argsort, as its last step, "
                f"found {', '.join(names) or 'no step'}"
            )
        if found is not None:
            raise PipelineError(
                f"expected one output of type classification, found '{outputs[found].name}' and '{output.name}'",
                hint="declare those that are not the prediction as type raw",
            )
        found = k
    return found


def _vectors(array: Array, name: str) -> Scores:
    """Return (items, classes) in float64."""
    longer = [n for n in array.shape[1:] if n != 1]
    if len(longer) > 1 or 0 in longer:
        raise PipelineError(f"output '{name}', step argsort: expected one score a class, found shape {array.shape}")
    return array.reshape(len(array), longer[0] if longer else 1).astype(np.float64)


def _digests(outputs: Outputs, count: int) -> list[str]:
    digests = [hashlib.sha256() for _ in range(count)]
    for array in outputs:
        plain = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        for digest, row in zip(digests, plain, strict=True):
            digest.update(row.tobytes())
    return [digest.hexdigest() for digest in digests]


def _not_finite(outputs: Outputs, count: int) -> int:
    found = np.zeros(count, bool)
    for array in outputs:
        if array.dtype.kind == "f":
            found |= ~np.isfinite(array).reshape(count, -1).all(axis=1)
    return int(found.sum())
