"""DALI on the CPU: tar files of WebDataset's layout, a pipeline of compiled operators."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from pixels import MEAN, SIZE, STD, Batch

NAME = "DALI (CPU)"
PACKAGES = ("nvidia-dali-cuda120",)
JOBS = ("pairs", "crops", "crops-jpeg")
SETTINGS = (
    "readers.webdataset with an index file, mapped, random_shuffle over a buffer of 1,024 samples; crop_mirror_normalize "  # noqa: E501
    "and random_resized_crop (JPEGs: decoders.image_random_crop, which decodes the crop alone); device_id=None, "
    "prefetch_queue_depth=2, as many threads as workers; DALIGenericIterator copies to torch tensors"
)
# Threads: without one there is no pipeline.
WORKERS = (1, 2)


def write(job: Any, samples: Any, folder: Path) -> None:
    """Write one tar, an entry a field, and its index by the tool that DALI brings."""
    with tarfile.open(folder / "samples.tar", "w") as tar:
        for number, index in enumerate(samples["index"]):
            for name, values in samples.items():
                value = values[number]
                data = np.int64(value).tobytes() if name in ("index", "label") else bytes(value)
                entry = tarfile.TarInfo(f"{int(index):08d}.{name}")
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
    command = [str(Path(sys.executable).with_name("wds2idx")), str(folder / "samples.tar"), str(folder / "samples.idx")]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


class Loader:
    """Epochs of a pipeline that runs on; DALIGenericIterator finds the ends."""

    def __init__(self, job: Any, folder: Path, batch_size: int, workers: int, seed: int) -> None:
        from nvidia.dali import pipeline_def
        from nvidia.dali.plugin.pytorch import DALIGenericIterator, LastBatchPolicy

        names = ["index", "lr", "hr"] if job.name == "pairs" else ["index", "label", "image"]
        make = _pairs if job.name == "pairs" else _crops
        pipeline = pipeline_def(
            batch_size=batch_size, num_threads=max(workers, 1), device_id=None, seed=seed, prefetch_queue_depth=2
        )(make)(folder, names, dict(job.shapes))
        pipeline.build()
        self._loader = DALIGenericIterator(
            [pipeline], names, reader_name="reader", auto_reset=True, last_batch_policy=LastBatchPolicy.PARTIAL
        )

    def __iter__(self) -> Iterator[Batch]:
        for (batch,) in self._loader:
            yield {name: tensor.flatten() if tensor.dim() == 2 else tensor for name, tensor in batch.items()}


def _read(folder: Path, names: list[str]) -> Any:
    from nvidia.dali import fn, types

    kinds = [types.INT64 if name in ("index", "label") else types.UINT8 for name in names]
    return fn.readers.webdataset(
        paths=str(folder / "samples.tar"), index_paths=str(folder / "samples.idx"), ext=names, dtypes=kinds,
        random_shuffle=True, initial_fill=1024, missing_component_behavior="error", name="reader",
    )  # fmt: skip


def _to_floats(image: Any, mean: tuple[float, ...], std: tuple[float, ...], mirror: Any) -> Any:
    from nvidia.dali import fn, types

    return fn.crop_mirror_normalize(
        image, dtype=types.FLOAT, output_layout="CHW", mean=[255 * m for m in mean], std=[255 * s for s in std],
        mirror=mirror,
    )  # fmt: skip


def _pairs(folder: Path, names: list[str], shapes: dict[str, tuple[int, ...]]) -> Any:
    from nvidia.dali import fn

    index, *images = _read(folder, names)
    mirror = fn.random.coin_flip()
    pixels = [
        fn.reshape(image, shape=list(shapes[name]), layout="HWC") for name, image in zip(names[1:], images, strict=True)
    ]
    return index, *(_to_floats(image, (0, 0, 0), (1, 1, 1), mirror) for image in pixels)


def _crops(folder: Path, names: list[str], shapes: dict[str, tuple[int, ...]]) -> Any:
    from nvidia.dali import fn, types

    index, label, image = _read(folder, names)
    area, ratio = [0.08, 1.0], [3 / 4, 4 / 3]
    if "image" in shapes:
        image = fn.reshape(image, shape=list(shapes["image"]), layout="HWC")
        image = fn.random_resized_crop(image, size=SIZE, random_area=area, random_aspect_ratio=ratio)
    else:
        image = fn.decoders.image_random_crop(
            image, device="cpu", output_type=types.RGB, random_area=area, random_aspect_ratio=ratio
        )
        image = fn.resize(image, size=[SIZE, SIZE])
    return index, label, _to_floats(image, MEAN, STD, fn.random.coin_flip())


open = Loader
