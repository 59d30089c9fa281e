"""A stack for one program: started on free ports, used, and gone."""

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from mlmodelscope.client import Client
from mlmodelscope.settings import read_settings
from mlmodelscope.stack import DEFAULT_FRAMEWORKS, AgentSpec, Report, Stack


@contextmanager
def local(
    *,
    data: str | os.PathLike[str] | None = None,
    frameworks: Sequence[str] = DEFAULT_FRAMEWORKS,
    asset_mirror: str | os.PathLike[str] | None = None,
    timeout_s: float = 120.0,
    report: Report = lambda line: None,
) -> Iterator[Client]:
    """Start a stack on free ports and give its client; stop it at the end of the `with`.

    Without `data` the stack's state goes with it; with a directory it stays and is there the next time.
    `frameworks` are the agents to start, `pytorch:gpu` for one on a GPU. Raises StackError.

        with mlmodelscope.local() as scope:
            evaluation = scope.evaluate(model="digits-cnn", dataset="digits", targets="all")
    """
    with tempfile.TemporaryDirectory(prefix="mlmodelscope-") as temporary:
        settings = read_settings(
            data_dir=Path(data) if data is not None else Path(temporary),
            api_host="127.0.0.1",
            api_port=0,
            asset_mirror=str(asset_mirror) if asset_mirror is not None else None,
        )
        stack = Stack(settings, [AgentSpec.parse(name) for name in frameworks], report=report)
        try:
            stack.start(timeout_s)
            with stack.client as client:
                yield client
        finally:
            stack.stop()
