"""Names that come from outside and become paths inside a directory of ours."""

import re
from pathlib import PurePosixPath

_DRIVE = re.compile(r"^[A-Za-z]:")


def confined(name: str) -> PurePosixPath:
    """Return `name` as a path that stays, by its text alone, below the directory it is joined to.

    `./` and doubled slashes are dropped; the result may be `.`. Raises ValueError, which says why, for an
    absolute path, a drive letter, a `..`, a backslash (a path of another system, or an attempt) and a NUL.
    """
    if not name:
        raise ValueError("is empty")
    if "\0" in name:
        raise ValueError("contains a NUL")
    if "\\" in name:
        raise ValueError("contains a backslash; separate directories with '/'")
    if name.startswith("/") or _DRIVE.match(name):
        raise ValueError("is absolute")
    path = PurePosixPath(name)
    if ".." in path.parts:
        raise ValueError("leads out of its directory with '..'")
    return path
