"""Classification: class folders into datasets, a contact sheet, reading speed, a ResNet trained on them."""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import torch
from classification import RECIPES, build_model, evaluate, learning_rate, parameter_groups, train_epoch
from classification.precision import Precision
from training.class_folders import FolderLoader, list_classes

import lmdbloader
from demos.class_folders import make_class_folders

SIZE = 96
BATCH_SIZE = 32
NUM_TRAIN, NUM_VAL = 100, 20
EPOCHS = 6
RATE = 0.1
READ_ROUNDS = 3
RECIPE = RECIPES["imagenet"]


def measure(loaders: dict[str, Iterable[Any]]) -> dict[str, float]:
    """Return the images a second of each loader, the median of interleaved rounds."""
    rates: dict[str, list[float]] = {name: [] for name in loaders}
    for number in range(READ_ROUNDS + 1):
        for name, loader in loaders.items():
            began = time.perf_counter()
            count = sum(len(labels) for _, labels in loader)
            if number:  # in the first round workers start and pages are read
                rates[name].append(count / (time.perf_counter() - began))
    return {name: statistics.median(values) for name, values in rates.items()}


def run(photographs: Sequence[Path] | None, output: Path) -> bool:
    """Make, convert, look, read, train and score; returns whether the model is better than chance.

    Args:
        photographs: Each becomes a class; None takes those that scikit-image carries.
        output: A folder of its own is made in it.
    """
    folder = output / "classes"
    shutil.rmtree(folder, ignore_errors=True)
    names = make_class_folders(folder, num_train=NUM_TRAIN, num_val=NUM_VAL, photographs=photographs)
    print(f"1. Class folders: {NUM_TRAIN} + {NUM_VAL} JPEG files from each of {len(names)} photographs, in {folder}")

    paths = {split: output / f"classes_{split}.lmdb" for split in ("train", "val")}
    began = time.perf_counter()
    reports = [
        lmdbloader.convert(folder / split, path, layout="classes", overwrite=True) for split, path in paths.items()
    ]
    size = sum(report.sizes["data_nbytes"] for report in reports)
    print(f"2. Conversion: {time.perf_counter() - began:.1f} s, {size / 1e6:.1f} MB: {paths['train']}, {paths['val']}")
    lmdbloader.preview(paths["train"], output / "classes.png", count=2 * len(names))
    print(f"3. Contact sheet: {output / 'classes.png'}")

    train, val = (lmdbloader.LMDBDataset(path) for path in paths.values())
    transforms = RECIPE.training_transforms(SIZE, torch.float32)
    loader = lmdbloader.Loader(train, BATCH_SIZE, shuffle=True, seed=0, drop_last=True, transforms=transforms)
    compare_reading(folder / "train", loader)
    transforms = RECIPE.evaluation_transforms(SIZE, torch.float32)
    top1 = train_and_score(loader, lmdbloader.Loader(val, BATCH_SIZE, order="sequential", transforms=transforms))
    chance = 1 / len(names)
    print(f"6. Top-1 on pieces of the photographs' other side: {top1:.1%} (chance {chance:.1%})")
    return top1 > chance


def compare_reading(folder: Path, loader: lmdbloader.Loader) -> None:
    """Print how fast the files and the dataset can be read into normalized float32 batches."""
    print(f"4. Reading random resized crops of {SIZE} x {SIZE}, batches of {BATCH_SIZE}", flush=True)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    files, transforms = list_classes(folder), RECIPE.training_transforms(SIZE, torch.float32)
    ours = f"LMDB, lmdbloader.Loader, {loader.num_threads} threads"
    with ExitStack() as stack:
        loaders: dict[str, Iterable[Any]] = {
            f"JPEG files, DataLoader, {workers} workers": stack.enter_context(
                closing(FolderLoader(files, BATCH_SIZE, transforms=transforms, num_workers=workers))
            )
            for workers in (0, cores)
        }
        rates = measure({**loaders, ours: loader})
    for name, rate in rates.items():
        print(f"   {name:42} {rate:10,.0f} images/s")
    best = max(rates[name] for name in loaders)
    print(f"   ratio to the faster of the readers of files {rates[ours] / best:9.1f} x")


def train_and_score(loader: lmdbloader.Loader, validation: lmdbloader.Loader) -> float:
    """Train a small ResNet with a line every few epochs; returns its top-1 accuracy, 0 to 1."""
    print(f"5. Training a small ResNet for {EPOCHS} epochs", flush=True)
    torch.manual_seed(0)
    precision = Precision(torch.device("cpu"), torch.float32)
    model = build_model("tiny", len(loader.dataset.classes))
    optimizer = torch.optim.SGD(parameter_groups(model, RECIPE.weight_decay), lr=RATE, momentum=0.9, nesterov=True)
    for epoch in range(EPOCHS):
        loader.set_epoch(epoch)

        def before_step(step: int, epoch: int = epoch) -> None:
            elapsed = epoch + (step + 1) / len(loader)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(RATE, elapsed, num_epochs=EPOCHS, warmup=EPOCHS / 6, schedule="cosine")

        result = train_epoch(model, optimizer, loader, precision=precision, before_step=before_step)
        if (epoch + 1) % 2 == 0:
            share = result.data_seconds / result.seconds
            speed = f"{result.num_images / result.seconds:,.0f} images/s, {share:.0%} waiting for data"
            print(f"   epoch {epoch + 1}  loss {result.loss:.2f}  {speed}", flush=True)
    return evaluate(model, validation, precision=precision).top1
