"""Loading PyTorch models without executing their authors' code.

| format | how it is read | for an author who is not trusted |
|---|---|---|
| `torchscript` | `torch.jit.load`: no Python runs | refused when it could touch files (see torchscript_archive) |
| `torch_state_dict` | `torch.load(weights_only=True)`: tensors, plain containers | refused when it holds more |
| `torch_export` | `torch.export.load` | always refused |

A `torch.export` archive cannot be made safe by looking at it: sample inputs and constants may be pickles, its
loader falls back to the full unpickler when the restricted one fails, evaluates symbolic shapes as Python text,
and generates Python from names in the graph.
"""

import pickle
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from predictors.contract import OpenModel
from predictors.errors import ModelRefusedError, PredictorError, UntrustedModelError
from predictors.frameworks.model_files import refused, required_file
from predictors.frameworks.torchscript_archive import check_torchscript
from predictors.frameworks.torchvision_models import build_network

if TYPE_CHECKING:
    import torch

NAME = "PyTorch"
FORMATS = ("torchscript", "torch_export", "torch_state_dict")
TRUST_HINT = "an operator who trusts the manifest's author adds the name to the setting trusted_authors"
PICKLE_START = b"\x80"


def load_network(model: OpenModel, device: "torch.device", *, freeze: bool) -> "torch.nn.Module":
    """Return the model's network on `device`, in evaluation mode; blocks.

    `freeze` inlines parameters and folds constants of a TorchScript network. Raises ModelRefusedError,
    UntrustedModelError, FrameworkUnavailableError.
    """
    load = {"torchscript": _torchscript, "torch_export": _exported, "torch_state_dict": _state_dict}[model.format]
    if freeze and model.format != "torchscript":
        raise ModelRefusedError(f"option 'freeze' is for TorchScript, {model.name} is {model.format}")
    try:
        network = _frozen(load(model, device)) if freeze else load(model, device)
        for parameter in network.parameters():
            parameter.requires_grad_(False)
        return network
    except (PredictorError, MemoryError):
        raise
    except Exception as error:  # a damaged file raises anything: RuntimeError, EOFError, KeyError, BadZipFile...
        raise refused(NAME, model, error) from error


def _torchscript(model: OpenModel, device: "torch.device") -> "torch.nn.Module":
    import torch

    path = required_file(model, "graph", model.graph)
    if not model.trusted:
        check_torchscript(path)
    with warnings.catch_warnings():
        # PyTorch 2.13 deprecates the function; the format is ours to support for as long as PyTorch reads it.
        warnings.simplefilter("ignore", DeprecationWarning)
        network: torch.nn.Module = torch.jit.load(  # type: ignore[no-untyped-call]
            str(path), map_location=device
        )
    return network.eval()


def _frozen(network: "torch.nn.Module") -> "torch.nn.Module":
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # as for torch.jit.load
        frozen: torch.nn.Module = torch.jit.freeze(network)
    return frozen


def _exported(model: OpenModel, device: "torch.device") -> "torch.nn.Module":
    import torch

    path = required_file(model, "graph", model.graph)
    if not model.trusted:
        raise UntrustedModelError(
            f"{model.name} {model.version} is a torch.export archive: loading it can execute its author's code",
            hint=f"{TRUST_HINT}; or publish the model as ONNX or TorchScript",
        )
    with path.open("rb") as file:
        program = torch.export.load(file)
    # An exported module refuses eval(): the mode is what it was exported in.
    return program.module().to(device)


def _state_dict(model: OpenModel, device: "torch.device") -> "torch.nn.Module":
    path = required_file(model, "weights", model.weights)
    if model.constructor is None:
        raise ModelRefusedError(f"{model.name} {model.version} is a state dict and names no constructor")
    state = _load_pickle(model, path)
    network = build_network(model.constructor, model.arguments)
    inner = network[0] if model.arguments.get("softmax", False) else network  # type: ignore[index]
    inner.load_state_dict(state, strict=True)
    return network.to(device).eval()


def _load_pickle(model: OpenModel, path: Path) -> "dict[str, torch.Tensor]":
    """Return the state dict in `path`; with the full unpickler only when it is needed and the author is trusted."""
    import torch

    try:
        with warnings.catch_warnings():
            # Its remarks on pickle protocols are about what is refused below, or loads all the same.
            warnings.simplefilter("ignore", UserWarning)
            state = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if not _is_pickle(path, error):
            raise
        if not model.trusted:
            raise UntrustedModelError(
                f"{model.name} {model.version}: loading {path.name} would execute its author's code: {_reason(error)}",
                hint=f"{TRUST_HINT}; or publish a state dict that holds tensors only",
                detail=str(error),
            ) from error
        state = torch.load(path, map_location="cpu", weights_only=False)
    if isinstance(state, torch.nn.Module):
        state = state.state_dict()
    if not isinstance(state, dict):
        raise ModelRefusedError(
            f"{model.name} {model.version}: {path.name} holds a {type(state).__name__}, no state dict"
        )
    return state


def _is_pickle(path: Path, error: pickle.UnpicklingError) -> bool:
    """Return whether the restricted unpickler refused a pickle, rather than bytes that are none."""
    with path.open("rb") as file:
        return "global" in str(error).lower() or file.read(1) == PICKLE_START


def _reason(error: pickle.UnpicklingError) -> str:
    """Return the one line of PyTorch's long message that names what was refused."""
    lines = [line.strip() for line in str(error).splitlines()]
    named = [line for line in lines if "global " in line.lower() or line.startswith("Unsupported")]
    return (named or lines)[0].removeprefix("WeightsUnpickler error: ")
