"""Preparing inputs ahead of a measurement, so that the data path is never part of it."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Final

import numpy as np

from predictors.contract import Array
from predictors.data.datasets import Dataset
from predictors.errors import CancelledError, ItemUnreadableError, PipelineError
from predictors.pipeline.plan import Plan, build_plan, tensor_form
from predictors.pipeline.prepared import SPILL_BYTES, Prepared, allocate
from schemas.manifests import ModelInput

_CHUNK_BYTES: Final = 4 * 2**20
"""Of prepared input in one chunk: few enough to stay in cache between its steps."""
_CHUNK_ITEMS: Final = 512
_POLL_S: Final = 0.1
"""How often a caller that wants to cancel is asked while a chunk takes long."""


class InputPipeline:
    """The declared steps of a model's inputs, executed as written."""

    def __init__(self, inputs: Sequence[ModelInput], *, max_pixels: int, spill_bytes: int = SPILL_BYTES) -> None:
        """Raise PipelineError for a step that cannot be executed, or that does not fit the one before it.

        An image of more than `max_pixels` is unreadable; prepared inputs of more than `spill_bytes` lie in
        a file.
        """
        if not inputs:
            raise PipelineError("the model declares no input")
        self._inputs: Final = tuple(inputs)
        self._max_pixels: Final = max_pixels
        self._spill_bytes: Final = spill_bytes
        self._plans: Final = tuple(build_plan(declared, max_pixels) for declared in inputs)

    def prepare(
        self,
        dataset: Dataset,
        indices: Sequence[int],
        *,
        workers: int,
        spill_dir: Path,
        progress: Callable[[int, int], None] | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> Prepared:
        """Return the items of `dataset` at `indices`, in that order, ready for the predictor.

        Blocks. `workers` threads read, decode and compute; `progress(done, total)` and `cancelled` are
        called from the calling thread alone. An item that cannot be read has no row and is told in
        `unreadable`, all of them if need be. Raises PipelineError where a tensor data set does not fit the
        steps, DiskFullError, CancelledError within about one chunk of items.
        """
        started = time.perf_counter()
        plans = self._plans_for(dataset, indices)
        rows = [(plan.shape, np.dtype(plan.input.element_type)) for plan in plans]
        arrays, mapped = allocate(len(indices), rows, spill_dir, self._spill_bytes)
        run = _Run(dataset, indices, plans, arrays)
        bad = run.all(max(1, workers), progress, cancelled)
        readable = _close_gaps(arrays, bad)
        if mapped is not None:
            mapped.flush()  # now, or the kernel would write it back during the measurement
        elapsed = time.perf_counter() - started
        return Prepared(
            arrays=tuple(array[:readable] for array in arrays),
            positions=tuple(index for row, index in enumerate(indices) if row not in bad),
            unreadable={indices[row]: reason for row, reason in sorted(bad.items())},
            items_per_s=len(indices) / elapsed,
            spilled=mapped is not None,
        )

    def _plans_for(self, dataset: Dataset, indices: Sequence[int]) -> tuple[Plan, ...]:
        """Plan tensor inputs again, for the form that the data set's tensors have: that of its first item."""
        if all(declared.type == "image" for declared in self._inputs):
            return self._plans
        for index in indices:
            try:
                first = dataset.read(index)
            except ItemUnreadableError:
                continue  # told when its turn comes
            if isinstance(first, bytes):
                break  # of the wrong kind for this input, which the plan says better
            form = tensor_form(first)
            return tuple(
                build_plan(declared, self._max_pixels, form) if declared.type == "tensor" else plan
                for declared, plan in zip(self._inputs, self._plans, strict=True)
            )
        return self._plans


class _Run:
    """One call of `prepare`: chunks of rows, in flight in a pool of threads."""

    def __init__(
        self, dataset: Dataset, indices: Sequence[int], plans: tuple[Plan, ...], arrays: tuple[Array, ...]
    ) -> None:
        self._dataset = dataset
        self._indices = indices
        self._plans = plans
        self._arrays = arrays
        self._stop = threading.Event()

    def all(
        self, workers: int, progress: Callable[[int, int], None] | None, cancelled: Callable[[], bool] | None
    ) -> dict[int, str]:
        """Fill every row; return row to reason of those that could not be."""
        bad: dict[int, str] = {}
        total, done = len(self._indices), 0
        size = self._chunk_size(workers)
        waiting = deque(range(0, total, size))
        running: dict[Future[dict[int, str]], int] = {}
        pool = ThreadPoolExecutor(workers, thread_name_prefix="prepare")
        try:
            while waiting or running:
                if cancelled is not None and cancelled():
                    raise CancelledError(f"cancelled after {done} of {total} inputs were prepared")
                while waiting and len(running) < 2 * workers:
                    begin = waiting.popleft()
                    end = min(begin + size, total)
                    running[pool.submit(self._chunk, begin, end)] = end - begin
                finished, _ = wait(running, timeout=_POLL_S, return_when=FIRST_COMPLETED)
                for future in finished:
                    bad.update(future.result())
                    done += running.pop(future)
                if finished and progress is not None:
                    progress(done, total)
        finally:
            self._stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
        return bad

    def _chunk_size(self, workers: int) -> int:
        row = sum(array.nbytes for array in self._arrays) // max(1, len(self._indices))
        fair = -(-len(self._indices) // (4 * workers))  # so that no thread is left with the rest alone
        return max(1, min(_CHUNK_BYTES // max(1, row), _CHUNK_ITEMS, fair))

    def _chunk(self, begin: int, end: int) -> dict[int, str]:
        outs = [array[begin:end] for array in self._arrays]
        rooms = [plan.room(out) for plan, out in zip(self._plans, outs, strict=True)]
        bad: dict[int, str] = {}
        for k, row in enumerate(range(begin, end)):
            if self._stop.is_set():
                return bad
            try:
                data = self._dataset.read(self._indices[row])
                for plan, room in zip(self._plans, rooms, strict=True):
                    room[k] = plan.item(data)
            except ItemUnreadableError as error:
                bad[row] = error.message
                for room in rooms:
                    room[k] = 0  # goes through the rest of the steps, then out
        for plan, room, out in zip(self._plans, rooms, outs, strict=True):
            plan.finish(room, out)
        return bad


def _close_gaps(arrays: Sequence[Array], bad: dict[int, str]) -> int:
    """Move the readable rows together, in place and in order; return how many there are."""
    total = len(arrays[0])
    kept = min(bad, default=total)
    for row in range(kept, total):
        if row in bad:
            continue
        for array in arrays:
            array[kept] = array[row]
        kept += 1
    return kept
