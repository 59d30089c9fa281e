"""ONNX Runtime: opens `.onnx` files.

An ONNX file is protobuf and is only read: opening one executes nothing of its author's. External data that it
refers to is confined by ONNX Runtime to the file's own directory.

Options: `graph_optimization` (disable, basic, extended, all), `execution_mode` (sequential, parallel) and
`providers` (execution providers in order of preference, separated by commas; default: the device's own).
"""

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Final

import numpy as np

from predictors.contract import Batch, Opened, OpenModel, Outputs
from predictors.errors import (
    DeviceUnavailableError,
    FrameworkUnavailableError,
    ModelRefusedError,
    PredictError,
    UnknownOptionError,
)
from predictors.frameworks.batches import BatchCheck
from predictors.frameworks.cuda import driver_problem
from predictors.frameworks.model_files import check_format, refused, required_file
from predictors.frameworks.onnx_graph import check_tensors, fixed_batch
from predictors.frameworks.onnx_session import Session, session_options, threads_in_force, threads_of_process
from predictors.frameworks.options import Option, resolve_options
from schemas.evaluation import Device

NAME: Final = "ONNX Runtime"
PROVIDER_OF: Final[Mapping[Device, str]] = {"cpu": "CPUExecutionProvider", "gpu": "CUDAExecutionProvider"}
GPU_PROVIDERS: Final = frozenset(
    f"{name}ExecutionProvider" for name in ("CUDA", "Tensorrt", "NvTensorRTRTX", "ROCM", "MIGraphX", "Dml", "WebGpu")
)
OPTIONS: Final = {
    "graph_optimization": Option("all", ("disable", "basic", "extended", "all")),
    "execution_mode": Option("sequential", ("sequential", "parallel")),
    "providers": Option(""),
}
PROBE: Final = (
    b'\x08\x08\x12\x00:7\n\x10\n\x01x\x12\x01y"\x08Identity\x12\x01pZ\x0f\n\x01x\x12\n\n\x08\x08\x01\x12\x04\n\x02'
    b"\x08\x01b\x0f\n\x01y\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01B\x04\n\x00\x10\r"
)
"""The smallest model there is, y = x, to see whether an execution provider loads."""


class OnnxRuntimePredictor:
    """One inference session. Inputs are not copied; every call returns fresh arrays."""

    def __init__(self) -> None:
        self._session: Session | None = None
        self._input_names: tuple[str, ...] = ()
        self._output_names: tuple[str, ...] = ()
        self._fixed_batch = 0

    def open(self, model: OpenModel) -> Opened:
        """As Predictor. A graph whose batch axis is fixed opens for that batch size only."""
        options = resolve_options("onnxruntime", OPTIONS, model.options)
        check_format(NAME, OnnxRuntime.formats, model)
        graph = required_file(model, "graph", model.graph)
        if model.weights is not None:
            raise ModelRefusedError(f"{model.name}: an ONNX model is the one file of 'graph', 'weights' is not used")
        ort = _import()
        providers = _providers(ort, model.device, str(options["providers"]))
        settings = session_options(ort, options, model.threads)
        before = threads_of_process()
        try:
            session: Session = ort.InferenceSession(
                str(graph), sess_options=settings, providers=providers, enable_fallback=0
            )
        except MemoryError:
            raise
        except Exception as error:  # its exceptions have no common root but Exception
            raise refused(NAME, model, error) from error
        threads = threads_in_force(settings, before, parallel=options["execution_mode"] == "parallel")
        _check_providers(session, providers)
        check_tensors(model, "input", model.inputs, session.get_inputs())
        check_tensors(model, "output", model.outputs, session.get_outputs())
        self._fixed_batch = fixed_batch(model, session.get_inputs())
        self._input_names = tuple(spec.name for spec in model.inputs)
        self._output_names = tuple(spec.name for spec in model.outputs)
        self._check = BatchCheck(model.inputs, "input")
        self._session = session
        return Opened(threads=threads, options={**options, "providers": ",".join(session.get_providers())})

    def predict(self, batch: Batch) -> Outputs:
        """As Predictor. ONNX Runtime copies back from a GPU before it returns."""
        session = self._session
        if session is None:
            raise PredictError("no model is open in this ONNX Runtime predictor")
        self._check(batch)
        try:
            if self._fixed_batch and len(batch[0]) != self._fixed_batch:
                return self._padded(session, batch)
            return session.run(self._output_names, dict(zip(self._input_names, batch, strict=True)))
        except MemoryError:
            raise
        except Exception as error:  # its exceptions have no common root but Exception
            raise PredictError(f"ONNX Runtime failed on a batch: {error}", detail=repr(error)) from error

    def close(self) -> None:
        """As Predictor."""
        self._session = None

    def _padded(self, session: Session, batch: Batch) -> Outputs:
        """Run a batch that is smaller than the graph's fixed one, filled up with zeros that are cut off again."""
        rows = len(batch[0])
        if rows > self._fixed_batch:
            raise PredictError(f"a batch of {rows} items, and the graph takes {self._fixed_batch}")
        feed = {}
        for name, array in zip(self._input_names, batch, strict=True):
            feed[name] = np.zeros((self._fixed_batch, *array.shape[1:]), array.dtype)
            feed[name][:rows] = array
        return [output[:rows] for output in session.run(self._output_names, feed)]


