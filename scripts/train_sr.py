"""Trains a super-resolution model on a dataset of (lr, hr) images or patches, on the CPU or a CUDA device."""

from __future__ import annotations

import argparse
import math
import os
import shlex
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from superresolution.models import MODEL_NAMES, build_model
from superresolution.training import cosine_rate, train_epoch
from training.checkpoints import load_checkpoint, save_checkpoint
from training.command import check_checkpoint, exit_status, positive
from training.stopping import Stopping

import lmdbloader
from lmdbloader.base.progress import ProgressLine
from lmdbloader.base.text import counted, extent, plain
from lmdbloader.errors import OptionError
from lmdbloader.lab.profiling import StepTimer
from lmdbloader.superres.evaluation import Evaluation, Scores, bicubic, evaluate, pair_scale, score
from lmdbloader.transforms import RandomCrop, RandomDihedral, RandomHorizontalFlip, RandomVerticalFlip, Transform

# Images that an error names.
SHOWN = 5


def parse_options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="DATASET is made by, for example:\n"
        "  lmdbloader convert PHOTOS DATASET --scale 2, whole images: train with --crop 96\n"
        "  lmdbloader convert PHOTOS DATASET --patch-size 96 --stride 96 --scale 2, patches: train without --crop\n"
        "VAL is best made without --patch-size: whole images, as the literature scores them.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("dataset", type=Path, metavar="DATASET", help="images to train on, with the fields lr and hr")
    parser.add_argument(
        "--scale",
        type=positive,
        metavar="S",
        help="the scale to train, of a dataset that was converted with several",
    )
    parser.add_argument(
        "--crop",
        type=positive,
        metavar="N",
        help="train on random N x N windows of hr, and the same windows of lr, as for whole images; without it, all "
        "samples must have one size",
    )
    parser.add_argument(
        "--repeat",
        type=positive,
        metavar="K",
        help="read each sample K times an epoch, with another random window each time, as BasicSR's "
        "dataset_enlarge_ratio (default with --crop: as many as the mean image has N x N windows side by side, so that "
        "an epoch reads about as many pixels as the dataset has; else 1)",
    )
    parser.add_argument(
        "--val", type=Path, metavar="VAL", help="dataset to score after every epoch, compared with bicubic"
    )
    parser.add_argument(
        "--model",
        choices=MODEL_NAMES,
        default="srcnn915",
        help="srcnn915, srcnn955: SRCNN on luma; residual: EDSR-like on RGB (default: %(default)s)",
    )
    parser.add_argument("--epochs", type=positive, default=20, help="default: %(default)s")
    parser.add_argument("--batch-size", type=positive, default=16, help="default: %(default)s")
    parser.add_argument(
        "--lr",
        type=float,
        metavar="RATE",
        help="learning rate at the start; it falls along a cosine (default: 1e-3, residual 2e-4)",
    )
    parser.add_argument(
        "--device", default="auto", help="auto, cpu, cuda or cuda:N (default: auto, CUDA if there is any)"
    )
    parser.add_argument("--checkpoint", type=Path, metavar="FILE", help="written after every epoch")
    parser.add_argument(
        "--checkpoint-steps", type=positive, metavar="N", help="write it every N steps of an epoch, too"
    )
    parser.add_argument(
        "--resume", action="store_true", help="continue from --checkpoint, as if never stopped; repeat the options"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of the weights and the order of samples (default: %(default)s)"
    )
    parser.add_argument("--no-augment", action="store_true", help="leave out the random flips and quarter turns")
    parser.add_argument(
        "--num-threads", type=positive, metavar="N", help="threads that read (default: one for each core)"
    )
    parser.add_argument("--limit-steps", type=positive, metavar="N", help="at most N steps an epoch, for a quick try")
    options = parser.parse_args(argv)
    if options.lr is None:
        options.lr = 2e-4 if options.model == "residual" else 1e-3
    if not (math.isfinite(options.lr) and options.lr > 0):
        parser.error(f"argument --lr: must be a number above 0, not {options.lr}")
    for name in ("resume", "checkpoint_steps"):
        if getattr(options, name) and options.checkpoint is None:
            parser.error(f"--{name.replace('_', '-')} needs a file: name it with --checkpoint FILE")
    return options


