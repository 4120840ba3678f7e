"""FFCV with one compiled operation of one's own: flip, conversion and layout in one pass, in its threads.

This is the fastest way that we found to use it. For pairs it also reads from the map, and draws the flip once for both
patches. FFCV stores no checksums, so it verifies none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ffcv_peer
import numpy as np
from job import MEAN, SIZE, STD

NAME = "FFCV, our operation"
PACKAGES = ffcv_peer.PACKAGES
JOBS = ("pairs", "crops", "crops-jpeg")
SETTINGS = (
    f"{ffcv_peer.SETTINGS}; pairs: NDArrayField (3, H, W), read from the map, mirrored and converted in one compiled "
    "pass; no checksum is verified, because FFCV stores none"
)
WORKERS = ffcv_peer.WORKERS


def write(job: Any, samples: Any, folder: Path) -> None:
    """Write pairs as arrays (3, H, W), and images as ffcv_peer does."""
    if not job.is_pairs:
        ffcv_peer.write(job, samples, folder)
        return
    ffcv = ffcv_peer._common()._ffcv()
    from ffcv.fields import IntField, NDArrayField

    planes = {name: v if name == "index" else v.transpose(0, 3, 1, 2) for name, v in samples.items()}
    fields = {
        name: IntField() if name == "index" else NDArrayField(np.dtype("u1"), planes[name].shape[1:]) for name in planes
    }
    path = str(folder / ffcv_peer._FILE)
    ffcv.writer.DatasetWriter(path, fields, num_workers=2).from_indexed_dataset(ffcv_peer._Rows(planes))


def open(job: Any, folder: Path, batch_size: int, workers: int, seed: int) -> ffcv_peer.Loader:
    """Open with the operation of one's own."""
    common = ffcv_peer._common()
    common._ffcv()
    from ffcv.fields.decoders import RandomResizedCropRGBImageDecoder
    from ffcv.transforms import ToTensor

    if not job.is_pairs:
        pipelines = {"image": [RandomResizedCropRGBImageDecoder((SIZE, SIZE)), _finish(), ToTensor()]}
        return ffcv_peer.Loader(job, folder, batch_size, workers, seed, pipelines)
    read = common._operations().ReadPatch
    sides = {name: shape[:2] for name, shape in job.shapes.items()}
    factors = {name: side[0] // sides["lr"][0] for name, side in sides.items()}
    pipelines = {name: [read(sides["lr"], factor, np.float32, seed), ToTensor()] for name, factor in factors.items()}
    return ffcv_peer.Loader(job, folder, batch_size, workers, seed, pipelines)


def _finish() -> Any:
    """Return an operation that mirrors half of the images, normalizes them, and makes planes of them."""
    from ffcv.pipeline.allocation_query import AllocationQuery
    from ffcv.pipeline.compiler import Compiler
    from ffcv.pipeline.operation import Operation

    class Finish(Operation):  # type: ignore[misc]
        def declare_state_and_memory(self, previous_state: Any) -> Any:
            height, width, channels = previous_state.shape
            shape = channels, height, width
            state = replace(previous_state, jit_mode=True, shape=shape, dtype=np.dtype(np.float32))
            return state, AllocationQuery(shape, np.dtype(np.float32))

        def generate_code(self) -> Callable[..., Any]:
            each = Compiler.get_iterator()
            by = (1 / (255 * np.array(STD))).astype(np.float32)
            less = (np.array(MEAN) / np.array(STD)).astype(np.float32)

            def finish(images, out):  # type: ignore[no-untyped-def]
                mirrored = np.random.rand(images.shape[0]) < 0.5  # noqa: NPY002
                for i in each(images.shape[0]):
                    width = images.shape[2]
                    for c in range(3):
                        for y in range(images.shape[1]):
                            row, to = images[i, y], out[i, c, y]
                            if mirrored[i]:
                                for x in range(width):
                                    to[x] = np.float32(row[width - 1 - x, c]) * by[c] - less[c]
                            else:
                                for x in range(width):
                                    to[x] = np.float32(row[x, c]) * by[c] - less[c]
                return out[: images.shape[0]]

            finish.is_parallel = True  # type: ignore[attr-defined]
            return finish

    return Finish()
