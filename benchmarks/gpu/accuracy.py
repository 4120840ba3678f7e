"""Stage (e): whether a classifier and SRCNN come out the same, trained from Loader and from the folder.

Every feed trains the same model on the same samples, for as many epochs, with the same schedule, from several seeds, in
turns. A comparison that cannot fail shows nothing: the same training with a mistake planted in it has to differ.
"""

from __future__ import annotations

import gc
import math
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

import numpy as np
import torch
from classification import models as own_models
from comparison import statistics
from photos import MEAN, STD, PillowRecipe
from PIL import Image
from stage import Stage, parse_stage, what_failed
from stores import PngPairs, Tensors
from superresolution.models import build_model as build_sr_model
from superresolution.training import cosine_rate, train_step
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from lmdbloader import LMDBDataset, Loader
from lmdbloader.superres import upscale
from lmdbloader.superres.tensors import to_bytes, to_channels, unit_floats
from lmdbloader.transforms import (
    CenterCrop,
    Normalize,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
    ToDtype,
)

FOLDER = "folder, DataLoader"
SCALE = 2
# The validation image's shorter side, for a middle of 1.
SHORTER = 8 / 7
# Failures that are unrelated to the source of batches (a worker that died) are tried once more.
TRIES = 2


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is trained.

    Attributes:
        images, size, batch_size, epochs, rate: Of the classifier: training images, height and width, images a step,
            passes, peak learning rate of SGD.
        pairs, crop, sr_batch_size, sr_epochs, sr_rate: Of SRCNN: training pairs, height and width of HR, pairs a step,
            passes, peak learning rate of Adam.
        seeds: Runs of each feed, of those with a mistake planted too; and runs once more time has been given.
    """

    images: int = 6000
    size: int = 128
    batch_size: int = 128
    epochs: int = 4
    rate: float = 0.02
    pairs: int = 8000
    crop: int = 64
    sr_batch_size: int = 64
    sr_epochs: int = 8
    sr_rate: float = 1e-3
    seeds: tuple[int, int] = (3, 12)


SMALL = Sizes(
    images=120, size=32, batch_size=20, epochs=1, pairs=64, crop=32, sr_batch_size=16, sr_epochs=1,
    seeds=(2, 2),
)  # fmt: skip


class Batches(Protocol):
    """Yields an epoch's batches each time that it is iterated."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Any]: ...


@dataclass(frozen=True, slots=True)
class Feed:
    """One way to training's batches.

    Attributes:
        name: For the tables.
        open: Takes a seed and returns the batches, which may be on any device.
        is_planted: Whether it makes a mistake on purpose.
    """

    name: str
    open: Callable[[int], Batches]
    is_planted: bool = False


@dataclass(frozen=True, slots=True)
class Task:
    """A training task.

    Attributes:
        name: Of the model.
        feeds: The folder first: the others are compared with it.
        train: Takes a feed, a seed and how many steps to make at most, and returns the figures of the run.
        measures: Of those figures, the ones that are compared.
    """

    name: str
    feeds: Sequence[Feed]
    train: Callable[[Feed, int, int | None], dict[str, Any]]
    measures: Sequence[str]


def main() -> None:
    """Train, round after round, and compare after each round."""
    stage = parse_stage("accuracy", __doc__)
    sizes = SMALL if stage.small else Sizes()
    torch.backends.cudnn.benchmark = True
    stage.put("settings", {**asdict(sizes), "cores": stage.cores, "model": classifier_name(stage)})
    tasks = []
    for name, prepare in (("classifier", prepare_classifier), ("srcnn", prepare_srcnn)):
        try:
            tasks.append(prepare(stage, sizes))
        except Exception as error:
            stage.leave_out(name, what_failed(error))
    run_rounds(stage, sizes, tasks)


