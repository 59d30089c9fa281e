"""The null predictor: zeros at once, or the failure that was asked for."""

import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from predictors.contract import OpenModel, TensorSpec
from predictors.errors import DeviceUnavailableError, ModelRefusedError, PredictError, UnknownOptionError
from predictors.frameworks.null import Null

MODEL = OpenModel(
    name="null",
    version="1.0.0",
    format="null",
    inputs=(TensorSpec("x", "float32", (2,)),),
    outputs=(TensorSpec("a", "float32"), TensorSpec("b", "int64", (3, 4))),
    arguments={"output_size": 7},
    batch_size=5,
)
BATCH = [np.zeros((5, 2), np.float32)]


def test_outputs_are_of_the_declared_types_and_shapes() -> None:
    """`output_size` elements where the manifest gives no shape; the arrays are given out again."""
    predictor = Null().create()
    predictor.open(MODEL)
    first, second = predictor.predict(BATCH)
    assert (first.dtype.name, first.shape) == ("float32", (5, 7))
    assert (second.dtype.name, second.shape) == ("int64", (5, 3, 4))
    assert predictor.predict(BATCH)[0] is first
    assert predictor.predict([BATCH[0][:2]])[1].shape == (2, 3, 4)
    with pytest.raises(PredictError, match="opened for 5"):
        predictor.predict([np.zeros((6, 2), np.float32)])


def test_a_delay_is_at_least_as_long_as_asked_for() -> None:
    """`delay_ms` is busy work inside the prediction."""
    predictor = Null().create()
    predictor.open(replace(MODEL, options={"delay_ms": 3}))
    began = time.perf_counter_ns()
    predictor.predict(BATCH)
    assert time.perf_counter_ns() - began >= 3_000_000


def test_it_fails_after_as_many_predictions_as_asked_for() -> None:
    """`fail_after` predictions work, the next raises what a framework would raise."""
    predictor = Null().create()
    predictor.open(replace(MODEL, options={"fail": "raise", "fail_after": 2}))
    for _ in range(2):
        predictor.predict(BATCH)
    with pytest.raises(RuntimeError, match="asked to raise"):
        predictor.predict(BATCH)


def test_it_can_fail_while_opening() -> None:
    """`fail_at: open` lets no model open."""
    with pytest.raises(RuntimeError, match="asked to raise"):
        Null().create().open(replace(MODEL, options={"fail": "raise", "fail_at": "open"}))


@pytest.mark.parametrize(
    "changes",
    [{"options": {"fail": "sometimes"}}, {"options": {"delay_ms": "long"}}, {"options": {"fail_after": 1.5}}],
)
def test_options_that_cannot_be_are_refused(changes: dict[str, object]) -> None:
    """The value is named in the error."""
    with pytest.raises(UnknownOptionError, match=r"sometimes|long|1\.5"):
        Null().create().open(replace(MODEL, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("arguments", [{"output_size": 0}, {"output_size": "10"}, {"size": 3}])
def test_arguments_that_cannot_be_are_refused(arguments: dict[str, int | str]) -> None:
    """A manifest's mistake is not run."""
    with pytest.raises(ModelRefusedError, match="output_size"):
        Null().create().open(replace(MODEL, arguments=dict(arguments)))


def test_it_has_no_gpu() -> None:
    """It says so instead of pretending."""
    with pytest.raises(DeviceUnavailableError):
        Null().create().open(replace(MODEL, device="gpu"))


def in_a_process_of_its_own(how: str, then: str = "") -> subprocess.Popen[str]:
    """Start a process that makes the null predictor fail in a prediction."""
    script = f"""
from dataclasses import replace
from tests.unit.test_null_predictor import BATCH, MODEL, Null
predictor = Null().create()
predictor.open(replace(MODEL, options={{"fail": "{how}"}}))
print("open", flush=True)
try:
    predictor.predict(BATCH)
except BaseException as error:
    print("a MemoryError:", isinstance(error, MemoryError), flush=True)
{then}
"""
    return subprocess.Popen(
        [sys.executable, "-c", script], cwd=Path(__file__).resolve().parents[2], stdout=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize(("how", "by"), [("crash", signal.SIGSEGV), ("killed", signal.SIGKILL)])
def test_it_dies_as_asked_for(how: str, by: signal.Signals) -> None:
    """The process is gone, by the signal that a crash or the kernel would send."""
    process = in_a_process_of_its_own(how)
    assert process.communicate(timeout=60)[0] == "open\n"
    assert process.returncode == -by


def test_out_of_memory_is_a_real_failed_allocation_that_can_be_survived() -> None:
    """MemoryError, and afterwards the process can allocate again."""
    process = in_a_process_of_its_own("oom", "import numpy; numpy.ones(2**26); print('alive')")
    lines = process.communicate(timeout=60)[0].splitlines()
    assert lines[1].endswith("True")
    assert lines[2] == "alive"


def test_hanging_never_returns() -> None:
    """The process lives and says nothing until it is killed."""
    process = in_a_process_of_its_own("hang")
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.3)
    process.kill()
    process.communicate()
