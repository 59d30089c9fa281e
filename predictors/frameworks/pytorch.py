"""PyTorch: opens TorchScript, `torch.export` archives and state dicts of torchvision's networks.

How each is loaded, and what is refused, is in `torch_loading`. Thread counts and `float32_matmul_precision` are of
the whole process: one worker process has one model open.

Options: `freeze` (inline parameters and fold constants of a TorchScript network) and `float32_matmul_precision`
(highest, high, medium).
"""

import warnings
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Final

import numpy as np

from predictors.contract import Array, Batch, Opened, OpenModel, Outputs
from predictors.errors import DeviceUnavailableError, FrameworkUnavailableError, PredictError, PredictorError
from predictors.frameworks.batches import BatchCheck
from predictors.frameworks.cuda import driver_problem
from predictors.frameworks.model_files import check_format
from predictors.frameworks.options import Option, resolve_options
from predictors.frameworks.torch_loading import FORMATS, NAME, load_network
from schemas.evaluation import Device
from schemas.scenario import Threads

if TYPE_CHECKING:
    import torch

OPTIONS: Final = {
    "freeze": Option(False),
    "float32_matmul_precision": Option("highest", ("highest", "high", "medium")),
}


class PyTorchPredictor:
    """One network in evaluation mode. On a CPU neither inputs nor outputs are copied."""

    def __init__(self) -> None:
        self._network: Callable[..., object] | None = None
        self._output_names: tuple[str, ...] = ()

    def open(self, model: OpenModel) -> Opened:
        """As Predictor. Raises PredictorError when `inter_op` threads are asked for too late in the process's life."""
        options = resolve_options("pytorch", OPTIONS, model.options)
        check_format(NAME, FORMATS, model)
        torch = _import()
        if model.device == "gpu" and (reason := PyTorch().unavailable("gpu")):
            raise DeviceUnavailableError(reason)
        threads = _set_threads(torch, model.threads)
        torch.set_float32_matmul_precision(options["float32_matmul_precision"])
        device = torch.device("cuda" if model.device == "gpu" else "cpu")
        network = load_network(model, device, freeze=bool(options["freeze"]))
        _allow_read_only_arrays(torch)
        self._mode = torch.inference_mode()
        self._tensor = torch.Tensor
        self._from_numpy = torch.from_numpy
        self._device = device if model.device == "gpu" else None
        self._check_inputs = BatchCheck(model.inputs, "input")
        self._check_outputs = BatchCheck(model.outputs, "output")
        self._output_names = tuple(spec.name for spec in model.outputs)
        self._network = network
        return Opened(threads=threads, options={**options, "device": str(device)})

    def predict(self, batch: Batch) -> Outputs:
        """As Predictor. Copying back from a GPU waits for it."""
        network = self._network
        if network is None:
            raise PredictError("no model is open in this PyTorch predictor")
        self._check_inputs(batch)
        try:
            with self._mode:
                if self._device is None:
                    result = network(*map(self._from_numpy, batch))
                else:
                    result = network(*[self._from_numpy(array).to(self._device) for array in batch])
                outputs = [_array(tensor) for tensor in self._in_order(result)]
        except (PredictorError, MemoryError):
            raise
        except Exception as error:  # TorchScript, kernels and exported guards raise types of their own
            raise PredictError(f"PyTorch failed on a batch: {error}", detail=repr(error)) from error
        self._check_outputs(outputs)
        return outputs

    def close(self) -> None:
        """As Predictor. Thread counts stay as they are."""
        self._network = None

    def _in_order(self, result: object) -> "Sequence[torch.Tensor]":
        """Return a network's result as a sequence in the manifest's order: a dictionary by its keys."""
        if isinstance(result, self._tensor):
            return (result,)
        if isinstance(result, dict):
            missing = [name for name in self._output_names if name not in result]
            if missing:
                raise PredictError(f"the network has no output '{missing[0]}', it has: {', '.join(map(str, result))}")
            return [result[name] for name in self._output_names]
        if isinstance(result, (tuple, list)) and all(isinstance(each, self._tensor) for each in result):
            return result
        raise PredictError(f"the network returned a {type(result).__name__}, not tensors")


class PyTorch:
    """PyTorch, whichever build of it is installed."""

    name = "pytorch"
    formats = FORMATS

    def version(self) -> str:
        """As Framework."""
        return str(_import().__version__)

    def build(self) -> dict[str, str]:
        """As Framework."""
        torch = _import()
        return {
            "config": torch.__config__.show().strip(),
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "cuda": str(torch.version.cuda or "none"),
            "git_version": str(torch.version.git_version),
        }

    def unavailable(self, device: Device) -> str | None:
        """As Framework."""
        try:
            torch = _import()
        except FrameworkUnavailableError as error:
            return error.message
        if device == "cpu":
            return None
        if torch.version.cuda is None and torch.version.hip is None:
            reason = f"this build of PyTorch ({torch.__version__}) has no CUDA: install one that has"
            problem = driver_problem()
            return f"{reason}; besides, {problem}" if problem else reason
        try:
            torch.cuda.init()
        except (RuntimeError, AssertionError) as error:
            return f"PyTorch {torch.__version__} does not start CUDA: {str(error).strip()}"
        return None if torch.cuda.device_count() else f"PyTorch {torch.__version__} finds no CUDA device"

    def create(self) -> PyTorchPredictor:
        """As Framework."""
        return PyTorchPredictor()


def _import() -> ModuleType:
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: a library of CUDA's that PyTorch preloads is missing
        raise FrameworkUnavailableError(f"PyTorch does not import: {error}", hint="pip install torch") from error
    return torch


def _array(tensor: "torch.Tensor") -> Array:
    """Return a tensor's elements, in C order: without a copy when they lie so on a CPU."""
    array: Array = (tensor if tensor.is_cpu else tensor.cpu()).contiguous().numpy()
    return array


def _set_threads(torch: ModuleType, wanted: Threads) -> Threads:
    """Set what is asked for, return what PyTorch then says. Raises PredictorError."""
    if wanted.intra_op is not None:
        torch.set_num_threads(wanted.intra_op)
    if wanted.inter_op is not None and wanted.inter_op != torch.get_num_interop_threads():
        try:
            torch.set_num_interop_threads(wanted.inter_op)
        except RuntimeError as error:
            raise PredictorError(
                f"PyTorch cannot change to {wanted.inter_op} inter-operator threads any more: {error}",
                hint="ask for a cold start: a fresh worker process can",
            ) from error
    return Threads(intra_op=torch.get_num_threads(), inter_op=torch.get_num_interop_threads())


def _allow_read_only_arrays(torch: ModuleType) -> None:
    """Use up PyTorch's one warning about arrays that cannot be written to: prepared inputs are, and stay, read-only."""
    array = np.zeros(1, np.float32)
    array.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        torch.from_numpy(array)
