"""Train the digits model that ships with the platform and write its files.

    python infra/train_digits.py [--out DIR]      write the three files (default: manifests/assets)
    python infra/train_digits.py --check          train again and compare with the files that are there

Data: "Optical Recognition of Handwritten Digits", UCI machine learning repository (E. Alpaydin, C. Kaynak, 1998,
https://doi.org/10.24432/C50P49), CC BY 4.0, as scikit-learn ships it: 1,797 images of 8x8, values 0..16.
A seeded permutation makes the split: 500 images are tested on, the other 1,297 trained on.

One set of parameters is written twice, as ONNX and as TorchScript. Run again on the same machine with the same
library versions it gives the same bytes. Another processor or another version of PyTorch adds floats up in
another order: the split is still the same, the parameters agree only roughly, which is why the files are kept.
"""

import argparse
import hashlib
import io
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits
from torch import nn

ASSETS = Path(__file__).resolve().parent.parent / "manifests" / "assets"
ONNX_FILE, TORCHSCRIPT_FILE, TEST_FILE = "digits-cnn.onnx", "digits-cnn.torchscript.pt", "digits-test.npz"
TEST_ITEMS = 500
SPLIT_SEED, WEIGHT_SEED = 20, 4
EPOCHS, BATCH, LEARNING_RATE, WEIGHT_DECAY = 80, 64, 4e-3, 1e-3
OPSET, IR_VERSION = 13, 8
"""Old enough for every ONNX Runtime the platform supports."""

Pixels = npt.NDArray[np.uint8]

FORWARD = """
def forward(self, image: Tensor) -> Tensor:
    hidden = torch.max_pool2d(torch.relu(torch.conv2d(image, self.weight_1, self.bias_1, padding=[1, 1])), [2, 2])
    hidden = torch.max_pool2d(torch.relu(torch.conv2d(hidden, self.weight_2, self.bias_2, padding=[1, 1])), [2, 2])
    return torch.addmm(self.bias_3, torch.flatten(hidden, 1), torch.t(self.weight_3))
"""
NAMES = ("weight_1", "bias_1", "weight_2", "bias_2", "weight_3", "bias_3")


