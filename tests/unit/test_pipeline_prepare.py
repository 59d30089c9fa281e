"""Preparing inputs: order, unreadable items, several inputs, room, cancellation."""

import gc
import io
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from predictors.contract import Array
from predictors.data.datasets import Item
from predictors.errors import CancelledError, DatasetError, DiskFullError, ItemUnreadableError, PipelineError
from predictors.pipeline import InputPipeline, Prepared
from predictors.pipeline.prepared import allocate
from schemas.manifests import ModelInput


class InMemory:
    """A data set of what it is given; a string stands for an item that cannot be read, and says why."""

    class_names: tuple[str, ...] = ()

    def __init__(self, contents: Sequence[bytes | Array | str] | Mapping[int, bytes | Array | str]) -> None:
        self.contents = contents
        self.items: Sequence[Item] = [Item(k, str(k), "") for k in range(len(contents))]

    def read(self, index: int) -> bytes | Array:
        content = self.contents[index]
        if isinstance(content, str):
            raise ItemUnreadableError(content)
        return content


def png(size: tuple[int, int], seed: int) -> bytes:
    array = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, "PNG")
    return buffer.getvalue()


def declared(type: str, shape: tuple[int, ...], steps: list[Any], element_type: str = "float32") -> ModelInput:
    return ModelInput.model_validate(
        {"type": type, "name": "x", "shape": shape, "steps": steps, "element_type": element_type}
    )


SMALL = declared(
    "image",
    (3, 6, 6),
    [
        "decode",
        {"resize": {"dimensions": [8, 8], "keep_aspect_ratio": True}},
        {"crop": {"dimensions": [6, 6]}},
        {"normalize": {"mean": [1, 2, 3], "scale": [4, 5, 6]}},
        {"transpose": {"layout": "CHW"}},
    ],
)
NUMBERS = declared("tensor", (4,), [{"cast": {"element_type": "float32"}}])


def prepare(inputs: ModelInput | list[ModelInput], contents: Any, directory: Path, **more: Any) -> Prepared:
    options = {"workers": 2, "spill_dir": directory, "indices": range(len(contents)), **more}
    pipeline = InputPipeline(
        inputs if isinstance(inputs, list) else [inputs],
        max_pixels=options.pop("max_pixels", 10_000),
        spill_bytes=options.pop("spill_bytes", 2**20),
    )
    return pipeline.prepare(InMemory(contents), options.pop("indices"), **options)


def test_rows_are_in_the_order_asked_for(tmp_path: Path) -> None:
    contents = [np.full(4, k) for k in range(3000)]
    order = list(np.random.default_rng(1).permutation(3000))
    prepared = prepare(NUMBERS, contents, tmp_path, indices=order)
    assert prepared.arrays[0].shape == (3000, 4)
    assert prepared.arrays[0].dtype == np.float32
    assert prepared.arrays[0].flags.c_contiguous
    assert prepared.arrays[0][:, 0].tolist() == order
    assert list(prepared.positions) == order
    assert prepared.items_per_s > 0
    assert not prepared.spilled


@given(st.sets(st.integers(0, 99)), st.integers(1, 3), st.booleans())
@settings(max_examples=25, deadline=None)
def test_an_unreadable_item_leaves_no_row_and_is_told(
    tmp_path_factory: pytest.TempPathFactory, bad: set[int], workers: int, spill: bool
) -> None:
    """Whatever items cannot be read, all others have their row, in order, and those their reason."""
    contents = [f"torn {k}" if k in bad else np.full(4, k, np.int16) for k in range(100)]
    directory = tmp_path_factory.getbasetemp()
    prepared = prepare(NUMBERS, contents, directory, workers=workers, spill_bytes=0 if spill else 2**20)
    kept = [k for k in range(100) if k not in bad]
    assert list(prepared.positions) == kept
    assert prepared.arrays[0][:, 3].tolist() == kept
    assert prepared.unreadable == {k: f"torn {k}" for k in sorted(bad)}
    assert prepared.spilled == spill
    assert not list(directory.glob("tmp*"))


def test_images_of_any_size_become_rows_and_bad_ones_reasons(tmp_path: Path) -> None:
    contents = [png((20, 30), 0), b"", png((9, 9), 1), b"junk", png((101, 100), 2), png((7, 99), 3)]
    prepared = prepare(SMALL, contents, tmp_path)
    assert prepared.positions == (0, 2, 5)
    assert prepared.arrays[0].shape == (3, 3, 6, 6)
    assert sorted(prepared.unreadable) == [1, 3, 4]
    assert "10000 pixels" in prepared.unreadable[4]
    alone = prepare(SMALL, contents[5:], tmp_path)
    assert alone.arrays[0][0].tobytes() == prepared.arrays[0][2].tobytes()