def choose_device(name: str) -> torch.device:
    """Return the device to train on.

    Raises:
        OptionError: The device does not exist here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise OptionError(f"--device {name}: not a device; use auto, cpu, cuda or cuda:N.") from error
    if device.type not in ("cpu", "cuda"):
        raise OptionError(f"--device {name}: this script trains on cpu or cuda.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise OptionError(
            f"--device {name}: there are {torch.cuda.device_count()} CUDA devices here; use --device cpu."
        )
    return device


def augmentation(dataset: lmdbloader.LMDBDataset, crop: int | None) -> list[Transform]:
    """Return random flips and, for square crops or patches, quarter turns."""
    height, width = (crop, crop) if crop else dataset[0].hr.shape[-2:]
    return [RandomDihedral()] if height == width else [RandomHorizontalFlip(), RandomVerticalFlip()]


def check_crop(dataset: lmdbloader.LMDBDataset, crop: int, scale: int) -> None:
    """Check that a crop can be cut from every image, before an epoch meets the one that is too small.

    Raises:
        OptionError: It is not a multiple of the scale, or images or patches are smaller.
    """
    if crop % scale:
        below = crop // scale * scale
        near = f"{below} or {below + scale}" if below else str(scale)
        raise OptionError(
            f"--crop {crop}: expected a multiple of {scale}, the scale of {dataset.path}: no window of lr matches "
            f"others. Use --crop {near}."
        )
    heights, widths = sides(dataset)
    shorter = np.minimum(heights, widths)
    small = np.flatnonzero(shorter < crop)
    if not small.size:
        return
    patch = dataset.reader.manifest.made_by.get("options", {}).get("patch_size")
    if patch is not None:
        raise OptionError(
            f"--crop {crop}: {dataset.path} has patches of {patch} x {patch} pixels, which are smaller. Train on them "
            "without --crop, or convert whole images, without --patch-size: lmdbloader convert PHOTOS whole.lmdb "
            f"--scale {scale}"
        )
    examples = [
        f"{plain(dataset.reader.source(row) or f'sample {row}')} ({widths[row]} x {heights[row]})"
        for row in small[:SHOWN].tolist()
    ]
    remedy = f"Use --crop {int(shorter.min()) // scale * scale} or less"
    if len(small) < len(dataset):
        hr = list(dataset.fields)[1]
        remedy += (
            f", or leave them out: lmdbloader subset {shlex.quote(str(dataset.path))} "
            f"'{hr}.height >= {crop} and {hr}.width >= {crop}' -o large.lmdb"
        )
    raise OptionError(
        f"--crop {crop}: {len(small):,} of {counted(len(dataset), 'image')} in {dataset.path} "
        f"{'is' if len(small) == 1 else 'are'} smaller: {', '.join(examples)}{', ...' * (len(small) > SHOWN)}. {remedy}"
    )


def check_patches(dataset: lmdbloader.LMDBDataset, batch_size: int) -> None:
    """Check that samples fit into one batch without a crop.

    Raises:
        OptionError: They differ in size.
    """
    heights, widths = sides(dataset)
    if batch_size > 1 and (np.ptp(heights) or np.ptp(widths)):
        raise OptionError(
            f"{dataset.path}: its images have different shapes, hr of {extent((int(widths.min()), int(widths.max())))} "
            f"by {extent((int(heights.min()), int(heights.max())))} pixels, which do not fit into one batch. Train on "
            "random windows of them: --crop 96"
        )


def sides(dataset: lmdbloader.LMDBDataset) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the heights and widths of all hr images, (len(dataset),) in pixels, from the index: no pixel is read."""
    larger = list(dataset.fields)[1]
    columns = dataset.reader.index.arrays
    return columns[f"{larger}.height"].astype(np.int64), columns[f"{larger}.width"].astype(np.int64)


