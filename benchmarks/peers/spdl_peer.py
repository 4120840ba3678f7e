"""SPDL: a pipeline of stages in threads; it brings no format, so samples are in mapped files or in files of JPEGs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pixels import SIZE, Batch, make_batch, normalize

NAME = "SPDL"
PACKAGES = ("spdl", "torchvision")
JOBS = ("pairs", "crops", "crops-jpeg")
SETTINGS = (
    "PipelineBuilder over batches of numbers, one stage with as many threads as workers, output in order of completion; "  # noqa: E501
    "pixels in one mapped NumPy file a field; JPEGs in files of their own, cut, resized and flipped by FFmpeg's filters "  # noqa: E501
    "(spdl.io.demux_image, decode_packets, convert_frames)"
)
# Threads: without one there is no pipeline.
WORKERS = (1, 2)


def write(job: Any, samples: Any, folder: Path) -> None:
    """Write an array a field, or a file an image and its size."""
    for name, values in samples.items():
        if isinstance(values[0], bytes):
            for number, data in enumerate(values):
                (folder / f"{number:08d}.jpg").write_bytes(data)
            np.save(folder / "sizes.npy", np.array([_size(data) for data in values]))
        else:
            np.save(folder / f"{name}.npy", np.asarray(values))


def _size(data: bytes) -> tuple[int, int]:
    import io

    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        return image.size


class Loader:
    """Epochs of a pipeline, which is built for each, as its documentation does."""

    def __init__(self, job: Any, folder: Path, batch_size: int, workers: int, seed: int) -> None:
        self._arrays = {
            path.stem: np.load(path, mmap_mode="r") for path in sorted(folder.glob("*.npy")) if path.stem != "sizes"
        }
        self._is_jpeg = (folder / "sizes.npy").exists()
        if self._is_jpeg:
            self._sizes = np.load(folder / "sizes.npy")
        self._folder, self._batch_size, self._workers = folder, batch_size, max(workers, 1)
        self._random = np.random.default_rng(seed)

    def __iter__(self) -> Iterator[Batch]:
        from spdl.pipeline import PipelineBuilder

        order = self._random.permutation(len(self._arrays["index"]))
        numbers = [order[begin : begin + self._batch_size] for begin in range(0, len(order), self._batch_size)]
        pipeline = (
            PipelineBuilder()
            .add_source(numbers)
            .pipe(self._load_jpegs if self._is_jpeg else self._load, concurrency=self._workers)
            .add_sink(3)
            .build(num_threads=self._workers, max_failures=0)
        )
        with pipeline.auto_stop():
            yield from pipeline

    def _load(self, numbers: np.ndarray) -> Batch:
        return make_batch([{name: values[number] for name, values in self._arrays.items()} for number in numbers])

    def _load_jpegs(self, numbers: np.ndarray) -> Batch:
        import spdl.io

        frames = []
        for number in numbers:
            filters = _crop_filter(*self._sizes[number].tolist())
            packets = spdl.io.demux_image(str(self._folder / f"{number:08d}.jpg"))
            frames.append(spdl.io.decode_packets(packets, filter_desc=filters))
        pixels = spdl.io.to_torch(spdl.io.convert_frames(frames))
        image = torch.empty((len(numbers), 3, SIZE, SIZE)).copy_(pixels.permute(0, 3, 1, 2))
        return {
            "index": torch.from_numpy(self._arrays["index"][numbers]),
            "label": torch.from_numpy(self._arrays["label"][numbers]),
            "image": normalize(image),
        }


def _crop_filter(width: int, height: int) -> str:
    """Draw a crop as torchvision's RandomResizedCrop does, and write it for FFmpeg."""
    for _ in range(10):
        area = width * height * float(torch.empty(1).uniform_(0.08, 1.0))
        ratio = math.exp(float(torch.empty(1).uniform_(math.log(3 / 4), math.log(4 / 3))))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            break
    else:
        w = h = min(width, height)
    x, y = int(torch.randint(width - w + 1, ())), int(torch.randint(height - h + 1, ()))
    flip = ",hflip" if float(torch.rand(())) < 0.5 else ""
    return f"crop={w}:{h}:{x}:{y}:exact=1,scale={SIZE}:{SIZE}:flags=bilinear{flip},format=pix_fmts=rgb24"


open = Loader
