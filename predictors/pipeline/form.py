"""What one item looks like between two steps, as far as it is known before any item has been read."""

from dataclasses import dataclass
from typing import Literal, Protocol

from predictors.contract import Array
from predictors.errors import PipelineError

Shape = tuple[int | None, ...]
"""Lengths of an item's axes; None for one that differs from item to item, as the sides of photographs do."""


@dataclass(frozen=True, slots=True)
class Form:
    """Shape, element type and order of the axes of one item; None or empty: not known yet."""

    layout: Literal["HWC", "CHW", ""] = ""
    shape: Shape | None = None
    element_type: str | None = None

    def __str__(self) -> str:
        if self.shape is None:
            shape = "(any shape)"
        else:
            shape = "(" + ", ".join("any" if n is None else str(n) for n in self.shape) + ")"
        return f"{self.element_type or 'any type'} {shape}" + (f" {self.layout}" if self.layout else "")


class Operation(Protocol):
    """One step, executed on a batch of items: axis 0 counts items.

    Executing it on a batch gives, bit for bit, what executing it on each item alone gives.
    """

    def form(self, form: Form) -> Form:
        """Return what an item of `form` becomes. Raises PipelineError: it cannot be executed on that."""
        ...

    def source_shape(self, shape: Shape) -> Shape | None:
        """Return the shape of the item that becomes one of `shape`, or None where it cannot be told."""
        ...

    def source_view(self, out: Array, form: Form) -> Array | None:
        """Return a view of `out` such that writing a batch of `form` there executes this step into `out`.

        None where the step computes, so that no view can do its work.
        """
        ...

    def apply(self, batch: Array, out: Array | None = None) -> Array:
        """Execute on a batch, into `out` where given (it does not overlap `batch`); return the result.

        Raises ItemUnreadableError where an item, of a size not known beforehand, cannot take the step.
        """
        ...


def refuse(expected: str, found: object) -> PipelineError:
    """Return the error of a step that is given what it cannot be executed on."""
    return PipelineError(f"expected {expected}, found {found}")


def height_width(form: Form, what: str) -> tuple[int | None, int | None]:
    """Return the first two lengths of an image. Raises PipelineError: not HWC (or HW), and known not to be."""
    if form.layout == "CHW":
        raise refuse(f"{what} before the axes become CHW", form)
    if form.shape is None:
        return None, None
    if len(form.shape) not in (2, 3):
        raise refuse(f"{what} of an image of axes HWC or HW", form)
    return form.shape[0], form.shape[1]


def check_dimensions(dimensions: tuple[int, int], max_pixels: int) -> None:
    """Raise PipelineError unless height and width are positive and within the bound on pixels."""
    height, width = dimensions
    if height < 1 or width < 1:
        raise refuse("dimensions of at least 1 pixel", dimensions)
    if height * width > max_pixels:
        raise refuse(f"at most {max_pixels} pixels", f"{height}x{width}")


def resized(form: Form, height: int | None, width: int | None) -> Form:
    """Return `form` with other sides."""
    shape = None if form.shape is None else (height, width, *form.shape[2:])
    return Form(form.layout, shape, form.element_type)
