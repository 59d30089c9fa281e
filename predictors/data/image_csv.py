"""Data sets of image files in directories, each with a CSV that names files and labels."""

import csv
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from predictors.data.items import Item
from predictors.data.paths import confined
from predictors.errors import DatasetError, ItemUnreadableError
from schemas.manifests import DatasetFormat

MAX_ITEM_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True)
class _Row:
    where: str
    file: str
    label: str


class ImageCsvDataset:
    """Image files listed by the CSV of each directory, in the order of the directories and of the rows."""

    def __init__(
        self, name: str, directories: Sequence[Path], form: DatasetFormat, class_names: tuple[str, ...] = ()
    ) -> None:
        """Read the lists; no image is touched.

        Raises DatasetError, naming the line, for a list that is missing or malformed, without the columns that
        `form` names, with a row without file or label, a file twice, or a file outside its directory.
        """
        self.class_names = class_names
        self._files: list[tuple[Path, str]] = []
        items: list[Item] = []
        seen: dict[str, str] = {}
        for directory in (path.resolve() for path in directories):
            for row in _rows(name, directory, form):
                if row.file in seen:
                    raise DatasetError(f"{row.where}: '{row.file}' is listed already, by {seen[row.file]}")
                seen[row.file] = row.where
                items.append(Item(index=len(items), id=row.file, label=row.label))
                self._files.append((directory, row.file))
        self.items: tuple[Item, ...] = tuple(items)

    def read(self, index: int) -> bytes:
        """Return the bytes of an image file; see Dataset."""
        directory, name = self._files[index]
        path = directory / name
        try:
            if not path.resolve().is_relative_to(directory):
                raise ItemUnreadableError(f"{name}: is a link to a place outside its data set")
            # Not blocking: a pipe under an image's name would be waited for.
            with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise ItemUnreadableError(f"{name}: is not a file")
                if status.st_size > MAX_ITEM_BYTES:
                    raise ItemUnreadableError(
                        f"{name}: has {status.st_size} bytes, and an item may have {MAX_ITEM_BYTES}"
                    )
                return file.read(MAX_ITEM_BYTES)
        except OSError as error:
            raise ItemUnreadableError(f"{name}: {error.strerror or error}") from error


def _rows(name: str, directory: Path, form: DatasetFormat) -> Iterator[_Row]:
    """Yield the rows of a directory's list, checked one by one."""
    try:
        path = directory / confined(form.labels_file)
    except ValueError as error:
        raise DatasetError(f"{name}: labels_file '{form.labels_file}' {error}") from error
    line = 1
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            header = next(reader, [])
            columns = _columns(f"{name}: {form.labels_file}:1", header, form)
            for fields in reader:
                line = reader.line_num
                if fields:
                    yield _row(f"{name}: {form.labels_file}:{line}", fields, len(header), columns)
    except OSError as error:
        raise DatasetError(f"{name}: {form.labels_file}: {error.strerror or error}") from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise DatasetError(f"{name}: {form.labels_file}:{line}: not CSV in UTF-8: {error}") from error


def _columns(where: str, header: list[str], form: DatasetFormat) -> tuple[int, int]:
    """Return the positions of the file and the label column."""
    for column in (form.file_column, form.label_column):
        if header.count(column) != 1:
            problem = "no column" if column not in header else "more than one column"
            raise DatasetError(f"{where}: {problem} '{column}'; the columns are {', '.join(header) or 'none'}")
    return header.index(form.file_column), header.index(form.label_column)


def _row(where: str, fields: list[str], width: int, columns: tuple[int, int]) -> _Row:
    if len(fields) != width:
        raise DatasetError(f"{where}: {len(fields)} fields, where the first line has {width}")
    file, label = (fields[column].strip() for column in columns)
    try:
        path = confined(file)
    except ValueError as error:
        raise DatasetError(f"{where}: the file name '{file}' {error}") from error
    if not label:
        raise DatasetError(f"{where}: '{file}' has no label")
    return _Row(where, str(path), label)