def made_from_same(dataset: lmdbloader.LMDBDataset, other: lmdbloader.LMDBDataset) -> bool:
    """Return whether two datasets were made from the same files, cut or not."""
    manifests = dataset.reader.manifest, other.reader.manifest
    if manifests[0].content_digest == manifests[1].content_digest:
        return True
    inputs = [manifest.made_by.get("inputs") or {} for manifest in manifests]
    return inputs[0].get("content") is not None and inputs[0] == inputs[1]


def default_repeat(dataset: lmdbloader.LMDBDataset, crop: int) -> int:
    """Return how many windows of crop x crop pixels the mean image has, at least 1."""
    heights, widths = sides(dataset)
    return max(round(float((heights * widths).mean()) / crop**2), 1)


def open_pairs(path: Path, scale: int | None) -> lmdbloader.LMDBDataset:
    """Open a dataset; of one that was converted with several scales, the pairs of one scale.

    Raises:
        OptionError: It has not this scale, or several and none is chosen.
    """
    dataset, low = lmdbloader.LMDBDataset(path), f"lr{scale}"
    scales = [name[2:] for name in dataset.fields if name.startswith("lr") and name != "lr"]
    if scale is None and scales:
        raise OptionError(f"{path}: has the scales {', '.join(scales)}. Choose one: --scale {scales[-1]}")
    if low in dataset.fields:
        dataset = lmdbloader.LMDBDataset(path, fields=[low, "hr"])
    if scale is not None and pair_scale(dataset) != scale:
        raise OptionError(f"--scale {scale}: {path} has scale {pair_scale(dataset)}. Leave it out.")
    return dataset


