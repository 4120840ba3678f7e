"""The part of a plan for several nodes on one storage: its options, its table, and its advice."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from numbers import Integral

from lmdbloader.base.option_names import option
from lmdbloader.base.units import MIB, WHOLE, parse_nbytes, show_decimal_nbytes, show_nbytes
from lmdbloader.errors import OptionError
from lmdbloader.lab.formatting import align
from lmdbloader.lab.planning.demand import BLOCK_NBYTES
from lmdbloader.lab.planning.scale import (
    ASSUMPTIONS,
    INDEX_ROW_NBYTES,
    MOST_LANES,
    Cluster,
    Memory,
    SetUp,
    Storage,
    copy_seconds,
    lanes_for,
    memory_of,
    num_lanes,
    set_ups,
)
from lmdbloader.lab.planning.showing import show_number, show_seconds, show_size

_BITS = re.compile(r"\s*([\d._eE+]+)\s*([KMGTkmgt]?)(b|bit|bits)(/s|ps)?\s*")
# The arrays of a quasi-random order are mentioned from here on.
_LARGE_ORDER_NBYTES = 200 * MIB


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """What one storage must deliver to several nodes: predicted by a model, not measured.

    Attributes:
        cluster: The ranks of one experiment, and the dataset.
        storage: The share of the storage that each experiment gets.
        set_ups: Ways to read the dataset, the simplest first, in the second epoch and later.
        memory: The memory that reading takes, in a rank and on a node.
        copy_seconds: The time to copy the dataset to all nodes at once; None if no bandwidth is known.
        assumptions: The assumptions of the model.
    """

    cluster: Cluster
    storage: Storage
    set_ups: tuple[SetUp, ...]
    memory: Memory
    copy_seconds: float | None
    assumptions: tuple[str, ...] = ASSUMPTIONS

    def lines(self) -> Iterator[str]:
        """Yield the table."""
        storage = self.storage
        known = [
            text
            for text, value in (
                (f"{show_decimal_nbytes(storage.nbytes_per_s or 0)}/s", storage.nbytes_per_s),
                (f"{show_number(storage.requests_per_s or 0)} requests a second", storage.requests_per_s),
                (f"{show_decimal_nbytes(storage.node_nbytes_per_s or 0)}/s to a node", storage.node_nbytes_per_s),
            )
            if value is not None
        ]
        yield f"Storage for {_nodes(self.cluster)}{': ' + ', '.join(known) if known else ''} (predicted)"
        rows = [("epoch 2 and later", "one read", "cached", "delivers", "reads/s", "a node", "GPUs fed")]
        for each in self.set_ups:
            rows.append(
                (
                    f"  {each.name}",
                    show_size(each.read_nbytes),
                    f"{each.hits:.0%}",
                    f"{show_decimal_nbytes(each.nbytes_per_s)}/s",
                    show_number(each.requests_per_s),
                    f"{show_decimal_nbytes(each.node_nbytes_per_s)}/s",
                    f"{each.fed:.0%}" if any(known) else "",
                )
            )
        yield from align(rows)

    def sentences(self) -> Iterator[str]:
        """Yield what the figures mean, and advice, in sentences."""
        yield from self._feeding()
        yield from self._lanes()
        yield from self._copies()
        yield from self._memory()
        yield f"The figures of the nodes are predictions. {' '.join(self.assumptions)}"

    def _feeding(self) -> Iterator[str]:
        cluster = self.cluster
        plain, packed = self.set_ups[:2]
        for name, each in ("random", plain), ("quasi_random", packed):
            if each.limit is not None:
                yield (
                    f'With order="{name}" and no copies, the storage feeds {each.fed:.0%} of the GPUs '
                    f"({each.fed * cluster.ranks:,.1f} of {cluster.ranks:,}): it is limited to "
                    f"{_limits(each, self.storage)}."
                )
        best = max(self.set_ups, key=lambda each: each.fed)
        if best.fed < 1 and best.limit is not None:
            yield f"None of these ways feeds all GPUs, the best of them {best.fed:.0%}. {self._what_would()}"

    def _what_would(self) -> str:
        """Return what feeds all GPUs: each of the three alone does."""
        # What caches do not deliver, the storage must: the same share of all its limits.
        way = max((each for each in self.set_ups if not each.hits), key=lambda each: (each.fed, each.read_nbytes))
        disk = show_decimal_nbytes(self.cluster.dataset_nbytes * (1 - way.fed))
        to_all = [f"{show_decimal_nbytes(way.nbytes_per_s)}/s"]
        if self.storage.requests_per_s is not None:
            to_all.append(f"{show_number(way.requests_per_s)} requests a second")
        if self.storage.node_nbytes_per_s is not None:
            to_all.append(f"{show_decimal_nbytes(way.node_nbytes_per_s)}/s to each node")
        return (
            f"Any one of these would: a storage that delivers {' and '.join(to_all)}; a disk in each node for {disk} "
            f"of the dataset ({option('local_disk')}), from the second epoch on; or images that take "
            f"{way.fed:.2g} times the bytes (lmdbloader convert --max-resolution)."
        )

    def _lanes(self) -> Iterator[str]:
        cluster, packed = self.cluster, self.set_ups[1]
        if packed.overlap <= 1:
            return
        lanes = num_lanes(max(1, cluster.dataset_nbytes // BLOCK_NBYTES))
        better = lanes_for(cluster.ranks)
        problem = (
            f"The {lanes} lanes of the quasi-random order cannot be divided evenly among {cluster.ranks:,} ranks, so "
            f"several nodes read the same blocks: all nodes together read {packed.overlap:.3g} times the dataset in "
            "each epoch."
        )
        if better is None:
            yield f"{problem} Use a number of ranks that is a power of two, or three times a power of two."
        elif better * BLOCK_NBYTES <= cluster.dataset_nbytes:
            yield (
                f"{problem} With order=QuasiRandom(window_nbytes={better * BLOCK_NBYTES}) there are {better:,} lanes, "
                "and every rank reads blocks of its own."
            )
        else:
            yield f'{problem} The dataset has too few blocks for more lanes: read it with order="random".'

    def _copies(self) -> Iterator[str]:
        cluster = self.cluster
        size = show_decimal_nbytes(cluster.dataset_nbytes)
        took = "" if self.copy_seconds is None else f" and {show_seconds(self.copy_seconds)} if all nodes copy at once"
        if cluster.local_disk_nbytes is not None and cluster.local_disk_nbytes >= cluster.dataset_nbytes:
            yield (
                f"A copy on each node takes {size}{took} (`lmdbloader stage`, once for all jobs); after that, nothing "
                "is read from the storage."
            )
        elif cluster.local_disk_nbytes is not None:
            yield (
                f"A node's disk holds {cluster.local_disk_nbytes / cluster.dataset_nbytes:.0%} of the dataset. A "
                "pinned random part serves that share of the reads; an LRU cache serves less, because an epoch begins "
                "with what was read longest ago. Datasets at a URL keep such a part: "
                'LMDBDataset("s3://...", cache_dir=..., cache_fraction=...).'
            )
        elif any(each.limit for each in self.set_ups):
            yield f"A copy on each node's own disk (`lmdbloader stage`) would take {size}{took}."

    def _memory(self) -> Iterator[str]:
        cluster, memory = self.cluster, self.memory
        total = memory.node_nbytes(cluster.ranks_per_node)
        yield (
            f"Memory of a rank: {show_nbytes(memory.rank_nbytes)} of its own, and in quasi-random order "
            f"{show_nbytes(memory.window_nbytes)} of the page cache. The index ({INDEX_ROW_NBYTES} bytes per sample) "
            f"takes another {show_nbytes(memory.index_nbytes)} of the page cache on each node. In total a node needs "
            f"{show_nbytes(total)} for reading, not counting the model and the training program."
        )
        if cluster.node_memory_nbytes is not None and total > cluster.node_memory_nbytes:
            yield (
                f"That is more than the {show_nbytes(cluster.node_memory_nbytes)} of a node, so parts of the index are "
                "read from storage again and again. Divide the dataset, and train on one part after the other."
            )
        if memory.order_nbytes > _LARGE_ORDER_NBYTES:
            block = BLOCK_NBYTES * 2 ** (memory.order_nbytes // _LARGE_ORDER_NBYTES).bit_length()
            window = block * (lanes_for(cluster.ranks) or MOST_LANES)
            yield (
                f"The arrays of the quasi-random order take {show_nbytes(memory.order_nbytes)} in each rank. With "
                f"larger blocks there are fewer: order=QuasiRandom({block}, {window}), which takes "
                f"{block // BLOCK_NBYTES} times as much of the page cache."
            )


def cluster_plan(
    nodes: int | None,
    ranks: int,
    experiments: int,
    cluster: Cluster,
    storage: Storage,
) -> ClusterPlan:
    """Return the plan of one experiment's nodes.

    Args:
        nodes: The nodes of one experiment; None for a single one.
        ranks: The GPUs of one experiment.
        experiments: The number of experiments that share the storage.
        cluster: The cluster as one node that has all ranks.
        storage: The whole storage.

    Raises:
        OptionError: The GPUs cannot be divided evenly among the nodes.
    """
    nodes = 1 if nodes is None else nodes
    if ranks % nodes:
        raise OptionError(
            f"{option('gpus', ranks)} on {option('nodes', nodes)}: expected equally many on each node, a multiple of "
            f"{nodes}: {option('gpus', nodes * max(1, round(ranks / nodes)))}. It counts the GPUs of all nodes: with "
            f"{ranks} on each node write {option('gpus', nodes * ranks)}"
        )
    cluster = replace(cluster, nodes=nodes, ranks_per_node=ranks // nodes)
    storage = Storage(
        None if storage.nbytes_per_s is None else storage.nbytes_per_s / experiments,
        None if storage.requests_per_s is None else storage.requests_per_s / experiments,
        storage.node_nbytes_per_s,
    )
    return ClusterPlan(cluster, storage, set_ups(cluster, storage), memory_of(cluster), copy_seconds(cluster, storage))


def parse_rate(given: int | float | str | None, name: str) -> float | None:
    """Return a rate in bytes per second; None if none was given.

    Raises:
        OptionError: It is not a rate, or in bits.

    >>> parse_rate("2GB/s", "storage_bandwidth"), parse_rate("800 MiB", "storage_bandwidth")
    (2000000000.0, 838860800.0)
    """
    if given is None:
        return None
    if isinstance(given, str):
        if (bits := _BITS.fullmatch(given)) is not None:
            number, prefix = bits.group(1), bits.group(2).upper()
            raise OptionError(
                f"{option(name, given)}: these are bits; expected bytes a second. Divide by 8: "
                f"{option(name, _eighth(number) + prefix + 'B/s')}"
            )
        text = re.sub(r"\s*/\s*s(ec(ond)?)?\s*$", "", given)
    try:
        return float(parse_nbytes(text if isinstance(given, str) else given, name=name))
    except OptionError as error:
        raise OptionError(f"{option(name, given)}: expected bytes a second, such as 2GB/s or 500MB/s") from error


def _eighth(number: str) -> str:
    try:
        return f"{float(number) / 8:g}"
    except ValueError:
        return "3"


def parse_requests(given: int | str | None, name: str) -> float | None:
    """Return requests per second; None if none were given.

    Raises:
        OptionError: It is not a whole number of at least 1.
    """
    if given is None:
        return None
    value = WHOLE.parse(given) if isinstance(given, str) else given
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise OptionError(f"{option(name, given)}: expected requests a second, a whole number such as 50000")
    return float(value)


def _nodes(cluster: Cluster) -> str:
    nodes = "one node" if cluster.nodes == 1 else f"{cluster.nodes:,} nodes"
    return f"{nodes} of {'one GPU' if cluster.ranks_per_node == 1 else f'{cluster.ranks_per_node} GPUs'}"


def _limits(each: SetUp, storage: Storage) -> str:
    if each.limit == "requests":
        most, needed = storage.requests_per_s or 0, each.requests_per_s
        return f"{show_number(most)} requests a second, and {show_number(needed)} are needed"
    if each.limit == "network":
        most, needed = storage.node_nbytes_per_s or 0, each.node_nbytes_per_s
        return f"{show_decimal_nbytes(most)}/s to each node, and {show_decimal_nbytes(needed)}/s are needed"
    most, needed = storage.nbytes_per_s or 0, each.nbytes_per_s
    return f"{show_decimal_nbytes(most)}/s, and {show_decimal_nbytes(needed)}/s are needed"
