"""Trains a super-resolution model on a dataset of (lr, hr) images or patches, on the CPU or a CUDA device."""

from __future__ import annotations

import argparse
import copy
import math
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from superresolution import data
from superresolution.models import LUMA_MODELS, MODEL_NAMES, build_model
from superresolution.scoring import perceptual_metrics, score_table, score_with
from superresolution.training import LOSSES, Reports, average_weights, cosine_rate, train_epoch
from torch import Tensor
from training.checkpoints import load_checkpoint, save_checkpoint
from training.command import check_checkpoint, exit_status, positive, share
from training.stopping import Stopping

import lmdbloader
from lmdbloader.base.progress import ProgressLine
from lmdbloader.base.text import counted, plain
from lmdbloader.errors import OptionError
from lmdbloader.lab.profiling import StepTimer
from lmdbloader.superres import Evaluation, Scores, bicubic, predict, score
from lmdbloader.superres.evaluation import PairDataset, pair_scale
from lmdbloader.transforms import RandomCrop


def parse_options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="DATASET is made by, for example:\n"
        "  lmdbloader convert PHOTOS DATASET --scale 2, whole images: train with --crop 96\n"
        "  lmdbloader convert PHOTOS DATASET --patch-size 96 --stride 96 --scale 2, patches: train without --crop\n"
        "  lmdbloader convert PHOTOS DATASET, whole images: train with --crop 192 --degradation real_esrgan\n"
        "VAL is best made without --patch-size: whole images, as the literature scores them.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    images = parser.add_argument_group("images")
    images.add_argument(
        "dataset",
        type=Path,
        metavar="DATASET",
        help="images to train on, with the fields lr and hr; with --degradation, hr or one field of images",
    )
    images.add_argument(
        "--crop",
        type=positive,
        metavar="N",
        help="train on random N x N windows of hr, and the same windows of lr, as for whole images; without it, all "
        "samples must have one size",
    )
    images.add_argument(
        "--repeat",
        type=positive,
        metavar="K",
        help="read each sample K times an epoch, with another random window each time, as BasicSR's "
        "dataset_enlarge_ratio (default with --crop: as many as the mean image has N x N windows side by side, so that "
        "an epoch reads about as many pixels as the dataset has; else 1)",
    )
    images.add_argument(
        "--degradation",
        metavar="NAME",
        help="make lr of hr while training, with random blur, resizes, noise and JPEG: "
        f"{', '.join(data.PRESETS)}, with arguments as in 'real_esrgan(gt_usm=False)', or an option file of "
        "Real-ESRGAN, BasicSR, neosr or traiNNer-redux (.yml, .toml)",
    )
    images.add_argument(
        "--scale",
        type=positive,
        metavar="S",
        help="the scale to train, if the dataset has several; with --degradation, how many times smaller lr is than hr "
        "(default: 4, or the option file's)",
    )
    images.add_argument("--no-augment", action="store_true", help="leave out the random flips and quarter turns")
    images.add_argument("--num-threads", type=positive, metavar="N", help="threads that read (default: one a core)")

    training = parser.add_argument_group("training")
    training.add_argument(
        "--model",
        choices=MODEL_NAMES,
        metavar="NAME",
        default="srcnn915",
        help=f"{', '.join(LUMA_MODELS)}: small, on luma alone; on RGB "
        f"{', '.join(name for name in MODEL_NAMES if name not in LUMA_MODELS)} (default: %(default)s)",
    )
    training.add_argument("--epochs", type=positive, default=20, help="default: %(default)s")
    training.add_argument("--batch-size", type=positive, default=16, help="default: %(default)s")
    training.add_argument(
        "--lr",
        type=float,
        metavar="RATE",
        help="learning rate at the start; it falls along a cosine (default: 1e-3 for "
        f"{', '.join(LUMA_MODELS)}, else 2e-4)",
    )
    training.add_argument(
        "--loss", choices=LOSSES, help=f"of the pixels (default: mse for {', '.join(LUMA_MODELS)}, else l1)"
    )
    training.add_argument(
        "--ema",
        type=share,
        metavar="DECAY",
        help="score and save an exponential moving average of the weights; a step keeps this share of it, such as "
        "0.999",
    )
    training.add_argument(
        "--device", default="auto", help="auto, cpu, cuda or cuda:N (default: auto, CUDA if there is any)"
    )
    training.add_argument("--checkpoint", type=Path, metavar="FILE", help="written after every epoch")
    training.add_argument(
        "--checkpoint-steps", type=positive, metavar="N", help="write it every N steps of an epoch, too"
    )
    training.add_argument(
        "--resume", action="store_true", help="continue from --checkpoint, as if never stopped; repeat the options"
    )
    training.add_argument(
        "--seed", type=int, default=0, help="of the weights and the order of samples (default: %(default)s)"
    )
    training.add_argument("--limit-steps", type=positive, metavar="N", help="at most N steps an epoch, for a quick try")

    scores = parser.add_argument_group("scores")
    scores.add_argument(
        "--val",
        type=Path,
        metavar="VAL",
        help="dataset to score after every epoch, compared with bicubic; with --degradation, images without lr are "
        "degraded, in the same way in every epoch, and pairs are scored as they are stored",
    )
    scores.add_argument(
        "--tile",
        type=positive,
        metavar="N",
        help="enlarge images of VAL in tiles of N x N LR pixels, if they do not fit into memory at once",
    )
    scores.add_argument(
        "--self-ensemble",
        action="store_true",
        help="at the end, also score the mean over the 8 flips and turns of each image (EDSR+)",
    )
    scores.add_argument(
        "--perceptual",
        action="store_true",
        help="at the end, also score LPIPS (package lpips) and DISTS (piq); they download weights on first use",
    )
    options = parser.parse_args(argv)
    if options.lr is None:
        options.lr = 1e-3 if options.model in LUMA_MODELS else 2e-4
    if not (math.isfinite(options.lr) and options.lr > 0):
        parser.error(f"argument --lr: must be a number above 0, not {options.lr}")
    if options.ema is not None and options.ema >= 1:
        parser.error(f"argument --ema: must be below 1, not {options.ema}: the average would never change")
    for name in ("tile", "self_ensemble", "perceptual"):
        if getattr(options, name) and options.val is None:
            parser.error(f"--{name.replace('_', '-')} needs images to score: name them with --val VAL")
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