def train(options: argparse.Namespace, stopping: Stopping) -> None:
    """Train as the options say, with a line for every epoch."""
    dataset = open_pairs(options.dataset, options.scale)
    scale = pair_scale(dataset)
    validation = open_pairs(options.val, options.scale) if options.val else None
    if validation is not None and (found := pair_scale(validation)) != scale:
        raise OptionError(f"{options.val}: scale {found}; {options.dataset} has scale {scale}.")
    if validation is not None and made_from_same(dataset, validation):
        print(
            f"note: {plain(str(options.val))} was made from the files of {plain(str(options.dataset))}: its scores are "
            "those of images that the model has seen. Convert other photographs for --val."
        )
    if options.crop:
        check_crop(dataset, options.crop, scale)
    else:
        check_patches(dataset, options.batch_size)
    repeat = options.repeat or (default_repeat(dataset, options.crop) if options.crop else 1)
    check_checkpoint(options.checkpoint, resume=options.resume)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise OptionError(
            "this script trains in one process, and torchrun has started several: each would train the same and write "
            f"the same files. Start it once: python {' '.join(map(shlex.quote, sys.argv))}"
        )
    device = choose_device(options.device)
    torch.manual_seed(options.seed)
    model = build_model(options.model, scale).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr)
    names = ("model", "batch_size", "epochs", "lr", "seed", "no_augment", "limit_steps")
    settings = {name: getattr(options, name) for name in names}
    settings |= {"scale": scale, "dataset": dataset.reader.manifest.content_digest}
    # Left out where they change nothing: checkpoints of earlier releases do not have them.
    settings |= {"crop": options.crop} if options.crop else {}
    settings |= {"repeat": repeat} if repeat != 1 else {}

    # An epoch depends only on its number and the seed, so a resumed run sees the samples of an uninterrupted one.
    loader = lmdbloader.Loader(
        dataset,
        options.batch_size,
        shuffle=True,
        seed=options.seed,
        repeat=repeat,
        transforms=[
            *([RandomCrop(options.crop)] if options.crop else []),
            *([] if options.no_augment else augmentation(dataset, options.crop)),
        ],
        num_threads=options.num_threads or "auto",
    )
    num_steps = min(len(loader), options.limit_steps or len(loader))
    first_epoch = 0
    if options.resume:
        first_epoch = load_checkpoint(
            options.checkpoint, model=model, optimizer=optimizer, settings=settings, loader=loader
        )
        steps = loader.state_dict()["position"] // options.batch_size
        print(f"continuing {options.checkpoint} after epoch {first_epoch}" + f" and {steps:,} steps" * bool(steps))
        if first_epoch == options.epochs:
            print("all its epochs are done")
    pairs = f"{len(dataset):,} pairs"
    if options.crop:
        pairs += f", {counted(repeat, 'crop')} of {options.crop} x {options.crop} of each"
    print(f"{options.model} x{scale} on {device}: {pairs}, {num_steps:,} steps an epoch")
    baseline: Scores | None = None
    if validation is not None:
        baseline = score(lambda lr: bicubic(lr, scale), validation, scale)
        print(f"bicubic on {len(validation):,} images: PSNR {baseline.psnr:.2f} dB, SSIM {baseline.ssim:.4f}")
        if baseline.num_exact:
            exact = counted(baseline.num_exact, "image")
            print(f"  left out of the mean PSNR: {exact} that bicubic reproduces exactly (infinite PSNR)")

    def save(epoch: int) -> None:
        save_checkpoint(
            options.checkpoint, model=model, optimizer=optimizer, epoch=epoch, settings=settings, loader=loader
        )

    for epoch in range(first_epoch, options.epochs):
        loader.set_epoch(epoch)
        done = loader.state_dict()["position"] // options.batch_size  # of the epoch that was interrupted, else 0
        timer = StepTimer(device)
        title = f"epoch {epoch + 1}/{options.epochs}"
        with (
            stopping.saving_first(),
            ProgressLine(title, num_steps, "steps", shown=sys.stderr.isatty(), first=done) as line,
        ):

            def before_step(step: int, epoch: int = epoch, done: int = done, line: ProgressLine = line) -> None:
                rate = cosine_rate(options.lr, (epoch + (done + step) / num_steps) / options.epochs)
                for group in optimizer.param_groups:
                    group["lr"] = rate
                line.update(1)

            def after_step(step: int, epoch: int = epoch, done: int = done) -> None:
                steps, every = done + step + 1, options.checkpoint_steps
                if steps >= num_steps:
                    return
                if stopping.is_requested or (every and steps % every == 0):
                    save(epoch)
                if stopping.is_requested:
                    raise KeyboardInterrupt

            loss = train_epoch(
                model,
                optimizer,
                islice(loader, max(num_steps - done, 1)),
                timer=timer,
                before_step=before_step,
                after_step=after_step,
            )
            loader.set_epoch(epoch + 1)
            if options.checkpoint:
                save(epoch + 1)
        scores = None if validation is None else evaluate(model, validation, scale, baseline=baseline)
        print(epoch_line(epoch + 1, options.epochs, loss, scores, timer), flush=True)


def epoch_line(epoch: int, num_epochs: int, loss: float, scores: Evaluation | None, timer: StepTimer) -> str:
    """Return the line printed after an epoch: the loss, the scores compared with bicubic, and the times."""
    parts = [f"epoch {epoch}/{num_epochs}", f"loss {loss:.3e}"]
    if scores is not None:
        parts.append(f"PSNR {scores.psnrs[0]:.2f} dB ({scores.gain:+.2f} to bicubic)")
        parts.append(f"SSIM {scores.model.ssim:.4f} ({scores.model.ssim - scores.bicubic.ssim:+.4f})")
    return "  ".join([*parts, timer.summary()])


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    options = parse_options(argv)
    return exit_status("train_sr", lambda stopping: train(options, stopping), options.checkpoint)


if __name__ == "__main__":
    sys.exit(main())
