"""torchvision's networks by name, also where its compiled operators do not load.

A torchvision wheel that was built for another build of PyTorch (the CUDA one beside a CPU one) imports only once
the operators it registers shapes for exist. No classification network calls them, so they are declared, without
an implementation; a detection network that does call one fails with PyTorch's own error.
"""

import inspect
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from predictors.errors import FrameworkUnavailableError, ModelRefusedError
from predictors.frameworks.options import Value

if TYPE_CHECKING:
    import torch

PREFIX: Final = "torchvision.models."
FORBIDDEN: Final = frozenset({"weights", "weights_backbone", "pretrained", "pretrained_backbone", "progress"})
"""Arguments that would download weights: a model's weights are those its manifest names by digest."""
SOFTMAX: Final = "softmax"
"""One argument is ours and not the constructor's: `softmax: true` ends the network with a softmax over axis 1, for
weights whose graph for other frameworks has it inside."""
OPERATORS: Final = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)

_declared: list[object] = []
"""The library that declares the operators: they vanish with it."""


def build_network(constructor: str, arguments: Mapping[str, Value]) -> "torch.nn.Module":
    """Return a network with random weights.

    Raises ModelRefusedError for a name that is not one of torchvision's registered networks and for arguments
    that it does not take; FrameworkUnavailableError when torchvision is not installed.
    """
    if not constructor.startswith(PREFIX):
        raise ModelRefusedError(
            f"constructor '{constructor}' is outside {PREFIX.rstrip('.')}",
            hint=f"a state dict is loaded into one of torchvision's networks, such as {PREFIX}resnet50",
        )
    forbidden = sorted(FORBIDDEN & set(arguments))
    if forbidden:
        raise ModelRefusedError(
            f"argument '{forbidden[0]}' of {constructor} is not allowed",
            hint="weights come from the manifest's 'weights', verified by digest",
        )
    builder = _builder(import_torchvision(), constructor)
    passed: dict[str, Any] = {name: value for name, value in arguments.items() if name != SOFTMAX}
    absent = {name: None for name in ("weights", "weights_backbone") if name in inspect.signature(builder).parameters}
    try:
        network = builder(**passed, **absent)
    except (TypeError, ValueError) as error:
        raise ModelRefusedError(f"{constructor} does not take {passed}: {error}") from error
    if not arguments.get(SOFTMAX, False):
        return network
    from torch import nn

    return nn.Sequential(network, nn.Softmax(1))


def import_torchvision() -> ModuleType:
    """Return the module `torchvision`. Raises FrameworkUnavailableError with the reason."""
    try:
        try:
            import torchvision
        except RuntimeError as error:
            if "operator torchvision::" not in str(error):
                raise
            _declare_operators()
            import torchvision
    except (ImportError, RuntimeError) as error:
        raise FrameworkUnavailableError(
            f"torchvision does not import: {error}", hint="pip install the torchvision that belongs to this PyTorch"
        ) from error
    return torchvision  # type: ignore[no-any-return]


def _declare_operators() -> None:
    from torch.library import Library

    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]  # imported half way; the next import starts afresh
    if not _declared:
        library = Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
        for schema in OPERATORS:
            library.define(schema)  # type: ignore[no-untyped-call]
        _declared.append(library)


def _builder(torchvision: ModuleType, constructor: str) -> "Callable[..., torch.nn.Module]":
    """Return a registered builder by its full name; no attribute is looked up that torchvision does not list."""
    models = torchvision.models
    for name in models.list_models():
        builder = models.get_model_builder(name)
        package = str(builder.__module__).rpartition(".")[0]
        if constructor == f"{package}.{builder.__name__}":
            return builder  # type: ignore[no-any-return]
    raise ModelRefusedError(
        f"torchvision {torchvision.__version__} has no network '{constructor}'",
        hint=f"its networks: {', '.join(models.list_models(module=models))}",
    )
