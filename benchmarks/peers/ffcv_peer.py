"""FFCV with its own operations: its file of pixels or JPEGs, compiled by Numba at the first batch."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from job import JPEG_QUALITY, MEAN, SIZE, STD
from pixels import Batch, decode_jpeg

NAME = "FFCV"
PACKAGES = ("ffcv", "numba", "opencv-python-headless")
JOBS = ("crops", "crops-jpeg")
NOT = {"pairs": "its flips are drawn for each field alone; see FFCV, our operation"}
SETTINGS = "RANDOM order, os_cache=True, workers are threads; JPEGs are encoded by FFCV from the same pixels"
WORKERS = (1, 2)
_FILE = "data.beton"


class _Rows:
    """Samples as the tuples that FFCV's writer takes."""

    def __init__(self, samples: Any) -> None:
        self.columns = list(samples.values())

    def __len__(self) -> int:
        return len(self.columns[0])

    def __getitem__(self, number: int) -> tuple[Any, ...]:
        return tuple(_value(column[number]) for column in self.columns)


def _value(value: Any) -> Any:
    if isinstance(value, bytes):
        return decode_jpeg(value)
    return int(value) if np.ndim(value) == 0 else np.ascontiguousarray(value)


def write(job: Any, samples: Any, folder: Path) -> None:
    """Write FFCV's file: integers, and images as pixels or JPEGs."""
    ffcv = _common()._ffcv()
    from ffcv.fields import IntField, RGBImageField

    mode = "raw" if job.shapes else "jpg"
    fields = {
        name: RGBImageField(write_mode=mode, jpeg_quality=JPEG_QUALITY) if name == "image" else IntField()
        for name in samples
    }
    ffcv.writer.DatasetWriter(str(folder / _FILE), fields, num_workers=2).from_indexed_dataset(_Rows(samples))


def open(job: Any, folder: Path, batch_size: int, workers: int, seed: int) -> Loader:
    """Open with FFCV's own flip and NormalizeImage."""
    _common()._ffcv()
    from ffcv.fields.decoders import RandomResizedCropRGBImageDecoder
    from ffcv.transforms import NormalizeImage, RandomHorizontalFlip, ToTensor, ToTorchImage

    mean, std = (np.array(values) * 255 for values in (MEAN, STD))
    image = [
        RandomResizedCropRGBImageDecoder((SIZE, SIZE)),
        RandomHorizontalFlip(),
        NormalizeImage(mean, std, np.float32),
        ToTensor(),
        ToTorchImage(channels_last=False),
    ]
    return Loader(job, folder, batch_size, workers, seed, {"image": image})


class Loader:
    """Epochs of FFCV's loader; a batch is overwritten once three more were requested."""

    def __init__(
        self, job: Any, folder: Path, batch_size: int, workers: int, seed: int, pipelines: dict[str, list[Any]]
    ) -> None:
        from ffcv.fields.decoders import IntDecoder
        from ffcv.loader import Loader as Theirs
        from ffcv.loader import OrderOption
        from ffcv.transforms import Squeeze, ToTensor

        numbers = ["index"] if job.is_pairs else ["index", "label"]
        pipelines = {**{name: [IntDecoder(), ToTensor(), Squeeze(1)] for name in numbers}, **pipelines}
        self._loader = Theirs(
            str(folder / _FILE), batch_size=batch_size, num_workers=workers, order=OrderOption.RANDOM, os_cache=True,
            drop_last=False, seed=seed, pipelines=pipelines,
        )  # fmt: skip
        # Batches come in the order of the file's fields.
        self.names = [name for name in self._loader.reader.handlers if name in pipelines]

    def __iter__(self) -> Iterator[Batch]:
        for batch in self._loader:
            yield dict(zip(self.names, batch, strict=True))


def _common() -> Any:
    """Return the module of the benchmark on GPUs, which mends FFCV's defects; it has this file's name."""
    return _load("gpu_ffcv", Path(__file__).resolve().parent.parent / "gpu" / "ffcv_peer.py")


_loaded: dict[str, Any] = {}


def _load(name: str, path: Path) -> Any:
    if name not in _loaded:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        _loaded[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(_loaded[name])
    return _loaded[name]
