"""Stage (h): transforms on the device: the same values as on the CPU, how fast they are, and bounded memory.

Without a GPU the CPU is the device.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import feeds
import numpy as np
import torch
from device_data import folder_of
from fed import drain, facts, rounded, synchronize
from stage import Stage, parse_stage
from torch import Tensor

from lmdbloader import LMDBDataset, Loader
from lmdbloader import transforms as T
from lmdbloader.lab.arms import cpu_seconds

MEAN, STD = feeds.MEAN, feeds.STD
# The images of a batch that lists are compared on; seconds for them; the lists wanted.
COMPARED, EQUALITY_SECONDS, LISTS = 16, 35.0, 1000
EPOCHS = 200
# (batch size, side) of images on which each operation is timed.
KINDS_ON = (256, 128)

GEOMETRY: dict[str, Callable[[np.random.Generator], T.Transform]] = {
    "RandomCrop": lambda rng: T.RandomCrop(2 * int(rng.integers(8, 40))),
    "RandomCrop, padded": lambda rng: T.RandomCrop(2 * int(rng.integers(20, 40)), 8, fill=7),
    "CenterCrop": lambda rng: T.CenterCrop(2 * int(rng.integers(8, 40))),
    "RandomHorizontalFlip": lambda rng: T.RandomHorizontalFlip(),
    "RandomVerticalFlip": lambda rng: T.RandomVerticalFlip(),
    "RandomDihedral": lambda rng: T.RandomDihedral(),
    "RandomTranslate": lambda rng: T.RandomTranslate(2 * int(rng.integers(1, 9))),
    "RandomResizedCrop": lambda rng: T.RandomResizedCrop(2 * int(rng.integers(8, 60))),
    "RandomResizedCrop, bicubic": lambda rng: T.RandomResizedCrop(48, interpolation="bicubic"),
    "Resize": lambda rng: T.Resize((2 * int(rng.integers(8, 60)),) * 2),
}
COLORS: dict[str, Callable[[np.random.Generator], T.Transform]] = {
    "ColorJitter": lambda rng: T.ColorJitter(0.4, 0.4, 0.4, 0.1),
    "RandomGrayscale": lambda rng: T.RandomGrayscale(0.5),
    "RandomSolarize": lambda rng: T.RandomSolarize(128),
    "RandomPosterize": lambda rng: T.RandomPosterize(4),
    "RandomInvert": lambda rng: T.RandomInvert(),
    "RandomAutocontrast": lambda rng: T.RandomAutocontrast(),
    "RandomEqualize": lambda rng: T.RandomEqualize(),
    "RandomAdjustSharpness": lambda rng: T.RandomAdjustSharpness(2),
    "RandomChannelPermutation": lambda rng: T.RandomChannelPermutation(),
    "GaussianBlur": lambda rng: T.GaussianBlur(5, (0.1, 2.0)),
    "GaussianNoise": lambda rng: T.GaussianNoise(0.0, 0.1),
    "TrivialAugmentWide": lambda rng: T.TrivialAugmentWide(),
    "RandAugment": lambda rng: T.RandAugment(),
}
VALUES: dict[str, Callable[[np.random.Generator], T.Transform]] = {
    "ToDtype": lambda rng: T.ToDtype(torch.float32, scale=True),
    "Normalize": lambda rng: T.Normalize(MEAN, STD),
    "RandomErasing": lambda rng: T.RandomErasing(0.5),
}


def main() -> None:
    """Run the stage."""
    stage = parse_stage("device", __doc__)
    device = torch.device(stage.device)
    if device.type == "cpu":
        torch.set_num_threads(1)
    stage.put("settings", facts(device))
    if (reason := feeds.lacks("on")) is not None:
        stage.leave_out("everything", reason)
        return
    for what, seconds, measure in (
        ("equality", EQUALITY_SECONDS + 2, equality),
        ("pairs", 18, pairs),
        ("kinds", 10, kinds),
        ("memory", 12, memory),
    ):
        figures = stage.attempt(what, seconds, partial(measure, stage, device))
        if figures is not None:
            stage.put(what, figures)


def random_list(rng: np.random.Generator, *, with_color: bool) -> tuple[list[T.Transform], str]:
    """Return random transforms, and the operation on colours among them or "geometry"; colours are left uint8."""
    names = list(rng.choice(list(GEOMETRY), rng.integers(0 if with_color else 1, 4)))
    found = [GEOMETRY[name](rng) for name in names]
    if with_color:
        name = str(rng.choice(list(COLORS)))
        return [*found, COLORS[name](rng)], name
    chosen = [name for name in VALUES if rng.random() < 0.5]
    return [*found, *(VALUES[name](rng) for name in chosen)], "geometry"


def equality(stage: Stage, device: torch.device) -> dict[str, Any]:
    """Compare batches of random lists of transforms made on the CPU and on the device."""
    dataset = LMDBDataset(folder_of(stage) / "pairs")[:COMPARED]
    wanted, until = (20, time.monotonic() + 30) if stage.small else (LISTS, time.monotonic() + EQUALITY_SECONDS)
    counts: Counter[str] = Counter()
    worst: dict[str, float] = {}
    apart: list[str] = []
    refused: Counter[str] = Counter()
    for seed in itertools.count():
        if time.monotonic() > until or counts["geometry lists"] + counts["colours lists"] >= wanted:
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
        counts[f"{'geometry' if kind == 'geometry' else 'colours'} lists"] += 1
        counts["geometry equal" if kind == "geometry" else "colours within one level"] += far <= (kind != "geometry")
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


def pairs(stage: Stage, device: torch.device) -> list[dict[str, Any]]:
    """Return pairs a second, cropped to 96 px, turned and as floats on the device, by source and batch size."""
    rows: list[dict[str, Any]] = []
    transforms = [T.RandomCrop(96), T.RandomDihedral(), T.ToDtype(torch.float32, scale=True)]
    ways = feeds.ways_of_loading("kept", "on device", "copied")
    # Epochs long enough that their starts do not count.
    for data, repeat in (("large", 512), ("pairs", 8)):
        for name, options in ways.items():
            for batch_size in (2,) if stage.small else (64, 256, 1024):
                open_loader = partial(
                    feeds.open_loader, LMDBDataset(folder_of(stage) / data), batch_size, device=device, seed=0,
                    drop_last=True, transforms=transforms, repeat=1 if stage.small else repeat, **options,
                )  # fmt: skip
                what = f"{data}, {name}, {batch_size}"
                row = stage.attempt(what, 1.5, partial(samples_per_s, open_loader, device, 0.0 if stage.small else 0.7))
                if row is not None:
                    rows.append({"data": data, "way": name, **row})
                    stage.put("pairs", rows)
    return rows


def samples_per_s(open_loader: Callable[[], Loader], device: torch.device, seconds: float) -> dict[str, Any]:
    """Return the speed of a Loader whose batches nobody works on; datasets that are kept have come before."""
    loader = open_loader()
    feed = feeds.loader_feed("", loader, device)
    batches = feed.raw()
    try:
        for _ in range(min(len(loader), 100)):
            next(batches)
        drain(feed, batches)
        synchronize(device)
        count, cpu, began = 0, cpu_seconds(), time.perf_counter()
        while not count or time.perf_counter() - began < seconds:
            next(batches)
            count += 1
        synchronize(device)
        elapsed = time.perf_counter() - began
        speed, cores = count * loader.batch_size / elapsed, (cpu_seconds() - cpu) / elapsed
        return {"batch_size": loader.batch_size, "samples_per_s": rounded(speed), "cores": rounded(cores)}
    finally:
        batches.close()  # type: ignore[attr-defined]
        loader.close()


def kinds(stage: Stage, device: torch.device) -> list[dict[str, Any]]:
    """Return the microseconds of each operation on a batch that is on the device: the host's, and all of it."""
    from lmdbloader.transforms import on_device  # type: ignore[attr-defined]

    batch_size, side = (4, 96) if stage.small else KINDS_ON
    rng = np.random.default_rng(0)
    images = torch.randint(256, (batch_size, 3, side, side), dtype=torch.uint8, device=device)
    samples = np.arange(batch_size)
    rows = []
    for name, make in (GEOMETRY | COLORS | VALUES).items():
        listed = [make(rng)] if name != "Normalize" else [T.ToDtype(torch.float32, scale=True), make(rng)]

        def timed(listed: list[T.Transform] = listed) -> dict[str, Any]:
            calls = 2 if stage.small else 20
            for epoch in range(2):
                on_device(listed, images, samples, seed=0, epoch=epoch)
            synchronize(device)
            began = time.perf_counter()
            for epoch in range(calls):
                on_device(listed, images, samples, seed=0, epoch=epoch)
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
    for name, options in feeds.ways_of_loading("copied", "on device", "kept").items():
        epochs = 3 if stage.small else EPOCHS
        loader = feeds.open_loader(
            dataset, 16, device=device, seed=0, transforms=[T.RandomCrop(96), T.RandomDihedral()], **options
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
