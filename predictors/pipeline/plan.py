"""The steps of one input, checked against each other and split into what runs per item and per batch.

An image goes through Pillow as far as the steps allow (no array is made between a decode and a resize), then
through array operations: one item at a time while its size is its own, on whole batches from the step at
which all items have one shape. The split changes speed only: results are the same bit for bit.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from PIL import Image

from predictors.contract import Array
from predictors.errors import ItemUnreadableError, PipelineError
from predictors.pipeline.crop import CropOperation
from predictors.pipeline.decode import decoded_form, opencv_decoder, pillow_decoder, pixels
from predictors.pipeline.form import Form, Operation, Shape, refuse
from predictors.pipeline.resize import ResizeOperation
from predictors.pipeline.tensor import CastOperation, NormalizeOperation, ReshapeOperation, TransposeOperation
from schemas.manifests import ModelInput
from schemas.steps import Cast, Crop, Decode, InputStep, Normalize, Reshape, Resize


@dataclass(frozen=True, slots=True)
class Plan:
    """How an item becomes one row of an input's array."""

    input: ModelInput
    start: Form
    """What the first operation is given: of a tensor input, the data set's own form where it is known."""
    source: Callable[[bytes], Array] | None
    """Encoded image to pixels, as far as Pillow or OpenCV go; None for a tensor input."""
    each: tuple[Operation, ...]
    """Run on one item."""
    meeting: Form
    """What each item is after that, all of one shape."""
    together: tuple[Operation, ...]
    """Run on a batch."""
    forms: tuple[Form, ...]
    """What each operation of `together` is given."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one row."""
        return self.input.shape

    def item(self, data: bytes | Array) -> Array:
        """Return what `data` is before the batch begins.

        Raises ItemUnreadableError: it does not decode, or is of a size that the steps or the network do
        not take. Raises PipelineError: the data set gives images where tensors are declared, or the reverse.
        """
        array = self._array(data)
        for operation in self.each:
            array = operation.apply(array[None])[0]
        if array.shape != self.meeting.shape:
            raise ItemUnreadableError(
                f"input '{self.input.name}': the item is {array.shape}, the network takes {self.meeting.shape}"
            )
        return array

    def room(self, out: Array) -> Array:
        """Return where a batch of items is to be put that `finish` then turns into `out`."""
        view, left = self._views(out)
        return view if left == 0 else np.empty((len(out), *self._meeting_shape()), self.meeting.element_type)

    def finish(self, batch: Array, out: Array) -> None:
        """Execute the rest of the steps on `batch`, which came from `room(out)`, into `out`."""
        view, left = self._views(out)
        if left == 0:
            return
        for operation in self.together[: left - 1]:
            batch = operation.apply(batch)
        self.together[left - 1].apply(batch, view)

    def _views(self, out: Array) -> tuple[Array, int]:
        """Return where the last computing operation writes, and how many operations there are up to it."""
        left = len(self.together)
        while left:
            view = self.together[left - 1].source_view(out, self.forms[left - 1])
            if view is None:
                break
            out, left = view, left - 1
        return out, left

    def _meeting_shape(self) -> tuple[int, ...]:
        return tuple(n for n in self.meeting.shape or () if n is not None)

    def _array(self, data: bytes | Array) -> Array:
        if self.source is not None:
            if not isinstance(data, bytes):
                raise PipelineError(f"input '{self.input.name}' takes images, the data set gives tensors")
            return self.source(data)
        if isinstance(data, bytes):
            raise PipelineError(f"input '{self.input.name}' takes tensors, the data set gives encoded files")
        if data.shape != self.start.shape or data.dtype.name != self.start.element_type:
            raise ItemUnreadableError(f"the item is {data.dtype.name} {data.shape}, others are {self.start}")
        return data


def tensor_form(array: Array) -> Form:
    """Return the form of a data set's own arrays. Raises PipelineError for what are no numbers."""
    if array.dtype.kind not in "biuf":
        raise PipelineError(f"the data set's arrays are of type {array.dtype}, which are no real numbers")
    return Form("", array.shape, array.dtype.name)


def build_plan(declared: ModelInput, max_pixels: int, start: Form | None = None) -> Plan:
    """Return how the steps of `declared` are executed; `start` is the form of a tensor where it is known.

    Raises PipelineError that names the input and the step, what it expects and what it finds.
    """
    if declared.layout and len(declared.layout) != len(declared.shape) + 1:
        raise PipelineError(
            f"input '{declared.name}': layout {declared.layout} has {len(declared.layout)} axes, "
            f"the shape {declared.shape} with the batch {len(declared.shape) + 1}"
        )
    if any(n < 1 for n in declared.shape):
        raise PipelineError(f"input '{declared.name}': shape {declared.shape} has a length below 1")
    builder = _Builder(declared, max_pixels, start or Form())
    for number, step in enumerate(declared.steps, start=1):
        try:
            builder.add(step, first=number == 1)
        except PipelineError as error:
            raise PipelineError(
                f"input '{declared.name}', step {number} ({step.step}): {error.message}", hint=error.hint
            ) from error
    return builder.plan()