def test_an_image_too_small_for_the_crop_is_unreadable(tmp_path: Path) -> None:
    cut = declared("image", (6, 6, 3), ["decode", {"crop": {"dimensions": [6, 6]}}], "uint8")
    prepared = prepare(cut, [png((6, 7), 0), png((5, 7), 1)], tmp_path)
    assert prepared.unreadable == {1: "crop: 6x6 does not fit into an image of 5x7"}


def test_an_image_that_is_not_of_the_networks_size_is_unreadable(tmp_path: Path) -> None:
    """With no step that fixes the size, the files must have it."""
    bare = declared("image", (3, 5, 4), ["decode", {"normalize": {}}, {"transpose": {"layout": "CHW"}}])
    prepared = prepare(bare, [png((5, 4), 0), png((4, 5), 1)], tmp_path)
    assert prepared.positions == (0,)
    assert "the item is (4, 5, 3), the network takes (5, 4, 3)" in prepared.unreadable[1]


def test_a_stretched_image_does_not_outgrow_the_bound(tmp_path: Path) -> None:
    """1x5000 scaled to a shorter side of 8 would have 320,000 pixels."""
    prepared = prepare(SMALL, [png((1, 5000), 0), png((9, 9), 1)], tmp_path)
    assert prepared.positions == (1,)
    assert "8x40000, more than 10000 pixels" in prepared.unreadable[0]


def test_when_nothing_can_be_read_there_are_no_rows(tmp_path: Path) -> None:
    for one in (SMALL, NUMBERS):
        prepared = prepare(one, ["gone", "gone too"], tmp_path)
        assert prepared.arrays[0].shape == (0, *one.shape)
        assert prepared.unreadable == {0: "gone", 1: "gone too"}
    assert prepare(SMALL, [], tmp_path).positions == ()


def test_each_input_has_its_own_steps_of_the_same_item(tmp_path: Path) -> None:
    gray = declared(
        "image", (4, 4, 1), [{"decode": {"color_mode": "GRAY"}}, {"resize": {"dimensions": [4, 4]}}], "uint8"
    )
    contents = [png((9, 9), 0), b"junk", png((12, 9), 1)]
    both = prepare([SMALL, gray], contents, tmp_path)
    assert [array.shape for array in both.arrays] == [(2, 3, 6, 6), (2, 4, 4, 1)]
    assert np.array_equal(both.arrays[1], prepare(gray, contents, tmp_path).arrays[0])


def test_an_image_data_set_and_a_tensor_model_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="takes tensors, the data set gives encoded files"):
        prepare(NUMBERS, [png((3, 3), 0)], tmp_path)
    with pytest.raises(PipelineError, match="takes images, the data set gives tensors"):
        prepare(SMALL, [np.zeros(4)], tmp_path)


def test_tensors_that_do_not_fit_the_steps_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"\(cast\): expected float32 \(4\) as declared, found float32 \(5\)"):
        prepare(NUMBERS, [np.zeros(5)], tmp_path)
    with pytest.raises(PipelineError, match="no real numbers"):
        prepare(NUMBERS, [np.array(["a", "b", "c", "d"])], tmp_path)
    nothing_implied = declared("tensor", (4,), [])
    with pytest.raises(PipelineError, match="with no step: expected float32"):
        prepare(nothing_implied, [np.zeros(4, np.float64)], tmp_path)


def test_a_tensor_unlike_the_others_is_unreadable(tmp_path: Path) -> None:
    prepared = prepare(NUMBERS, [np.zeros(4), np.zeros(5), np.zeros(4, np.int8)], tmp_path)
    assert prepared.positions == (0,)
    assert sorted(prepared.unreadable) == [1, 2]


def test_byte_order_of_the_data_set_makes_no_difference(tmp_path: Path) -> None:
    values = np.array([1.5, -2.0, 3.0, 4.0])
    prepared = prepare(NUMBERS, [values.astype(">f4"), values.astype("<f4")], tmp_path)
    assert prepared.arrays[0].tolist() == [values.tolist()] * 2


def test_what_is_large_lies_in_a_file_that_goes_with_it(tmp_path: Path) -> None:
    """The same rows as in memory, and the disk is given back when the arrays are gone."""
    contents = [png((20, 30), k) for k in range(40)]
    spilled = prepare(SMALL, contents, tmp_path / "spill", spill_bytes=1000)
    assert spilled.spilled
    assert np.array_equal(spilled.arrays[0], prepare(SMALL, contents, tmp_path).arrays[0])
    assert _open_files(tmp_path / "spill") == 1
    assert list((tmp_path / "spill").iterdir()) == []
    spilled.close()
    spilled.close()
    gc.collect()
    assert spilled.arrays == ()
    assert _open_files(tmp_path / "spill") == 0


