"""Data sets: what the manifest says is checked against what the files are."""

import hashlib
import io
import os
import zipfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from predictors.data.datasets import Dataset, open_dataset
from predictors.errors import DatasetError, ItemUnreadableError
from schemas.manifests import DatasetManifest
from schemas.steps import AssetRef

IMAGES = {"images/a.jpg": b"A", "images/b.jpg": b"B"}


def opened(sources: Mapping[str, Path], **changes: Any) -> Dataset:
    """Open a data set whose assets are the given paths."""
    manifest: dict[str, Any] = {
        "name": "tiny",
        "version": "1.0.0",
        "license": "CC0-1.0",
        "modality": "image-classification",
        "sources": [_ref(name).model_dump() for name in sources if name != "labels"],
        "format": {"type": "image_csv"},
        "size": 2,
    }
    return open_dataset(
        DatasetManifest.model_validate(manifest | changes), lambda ref: sources[ref.url.removeprefix("repo:")]
    )


def _ref(name: str) -> AssetRef:
    return AssetRef(url=f"repo:{name}", sha256=hashlib.sha256(name.encode()).hexdigest())


def folder(path: Path, csv: str | bytes, files: Mapping[str, bytes] = IMAGES) -> Path:
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    path.mkdir(exist_ok=True)
    (path / "labels.csv").write_bytes(csv if isinstance(csv, bytes) else csv.encode())
    return path


LIST = "file,label\nimages/a.jpg,0\nimages/b.jpg,1\n"


def test_images_come_in_the_order_of_the_list(tmp_path: Path) -> None:
    """Items have the list's order, their file as id, the label as it is written there, and their bytes."""
    dataset = opened({"d": folder(tmp_path / "d", LIST)}, labels=["cat", "dog"])
    assert [(item.index, item.id, item.label) for item in dataset.items] == [
        (0, "images/a.jpg", "0"),
        (1, "images/b.jpg", "1"),
    ]
    assert [dataset.read(index) for index in (0, 1)] == [b"A", b"B"]
    assert dataset.class_names == ("cat", "dog")


def test_columns_are_the_manifests(tmp_path: Path) -> None:
    """The list may have other columns in other places, quotes, a byte-order mark and Windows line ends."""
    csv = b'\xef\xbb\xbfsize,class,path\r\n1,"cat, small",images/a.jpg\r\n\r\n1,dog,images/b.jpg\r\n'
    form = {"type": "image_csv", "file_column": "path", "label_column": "class"}
    dataset = opened({"d": folder(tmp_path / "d", csv)}, format=form)
    assert [(item.id, item.label) for item in dataset.items] == [
        ("images/a.jpg", "cat, small"),
        ("images/b.jpg", "dog"),
    ]


def test_several_sources_follow_each_other(tmp_path: Path) -> None:
    """The second source's items come after the first's, and are read from their own directory."""
    first = folder(tmp_path / "1", LIST)
    second = folder(tmp_path / "2", "file,label\nc.jpg,2\n", {"c.jpg": b"C"})
    dataset = opened({"one": first, "two": second}, size=3)
    assert [dataset.read(index) for index in range(3)] == [b"A", b"B", b"C"]
    assert [item.index for item in dataset.items] == [0, 1, 2]


def test_an_id_of_two_sources_is_an_error(tmp_path: Path) -> None:
    """Results are paired by id, so an id that two sources share is told, with both places."""
    sources = {"one": folder(tmp_path / "1", LIST), "two": folder(tmp_path / "2", LIST)}
    with pytest.raises(DatasetError, match=r"labels\.csv:2: 'images/a\.jpg' is listed already, by .*labels\.csv:2"):
        opened(sources, size=4)


