"""Measures the accuracy of a small classifier by the quality of its training JPEGs: a table and a chart."""

from __future__ import annotations

import argparse
import math
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from common import print_sections, table

import lmdbloader

if __name__ == "__main__":
    # What scripts share among themselves; tests and others have it on their path.
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

from classification import RECIPES, build_model, evaluate, learning_rate, parameter_groups, train_epoch
from classification.precision import Precision
from comparison.statistics import Interval, mean
from demos.class_folders import find_photographs, make_class_folders

# Of the photographs that scikit-image carries, those of PNG files: JPEG has not touched them there.
PHOTOGRAPHS = (
    "astronaut", "brick", "camera", "cell", "chelsea", "coffee", "coins", "grass", "gravel", "ihc", "moon",
    "motorcycle_left", "page", "text",
)  # fmt: skip
QUALITIES: tuple[int, ...] = (5, 10, 20, 30, 40, 50, 75, 90)
# Stored larger than trained on, about as FFCV's recipes store 384 pixels and train on 224.
STORED, TRAINED = 64, 48
NUM_TRAIN, NUM_VAL, EPOCHS, SEEDS = 60, 60, 12, 5
BATCH_SIZE, RATE = 32, 0.1
PIXELS = "pixels"
RECIPE = RECIPES["imagenet"]
PRECISION = Precision(torch.device("cpu"), torch.float32)


@dataclass(frozen=True, slots=True)
class Result:
    """One training.

    Attributes:
        payload: Bytes of an image as it is stored, the mean.
        psnr: Of the images that are scored, against their pixels before; None for the pixels themselves.
        loss: Of training, in the last epoch.
        top1, val_loss: On images stored at the same quality, 0 to 1.
        top1_pixels: On images stored as pixels.
    """

    payload: float
    psnr: float | None
    loss: float
    top1: float
    val_loss: float
    top1_pixels: float


def store(folder: Path, quality: int | None) -> dict[str, Path]:
    """Convert the class folders train and val at a quality, None for pixels; return the datasets."""
    found = {}
    for split in ("train", "val"):
        found[split] = folder / f"{split}-{quality}.lmdb"
        if quality is None:
            lmdbloader.convert(folder / split, found[split], layout="classes", codec="raw", workers=1)
        else:
            lmdbloader.convert(
                folder / split, found[split], layout="classes", write_mode="jpg", jpeg_quality=quality, workers=1
            )
    return found


def fidelity(stored: Path, pixels: Path) -> float:
    """Return the PSNR of a dataset's images against the same images stored as pixels, in dB: of the mean error."""
    found, expected = lmdbloader.LMDBDataset(stored), lmdbloader.LMDBDataset(pixels)
    changes = (found[number].image.float() - expected[number].image.float() for number in range(len(expected)))
    error = fmean(float(change.square().mean()) for change in changes)
    return 10 * math.log10(255**2 / error)


def train(loader: lmdbloader.Loader, num_classes: int, *, epochs: int, seed: int) -> tuple[torch.nn.Module, float]:
    """Train a fresh model on a Loader's batches; return it and its last loss."""
    torch.manual_seed(seed)
    model = build_model("tiny", num_classes).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(parameter_groups(model, RECIPE.weight_decay), lr=RATE, momentum=0.9, nesterov=True)
    loss = 0.0
    for epoch in range(epochs):

        def before_step(step: int, epoch: int = epoch) -> None:
            now = epoch + (step + 1) / len(loader)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(RATE, now, num_epochs=epochs, warmup=min(1, epochs / 2), schedule="cosine")

        loss = train_epoch(
            model, optimizer, loader, precision=PRECISION, label_smoothing=RECIPE.label_smoothing,
            before_step=before_step,
        ).loss  # fmt: skip
    return model, loss


