"""`lmdbloader plan`: the data and storage that a training run needs, before anything is bought or converted."""

from __future__ import annotations

import argparse
import json

from lmdbloader.base.units import REAL, SHARE, WHOLE, parse_whole
from lmdbloader.cli._numbers import number
from lmdbloader.cli._streams import say_lines
from lmdbloader.lab.planning.presets import PRESETS

ORDER = 10
HELP = "compute the data rate and storage that a training run needs"
DESCRIPTION = """\
Compute what a training run needs: samples, reads and bytes per second, the
storage that serves them, the largest batch that fits the GPU, and the effect of
packing small files into larger reads. Nothing is measured and no dataset is
needed: everything follows from the batch size and the time of a step, or the
FLOPS that it takes and those of the GPU.

Sizes are written as 64KiB, 500K, 150GB or 16GiB: K, M and G are powers of 1000;
Ki, Mi and Gi are powers of 1024.
"""

_PRESETS = "\n".join(f"  {name:<{max(map(len, PRESETS))}}  {preset.title}" for name, preset in PRESETS.items())
EPILOG = f"""\
presets (published figures; --json names their sources):
{_PRESETS}

Exit status: 0 done, 2 wrong usage.

examples:
  lmdbloader plan --batch-size 128 --step-seconds 0.087 --example-size 64KiB \\
      --gpus 4 --dataset-size 150GB
  lmdbloader plan --batch-size 128 --example-flops 4G --device-flops 7T
  lmdbloader plan --preset resnet50-v100 --gpu-memory 32GiB
  lmdbloader plan --preset team-on-nfs --experiments 5-10 --cache-fraction 0.2
"""
# Flag -> the grammar of its number, if it is not a size; its name for people; its help.
_FLAGS = {
    "batch_size": (WHOLE, "N", "samples per step on one GPU"),
    "step_seconds": (REAL, "T", "time of a step on the GPU: forward, backward and update"),
    "example_flops": (
        None, "F", "instead of the time of a step: floating-point operations to train on one sample, such as 4G"
    ),
    "device_flops": (None, "F", "floating-point operations per second that one GPU reaches, such as 7T"),
    "example_size": (None, "SIZE", "size of a sample on storage (default: 64KiB)"),
    "preset": (None, "NAME", "take missing figures from a published workload; see below"),
    "gpus": (WHOLE, "G", "GPUs of one experiment (default: 1)"),
    "dataset_size": (None, "SIZE", "size of all data in use; adds the time of an epoch"),
    "cache_fraction": (SHARE, "F", "share of the dataset that is kept on local disks (default: 0)"),
    "gpu_memory": (None, "SIZE", "memory of one GPU; with the next two: the largest batch"),
    "example_memory": (None, "SIZE", "GPU memory of one sample's activations in training"),
    "model_memory": (None, "SIZE", "GPU memory of the parameters"),
}  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    for name, (grammar, metavar, text) in _FLAGS.items():
        kind = str if grammar is None else number(grammar)
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar=metavar, help=text)
    parser.add_argument(
        "--experiments",
        type=_range,
        metavar="K",
        help="experiments at the same time on the same storage, or a range such as 5-10 (default: 1)",
    )
    parser.add_argument("--json", action="store_true", help="print the plan as one JSON object")


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit status."""
    from lmdbloader.lab.planning import plan

    given = {name: getattr(options, name) for name in _FLAGS if getattr(options, name) is not None}
    if not given:
        options.parser.error("expected --batch-size and --step-seconds, or --preset")
    found = plan(**given, experiments=options.experiments)
    say_lines(json.dumps(found.as_json(), indent=2, allow_nan=False) if options.json else str(found))
    return 0


def _range(text: str) -> int | tuple[int, int]:
    ends = [parse_whole(end) for end in text.split("-")]
    fewest, most = ends[0], ends[-1]
    if fewest is None or most is None or len(ends) > 2:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number, or a range like 5-10")
    return (fewest, most) if len(ends) == 2 else fewest
