"""Steps on arrays: what they compute, and that a batch gives what its items give."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from predictors.contract import Array
from predictors.errors import PipelineError
from predictors.pipeline.crop import CropOperation
from predictors.pipeline.form import Form, Operation
from predictors.pipeline.plan import build_plan
from predictors.pipeline.resize import ResizeOperation
from predictors.pipeline.tensor import CastOperation, NormalizeOperation, ReshapeOperation, TransposeOperation
from schemas.manifests import ModelInput
from schemas.steps import Cast, Crop, Normalize, Reshape, Resize, Transpose

TYPES = ("uint8", "int8", "int32", "int64", "float16", "float32", "float64")


def arrays(rank: int = 3, channels: int = 3) -> st.SearchStrategy[Array]:
    shapes = st.tuples(st.integers(1, 4), *[st.integers(1, 7)] * (rank - 1), st.just(channels))
    return st.sampled_from(TYPES).flatmap(
        lambda name: shapes.flatmap(lambda shape: hnp.arrays(name, shape, elements=_within(name)))
    )


def _within(name: str) -> st.SearchStrategy[Any]:
    """Numbers that every type holds: outside of it a cast is the platform's choice."""
    if name.startswith("float"):
        return st.floats(0, 100, width=16 if name == "float16" else 32 if name == "float32" else 64)
    return st.integers(0, 100)


def same_alone_and_together(operation: Operation, batch: Array) -> None:
    together = operation.apply(batch)
    alone = np.stack([operation.apply(item[None])[0] for item in batch])
    assert together.dtype == alone.dtype
    assert together.tobytes() == alone.tobytes()
    out = np.empty(together.shape, together.dtype)
    assert operation.apply(batch, out) is out
    assert out.tobytes() == together.tobytes()


@given(arrays(), st.sampled_from([((1.5,), (3.0,)), ((1.0, 2.0, 3.0), (0.1, 7.0, 58.395)), ((5.0,), (1.0, 2.0, 3.0))]))
def test_normalize_is_the_formula_in_float32(
    batch: Array, numbers: tuple[tuple[float, ...], tuple[float, ...]]
) -> None:
    """(x - mean) / scale with each operation in float32, bit for bit, alone and together, in any memory order."""
    mean, scale = numbers
    operation = NormalizeOperation(Normalize(mean=mean, scale=scale))
    expected = (batch.astype(np.float32) - np.array(mean, np.float32)) / np.array(scale, np.float32)
    assert operation.apply(batch).tobytes() == expected.tobytes()
    same_alone_and_together(operation, batch)
    first = NormalizeOperation(Normalize(mean=mean, scale=scale, channel_axis=0))
    turned = batch.transpose(0, 3, 1, 2)
    assert np.ascontiguousarray(first.apply(turned).transpose(0, 2, 3, 1)).tobytes() == expected.tobytes()


def test_normalize_of_many_channels_is_the_formula() -> None:
    batch = np.arange(3 * 40 * 2, dtype=np.int64).reshape(3, 40, 2)
    mean, scale = tuple(float(k) for k in range(40)), tuple(float(k + 1) for k in range(40))
    found = NormalizeOperation(Normalize(mean=mean, scale=scale, channel_axis=0)).apply(batch)
    expected = (batch.astype(np.float32) - np.array(mean, np.float32)[:, None]) / np.array(scale, np.float32)[:, None]
    assert np.array_equal(found, expected)


@pytest.mark.parametrize(
    ("mean", "scale"),
    [((0.0,), (1e-60,)), ((float("nan"),), (1.0,)), ((1.0, 2.0), (1.0, 2.0, 3.0)), ((1e300,), (1.0,)), ((), (1.0,))],
)
def test_numbers_that_cannot_be_used_are_refused(mean: tuple[float, ...], scale: tuple[float, ...]) -> None:
    with pytest.raises(PipelineError, match="expected mean and scale"):
        NormalizeOperation(Normalize(mean=mean, scale=scale))


