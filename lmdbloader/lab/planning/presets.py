"""Published workloads, each with its source."""

from __future__ import annotations

from dataclasses import dataclass

from lmdbloader.base.option_names import option
from lmdbloader.base.units import GIB, KIB, MIB
from lmdbloader.errors import OptionError

BEAST = (
    'Assaf Pinhasi, "Feeding the beast: understanding and optimizing the data loading path for training deep learning"'
)
_NVIDIA = "NVIDIA DeepLearningExamples, PyTorch, ResNet50 v1.5, training performance (pytorch-21.03 container)"


@dataclass(frozen=True, slots=True)
class Preset:
    """A workload. None stands for a figure that its source does not state.

    Attributes:
        name: As `preset` takes it.
        title: A description that fits into a list of 80 columns.
        source: The publication.
        batch_size: Samples of a step on one GPU.
        step_seconds: Time of a step; None if it follows from `images_per_s`.
        images_per_s: Images that one GPU trains a second.
        example_nbytes: Bytes of a sample on disk.
        gpus, experiments: How many GPUs an experiment has, and the fewest and most experiments at the same time.
        dataset_nbytes: Of everything that is in use.
        example_memory_nbytes: GPU memory that one sample's activations take in training.
        model_memory_nbytes: GPU memory of the parameters.
        gpu_memory_nbytes: Memory of the GPU.
        example_flops: Floating-point operations of one sample.
        gpu_flops: Of the GPU, a second.
        notes: Remarks, such as a contradiction between the source's text and its formula.
    """

    name: str
    title: str
    source: str
    batch_size: int
    step_seconds: float | None = None
    images_per_s: float | None = None
    example_nbytes: int | None = None
    gpus: int = 1
    experiments: tuple[int, int] = (1, 1)
    dataset_nbytes: int | None = None
    example_memory_nbytes: int | None = None
    model_memory_nbytes: int | None = None
    gpu_memory_nbytes: int | None = None
    example_flops: float | None = None
    gpu_flops: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def theoretical_images_per_s(self) -> float | None:
        """Images a second that the GPU could train if it only computed: its FLOPS / those of a sample."""
        return self.gpu_flops / self.example_flops if self.gpu_flops and self.example_flops else None


# The document's megabytes are MiB: its 128 x 103 MB + 98 MB = 12.97 GB divides by 1024.
_ALL = (
    Preset(
        "resnet50-v100",
        "ResNet-50, one V100, 1457 images/s",
        BEAST,
        batch_size=128, images_per_s=1457, example_nbytes=64 * KIB, dataset_nbytes=150 * 10**9,
        example_memory_nbytes=103 * MIB, model_memory_nbytes=98 * MIB, gpu_memory_nbytes=16 * GIB,
        example_flops=4e9, gpu_flops=7e12,
        notes=('The document calls its 32-bit numbers "double precision"; they are single precision.',),
    ),
    Preset(
        "resnet152-v100",
        "ResNet-152, one V100, 729 images/s",
        BEAST,
        batch_size=64,
        # "Same amount of computation per batch": half the images, twice the work of each.
        step_seconds=128 / 1457, example_nbytes=64 * KIB, dataset_nbytes=150 * 10**9,
        example_memory_nbytes=219 * MIB, model_memory_nbytes=209 * MIB, gpu_memory_nbytes=16 * GIB,
        example_flops=8e9, gpu_flops=7e12,
        notes=("The document writes 64 * 219MB = 13.8 GB: that is 13.7 GiB, and with the parameters 13.9 GiB.",),
    ),
    Preset(
        "imagenet-4xv100",
        "ResNet-50, four V100, ImageNet's 150 GB",
        BEAST,
        batch_size=128, step_seconds=0.087, example_nbytes=64 * KIB, gpus=4, dataset_nbytes=150 * 10**9,
        example_memory_nbytes=103 * MIB, model_memory_nbytes=98 * MIB, gpu_memory_nbytes=16 * GIB,
        notes=("The document's 367 MB/s are MiB/s: 5885 x 64 KiB = 367.8 MiB/s = 385.7 MB/s.",),
    ),
    Preset(
        "team-on-nfs",
        "5 to 10 experiments, files of 500 KB, steps of 2 s",
        BEAST,
        batch_size=64, step_seconds=2.0, example_nbytes=500_000, gpus=4, experiments=(5, 10), dataset_nbytes=10
        * 10**12,
        notes=(
            "The document writes 600 MB/s to 1.28 GB/s here. Its own formula, bandwidth = example size x n / t, gives "
            "half of that: 640 to 1,280 reads of 500 KB a second are 0.32 to 0.64 GB/s. The formula is right.",
        ),
    ),
    Preset(
        "small-files",
        "5 to 10 experiments, files of 64 KiB, steps of 0.2 s",
        BEAST,
        batch_size=256, step_seconds=0.2, example_nbytes=64 * KIB, gpus=4, experiments=(5, 10),
        dataset_nbytes=10 * 10**12,
        notes=("The document's 1.6 to 3.2 GB/s are 1,600 to 3,200 MiB/s, or 1.68 to 3.36 GB/s.",),
    ),
    Preset(
        "small-data",
        "little data: batches of 32 in 50 ms",
        BEAST,
        batch_size=32, step_seconds=0.05,
    ),
    Preset(
        "large-data",
        "much data: batches of 1024 in 2 s",
        BEAST,
        batch_size=1024, step_seconds=2.0,
    ),
    Preset(
        "resnet50-v100-fp32",
        "one V100, single precision, 367 images/s",
        _NVIDIA,
        batch_size=128, images_per_s=367, gpu_memory_nbytes=16 * GIB,
        notes=("A quarter of the 1457 images/s that the document quotes for single precision on the same GPU.",),
    ),
    Preset(
        "resnet50-v100-mixed",
        "one V100, mixed precision, 1200 images/s",
        _NVIDIA,
        batch_size=128, images_per_s=1200, gpu_memory_nbytes=16 * GIB,
    ),
    Preset(
        "resnet50-a100-tf32",
        "one A100, TF32, 938 images/s",
        _NVIDIA,
        batch_size=128, images_per_s=938, gpu_memory_nbytes=80 * GIB,
    ),
    Preset(
        "resnet50-a100-mixed",
        "one A100, mixed precision, 2470 images/s",
        _NVIDIA,
        batch_size=128, images_per_s=2470, gpu_memory_nbytes=80 * GIB,
    ),
)  # fmt: skip
PRESETS = {preset.name: preset for preset in _ALL}
"""The published workloads that `plan` knows, by name."""


def find_preset(name: str) -> Preset:
    """Return a preset.

    Raises:
        OptionError: There is no preset of that name.
    """
    if name not in PRESETS:
        raise OptionError(f"{option('preset', name)}: no such preset; expected one of {', '.join(PRESETS)}")
    return PRESETS[name]
