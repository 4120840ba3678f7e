"""FFCV: its own pipeline for crops; for pairs an operation of one's own that reads, mirrors and converts at once."""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from job import JPEG_QUALITY, MEAN, SIZE, STD

NAME = "FFCV"
PACKAGES = ("ffcv", "numba", "opencv-python-headless")
JOBS = ("pairs", "crops", "crops-jpeg")
# Threads.
WORKERS = (1, 2)
SETTINGS = (
    "OrderOption.RANDOM, os_cache=True; pairs: two NDArrayFields and one compiled operation that reads, mirrors and "
    'makes floats; crops: RGBImageField(write_mode="raw" or "jpg"), RandomResizedCropRGBImageDecoder, '
    "RandomHorizontalFlip, NormalizeImage to float32, ToTensor, ToTorchImage(channels_last=False)"
)


@functools.cache
def _shared() -> Any:
    """Return FFCV's file of benchmarks/gpu, which repairs its defects and has the operations of pairs."""
    path = Path(__file__).resolve().parent.parent / "gpu" / "ffcv_peer.py"
    spec = importlib.util.spec_from_file_location("gpu_ffcv_peer", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    module._ffcv()
    return module


class _Samples:
    def __init__(self, job: Any, samples: Any) -> None:
        self.job, self.samples = job, samples

    def __len__(self) -> int:
        return len(self.samples["index"])

    def __getitem__(self, number: int) -> tuple[Any, ...]:
        if self.job.is_pairs:
            halves = (self.samples[name][number].transpose(2, 0, 1) for name in ("lr", "hr"))
            return (*map(np.ascontiguousarray, halves), number)
        image = self.samples["image"][number]
        if isinstance(image, bytes):
            import io

            from PIL import Image

            image = np.asarray(Image.open(io.BytesIO(image)))
        return image, int(self.samples["label"][number]), number


def write(job: Any, samples: Any, folder: Path) -> None:
    """Write a .beton file."""
    shared = _shared()
    from ffcv.fields import IntField, NDArrayField, RGBImageField

    fields: dict[str, Any]
    if job.is_pairs:
        shapes = {name: (c, h, w) for name, (h, w, c) in job.shapes.items()}
        fields = {name: NDArrayField(np.dtype("u1"), shape) for name, shape in shapes.items()}
    else:
        mode = "raw" if job.shapes else "jpg"
        fields = {"image": RGBImageField(write_mode=mode, jpeg_quality=JPEG_QUALITY), "label": IntField()}
    shared._write(folder / "samples.beton", {**fields, "index": IntField()}, _Samples(job, samples), 2)


class Epochs:
    """Epochs of FFCV's loader as dicts."""

    def __init__(self, loader: Any, names: tuple[str, ...]) -> None:
        self._loader, self._names = loader, names

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        epoch = iter(self._loader)
        try:
            for batch in epoch:
                yield dict(zip(self._names, batch, strict=True))
        finally:
            # One that is left early keeps its thread.
            epoch.close()


def open(job: Any, folder: Path, batch_size: int, workers: int, seed: int) -> Any:
    """Open the file."""
    shared = _shared()
    from ffcv.fields.decoders import IntDecoder, RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import NormalizeImage, RandomHorizontalFlip, Squeeze, ToTensor, ToTorchImage

    number = [IntDecoder(), ToTensor(), Squeeze(1)]
    pipelines: dict[str, Any]
    if job.is_pairs:
        small = job.shapes["lr"][:2]
        read = shared._operations().ReadPatch
        pipelines = {
            name: [read(small, factor, np.float32, seed), ToTensor()] for name, factor in (("lr", 1), ("hr", 2))
        }
    else:
        mean, std = (np.array(values) * 255 for values in (MEAN, STD))
        image = [RandomResizedCropRGBImageDecoder((SIZE, SIZE)), RandomHorizontalFlip()]
        image += [NormalizeImage(mean, std, np.float32), ToTensor(), ToTorchImage(channels_last=False)]
        pipelines = {"image": image, "label": number}
    pipelines["index"] = [IntDecoder(), ToTensor(), Squeeze(1)]
    loader = Loader(
        str(folder / "samples.beton"), batch_size=batch_size, num_workers=workers, order=OrderOption.RANDOM,
        os_cache=True, drop_last=False, seed=seed, pipelines=pipelines,
    )  # fmt: skip
    return Epochs(loader, tuple(pipelines))
