"""Compares the recommendation of `lmdbloader tune` with the best of all settings, found by long measurements.

Three datasets of real photographs: pairs of patches as pixels, single patches compressed with lz4, and whole JPEG files
of which random resized crops are read. Then, in the same run, all settings are measured in
interleaved turns.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import cut_pairs, environment, environment_text, table
from photos import write_photos

import lmdbloader
from lmdbloader import LMDBDataset
from lmdbloader.base.cores import count_cores
from lmdbloader.lab.arms import Arm, Material, open_arm, take_turn
from lmdbloader.lab.tuning import counts
from lmdbloader.loader.torch_loader import accelerator
from lmdbloader.transforms import RandomResizedCrop

BAR, BAR_SECONDS = 0.9, 60.0


@dataclass(frozen=True, slots=True)
class Case:
    """A case to tune.

    Attributes:
        name: For people.
        write: Makes the dataset at a path, of so many samples.
        batch_size: Samples in a batch.
        crop: As `tune` takes it.
    """

    name: str
    write: Callable[[Path, int], Any]
    batch_size: int
    crop: int | None = None

    @property
    def transforms(self) -> list[Any]:
        """The same as `tune` does for the crop."""
        return [] if self.crop is None else [RandomResizedCrop(self.crop)]


def write_pairs(path: Path, count: int) -> None:
    """Write pairs of 96 x 96 and 48 x 48 patches as pixels."""
    pairs = cut_pairs(count)
    samples = zip(pairs.lr.transpose(0, 2, 3, 1), pairs.hr.transpose(0, 2, 3, 1), strict=True)
    lmdbloader.write(({"lr": lr, "hr": hr} for lr, hr in samples), path, codec="raw")


def write_patches(path: Path, count: int) -> None:
    """Write 160 x 160 patches with lz4."""
    patches = cut_pairs(count // 2, patch_size=160, seed=1).hr.transpose(0, 2, 3, 1)
    lmdbloader.write(({"image": patch} for patch in patches), path, codec="lz4")


def write_jpegs(path: Path, count: int) -> None:
    """Write JPEGs of about 500 x 375 pixels, kept as they are."""
    with tempfile.TemporaryDirectory() as folder:
        write_photos(Path(folder) / "photos", count // 4)
        lmdbloader.convert(Path(folder) / "photos", path, layout="classes")


CASES = (
    Case("pairs 96/48, pixels", write_pairs, 32),
    Case("patches 160, lz4", write_patches, 8),
    Case("JPEG files, crops 128", write_jpegs, 64, 128),
)


@dataclass(frozen=True, slots=True)
class Figure:
    """The result of one dataset.

    Attributes:
        name: Of the case.
        kind: "all", "threads" or "workers": among which settings.
        seconds: That tuning took.
        picked, best: The settings that tuning recommends and that the long search found.
        picked_per_s, best_per_s: Samples a second of both, in the long search.
        ratio: Of both: the geometric mean over the rounds.
        low, high: The middle 95 % of resampled rounds.
    """

    name: str
    kind: str
    seconds: float
    picked: str
    best: str
    picked_per_s: float
    best_per_s: float
    ratio: float
    low: float
    high: float


def all_settings(batch_size: int) -> list[Arm]:
    """Return every number of threads and workers up to the cores, through paged memory and, where it helps, pinned."""
    cores = count_cores()
    tried = range(1, cores + 1) if cores <= 16 else counts(cores)
    pinning = (False, True) if accelerator() is not None else (False,)
    return [Arm("lmdbloader", batch_size, n) for n in tried] + [
        Arm("dataloader", batch_size, n, is_pinned=p) for n in (0, *tried) for p in pinning
    ]


def search(material: Material, batch_size: int, rounds: int, seconds: float) -> dict[Arm, list[float]]:
    """Return samples a second of every setting in every round."""
    found: dict[Arm, list[float]] = {setting: [] for setting in all_settings(batch_size)}
    for number in range(rounds):
        # Forwards and backwards: neither comes always after the same other one.
        for setting in list(found)[:: 1 if number % 2 else -1]:
            with open_arm(material, setting, seed=1000 + number) as feed:
                found[setting].append(take_turn(feed, seconds).samples_per_s)
    return found


def compare(case: Case, path: Path, options: argparse.Namespace) -> list[Figure]:
    """Tune, search, and return how the recommendation does."""
    began = time.perf_counter()
    tuning = lmdbloader.lab.tune(path, case.batch_size, crop=case.crop, seconds=options.tune_seconds)
    seconds = time.perf_counter() - began
    print(f"{tuning}\n", file=sys.stderr, flush=True)
    material = Material(LMDBDataset(path), None, case.transforms, accelerator())
    speeds = search(material, case.batch_size, options.rounds, options.seconds)
    figures = []
    picks = {"all": tuning.best, "threads": tuning.threads, "workers": tuning.workers}
    for kind, picked in picks.items():
        if picked is None:
            continue
        among = {
            setting: values for setting, values in speeds.items() if kind == "all" or setting.source == picked.source
        }
        best = max(among, key=lambda setting: statistics.fmean(map(math.log, among[setting])))
        ratio, low, high = ratio_of(speeds[picked], speeds[best])
        medians = statistics.median(speeds[picked]), statistics.median(speeds[best])
        figures.append(Figure(case.name, kind, seconds, str(picked), str(best), *medians, ratio, low, high))
    return figures


def ratio_of(picked: Sequence[float], best: Sequence[float], draws: int = 2000) -> tuple[float, float, float]:
    """Return the geometric mean of the ratios of each round, and the middle 95 % of its resamples."""
    import numpy as np

    logs = np.log(picked) - np.log(best)
    means = np.random.default_rng(0).choice(logs, (draws, len(logs))).mean(1)
    low, high = np.exp(np.percentile(means, [2.5, 97.5]))
    return float(np.exp(logs.mean())), float(low), float(high)


def report(figures: Sequence[Figure], markdown: bool) -> str:
    """Return the table, and whether the bar is reached."""
    rows = [
        [f.name, f.kind, f"{f.seconds:.1f}", f.picked, f"{f.picked_per_s:,.0f}", f.best, f"{f.best_per_s:,.0f}",
         f"{f.ratio:.3f}", f"{f.low:.3f} to {f.high:.3f}"]
        for f in figures
    ]  # fmt: skip
    header = ["", "among", "tuning s", "recommended", "samples/s", "best found", "samples/s", "ratio", "95 %"]
    least, longest = min(f.ratio for f in figures), max(f.seconds for f in figures)
    verdict = "reached" if least >= BAR and longest < BAR_SECONDS else "MISSED"
    return (
        f"{table(header, rows, markdown=markdown)}\n\nThe recommendation is at least {least:.0%} of the best setting "
        f"found, after at most {longest:.0f} s. The bar, {BAR:.0%} in under {BAR_SECONDS:.0f} s, is {verdict}."
    )


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=6000, help="pairs; half as many patches, a quarter JPEGs")
    parser.add_argument("--rounds", type=int, default=25, help="turns of every setting in the long search (default 25)")
    parser.add_argument("--seconds", type=float, default=0.5, help="length of such a turn (default 0.5)")
    parser.add_argument("--tune-seconds", type=float, default=20.0, help="about how long to tune (default 20)")
    parser.add_argument("--folder", type=Path, help="keep the datasets here (default: a temporary folder)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to a file")
    parser.add_argument("--markdown", action="store_true", help="print the tables in Markdown")
    parser.add_argument("--quick", action="store_true", help="some seconds: does it still run?")
    options = parser.parse_args(arguments)
    if options.quick:
        options.samples, options.rounds, options.seconds, options.tune_seconds = 512, 1, 0.01, 1.0
    return options


def main() -> None:
    """Measure, and print the table."""
    options = parse_options()
    with tempfile.TemporaryDirectory(prefix="lmdbloader-tune-") as temporary:
        # The user's remembered settings are kept, and not used.
        os.environ["XDG_CACHE_HOME"] = temporary
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        found = environment(folder)
        figures = []
        for case in CASES[:1] if options.quick else CASES:
            path = folder / f"{case.write.__name__}.lmdb"
            if not path.exists():
                case.write(path, options.samples)
            figures += compare(case, path, options)
            print(f"{case.name}: done", file=sys.stderr, flush=True)
        print(environment_text(found, sys.argv[1:], markdown=options.markdown))
        print(f"\n{options.rounds} turns of {options.seconds} s of every setting\n")
        print(report(figures, options.markdown))
        if options.json:
            kept = [{name: getattr(f, name) for name in Figure.__slots__} for f in figures]
            options.json.write_text(json.dumps({"environment": found, "figures": kept}, indent=1), "utf-8")


if __name__ == "__main__":
    main()
