"""What every predictor must hold, run against every implementation on every device it can use here."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from predictors.contract import Array, OpenModel, Predictor, TensorSpec
from predictors.errors import ModelRefusedError, PredictError, UnknownOptionError
from predictors.frameworks.registry import framework_names, load_framework
from schemas.evaluation import Device
from schemas.scenario import Threads

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
ASSETS = Path(__file__).resolve().parents[2] / "manifests" / "assets"
DIGITS = OpenModel(
    name="digits-cnn",
    version="1.0.0",
    format="onnx",
    inputs=(TensorSpec("image", "float32", (1, 8, 8)),),
    outputs=(TensorSpec("logits", "float32", (10,)),),
    batch_size=8,
)
Floats = npt.NDArray[np.float32]
Reference = Callable[[Floats], Floats]


def _onnxruntime_itself() -> Reference:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(ASSETS / "digits-cnn.onnx"), providers=["CPUExecutionProvider"])

    def run(x: Floats) -> Floats:
        result: Floats = session.run(["logits"], {"image": x})[0]
        return result

    return run


def _pytorch_itself() -> Reference:
    import torch

    network = torch.jit.load(str(ASSETS / "digits-cnn.torchscript.pt"))  # type: ignore[no-untyped-call]

    def run(x: Floats) -> Floats:
        with torch.inference_mode():
            result: Floats = network(torch.from_numpy(x)).numpy()
        return result

    return run


def _nothing() -> Reference:
    return lambda x: np.zeros((len(x), 10), np.float32)


@dataclass(frozen=True)
class Case:
    """One implementation: the digits model in a format of its own, and the framework called without the platform."""

    framework: str
    model: OpenModel
    itself: Callable[[], Reference]
    reads_files: bool = True


CASES = (
    Case("null", replace(DIGITS, format="null"), _nothing, reads_files=False),
    Case("onnxruntime", replace(DIGITS, graph=ASSETS / "digits-cnn.onnx"), _onnxruntime_itself),
    Case("pytorch", replace(DIGITS, format="torchscript", graph=ASSETS / "digits-cnn.torchscript.pt"), _pytorch_itself),
)


def _on_devices(cases: tuple[Case, ...]) -> list[object]:
    devices: tuple[Device, ...] = ("cpu", "gpu")
    return [
        pytest.param(replace(case, model=replace(case.model, device=device)), id=f"{case.framework}-{device}")
        for case in cases
        for device in devices
        if load_framework(case.framework).unavailable(device) is None
    ]


READS_FILES = tuple(case for case in CASES if case.reads_files)


@pytest.fixture(params=_on_devices(CASES))
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = request.param
    return found


@pytest.fixture
def predictor(case: Case) -> Iterator[Predictor]:
    made = load_framework(case.framework).create()
    yield made
    made.close()


@pytest.fixture(scope="session")
def images() -> Floats:
    """The 500 test images as the network takes them: float32 [500, 1, 8, 8] of 0..1."""
    with np.load(ASSETS / "digits-test.npz") as file:
        return np.asarray(file["x"][:, None] / 16, np.float32)


def test_every_declared_framework_is_held_to_this_contract() -> None:
    """A framework that the platform ships cannot be left out of this suite, and each one runs here on a CPU."""
    assert {case.framework for case in CASES} == set(framework_names())
    for case in CASES:
        assert load_framework(case.framework).unavailable("cpu") is None


def test_a_framework_says_what_it_is(case: Case) -> None:
    """Name, formats, version and build are text that can be recorded."""
    framework = load_framework(case.framework)
    assert framework.name == case.framework
    assert case.model.format in framework.formats
    assert framework.version()
    assert all(isinstance(value, str) and value for value in framework.build().values())


def test_a_model_opens_predicts_and_closes(case: Case, predictor: Predictor, images: Floats) -> None:
    """Outputs are one array a declared output: the batch first, the declared type, contiguous."""
    predictor.open(case.model)
    outputs = predictor.predict([images[:8]])
    assert len(outputs) == 1
    assert outputs[0].shape == (8, 10)
    assert outputs[0].dtype == np.float32
    assert outputs[0].flags.c_contiguous
    predictor.close()


def test_closing_twice_is_fine_and_predicting_after_it_is_an_error(
    case: Case, predictor: Predictor, images: Floats
) -> None:
    """close() is idempotent; a closed predictor says so instead of answering."""
    predictor.open(case.model)
    predictor.close()
    predictor.close()
    with pytest.raises(PredictError, match="open"):
        predictor.predict([images[:8]])


def test_closing_works_without_and_after_a_failed_open(case: Case, predictor: Predictor) -> None:
    """close() is safe at any point of a predictor's life."""
    predictor.close()
    with pytest.raises(ModelRefusedError):
        predictor.open(replace(case.model, format="no-such-format"))
    predictor.close()


@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_batches_of_any_size_run_and_the_last_may_be_smaller(
    case: Case, predictor: Predictor, images: Floats, batch_size: int
) -> None:
    """Splitting a data set into batches changes no prediction, also when it does not divide evenly."""
    predictor.open(replace(case.model, batch_size=batch_size))
    reference = case.itself()(images[:100])
    rows = [
        np.array(predictor.predict([images[start : min(start + batch_size, 100)]])[0], np.float32)
        for start in range(0, 100, batch_size)
    ]
    assert float(np.abs(np.concatenate(rows) - reference).max()) < 1e-5


def test_it_gives_what_the_framework_gives_used_directly(case: Case, predictor: Predictor, images: Floats) -> None:
    """The platform adds nothing to a prediction: same batch, same bits."""
    predictor.open(case.model)
    np.testing.assert_array_equal(predictor.predict([images[:8]])[0], case.itself()(images[:8]))


