"""One stack for all acceptance tests: started once, as a user would start it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import mlmodelscope
from mlmodelscope import Client
from mlmodelscope.directory import DataDirectory


@pytest.fixture(scope="session")
def stack_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of the shared stack."""
    return tmp_path_factory.mktemp("stack")


@pytest.fixture(scope="session")
def scope(stack_directory: Path, asset_mirror: Path) -> Iterator[Client]:
    """A client of a running stack with both CPU frameworks and the null framework."""
    # A cache of its own, so that a test fetches what a fresh machine would fetch.
    os.environ["MLMODELSCOPE_CACHE_DIR"] = str(stack_directory / "cache")
    os.environ["MLMODELSCOPE_MACHINE_LOCK"] = str(stack_directory / "machine.lock")
    try:
        with mlmodelscope.local(
            data=stack_directory, frameworks=("onnxruntime", "pytorch", "null"), asset_mirror=asset_mirror
        ) as client:
            yield client
    finally:
        del os.environ["MLMODELSCOPE_CACHE_DIR"], os.environ["MLMODELSCOPE_MACHINE_LOCK"]


@pytest.fixture(scope="session")
def bus_url(scope: Client, stack_directory: Path) -> str:
    """Where the shared stack's NATS listens."""
    announced = DataDirectory(stack_directory).announced("bus")
    assert announced is not None
    return str(announced["url"])
