"""The arithmetic: what a training run asks of storage, and the batch that fits a GPU."""

from __future__ import annotations

from dataclasses import dataclass

from lmdbloader.base.units import MIB

# A record of a dataset holds as many small samples as fit.
from lmdbloader.format.layout import BLOCK_NBYTES as RECORD_NBYTES

# What order="quasi_random" reads in one go.
BLOCK_NBYTES = 4 * MIB


@dataclass(frozen=True, slots=True)
class Reads:
    """One way to read the same samples.

    Attributes:
        name: "sample" (each alone: a file, or random access), "record" or "block".
        read_nbytes: Size of a read.
        reads_per_s: How many of them a second (IOPS).
    """

    name: str
    read_nbytes: int
    reads_per_s: float


@dataclass(frozen=True, slots=True)
class Demand:
    """What must come from storage while some experiments run.

    Attributes:
        experiments: How many, at the same time.
        samples_per_step: Samples that all their GPUs take in one step.
        samples_per_s: Samples a second: n / t.
        nbytes_per_s: Bytes a second: example size x n / t.
        reads: The same, read in three ways.
    """

    experiments: int
    samples_per_step: int
    samples_per_s: float
    nbytes_per_s: float
    reads: tuple[Reads, ...]


def demand(batch_size: int, step_seconds: float, example_nbytes: int, gpus: int, experiments: int) -> Demand:
    """Return what experiments ask of storage; the formulas are those of "Feeding the beast".

    Read IOPS = n / t, bandwidth = example size x n / t, with n = experiments x GPUs x batch size. Reading samples in
    larger pieces divides the IOPS, and leaves the bandwidth as it is, as long as every sample of a piece is used.

    >>> needed = demand(128, 0.087, 64 * 1024, gpus=4, experiments=1)
    >>> [(reads.name, round(reads.reads_per_s)) for reads in needed.reads]
    [('sample', 5885), ('record', 1471), ('block', 92)]
    """
    samples_per_step = batch_size * gpus * experiments
    samples_per_s = samples_per_step / step_seconds
    nbytes_per_s = samples_per_s * example_nbytes
    sizes = {"sample": example_nbytes, "record": RECORD_NBYTES, "block": BLOCK_NBYTES}
    reads = [Reads(name, max(size, example_nbytes), 0.0) for name, size in sizes.items()]
    reads = [Reads(way.name, way.read_nbytes, nbytes_per_s / way.read_nbytes) for way in reads]
    return Demand(experiments, samples_per_step, samples_per_s, nbytes_per_s, tuple(reads))


@dataclass(frozen=True, slots=True)
class Fit:
    """How a batch fits the memory of a GPU.

    Attributes:
        batch_nbytes: What the batch takes: n x activations of a sample + parameters.
        gpu_memory_nbytes: What there is.
        largest: The largest batch that fits, 0 where not even one sample does.
        largest_power: The largest power of two of it.
    """

    batch_nbytes: int
    gpu_memory_nbytes: int
    largest: int
    largest_power: int

    @property
    def fits(self) -> bool:
        """Whether the batch fits."""
        return self.batch_nbytes <= self.gpu_memory_nbytes


def fit(batch_size: int, example_memory_nbytes: int, model_memory_nbytes: int, gpu_memory_nbytes: int) -> Fit:
    """Return how a batch fits a GPU; the formula is that of "Feeding the beast".

    >>> found = fit(128, 103 * MIB, 98 * MIB, 16 * 1024 * MIB)
    >>> round(found.batch_nbytes / 2**30, 2), found.largest, found.largest_power
    (12.97, 158, 128)
    """
    largest = max(0, (gpu_memory_nbytes - model_memory_nbytes) // example_memory_nbytes)
    return Fit(
        batch_size * example_memory_nbytes + model_memory_nbytes,
        gpu_memory_nbytes,
        largest,
        1 << (largest.bit_length() - 1) if largest else 0,
    )