def run_rounds(stage: Stage, sizes: Sizes, tasks: Sequence[Task]) -> None:
    """Train from every feed once a round, from another seed each; `--more` adds rounds, without planted mistakes.

    How many rounds there are is fixed beforehand, so that nobody stops where the figures look right.
    """
    runs = {task.name: list(stage.figure(f"{task.name} runs", [])) for task in tasks}
    took: dict[tuple[str, str], float] = {}
    broken: set[tuple[str, str]] = set()
    needed, most = sizes.seeds
    for seed in range(most if stage.more else needed):
        for task in tasks:
            for feed in task.feeds:
                key, what = (task.name, feed.name), f"{task.name}, {feed.name}, seed {seed}"
                is_done = any((run["feed"], run["seed"]) == (feed.name, seed) for run in runs[task.name])
                if key in broken or is_done or (feed.is_planted and seed >= needed):
                    continue
                if not stage.has(took.get(key, 0.0) * 1.2 + 2, what):
                    continue
                done = attempt(stage, task, feed, seed, what, is_first=key not in took)
                if done is None:
                    broken.add(key)
                    continue
                run, took[key] = done
                stage.take_back(what)
                runs[task.name].append({name: rounded(value) for name, value in run.items()})
                print(f"{what}: {runs[task.name][-1]}", flush=True)
                stage.put(f"{task.name} runs", runs[task.name])
            summarize(stage, task, runs[task.name])


def attempt(
    stage: Stage, task: Task, feed: Feed, seed: int, what: str, *, is_first: bool
) -> tuple[dict[str, Any], float] | None:
    """Return the figures of one run and its seconds, None where every try failed: each is noted, with its cause."""
    for number in range(TRIES):
        # Frees reference cycles of the run before, on the device or pinned, here and not in a forked process.
        gc.collect()
        try:
            if is_first:
                # First compilations, choices and reads are not timed.
                task.train(feed, seed, 2)
                gc.collect()
            began = time.monotonic()
            figures = {"feed": feed.name, "seed": seed, **task.train(feed, seed, None)}
            return figures, time.monotonic() - began
        except Exception as error:
            traceback.print_exc(file=sys.stdout)
            stage.leave_out(what if number == TRIES - 1 else f"{what}, try {number + 1}", what_failed(error))
    return None


# --- Comparing ---


def summarize(stage: Stage, task: Task, runs: Sequence[dict[str, Any]]) -> None:
    """Keep each feed's means, and how far each is from the folder's."""
    rows, compared = [], []
    for feed in task.feeds:
        own = [run for run in runs if run["feed"] == feed.name]
        if not own:
            continue
        row: dict[str, Any] = {"feed": feed.name, "planted": feed.is_planted, "runs": len(own)}
        for measure in (*task.measures, "seconds", "samples_per_s"):
            row[measure], row[f"{measure} +-"] = mean_and_half([run[measure] for run in own])
        rows.append({name: rounded(value) for name, value in row.items()})
        others = [run for run in runs if run["feed"] == FOLDER]
        for measure in task.measures if feed.name != FOLDER and others else ():
            found = difference([run[measure] for run in own], [run[measure] for run in others])
            compared.append({"feed": feed.name, "planted": feed.is_planted, "measure": measure, **rounded(found)})
    stage.put(task.name, rows)
    stage.put(f"{task.name} compared", compared)