def test_the_same_batch_gives_the_same_bits(case: Case, predictor: Predictor, images: Floats) -> None:
    """Predictions do not depend on what ran before. Outputs may be reused, so a caller that keeps one copies it."""
    predictor.open(case.model)
    first = predictor.predict([images[:8]])[0].copy()
    predictor.predict([images[8:16]])
    np.testing.assert_array_equal(predictor.predict([images[:8]])[0], first)


def test_read_only_inputs_are_taken_and_left_as_they_are(
    case: Case, predictor: Predictor, images: Floats, recwarn: pytest.WarningsRecorder
) -> None:
    """Prepared inputs may be read-only memory maps: no warning, no change."""
    predictor.open(case.model)
    batch = images[:8].copy()
    batch.flags.writeable = False
    predictor.predict([batch])
    np.testing.assert_array_equal(batch, images[:8])
    assert not [str(warning.message) for warning in recwarn if "writable" in str(warning.message)]


def test_thread_counts_are_set_and_read_back(case: Case, predictor: Predictor) -> None:
    """What is recorded is what is in force: the number asked for, or the default as a number."""
    opened = predictor.open(replace(case.model, threads=Threads(intra_op=1)))
    assert opened.threads.intra_op == 1
    predictor.close()
    default = load_framework(case.framework).create()
    threads = default.open(case.model).threads
    default.close()
    assert (threads.intra_op or 0) >= 1
    assert (threads.inter_op or 0) >= 1


def test_an_unknown_option_is_refused_and_the_known_ones_named(case: Case, predictor: Predictor) -> None:
    """A typo in an option never runs as if it had not been there."""
    with pytest.raises(UnknownOptionError, match="no_such_option") as caught:
        predictor.open(replace(case.model, options={"no_such_option": 1}))
    defaults = load_framework(case.framework).create()
    known = set(defaults.open(case.model).options) - {"device"}
    defaults.close()
    assert known
    assert all(name in caught.value.hint for name in known)


def test_an_option_of_the_wrong_type_is_refused(case: Case, predictor: Predictor) -> None:
    """An option's value is checked before anything is loaded."""
    defaults = load_framework(case.framework).create()
    name = next(iter(defaults.open(case.model).options))
    defaults.close()
    with pytest.raises(UnknownOptionError, match=name):
        predictor.open(replace(case.model, options={name: ["never"]}))  # type: ignore[dict-item]


@pytest.mark.parametrize("case", _on_devices(READS_FILES), indirect=True)
def test_a_missing_file_is_refused_by_name(case: Case, predictor: Predictor, tmp_path: Path) -> None:
    """A file that is not there is one clear error, whatever the framework would say."""
    with pytest.raises(ModelRefusedError, match="gone"):
        predictor.open(replace(case.model, graph=tmp_path / "gone"))
    with pytest.raises(ModelRefusedError, match="graph"):
        predictor.open(replace(case.model, graph=None))


@pytest.mark.parametrize("case", _on_devices(READS_FILES), indirect=True)
@pytest.mark.parametrize("content", [b"", b"garbage that is no model", b"PK\x03\x04 cut off"])
def test_garbage_is_refused_with_the_frameworks_words(
    case: Case, predictor: Predictor, tmp_path: Path, content: bytes
) -> None:
    """A damaged file never crashes the process; the framework's own message is in the error."""
    damaged = tmp_path / "damaged"
    damaged.write_bytes(content)
    with pytest.raises(ModelRefusedError, match=r"does not accept digits-cnn 1\.0\.0: .{10}") as caught:
        predictor.open(replace(case.model, graph=damaged))
    assert caught.value.hint
    assert caught.value.detail


@pytest.mark.parametrize(
    ("batch", "problem"),
    [
        ([], "0 inputs"),
        ([np.zeros((8, 1, 8, 8), np.float32)] * 2, "2 inputs"),
        ([np.zeros((8, 1, 8, 8), np.float64)], "float64"),
        ([np.zeros((8, 1, 9, 8), np.float32)], "8, 1, 9, 8"),
        ([np.zeros((8, 64), np.float32)], "8, 64"),
    ],
)
def test_a_batch_that_is_not_as_declared_is_refused(
    case: Case, predictor: Predictor, batch: list[Array], problem: str
) -> None:
    """Wrong counts, types and shapes are told with what was found, and the predictor goes on working."""
    predictor.open(case.model)
    with pytest.raises(PredictError, match=problem):
        predictor.predict(batch)
    assert predictor.predict([np.zeros((8, 1, 8, 8), np.float32)])[0].shape == (8, 10)


def test_a_gpu_that_is_not_here_has_a_reason(case: Case) -> None:
    """Without a GPU the reason says what is missing, and opening there is refused with it."""
    framework = load_framework(case.framework)
    reason = framework.unavailable("gpu")
    if reason is None:
        pytest.skip("a GPU is here")
    assert len(reason) > 20
    made = framework.create()
    with pytest.raises(Exception, match=r"GPU|CUDA|CPU only"):
        made.open(replace(case.model, device="gpu"))
    made.close()


def test_both_frameworks_agree_on_every_digits_test_image(images: Floats) -> None:
    """The same parameters give the same class for all 500 images, and logits within 1e-5."""
    logits = {}
    for case in CASES[1:]:
        made = load_framework(case.framework).create()
        made.open(replace(case.model, batch_size=500))
        logits[case.framework] = np.array(made.predict([images])[0], np.float32)
        made.close()
    with np.load(ASSETS / "digits-test.npz") as file:
        labels = file["y"]
    assert float(np.abs(logits["onnxruntime"] - logits["pytorch"]).max()) < 1e-5
    for each in logits.values():
        np.testing.assert_array_equal(each.argmax(1), logits["pytorch"].argmax(1))
        assert (each.argmax(1) == labels).sum() == 488