class _Builder:
    def __init__(self, declared: ModelInput, max_pixels: int, start: Form) -> None:
        self._declared: Final = declared
        self._max_pixels: Final = max_pixels
        self._start: Final = start
        self._decode: Decode | None = None
        self._on_image: list[Callable[[Image.Image], Image.Image]] = []
        self._operations: list[Operation] = []
        self._forms = [start]
        """What each operation is given, and what the last one gives."""

    def add(self, step: InputStep, *, first: bool) -> None:
        """Take one more step. Raises PipelineError when it does not fit what is there."""
        if isinstance(step, Decode):
            if self._declared.type != "image" or not first:
                raise refuse("decode as the first step of an input of type image", "it elsewhere")
            self._decode = step
            self._forms = [decoded_form(step)]
            return
        if self._declared.type == "image" and self._decode is None:
            raise refuse("decode as the first step of an input of type image", step.step)
        operation = self._operation(step)
        form = operation.form(self._forms[-1])
        still_image = self._decode is not None and self._decode.decoder == "pillow" and not self._operations
        on_image = _on_image(operation)
        if still_image and on_image is not None:
            self._on_image.append(on_image)
            self._forms = [form]
        else:
            self._operations.append(operation)
            self._forms.append(form)

    def plan(self) -> Plan:
        """Return the plan. Raises PipelineError unless the steps end in what the network takes."""
        declared = self._declared
        if declared.type == "image" and self._decode is None:
            raise PipelineError(f"input '{declared.name}' is of type image and has no step 'decode'")
        self._check_end()
        self._infer_backwards()
        known = [form.shape is not None and None not in form.shape for form in self._forms]
        split = next(k for k in range(len(known)) if all(known[k:]))
        for operation, form in zip(self._operations[split:], self._forms[split:], strict=False):
            operation.form(form)  # once more, now that the shape is known
        return Plan(
            input=declared,
            start=self._start,
            source=self._source(),
            each=tuple(self._operations[:split]),
            meeting=self._forms[split],
            together=tuple(self._operations[split:]),
            forms=tuple(self._forms[split:-1]),
        )

    def _check_end(self) -> None:
        declared, end = self._declared, self._forms[-1]
        fits = end.shape is None or (
            len(end.shape) == len(declared.shape)
            and all(have in (None, want) for have, want in zip(end.shape, declared.shape, strict=True))
        )
        if not fits or end.element_type not in (None, declared.element_type):
            steps = declared.steps
            after = f"after the last step ({steps[-1].step})" if steps else "with no step"
            takes = Form("", declared.shape, declared.element_type)
            raise PipelineError(f"input '{declared.name}', {after}: expected {takes} as declared, found {end}")
        self._forms[-1] = Form(end.layout, declared.shape, declared.element_type)

    def _infer_backwards(self) -> None:
        """Tell the steps before the last what shape they are given, as far as the declared one says it."""
        shape: Shape | None = self._forms[-1].shape
        for k in range(len(self._operations) - 1, -1, -1):
            shape = self._operations[k].source_shape(shape) if shape is not None else None
            if shape is None:
                return
            form = self._forms[k]
            self._forms[k] = Form(form.layout, shape, form.element_type)

    def _operation(self, step: InputStep) -> Operation:
        if isinstance(step, Resize):
            return ResizeOperation(step, self._max_pixels)
        if isinstance(step, Crop):
            return CropOperation(step, self._max_pixels)
        if isinstance(step, Normalize):
            return NormalizeOperation(step)
        if isinstance(step, Cast):
            return CastOperation(step)
        if isinstance(step, Reshape):
            return ReshapeOperation(step)
        assert not isinstance(step, Decode)  # taken by `add`
        return TransposeOperation(step)

    def _source(self) -> Callable[[bytes], Array] | None:
        step = self._decode
        if step is None:
            return None
        if step.decoder == "opencv":
            return opencv_decoder(step, self._max_pixels)
        return _pillow_source(step, self._max_pixels, self._on_image)


def _on_image(operation: Operation) -> Callable[[Image.Image], Image.Image] | None:
    """Return how `operation` is executed on a Pillow image, or None where it needs an array."""
    if isinstance(operation, CropOperation):
        return operation.image
    if isinstance(operation, ResizeOperation) and operation.step.resizer == "pillow":
        return operation.image
    return None


def _pillow_source(
    step: Decode, max_pixels: int, on_image: Sequence[Callable[[Image.Image], Image.Image]]
) -> Callable[[bytes], Array]:
    decode = pillow_decoder(step, max_pixels)

    def source(data: bytes) -> Array:
        image = decode(data)
        for operation in on_image:
            image = operation(image)
        return pixels(image, step)

    return source
