"""YAML text to manifest, with errors that name the file, the line and the field."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from schemas.errors import ManifestError, VersionError
from schemas.manifests import MODELS, Kind, Manifest, ModelInput, ModelManifest, ModelOutput

MAX_BYTES = 1_000_000
MAX_NODES = 100_000
"""Of a manifest with its aliases written out: a few bytes of YAML can stand for any number, or for no end of them."""


def parse_manifest(text: str, kind: Kind, source: str = "manifest") -> Manifest:
    """Return the manifest in `text`. `source` is what errors call it, a path or an address.

    Raises ManifestError: not YAML, a key twice, or a field that is unknown, missing or wrong. Every
    wrong field is told, each with its line.
    """
    if len(text.encode()) > MAX_BYTES:
        raise ManifestError(f"{source}: a manifest has at most {MAX_BYTES} bytes")
    try:
        node = yaml.compose(text, Loader=yaml.CSafeLoader if hasattr(yaml, "CSafeLoader") else yaml.SafeLoader)
        _check_nodes(node, source)
        data = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise ManifestError(f"{source}{where}: not YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise ManifestError(f"{source}: not YAML: {error}") from error
    if not isinstance(data, dict):
        raise ManifestError(f"{source}:1: a {kind} manifest is a mapping that starts with 'name:'")
    try:
        return MODELS[kind].model_validate(data)
    except VersionError as error:
        raise ManifestError(f"{source}: {error}") from error
    except ValidationError as error:
        raise ManifestError("\n".join(_line(node, item, source) for item in error.errors(include_url=False))) from error


def manifest_text(manifest: Manifest) -> str:
    """Return a manifest as YAML, the way people write it: what is the default is left out, steps by their names.

    `parse_manifest` gives the same manifest again.
    """
    data = manifest.model_dump(mode="json", exclude_defaults=True)
    if isinstance(manifest, ModelManifest):
        _write_steps(data["inputs"], manifest.inputs)
        _write_steps(data["outputs"], manifest.outputs)
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True)


def _write_steps(written: list[dict[str, Any]], entries: Sequence[ModelInput | ModelOutput]) -> None:
    for data, entry in zip(written, entries, strict=True):
        data["steps"] = [_step_as_written(step) for step in entry.steps]


def _step_as_written(step: BaseModel) -> str | dict[str, Any]:
    parameters = step.model_dump(mode="json", exclude_defaults=True)
    name = str(step.step)  # type: ignore[attr-defined]
    return {name: parameters} if parameters else name


def manifest_digest(manifest: BaseModel) -> str:
    """Return the sha256 of a manifest's content: equal for equal manifests, however they were written."""
    body = json.dumps(manifest.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(body.encode()).hexdigest()


def _line(node: yaml.Node | None, item: Any, source: str) -> str:
    """Return one error of pydantic's as `file:line: field: problem`."""
    field = ".".join(str(step) for step in item["loc"])
    line = 1
    for step in item["loc"]:
        if isinstance(node, yaml.MappingNode):
            pair = next(((k, v) for k, v in node.value if k.value == str(step)), None)
            if pair is None:
                continue  # a missing field, or a union's tag: stay at the parent
            line, node = pair[0].start_mark.line + 1, pair[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
            node = node.value[step]
            line = node.start_mark.line + 1
    problem = "unknown field" if item["type"] == "extra_forbidden" else item["msg"].removeprefix("Value error, ")
    if item["type"] == "string_type" and isinstance(item["input"], (int, float)):
        problem = f"{item['input']} is read as a number: write it in quotes, a version with three parts ('1.0.0')"
    return f"{source}:{line}: {field or 'manifest'}: {problem}"


def _check_nodes(node: yaml.Node | None, source: str) -> None:
    """Raise ManifestError for a key given twice, of which YAML's loader would take the last, and for alias bombs."""
    stack = [node] if node is not None else []
    visited = 0
    while stack:
        current = stack.pop()
        visited += 1
        if visited > MAX_NODES:
            raise ManifestError(f"{source}: its aliases expand to more than {MAX_NODES} values")
        if isinstance(current, yaml.MappingNode):
            seen: set[str] = set()
            for key, value in current.value:
                if isinstance(key, yaml.ScalarNode) and key.value in seen:
                    raise ManifestError(f"{source}:{key.start_mark.line + 1}: '{key.value}' is given twice")
                seen.add(key.value)
                stack.append(value)
        elif isinstance(current, yaml.SequenceNode):
            stack.extend(current.value)
