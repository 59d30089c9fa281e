"""What a data set is to the rest of the platform."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from predictors.contract import Array


@dataclass(frozen=True, slots=True)
class Item:
    """One item. `id` names it within its data set; `label` is as the data set states it: a name, or a class index."""

    index: int
    id: str
    label: str


class Dataset(Protocol):
    """Items in a fixed order. Holds no open file; safe for use from many threads."""

    @property
    def items(self) -> Sequence[Item]:
        """Every item, `items[i].index == i`, ids distinct."""
        ...

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes by index; empty where the manifest names none."""
        ...

    def read(self, index: int) -> bytes | Array:
        """Return an item: the bytes of an image file, or a read-only tensor. Blocks on the disk.

        Raises ItemUnreadableError, and IndexError for an index that is none.
        """
        ...
