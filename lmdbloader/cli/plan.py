"""`lmdbloader plan`: the data and storage that a training run needs, before anything is bought or converted."""

from __future__ import annotations

import argparse
import json

from lmdbloader.base.units import REAL, SHARE, WHOLE, parse_whole
from lmdbloader.cli._numbers import number
from lmdbloader.cli._streams import say_lines
from lmdbloader.lab.planning import PRESETS

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

EPILOG = """\
The keys of a file for --workload are the options above, with underscores, and
`data`, the size of each dataset by name:
  {{"batch_size": 128, "step_seconds": 0.087, "example_size": "64KiB", "gpus": 4,
   "experiments": [5, 10], "data": {{"imagenet": "150GB"}}}}
Only --experiments, --cache-fraction and --json can be given with it. Without
--experiments, the numbers in all files are added up.

presets (published figures; --json names their sources):
{presets}

Exit status: 0 done, 2 wrong usage.

examples:
  lmdbloader plan --batch-size 128 --step-seconds 0.087 --example-size 64KiB \\
      --gpus 4 --dataset-size 150GB
  lmdbloader plan --batch-size 128 --example-flops 4G --device-flops 7T
  lmdbloader plan --preset resnet50-v100 --gpu-memory 32GiB
  lmdbloader plan --workload detector.json --workload classifier.json
  lmdbloader plan --preset team-on-nfs --experiments 5-10 --cache-fraction 0.2
  lmdbloader plan --preset resnet50-a100-mixed --example-size 110K --gpus 128 \\
      --nodes 16 --dataset-size 10TB --storage-bandwidth 2GB/s \\
      --storage-iops 50000
"""
_OF_WORKLOAD = (
    "batch_size", "step_seconds", "example_flops", "device_flops", "example_size", "preset", "gpus", "dataset_size",
    "gpu_memory", "example_memory", "model_memory",
)  # fmt: skip
_OF_NODES = (
    "nodes", "storage_bandwidth", "storage_iops", "network_bandwidth", "node_memory", "local_disk",
)  # fmt: skip
_WIDTH = max(map(len, PRESETS))
EPILOG = EPILOG.format(presets="\n".join(f"  {name.ljust(_WIDTH)}  {preset.short}" for name, preset in PRESETS.items()))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("--batch-size", type=number(WHOLE), metavar="N", help="samples per step on one GPU")
    parser.add_argument(
        "--step-seconds",
        type=number(REAL),
        metavar="T",
        help="time of a step on the GPU: forward, backward and update",
    )
    parser.add_argument(
        "--example-flops",
        metavar="F",
        help="instead of the time of a step: floating-point operations to train on one sample, such as 4G",
    )
    parser.add_argument(
        "--device-flops", metavar="F", help="floating-point operations per second of one GPU, such as 7T"
    )
    parser.add_argument(
        "--utilization",
        type=number(SHARE),
        default=1.0,
        metavar="U",
        help="share of --device-flops that the model reaches (default: 1, which gives an upper bound of the demand)",
    )
    parser.add_argument("--example-size", metavar="SIZE", help="size of a sample on storage (default: 64KiB)")
    parser.add_argument("--preset", metavar="NAME", help="take missing figures from a published workload; see below")
    parser.add_argument("--gpus", type=number(WHOLE), metavar="G", help="GPUs of one experiment (default: 1)")
    parser.add_argument(
        "--experiments",
        type=_range,
        metavar="K",
        help="experiments at the same time on the same storage, or a range such as 5-10 (default: 1)",
    )
    parser.add_argument(
        "--workload",
        action="append",
        metavar="FILE",
        help="take the figures from a JSON file, see below; of several files, the most demanding one determines the "
        "result, and storage holds the union of their data",
    )
    parser.add_argument("--dataset-size", metavar="SIZE", help="size of all data in use; adds the time of an epoch")
    parser.add_argument(
        "--cache-fraction",
        type=number(SHARE),
        default=0.0,
        metavar="F",
        help="share of the dataset that is kept on local disks (default: 0)",
    )
    memory = parser.add_argument_group("the largest batch")
    memory.add_argument("--gpu-memory", metavar="SIZE", help="memory of one GPU")
    memory.add_argument("--example-memory", metavar="SIZE", help="GPU memory of one sample's activations in training")
    memory.add_argument("--model-memory", metavar="SIZE", help="GPU memory of the parameters")
    _add_nodes(parser)
    parser.add_argument("--json", action="store_true", help="print the plan as one JSON object")


