"""Outputs to predictions, and predictions to an accuracy."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from predictors.data.datasets import Item
from predictors.errors import PipelineError
from predictors.pipeline import OutputPipeline, Prediction
from predictors.pipeline.output import softmax
from predictors.worker.scoring import score
from schemas.manifests import ModelOutput
from schemas.steps import AssetRef


def no_fetch(asset: AssetRef) -> Path:
    raise AssertionError(f"nothing names {asset}")


def pipeline(steps: list[Any], class_names: tuple[str, ...] = (), **more: Any) -> OutputPipeline:
    output = {"type": "classification", "name": "prob", "steps": steps, **more}
    return OutputPipeline([ModelOutput.model_validate(output)], no_fetch, class_names)


def items(*labels: str) -> list[Item]:
    return [Item(k, f"item-{k}", label) for k, label in enumerate(labels)]


def floats(*rows: list[float]) -> list[np.ndarray[Any, np.dtype[np.generic]]]:
    return [np.array(rows, np.float32)]


def test_classes_come_best_first_with_scores_and_names() -> None:
    names = ("a", "b", "c", "d", "e", "f")
    (found,) = pipeline(["argsort"], names).apply(floats([0, 5, 1, 4, 2, 3]), items("3"))
    assert found.classes == (1, 3, 5, 4, 2)
    assert found.scores == (5, 4, 3, 2, 1)
    assert found.names == ("b", "d", "f", "e", "c")
    assert (found.correct_top1, found.correct_top5) == (False, True)
    assert (found.index, found.id, found.label, found.error) == (0, "item-0", "3", "")


def test_equal_scores_go_by_rising_class_index() -> None:
    (found,) = pipeline(["argsort"]).apply(floats([1, 2, 2, 0, 2, 1, 0]), items("4"))
    assert found.classes == (1, 2, 4, 0, 5)


def test_fewer_than_five_classes_are_all_told() -> None:
    (found,) = pipeline(["softmax", "argsort"]).apply(floats([0, 0]), items("0"))
    assert found.classes == (0, 1)
    assert found.scores == (0.5, 0.5)
    assert found.correct_top1


@given(hnp.arrays("float32", (3, 9), elements=st.floats(-(2.0**99), 2.0**99, width=32)))
def test_softmax_is_stable_and_sums_to_one(logits: Any) -> None:
    found = softmax(logits.astype(np.float64))
    assert found.dtype == np.float64
    assert np.allclose(found.sum(axis=1), 1)
    assert (found >= 0).all()


def test_softmax_is_the_formula() -> None:
    found = softmax(np.array([[1.0, 2.0, 3.0], [1001.0, 1002.0, 1003.0]]))
    expected = np.exp([1.0, 2.0, 3.0]) / np.exp([1.0, 2.0, 3.0]).sum()
    assert np.allclose(found, expected, rtol=1e-14)


@given(hnp.arrays("float32", (4, 11), elements=st.floats(width=32, allow_nan=True, allow_infinity=True)))
def test_no_number_stops_a_prediction(logits: Any) -> None:
    """NaN and infinity are ranked like the definition says: by score, then index, NaN nowhere."""
    steps: list[list[Any]] = [["argsort"], ["softmax", "argsort"]]
    for each in steps:
        for row, found in zip(logits, pipeline(each).apply([logits], items(*"0123")), strict=True):
            assert not any(np.isnan(found.scores))
            if each == ["argsort"]:
                valid = [c for c in range(11) if not np.isnan(row[c])]
                assert list(found.classes) == sorted(valid, key=lambda c: (-row[c], c))[:5]


def test_a_row_without_numbers_is_no_prediction_and_is_counted() -> None:
    """Class 0 must not be right because nothing was said."""
    nan = float("nan")
    outputs = pipeline(["softmax", "argsort"])
    first, second = outputs.apply(floats([nan, nan], [1, 0]), items("0", "0"))
    assert first.classes == ()
    assert not first.correct_top1
    assert not first.correct_top5
    assert second.correct_top1
    assert outputs.not_finite == 1


def test_a_background_class_shifts_the_numbering_and_is_never_right() -> None:
    """With a background at 0 the network's class 1 is the data set's class 0; background keeps its own name."""
    steps = [{"argsort": {"first_label_index": 1, "labels": ["background", "cat", "dog"]}}]
    cat, nothing = pipeline(steps).apply(floats([1, 3, 2], [9, 3, 2]), items("0", "-1"))
    assert cat.classes == (0, -1 + 2, -1)
    assert cat.names == ("cat", "dog", "background")
    assert cat.correct_top1
    assert nothing.classes[0] == -1
    assert nothing.names[0] == "background"
    assert not nothing.correct_top1
    assert not nothing.correct_top5


def test_a_background_class_takes_names_of_the_data_set_by_its_numbering() -> None:
    (found,) = pipeline([{"argsort": {"first_label_index": 1}}], ("cat", "dog")).apply(floats([0, 3, 2]), items("cat"))
    assert found.names == ("cat", "dog", "-1")
    assert found.correct_top1


def test_a_label_may_be_a_name_of_the_data_set() -> None:
    found = pipeline(["argsort"], ("cat", "dog")).apply(floats([1, 2], [1, 2]), items("dog", "cat"))
    assert [one.correct_top1 for one in found] == [True, False]


def test_a_name_that_two_classes_share_is_right_for_both() -> None:
    """ImageNet has two cranes."""
    found = pipeline(["argsort"], ("crane", "crane", "dog")).apply(
        floats([0, 2, 1], [2, 1, 0]), items("crane", "crane")
    )
    assert [one.correct_top1 for one in found] == [True, True]


def test_without_class_names_a_label_is_a_name_of_the_networks() -> None:
    steps = [{"argsort": {"labels": ["background", "cat", "dog"], "first_label_index": 1}}]
    (found,) = pipeline(steps).apply(floats([0, 1, 2]), items("dog"))
    assert found.correct_top1


def test_a_label_that_no_class_has_is_an_error_and_not_an_accuracy_of_zero() -> None:
    with pytest.raises(PipelineError, match="label 'bird' of the data set is neither"):
        pipeline(["argsort"], ("cat", "dog")).apply(floats([0, 1]), items("bird"))


def test_an_item_without_a_label_is_predicted_and_never_right() -> None:
    (found,) = pipeline(["argsort"], ("cat", "dog")).apply(floats([0, 1]), items(""))
    assert found.names == ("dog", "cat")
    assert not found.correct_top5


def test_labels_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "labels.txt"
    path.write_bytes(b"\xef\xbb\xbftench, Tinca tinca\r\ngoldfish\r\n\r\n")
    asset = {"url": "file:labels.txt", "sha256": "0" * 64}
    output = {"type": "classification", "name": "p", "steps": [{"argsort": {"labels": asset}}]}
    labelled = OutputPipeline([ModelOutput.model_validate(output)], lambda _: path, ())
    (found,) = labelled.apply(floats([1, 0]), items("1"))
    assert found.names == ("tench, Tinca tinca", "goldfish")
    with pytest.raises(PipelineError, match="expected 3 labels, one a class, found 2"):
        labelled.apply(floats([1, 0, 2]), items("1"))
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PipelineError, match="no text of one label a line"):
        OutputPipeline([ModelOutput.model_validate(output)], lambda _: path, ())


def test_axes_of_length_one_are_no_classes() -> None:
    """Networks that end in a pooling give (classes, 1, 1)."""
    outputs = [np.array([[1, 3, 2]], np.float32).reshape(1, 3, 1, 1)]
    (found,) = pipeline(["softmax", "argsort"]).apply(outputs, items("1"))
    assert found.classes == (1, 2, 0)


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ([], "expected 1 outputs"),
        (floats([1, 2], [3, 4]), r"output 'prob': expected 1 rows, one an item, found shape \(2, 2\)"),
        ([np.zeros((1, 2), np.float64)], "expected float32 as declared, found float64"),
        ([np.zeros((1, 2, 3), np.float32)], r"expected one score a class, found shape \(1, 2, 3\)"),
        ([np.zeros((1, 0), np.float32)], "expected one score a class"),
        ([np.float32(3)], "expected 1 rows"),
    ],
)
def test_outputs_of_the_wrong_shape_are_refused(outputs: Any, message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        pipeline(["argsort"]).apply(outputs, items("0"))


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ([("classification", ["softmax"])], "expected one argsort, as its last step, found softmax"),
        ([("classification", [])], "found no step"),
        ([("classification", ["argsort", "softmax"])], "as its last step"),
        ([("classification", ["argsort", "argsort"])], "expected one argsort"),
        ([("raw", ["softmax"])], "expected no step but raw, found softmax"),
        ([("classification", ["argsort"])] * 2, "expected one output of type classification"),
    ],
)
def test_output_steps_that_have_no_effect_are_refused(outputs: list[tuple[str, list[str]]], message: str) -> None:
    declared = [
        ModelOutput.model_validate({"type": kind, "name": f"o{k}", "steps": steps})
        for k, (kind, steps) in enumerate(outputs)
    ]
    with pytest.raises(PipelineError, match=message):
        OutputPipeline(declared, no_fetch, ())


def test_raw_outputs_have_a_digest_and_no_classes() -> None:
    """The digest is of all outputs' numbers of the item, little-endian and in C order, however they came."""
    declared = [
        ModelOutput.model_validate({"type": "raw", "name": name, "element_type": kind, "steps": ["raw"]})
        for name, kind in (("boxes", "float32"), ("ids", "int64"))
    ]
    raw = OutputPipeline(declared, no_fetch, ())
    boxes = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    ids = np.array([7, 8], np.int64)
    expected = [hashlib.sha256(boxes[k].tobytes() + ids[k].tobytes()).hexdigest() for k in range(2)]
    for form in (boxes, np.asfortranarray(boxes), boxes.astype(">f4")):
        found = raw.apply([form, ids], items("", "x"))
        assert [one.output_digest for one in found] == expected
        assert found[0].classes == ()
        assert not found[0].correct_top5
    assert not raw.classifies


