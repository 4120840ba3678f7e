"""Stage (h): transforms on the device: the same values as on the CPU, how fast they are, and bounded memory.

Without a GPU the CPU is the device.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from functools import partial
from typing import Any

import feeds
import numpy as np
import torch
from device_data import folder_of
from fed import rounded, synchronize
from stage import Stage, parse_stage
from torch import Tensor

from lmdbloader import LMDBDataset, Loader
from lmdbloader import transforms as T

# The images of a batch that lists are compared on; seconds for them; the lists wanted.
COMPARED, EQUALITY_SECONDS, LISTS = 16, 35.0, 1000
EPOCHS = 200
# (batch size, side) of images on which each operation is timed.
KINDS_ON = (256, 128)

# Lists are drawn of these.
GEOMETRY: list[T.Transform] = [
    *(T.RandomCrop(side) for side in (16, 34, 64)), T.RandomCrop(64, 8, pad_if_needed=True, fill=7), T.CenterCrop(24),
    T.RandomHorizontalFlip(), T.RandomVerticalFlip(), T.RandomDihedral(), T.RandomTranslate(6),
    T.RandomResizedCrop(48), T.RandomResizedCrop(90, interpolation="bicubic"), T.Resize((40, 40)), T.Resize((120, 100)),
]  # fmt: skip
COLORS: list[T.Transform] = [
    T.ColorJitter(0.4, 0.4, 0.4, 0.1), T.RandomGrayscale(0.5), T.RandomSolarize(128), T.RandomPosterize(4),
    T.RandomInvert(), T.RandomAutocontrast(), T.RandomEqualize(), T.RandomAdjustSharpness(2),
    T.RandomChannelPermutation(), T.GaussianBlur(5, (0.1, 2.0)), T.GaussianNoise(0.0, 0.1),
]  # fmt: skip
VALUES: list[T.Transform] = [
    T.RandomErasing(0.5), T.ToDtype(torch.float32, scale=True), T.Normalize(feeds.MEAN, feeds.STD),
]  # fmt: skip


def main() -> None:
    """Run the stage."""
    stage = parse_stage("device", __doc__)
    device = torch.device(stage.device)
    if device.type == "cpu":
        torch.set_num_threads(1)
    for what, seconds, measure in (
        ("equality", EQUALITY_SECONDS + 2, equality),
        ("kinds", 10, kinds),
        ("memory", 12, memory),
    ):
        figures = stage.attempt(what, seconds, partial(measure, stage, device))
        if figures is not None:
            stage.put(what, figures)


def random_list(rng: np.random.Generator, *, with_color: bool) -> tuple[list[T.Transform], str]:
    """Return random transforms, and the operation on colors among them or "geometry"; colors are left uint8."""
    found = [GEOMETRY[rng.integers(len(GEOMETRY))] for _ in range(rng.integers(0 if with_color else 1, 4))]
    if with_color:
        found.append(COLORS[rng.integers(len(COLORS))])
        return found, kind_of(found[-1])
    return [*found, *VALUES[: rng.integers(len(VALUES) + 1)]], "geometry"


def kind_of(transform: T.Transform) -> str:
    """Return the name of a kind of transform."""
    how = getattr(transform, "interpolation", "bilinear")
    return type(transform).__name__ + (f", {how}" if how == "bicubic" else "")


def equality(stage: Stage, device: torch.device) -> dict[str, Any]:
    """Compare batches of random lists of transforms made on the CPU and on the device."""
    dataset = LMDBDataset(folder_of(stage) / "pairs")[:COMPARED]
    wanted, until = (20, time.monotonic() + 30) if stage.small else (LISTS, time.monotonic() + EQUALITY_SECONDS)
    counts: Counter[str] = Counter()
    worst: dict[str, float] = {}
    apart: list[str] = []
    refused: Counter[str] = Counter()
    for seed in itertools.count():
        if time.monotonic() > until or counts["geometry lists"] + counts["colors lists"] >= wanted:
            break
        rng = np.random.default_rng(seed)
        listed, kind = random_list(rng, with_color=seed % 2 == 1)
        try:
            here = first_batch(dataset, listed, seed)
        except Exception:  # a list that suits nobody, such as a crop of a smaller image
            counts["not valid"] += 1
            continue
        try:
            there = first_batch(dataset, listed, seed, device=device, on="device")
        except Exception as error:
            refused[f"{kind}: {type(error).__name__}: {error}"[:160]] += 1
            continue
        far = max(difference(a, b.cpu()) for a, b in zip(here, there, strict=True))
        worst[kind] = max(worst.get(kind, 0.0), far)
        counts[f"{'geometry' if kind == 'geometry' else 'colors'} lists"] += 1
        counts["geometry equal" if kind == "geometry" else "colors within one level"] += far <= (kind != "geometry")
        if far > (kind != "geometry"):
            apart.append(f"{far:g}: {listed}"[:200])
    return {**counts, "worst": worst, "apart": apart[:20], "refused": dict(refused.most_common(20))}


def first_batch(dataset: LMDBDataset, listed: list[T.Transform], seed: int, **options: Any) -> tuple[Tensor, ...]:
    """Return the images of one batch."""
    loader = Loader(dataset, COMPARED, order="random", seed=seed, num_threads=1, transforms=listed, **options)
    try:
        batch = next(iter(loader))
        return batch.lr.clone(), batch.hr.clone()
    finally:
        loader.close()


def difference(one: Tensor, other: Tensor) -> float:
    """Return the largest difference of two batches; infinite where shapes or types differ."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return float("inf")
    return float((one.double() - other.double()).abs().max()) if one.numel() else 0.0