@given(arrays(), st.sampled_from(TYPES))
def test_cast_is_astype(batch: Array, name: str) -> None:
    operation = CastOperation(Cast(element_type=name))
    assert operation.apply(batch).tobytes() == batch.astype(name).tobytes()
    same_alone_and_together(operation, batch)


def test_a_cast_to_integer_truncates() -> None:
    found = CastOperation(Cast(element_type="int32")).apply(np.array([[1.9, -1.9]]))
    assert found.tolist() == [[1, -1]]


@given(arrays())
def test_transposing_there_and_back_changes_nothing(batch: Array) -> None:
    there = TransposeOperation(Transpose(layout="CHW"))
    back = TransposeOperation(Transpose(layout="HWC"))
    turned = there.apply(batch)
    assert np.array_equal(turned[:, 1], batch[..., 1])
    assert np.array_equal(back.apply(turned), batch)
    same_alone_and_together(there, batch)


@given(arrays(), st.tuples(st.integers(1, 9), st.integers(1, 9)))
@settings(max_examples=50)
def test_crop_and_reshape_and_resize_give_together_what_they_give_alone(batch: Array, size: tuple[int, int]) -> None:
    height, width = batch.shape[1:3]
    same_alone_and_together(CropOperation(Crop(fraction=0.5), 100), batch)
    same_alone_and_together(ReshapeOperation(Reshape(shape=(width * 3, height))), batch)
    for name in ("uint8", "float32"):
        same_alone_and_together(ResizeOperation(Resize(dimensions=size), 100), batch.astype(name))


STEPS = st.lists(
    st.sampled_from(
        [
            Normalize(mean=(1.0, 2.0, 3.0), scale=(2.0, 3.0, 5.0)),
            Normalize(scale=(255.0,)),
            Cast(element_type="float32"),
            Cast(element_type="float64"),
            Crop(dimensions=(3, 4)),
            Resize(dimensions=(5, 6)),
            Transpose(layout="CHW"),
            Transpose(layout="HWC"),
            Reshape(shape=(4, 15)),
            Reshape(shape=(5, 4, 3)),
        ]
    ),
    max_size=5,
)


@given(STEPS, hnp.arrays("uint8", (3, 5, 4, 3)), st.integers(2, 3))
@settings(max_examples=300)
def test_any_list_of_steps_is_executed_in_its_order_or_refused(steps: list[Any], batch: Array, rows: int) -> None:
    """The plan's batch equals running step after step on one item, or is refused before anything runs."""
    kinds: dict[str, Any] = {
        "normalize": NormalizeOperation,
        "cast": CastOperation,
        "transpose": TransposeOperation,
        "reshape": ReshapeOperation,
    }
    form, item = Form("", batch.shape[1:], "uint8"), batch[:1]
    try:
        for step in steps:
            bounded: Any = {"crop": CropOperation, "resize": ResizeOperation}.get(step.step)
            operation = bounded(step, 1000) if bounded else kinds[step.step](step)
            form = operation.form(form)
            item = operation.apply(item)
    except PipelineError:
        with pytest.raises(PipelineError, match=r"input 'x', step \d"):
            _declared(steps, (1,), "uint8", batch)
        return
    plan = _declared(steps, item.shape[1:], item.dtype.name, batch)
    out = np.zeros((rows, *item.shape[1:]), item.dtype)
    room = plan.room(out)
    for k in range(rows):
        room[k] = plan.item(batch[k])
    plan.finish(room, out)
    assert np.ascontiguousarray(item[0]).tobytes() == out[0].tobytes()


def _declared(steps: list[Any], shape: tuple[int, ...], name: str, batch: Array) -> Any:
    declared = ModelInput.model_validate(
        {"type": "tensor", "name": "x", "shape": shape, "element_type": name, "steps": steps}
    )
    return build_plan(declared, 1000, Form("", batch.shape[1:], batch.dtype.name))