def train_and_score(
    datasets: dict[str, Path], pixels: Path, *, epochs: int, seed: int
) -> tuple[float, list[tuple[float, float]]]:
    """Train a fresh model; return its last loss, and (top-1, loss) on its own images and on those stored as pixels."""
    dataset = lmdbloader.LMDBDataset(datasets["train"])
    loader = lmdbloader.Loader(
        dataset, BATCH_SIZE, shuffle=True, seed=seed, drop_last=True, num_threads=1,
        transforms=RECIPE.training_transforms(TRAINED, torch.float32), memory_format=torch.channels_last,
    )  # fmt: skip
    model, loss = train(loader, len(dataset.classes), epochs=epochs, seed=seed)
    return loss, [score(model, place) for place in (datasets["val"], pixels)]


def score(model: torch.nn.Module, place: Path) -> tuple[float, float]:
    """Return the top-1 accuracy and the loss of a model on a dataset."""
    scored = lmdbloader.Loader(
        lmdbloader.LMDBDataset(place), BATCH_SIZE, num_threads=1, memory_format=torch.channels_last,
        transforms=RECIPE.evaluation_transforms(TRAINED, torch.float32),
    )  # fmt: skip
    accuracy = evaluate(model, scored, precision=PRECISION)
    return accuracy.top1, accuracy.loss / accuracy.num_images


def run(folder: Path, options: argparse.Namespace) -> Iterator[tuple[str, Any, str]]:
    """Yield the one section: every training, in turns, so that a busy minute meets all qualities."""
    count, num_val, epochs, seeds, qualities = NUM_TRAIN, NUM_VAL, EPOCHS, SEEDS, QUALITIES
    if options.quick:
        count, num_val, epochs, seeds, qualities = 6, 3, 1, 2, (10, 90)
    # Small steps are several times slower with two threads where other programs use the second core.
    torch.set_num_threads(1)
    home = find_photographs()
    found: dict[str, list[Result]] = {}
    for seed in range(seeds):
        pieces = folder / f"pieces-{seed}"
        make_class_folders(
            pieces, num_train=count, num_val=num_val, sides=(STORED, STORED), suffix=".png", seed=seed,
            photographs=[home / f"{name}.png" for name in PHOTOGRAPHS],
        )  # fmt: skip
        pixels = store(pieces, None)
        for quality in (*qualities, None):
            datasets = pixels if quality is None else store(pieces, quality)
            loss, (own, on_pixels) = train_and_score(datasets, pixels["val"], epochs=epochs, seed=seed)
            info = lmdbloader.info(datasets["train"])
            result = Result(
                info.sizes["payload_nbytes"] / (count * len(PHOTOGRAPHS)),
                None if quality is None else fidelity(datasets["val"], pixels["val"]),
                loss, *own, on_pixels[0],
            )  # fmt: skip
            found.setdefault(PIXELS if quality is None else str(quality), []).append(result)
            print(f"seed {seed}, quality {quality or PIXELS}: top-1 {result.top1:.1%}", file=sys.stderr, flush=True)
        shutil.rmtree(pieces)
    figures = {name: [_fields(result) for result in results] for name, results in found.items()}
    yield "Accuracy by the quality of JPEGs", figures, table(HEADER, rows_of(found), markdown=options.markdown)
    if options.svg is not None:
        options.svg.write_text(draw(found), "utf-8")


HEADER = (
    "quality", "bytes an image", "PSNR, dB", "training loss", "top-1", "points more than from pixels",
    "validation loss", "top-1 on pixels",
)  # fmt: skip


def _fields(result: Result) -> dict[str, float | None]:
    return {name: getattr(result, name) for name in Result.__slots__}


