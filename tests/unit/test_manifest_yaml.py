"""Manifests from YAML: errors name the file, the line and the field."""

from pathlib import Path

import pytest

from schemas.errors import ManifestError
from schemas.manifest_yaml import manifest_digest, manifest_text, parse_manifest
from schemas.manifests import DatasetManifest, ModelManifest
from tests.conftest import REPOSITORY

DIGEST = "ab" * 32
MODEL = f"""\
name: tiny
version: 1.0.0
license: MIT
modality: image-classification
frameworks:
  - name: onnxruntime
    version: ">=1.16 <2"
    model:
      format: onnx
      graph: {{url: "https://example.org/tiny.onnx", sha256: {DIGEST}}}
inputs:
  - type: image
    name: data
    shape: [3, 8, 8]
    steps:
      - decode: {{color_mode: BGR}}
      - resize: {{dimensions: [8, 8]}}
      - transpose: {{layout: CHW}}
outputs:
  - type: classification
    name: prob
    steps:
      - softmax
      - argsort:
"""


def test_a_manifest_is_read_with_its_steps_in_order() -> None:
    """Short forms of steps mean what the long forms mean."""
    manifest = parse_manifest(MODEL, "model")
    assert isinstance(manifest, ModelManifest)
    assert [step.step for step in manifest.inputs[0].steps] == ["decode", "resize", "transpose"]
    assert [step.step for step in manifest.outputs[0].steps] == ["softmax", "argsort"]
    again = ModelManifest.model_validate(manifest.model_dump(mode="json"))
    assert again == manifest
    assert manifest_digest(again) == manifest_digest(manifest)


def test_the_digest_is_of_the_content_and_not_of_the_writing() -> None:
    """A comment changes nothing; a step does."""
    digest = manifest_digest(parse_manifest(MODEL, "model"))
    assert digest == manifest_digest(parse_manifest("# a comment\n" + MODEL, "model"))
    assert digest != manifest_digest(parse_manifest(MODEL.replace("BGR", "RGB"), "model"))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("license: MIT", "licence: MIT", "tiny.yml:3: licence: unknown field"),
        ("version: 1.0.0", "version: one", "tiny.yml:2: version: 'one' is not a version"),
        ("      - decode: {color_mode: BGR}", "      - decode: {color_mode: XYZ}", "tiny.yml:16: inputs.0.steps.0"),
        ("      - decode: {color_mode: BGR}", "      - decode: {colour: BGR}", "tiny.yml:16: inputs.0.steps.0"),
        ("      - softmax", "      - sigmoid", "tiny.yml:23: outputs.0.steps.0"),
        (DIGEST, "abc", "tiny.yml:10: frameworks.0.model.graph.sha256"),
        ('">=1.16 <2"', '">=one"', "tiny.yml:7: frameworks.0.version"),
        ("name: tiny", "name: Tiny Net", "tiny.yml:1: name"),
        ("      format: onnx", "      format: torch_state_dict", "needs 'weights'"),
    ],
)
def test_an_error_names_file_line_and_field(old: str, new: str, expected: str) -> None:
    """The reader finds the place without searching."""
    with pytest.raises(ManifestError) as error:
        parse_manifest(MODEL.replace(old, new), "model", "tiny.yml")
    assert expected in str(error.value)


@pytest.mark.parametrize("path", sorted((REPOSITORY / "manifests/models").glob("*.yml")), ids=lambda path: path.stem)
def test_what_is_shown_can_be_published_again(path: Path) -> None:
    """Written and read again, a manifest is the same."""
    manifest = parse_manifest(path.read_text(), "model", str(path))
    assert parse_manifest(manifest_text(manifest), "model") == manifest


def test_a_version_that_yaml_takes_for_a_number_is_explained() -> None:
    """The most frequent mistake of all."""
    with pytest.raises(ManifestError, match="write it in quotes"):
        parse_manifest(MODEL.replace("version: 1.0.0", "version: 1.0"), "model", "tiny.yml")


def test_every_wrong_field_is_told_at_once() -> None:
    """One round of mending, not five."""
    with pytest.raises(ManifestError) as error:
        parse_manifest(MODEL.replace("license: MIT", "a: 1\nb: 2"), "model", "tiny.yml")
    assert {line.split(": ")[1] for line in str(error.value).splitlines()} == {"license", "a", "b"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name: [", "x.yml:2:1: not YAML"),
        ("a: b: c", "x.yml:1:5: not YAML"),
        ("- a\n- b\n", "is a mapping"),
        ("", "is a mapping"),
        ("name: a\nname: b\n", "x.yml:2: 'name' is given twice"),
        ("name: !!python/object/apply:os.system ['true']\n", "not YAML"),
        ("a: &a [1]\nb: *c\n", "not YAML"),
        ("\x00", "not YAML"),
        ("a: &a [*a,*a]", "expand"),
        ("a: &a {b: *a}", "expand"),
        (
            "a: &a [x,x,x,x,x,x,x,x,x,x]\n"
            + "".join(f"{b}: &{b} [{','.join([f'*{a}'] * 10)}]\n" for a, b in ("ab", "bc", "cd", "de", "ef", "fg")),
            "expand",
        ),
    ],
)
def test_what_is_no_yaml_is_refused(text: str, expected: str) -> None:
    """Nothing of it is executed, and the message says where reading stopped."""
    with pytest.raises(ManifestError, match=expected):
        parse_manifest(text, "model", "x.yml")


def test_a_data_set_says_its_size() -> None:
    """A size of nothing is no data set."""
    text = f"""\
name: d
version: 1.0.0
license: x
modality: image-classification
sources: [{{url: "file:/x", sha256: {DIGEST}}}]
format: {{type: npz}}
size: 3
"""
    assert isinstance(parse_manifest(text, "dataset"), DatasetManifest)
    with pytest.raises(ManifestError, match="size"):
        parse_manifest(text.replace("size: 3", "size: 0"), "dataset")
