"""A model of many nodes on one storage: what it must deliver, what caches save, and the memory that reading takes.

These are predictions. `ASSUMPTIONS` lists what the model assumes, and `benchmarks/scale.py` compares it with real
processes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from lmdbloader.base.units import MIB
from lmdbloader.lab.planning.demand import BLOCK_NBYTES

# The lanes of order="quasi_random" on one rank: blocks that are mixed at a time.
MOST_LANES = 192
# Measured: a process with torch and this package, before it has batches.
PROCESS_NBYTES = 150 * MIB
# Batches in a Loader: being filled, ready, and held by the loop.
BATCHES_HELD = 6
# Bytes per sample in index.arrow, for an image and a label, without the names of sources.
INDEX_ROW_NBYTES = 45
# Measured: bytes per block of the arrays of a quasi-random order, at the start of an epoch.
ORDER_BLOCK_NBYTES = 56
ASSUMPTIONS = (
    "The storage delivers the given bytes and requests a second to all nodes together, whatever their number and the "
    "order of requests, and latency is hidden by reading ahead.",
    "A random sample is one request; in quasi-random order a block of 2 MiB is one. A file system that splits reads "
    "(NFS: rsize, mostly 1 MiB) counts more.",
    "Nodes have equally many ranks, in order, as torchrun and Slurm number them; all ranks train at the same pace.",
    "The page cache keeps what was read last; the rest of the node's memory is free for it.",
    "A batch takes as many bytes as its samples on storage: decoded JPEG files take more.",
)


@dataclass(frozen=True, slots=True)
class Storage:
    """A storage that all nodes share.

    Attributes:
        nbytes_per_s: Bytes a second to all nodes together; None if not known.
        requests_per_s: Requests a second (IOPS) of all nodes together; None if not known.
        node_nbytes_per_s: Bytes a second that the network delivers to one node; None if not known.
    """

    nbytes_per_s: float | None
    requests_per_s: float | None
    node_nbytes_per_s: float | None


@dataclass(frozen=True, slots=True)
class Cluster:
    """The ranks of one training run, and the dataset.

    Attributes:
        nodes: Machines.
        ranks_per_node: Processes on each node, one for each GPU.
        batch_size: Samples in a rank's batch.
        example_nbytes: Bytes of a sample on storage.
        dataset_nbytes: Bytes of all samples.
        samples_per_s: Samples that all ranks together consume per second.
        node_memory_nbytes: Memory of a node for reading, the page cache included; None if not known.
        local_disk_nbytes: Space on a node's own disk for a copy or a cache; None if there is none.
    """

    nodes: int
    ranks_per_node: int
    batch_size: int
    example_nbytes: int
    dataset_nbytes: int
    samples_per_s: float
    node_memory_nbytes: int | None = None
    local_disk_nbytes: int | None = None

    @property
    def ranks(self) -> int:
        """The ranks on all nodes."""
        return self.nodes * self.ranks_per_node

    @property
    def num_samples(self) -> int:
        """The samples of the dataset."""
        return max(1, round(self.dataset_nbytes / self.example_nbytes))

    @property
    def nbytes_per_s(self) -> float:
        """Bytes of samples that all ranks together consume per second."""
        return self.samples_per_s * self.example_nbytes


@dataclass(frozen=True, slots=True)
class SetUp:
    """One way to read the dataset, in the second epoch and later.

    Attributes:
        name: A name to show.
        read_nbytes: Bytes of a request to the storage.
        overlap: Bytes that all nodes together read in an epoch, as a multiple of the dataset, if nothing is cached.
        hits: The share of these bytes that caches on the nodes deliver.
        nbytes_per_s, requests_per_s: What the storage must deliver.
        node_nbytes_per_s: What it must deliver to one node.
        fed: The share of the time in which the GPUs do not wait for the storage, at most 1.
        limit: The bottleneck: "bandwidth", "requests" or "network"; None if there is none, or nothing is known.
    """

    name: str
    read_nbytes: int
    overlap: float
    hits: float
    nbytes_per_s: float
    requests_per_s: float
    node_nbytes_per_s: float
    fed: float
    limit: str | None


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory that reading takes; a prediction.

    Attributes:
        process_nbytes: Private memory of each rank: Python, torch, this package, and the batches.
        order_nbytes: Private memory of each rank for the arrays of a quasi-random order.
        window_nbytes: Page cache of each rank: the blocks that it mixes and those that come next.
        index_nbytes: Page cache of each node for the index, which its ranks share.
    """

    process_nbytes: int
    order_nbytes: int
    window_nbytes: int
    index_nbytes: int

    @property
    def rank_nbytes(self) -> int:
        """Private memory of each rank."""
        return self.process_nbytes + self.order_nbytes

    def node_nbytes(self, ranks: int) -> int:
        """Return the memory of a node with a number of ranks."""
        return ranks * (self.rank_nbytes + self.window_nbytes) + self.index_nbytes