def rows_of(found: dict[str, list[Result]]) -> list[list[str]]:
    """Return a row for each quality, with 95 % intervals over the seeds.

    Each seed cuts its own pieces, which all qualities share, so the difference to pixels is that of pairs.
    """
    rows = []
    for name, results in found.items():
        change = difference(found, name)
        rows.append(
            [
                name,
                f"{fmean(each.payload for each in results):,.0f}",
                "" if results[0].psnr is None else f"{fmean(each.psnr or 0.0 for each in results):.1f}",
                f"{fmean(each.loss for each in results):.3f}",
                _shown(mean([100 * each.top1 for each in results]), ".1f", " %"),
                "" if name == PIXELS else _shown(change, "+.1f"),
                f"{fmean(each.val_loss for each in results):.3f}",
                f"{fmean(100 * each.top1_pixels for each in results):.1f} %",
            ]
        )
    return rows


def difference(found: dict[str, list[Result]], name: str, score: str = "top1") -> Interval:
    """Return by how many points a quality's accuracy is above that of pixels, with the 95 % interval of the pairs."""
    pairs = zip(found[name], found[PIXELS], strict=True)
    return mean([100 * (getattr(own, score) - pixels.top1) for own, pixels in pairs])


def _shown(interval: Interval, form: str, unit: str = "") -> str:
    if interval.low is None or interval.high is None:
        return f"{interval.value:{form}}{unit}"
    return f"{interval.value:{form}} ± {(interval.high - interval.low) / 2:.1f}{unit}"


def draw(found: dict[str, list[Result]]) -> str:
    """Return an SVG: the difference of accuracy to pixels with its interval, and bytes an image, over the quality."""
    from drawing import DATALOADER, FOLDER, LOADER, Look, begin, drawing

    own, clean = Look("scored on JPEGs of the same quality", LOADER), Look("scored on pixels", DATALOADER, "s", "--")
    names = list(found)
    qualities = [name for name in names if name != PIXELS]
    top1 = fmean(100 * each.top1 for each in found[PIXELS])
    titles = (
        f"top-1 accuracy: points more than from pixels, which give {top1:.1f} %",
        "bytes an image, as stored (logarithmic)",
    )
    figure, (accuracy, size) = begin(
        f"{len(PHOTOGRAPHS)} photographs in squares of {STORED} pixels, trained on at {TRAINED} pixels: mean and 95 % "
        f"interval over {len(found[PIXELS])} seeds",
        titles, (own, clean),
    )  # fmt: skip
    for look, score, shift in ((own, "top1", -0.07), (clean, "top1_pixels", 0.07)):
        intervals = [difference(found, name, score) for name in qualities]
        shifted = [place + shift for place in range(len(qualities))]
        accuracy.plot(shifted, [interval.value for interval in intervals], **look.line)
        for place, interval in zip(shifted, intervals, strict=True):
            if interval.low is not None and interval.high is not None:
                accuracy.vlines(place, interval.low, interval.high, color=look.color, linewidth=1.2)
    accuracy.axhline(0, color=FOLDER, linewidth=1.0, zorder=1)
    accuracy.plot([len(names) - 1], [0], **own.line)
    accuracy.yaxis.set_major_formatter(lambda value, _: f"{value:+g}" if value else "0")
    size.plot(range(len(names)), [fmean(result.payload for result in found[name]) for name in names], **own.line)
    size.set_yscale("log")
    size.set_yticks([1000, 2000, 5000, 10_000])
    size.set_yticks([], minor=True)
    size.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    for axes in (accuracy, size):
        axes.set_xticks(range(len(names)), names)
    size.set_xlabel("quality of the JPEGs")
    return drawing(
        figure, title="Accuracy, and bytes an image, by the quality of the JPEGs",
        description="Two lines: accuracy minus that from pixels, with intervals; and bytes an image.",
    )  # fmt: skip


def main() -> None:
    """Measure, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few images and short training, for a test")
    parser.add_argument("--folder", type=Path, help="write here (default: a temporary folder)")
    parser.add_argument("--markdown", action="store_true", help="print tables for the documentation")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to this file")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw the chart to this file")
    options = parser.parse_args()
    print_sections(lambda folder: run(folder, options), "How far the quality of JPEGs can fall", options)


if __name__ == "__main__":
    main()
