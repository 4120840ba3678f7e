"""Stage (j): training as a share of its ceiling, fed by copies, transforms on the device, and datasets kept there.

The ceiling is the same step on batches that never leave the device. It is measured in turns with every feed, for short
steps depend on the host, whose speed varies; a share is the median over the turns. Epochs follow one another, so their
starts are in the figures.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import feeds
import torch
from device_data import folder_of
from fed import ImageTrainer, PairTrainer, Trainer, _NoLaps, drain, facts, rounded, small_loss, synchronize
from feeds import Feed
from stage import Stage, parse_stage

from lmdbloader import LMDBDataset
from lmdbloader.lab.arms import cpu_seconds
from lmdbloader.transforms import RandomCrop, RandomDihedral

TURNS = 7
Open = Callable[[], Feed]


def main() -> None:
    """Run the stage."""
    stage = parse_stage("fed_device", __doc__)
    device = torch.device(stage.device)
    torch.backends.cudnn.benchmark = True
    if device.type == "cpu":
        torch.set_num_threads(1)
    small_loss(device)
    stage.put("settings", facts(device))
    rows: list[Any] = []
    restorer = stage.attempt("SRCNN", 3, lambda: PairTrainer("srcnn", device, small=stage.small))
    folder = folder_of(stage)
    for batch_size in (8,) if stage.small else (8, 32, 128):
        if restorer is not None:
            ways = loaders(
                folder / "pairs", batch_size, ("copied", "on device", "kept"), device=device,
                transforms=[RandomCrop(96), RandomDihedral()],
            )  # fmt: skip
            keep(stage, rows, f"SRCNN in batches of {batch_size}", restorer, 96, ways, 0.3)
    name, size, batch_size = ("tiny", 32, 8) if stage.small else ("resnet18", 128, 256)
    classifier = stage.attempt(name, 4, lambda: ImageTrainer(name, device))
    if classifier is not None:
        ways = loaders(
            folder / "jpegs", batch_size, ("copied", "on device", "kept decoded", "kept decoded, on device"),
            device=device, transforms=feeds.image_transforms(size, torch.bfloat16), memory_format=torch.channels_last,
        )  # fmt: skip
        keep(stage, rows, f"{name} at {size} px", classifier, size, ways, 0.5)


def keep(
    stage: Stage, rows: list[Any], what: str, trainer: Trainer, pixels: int, ways: dict[str, Open], each: float
) -> None:
    """Measure a network with its feeds, each for so many seconds a turn, and keep the figures."""
    wanted = 6 + (TURNS + 1) * 1.6 * each * (len(ways) + 1)
    rows += stage.attempt(what, wanted, lambda: shares(stage, what, trainer, pixels, ways, each)) or []
    stage.put("training", rows)


def loaders(data: Path, batch_size: int, names: Sequence[str], **options: Any) -> dict[str, Open]:
    """Return feeds of a dataset by Loaders: way of loading -> function that opens it."""

    def open_feed(name: str) -> Feed:
        way = feeds.WAYS[name]
        loader = feeds.open_loader(LMDBDataset(data), batch_size, seed=0, drop_last=True, **options, **way)
        return feeds.loader_feed(name, loader, loader.device)

    return {name: partial(open_feed, name) for name in names}


def shares(
    stage: Stage, what: str, trainer: Trainer, pixels: int, ways: dict[str, Open], seconds: float
) -> list[dict[str, Any]]:
    """Return the speed of training from each feed, and its share of the ceiling in the same turn."""
    with contextlib.ExitStack() as opened:
        running: dict[str, tuple[Feed, Iterator[Any]]] = {}
        for name, open_feed in ways.items():
            try:
                feed = open_feed()
                opened.callback(feed.close)
                raw = feed.raw()
                opened.callback(raw.close)  # type: ignore[attr-defined]
                if name.startswith("kept"):  # the first epoch fills the memory
                    for _ in range(1 if stage.small else len(feed.source)):
                        next(raw)
                next(raw)
                running[name] = feed, raw
            except Exception as error:
                stage.leave_out(f"{what}, {name}", f"{type(error).__name__}: {error}"[:300])
        if not running:
            return []
        first, raw = next(iter(running.values()))
        there = feeds.resident(map(first.place, raw), trainer.device, first.batch_size)
        running = {"resident": (there, there.raw()), **running}
        speeds: dict[str, list[float]] = {name: [] for name in running}
        cores: dict[str, float] = {}
        for turn in range(2 if stage.small else TURNS + 1):
            for name, (feed, raw) in running.items():
                cpu, began = cpu_seconds(), time.perf_counter()
                speed = one_turn(feed, raw, trainer, 0.0 if stage.small else seconds)
                cores[name] = (cpu_seconds() - cpu) / (time.perf_counter() - began)
                if turn:  # kernels are chosen in the first one
                    speeds[name].append(speed)
    return [
        {
            "model": trainer.name,
            "pixels": pixels,
            "batch_size": first.batch_size,
            "feed": name,
            "samples_per_s": rounded(statistics.median(found)),
            "share_of_ceiling": rounded(statistics.median(map(float.__truediv__, found, speeds["resident"]))),
            "turns": [rounded(speed) for speed in found],
            "cores": rounded(cores[name]),
        }
        for name, found in speeds.items()
    ]


def one_turn(feed: Feed, raw: Iterator[Any], trainer: Trainer, seconds: float) -> float:
    """Train for some seconds, after half as many that fill the feed's queue as far as training lets it.

    Returns:
        The samples a second.
    """
    drain(feed, raw)
    steps_for(feed, raw, trainer, seconds / 2)
    began = time.perf_counter()
    count = steps_for(feed, raw, trainer, seconds)
    return count * feed.batch_size / (time.perf_counter() - began)


def steps_for(feed: Feed, raw: Iterator[Any], trainer: Trainer, seconds: float) -> int:
    """Train for some seconds, in whole rounds of the feed's threads; return the steps when the device has done them."""
    count, began = 0, time.perf_counter()
    while True:
        trainer.step(feed, next(raw), _NoLaps())
        count += 1
        elapsed = time.perf_counter() - began
        if elapsed >= seconds and (count % feed.period == 0 or elapsed > 3 * seconds):
            break
    synchronize(trainer.device)
    return count


if __name__ == "__main__":
    main()