def open_validation(
    options: argparse.Namespace, dataset: lmdbloader.LMDBDataset, scale: int
) -> tuple[PairDataset | None, str]:
    """Return the pairs to score and how they were degraded, "" if they are those of the dataset.

    Raises:
        OptionError: They have another scale, or are no pairs.
    """
    if options.val is None:
        return None, ""
    stored, how, low = lmdbloader.LMDBDataset(options.val), "", f"lr{scale}"
    validation: PairDataset = stored
    if low in stored.fields:
        validation = lmdbloader.LMDBDataset(options.val, fields=[low, "hr"])
    elif options.degradation and len(data.image_fields(stored)) == 1:
        fixed = data.find_degradation(options.degradation, scale, fixed=True)
        validation, how = data.DegradedImages(data.open_images(options.val), fixed), f", degraded by {fixed.name}"
    if (found := pair_scale(validation)) != scale:
        of = options.degradation or options.dataset
        raise OptionError(
            f"{options.val}: scale {found}; {of} has scale {scale}. Convert the photographs of --val with "
            f"--scale {scale}."
        )
    data.check_pixels(validation)
    if data.made_from_same(dataset, stored):
        print(
            f"note: {plain(str(options.val))} was made from the files of {plain(str(options.dataset))}: its scores are "
            "those of images that the model has seen. Convert other photographs for --val."
        )
    return validation, how


def settings_of(options: argparse.Namespace, scale: int, digest: str, repeat: int, degradation: str) -> dict[str, Any]:
    """Return what a resumed run must share."""
    names = ("model", "batch_size", "epochs", "lr", "seed", "no_augment", "limit_steps")
    settings = {name: getattr(options, name) for name in names} | {"scale": scale, "dataset": digest}
    # Left out where they change nothing: checkpoints of earlier releases do not have them.
    settings |= {name: value for name in ("crop", "loss", "ema") if (value := getattr(options, name)) is not None}
    settings |= {"repeat": repeat} if repeat != 1 else {}
    return settings | ({"degradation": degradation} if degradation else {})