def kinds(stage: Stage, device: torch.device) -> list[dict[str, Any]]:
    """Return the microseconds of each operation on a batch that is on the device: the host's, and all of it."""
    batch_size, side = (4, 96) if stage.small else KINDS_ON
    images = torch.randint(256, (batch_size, 3, side, side), dtype=torch.uint8, device=device)
    samples = np.arange(batch_size)
    rows = []
    for name, transform in {kind_of(each): each for each in (*GEOMETRY, *COLORS, *VALUES)}.items():
        listed = [VALUES[1], transform] if isinstance(transform, T.Normalize) else [transform]

        def timed(listed: list[T.Transform] = listed) -> dict[str, Any]:
            calls = 2 if stage.small else 20
            for epoch in range(2):
                T.on_device(listed, images, samples, seed=0, epoch=epoch)
            synchronize(device)
            began = time.perf_counter()
            for epoch in range(calls):
                T.on_device(listed, images, samples, seed=0, epoch=epoch)
            host = time.perf_counter() - began
            synchronize(device)
            both = time.perf_counter() - began
            return {"us_host": rounded(1e6 * host / calls), "us": rounded(1e6 * both / calls)}

        row = stage.attempt(f"kind: {name}", 0.5, timed)
        if row is not None:
            rows.append({"kind": name, "batch_size": batch_size, "side": side, **row})
            stage.put("kinds", rows)
    return rows


def memory(stage: Stage, device: torch.device) -> list[dict[str, Any]]:
    """Return the device's memory over many epochs, and whether a batch that the loop keeps stays as it is."""
    rows = []
    dataset = LMDBDataset(folder_of(stage) / "pairs")[:256]
    for name in ("copied", "on device", "kept"):
        epochs = 3 if stage.small else EPOCHS
        loader = feeds.open_loader(
            dataset, 16, device=device, seed=0, transforms=[T.RandomCrop(96), T.RandomDihedral()], **feeds.WAYS[name]
        )
        try:
            allocated, kept, before = [], None, None
            for _ in range(epochs):
                for batch in loader:
                    if kept is None:
                        kept, before = batch.hr, batch.hr.cpu().clone()
                synchronize(device)
                allocated.append(torch.cuda.memory_allocated(device) / 2**20 if device.type == "cuda" else 0.0)
                if stage.left < 3:
                    break
        finally:
            loader.close()
        rows.append(
            {
                "way": name,
                "epochs": len(allocated),
                "mib_after_2": rounded(allocated[1]),
                "mib_most": rounded(max(allocated[1:])),
                "mib_last": rounded(allocated[-1]),
                "is_kept_unchanged": bool(torch.equal(kept.cpu(), before)),  # type: ignore[union-attr, arg-type]
            }
        )
        stage.put("memory", rows)
    return rows


if __name__ == "__main__":
    main()
