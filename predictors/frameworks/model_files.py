"""What every predictor checks of a model before its framework sees it."""

from collections.abc import Sequence
from pathlib import Path

from predictors.contract import OpenModel
from predictors.errors import ModelRefusedError


def check_format(framework: str, formats: Sequence[str], model: OpenModel) -> None:
    """Raise ModelRefusedError when the framework does not open files of the model's format."""
    if model.format not in formats:
        raise ModelRefusedError(
            f"{framework} does not open {model.name} {model.version}: its format is {model.format}",
            hint=f"{framework} opens: {', '.join(formats)}",
        )


def required_file(model: OpenModel, field: str, path: Path | None) -> Path:
    """Return `path`, which is the model's `field`. Raises ModelRefusedError when there is no such file."""
    if path is None:
        raise ModelRefusedError(f"{model.name} {model.version} of format {model.format} has no file for '{field}'")
    if not path.is_file():
        raise ModelRefusedError(f"{model.name} {model.version}: the file of '{field}' is not there: {path}")
    return path


def refused(framework: str, model: OpenModel, error: BaseException) -> ModelRefusedError:
    """Return the error for a model that the framework did not accept, with the framework's own words."""
    words = str(error).strip() or type(error).__name__
    return ModelRefusedError(
        f"{framework} does not accept {model.name} {model.version}: {words}",
        hint="the file is damaged, of another format, or made for another version of the framework",
        detail=f"{type(error).__module__}.{type(error).__qualname__}: {words}",
    )
