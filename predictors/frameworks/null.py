"""A predictor that does nothing, to measure the platform, or fails as it is told, to test it.

Its outputs are zeros, allocated when the model is opened and given out again and again. Their elements are the
model's argument `output_size` (10) where the manifest gives an output no shape. Options of a request:

- `delay_ms` (0): keep the processor busy this long in every prediction
- `fail` (never): what goes wrong: `raise` an exception as a framework would, `crash` by a segmentation fault,
  `killed` as the kernel's out-of-memory killer does it (SIGKILL), `oom` an allocation that fails (real, under a
  limit of this process's own, so that the machine does not suffer), `hang` for ever
- `fail_at` (predict): `open` or `predict`
- `fail_after` (0): predictions that work before one fails
"""

import os
import signal
import time
from typing import Final, NoReturn

import numpy as np

from predictors.contract import Batch, Opened, OpenModel, Outputs, TensorSpec
from predictors.errors import DeviceUnavailableError, ModelRefusedError, PredictError
from predictors.frameworks.batches import BatchCheck
from predictors.frameworks.model_files import check_format
from predictors.frameworks.options import Option, resolve_options
from schemas.evaluation import Device
from schemas.scenario import Threads

VERSION: Final = "1.0.0"
OPTIONS: Final = {
    "delay_ms": Option(0.0),
    "fail": Option("never", ("never", "raise", "crash", "killed", "oom", "hang")),
    "fail_at": Option("predict", ("open", "predict")),
    "fail_after": Option(0),
}
OUT_OF_MEMORY_HEADROOM_BYTES: Final = 256 * 2**20


class NullPredictor:
    """Zeros of the declared types. One thread."""

    def __init__(self) -> None:
        self._outputs: tuple[np.ndarray[tuple[int, ...], np.dtype[np.generic]], ...] | None = None
        self._rows = 0
        self._delay_ns = 0
        self._fail = "never"
        self._working_calls = -1

    def open(self, model: OpenModel) -> Opened:
        """As Predictor; opens no file."""
        check_format("null", Null.formats, model)
        options = resolve_options("null", OPTIONS, model.options)
        if model.device != "cpu":
            raise DeviceUnavailableError("the null predictor runs on a CPU only")
        size = model.arguments.get("output_size", 10)
        if type(size) is not int or size < 1 or set(model.arguments) - {"output_size"}:
            raise ModelRefusedError(f"the null predictor has one argument, output_size >= 1; given: {model.arguments}")
        if options["fail"] != "never" and options["fail_at"] == "open":
            fail(str(options["fail"]))
        self._rows = model.batch_size
        self._outputs = tuple(_zeros(spec, model.batch_size, size) for spec in model.outputs)
        self._delay_ns = round(float(options["delay_ms"]) * 1e6)
        self._check = BatchCheck(model.inputs, "input")
        self._fail = str(options["fail"])
        self._working_calls = int(options["fail_after"]) if self._fail != "never" else -1
        return Opened(threads=Threads(intra_op=1, inter_op=1), options=options)

    def predict(self, batch: Batch) -> Outputs:
        """As Predictor; `delay_ms` of work, or the failure asked for."""
        began = time.perf_counter_ns()
        outputs = self._outputs
        if outputs is None:
            raise PredictError("the null predictor is not open")
        self._check(batch)
        if self._working_calls == 0:
            fail(self._fail)
        if self._working_calls > 0:
            self._working_calls -= 1
        rows = len(batch[0])
        if rows > self._rows:
            raise PredictError(f"a batch of {rows} items, opened for {self._rows}")
        while time.perf_counter_ns() - began < self._delay_ns:
            pass
        return outputs if rows == self._rows else tuple(output[:rows] for output in outputs)

    def close(self) -> None:
        """As Predictor."""
        self._outputs = None


class Null:
    """The framework that is always here."""

    name = "null"
    formats = ("null",)

    def version(self) -> str:
        """As Framework."""
        return VERSION

    def build(self) -> dict[str, str]:
        """As Framework."""
        return {"numpy": np.__version__}

    def unavailable(self, device: Device) -> str | None:
        """As Framework."""
        return None if device == "cpu" else "the null predictor runs on a CPU only"

    def create(self) -> NullPredictor:
        """As Framework."""
        return NullPredictor()


def fail(how: str) -> NoReturn:
    """Go wrong in the way that is asked for: raise RuntimeError or MemoryError, die by a signal, or never return."""
    if how == "oom":
        _exhaust_memory()
    if how in ("crash", "killed"):
        os.kill(os.getpid(), signal.SIGSEGV if how == "crash" else signal.SIGKILL)
    while how != "raise":
        time.sleep(3600)
    raise RuntimeError("the null predictor was asked to raise")


def _zeros(spec: TensorSpec, rows: int, size: int) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    return np.zeros((rows, *(spec.shape or (size,))), spec.element_type)


def _exhaust_memory() -> NoReturn:
    """Allocate until an allocation fails, under a limit not far above what the process has mapped now."""
    import resource  # POSIX only; the rest of the module is not

    with open("/proc/self/statm") as statm:
        mapped = int(statm.read().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    soft = mapped + OUT_OF_MEMORY_HEADROOM_BYTES
    hard = limits[1]
    resource.setrlimit(resource.RLIMIT_AS, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))
    held = []
    try:
        while True:
            held.append(np.ones(OUT_OF_MEMORY_HEADROOM_BYTES // 64, np.float64))
    finally:
        held.clear()
        resource.setrlimit(resource.RLIMIT_AS, limits)
