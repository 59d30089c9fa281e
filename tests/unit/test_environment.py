"""The software environment: every installed distribution, one digest, and the container."""

import platform
from importlib.metadata import version
from pathlib import Path

import pytest

from predictors.machine.environment import container, describe_environment, digest, library_versions


def test_environment_lists_what_is_installed() -> None:
    """Every distribution with its version, under its normalised name; the framework's own words are kept."""
    found = describe_environment("null", "1.0", {"BLAS": "none"})
    assert found.libraries["numpy"] == version("numpy")
    assert found.libraries["pydantic-core"] == version("pydantic_core")
    assert found.python == f"{platform.python_implementation()} {platform.python_version()}"
    assert (found.framework, found.framework_version, found.build) == ("null", "1.0", {"BLAS": "none"})
    assert found.digest == digest(found.libraries)
    assert found == describe_environment("null", "1.0", {"BLAS": "none"})


def test_digest_is_of_names_and_versions_in_any_order() -> None:
    """Order does not matter, a version does."""
    assert digest({"a": "1", "b": "2"}) == digest({"b": "2", "a": "1"})
    assert digest({"a": "1"}) != digest({"a": "1.0"})
    assert len(digest({})) == 64


def test_first_of_two_distributions_counts() -> None:
    """As for `import`, which takes the first on the path."""
    from importlib.metadata import Distribution

    class Installed(Distribution):
        def __init__(self, name: str, number: str) -> None:
            self.text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n"

        def read_text(self, filename: str) -> str | None:
            return self.text if filename == "METADATA" else None

        def locate_file(self, path: object) -> Path:
            return Path(str(path))

    assert library_versions([Installed("My_Lib", "2"), Installed("my.lib", "1")]) == {"my-lib": "2"}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({".dockerenv": ""}, "docker"),
        ({".dockerenv": "", "proc/self/mountinfo": f"/docker/containers/{'ab' * 32}/hosts"}, "docker abababababab"),
        ({"proc/self/cgroup": f"0::/kubepods/burstable/pod1/{'cd' * 32}"}, "kubernetes cdcdcdcdcdcd"),
        ({"run/.containerenv": 'engine="podman"\nimage="python:3.11"'}, "podman python:3.11"),
        ({"run/systemd/container": "lxc"}, "lxc"),
    ],
)
def test_container_is_recognised(tmp_path: Path, files: dict[str, str], expected: str | None) -> None:
    """By the marks each runtime leaves; none where there is no mark."""
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert container(tmp_path) == expected