@pytest.mark.parametrize(
    ("csv", "why"),
    [
        ("file,klass\nimages/a.jpg,0\n", r"labels\.csv:1: no column 'label'; the columns are file, klass"),
        ("file,label,label\nimages/a.jpg,0,1\n", r"labels\.csv:1: more than one column 'label'"),
        ("", r"labels\.csv:1: no column 'file'; the columns are none"),
        ("file,label\nimages/a.jpg,0\nimages/a.jpg,1\n", r"labels\.csv:3: 'images/a\.jpg' is listed already"),
        ("file,label\nimages/a.jpg,0\nimages/b.jpg,\n", r"labels\.csv:3: 'images/b\.jpg' has no label"),
        ("file,label\nimages/a.jpg\n", r"labels\.csv:2: 1 fields, where the first line has 2"),
        ("file,label\nimages/a.jpg,cat, small\n", r"labels\.csv:2: 3 fields, where the first line has 2"),
        ("file,label\n,0\n", r"labels\.csv:2: the file name '' is empty"),
        ("file,label\n../../etc/passwd,0\n", r"labels\.csv:2: the file name .* leads out of its directory"),
        ("file,label\n/etc/passwd,0\n", r"labels\.csv:2: the file name '/etc/passwd' is absolute"),
        ('file,label\nimages/a.jpg,"0\n', r"labels\.csv:\d: not CSV"),
        (b"file,label\nimages/\xff.jpg,0\n", r"labels\.csv:\d: not CSV in UTF-8"),
        ("file,label\nimages/a.jpg,0\n", "expected 2 items .*found 1"),
        (LIST.replace(",1", ",7"), "images/b.jpg has label 7, and there are 2 classes"),
    ],
)
def test_a_list_that_is_wrong_is_told_with_its_line(tmp_path: Path, csv: str | bytes, why: str) -> None:
    """Each fault of the list is an error that names the data set, the line and what is wrong there."""
    with pytest.raises(DatasetError, match=why) as caught:
        opened({"d": folder(tmp_path / "d", csv)}, labels=["cat", "dog"])
    assert "data set tiny 1.0.0" in caught.value.message


def test_a_missing_list_and_a_packed_source_are_told(tmp_path: Path) -> None:
    """A directory without its list, and a file where a directory should be, are errors that say what to do."""
    (tmp_path / "empty").mkdir()
    with pytest.raises(DatasetError, match=r"labels\.csv: No such file"):
        opened({"d": tmp_path / "empty"})
    (tmp_path / "packed.tar").write_bytes(b"x")
    with pytest.raises(DatasetError, match="is a file") as caught:
        opened({"d": tmp_path / "packed.tar"})
    assert "unpack: true" in caught.value.hint
    with pytest.raises(DatasetError, match="leads out"):
        opened({"d": tmp_path / "empty"}, format={"type": "image_csv", "labels_file": "../labels.csv"})


def test_an_item_that_cannot_be_read_is_not_the_end(tmp_path: Path) -> None:
    """A listed file that is missing, no file, or elsewhere, fails when it is read; the others are read."""
    names = ["missing.jpg", "dir", "pipe", "out", "images/a.jpg"]
    directory = folder(tmp_path / "d", "file,label\n" + "".join(f"{name},0\n" for name in names))
    (directory / "dir").mkdir()
    os.mkfifo(directory / "pipe")
    (tmp_path / "secret").write_text("secret")
    (directory / "out").symlink_to(tmp_path / "secret")
    dataset = opened({"d": directory}, size=5)
    for index, why in enumerate(["No such file", "not a file|directory", "not a file", "outside its data set"]):
        with pytest.raises(ItemUnreadableError, match=why) as caught:
            dataset.read(index)
        assert names[index] in caught.value.message
    assert dataset.read(4) == b"A"


def test_class_names_come_from_a_file(tmp_path: Path) -> None:
    """A labels asset has one name a line; names may repeat, an empty line in the middle is an error."""
    source = folder(tmp_path / "d", LIST)
    labels = tmp_path / "labels"
    labels.write_text("crane\ncrane, bird\n\n")
    ref = _ref("labels").model_dump()
    assert opened({"d": source, "labels": labels}, labels=ref).class_names == ("crane", "crane, bird")
    labels.write_text("crane\n\nbird\n")
    with pytest.raises(DatasetError, match="repo:labels:2: no name"):
        opened({"d": source, "labels": labels}, labels=ref)


def npz(path: Path, **arrays: Any) -> Path:
    np.savez_compressed(path, **arrays)
    return path


NPZ = {"type": "npz"}


def test_an_index_of_no_class_is_told_though_a_class_is_called_so(tmp_path: Path) -> None:
    """`2` among classes called 1 and 2 is an index, of no class: every prediction for it would be wrong."""
    directory = folder(tmp_path / "d", LIST.replace(",0", ",2"))
    with pytest.raises(DatasetError, match=r"label 2, and there are 2 classes"):
        opened({"d": directory}, labels=["1", "2"])