def test_a_failure_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(PipelineError):
        prepare(SMALL, [png((9, 9), 0), np.zeros(3)], tmp_path / "spill", spill_bytes=0)
    gc.collect()
    assert _open_files(tmp_path / "spill") == 0


def _open_files(directory: Path) -> int:
    """How many files of `directory` this process has mapped, named or not."""
    return sum(str(directory) in line for line in Path("/proc/self/maps").read_text().splitlines())


def test_more_than_the_disk_holds_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    huge = declared("tensor", (1_000_000,), [])
    contents = {0: np.zeros(1_000_000, np.float32)}
    with pytest.raises(DiskFullError, match=r"need [\d,]+ bytes in .* are free"):
        prepare(huge, contents, tmp_path, indices=range(10**9))
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_refuses_the_blocks_is_an_error_and_not_a_crash(tmp_path: Path) -> None:
    """The kernel says no when the file is made: a quota, here a limit on file size."""
    program = (
        "import sys, pathlib, resource, numpy\n"
        "from predictors.pipeline.prepared import allocate\n"
        "from predictors.errors import DiskFullError\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "try:\n"
        "    allocate(10, [((1000,), numpy.dtype('float32'))], pathlib.Path(sys.argv[1]), 0)\n"
        "except DiskFullError as error:\n"
        "    print(error.code, error.message)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("disk_full prepared inputs need 40,960 bytes")
    assert list(tmp_path.iterdir()) == []


def test_a_files_blocks_are_taken_before_anything_is_written(tmp_path: Path) -> None:
    """A sparse file would end the process with SIGBUS at the write for which the disk has no block left."""
    arrays, mapped = allocate(100, [((1000,), np.dtype("float32"))], tmp_path, 0)
    taken = [os.stat(link).st_blocks * 512 for link in Path("/proc/self/fd").iterdir() if _leads_into(link, tmp_path)]
    assert taken
    assert max(taken) >= 400_000
    assert mapped is not None
    assert arrays[0].shape == (100, 1000)


def _leads_into(link: Path, directory: Path) -> bool:
    try:
        return os.readlink(link).startswith(str(directory))
    except FileNotFoundError:  # the listing's own descriptor, or another thread's
        return False


def test_progress_is_told_in_the_callers_thread_and_ends_at_the_total(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    threads = set()

    def progress(done: int, total: int) -> None:
        told.append((done, total))
        threads.add(threading.get_ident())

    prepare(NUMBERS, [np.zeros(4)] * 2000, tmp_path, progress=progress)
    assert told == sorted(told)
    assert told[-1] == (2000, 2000)
    assert len(told) > 2
    assert threads == {threading.get_ident()}


def test_cancelling_ends_it_long_before_the_end(tmp_path: Path) -> None:
    """Nothing is read any more once the caller has been answered, and no thread is left."""
    reads = []

    class Counting(InMemory):
        def read(self, index: int) -> bytes | Array:
            reads.append(index)
            return super().read(index)

    dataset = Counting([np.zeros(4)] * 100_000)
    pipeline = InputPipeline([NUMBERS], max_pixels=1)
    with pytest.raises(CancelledError, match=r"of 100000 inputs"):
        pipeline.prepare(dataset, range(100_000), workers=2, spill_dir=tmp_path, cancelled=lambda: len(reads) > 1000)
    assert len(reads) < 10_000
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("prepare")]


def test_cancelled_from_the_start_prepares_nothing(tmp_path: Path) -> None:
    with pytest.raises(CancelledError, match="cancelled after 0 of 2"):
        prepare(SMALL, [png((9, 9), 0)] * 2, tmp_path, cancelled=lambda: True)


def test_an_error_that_is_not_an_items_own_is_raised(tmp_path: Path) -> None:
    """A data set that breaks is not a data set of unreadable items."""

    class Broken(InMemory):
        def read(self, index: int) -> bytes | Array:
            if index == 7:
                raise DatasetError("the archive has gone")
            return super().read(index)

    with pytest.raises(DatasetError, match="the archive has gone"):
        InputPipeline([NUMBERS], max_pixels=1).prepare(
            Broken([np.zeros(4)] * 50), range(50), workers=2, spill_dir=tmp_path
        )
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("prepare")]
