"""Kinds of storage: what one of each delivers, by its source, and how many of them a demand takes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from lmdbloader.base.units import GIB, KIB, MIB

# What the figure for a spinning disk was measured with.
_SEEK_NBYTES = 64 * KIB


@dataclass(frozen=True, slots=True)
class StorageClass:
    """What one device, or one network file system, delivers.

    Attributes:
        name: For people.
        kind: "local" for a device in the machine, "network" for a file system that machines share.
        reads_per_s: Small random reads a second.
        nbytes_per_s: Bytes a second of large reads.
        seeks: Whether each read first costs a movement of the head, so that time to find and time to read add up; else
            whichever limit comes first holds.
        machine_nbytes_per_s: The most that one machine gets; None where that is all of it.
        source: Who says so.
    """

    name: str
    kind: Literal["local", "network"]
    reads_per_s: float
    nbytes_per_s: float
    seeks: bool
    machine_nbytes_per_s: float | None
    source: str

    def reads_of(self, read_nbytes: float) -> float:
        """Return how many random reads of a size one delivers a second."""
        if self.seeks:
            return 1 / (1 / self.reads_per_s + max(0.0, read_nbytes - _SEEK_NBYTES) / self.nbytes_per_s)
        return min(self.reads_per_s, self.nbytes_per_s / read_nbytes)

    def needed(self, reads_per_s: float, read_nbytes: float) -> int:
        """Return how many of these serve so many random reads of a size a second.

        >>> STORAGE[0].needed(5885, 64 * 1024)
        45
        """
        # A hair below a whole number is that number, whatever the last digit of a division says.
        return max(1, math.ceil(reads_per_s / self.reads_of(read_nbytes) - 1e-9))


STORAGE = (
    StorageClass(
        "spinning disk",
        "local",
        131,
        130e6,
        True,
        None,
        '131 random reads of 64 KiB a second: what "Feeding the beast" takes from Wikipedia\'s table of spinning disks '
        "(5885 reads on about 45 disks); 130 MB/s: the middle of 83 to 175 MB/s in Seagate's Constellation ES.3 manual",
    ),
    StorageClass(
        "SATA SSD", "local", 98_000, 560e6, False, None, "Samsung's data sheet of the 870 EVO: 98,000 IOPS, 560 MB/s"
    ),
    StorageClass(
        "NVMe SSD",
        "local",
        1_000_000,
        7000e6,
        False,
        None,
        "Samsung's data sheet of the 980 PRO, 1 TB: 1,000,000 IOPS, 7,000 MB/s",
    ),
    StorageClass(
        "AWS gp3 volume",
        "local",
        3000,
        125 * MIB,
        False,
        None,
        "AWS documentation of EBS: 3,000 IOPS and 125 MiB/s come with a gp3 volume; more is paid for",
    ),
    StorageClass(
        "NFS, Filestore basic HDD",
        "network",
        1000,
        180 * MIB,
        False,
        None,
        "Google Cloud documentation of Filestore, BASIC_HDD from 10 TiB: 1,000 read IOPS, 180 MiB/s",
    ),
    StorageClass(
        "NFS, Filestore basic SSD",
        "network",
        60_000,
        1200 * MIB,
        False,
        None,
        "Google Cloud documentation of Filestore, BASIC_SSD: 60,000 read IOPS, 1,200 MiB/s",
    ),
    StorageClass(
        "NFS, AWS EFS elastic",
        "network",
        90_000,
        3 * GIB,
        False,
        1500 * MIB,
        "AWS documentation of EFS, General Purpose with elastic throughput: 90,000 read IOPS for data not read lately, "
        "3 GiB/s in every region, 1,500 MiB/s for one machine",
    ),
)
