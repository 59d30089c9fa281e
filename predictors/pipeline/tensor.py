"""Steps on arrays: normalize, cast, transpose, reshape. Executed on many items at once."""

import math
from typing import Any, Final

import numpy as np

from predictors.contract import Array
from predictors.errors import ItemUnreadableError
from predictors.pipeline.form import Form, Shape, refuse
from schemas.steps import Cast, Normalize, Reshape, Transpose

_LOOP_CHANNELS = 16
"""Up to so many channels a loop over them is faster than a broadcast along a short axis."""


class NormalizeOperation:
    """`(x - mean) / scale`, each operation rounded to float32, whatever the order in memory."""

    def __init__(self, step: Normalize) -> None:
        """Raise PipelineError for numbers that float32 cannot hold and for lists of different lengths."""
        self.step: Final = step
        with np.errstate(over="ignore"):
            self._mean = np.asarray(step.mean, np.float32)
            self._scale = np.asarray(step.scale, np.float32)
        if not (np.isfinite(self._mean).all() and np.isfinite(self._scale).all() and self._scale.all()):
            raise refuse("mean and scale finite in float32, scale not 0", f"mean {step.mean}, scale {step.scale}")
        lengths = {len(step.mean), len(step.scale)} - {1}
        if 0 in lengths or len(lengths) > 1:
            raise refuse("mean and scale of one length, or one number", f"{len(step.mean)} and {len(step.scale)}")
        self._channels = lengths.pop() if lengths else 1

    def form(self, form: Form) -> Form:
        """As Operation."""
        if form.shape is not None and self._channels > 1:
            axis = self.step.channel_axis
            if not -len(form.shape) <= axis < len(form.shape):
                raise refuse(f"an axis {axis}", form)
            if form.shape[axis] not in (None, self._channels):
                raise refuse(f"{self._channels} channels along axis {axis}", form)
        return Form(form.layout, form.shape, "float32")

    def source_shape(self, shape: Shape) -> Shape | None:
        """As Operation."""
        return shape

    def source_view(self, out: Array, form: Form) -> Array | None:
        """As Operation."""
        return None

    def apply(self, batch: Array, out: Array | None = None) -> Array:
        """As Operation."""
        if out is None:
            out = np.empty(batch.shape, np.float32)
        if self._channels == 1:
            _normalize(batch, self._mean, self._scale, out)
            return out
        axis = self.step.channel_axis + (1 if self.step.channel_axis >= 0 else batch.ndim)
        if batch.shape[axis] != self._channels:
            raise ItemUnreadableError(f"normalize: {self._channels} channels do not fit an item of {batch.shape[1:]}")
        mean, scale = (np.broadcast_to(x, self._channels) for x in (self._mean, self._scale))
        if axis == batch.ndim - 1 and axis > 1 and batch.flags.c_contiguous and out.flags.c_contiguous:
            # Channels last on both sides: repeat the numbers along a whole row, so that the inner loop is long.
            width = batch.shape[-2]
            rows = (*batch.shape[:-2], width * self._channels)
            _normalize(batch.reshape(rows), np.tile(mean, width), np.tile(scale, width), out.reshape(rows))
        elif self._channels <= _LOOP_CHANNELS:
            for c in range(self._channels):
                at = (slice(None),) * axis + (c,)
                _normalize(batch[at], mean[c], scale[c], out[at])
        else:
            along = (self._channels,) + (1,) * (batch.ndim - 1 - axis)
            _normalize(batch, mean.reshape(along), scale.reshape(along), out)
        return out


def _normalize(batch: Array, mean: Any, scale: Any, out: Array) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        np.subtract(batch, mean, out=out, dtype=np.float32, casting="unsafe")
        np.divide(out, scale, out=out)


class CastOperation:
    """NumPy's astype. What becomes of a number outside an integer type's range is the platform's choice."""

    def __init__(self, step: Cast) -> None:
        self.step: Final = step
        self._dtype = np.dtype(step.element_type)

    def form(self, form: Form) -> Form:
        """As Operation."""
        return Form(form.layout, form.shape, self.step.element_type)

    def source_shape(self, shape: Shape) -> Shape | None:
        """As Operation."""
        return shape

    def source_view(self, out: Array, form: Form) -> Array | None:
        """As Operation."""
        return None

    def apply(self, batch: Array, out: Array | None = None) -> Array:
        """As Operation."""
        if out is None:
            out = np.empty(batch.shape, self._dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            np.copyto(out, batch, casting="unsafe")
        return out


class TransposeOperation:
    """CHW from HWC, or HWC from CHW. Never copies: a later step, or the last one's `out`, does."""

    def __init__(self, step: Transpose) -> None:
        self.step: Final = step
        self._order = (2, 0, 1) if step.layout == "CHW" else (1, 2, 0)
        self._back = (1, 2, 0) if step.layout == "CHW" else (2, 0, 1)

    def form(self, form: Form) -> Form:
        """As Operation."""
        other = "HWC" if self.step.layout == "CHW" else "CHW"
        if form.layout == self.step.layout:
            raise refuse(f"an item of layout {other}", form)
        if form.shape is None:
            return Form(self.step.layout, None, form.element_type)
        if len(form.shape) != 3:
            raise refuse(f"three axes, {other}", form)
        return Form(self.step.layout, tuple(form.shape[i] for i in self._order), form.element_type)

    def source_shape(self, shape: Shape) -> Shape | None:
        """As Operation."""
        return tuple(shape[i] for i in self._back)

    def source_view(self, out: Array, form: Form) -> Array | None:
        """As Operation."""
        return out.transpose(0, *(1 + i for i in self._back))

    def apply(self, batch: Array, out: Array | None = None) -> Array:
        """As Operation; without `out` the result is a view of `batch`."""
        view = batch.transpose(0, *(1 + i for i in self._order))
        if out is None:
            return view
        out[...] = view
        return out


class ReshapeOperation:
    """Another shape of as many elements, in C order."""

    def __init__(self, step: Reshape) -> None:
        """Raise PipelineError for lengths below 1: none is guessed."""
        if any(n < 1 for n in step.shape):
            raise refuse("lengths of at least 1", step.shape)
        self.step: Final = step

    def form(self, form: Form) -> Form:
        """As Operation."""
        if form.shape is not None and None not in form.shape:
            have = math.prod(n for n in form.shape if n is not None)
            if have != math.prod(self.step.shape):
                raise refuse(f"{math.prod(self.step.shape)} elements for shape {self.step.shape}", f"{have}: {form}")
        return Form("", self.step.shape, form.element_type)

    def source_shape(self, shape: Shape) -> Shape | None:
        """As Operation."""
        return None

    def source_view(self, out: Array, form: Form) -> Array | None:
        """As Operation."""
        if form.shape is None or None in form.shape:
            return None
        view = out.reshape((len(out), *(n for n in form.shape if n is not None)))
        return view if np.may_share_memory(view, out) else None

    def apply(self, batch: Array, out: Array | None = None) -> Array:
        """As Operation."""
        if math.prod(batch.shape[1:]) != math.prod(self.step.shape):
            raise ItemUnreadableError(f"reshape: an item of {batch.shape[1:]} does not become {self.step.shape}")
        shaped = batch.reshape((len(batch), *self.step.shape))
        if out is None:
            return shaped
        out[...] = shaped
        return out
