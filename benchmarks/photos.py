"""Helpers of images.py: class folders of JPEGs from real photographs, and the usual ways of loading them."""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
import torch
from common import photographs
from PIL import Image
from stores import EndlessOrder
from torch.utils.data import DataLoader, Dataset

from lmdbloader import LMDBDataset
from lmdbloader.format.codecs import unpack_jpeg

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
NUM_CLASSES = 10
LONGEST = 500


def cut_photos(count: int, seed: int = 0) -> Iterator[Image.Image]:
    """Yield images of about 500 x 375 pixels, as ImageNet has them: parts of real photographs."""
    sources = photographs()
    rng = np.random.default_rng(seed)
    for number in range(count):
        source = sources[number % len(sources)][:, :: rng.choice([-1, 1])]
        height, width = LONGEST * 3 // 4, LONGEST
        if rng.random() < 0.25:
            height, width = width, height
        share = rng.uniform(0.6, 1)
        h, w = (int(side * share * min(source.shape[0] / height, source.shape[1] / width)) for side in (height, width))
        top, left = rng.integers(source.shape[0] - h + 1), rng.integers(source.shape[1] - w + 1)
        piece = Image.fromarray(np.ascontiguousarray(source[top : top + h, left : left + w]))
        yield piece.resize((width, height), Image.Resampling.BICUBIC)


def write_photos(folder: Path, count: int, *, quality: int = 92, seed: int = 0) -> None:
    """Write JPEGs of cut_photos in class folders."""
    for number, image in enumerate(cut_photos(count, seed)):
        path = folder / f"class{number % NUM_CLASSES}" / f"{number:05d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path, quality=quality)


def draw_window(height: int, width: int) -> tuple[int, int, int, int]:
    """Return (left, top, right, bottom) as torchvision's RandomResizedCrop draws it."""
    for _ in range(10):
        area = height * width * torch.empty(1).uniform_(0.08, 1).item()
        ratio = math.exp(torch.empty(1).uniform_(math.log(3 / 4), math.log(4 / 3)).item())
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            top, left = int(torch.randint(height - h + 1, ())), int(torch.randint(width - w + 1, ()))
            return left, top, left + w, top + h
    return 0, 0, width, height


class PillowRecipe:
    """The usual dataset: RandomResizedCrop, a flip and normalized floats, with Pillow."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._mean = torch.tensor(MEAN)[:, None, None]
        self._std = torch.tensor(STD)[:, None, None]

    def __call__(self, file: io.BytesIO | Path) -> torch.Tensor:
        """Return (3, size, size) float32."""
        with Image.open(file) as opened:
            image = opened.convert("RGB")
        image = image.crop(draw_window(image.height, image.width))
        image = image.resize((self.size, self.size), Image.Resampling.BILINEAR)
        pixels = np.asarray(image)
        if torch.rand(()) < 0.5:
            pixels = pixels[:, ::-1]
        planes = torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))
        return planes.to(torch.float32).div_(255).sub_(self._mean).div_(self._std)


class Folder(Dataset[Any]):
    """The files of class folders."""

    def __init__(self, folder: Path, size: int) -> None:
        self._paths = sorted(folder.rglob("*.jpg"))
        self._recipe = PillowRecipe(size)

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        path = self._paths[number]
        return self._recipe(path), int(path.parent.name[len("class") :])


class FilesInLmdb(Dataset[Any]):
    """The same files, read from an lmdbloader dataset."""

    def __init__(self, path: Path, size: int) -> None:
        self._dataset = LMDBDataset(path)
        self._recipe = PillowRecipe(size)

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        reader = self._dataset.reader
        file = unpack_jpeg(reader.stored_bytes("image", number))
        return self._recipe(io.BytesIO(file)), int(reader.index.arrays["label"][number])


def of_dataloader(dataset: Dataset[Any], batch_size: int, workers: int) -> Callable[[float], float]:
    """Return a function that measures a DataLoader. Its workers end with each turn and never read ahead."""

    def measure(seconds: float) -> float:
        order = EndlessOrder(len(dataset), int(torch.randint(1000, ())))  # type: ignore[arg-type]
        batches = iter(DataLoader(dataset, batch_size, sampler=order, num_workers=workers))
        # Batches that the workers have ready at first would be counted too.
        for _ in range(1 + 2 * workers):
            next(batches)
        samples, began = 0, time.perf_counter()
        while (now := time.perf_counter()) - began < seconds or samples == 0:
            samples += len(next(batches)[0])
        return samples / (now - began)

    return measure


def of_full_decoding(folder: Path, threads: int) -> Callable[[float], float]:
    """Return a function that only measures decoding of whole files in memory, by threads."""
    files = [path.read_bytes() for path in sorted(folder.rglob("*.jpg"))]

    def measure(seconds: float) -> float:
        counts = [0] * threads
        began = time.perf_counter()

        def decode(thread: int) -> None:
            number = thread
            while time.perf_counter() - began < seconds:
                simplejpeg.decode_jpeg(files[number % len(files)])
                number += threads
                counts[thread] += 1

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(decode, range(threads)))
        return sum(counts) / (time.perf_counter() - began)

    return measure


def encode_small(paths: Sequence[str], longest: int, quality: int) -> int:
    """Decode, shrink and encode files as plainly as can be; return the bytes that came out."""
    total = 0
    for path in paths:
        pixels = simplejpeg.decode_jpeg(Path(path).read_bytes())
        image = Image.fromarray(pixels)
        scale = longest / max(image.size)
        if scale < 1:
            image = image.resize([max(1, round(side * scale)) for side in image.size], Image.Resampling.BICUBIC)
        total += len(simplejpeg.encode_jpeg(np.asarray(image), quality=quality, colorsubsampling="420"))
    return total
