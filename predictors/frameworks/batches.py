"""Checks of what goes into a predictor and comes out of it. Cheap: they are inside the measured latency."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from predictors.contract import Array, Batch, TensorSpec
from predictors.errors import PredictError


class BatchCheck:
    """Says whether arrays are what the model's inputs or outputs are declared to be; under a microsecond for one.

    `what` is the word for one of them in errors: `input` or `output`. Shapes are checked where they are known.
    """

    def __init__(self, specs: Sequence[TensorSpec], what: str) -> None:
        self._what: Final = what
        self._wanted: Final = tuple((np.dtype(spec.element_type), spec.shape, spec.name) for spec in specs)
        self._count: Final = len(self._wanted)

    def __call__(self, arrays: Batch) -> None:
        """Raise PredictError unless there are as many arrays as declared, each of its type and shape."""
        if len(arrays) != self._count:
            names = ", ".join(name for _, _, name in self._wanted)
            raise PredictError(f"{len(arrays)} {self._what}s where the model has {self._count}: {names}")
        for array, (dtype, shape, name) in zip(arrays, self._wanted, strict=True):
            if array.dtype != dtype or (shape and array.shape[1:] != shape):
                raise self._wrong(array, dtype, shape, name)

    def _wrong(self, array: Array, dtype: np.dtype[np.generic], shape: tuple[int, ...], name: str) -> PredictError:
        wanted = f"{dtype} [batch, {', '.join(map(str, shape))}]" if shape else str(dtype)
        found = f"{array.dtype} [{', '.join(map(str, array.shape))}]"
        return PredictError(f"{self._what} '{name}' is {found}, the manifest declares {wanted}")
