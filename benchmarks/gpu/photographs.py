"""Makes the files that the stages read: JPEGs in class folders and 2K PNGs, of pieces of real photographs."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from common import environment, write_mosaics
from demos.class_folders import CLASSES
from PIL import Image
from stage import Stage, make, parse_stage

QUALITY = 92
LONG, SHORT = 500, 375
_GRAIN_SIDE = 1200
# Training reads the left part of each photograph and validation the right one, so that no pixel is in both.
BORDER = 0.6


def main() -> None:
    """Make all that is missing; failures are noted, and the rest is made."""
    stage = parse_stage("photographs", __doc__)
    stage.data.mkdir(parents=True, exist_ok=True)
    stage.put("environment", {**environment(stage.data), **gpu_facts()})
    num_train, num_val, num_large, num_large_val = (240, 60, 2, 2) if stage.small else (20_000, 2_000, 48, 8)
    photos, data = stage.data / "photos", stage.data
    make(stage, "photos", lambda: write_photos(photos, num_train, num_val, stage.cores), [photos])
    make(stage, "div2k", lambda: write_large(data, num_large, num_large_val, stage), [data / "div2k"])


def write_photos(folder: Path, num_train: int, num_val: int, workers: int) -> None:
    """Write class folders of JPEGs of about 500 x 375 pixels: pieces of real photographs, scaled, flipped, colored."""
    parts = (("train", num_train), ("val", num_val))
    tasks = [(folder, part, number) for part, count in parts for number in range(count)]
    for part, name in ((part, name) for part, _ in parts for name in CLASSES):
        (folder / part / Path(name).stem).mkdir(parents=True)
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        list(pool.map(write_photo, tasks, chunksize=20))


def write_photo(task: tuple[Path, str, int]) -> None:
    """Write one JPEG; its content depends on its number alone."""
    folder, part, number = task
    rng = np.random.default_rng((number, part == "val"))
    name = CLASSES[number % len(CLASSES)]
    source = photograph(name)
    border = int(source.shape[1] * BORDER)
    source = source[:, :border] if part == "train" else source[:, border:]
    height, width = (LONG, SHORT) if rng.random() < 0.25 else (SHORT, LONG)
    share = rng.uniform(0.4, 1) * min(source.shape[0] / height, source.shape[1] / width)
    h, w = int(height * share), int(width * share)
    top, left = rng.integers(source.shape[0] - h + 1), rng.integers(source.shape[1] - w + 1)
    piece = source[top : top + h, left : left + w][:, :: rng.choice([-1, 1])]
    image = Image.fromarray(np.ascontiguousarray(piece)).resize((width, height), Image.Resampling.BICUBIC)
    tint, light = rng.uniform(0.7, 1.3, 3), rng.uniform(-25, 25)
    # A little noise, or enlarged pieces would be far smaller files than photographs are.
    down, right = rng.integers(_GRAIN_SIDE - LONG, size=2)
    added = grain()[down : down + height, right : right + width] + np.float32(light)
    pixels = np.clip(np.asarray(image) * tint.astype(np.float32) + added, 0, 255).astype(np.uint8)
    Image.fromarray(pixels).save(folder / part / Path(name).stem / f"{number:05d}.jpg", quality=QUALITY)


@cache
def grain() -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return noise to cut pieces from, (side, side, 1): drawing it for each file would take longest."""
    return np.random.default_rng(0).normal(0, 3, (_GRAIN_SIDE, _GRAIN_SIDE, 1)).astype(np.float32)


@cache
def photograph(name: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return one of scikit-image's photographs, (H, W, 3) uint8."""
    import skimage

    with Image.open(Path(skimage.__file__).parent / "data" / name) as file:
        return np.asarray(file.convert("RGB"))


def write_large(data: Path, count: int, count_val: int, stage: Stage) -> None:
    """Write the PNG mosaics of DIV2K's size."""
    size = (510, 339) if stage.small else (2040, 1356)
    tasks = [(data / "div2k", number, size, number) for number in range(count)]
    tasks += [(data / "div2k_val", number, size, 1000 + number) for number in range(count_val)]
    for folder in {task[0] for task in tasks}:
        folder.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(stage.cores, get_context("spawn")) as pool:
        list(pool.map(write_mosaic, tasks))


def write_mosaic(task: tuple[Path, int, tuple[int, int], int]) -> None:
    """Write one mosaic; its seed determines its content."""
    folder, number, (width, height), seed = task
    own = folder / f".{number:05d}"
    write_mosaics(own, 1, width=width, height=height, seed=seed)
    os.replace(own / "00000.png", folder / f"{number:05d}.png")
    own.rmdir()


def gpu_facts() -> dict[str, Any]:
    """Return torch's facts about the GPU, and the relevant versions."""
    import torch

    facts: dict[str, Any] = {"torch": torch.__version__, "cuda": torch.version.cuda}
    if torch.cuda.is_available():
        found = torch.cuda.get_device_properties(0)
        facts.update(
            gpu=found.name,
            gpu_memory_gib=round(found.total_memory / 2**30, 1),
            multiprocessors=found.multi_processor_count,
            cudnn=torch.backends.cudnn.version(),
        )
    return facts


if __name__ == "__main__":
    main()
