"""What an ONNX graph has, compared with what the manifest declares."""

from collections.abc import Sequence
from typing import Final, Protocol

from predictors.contract import OpenModel, TensorSpec
from predictors.errors import ModelRefusedError

ELEMENT_TYPES: Final = {
    "tensor(float16)": "float16",
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(int8)": "int8",
    "tensor(uint8)": "uint8",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
}


class Node(Protocol):
    """An input or output of a graph, as ONNX Runtime describes it."""

    name: str
    type: str
    shape: Sequence[int | str | None]


def check_tensors(model: OpenModel, what: str, declared: Sequence[TensorSpec], nodes: Sequence[Node]) -> None:
    """Raise ModelRefusedError unless the graph has what the manifest declares."""
    by_name = {node.name: node for node in nodes}
    names = {spec.name for spec in declared}
    if not names <= set(by_name) or (what == "input" and names != set(by_name)):
        raise ModelRefusedError(
            f"{model.name} {model.version}: the manifest declares the {what}s {', '.join(sorted(names))}, "
            f"the graph has {', '.join(by_name)}",
            hint=f"name the graph's own {what}s under '{what}s' of the manifest's entry for onnxruntime",
        )
    for spec in declared:
        node = by_name[spec.name]
        fits = ELEMENT_TYPES.get(node.type) == spec.element_type and _shape_fits(spec.shape, node.shape)
        if not fits:
            shape = ", ".join(str(axis) for axis in node.shape)
            raise ModelRefusedError(
                f"{model.name} {model.version}: {what} '{spec.name}' is {node.type} [{shape}] in the graph, "
                f"{spec.element_type} {list(spec.shape) or ''} an item in the manifest".rstrip()
            )


def _shape_fits(declared: tuple[int, ...], found: Sequence[int | str | None]) -> bool:
    if not declared or not found:
        return True
    axes = found[1:]
    return len(axes) == len(declared) and all(
        not isinstance(axis, int) or axis == size for axis, size in zip(axes, declared, strict=True)
    )


def fixed_batch(model: OpenModel, inputs: Sequence[Node]) -> int:
    """Return the size that the graph fixes its batch axis at, 0 when it does not. Raises ModelRefusedError."""
    fixed = {node.shape[0] for node in inputs if node.shape and isinstance(node.shape[0], int)}
    for size in fixed:
        if size != model.batch_size:
            raise ModelRefusedError(
                f"{model.name} {model.version}: asked for a batch of {model.batch_size}, "
                f"the graph's batch axis is fixed at {size}",
                hint=f"ask for batch_size {size}, or export the graph with a free batch axis",
            )
    return model.batch_size if fixed else 0