def num_lanes(num_blocks: int, most: int = MOST_LANES) -> int:
    """Return how many blocks a quasi-random order mixes at a time: `QuasiRandom.num_lanes`, without NumPy.

    >>> [num_lanes(blocks) for blocks in (1, 5, 191, 10_000)]
    [1, 4, 128, 192]
    """
    most = max(min(most, num_blocks), 1)
    power = 1 << (most.bit_length() - 1)
    return power * 3 // 2 if power > 1 and power * 3 // 2 <= most else power


def node_share(nodes: int, ranks_per_node: int, lanes: int) -> float:
    """Return the share of a dataset that one node reads in a quasi-random epoch.

    Ranks whose numbers differ by a multiple of gcd(ranks, lanes) share lanes: each of them reads the blocks of these
    lanes. Ranks on one node read them once, because they share its page cache.

    >>> node_share(2, 8, 192), node_share(128, 8, 192), node_share(1, 5, 192)
    (0.5, 0.125, 1.0)
    """
    apart = math.gcd(nodes * ranks_per_node, lanes)
    return min(ranks_per_node, apart) / apart


def lanes_for(ranks: int) -> int | None:
    """Return the smallest number of lanes, at least 192, that is a multiple of `ranks`; None if there is none.

    >>> [lanes_for(ranks) for ranks in (8, 96, 128, 1024, 40)]
    [192, 192, 256, 1024, None]
    """
    found = [n for k in range(40) for n in (2**k, 3 * 2**k) if n >= MOST_LANES and n % ranks == 0]
    return min(found, default=None)


def lru_hits(kept: float, share: float) -> float:
    """Return the hit rate of an LRU cache, epoch after epoch.

    Each epoch is a new permutation, of which a node reads a random share; the cache keeps a share of the dataset. If
    one node reads everything, a cache of 20 % has a hit rate of 2 %. With many nodes, each of which rarely reads the
    same bytes twice, the hit rate approaches the share that is kept.

    Args:
        kept: The size of the cache, as a share of the dataset.
        share: The share of the dataset that the node reads in an epoch.

    >>> [round(lru_hits(0.2, share), 3) for share in (1, 0.5, 0.125, 0.001)]
    [0.021, 0.043, 0.145, 0.2]
    """
    if kept >= 1:
        return 1.0
    if kept <= 0 or share <= 0:
        return 0.0
    # Bytes that were last read k epochs ago are still kept if the share of the dataset that was not read since then,
    # (1 - share x)(1 - share)^(k - 1)(1 - share v), is at least 1 - kept; x and v are uniform: places in the epochs.
    found, chance, left = 0.0, share, 1.0
    while chance > 1e-9 and left > 1 - kept:
        found += chance * _chance_above((1 - kept) / left, 1 - share)
        left *= 1 - share
        chance *= 1 - share
    return min(found, 1.0)


def _chance_above(least: float, low: float) -> float:
    """Return the chance that the product of two numbers, uniform from `low` to 1, is above `least`, below 1."""
    if least <= low * low:
        return 1.0
    start = max(low, least)
    # Above least / low the second number may be anything; below it, from least / first on.
    free = max(min(least / low, 1.0), start) if low > 0 else 1.0
    area = (free - start) - least * math.log(free / start) + (1 - free) * (1 - low)
    return area / (1 - low) ** 2


