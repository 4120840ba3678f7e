"""Makes the small datasets that the stages of the device side read, of pieces of real photographs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import cut_pairs, environment, mosaic, photographs
from photographs import gpu_facts, write_photos
from stage import Stage, make, parse_stage

LARGE = (2040, 1356)


def folder_of(stage: Stage) -> Path:
    """Return the folder with the datasets: pairs, tiny, large, jpegs, pixels; and photos, the files of `jpegs`."""
    return stage.data / "device"


def main() -> None:
    """Make all that is missing; failures are noted, and the rest is made."""
    import lmdbloader

    stage = parse_stage("device_data", __doc__)
    folder = folder_of(stage)
    folder.mkdir(parents=True, exist_ok=True)
    stage.put("environment", {**environment(stage.data), **gpu_facts()})
    small = stage.small
    num_pairs, num_tiny, num_large, num_photos = (640, 256, 3, 60) if small else (32_000, 50_000, 200, 4_000)
    for name, samples in (
        ("pairs", lambda: pairs(num_pairs)),
        ("tiny", lambda: tiny(num_tiny)),
        ("large", lambda: large(num_large, small)),
    ):
        write = lambda name=name, samples=samples: lmdbloader.write(samples(), folder / name, codec="raw")  # noqa: E731
        make(stage, f"device {name}", write, [folder / name])
    photos = folder / "photos"
    make(stage, "device photos", lambda: write_photos(photos, num_photos, 0, stage.cores), [photos])
    shutil.rmtree(photos / "val", ignore_errors=True)
    for name, options in (("jpegs", {}), ("pixels", {"write_mode": "raw"})):
        convert = lambda name=name, options=options: lmdbloader.convert(  # noqa: E731
            photos / "train", folder / name, layout="classes", workers=stage.cores, **options
        )
        make(stage, f"device {name}", convert, [folder / name])


def pairs(count: int) -> Iterator[dict[str, Any]]:
    """Yield patches of 48 and 96 px with their number."""
    cut = cut_pairs(count)
    for number, (lr, hr) in enumerate(zip(cut.lr, cut.hr, strict=True)):
        yield {"lr": torch.from_numpy(lr), "hr": torch.from_numpy(hr), "label": number}


def tiny(count: int) -> Iterator[dict[str, Any]]:
    """Yield images of 32 px with one of ten labels, as many as CIFAR-10 has."""
    for number, image in enumerate(cut_pairs(count, patch_size=64).lr):
        yield {"image": torch.from_numpy(image), "label": number % 10}


def large(count: int, small: bool) -> Iterator[dict[str, Any]]:
    """Yield pairs of DIV2K's usual size."""
    sources, rng = photographs(), np.random.default_rng(0)
    width, height = (510, 340) if small else LARGE
    for number in range(count):
        hr = mosaic(sources, rng, width, height)
        yield {"lr": np.ascontiguousarray(hr[::2, ::2]), "hr": hr, "label": number}


if __name__ == "__main__":
    main()
