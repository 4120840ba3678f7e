"""The formulas: reads and bytes per second, how much storage serves them, and the batch that fits on a GPU."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lmdbloader.base.units import GIB, KIB, MIB
from lmdbloader.format.sizes import BLOCK_NBYTES as RECORD_NBYTES

# The read size of order="quasi_random". A record of a dataset holds as many small samples as fit into its own size.
BLOCK_NBYTES = 2 * MIB


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
    """The data that storage must deliver while some experiments run.

    Attributes:
        experiments: The number of experiments at the same time.
        samples_per_step: Samples that all their GPUs consume in one step.
        samples_per_s: Samples per second: n / t.
        nbytes_per_s: Bytes per second: example size x n / t.
        reads: The reads per second that deliver them, in three ways.
    """

    experiments: int
    samples_per_step: int
    samples_per_s: float
    nbytes_per_s: float
    reads: tuple[Reads, ...]


def demand(batch_size: int, step_seconds: float, example_nbytes: int, gpus: int, experiments: int) -> Demand:
    """Return the demand of experiments on storage; the formulas are those of "Feeding the beast".

    Read IOPS = n / t, bandwidth = example size x n / t, with n = experiments x GPUs x batch size. Reading samples in
    larger pieces divides the IOPS, and leaves the bandwidth as it is, as long as every sample of a piece is used.

    >>> needed = demand(128, 0.087, 64 * 1024, gpus=4, experiments=1)
    >>> [(reads.name, round(reads.reads_per_s)) for reads in needed.reads]
    [('sample', 5885), ('record', 1471), ('block', 184)]
    """
    samples_per_step = batch_size * gpus * experiments
    samples_per_s = samples_per_step / step_seconds
    nbytes_per_s = samples_per_s * example_nbytes
    sizes = {"sample": example_nbytes, "record": RECORD_NBYTES, "block": BLOCK_NBYTES}
    reads = [Reads(name, max(size, example_nbytes), 0.0) for name, size in sizes.items()]
    reads = [Reads(way.name, way.read_nbytes, nbytes_per_s / way.read_nbytes) for way in reads]
    return Demand(experiments, samples_per_step, samples_per_s, nbytes_per_s, tuple(reads))


@dataclass(frozen=True, slots=True)
class GpuFit:
    """How a batch fits the memory of a GPU.

    Attributes:
        batch_nbytes: Memory of the batch: n x activations of a sample + parameters.
        gpu_memory_nbytes: Memory of the GPU.
        largest: The largest batch that fits, 0 if not even one sample does.
        largest_power: The largest power of two up to that.
    """

    batch_nbytes: int
    gpu_memory_nbytes: int
    largest: int
    largest_power: int

    @property
    def fits(self) -> bool:
        """Whether the batch fits."""
        return self.batch_nbytes <= self.gpu_memory_nbytes


def fit_gpu(batch_size: int, example_memory_nbytes: int, model_memory_nbytes: int, gpu_memory_nbytes: int) -> GpuFit:
    """Return how a batch fits a GPU; the formula is that of "Feeding the beast".

    >>> found = fit_gpu(128, 103 * MIB, 98 * MIB, 16 * 1024 * MIB)
    >>> round(found.batch_nbytes / 2**30, 2), found.largest, found.largest_power
    (12.97, 158, 128)
    """
    largest = max(0, (gpu_memory_nbytes - model_memory_nbytes) // example_memory_nbytes)
    return GpuFit(
        batch_size * example_memory_nbytes + model_memory_nbytes,
        gpu_memory_nbytes,
        largest,
        1 << (largest.bit_length() - 1) if largest else 0,
    )


# The read size for which the figure of a spinning disk was measured.
_SEEK_NBYTES = 64 * KIB


@dataclass(frozen=True, slots=True)
class StorageClass:
    """The speed of one device, or of one network file system.

    Attributes:
        name: A name to show.
        reads_per_s: Small random reads a second.
        nbytes_per_s: Bytes a second of large reads.
        seeks: Whether each read begins with a movement of the head, so that seek time and transfer time add up;
            otherwise the lower of the two limits applies.
        machine_nbytes_per_s: The most that one machine gets; None if one machine can use all of it.
        source: The publication.
    """

    name: str
    reads_per_s: float
    nbytes_per_s: float
    seeks: bool
    machine_nbytes_per_s: float | None
    source: str

    def reads_of(self, read_nbytes: float) -> float:
        """Return how many random reads of a size one device serves per second."""
        if self.seeks:
            return 1 / (1 / self.reads_per_s + max(0.0, read_nbytes - _SEEK_NBYTES) / self.nbytes_per_s)
        return min(self.reads_per_s, self.nbytes_per_s / read_nbytes)

    def needed(self, reads_per_s: float, read_nbytes: float) -> int:
        """Return how many of these devices serve a rate of random reads of a size.

        >>> STORAGE[0].needed(5885, 64 * 1024)
        45
        """
        # Rounding errors of the division must not add a device.
        return max(1, math.ceil(reads_per_s / self.reads_of(read_nbytes) - 1e-9))


STORAGE = (
    StorageClass(
        "spinning disk", 131, 130e6, True, None,
        '131 random reads of 64 KiB a second: what "Feeding the beast" takes from Wikipedia\'s table of spinning disks '
        "(5885 reads on about 45 disks); 130 MB/s: the middle of 83 to 175 MB/s in Seagate's Constellation ES.3 manual",
    ),
    StorageClass(
        "SATA SSD", 98_000, 560e6, False, None, "Samsung's data sheet of the 870 EVO: 98,000 IOPS, 560 MB/s"
    ),
    StorageClass(
        "NVMe SSD", 1_000_000, 7000e6, False, None,
        "Samsung's data sheet of the 980 PRO, 1 TB: 1,000,000 IOPS, 7,000 MB/s",
    ),
    StorageClass(
        "AWS gp3 volume", 3000, 125 * MIB, False, None,
        "AWS documentation of EBS: 3,000 IOPS and 125 MiB/s come with a gp3 volume; more is paid for",
    ),
    StorageClass(
        "NFS, Filestore basic HDD", 1000, 180 * MIB, False, None,
        "Google Cloud documentation of Filestore, BASIC_HDD from 10 TiB: 1,000 read IOPS, 180 MiB/s",
    ),
    StorageClass(
        "NFS, Filestore basic SSD", 60_000, 1200 * MIB, False, None,
        "Google Cloud documentation of Filestore, BASIC_SSD: 60,000 read IOPS, 1,200 MiB/s",
    ),
    StorageClass(
        "NFS, AWS EFS elastic", 90_000, 3 * GIB, False, 1500 * MIB,
        "AWS documentation of EFS, General Purpose with elastic throughput: 90,000 read IOPS for data not read lately, "
        "3 GiB/s in every region, 1,500 MiB/s for one machine",
    ),
)  # fmt: skip