def set_ups(cluster: Cluster, storage: Storage) -> tuple[SetUp, ...]:
    """Return the ways to read the dataset, the simplest first."""
    blocks = max(1, cluster.dataset_nbytes // BLOCK_NBYTES)
    lanes = num_lanes(blocks)
    share = node_share(cluster.nodes, cluster.ranks_per_node, lanes)
    block = max(BLOCK_NBYTES, cluster.example_nbytes)
    found = [
        _set_up("random", cluster, storage, cluster.example_nbytes, 1 / cluster.nodes, 0.0),
        _set_up("quasi-random", cluster, storage, block, share, 0.0),
    ]
    better = lanes_for(cluster.ranks)
    if share * cluster.nodes > 1 and better is not None and better <= blocks:
        share = 1 / cluster.nodes
        found.append(_set_up(f"quasi-random, {better:,} lanes", cluster, storage, block, share, 0.0))
    if cluster.node_memory_nbytes is not None:
        free = cluster.node_memory_nbytes - memory_of(cluster).node_nbytes(cluster.ranks_per_node)
        hits = lru_hits(max(free, 0) / cluster.dataset_nbytes, share)
        found.append(_set_up("  + the page cache", cluster, storage, block, share, hits))
    if cluster.local_disk_nbytes is not None:
        kept = min(1.0, cluster.local_disk_nbytes / cluster.dataset_nbytes)
        name = "a copy on each node" if kept == 1 else f"  + {kept:.0%} pinned on each node"
        found.append(_set_up(name, cluster, storage, block, share, kept))
    return tuple(found)


def _set_up(name: str, cluster: Cluster, storage: Storage, read_nbytes: int, share: float, hits: float) -> SetUp:
    overlap = share * cluster.nodes
    nbytes = cluster.nbytes_per_s * overlap * (1 - hits)
    requests, node = nbytes / read_nbytes, nbytes / cluster.nodes
    limits = (
        ("bandwidth", storage.nbytes_per_s, nbytes),
        ("requests", storage.requests_per_s, requests),
        ("network", storage.node_nbytes_per_s, node),
    )
    shares = {name: most / needed for name, most, needed in limits if most is not None and needed > most}
    limit = min(shares, key=lambda each: shares[each], default=None)
    fed = 1.0 if limit is None else shares[limit]
    return SetUp(name, read_nbytes, overlap, hits, nbytes, requests, node, fed, limit)


def memory_of(cluster: Cluster) -> Memory:
    """Return the memory that reading in quasi-random order takes."""
    blocks = max(1, cluster.dataset_nbytes // BLOCK_NBYTES)
    lanes = num_lanes(blocks)
    in_use = lanes // math.gcd(cluster.ranks, lanes)
    ahead = max(in_use // 4, min(in_use, 16))
    return Memory(
        PROCESS_NBYTES + BATCHES_HELD * cluster.batch_size * cluster.example_nbytes,
        ORDER_BLOCK_NBYTES * blocks,
        min((in_use + ahead) * BLOCK_NBYTES, cluster.dataset_nbytes),
        INDEX_ROW_NBYTES * cluster.num_samples,
    )


def copy_seconds(cluster: Cluster, storage: Storage) -> float | None:
    """Return how long it takes to copy the dataset to all nodes at the same time; None if no bandwidth is known."""
    rates = [storage.node_nbytes_per_s]
    if storage.nbytes_per_s is not None:
        rates.append(storage.nbytes_per_s / cluster.nodes)
    known = [rate for rate in rates if rate is not None]
    return cluster.dataset_nbytes / min(known) if known else None


def convert_seconds(
    num_samples: float, samples_per_s: float, workers: int, nbytes: float, nbytes_per_s: float | None
) -> float:
    """Return how long a conversion takes.

    Args:
        num_samples: The number of images.
        samples_per_s: Images that one worker converts per second.
        workers: The number of workers, for all parts together.
        nbytes: Bytes that are read and written.
        nbytes_per_s: Bandwidth of the storage for reading and writing together; None if it is not a limit.

    >>> convert_seconds(1e7, 500, 16, 2e12, 1e9)
    2000.0
    """
    of_storage = 0.0 if nbytes_per_s is None else nbytes / nbytes_per_s
    return max(num_samples / (samples_per_s * workers), of_storage)
