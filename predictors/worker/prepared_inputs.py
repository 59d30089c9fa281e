"""The items of one evaluation, ready to be fed to a predictor; kept for the next task that asks for the same."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from predictors.contract import Array
from predictors.data.datasets import Dataset, Item, open_dataset
from predictors.errors import ItemUnreadableError
from predictors.pipeline.input import InputPipeline
from predictors.pipeline.prepared import Prepared
from predictors.worker.sampling import choose_items
from schemas.manifest_yaml import manifest_digest
from schemas.steps import AssetRef
from schemas.tasks import TaskAssigned


@dataclass(frozen=True, slots=True)
class InputsKey:
    """What the prepared inputs depend on: equal keys give equal inputs."""

    dataset: str
    pipeline: tuple[str, ...]
    limit: int | None
    seed: int
    max_pixels: int

    @classmethod
    def of(cls, task: TaskAssigned, max_pixels: int) -> "InputsKey":
        """Return the key of a task's inputs."""
        pipeline = tuple(each.model_dump_json() for each in task.model.inputs)
        request = task.request
        return cls(manifest_digest(task.dataset), pipeline, request.sample_limit, request.seeds.sample, max_pixels)


class PreparedInputs:
    """Rows of every input of the model, for the items asked for that could be read."""

    def __init__(self, dataset: Dataset, asked: tuple[int, ...], prepared: Prepared) -> None:
        self._prepared = prepared
        self.asked = asked
        """Positions in the data set, rising."""
        self.class_names = dataset.class_names
        self.items: tuple[Item, ...] = tuple(dataset.items[position] for position in prepared.positions)
        """The item behind each row."""
        self.unreadable: tuple[tuple[Item, str], ...] = tuple(
            (dataset.items[position], reason) for position, reason in sorted(prepared.unreadable.items())
        )
        """Items without a row, with the reason."""
        self.items_per_s = prepared.items_per_s
        self.spilled = prepared.spilled
        """The rows lie in a file."""

    @property
    def count(self) -> int:
        """Number of rows."""
        return len(self.items)

    def rows(self, start: int, stop: int) -> tuple[Array, ...]:
        """Return rows [start, stop) of every input, without copying."""
        return tuple(array[start:stop] for array in self._prepared.arrays)

    def batches(self, size: int) -> list[tuple[Array, ...]]:
        """Return all rows in batches of `size`, the last one shorter where they do not come out even.

        Fewer rows than `size` are repeated to fill it: a measured batch is as large as was asked for.
        """
        if self.count >= size:
            return [self.rows(start, min(start + size, self.count)) for start in range(0, self.count, size)]
        repeats = [row % self.count for row in range(size)]
        return [tuple(array[repeats] for array in self._prepared.arrays)]

    def close(self) -> None:
        """Free memory and spilled files. Idempotent."""
        self._prepared.close()


def prepare_inputs(
    task: TaskAssigned,
    fetch: Callable[[AssetRef], Path],
    *,
    max_pixels: int,
    scratch: Path,
    progress: Callable[[int, int], None],
) -> PreparedInputs:
    """Read and pre-process the items that `task` asks for, on all cores; blocks.

    Raises DatasetError, PipelineError, and ItemUnreadableError when not one item could be read.
    """
    dataset = open_dataset(task.dataset, fetch)
    request = task.request
    asked = choose_items(len(dataset.items), request.sample_limit, request.seeds.sample)
    pipeline = InputPipeline(task.model.inputs, max_pixels=max_pixels)
    workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    prepared = pipeline.prepare(dataset, asked, workers=workers, spill_dir=scratch, progress=progress)
    if not prepared.positions:
        position, reason = next(iter(sorted(prepared.unreadable.items())))
        prepared.close()
        raise ItemUnreadableError(
            f"none of the {len(asked)} items of {task.dataset.name} {task.dataset.version} could be read",
            hint="check the data set and the model's input steps",
            detail=f"{dataset.items[position].id}: {reason}",
        )
    return PreparedInputs(dataset, asked, prepared)
