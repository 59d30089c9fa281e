"""SingleStream latency inside the platform at trace level none, over the same framework in a bare loop.

One process, one opened model of some milliseconds, the same input: blocks of calls by LoadGen through the platform's
predictor and blocks of a bare loop of the framework's own call take turns, so that the machine's drift hits both.
The bare loop calls the very session or network that the predictor opened: two copies of one model lie differently in
memory, and differ by a percent for that alone.
The figure is the ratio of medians with a bootstrap interval over the pairs of blocks. Target: at most 1.01.
With as many framework threads as cores, whatever else wakes up meanwhile takes a core from one of them: that is
the first pair of rows; the second leaves a core free.
"""

import functools
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns
from typing import cast

import numpy as np
import numpy.typing as npt

from benchmarks.report import print_rows
from predictors.contract import OpenModel, Predictor, TensorSpec
from predictors.frameworks.onnxruntime import OnnxRuntime
from predictors.frameworks.pytorch import PyTorch
from predictors.scenarios import run_scenario
from schemas.scenario import Scenario, Seeds, Threads

PAIRS = 16
CALLS = 150
WARMUP = 20
CHANNELS, SIDE, LAYERS = 32, 56, 10
"""Convolutions that take about 3 ms on two cores."""

Array = npt.NDArray[np.float32]


def main() -> None:
    """Measure both frameworks, with every core and with one, and print the ratios."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        counts = sorted({os.cpu_count() or 1, 1}, reverse=True)
        print_rows([measure(directory, threads) for threads in counts for measure in (_onnxruntime, _pytorch)])


def _onnxruntime(directory: Path, threads: int) -> dict[str, object]:
    file = directory / "network.onnx"
    _write_onnx(file)
    predictor = OnnxRuntime().create()
    _open(predictor, "onnx", file, threads)
    session = predictor._session
    assert session is not None
    data = _input()
    call = functools.partial(session.run, ["y"], {"x": data})
    return _compare("onnxruntime", threads, predictor, data, call, directory)


def _pytorch(directory: Path, threads: int) -> dict[str, object]:
    import torch

    file = directory / "network.pt"
    torch.manual_seed(0)
    layers = [
        layer for _ in range(LAYERS) for layer in (torch.nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1), torch.nn.ReLU())
    ]
    network = torch.nn.Sequential(*layers).eval()
    torch.jit.trace(network, torch.zeros(1, CHANNELS, SIDE, SIDE)).save(str(file))  # type: ignore[no-untyped-call]
    predictor = PyTorch().create()
    _open(predictor, "torchscript", file, threads)
    bare = cast("Callable[[torch.Tensor], torch.Tensor]", predictor._network)
    data = _input()

    def call() -> object:
        with torch.inference_mode():
            return bare(torch.from_numpy(data)).numpy()

    return _compare("pytorch", threads, predictor, data, call, directory)


def _compare(
    name: str, threads: int, predictor: Predictor, data: Array, bare: Callable[[], object], directory: Path
) -> dict[str, object]:
    ratios, platform, loop = [], [], []
    for turn in range(PAIRS):
        if turn % 2 == 0:
            ours, theirs = _block_of_platform(predictor, data, directory), _block_of_loop(bare)
        else:
            theirs, ours = _block_of_loop(bare), _block_of_platform(predictor, data, directory)
        ratios.append(ours / theirs)
        platform.append(ours)
        loop.append(theirs)
    predictor.close()
    resampled = np.median(np.random.default_rng(0).choice(ratios, (10_000, PAIRS)), axis=1)
    low, high = np.quantile(resampled, [0.025, 0.975])
    return {
        "framework": name,
        "threads": threads,
        "bare loop median ms": round(float(np.median(loop)), 4),
        "platform median ms": round(float(np.median(platform)), 4),
        "ratio": round(float(np.median(ratios)), 4),
        "95 % interval": f"{low:.4f} to {high:.4f}",
        "target": "at most 1.01",
    }


def _block_of_platform(predictor: Predictor, data: Array, directory: Path) -> float:
    def predict(index: int) -> None:
        predictor.predict((data,))

    measured = run_scenario(
        Scenario(min_duration_s=0, max_duration_s=60, min_query_count=CALLS, warmup_query_count=WARMUP),
        predict,
        [1],
        Seeds(),
        log_dir=directory,
        cancelled=lambda: False,
    )
    taken = (measured.completed_ns - measured.issued_ns)[~measured.warmup.astype(bool)]
    return float(np.median(taken)) / 1e6


def _block_of_loop(bare: Callable[[], object]) -> float:
    taken = []
    for _ in range(WARMUP + CALLS):
        started = perf_counter_ns()
        bare()
        taken.append(perf_counter_ns() - started)
    return float(np.median(taken[WARMUP:])) / 1e6


def _open(predictor: Predictor, format_: str, file: Path, threads: int) -> None:
    shape = (CHANNELS, SIDE, SIDE)
    predictor.open(
        OpenModel(
            name="network",
            version="1.0.0",
            format=format_,
            graph=file,
            threads=Threads(intra_op=threads),
            inputs=(TensorSpec("x", "float32", shape),),
            outputs=(TensorSpec("y", "float32", shape),),
        )
    )


def _input() -> Array:
    return np.random.default_rng(0).standard_normal((1, CHANNELS, SIDE, SIDE), dtype=np.float32)


def _write_onnx(file: Path) -> None:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(0)
    nodes, weights, last = [], [], "x"
    for layer in range(LAYERS):
        kernel = random.standard_normal((CHANNELS, CHANNELS, 3, 3), dtype=np.float32) / (3 * CHANNELS**0.5)
        weights.append(numpy_helper.from_array(kernel, f"w{layer}"))
        out = "y" if layer == LAYERS - 1 else f"r{layer}"
        nodes.append(helper.make_node("Conv", [last, f"w{layer}"], [f"c{layer}"], pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Relu", [f"c{layer}"], [out]))
        last = out
    shape: list[str | int | None] = ["batch", CHANNELS, SIDE, SIDE]
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        weights,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), str(file))


if __name__ == "__main__":
    main()