class OnnxRuntime:
    """ONNX Runtime, whichever build of it is installed."""

    name = "onnxruntime"
    formats = ("onnx",)

    def version(self) -> str:
        """As Framework."""
        return str(_import().__version__)

    def build(self) -> dict[str, str]:
        """As Framework."""
        ort = _import()
        return {
            "build_info": str(ort.get_build_info()),
            "device": str(ort.get_device()),
            "providers": ", ".join(ort.get_available_providers()),
        }

    def unavailable(self, device: Device) -> str | None:
        """As Framework. For a GPU it opens a tiny session there: only then are the CUDA libraries really loaded."""
        try:
            ort = _import()
        except FrameworkUnavailableError as error:
            return error.message
        if device == "cpu":
            return None
        provider = PROVIDER_OF[device]
        if provider not in ort.get_available_providers():
            reason = (
                f"this build of ONNX Runtime ({ort.__version__}) has no {provider}, it has "
                f"{', '.join(ort.get_available_providers())}: install onnxruntime-gpu in its place"
            )
            problem = driver_problem()
            return f"{reason}; besides, {problem}" if problem else reason
        return driver_problem() or _load_problem(ort, provider)

    def create(self) -> OnnxRuntimePredictor:
        """As Framework."""
        return OnnxRuntimePredictor()


def _import() -> ModuleType:
    try:
        import onnxruntime as ort
    except ImportError as error:
        raise FrameworkUnavailableError(
            f"ONNX Runtime does not import: {error}", hint="pip install onnxruntime"
        ) from error
    return ort  # type: ignore[no-any-return]


def _load_problem(ort: ModuleType, provider: str) -> str | None:
    """Return why an execution provider that is built in does not load, or None."""
    try:
        loaded = ort.InferenceSession(PROBE, providers=[provider], enable_fallback=0).get_providers()
    except Exception as error:  # noqa: BLE001  any failure of a model this small is the provider's: the answer
        return f"{provider} does not load: {error}"
    if provider in loaded:
        return None
    return f"{provider} does not load: a library of CUDA or cuDNN is missing; ONNX Runtime named it on standard error"


def _providers(ort: ModuleType, device: Device, asked: str) -> list[str]:
    """Return the execution providers to use. Raises UnknownOptionError, DeviceUnavailableError."""
    here = ort.get_available_providers()
    names = [name.strip() for name in asked.split(",") if name.strip()]
    for name in names:
        if name not in here:
            raise UnknownOptionError(
                f"option 'providers' of the onnxruntime predictor: there is no {name} in this build",
                hint=f"it has: {', '.join(here)}",
            )
    on_gpu = [name for name in names if name in GPU_PROVIDERS]
    if names and (device == "gpu") != bool(on_gpu):
        raise UnknownOptionError(
            f"option 'providers' of the onnxruntime predictor: {asked} on a {device}, whose figures it would pass for",
            hint=f"leave it out for {PROVIDER_OF[device]}, or ask for the other device",
        )
    if not names and PROVIDER_OF[device] not in here:
        raise DeviceUnavailableError(str(OnnxRuntime().unavailable(device)))
    return names or [PROVIDER_OF[device]]


def _check_providers(session: Session, asked: Sequence[str]) -> None:
    """Raise DeviceUnavailableError when ONNX Runtime went on without a provider: a CPU must not pass for a GPU."""
    missing = [name for name in asked if name not in session.get_providers()]
    if missing:
        raise DeviceUnavailableError(
            f"ONNX Runtime opened the model without {', '.join(missing)}, on {', '.join(session.get_providers())}",
            hint="its standard error says which library did not load",
        )
