"""The software that runs here: this Python environment, and the container around it."""

import hashlib
import json
import platform
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib.metadata import Distribution, distributions
from pathlib import Path

from schemas.system import Environment


def describe_environment(framework: str, framework_version: str, build: Mapping[str, str]) -> Environment:
    """Return this process's environment. `build` is how the framework says it was built.

    The list of distributions is read once in a process: the first call blocks for some tenths of a second.
    """
    libraries = _installed()
    return Environment(
        python=f"{platform.python_implementation()} {platform.python_version()}",
        framework=framework,
        framework_version=framework_version,
        build=dict(build),
        libraries=dict(libraries),
        digest=digest(libraries),
        container=container(),
    )


def library_versions(found: Iterable[Distribution]) -> dict[str, str]:
    """Return the version of each distribution by its normalised name (PEP 503), sorted.

    Of a name that is there twice the first counts, as it does for `import`.
    """
    versions: dict[str, str] = {}
    for distribution in found:
        name = distribution.metadata["Name"]
        if name:  # a directory left behind by a broken uninstall has none
            versions.setdefault(re.sub(r"[-_.]+", "-", name).lower(), distribution.version)
    return dict(sorted(versions.items()))


def digest(libraries: Mapping[str, str]) -> str:
    """Return the sha256 of the libraries, sorted by name: equal environments have equal digests."""
    return hashlib.sha256(json.dumps(sorted(libraries.items())).encode()).hexdigest()


def container(root: Path = Path("/")) -> str | None:
    """Return what kind of container this process is in, with its id where the kernel shows it, or None."""
    groups = _text(root / "proc/self/cgroup") + _text(root / "proc/1/cgroup")
    id_ = re.search(r"\b([0-9a-f]{64})\b", groups + _text(root / "proc/self/mountinfo"))
    suffix = f" {id_.group(1)[:12]}" if id_ else ""
    if (root / "run/.containerenv").exists():
        image = re.search(r'^image="?([^"\n]+)', _text(root / "run/.containerenv"), re.MULTILINE)
        return f"podman {image.group(1)}" if image else f"podman{suffix}"
    if "kubepods" in groups:
        return f"kubernetes{suffix}"
    if (root / ".dockerenv").exists() or "docker" in groups:
        return f"docker{suffix}"
    if (root / ".singularity.d").is_dir():
        return "apptainer"
    return _text(root / "run/systemd/container").strip() or None


@lru_cache(maxsize=1)
def _installed() -> Mapping[str, str]:
    return library_versions(distributions())


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:  # not there, or not for us: then it says nothing about a container
        return ""
