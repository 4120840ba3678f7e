"""Published workloads, each with its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lmdbloader.base.units import FLOPS

BEAST = (
    'Assaf Pinhasi, "Feeding the beast: understanding and optimizing the data loading path for training deep learning"'
)
_NVIDIA = "NVIDIA DeepLearningExamples, PyTorch, ResNet50 v1.5, training performance (pytorch-21.03 container)"


@dataclass(frozen=True, slots=True)
class Preset:
    """A workload.

    Attributes:
        name: As `preset` takes it.
        title: A description that fits into a list of 80 columns.
        source: The publication.
        options: The arguments of `plan` that it states.
        images_per_s: Images that one GPU trains a second, if the time of a step follows from it; else None.
        notes: Remarks, such as a contradiction between the source's text and its formula.
    """

    name: str
    title: str
    source: str
    options: Mapping[str, Any]
    images_per_s: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def flops_images_per_s(self) -> float | None:
        """Images that one GPU would train a second by the FLOPS that are stated; None if they are not."""
        found = [FLOPS.parse(self.options.get(name, "")) for name in ("device_flops", "example_flops")]
        return found[0] / found[1] if found[0] and found[1] else None


# The document's megabytes are MiB: its 128 x 103 MB + 98 MB = 12.97 GB divides by 1024.
_RESNET50 = {"example_size": "64KiB", "dataset_size": "150GB", "gpu_memory": "16GiB", "batch_size": 128,
             "example_memory": "103MiB", "model_memory": "98MiB"}  # fmt: skip
_TEAM = {"gpus": 4, "experiments": (5, 10), "dataset_size": "10TB"}
_ALL = (
    Preset(
        "resnet50-v100", "ResNet-50, one V100, 1457 images/s", BEAST,
        {**_RESNET50, "example_flops": "4G", "device_flops": "7T"}, 1457,
        ('The document calls its 32-bit numbers "double precision"; they are single precision.',),
    ),
    Preset(
        "resnet152-v100", "ResNet-152, one V100, 729 images/s", BEAST,
        # "Same amount of computation per batch": half the images, twice the work of each.
        {**_RESNET50, "batch_size": 64, "step_seconds": 128 / 1457, "example_memory": "219MiB",
         "model_memory": "209MiB", "example_flops": "8G", "device_flops": "7T"},
        notes=("The document writes 64 * 219MB = 13.8 GB: that is 13.7 GiB, and with the parameters 13.9 GiB.",),
    ),
    Preset(
        "imagenet-4xv100", "ResNet-50, four V100, ImageNet's 150 GB", BEAST,
        {**_RESNET50, "step_seconds": 0.087, "gpus": 4},
        notes=("The document's 367 MB/s are MiB/s: 5885 x 64 KiB = 367.8 MiB/s = 385.7 MB/s.",),
    ),
    Preset(
        "team-on-nfs", "5 to 10 experiments, files of 500 KB, steps of 2 s", BEAST,
        {**_TEAM, "batch_size": 64, "step_seconds": 2.0, "example_size": "500KB"},
        notes=(
            "The document writes 600 MB/s to 1.28 GB/s here. Its own formula, bandwidth = example size x n / t, gives "
            "half of that: 640 to 1,280 reads of 500 KB a second are 0.32 to 0.64 GB/s. The formula is right.",
        ),
    ),
    Preset(
        "small-files", "5 to 10 experiments, files of 64 KiB, steps of 0.2 s", BEAST,
        {**_TEAM, "batch_size": 256, "step_seconds": 0.2, "example_size": "64KiB"},
        notes=("The document's 1.6 to 3.2 GB/s are 1,600 to 3,200 MiB/s, or 1.68 to 3.36 GB/s.",),
    ),
    Preset("small-data", "little data: batches of 32 in 50 ms", BEAST, {"batch_size": 32, "step_seconds": 0.05}),
    Preset("large-data", "much data: batches of 1024 in 2 s", BEAST, {"batch_size": 1024, "step_seconds": 2.0}),
    Preset(
        "resnet50-v100-fp32", "one V100, single precision, 367 images/s", _NVIDIA,
        {"batch_size": 128, "gpu_memory": "16GiB"}, 367,
        ("A quarter of the 1457 images/s that the document quotes for single precision on the same GPU.",),
    ),
    Preset(
        "resnet50-v100-mixed", "one V100, mixed precision, 1200 images/s", _NVIDIA,
        {"batch_size": 128, "gpu_memory": "16GiB"}, 1200,
    ),
    Preset(
        "resnet50-a100-tf32", "one A100, TF32, 938 images/s", _NVIDIA,
        {"batch_size": 128, "gpu_memory": "80GiB"}, 938,
    ),
    Preset(
        "resnet50-a100-mixed", "one A100, mixed precision, 2470 images/s", _NVIDIA,
        {"batch_size": 128, "gpu_memory": "80GiB"}, 2470,
    ),
)  # fmt: skip
PRESETS = {preset.name: preset for preset in _ALL}
"""The published workloads that `plan` knows, by name."""