def main() -> int:
    """Train, then write or compare."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    arguments.add_argument("--out", type=Path, default=ASSETS, help="directory of the files")
    arguments.add_argument("--check", action="store_true", help="compare with the files there, write nothing")
    options = arguments.parse_args()
    train_x, train_y, test_x, test_y = split()
    network = train(train_x, train_y)
    with torch.inference_mode():
        right = int((network(scaled(test_x)).argmax(1).numpy() == test_y).sum())
    print(f"{sum(p.numel() for p in network.parameters())} parameters, {right} of {len(test_y)} test images right")
    parameters = [p.detach().numpy() for p in network.parameters()]
    files = {
        ONNX_FILE: onnx_bytes(parameters),
        TORCHSCRIPT_FILE: torchscript_bytes(parameters),
        TEST_FILE: npz_bytes(test_x, test_y),
    }
    return compare(options.out, files) if options.check else write(options.out, files)


def split() -> tuple[Pixels, npt.NDArray[np.uint8], Pixels, npt.NDArray[np.uint8]]:
    """Return train x, train y, test x, test y: x [n, 8, 8] of 0..16, y [n] of 0..9."""
    digits = load_digits()
    x, y = digits.images.astype(np.uint8), digits.target.astype(np.uint8)
    order = np.random.default_rng(SPLIT_SEED).permutation(len(x))
    test, rest = np.sort(order[:TEST_ITEMS]), np.sort(order[TEST_ITEMS:])
    return x[rest], y[rest], x[test], y[test]


def scaled(x: Pixels) -> torch.Tensor:
    """Return what the network takes: float32 [n, 1, 8, 8] of 0..1."""
    return torch.from_numpy(x[:, None].astype(np.float32) / np.float32(16))


def train(x: Pixels, y: npt.NDArray[np.uint8]) -> nn.Sequential:
    """Return the trained network: two convolutions and a linear layer."""
    torch.manual_seed(WEIGHT_SEED)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    network = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64, 10),
    )
    inputs, labels = scaled(x), torch.from_numpy(y.astype(np.int64))
    optimizer = torch.optim.AdamW(network.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(inputs)).split(BATCH):  # type: ignore[no-untyped-call]
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(inputs[batch]), labels[batch]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        schedule.step()
    return network.eval()


def onnx_bytes(parameters: list[npt.NDArray[np.float32]]) -> bytes:
    """Return the network as ONNX, built node by node so that nothing of this machine is in it."""
    nodes = [
        helper.make_node("Conv", ["image", "weight_1", "bias_1"], ["conv_1"], pads=[1, 1, 1, 1], kernel_shape=[3, 3]),
        helper.make_node("Relu", ["conv_1"], ["relu_1"]),
        helper.make_node("MaxPool", ["relu_1"], ["pool_1"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["pool_1", "weight_2", "bias_2"], ["conv_2"], pads=[1, 1, 1, 1], kernel_shape=[3, 3]),
        helper.make_node("Relu", ["conv_2"], ["relu_2"]),
        helper.make_node("MaxPool", ["relu_2"], ["pool_2"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["pool_2"], ["flat"], axis=1),
        helper.make_node("Gemm", ["flat", "weight_3", "bias_3"], ["logits"], transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "digits-cnn",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 1, 8, 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", 10])],
        [numpy_helper.from_array(value, name) for name, value in zip(NAMES, parameters, strict=True)],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="mlmodelscope"
    )
    onnx.checker.check_model(model, full_check=True)
    return bytes(model.SerializeToString(deterministic=True))


class ScriptedDigits(torch.jit.ScriptModule):
    """The network as TorchScript, its forward given as text: `parameters` in the order of NAMES."""

    def __init__(self, parameters: list[npt.NDArray[np.float32]]) -> None:
        super().__init__()
        for name, value in zip(NAMES, parameters, strict=True):
            setattr(self, name, nn.Parameter(torch.from_numpy(value.copy()), requires_grad=False))
        self.define(FORWARD)


def torchscript_bytes(parameters: list[npt.NDArray[np.float32]]) -> bytes:
    """Return the network as TorchScript, the same bytes each time.

    Its forward is given as text, since a scripted `nn.Module` lists its constants in the order of a set, and
    the debug records are left out, since they carry paths of this machine.
    """
    module = ScriptedDigits(parameters)
    module.eval()
    saved = io.BytesIO(module.save_to_buffer())
    reader = torch._C.PyTorchFileReader(saved)
    out = io.BytesIO()
    writer = torch._C.PyTorchFileWriter(out)
    for record in reader.get_all_records():
        if not record.endswith(".debug_pkl") and record not in ("version", ".data/serialization_id"):
            content = reader.get_record(record)
            writer.write_record(record, content, len(content))
    writer.write_end_of_file()
    return out.getvalue()


def npz_bytes(x: Pixels, y: npt.NDArray[np.uint8]) -> bytes:
    """Return the test split as a compressed NumPy archive."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, x=x, y=y)
    return buffer.getvalue()


def write(out: Path, files: dict[str, bytes]) -> int:
    """Write the files and print what the manifests must say of them."""
    out.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (out / name).write_bytes(content)
        print(f"{hashlib.sha256(content).hexdigest()}  {len(content):6}  {name}")
    return 0


def compare(out: Path, files: dict[str, bytes]) -> int:
    """Print which files are the same as those in `out`; return 1 when the test split differs."""
    for name, content in files.items():
        print(f"{name}: {'same bytes' if (out / name).read_bytes() == content else 'other bytes'}")
    with np.load(out / TEST_FILE) as kept, np.load(io.BytesIO(files[TEST_FILE])) as made:
        same = all(np.array_equal(kept[key], made[key]) for key in ("x", "y"))
    kept_model, made_model = onnx.load(out / ONNX_FILE), onnx.load_from_string(files[ONNX_FILE])
    pairs = zip(kept_model.graph.initializer, made_model.graph.initializer, strict=True)
    apart = max(float(np.abs(numpy_helper.to_array(a) - numpy_helper.to_array(b)).max()) for a, b in pairs)
    print(f"test split {'is the same' if same else 'DIFFERS'}; parameters differ by at most {apart:.3g}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