def _add_nodes(parser: argparse.ArgumentParser) -> None:
    nodes = parser.add_argument_group("several nodes on one storage (predicted; with --dataset-size)")
    nodes.add_argument(
        "--nodes", type=number(WHOLE), metavar="N", help="machines of one experiment, each with the same number of GPUs"
    )
    nodes.add_argument(
        "--storage-bandwidth",
        metavar="RATE",
        help="bytes per second that the storage delivers to all nodes together, such as 2GB/s",
    )
    nodes.add_argument(
        "--storage-iops",
        type=number(WHOLE),
        metavar="N",
        help="requests per second of all nodes together that the storage serves",
    )
    nodes.add_argument(
        "--network-bandwidth",
        metavar="RATE",
        help="bytes per second that the network delivers to one node, such as 3GB/s",
    )
    nodes.add_argument("--node-memory", metavar="SIZE", help="memory of a node that is free for reading")
    nodes.add_argument(
        "--local-disk", metavar="SIZE", help="space on a node's own disk, for a copy of the dataset or a part of it"
    )


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit status."""
    from lmdbloader.lab.planning import plan, plan_shared

    if options.workload is not None:
        _refuse_others(options)
        shared = plan_shared(options.workload, experiments=options.experiments, cache_fraction=options.cache_fraction)
        say_lines(json.dumps(shared.as_json(), indent=2, allow_nan=False) if options.json else str(shared))
        return 0
    has_time = options.step_seconds is not None or options.example_flops or options.device_flops
    if options.preset is None and (options.batch_size is None or not has_time):
        options.parser.error(
            "expected --batch-size with --step-seconds, or with --example-flops and --device-flops; or "
            "--preset, or --workload"
        )
    found = plan(
        batch_size=options.batch_size,
        step_seconds=options.step_seconds,
        example_flops=options.example_flops,
        device_flops=options.device_flops,
        utilization=options.utilization,
        example_size=options.example_size,
        preset=options.preset,
        gpus=options.gpus,
        experiments=options.experiments,
        dataset_size=options.dataset_size,
        gpu_memory=options.gpu_memory,
        example_memory=options.example_memory,
        model_memory=options.model_memory,
        cache_fraction=options.cache_fraction,
        **{name: getattr(options, name) for name in _OF_NODES},
    )
    say_lines(json.dumps(found.as_json(), indent=2, allow_nan=False) if options.json else str(found))
    return 0


def _refuse_others(options: argparse.Namespace) -> None:
    """Refuse options that belong in the files of the workloads."""
    for key in _OF_NODES:
        if getattr(options, key) is not None:
            flag = key.replace("_", "-")
            options.parser.error(f"--{flag} together with --workload: nodes are planned for one workload at a time")
    given: dict[str, object] = {key: getattr(options, key) for key in _OF_WORKLOAD}
    given["utilization"] = None if options.utilization == 1 else options.utilization
    for key, value in given.items():
        if value is not None:
            where = (
                '"data": {"NAME": ' + json.dumps(value) + "}"
                if key == "dataset_size"
                else f'"{key}": {json.dumps(value)}'
            )
            options.parser.error(f"--{key.replace('_', '-')} together with --workload: write it into the file: {where}")


def _range(text: str) -> int | tuple[int, int]:
    ends = [parse_whole(end) for end in text.split("-")]
    fewest, most = ends[0], ends[-1]
    if fewest is None or most is None or len(ends) > 2:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number, or a range like 5-10")
    return (fewest, most) if len(ends) == 2 else fewest
