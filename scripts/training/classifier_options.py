"""The options of train_classifier.py."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path

from classification import RECIPES
from classification.models import MODEL_NAMES

from training.command import positive, rate, share

EPILOG = """\
DB has the fields image and label, made for example by
  lmdbloader convert imagenet --layout classes --split imagenet.lmdb
Presets (docs/how-to/train-classifier.md has the whole way, and what to expect):
  imagenet  photographs: random resized crops, flips; scored on the middle of each
  cifar     32 x 32 pixels: padded random crops, flips, Cutout
Several GPUs, one process each:
  torchrun --nproc-per-node 8 scripts/train_classifier.py DB --val VAL
"""


def parse_options(argv: Sequence[str] | None, description: str | None) -> argparse.Namespace:
    """Return the options; those that a preset sets are filled in."""
    parser = argparse.ArgumentParser(
        description=description, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("dataset", type=Path, metavar="DB", help="dataset to train on")
    add("--val", type=Path, metavar="DB", help="dataset to score after every epoch")
    add("--preset", choices=sorted(RECIPES), default="imagenet", help="sets the defaults below (default: %(default)s)")

    model = parser.add_argument_group("model")
    add = model.add_argument
    add("--model", choices=MODEL_NAMES, default="resnet18", help="tiny suits a CPU (default: %(default)s)")
    add("--size", type=positive, metavar="PIXELS", help="height and width of an image in a batch (by preset: 224, 32)")
    add("--blur-pool", action="store_true", help="blur before every stride (Zhang 2019)")
    add("--no-channels-last", action="store_true", help="keep torch's old memory layout")
    add("--amp", choices=("auto", "bf16", "fp16", "fp32"), default="auto",
        help="type of the forward pass (auto: on CUDA bf16, before Ampere fp16; on the CPU fp32)")  # fmt: skip

    run = parser.add_argument_group("training")
    add = run.add_argument
    add("--epochs", type=positive, help="by preset: 90, 24")
    add("--batch-size", type=positive, metavar="N", help="images of one process in a step (by preset: 256, 512)")
    add("--lr", type=rate, metavar="RATE", help="peak rate for 256 images a step, scaled to the step's (0.1, 0.25)")
    add("--warmup", type=share, metavar="EPOCHS", help="until the peak rate (by preset: 5, 5)")
    add("--schedule", choices=("cosine", "triangle"), help="how the rate falls to 0 (by preset: cosine, triangle)")
    add("--weight-decay", type=share, metavar="X", help="of weights, not of biases and norms (1e-4, 5e-4)")
    add("--label-smoothing", type=share, metavar="X", help="share of the target for all classes (0.1, 0.1)")
    add("--seed", type=int, default=0, help="of weights, order and augmentation (default: %(default)s)")
    add("--limit-steps", type=positive, metavar="N", help="at most N steps an epoch, for a quick try")

    growing = parser.add_argument_group("images that grow during training (progressive resizing)")
    add = growing.add_argument
    add("--progressive", action="store_true", help="start with smaller images, which are faster to load")
    add("--initial-scale", type=rate, default=0.5, metavar="X", help="of the sides at first (default: %(default)s)")
    add("--delay-fraction", type=share, default=0.5, metavar="X",
        help="of the epochs before they grow (default: %(default)s)")  # fmt: skip
    add("--finetune-fraction", type=share, default=0.2, metavar="X",
        help="of the epochs at the end with full size (default: %(default)s)")  # fmt: skip
    add("--size-increment", type=positive, default=4, metavar="PIXELS",
        help="sizes are multiples of it (default: %(default)s)")  # fmt: skip

    data = parser.add_argument_group("data and devices")
    add = data.add_argument
    add("--order", choices=("random", "quasi_random"), default="random",
        help="quasi_random suits datasets larger than memory (default: %(default)s)")  # fmt: skip
    add(
        "--num-threads",
        type=positive,
        metavar="N",
        help="threads that read, per process (default: its share of the cores)",
    )
    add("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: auto, CUDA if there is any)")
    add("--data-device", metavar="DEVICE",
        help="where the loader delivers batches: the training's device, copied during the step before (default), "
        "or cpu, for the loop to copy them")  # fmt: skip

    files = parser.add_argument_group("files")
    add = files.add_argument
    add("--checkpoint", type=Path, metavar="FILE", help="written after every epoch")
    add("--checkpoint-steps", type=positive, metavar="N", help="write it every N steps of an epoch, too")
    add("--resume", action="store_true", help="continue from --checkpoint, as if never stopped; repeat the options")
    add("--log-json", type=Path, metavar="FILE", help="append a line of JSON for every epoch")
    options = parser.parse_args(argv)
    for field, value in dataclasses.asdict(RECIPES[options.preset]).items():
        name = {"rate": "lr"}.get(field, field)
        if hasattr(options, name) and getattr(options, name) is None:
            setattr(options, name, value)
    for name in ("resume", "checkpoint_steps"):
        if getattr(options, name) and options.checkpoint is None:
            parser.error(f"--{name.replace('_', '-')} needs a file: name it with --checkpoint FILE")
    if options.progressive and RECIPES[options.preset].small_images:
        parser.error(f"--progressive: the preset {options.preset} cuts its images and does not resize them")
    if options.label_smoothing >= 1:
        parser.error(f"argument --label-smoothing: must be below 1, not {options.label_smoothing}")
    return options