def train(options: argparse.Namespace, stopping: Stopping) -> None:
    """Train as the options say, with a line for every epoch."""
    degradation = data.find_degradation(options.degradation, options.scale) if options.degradation else None
    dataset = data.open_images(options.dataset) if degradation else data.open_pairs(options.dataset, options.scale)
    scale = degradation.scale if degradation else pair_scale(dataset)
    data.check_pixels(dataset)
    validation, how = open_validation(options, dataset, scale)
    if options.crop:
        data.check_crop(dataset, options.crop, scale)
    else:
        data.check_patches(dataset, options.batch_size)
    repeat = options.repeat or (data.default_repeat(dataset, options.crop) if options.crop else 1)
    check_checkpoint(options.checkpoint, resume=options.resume)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise OptionError(
            "this script trains in one process, and torchrun has started several: each would train the same and write "
            f"the same files. Start it once: python {' '.join(map(shlex.quote, sys.argv))}"
        )
    device = choose_device(options.device)
    perceptual = perceptual_metrics(device) if options.perceptual else {}
    torch.manual_seed(options.seed)
    model = build_model(options.model, scale).to(device)
    average = None if options.ema is None else copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr)
    digest = dataset.reader.manifest.content_digest
    settings = settings_of(options, scale, digest, repeat, repr(degradation) if degradation else "")

    # An epoch depends only on its number and the seed, so a resumed run sees the samples of an uninterrupted one.
    loader = lmdbloader.Loader(
        dataset,
        options.batch_size,
        shuffle=True,
        seed=options.seed,
        repeat=repeat,
        transforms=[
            *([RandomCrop(options.crop)] if options.crop else []),
            *([] if options.no_augment else data.augmentation(dataset, options.crop)),
            *([degradation] if degradation else []),
        ],
        num_threads=options.num_threads or "auto",
    )
    num_steps = min(len(loader), options.limit_steps or len(loader))
    first_epoch = 0
    kept: dict[str, Any] = {"model": model, "optimizer": optimizer, "settings": settings, "loader": loader}
    kept["average"] = average
    if options.resume:
        first_epoch = load_checkpoint(options.checkpoint, **kept)
        steps = loader.state_dict()["position"] // options.batch_size
        print(f"continuing {options.checkpoint} after epoch {first_epoch}" + f" and {steps:,} steps" * bool(steps))
        if first_epoch == options.epochs:
            print("all its epochs are done")
    pairs = f"{len(dataset):,} {'images' if degradation else 'pairs'}"
    if options.crop:
        pairs += f", {counted(repeat, 'crop')} of {options.crop} x {options.crop} of each"
    print(f"{options.model} x{scale} on {device}: {pairs}, {num_steps:,} steps an epoch")
    if degradation:
        print(f"lr is made by {degradation}")
    if average is not None and (all_steps := num_steps * options.epochs) * (1 - options.ema) < 3:
        print(
            f"note: an average with --ema {options.ema:g} spans some {1 / (1 - options.ema):,.0f} steps, and this run "
            f"has {all_steps:,}: it stays close to the untrained weights. Use a smaller --ema, or train longer."
        )

    def enlarge(lr: Tensor, *, self_ensemble: bool = False) -> Tensor:
        return predict(model if average is None else average, lr, tile=options.tile, self_ensemble=self_ensemble)

    baseline: Scores | None = None
    if validation is not None:
        baseline = score(lambda lr: bicubic(lr, scale), validation, scale)
        images = f"{len(validation):,} images{how}"
        print(f"bicubic on {images}: PSNR {baseline.psnr:.2f} dB, SSIM {baseline.ssim:.4f}")
        if baseline.num_exact:
            exact = counted(baseline.num_exact, "image")
            print(f"  left out of the mean PSNR: {exact} that bicubic reproduces exactly (infinite PSNR)")

    reports = Reports(num_steps, options.batch_size)
    for epoch in range(first_epoch, options.epochs):
        loader.set_epoch(epoch)
        reports.start()
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
                if average is not None:
                    average_weights(average, model, options.ema)
                steps, every = done + step + 1, options.checkpoint_steps
                if steps >= num_steps:
                    return
                if stopping.is_requested or (every and steps % every == 0):
                    save_checkpoint(options.checkpoint, epoch=epoch, **kept)
                if stopping.is_requested:
                    raise KeyboardInterrupt

            def report(step: int, loss: Tensor, title: str = title, done: int = done) -> None:
                if (text := reports.add(title, done + step + 1, loss)) is not None:
                    # Over the line about the progress, which is drawn again.
                    print("\r\x1b[K" * sys.stderr.isatty(), end="", file=sys.stderr, flush=True)
                    print(text, flush=True)

            loss = train_epoch(
                model,
                optimizer,
                islice(loader, max(num_steps - done, 1)),
                loss=options.loss,
                timer=timer,
                before_step=before_step,
                after_step=after_step,
                report=report,
            )
            loader.set_epoch(epoch + 1)
            if options.checkpoint:
                save_checkpoint(options.checkpoint, epoch=epoch + 1, **kept)
        scores = None
        if validation is not None and baseline is not None:
            scores = Evaluation(model=score(enlarge, validation, scale), bicubic=baseline)
        print(epoch_line(epoch + 1, options.epochs, loss, scores, timer), flush=True)
    if validation is not None:
        methods: dict[str, Callable[[Tensor], Tensor]] = {
            "bicubic": lambda lr: bicubic(lr, scale),
            options.model: enlarge,
        }
        if options.self_ensemble:
            methods[f"{options.model}, mean of 8"] = partial(enlarge, self_ensemble=True)
        print(score_table({name: score_with(way, validation, scale, perceptual) for name, way in methods.items()}))


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
