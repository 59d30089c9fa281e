"""Manifests: models, frameworks and data sets, as people publish them."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from schemas.base import Name, Request
from schemas.codec import register
from schemas.steps import AssetRef, ElementType, InputStep, OutputStep
from schemas.versions import parse_range, parse_version

Modality = Literal[
    "image-classification",
    "object-detection",
    "semantic-segmentation",
    "image-enhancement",
    "text-classification",
    "raw-tensor",
]
Architecture = Literal["amd64", "arm64", "ppc64le"]
Kind = Literal["model", "framework", "dataset"]


def _version(text: str) -> str:
    parse_version(text)
    return text


def _range(text: str) -> str:
    parse_range(text)
    return text


Version = Annotated[str, AfterValidator(_version)]
"""A semantic version; pre-release and local parts (`2.13.0+cpu`) allowed."""

VersionRange = Annotated[str, AfterValidator(_range)]
"""A range in npm's grammar: `^1.2`, `~1.2`, `>=1.20 <2`, `1.x || 2.x`, `*`."""


class Images(Request):
    """Container images of one architecture, by device."""

    cpu: str | None = None
    gpu: str | None = None


class ModelFiles(Request):
    """What a predictor opens. Some formats are one file, some a graph and its weights."""

    format: Literal["onnx", "torchscript", "torch_export", "torch_state_dict", "null"]
    graph: AssetRef | None = None
    weights: AssetRef | None = None
    constructor: str | None = None
    """For a state dict: the torchvision function that builds the network, as `torchvision.models.resnet50`."""
    arguments: dict[str, bool | int | float | str] = {}
    """Keyword arguments of the constructor."""

    @model_validator(mode="after")
    def _complete(self) -> "ModelFiles":
        needs = {"torch_state_dict": ("weights", "constructor"), "null": ()}.get(self.format, ("graph",))
        for field in needs:
            if getattr(self, field) is None:
                raise ValueError(f"format {self.format} needs '{field}'")
        return self


class FrameworkModel(Request):
    """The model for one framework: which versions of it, and the files."""

    name: Name
    version: VersionRange = "*"
    model: ModelFiles
    inputs: tuple[str, ...] = ()
    """Names of the graph's inputs for this framework, where they differ from the manifest's."""
    outputs: tuple[str, ...] = ()


class ModelInput(Request):
    """One input of the network and how an item of a data set becomes it."""

    type: Literal["image", "tensor"]
    name: str
    element_type: ElementType = "float32"
    layout: str = ""
    """Axes of the batch, as `NCHW`; documentation, checked against the shape's length."""
    shape: tuple[int, ...]
    """Shape of one item, without the batch axis."""
    steps: tuple[InputStep, ...] = ()


class ModelOutput(Request):
    """One output of the network and how it becomes a prediction."""

    type: Literal["classification", "raw"]
    name: str
    element_type: ElementType = "float32"
    steps: tuple[OutputStep, ...]


class Permissions(Request):
    """Who may see and who may use an artifact, as names of roles; empty: everybody."""

    see: tuple[str, ...] = ()
    use: tuple[str, ...] = ()


@register("model_manifest")
class ModelManifest(Request):
    """A published model: all that is needed to run it the way its author meant."""

    name: Name
    version: Version
    description: str = ""
    license: str
    authors: tuple[str, ...] = ()
    references: tuple[str, ...] = ()
    modality: Modality
    frameworks: tuple[FrameworkModel, ...] = Field(min_length=1)
    container: dict[Architecture, Images] = {}
    inputs: tuple[ModelInput, ...] = Field(min_length=1)
    outputs: tuple[ModelOutput, ...] = Field(min_length=1)
    attributes: dict[str, bool | int | float | str] = {}
    permissions: Permissions = Permissions()


class PythonEnvironment(Request):
    """What an environment of a framework is built from."""

    version: str = ">=3.11"
    requirements: tuple[str, ...]


@register("framework_manifest")
class FrameworkManifest(Request):
    """A version of a framework that predictors exist for."""

    name: Name
    version: Version
    description: str = ""
    container: dict[Architecture, Images] = {}
    python: PythonEnvironment


class DatasetFormat(Request):
    """How items and labels lie in the sources."""

    type: Literal["image_csv", "npz"]
    """`image_csv`: a directory (an unpacked archive) with images and a CSV that names them. `npz`: one NumPy file."""
    labels_file: str = "labels.csv"
    file_column: str = "file"
    label_column: str = "label"
    items_array: str = "x"
    labels_array: str = "y"


@register("dataset_manifest")
class DatasetManifest(Request):
    """A published data set: items in a fixed order, each with its label."""

    name: Name
    version: Version
    description: str = ""
    license: str
    references: tuple[str, ...] = ()
    modality: Modality
    sources: tuple[AssetRef, ...] = Field(min_length=1)
    format: DatasetFormat
    labels: AssetRef | tuple[str, ...] | None = None
    """Names of the classes, where the labels are indices."""
    split: str = "test"
    size: int = Field(gt=0)
    """Number of items: checked when the data set is opened."""
    permissions: Permissions = Permissions()


Manifest = ModelManifest | FrameworkManifest | DatasetManifest
MODELS: dict[Kind, type[Manifest]] = {
    "model": ModelManifest,
    "framework": FrameworkManifest,
    "dataset": DatasetManifest,
}
