"""The files a task needs."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from predictors.errors import AssetNotFoundError
from schemas.manifests import DatasetManifest, FrameworkModel, ModelManifest
from schemas.steps import Argsort, AssetRef
from schemas.tasks import TaskAssigned


def assets_of(task: TaskAssigned) -> dict[str, AssetRef]:
    """Return every asset of the task once, by key: model files and labels first, the data set last."""
    found = (*_model_files(task.framework_model), *_label_files(task.model), *_dataset_files(task.dataset))
    return {asset_key(asset): asset for asset in found}


def asset_key(asset: AssetRef) -> str:
    """Return what tells one local path from another: the content, and whether it is unpacked."""
    return f"{asset.sha256}/" if asset.unpack else asset.sha256


def local_files(files: Mapping[str, str]) -> Callable[[AssetRef], Path]:
    """Return a `fetch` that knows the files that are there already, and fetches nothing."""

    def find(asset: AssetRef) -> Path:
        try:
            return Path(files[asset_key(asset)])
        except KeyError:
            raise AssetNotFoundError(f"{asset.url} was not fetched with the task's files") from None

    return find


def _model_files(entry: FrameworkModel) -> Iterator[AssetRef]:
    yield from (asset for asset in (entry.model.graph, entry.model.weights) if asset is not None)


def _label_files(model: ModelManifest) -> Iterator[AssetRef]:
    for output in model.outputs:
        for step in output.steps:
            if isinstance(step, Argsort) and isinstance(step.labels, AssetRef):
                yield step.labels


def _dataset_files(dataset: DatasetManifest) -> Iterator[AssetRef]:
    yield from dataset.sources
    if isinstance(dataset.labels, AssetRef):
        yield dataset.labels
