"""Finding a framework by its name: an entry point of the group `mlmodelscope.predictors`."""

from importlib.metadata import EntryPoint, entry_points
from typing import Final, cast

from predictors.contract import Framework
from predictors.errors import FrameworkUnavailableError

GROUP: Final = "mlmodelscope.predictors"

OWN: Final = (
    EntryPoint("null", "predictors.frameworks.null:Null", GROUP),
    EntryPoint("onnxruntime", "predictors.frameworks.onnxruntime:OnnxRuntime", GROUP),
    EntryPoint("pytorch", "predictors.frameworks.pytorch:PyTorch", GROUP),
)
"""The platform's own, as pyproject.toml declares them: in a source tree that is not installed nothing else says so."""


def framework_names() -> tuple[str, ...]:
    """Return the names of all frameworks that are declared here, able to run or not."""
    return tuple(sorted(_declared()))


def load_framework(name: str) -> Framework:
    """Return the framework called `name`. Imports its module, not the framework itself.

    An installed distribution's entry point wins over the platform's own of the same name. Raises
    FrameworkUnavailableError for a name nobody declares, naming those that are, and for one that does not
    import, with the reason.
    """
    declared = _declared()
    if name not in declared:
        raise FrameworkUnavailableError(
            f"there is no framework called '{name}'", hint=f"frameworks here: {', '.join(sorted(declared))}"
        )
    point = declared[name]
    try:
        return cast(Framework, point.load()())
    except Exception as error:  # a module of anybody's: whatever it raises is why it cannot be used
        raise FrameworkUnavailableError(
            f"the predictor of '{name}' ({point.value}) does not load: {type(error).__name__}: {error}",
            hint=f"install what it needs into this environment, or leave '{name}' out",
        ) from error


def _declared() -> dict[str, EntryPoint]:
    return {point.name: point for point in (*OWN, *entry_points(group=GROUP))}
