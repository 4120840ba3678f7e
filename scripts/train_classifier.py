"""Trains a ResNet on labeled images, from a dataset or class folders, on a CPU or GPUs (several with torchrun)."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from classification import (
    RECIPES,
    Accuracy,
    EpochResult,
    Recipe,
    blur_pool,
    build_model,
    evaluate,
    five_crops,
    learning_rate,
    mirrored,
    parameter_groups,
    train_epoch,
)
from classification.evaluation import Views
from classification.precision import Precision, choose_precision
from classification.processes import choose_device, is_first, leave, process_group, total, world_size
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from training.checkpoints import load_checkpoint, save_checkpoint
from training.class_folders import ClassFolder, FolderLoader, list_classes
from training.classifier_options import parse_options
from training.command import check_checkpoint, check_folder, exit_status
from training.stopping import Stopping

import lmdbloader
from lmdbloader.base.cores import count_own_cores
from lmdbloader.base.progress import ProgressLine
from lmdbloader.errors import FormatError, OptionError
from lmdbloader.lab.machine import describe

MOMENTUM = 0.9
# How validation data is named next to train or train.lmdb.
VALIDATION_NAMES = ("val", "valid", "validation", "test")
Source = lmdbloader.LMDBDataset | ClassFolder


def find_splits(options: argparse.Namespace) -> tuple[Path, Path | None]:
    """Return the places of the images to train on and of those to score, None without any.

    Raises:
        OptionError: The final scores need images to score, and none were given.
    """
    place, suffix = (options.dataset, ".lmdb") if options.folder is None else (options.folder, "")
    val = options.val
    if (train := place / f"train{suffix}").is_dir():
        found = (place / f"{name}{suffix}" for name in VALIDATION_NAMES)
        place, val = train, val or next(filter(Path.is_dir, found), None)
    if val is None and (options.tta or options.eval_size):
        raise OptionError("--tta and --eval-size need images to score: name them with --val.")
    return place, val


def open_source(place: Path, options: argparse.Namespace) -> Source:
    """Return labeled images: class folders with --folder, else a dataset."""
    return open_labeled(place) if options.folder is None else list_classes(place)


def open_labeled(path: Path) -> lmdbloader.LMDBDataset:
    """Open a dataset whose samples are an image and its label.

    Raises:
        FormatError: The fields differ, or there are no samples.
    """
    dataset = lmdbloader.LMDBDataset(path)
    if tuple(dataset.fields) != ("image", "label") or not len(dataset):
        found = ", ".join(dataset.fields)
        raise FormatError(
            f"{path}: {len(dataset):,} samples of {found}; expected image and label. Convert with --layout classes."
        )
    return dataset


def count_classes(dataset: Source) -> int:
    """Return the number of class names, or without names one more than the highest label."""
    if isinstance(dataset, ClassFolder):
        return len(dataset.classes)
    return len(dataset.classes) or 1 + max(dataset.table.column("label").to_pylist())


def progressive(options: argparse.Namespace) -> lmdbloader.ProgressiveResize | None:
    """Return the schedule of image sizes, None if they do not change.

    Raises:
        OptionError: A share is out of its range.
    """
    if not options.progressive:
        return None
    return lmdbloader.ProgressiveResize(
        options.epochs,
        initial_scale=options.initial_scale,
        finetune_fraction=options.finetune_fraction,
        delay_fraction=options.delay_fraction,
        size_increment=options.size_increment,
    )


class Run:
    """The model, the optimizer and the loaders of one run."""

    def __init__(self, options: argparse.Namespace, device: torch.device) -> None:
        """Open the datasets and build the model.

        Raises:
            OptionError: Options do not fit each other, the datasets or the machine.
        """
        self.options = options
        self.recipe: Recipe = RECIPES[options.preset]
        self.precision: Precision = choose_precision(options.amp, device)
        place, val = find_splits(options)
        self.dataset = open_source(place, options)
        self.num_classes = count_classes(self.dataset)
        self.validation = None if val is None else open_source(val, options)
        if self.validation is not None and list(self.validation.classes) != list(self.dataset.classes):
            raise OptionError(
                f"{val} has other classes than {place}. Both need the same class names, in the same order."
            )
        torch.manual_seed(options.seed)
        model: nn.Module = build_model(options.model, self.num_classes, small_images=self.recipe.small_images)
        if options.blur_pool:
            blur_pool(model)
        self.memory_format = torch.contiguous_format if options.no_channels_last else torch.channels_last
        self.bare = model.to(device, memory_format=self.memory_format)  # type: ignore[call-overload]
        self.model: nn.Module = DistributedDataParallel(self.bare) if world_size() > 1 else self.bare
        self.peak_rate = options.lr * options.batch_size * world_size() / 256
        groups = parameter_groups(self.model, options.weight_decay)
        self.optimizer = torch.optim.SGD(groups, lr=self.peak_rate, momentum=MOMENTUM, nesterov=True)
        self.scaler = self.precision.scaler()
        self.schedule = progressive(options)
        transforms = self.recipe.training_transforms(options.size, self.precision.dtype)
        self.loader = self._loader(
            self.dataset, transforms, order=options.order, drop_last=True, resolution=self.schedule
        )
        self.scored = None if self.validation is None else self._evaluation_loader(options.size)
        self.num_steps = min(len(self.loader), options.limit_steps or len(self.loader))

    def _evaluation_loader(self, size: int, *, whole: bool = False) -> lmdbloader.Loader | FolderLoader:
        """Return the batches that are scored, in one pass of all processes together."""
        transforms = self.recipe.evaluation_transforms(size, self.precision.dtype, whole=whole)
        assert self.validation is not None
        return self._loader(self.validation, transforms, order="sequential")

    def _loader(
        self,
        dataset: Source,
        transforms: list[Any],
        *,
        order: str,
        drop_last: bool = False,
        resolution: lmdbloader.ProgressiveResize | None = None,
    ) -> lmdbloader.Loader | FolderLoader:
        options, device = self.options, self.precision.device
        # An epoch depends only on its number and the seed, so a resumed run sees the samples of an uninterrupted one.
        how: dict[str, Any] = {
            "transforms": transforms, "seed": options.seed, "order": order, "drop_last": drop_last,
            "memory_format": self.memory_format, "resolution": resolution,
        }  # fmt: skip
        if isinstance(dataset, ClassFolder):
            return FolderLoader(
                dataset,
                options.batch_size,
                num_workers=options.num_threads or count_own_cores(),
                pin_memory=device.type == "cuda",
                **how,
            )
        # Each image that is scored counts once, so no process repeats one.
        return lmdbloader.Loader(
            dataset,
            options.batch_size,
            num_threads=options.num_threads or "auto",
            device=device if options.data_device is None else options.data_device,
            shard="auto",
            pad=False,
            **how,
        )

    def close(self) -> None:
        """End the threads and processes that load."""
        for loader in (self.loader, self.scored):
            if loader is not None:
                loader.close()

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that a resumed run must share."""
        names = (
            "preset", "model", "size", "blur_pool", "epochs", "batch_size", "lr", "warmup", "schedule", "weight_decay",
            "label_smoothing", "progressive", "initial_scale", "delay_fraction", "finetune_fraction", "size_increment",
            "order", "seed", "limit_steps",
        )  # fmt: skip
        source = self.dataset
        digest = source.digest if isinstance(source, ClassFolder) else source.reader.manifest.content_digest
        return {name: getattr(self.options, name) for name in names} | {"classes": self.num_classes, "dataset": digest}

    def resume(self) -> int:
        """Continue from the checkpoint; returns the epochs that are done."""
        epoch = load_checkpoint(
            self.options.checkpoint,
            model=self.bare,
            optimizer=self.optimizer,
            settings=self.settings,
            scaler=self.scaler,
            loader=self.loader,  # type: ignore[arg-type]  # a FolderLoader has as much of a Loader as it takes
        )
        position = self.loader.state_dict()["position"]
        if position and len(self.dataset) - position < self.step_size:
            epoch += 1  # the rest of it is less than one step of the current number of processes
            self.loader.set_epoch(epoch)
        return epoch

    @property
    def step_size(self) -> int:
        """Images of one step of all processes."""
        return int(self.options.batch_size * world_size())

    @property
    def steps_done(self) -> int:
        """Steps that are done of the epoch that the loader is in, counted in steps of this run."""
        return int(self.loader.state_dict()["position"] // self.step_size)

    def save(self, epoch: int) -> None:
        """Write the checkpoint after `epoch` epochs and the finished part of the next one."""
        save_checkpoint(
            self.options.checkpoint,
            model=self.bare,
            optimizer=self.optimizer,
            epoch=epoch,
            settings=self.settings,
            scaler=self.scaler,
            loader=self.loader,  # type: ignore[arg-type]  # a FolderLoader has as much of a Loader as it takes
        )

    def size(self, epoch: int) -> int:
        """Return the height and width of the images in an epoch, 0 first."""
        full = self.options.size
        return full if self.schedule is None else self.schedule.size_at(epoch, (full, full))[0]

    def train(self, epoch: int, stopping: Stopping) -> EpochResult:
        """Train for an epoch, 0 first; returns the totals of all processes.

        Raises:
            KeyboardInterrupt: The run was asked to stop; the checkpoint is written.
        """
        options = self.options
        self.loader.set_epoch(epoch)
        done = self.steps_done
        title, is_shown = f"epoch {epoch + 1}/{options.epochs}", is_first() and sys.stderr.isatty()
        with ProgressLine(title, self.num_steps, "steps", shown=is_shown, first=done) as line:

            def before_step(step: int) -> None:
                now = learning_rate(
                    self.peak_rate,
                    epoch + (done + step + 1) / self.num_steps,
                    num_epochs=options.epochs,
                    warmup=min(options.warmup, options.epochs / 2),
                    schedule=options.schedule,
                )
                for group in self.optimizer.param_groups:
                    group["lr"] = now
                line.update(1)

            def after_step(step: int) -> None:
                steps, every = done + step + 1, options.checkpoint_steps
                if steps >= self.num_steps or not is_first():
                    return
                if stopping.is_requested or (every and steps % every == 0):
                    self.save(epoch)
                if stopping.is_requested:
                    raise KeyboardInterrupt

            result = train_epoch(
                self.model,
                self.optimizer,
                islice(self.loader, max(self.num_steps - done, 1)),
                precision=self.precision,
                scaler=self.scaler,
                label_smoothing=options.label_smoothing,
                before_step=before_step,
                after_step=after_step,
            )
        self.loader.set_epoch(epoch + 1)
        number = world_size()
        loss, images, seconds, waited = total(*dataclasses.astuple(result), device=self.precision.device)
        return EpochResult(loss / number, int(images), seconds / number, waited / number)

    def score(self) -> Accuracy | None:
        """Score the model on the validation images, each process on its share; None without any."""
        return None if self.scored is None else self._score(self.scored)

    def final_scores(self) -> list[dict[str, Any]]:
        """Score the model without and with test-time augmentation, at the size of training and at --eval-size.

        Returns:
            `size`, `tta`, `top1` and `val_loss` of each, the plain score first; nothing where no other is asked for.
        """
        options, found = self.options, []
        if not (options.tta or options.eval_size):
            return []
        for size in dict.fromkeys([options.size, options.eval_size or options.size]):
            for tta in dict.fromkeys([None, options.tta]):
                is_cut = tta == "crops"
                views = {None: None, "flip": mirrored, "crops": partial(five_crops, size=size)}[tta]
                with closing(self._evaluation_loader(size, whole=is_cut)) as batches:
                    accuracy = self._score(batches, views)
                loss = accuracy.loss / accuracy.num_images
                found.append({"size": size, "tta": tta or "none", "top1": accuracy.top1, "val_loss": loss})
        return found

    def _score(self, batches: lmdbloader.Loader | FolderLoader, views: Views | None = None) -> Accuracy:
        if world_size() > 1:  # each process has seen other images: all score with the first one's running statistics
            for buffer in self.bare.buffers():
                distributed.broadcast(buffer, 0)
        accuracy = evaluate(self.bare, batches, precision=self.precision, views=views)
        images, correct, loss = total(*dataclasses.astuple(accuracy), device=self.precision.device)
        return Accuracy(int(images), int(correct), loss)


def train(options: argparse.Namespace, device: torch.device, stopping: Stopping) -> None:
    """Train as the options say, with a line for every epoch."""
    check_checkpoint(options.checkpoint, resume=options.resume)
    check_folder(options.log_json)
    with closing(Run(options, device)) as run:
        first_epoch = run.resume() if options.resume else 0
        head: dict[str, Any] = {}
        if is_first():
            print_head(run, first_epoch)
            head = {"environment": describe(options.dataset or options.folder).as_json(), "settings": run.settings}
        for epoch in range(first_epoch, options.epochs):
            with stopping.saving_first():
                result = run.train(epoch, stopping)
                if options.checkpoint and is_first():
                    run.save(epoch + 1)
            began = time.perf_counter()
            accuracy = run.score()
            entry = epoch_entry(epoch + 1, run.size(epoch), result, accuracy, time.perf_counter() - began)
            if is_first():
                if epoch == first_epoch:
                    log(head, options.log_json)
                log(entry, options.log_json)
                print(epoch_line(entry, options.epochs), flush=True)
        scores = run.final_scores()
    if scores and is_first():
        log({"epoch": options.epochs, "scores": scores}, options.log_json)
        print("\n".join(score_lines(scores)), flush=True)


def print_head(run: Run, first_epoch: int) -> None:
    """Print what a run begins with, or where it continues."""
    options, device = run.options, run.precision.device
    if options.resume:
        done = run.steps_done
        print(f"continuing {options.checkpoint} after epoch {first_epoch}" + f" and {done:,} steps" * bool(done))
        if first_epoch == options.epochs:
            print("all its epochs are done")
    where = f"{world_size()} x {device.type}" if world_size() > 1 else str(device)
    what = "images" if options.folder is None else "image files"
    print(
        f"{options.model} on {where}, {str(run.precision.dtype).removeprefix('torch.')}: {len(run.dataset):,} "
        f"{what} of {run.num_classes:,} classes, {run.num_steps:,} steps of {options.batch_size * world_size():,}"
    )


def log(entry: dict[str, Any], file: Path | None) -> None:
    """Append a line of JSON to a file, if there is to be one."""
    if file is not None:
        with open(file, "a", encoding="utf-8") as opened:
            opened.write(json.dumps(entry) + "\n")


def score_lines(scores: Sequence[dict[str, Any]]) -> list[str]:
    """Return the lines printed at the end: every final score, and how it differs from the first."""
    names = {"none": "", "flip": ", with mirror images", "crops": ", ten views of each"}
    texts = [f"{score['size']} px{names[score['tta']]}" for score in scores]
    width = max(map(len, texts))
    lines = ["final top-1, without and with what --tta and --eval-size add:"]
    for text, score in zip(texts, scores, strict=True):
        change = f"  ({100 * (score['top1'] - scores[0]['top1']):+.2f} points)" if score is not scores[0] else ""
        lines.append(f"  {text:{width}}  {score['top1']:.2%}{change}")
    return lines


def epoch_entry(
    epoch: int, size: int, result: EpochResult, accuracy: Accuracy | None, seconds: float
) -> dict[str, float]:
    """Return the log entry of an epoch, for all processes together."""
    entry = {
        "epoch": epoch,
        "size": size,
        "loss": result.loss,
        "images": result.num_images,
        "seconds": result.seconds,
        "images_per_s": result.num_images / result.seconds,
        "data_share": result.data_seconds / result.seconds,
    }
    if accuracy is not None:
        entry |= {"top1": accuracy.top1, "val_loss": accuracy.loss / accuracy.num_images, "val_seconds": seconds}
    return entry


def epoch_line(entry: dict[str, float], num_epochs: int) -> str:
    """Return the line printed after an epoch."""
    parts = [f"epoch {entry['epoch']}/{num_epochs}", f"{entry['size']} px", f"loss {entry['loss']:.3f}"]
    if "top1" in entry:
        parts.append(f"top-1 {entry['top1']:.2%}")
    parts.append(f"{entry['images_per_s']:,.0f} images/s ({entry['data_share']:.0%} waiting for data)")
    return "  ".join(parts)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    options = parse_options(argv, __doc__)

    def run(stopping: Stopping) -> None:
        device = choose_device(options.device)
        with process_group(device):
            train(options, device, stopping)

    return exit_status("train_classifier", run, options.checkpoint)


if __name__ == "__main__":
    leave(main())
