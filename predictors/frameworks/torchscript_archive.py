"""What a TorchScript archive may contain when its author is not trusted.

`torch.jit.load` runs no Python: the archive's pickles are read by PyTorch's own unpickler in C++, which builds
tensors and TorchScript objects and nothing else, and its code is TorchScript. But TorchScript itself has
operators that write files (`torch.save`, `torch.from_file`), classes that open more (`torch.classes`), and
methods that run while the archive loads. So the archive is searched for these before it is loaded, with the
reader that loads it. Names are compared in lower case because that reader finds records in any case.
"""

import re
from pathlib import Path
from typing import Final

from predictors.errors import UntrustedModelError

STORAGES: Final = ("data/", "constants/")
"""Where tensors lie. Code and pickles are never read from there."""
FILE_OPERATORS: Final = re.compile(rb"\b(?:save|from_file)\b")
CLASSES: Final = re.compile(rb"torch\s*\.?\s*classes\s*\.?\s*(\w+)")
"""A dot may be a line break: a pickle writes a module and a name on two lines."""
HARMLESS_CLASSES: Final = frozenset({b"quantized", b"rnn", b"sparse", b"mkldnn", b"xnnpack"})
"""Packed weights."""


def check_torchscript(path: Path) -> None:
    """Raise UntrustedModelError for an archive that could do more than compute, RuntimeError for none at all."""
    import torch

    reader = torch._C.PyTorchFileReader(str(path))
    for record in reader.get_all_records():
        name = record.lower()
        if name == "model.json":
            raise _refusal("an archive of PyTorch 1.0, whose code may lie anywhere")
        if name.startswith(STORAGES):
            continue
        content = reader.get_record(record)
        if not name.endswith(".pkl") and FILE_OPERATORS.search(content):
            raise _refusal(f"code that may touch files ({record} names 'save' or 'from_file')")
        for match in CLASSES.finditer(content):
            if match.group(1) not in HARMLESS_CLASSES:
                raise _refusal(f"an object of torch.classes.{match.group(1).decode()} ({record})")


def _refusal(what: str) -> UntrustedModelError:
    return UntrustedModelError(
        f"the TorchScript archive contains {what}",
        hint="an operator who trusts the manifest's author adds the name to the setting trusted_authors",
    )
