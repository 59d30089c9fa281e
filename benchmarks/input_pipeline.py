"""Preparing inputs, against the loop that people write by hand; the same bytes come out of both.

    python -m benchmarks.input_pipeline

On the full-size photographs of the asset mirror (`MLMODELSCOPE_ASSET_MIRROR`, or `../shared/assets`): decode,
resize to 256, crop 224, normalize, CHW. Runs are interleaved and the best of each is taken.
"""

import io
import os
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from PIL import Image

from predictors.data.datasets import Item
from predictors.pipeline import InputPipeline
from schemas.manifests import ModelInput

ROUNDS: Final = 5
MEAN: Final = np.array([123.675, 116.28, 103.53], np.float32)
SCALE: Final = np.array([58.395, 57.12, 57.375], np.float32)
PIPELINE: Final = ModelInput.model_validate(
    {
        "type": "image",
        "name": "data",
        "shape": (3, 224, 224),
        "steps": [
            "decode",
            {"resize": {"dimensions": (256, 256), "keep_aspect_ratio": True}},
            {"crop": {"dimensions": (224, 224)}},
            {"normalize": {"mean": MEAN.tolist(), "scale": SCALE.tolist()}},
            {"transpose": {"layout": "CHW"}},
        ],
    }
)
Floats = npt.NDArray[np.float32]


class Photographs:
    """The photographs of the mirror, read into memory once."""

    def __init__(self) -> None:
        mirror = os.environ.get("MLMODELSCOPE_ASSET_MIRROR")
        root = Path(mirror) if mirror else Path(__file__).resolve().parents[2] / "shared" / "assets"
        self.files: list[bytes] = []
        with tarfile.open(root / "datasets" / "imagenet_photos_100.tar") as archive:
            for member in archive.getmembers():
                file = archive.extractfile(member)
                if file is not None and member.name.endswith("JPEG"):
                    self.files.append(file.read())
        self.items: Sequence[Item] = tuple(Item(k, str(k), "") for k in range(len(self.files)))
        self.class_names: tuple[str, ...] = ()

    def read(self, index: int) -> bytes:
        """As Dataset."""
        return self.files[index]


def by_hand(data: bytes) -> Floats:
    image = Image.open(io.BytesIO(data)).convert("RGB")
    scale = 256 / min(image.size)
    image = image.resize((int(image.width * scale + 1e-6), int(image.height * scale + 1e-6)), Image.Resampling.BILINEAR)
    left, top = (image.width - 224) // 2, (image.height - 224) // 2
    image = image.crop((left, top, left + 224, top + 224))
    array = (np.asarray(image).astype(np.float32) - MEAN) / SCALE
    return np.ascontiguousarray(array.transpose(2, 0, 1))


def hand_loop(photographs: Photographs, workers: int) -> Floats:
    if workers == 1:
        return np.stack([by_hand(data) for data in photographs.files])
    with ThreadPoolExecutor(workers) as pool:
        return np.stack(list(pool.map(by_hand, photographs.files)))


def ours(photographs: Photographs, workers: int, directory: Path) -> Floats:
    prepared = InputPipeline([PIPELINE], max_pixels=100_000_000).prepare(
        photographs, range(len(photographs.files)), workers=workers, spill_dir=directory
    )
    return np.asarray(prepared.arrays[0], np.float32)


def run() -> list[dict[str, object]]:
    """Return one row for each number of threads: items a second of both, and their ratio."""
    photographs = Photographs()
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        for workers in (1, 2):
            same = np.array_equal(hand_loop(photographs, workers), ours(photographs, workers, directory))
            hand, prepared = _interleaved(
                partial(hand_loop, photographs, workers),
                partial(ours, photographs, workers, directory),
            )
            count = len(photographs.files)
            rows.append(
                {
                    "threads": workers,
                    "by hand, items/s": round(count / hand),
                    "prepare(), items/s": round(count / prepared),
                    "ratio": round(hand / prepared, 2),
                    "same bytes": same,
                }
            )
    return rows


def _interleaved(*calls: Callable[[], object]) -> list[float]:
    best = [float("inf")] * len(calls)
    for _ in range(ROUNDS):
        for k, call in enumerate(calls):
            started = time.perf_counter()
            call()
            best[k] = min(best[k], time.perf_counter() - started)
    return best


def main() -> None:
    rows = run()
    print("Input pipeline: full-size photographs to 3x224x224 float32")
    print("  ".join(rows[0]))
    for row in rows:
        print("  ".join(str(value).rjust(len(name)) for name, value in row.items()))


if __name__ == "__main__":
    main()
