"""Trains a small ResNet with RandAugment in compiled code and with torchvision v2's, and without it.

All read the same datasets with the same crops, flips, order and weights; only RandAugment is drawn differently. The
differences have the 95 % intervals of scripts/compare_training.py. torchvision changes one image after the other, in
Python.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from common import print_sections, table

if __name__ == "__main__":
    # What scripts share among themselves; tests and others have it on their path.
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

from comparison.statistics import mean
from demos.class_folders import find_photographs, make_class_folders
from jpeg_quality import BATCH_SIZE, PHOTOGRAPHS, RECIPE, STORED, TRAINED, score, store, train

import lmdbloader
from lmdbloader.transforms import RandomHorizontalFlip, RandomResizedCrop

OURS, THEIRS, WITHOUT = "lmdbloader", "torchvision v2", "without RandAugment"
WAYS, TITLE = (OURS, THEIRS, WITHOUT), "RandAugment(2, 9) from lmdbloader and from torchvision"


def loader_of(path: Path, way: str, seed: int) -> lmdbloader.Loader:
    """Return the batches of a training."""
    steps: list[Any] = [RandomResizedCrop(TRAINED), RandomHorizontalFlip()]
    module: Any = lmdbloader.transforms
    if way == THEIRS:
        from torchvision.transforms import v2 as module
    last = [module.RandAugment(2, 9)][: way != WITHOUT]
    last += [module.ToDtype(torch.float32, scale=True), module.Normalize(RECIPE.mean, RECIPE.std)]
    dataset = lmdbloader.LMDBDataset(path, transform=module.Compose(last) if way == THEIRS else None)
    steps += [] if way == THEIRS else last
    return lmdbloader.Loader(
        dataset, BATCH_SIZE, shuffle=True, seed=seed, drop_last=True, num_threads=1, transforms=steps,
        memory_format=torch.channels_last,
    )  # fmt: skip


def apart(ours: list[float], theirs: list[float], unit: float) -> str:
    """Return a difference and its interval; the runs of a seed are a pair, with the same images and weights."""
    found = mean([unit * (one - other) for one, other in zip(ours, theirs, strict=True)])
    return f"{found.value:+.3g}" + ("" if found.low is None else f" [{found.low:+.3g}, {found.high:+.3g}]")


def run(folder: Path, options: argparse.Namespace) -> Iterator[tuple[str, Any, str]]:
    """Yield the one section: every training, in turns."""
    torch.set_num_threads(1)  # small steps are several times slower with two where others use the second core
    home = find_photographs()
    kept = json.loads(options.json.read_text("utf-8"))[TITLE] if options.json and options.json.exists() else {}
    scores: dict[str, list[float]] = kept.get("top1", {way: [] for way in WAYS})
    losses: dict[str, list[float]] = kept.get("loss", {way: [] for way in WAYS})
    for seed in range(len(scores[OURS]), options.seeds):
        pieces = folder / f"pieces-{seed}"
        make_class_folders(
            pieces, num_train=options.images, num_val=options.images, sides=(STORED, STORED), suffix=".png",
            seed=seed, photographs=[home / f"{name}.png" for name in PHOTOGRAPHS],
        )  # fmt: skip
        datasets = store(pieces, None)
        for way in WAYS:
            batches = loader_of(datasets["train"], way, seed)
            model, loss = train(batches, len(PHOTOGRAPHS), epochs=options.epochs, seed=seed)
            scores[way].append(score(model, datasets["val"])[0])
            losses[way].append(loss)
            print(json.dumps([seed, way, scores[way][-1], loss]), file=sys.stderr, flush=True)
        shutil.rmtree(pieces)
    rows = []
    for way, found in scores.items():
        changes = ["", ""]
        if way != THEIRS:
            changes = [apart(losses[way], losses[THEIRS], 1), apart(found, scores[THEIRS], 100)]
        rows.append([way, f"{fmean(losses[way]):.3f}", changes[0], f"{fmean(found):.1%}", changes[1]])
    header = ["RandAugment(2, 9)", "training loss", "above torchvision's", "top-1", "points above torchvision's"]
    figures = {"top1": scores, "loss": losses}
    yield TITLE, figures, table(header, rows, markdown=options.markdown)


def main() -> None:
    """Train and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--folder", type=Path, help="write here (default: a temporary folder)")
    add("--seeds", type=int, default=10, help="those whose results --json has are not trained again")
    add("--epochs", type=int, default=16)
    add("--images", type=int, default=60, help="of a class to train on, and to score")
    add("--markdown", action="store_true", help="print tables for the documentation")
    add("--json", type=Path, metavar="FILE", help="write every figure to this file")
    options = parser.parse_args()
    print_sections(partial(run, options=options), "A small ResNet trained with RandAugment", options)


if __name__ == "__main__":
    main()
