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
DB has the fields image and label. The first line makes imagenet.lmdb/train.lmdb and val.lmdb from the class folders
imagenet/train and imagenet/val; the second trains from them, the third from the image files themselves:
  lmdbloader convert imagenet imagenet.lmdb --layout classes --split
  train_classifier.py imagenet.lmdb
  train_classifier.py --folder imagenet
Presets (docs/how-to/train-classifier.md has the complete recipes):
  imagenet  photographs: random resized crops, flips; scored on center crops
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
    add("dataset", type=Path, nargs="?", metavar="DB",
        help="dataset to train on; or the folder that convert --split makes, to train on its train.lmdb and score on "
        "its val.lmdb")  # fmt: skip
    add("--folder", type=Path, metavar="DIR",
        help="instead of DB: train from the image files in class folders, with Pillow and torch's DataLoader, on "
        "DIR/train, scored on DIR/val; or on DIR itself. Everything else stays the same: seed, order, schedule, "
        "scoring")  # fmt: skip
    add("--val", type=Path, metavar="DB", help="dataset (with --folder: class folders) to score after every epoch")
    add("--preset", choices=sorted(RECIPES), default="imagenet", help="sets the defaults below (default: %(default)s)")

    model = parser.add_argument_group("model")
    add = model.add_argument
    add("--model", choices=MODEL_NAMES, default="resnet18", help="tiny suits a CPU (default: %(default)s)")
    add("--size", type=positive, metavar="PIXELS", help="height and width of the images (default: 224, cifar 32)")
    add("--blur-pool", action="store_true", help="blur before every stride (Zhang 2019)")
    add("--no-channels-last", action="store_true", help="use the contiguous memory format (NCHW)")
    add("--amp", choices=("auto", "bf16", "fp16", "fp32"), default="auto",
        help="type of the forward pass (default: auto, which is bf16 on CUDA, fp16 before Ampere, fp32 on the "
        "CPU)")  # fmt: skip

    run = parser.add_argument_group("training")
    add = run.add_argument
    add("--epochs", type=positive, help="default: 90, cifar 24")
    add("--batch-size", type=positive, metavar="N", help="images of one process in a step (default: 256, cifar 512)")
    add("--lr", type=rate, metavar="RATE",
        help="peak learning rate for 256 images, scaled to the images of a step (default: 0.1, cifar "
        "0.25)")  # fmt: skip
    add("--warmup", type=share, metavar="EPOCHS", help="epochs until the peak learning rate (default: 5)")
    add("--schedule", choices=("cosine", "triangle"),
        help="how the learning rate falls to 0 (default: cosine, cifar triangle)")  # fmt: skip
    add("--weight-decay", type=share, metavar="X",
        help="of weights, not of biases and normalizations (default: 1e-4, cifar 5e-4)")  # fmt: skip
    add("--label-smoothing", type=share, metavar="X",
        help="share of the target that is spread over all classes (default: 0.1)")  # fmt: skip
    add("--seed", type=int, default=0, help="of weights, order and augmentation (default: %(default)s)")
    add("--limit-steps", type=positive, metavar="N", help="at most N steps an epoch, for a quick try")

    scored = parser.add_argument_group("final scores", "in addition to the top-1 accuracy at --size")
    add = scored.add_argument
    add("--tta", choices=("flip", "crops"),
        help="test-time augmentation: average the predictions for each image and its mirror image, or for five crops "
        "and their mirror images")  # fmt: skip
    add("--eval-size", type=positive, metavar="PIXELS",
        help="height and width for scoring; a little more than --size is often better (Touvron et al. "
        "2019)")  # fmt: skip

    growing = parser.add_argument_group("images that grow during training (progressive resizing)")
    add = growing.add_argument
    add("--progressive", action="store_true", help="start with smaller images, which are faster to load")
    add("--initial-scale", type=rate, default=0.5, metavar="X",
        help="share of the sides at first (default: %(default)s)")  # fmt: skip
    add("--delay-fraction", type=share, default=0.5, metavar="X",
        help="share of the epochs before they grow (default: %(default)s)")  # fmt: skip
    add("--finetune-fraction", type=share, default=0.2, metavar="X",
        help="share of the epochs at the end with full size (default: %(default)s)")  # fmt: skip
    add("--size-increment", type=positive, default=4, metavar="PIXELS",
        help="sizes are multiples of it (default: %(default)s)")  # fmt: skip

    data = parser.add_argument_group("data and devices")
    add = data.add_argument
    add("--order", choices=("random", "quasi_random"), default="random",
        help="quasi_random suits datasets larger than memory (default: %(default)s)")  # fmt: skip
    add("--num-threads", type=positive, metavar="N",
        help="loader threads of each process, or worker processes with --folder (default: its share of the "
        "cores)")  # fmt: skip
    add("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: auto, which is CUDA if available)")
    add("--data-device", metavar="DEVICE",
        help="where the loader delivers batches: by default on --device, copied during the previous step; cpu leaves "
        "the copying to the loop")  # fmt: skip

    files = parser.add_argument_group("files")
    add = files.add_argument
    add("--checkpoint", type=Path, metavar="FILE", help="written after every epoch")
    add("--checkpoint-steps", type=positive, metavar="N", help="also write it every N steps within an epoch")
    add("--resume", action="store_true", help="continue from --checkpoint as if never stopped; repeat the options")
    add(
        "--log-json",
        type=Path,
        metavar="FILE",
        help="append JSON lines: the machine and the settings, then every epoch",
    )
    options = parser.parse_args(argv)
    _check_source(parser, options)
    for field, value in dataclasses.asdict(RECIPES[options.preset]).items():
        name = {"rate": "lr"}.get(field, field)
        if hasattr(options, name) and getattr(options, name) is None:
            setattr(options, name, value)
    for name in ("resume", "checkpoint_steps"):
        if getattr(options, name) and options.checkpoint is None:
            parser.error(f"--{name.replace('_', '-')} needs a file: name it with --checkpoint FILE")
    if options.progressive and RECIPES[options.preset].small_images:
        parser.error(f"--progressive: the preset {options.preset} crops its images and does not resize them")
    if options.label_smoothing >= 1:
        parser.error(f"argument --label-smoothing: must be below 1, not {options.label_smoothing}")
    if RECIPES[options.preset].small_images and (options.eval_size is not None or options.tta == "crops"):
        name = "--eval-size" if options.eval_size is not None else "--tta crops"
        parser.error(f"{name}: the preset {options.preset} scores whole images, which it does not resize")
    return options


def _check_source(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    if (options.dataset is None) == (options.folder is None):
        both = "" if options.folder is None else f", not both {options.dataset} and {options.folder}"
        parser.error(f"give either a dataset (DB) or class folders (--folder DIR){both}")
    if options.folder is None:
        return
    if options.order != "random":
        parser.error(f"--order {options.order} works only with a dataset: image files have no common order on the disk")
    if options.data_device is not None:
        parser.error("--data-device works only with a dataset: with --folder the loop copies the batches")