def test_tensors_come_out_of_an_npz(tmp_path: Path) -> None:
    """Items are read-only slices of the items array with its own type; labels are text; ids are positions."""
    x = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    dataset = opened({"d": npz(tmp_path / "d.npz", x=x, y=np.array([7, 3]))}, format=NPZ)
    assert [(item.index, item.id, item.label) for item in dataset.items] == [(0, "0", "7"), (1, "1", "3")]
    item = dataset.read(1)
    assert isinstance(item, np.ndarray)
    assert item.dtype == np.uint8
    np.testing.assert_array_equal(item, x[1])
    with pytest.raises(ValueError, match="read-only"):
        item[0, 0] = 0
    with pytest.raises(IndexError):
        dataset.read(2)


def test_items_are_read_from_many_threads(tmp_path: Path) -> None:
    """Reading from many threads at once gives every item its own bytes."""
    files = {f"{i}.jpg": bytes([i]) * 5000 for i in range(64)}
    csv = "file,label\n" + "".join(f"{name},0\n" for name in files)
    dataset = opened({"d": folder(tmp_path / "d", csv, files)}, size=64)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(dataset.read, list(range(64)) * 4)) == list(files.values()) * 4


def _bomb(path: Path) -> Path:
    """An npz whose header announces an array of 2**50 bytes."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header,
        {"descr": "|u1", "fortran_order": False, "shape": (2, 2**49)},
    )
    with zipfile.ZipFile(path, "w") as zipped:
        zipped.writestr("x.npy", header.getvalue())
    return path


@pytest.mark.parametrize(
    ("arrays", "why"),
    [
        ({"images": np.zeros((2, 3))}, "no array 'x'; the file has images"),
        ({"x": np.zeros((2, 3))}, "no array 'y'"),
        ({"x": np.zeros((2, 3)), "y": np.zeros(3, int)}, r"'y' has shape \(3,\); one label for each of 2"),
        ({"x": np.zeros((2, 3)), "y": np.zeros((2, 10), int)}, r"'y' has shape \(2, 10\)"),
        ({"x": np.zeros((2, 3)), "y": np.zeros(2)}, "of float64; labels are integers or text"),
        ({"x": np.zeros((2, 3)), "y": np.array(["a", ""])}, "item 1 has no label"),
        ({"x": np.zeros((3, 3)), "y": np.zeros(3, int)}, "expected 2 items .*found 3"),
        ({"x": np.array([{}, {}], dtype=object), "y": np.zeros(2, int)}, "allow_pickle=False"),
        ({"x": np.float32(1), "y": np.zeros(2, int)}, "one number"),
    ],
)
def test_an_npz_that_is_wrong_is_told(tmp_path: Path, arrays: dict[str, Any], why: str) -> None:
    """Each fault of an npz is an error that names it; nothing is ever unpickled."""
    with pytest.raises(DatasetError, match=why):
        opened({"d": npz(tmp_path / "d.npz", **arrays)}, format=NPZ)


def test_what_is_no_npz_is_told(tmp_path: Path) -> None:
    """Another file, a damaged one, a single array, one that would fill the memory, and a directory are errors."""
    path = tmp_path / "d.npz"
    path.write_bytes(b"<html>")
    with pytest.raises(DatasetError, match="not an npz"):
        opened({"d": path}, format=NPZ)
    path.write_bytes(npz(tmp_path / "good.npz", x=np.zeros(2), y=np.zeros(2, int)).read_bytes()[:-30])
    with pytest.raises(DatasetError, match="not an npz"):
        opened({"d": path}, format=NPZ)
    np.save(tmp_path / "single.npy", np.zeros(2))
    with pytest.raises(DatasetError, match="not an npz"):
        opened({"d": tmp_path / "single.npy"}, format=NPZ)
    with pytest.raises(DatasetError, match="takes 1125899906842624 bytes"):
        opened({"d": _bomb(path)}, format=NPZ)
    with pytest.raises(DatasetError, match="one source"):
        opened({"d": tmp_path}, format=NPZ)