@given(hnp.arrays("float32", (6, 8), elements=st.floats(-5, 5, width=32)))
def test_a_batch_gives_what_its_items_give(logits: Any) -> None:
    together = pipeline(["softmax", "argsort"]).apply([logits], items(*"012345"))
    for k, item in enumerate(items(*"012345")):
        assert pipeline(["softmax", "argsort"]).apply([logits[k : k + 1]], [item]) == [together[k]]


def test_an_empty_batch_has_no_predictions() -> None:
    assert pipeline(["argsort"]).apply([np.zeros((0, 3), np.float32)], []) == []


def test_quantised_scores_are_ranked_without_overflow() -> None:
    (found,) = pipeline(["argsort"], element_type="uint8").apply([np.array([[0, 255, 128]], np.uint8)], items("1"))
    assert found.classes == (1, 2, 0)


def _predictions(*correct: tuple[bool, bool]) -> list[Prediction]:
    return [Prediction(k, str(k), "", correct_top1=a, correct_top5=b) for k, (a, b) in enumerate(correct)]


def test_accuracy_is_over_the_items_asked_for() -> None:
    """Two of four right, of five asked for with one unreadable, are 0.4 and not 0.5."""
    predictions = _predictions((True, True), (False, True), (True, True), (False, False))
    accuracy = score(predictions, asked=5, unreadable=1)
    assert accuracy.top1.value == pytest.approx(0.4)
    assert accuracy.top5.value == pytest.approx(0.6)
    assert (accuracy.asked, accuracy.unreadable) == (5, 1)
    assert accuracy.top1.low is not None
    assert accuracy.top1.high is not None
    assert accuracy.top1.low < 0.4 < accuracy.top1.high
    bad = Prediction.unreadable(Item(4, "4", ""), "torn")
    assert score([*predictions, bad], asked=5, unreadable=1) == accuracy


def test_more_items_than_asked_for_are_refused() -> None:
    with pytest.raises(ValueError, match="of 4 asked for"):
        score(_predictions(*[(True, True)] * 4), asked=4, unreadable=1)


def test_an_accuracy_of_nothing_has_no_value() -> None:
    assert score([], asked=0, unreadable=0).top1.value is None
    assert score([], asked=3, unreadable=3).top1.value == 0