def rounded(value: Any) -> Any:
    """Return a value with its floats cut to six digits: runs differ by far more.

    >>> rounded({"psnr": [33.66066693]})
    {'psnr': [33.6607]}
    """
    if isinstance(value, dict):
        return {name: rounded(kept) for name, kept in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(kept) for kept in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def mean_and_half(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean and half the width of its 95 % interval (t distribution), None for a single value.

    >>> [round(value, 3) for value in mean_and_half([1.0, 2.0, 3.0])]
    [2.0, 2.484]
    """
    found = statistics.mean(values)
    return found.value, None if found.high is None else found.high - found.value


def difference(first: Sequence[float], second: Sequence[float]) -> dict[str, Any]:
    """Return the difference of two means, its 95 % interval (Welch's), and whether it contains 0.

    >>> difference([1.0, 1.1, 1.2], [1.0, 1.1, 1.3])["contains_0"], difference([1.0, 1.1], [8.0, 8.1])["contains_0"]
    (True, False)
    """
    found = statistics.difference(first, second)
    return {
        "difference": found.value, "runs": [len(first), len(second)], "low": found.low, "high": found.high,
        "contains_0": found.contains_zero,
    }  # fmt: skip


# --- Training ---


def train(
    stage: Stage, batches: Batches, step: Callable[[Any, float], Tensor], epochs: int, most: int | None
) -> dict[str, Any]:
    """Train for some epochs, or at most so many steps, and return seconds, speed and each epoch's mean loss.

    Args:
        stage: This one.
        batches: Gives an epoch each time.
        step: Takes a batch and the share of training that is done, and returns the loss.
        epochs: Passes.
        most: Steps, None for all.
    """
    steps, losses, ends, count = len(batches), [], [], 0
    synchronize(stage)
    began, first = time.perf_counter(), 0.0
    for epoch in range(epochs):
        of_epoch = []
        for number, batch in enumerate(batches):
            if most is not None and number == most:
                return {}
            first = first or time.perf_counter() - began
            of_epoch.append(step(batch, (epoch * steps + number) / (epochs * steps)))
            count += len(batch[0])
        losses.append(of_epoch)
        synchronize(stage)
        ends.append(time.perf_counter() - began)
    # The first epoch starts threads or workers, and fills the read-ahead.
    speed = count * (epochs - 1) / epochs / (ends[-1] - ends[0]) if epochs > 1 else count / ends[0]
    return {
        "seconds": ends[-1],
        "first_batch_seconds": first,
        "samples_per_s": speed,
        "train_losses": [float(torch.stack(found).mean()) for found in losses],
    }


def synchronize(stage: Stage) -> None:
    """Wait for the device."""
    if stage.device == "cuda":
        torch.cuda.synchronize()


def dataloader(stage: Stage, dataset: Dataset[Any], batch_size: int, seed: int) -> DataLoader[Any]:
    """Return torch's DataLoader over the files, with a worker for each core."""
    workers = min(stage.cores, 16)
    return Workers(
        dataset, batch_size, shuffle=True, drop_last=True, num_workers=workers, persistent_workers=True,
        pin_memory=stage.device == "cuda", generator=torch.Generator().manual_seed(seed),
    )  # fmt: skip


class Workers(DataLoader[Any]):
    """A DataLoader with persistent workers whose error says how those ended that are dead."""

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        try:
            yield from super().__iter__()
        except RuntimeError as error:
            codes = {worker.pid: worker.exitcode for worker in getattr(self._iterator, "_workers", [])}
            raise RuntimeError(
                f"{error} (exit codes by worker, negative for signals, None while it runs: {codes})"
            ) from error


@dataclass(frozen=True, slots=True)
class Changed:
    """Batches with a mistake planted in them."""

    batches: Batches
    change: Callable[[Any], Any]

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        return map(self.change, self.batches)


# --- The classifier ---


class Photos(Dataset[Any]):
    """Files and their classes, as most people read them: by Pillow, each in a worker process."""

    def __init__(self, paths: Sequence[Path], labels: Sequence[int], recipe: Callable[[Path], Tensor]) -> None:
        self._paths, self._labels, self._recipe = paths, labels, recipe

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        return self._recipe(self._paths[number]), self._labels[number]


def classifier_name(stage: Stage) -> str:
    """Return which classifier is trained: torchvision's ResNet-18 if installed, else an identical one."""
    if stage.small:
        return "tiny"
    try:
        import torchvision  # noqa: F401
    except Exception:
        return "resnet18"
    return "torchvision resnet18"


def build_classifier(stage: Stage, num_classes: int) -> nn.Module:
    """Return a fresh model on the device."""
    name = classifier_name(stage)
    if name == "torchvision resnet18":
        from torchvision.models import resnet18

        model: nn.Module = resnet18(num_classes=num_classes)
    else:
        model = own_models.build_model("tiny" if name == "tiny" else "resnet18", num_classes)
    return model.to(stage.device, memory_format=torch.channels_last)  # type: ignore[call-overload]


def prepare_classifier(stage: Stage, sizes: Sizes) -> Task:
    """Return the task of classifying photographs.

    All feeds read the same images. "original" holds the files as they are and must come out as the folder does;
    "raw256" holds them shrunk to 256 pixels, as most people convert.
    """
    folder, size, device = stage.data / "photos" / "train", sizes.size, stage.device
    original, raw256 = LMDBDataset(stage.data / "original"), LMDBDataset(stage.data / "raw256")
    rows = np.linspace(0, len(original) - 1, min(sizes.images, len(original))).round().astype(int)
    table = original.select(rows).table
    sources, labels = table.column("source").to_pylist(), table.column("label").to_pylist()
    if raw256.select(rows).table.column("source").to_pylist() != sources:
        raise RuntimeError("original and raw256 do not hold the same images in the same order")
    num_classes = len(original.classes)
    images = Photos([folder / source for source in sources], labels, PillowRecipe(size))
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    windows = [RandomResizedCrop(size), RandomHorizontalFlip()]
    units, normalize = ToDtype(dtype, scale=True), Normalize(MEAN, STD)

    def loader(dataset: LMDBDataset, seed: int, *transforms: Any) -> Loader:
        return Loader(
            dataset.select(rows), sizes.batch_size, order="random", seed=seed, drop_last=True,
            transforms=[*windows, *transforms], device=device, memory_format=torch.channels_last,
        )  # fmt: skip

    def swapped(seed: int) -> Batches:
        return Changed(loader(original, seed, units, normalize), lambda batch: (batch[0].flip(1), batch[1]))

    feeds = [
        Feed(FOLDER, lambda seed: dataloader(stage, images, sizes.batch_size, seed)),
        Feed("Loader, original files", lambda seed: loader(original, seed, units, normalize)),
        # Separate crops: with the same ones as above, chance would move both the same way.
        Feed("Loader, raw 256 px", lambda seed: loader(raw256, 1000 + seed, units, normalize)),
        Feed("planted: red and blue swapped", swapped, is_planted=True),
        Feed("planted: not normalized", lambda seed: loader(original, seed, units), is_planted=True),
    ]
    scores = [("", by_pillow(stage, sizes, original.classes)), (" by Loader", by_loader(stage, sizes))]

    def run(feed: Feed, seed: int, most: int | None) -> dict[str, Any]:
        torch.manual_seed(seed)
        model = build_classifier(stage, num_classes)
        decayed = [weights for weights in model.parameters() if weights.ndim > 1]
        others = [weights for weights in model.parameters() if weights.ndim <= 1]
        groups = [{"params": decayed, "weight_decay": 1e-4}, {"params": others, "weight_decay": 0.0}]
        sgd = torch.optim.SGD(groups, lr=sizes.rate, momentum=0.9, nesterov=True)

        def step(batch: Any, progress: float) -> Tensor:
            pictures = batch[0].to(device, non_blocking=True).contiguous(memory_format=torch.channels_last)
            targets = batch[1].to(device, non_blocking=True)
            for group in sgd.param_groups:
                group["lr"] = cosine_rate(sizes.rate, progress)
            with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
                logits = model(pictures)
            loss = functional.cross_entropy(logits.float(), targets)
            sgd.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            sgd.step()
            return loss.detach()

        found = train(stage, feed.open(seed), step, sizes.epochs, most)
        for suffix, (pictures, targets) in scores if found else ():
            top1, loss = score(stage, model, pictures, targets)
            found[f"top1{suffix}"], found[f"loss{suffix}"] = top1, loss
        return found

    stage.put("classes", {name: labels.count(number) for number, name in enumerate(original.classes)})
    stage.put("validation images", {name.strip() or "by Pillow": len(targets) for name, (_, targets) in scores})
    return Task("classifier", feeds, run, ("top1", "loss"))


def by_pillow(stage: Stage, sizes: Sizes, classes: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Return the validation images and labels on the device, read by Pillow: the middle of the resized image."""
    folder, size = stage.data / "photos" / "val", sizes.size
    paths = sorted(folder.rglob("*.jpg"))
    mean, std = (torch.tensor(values)[:, None, None] for values in (MEAN, STD))

    def read(path: Path) -> Tensor:
        with Image.open(path) as opened:
            image = opened.convert("RGB")
        ratio = round(size * SHORTER) / min(image.size)
        width, height = (max(1, round(side * ratio)) for side in image.size)
        image = image.resize((width, height), Image.Resampling.BILINEAR)
        left, top = (width - size) // 2, (height - size) // 2
        pixels = np.array(image.crop((left, top, left + size, top + size)))
        return torch.from_numpy(pixels).permute(2, 0, 1).float().div_(255).sub_(mean).div_(std)

    with ThreadPoolExecutor(stage.cores) as pool:
        pictures = torch.stack(list(pool.map(read, paths)))
    labels = torch.tensor([classes.index(path.parent.name) for path in paths])
    return pictures.to(stage.device, memory_format=torch.channels_last), labels.to(stage.device)


def by_loader(stage: Stage, sizes: Sizes) -> tuple[Tensor, Tensor]:
    """Return the same, read by Loader."""
    work = [Resize(round(sizes.size * SHORTER)), CenterCrop(sizes.size), ToDtype(torch.float32, scale=True)]
    loader = Loader(
        LMDBDataset(stage.data / "original_val"), 100, order="sequential", transforms=[*work, Normalize(MEAN, STD)]
    )
    batches = list(loader)
    pictures, labels = (torch.cat([batch[k] for batch in batches]) for k in range(2))
    return pictures.to(stage.device, memory_format=torch.channels_last), labels.to(stage.device)


@torch.no_grad()
def score(stage: Stage, model: nn.Module, pictures: Tensor, labels: Tensor) -> tuple[float, float]:
    """Return the share of images whose first guess is right, and the mean cross-entropy."""
    model.eval()
    correct = loss = 0.0
    for some, targets in zip(pictures.split(250), labels.split(250), strict=True):
        with torch.autocast(stage.device, dtype=torch.bfloat16, enabled=stage.device == "cuda"):
            logits = model(some).float()
        correct += (logits.argmax(1) == targets).sum().item()
        loss += functional.cross_entropy(logits, targets, reduction="sum").item()
    return correct / len(labels), loss / len(labels)


# --- SRCNN ---


class CutAndFlip:
    """The random window and flips of a pair, the same in both images: the random choices of Loader's transforms."""

    def __init__(self, crop: int) -> None:
        self._small = crop // SCALE

    def __call__(self, pair: Tensors) -> Tensors:
        """Take (3, h, w) and (3, h * 2, w * 2) uint8, and return the window of both."""
        height, width = (side - self._small + 1 for side in pair[0].shape[-2:])
        top, left = int(torch.randint(height, ())), int(torch.randint(width, ()))
        flips = [axis for axis in (-1, -2) if torch.rand(()) < 0.5]
        found = []
        for image, factor in zip(pair, (1, SCALE), strict=True):
            y, x, side = top * factor, left * factor, self._small * factor
            found.append(image[:, y : y + side, x : x + side].flip(flips).contiguous())
        return tuple(found)


def prepare_srcnn(stage: Stage, sizes: Sizes) -> Task:
    """Return the task of sharpening shrunk images."""
    folder, device = stage.data / "pairs_png", stage.device
    files = PngPairs(folder, CutAndFlip(sizes.crop))
    del files.names[min(sizes.pairs, len(files)) :]
    dataset = LMDBDataset(stage.data / "pairs_raw").select(slice(len(files)))
    work = [RandomCrop(sizes.crop), RandomHorizontalFlip(), RandomVerticalFlip()]
    images = validation_pairs(stage)
    stage.put("bicubic", {"psnr": fmean(psnr(bicubic, hr) for bicubic, hr in images), "images": len(images)})

    def loader(seed: int) -> Loader:
        return Loader(
            dataset, sizes.sr_batch_size, order="random", seed=seed, drop_last=True, transforms=work, device=device
        )

    def shifted(seed: int) -> Batches:
        return Changed(loader(seed), lambda batch: (batch[0].roll(1, -1), batch[1]))

    feeds = [
        Feed(FOLDER, lambda seed: dataloader(stage, files, sizes.sr_batch_size, seed)),
        Feed("Loader, raw pairs", loader),
        Feed("planted: LR moved by a pixel", shifted, is_planted=True),
    ]

    def run(feed: Feed, seed: int, most: int | None) -> dict[str, Any]:
        torch.manual_seed(seed)
        model = build_sr_model("srcnn915", SCALE).to(device)
        adam = torch.optim.Adam(model.parameters(), lr=sizes.sr_rate)

        def step(batch: Any, progress: float) -> Tensor:
            for group in adam.param_groups:
                group["lr"] = cosine_rate(sizes.sr_rate, progress)
            return train_step(model, adam, batch[0], batch[1])

        found = train(stage, feed.open(seed), step, sizes.sr_epochs, most)
        if found:
            with torch.no_grad():
                found["psnr"] = fmean(psnr(model(bicubic), hr) for bicubic, hr in images)
        return found

    return Task("srcnn", feeds, run, ("psnr",))


def validation_pairs(stage: Stage) -> list[Tensors]:
    """Return luma of validation images on the device, (1, 1, H, W) in 0..1: enlarged by bicubic, and the original."""
    found = []
    for lr, hr in LMDBDataset(stage.data / "pairs_val"):
        low, high = (to_channels(unit_floats(half.to(stage.device))[None], 1) for half in (lr, hr))
        found.append((upscale(low, SCALE), high))
    return found


def psnr(output: Tensor, target: Tensor) -> float:
    """Return the PSNR of luma in dB: rounded to bytes, `SCALE` pixels shaved off each side."""
    inside = (..., slice(SCALE, -SCALE), slice(SCALE, -SCALE))
    error = (to_bytes(output)[inside].double() - 255 * target[inside].double()).square().mean().item()
    return 10 * math.log10(255**2 / error)


if __name__ == "__main__":
    main()
