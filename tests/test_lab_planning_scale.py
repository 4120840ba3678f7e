"""The model of many nodes agrees with the real orders and with a simulated cache, and refuses what makes no sense."""

from __future__ import annotations

import json
import random
import re
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest

from lmdbloader import QuasiRandom
from lmdbloader.base.units import GIB, MIB
from lmdbloader.errors import OptionError
from lmdbloader.lab.planning import plan, scale
from lmdbloader.lab.planning.scale import Cluster, Storage
from lmdbloader.loader.orders import Layout, Share
from lmdbloader.loader.quasi_random import epoch_order

STEP: dict[str, Any] = {"batch_size": 100, "step_seconds": 0.1, "example_size": 100_000}


def alike(count: int, nbytes: int) -> Layout:
    return Layout(count, lambda first, end: (np.arange(first, end) * nbytes, np.full(end - first, nbytes)))


def test_lanes_are_those_of_the_order() -> None:
    for blocks in (*range(1, 400), 10_000):
        assert scale.num_lanes(blocks) == QuasiRandom().num_lanes(blocks)
    for ranks in range(1, 300):
        lanes = scale.lanes_for(ranks)
        power = ranks // 3 if ranks % 3 == 0 else ranks
        assert (lanes is None) == (power & (power - 1) != 0)
        if lanes is not None:
            assert lanes % ranks == 0 and lanes >= 192
            order = QuasiRandom(window_nbytes=lanes * scale.BLOCK_NBYTES)
            assert order.num_lanes(10**6) == lanes


@pytest.mark.parametrize(
    ("nodes", "ranks_per_node"), [(1, 1), (1, 5), (2, 4), (2, 6), (8, 8), (5, 2), (16, 8), (64, 4)]
)
def test_the_share_that_a_node_reads_is_that_of_the_real_order(nodes: int, ranks_per_node: int) -> None:
    nbytes, blocks = 70_000, 960
    count = blocks * scale.BLOCK_NBYTES // nbytes
    order = epoch_order("quasi_random", alike(count, nbytes), seed=3, epoch=1)
    mine: set[int] = set()
    window, lengths = 0, []
    for rank in range(ranks_per_node):
        windows = order.windows(Share(8, rank, nodes * ranks_per_node).positions(count))
        assert windows is not None
        of_rank = [windows.samples(k, k + 1) for k in range(len(windows.begins))]
        mine.update(np.concatenate(of_rank).tolist())
        lengths += [len(samples) for samples in of_rank]
        in_use = 1 + np.arange(len(of_rank)) - np.searchsorted(np.sort(windows.ends), windows.begins, "right")
        window = max(window, int(in_use.max() + windows.ahead))
    share = scale.node_share(nodes, ranks_per_node, 192)
    assert len(mine) / count == pytest.approx(share, rel=0.12)
    # Lanes cut some blocks in two.
    assert 0.7 * scale.BLOCK_NBYTES <= np.mean(lengths) * nbytes <= 1.01 * scale.BLOCK_NBYTES
    cluster = Cluster(nodes, ranks_per_node, 8, nbytes, count * nbytes, 1.0)
    assert scale.memory_of(cluster).window_nbytes == pytest.approx(window * scale.BLOCK_NBYTES, rel=0.15)


@pytest.mark.parametrize(
    ("kept", "share"), [(0.2, 1.0), (0.5, 1.0), (0.9, 1.0), (0.2, 0.5), (0.5, 0.5), (0.05, 0.0625), (0.7, 0.25)]
)
def test_hits_of_the_page_cache_are_those_of_a_simulated_one(kept: float, share: float) -> None:
    rng, num_blocks, epochs = random.Random(1), 1500, round(12 / share)
    cache: OrderedDict[int, None] = OrderedDict()
    hits = reads = 0
    for epoch in range(epochs):
        blocks = [block for block in range(num_blocks) if rng.random() < share]
        rng.shuffle(blocks)
        for block in blocks:
            if epoch > epochs // 2:
                reads += 1
                hits += block in cache
            cache[block] = None
            cache.move_to_end(block)
            if len(cache) > kept * num_blocks:
                cache.popitem(last=False)
    assert scale.lru_hits(kept, share) == pytest.approx(hits / reads, abs=0.025)


def test_hits_have_bounds() -> None:
    for share in (1.0, 0.5, 0.01):
        found = [scale.lru_hits(kept / 20, share) for kept in range(22)]
        assert found == sorted(found) and found[0] == 0 and found[20] == found[21] == 1
    assert scale.lru_hits(0.3, 0.0) == 0


def test_each_limit_is_found() -> None:
    cluster = Cluster(4, 2, 100, 100_000, 10**13, 8000.0)  # 0.8 GB/s: 8,000 samples or 381 blocks a second
    cases = [
        (Storage(4e8, None, None), ["bandwidth", "bandwidth"], [0.5, 0.5]),
        (Storage(None, 2000, None), ["requests", None], [0.25, 1.0]),
        (Storage(None, None, 1e8), ["network", "network"], [0.5, 0.5]),
        (Storage(8e8, 2000, 2e8), ["requests", None], [0.25, 1.0]),
        (Storage(4e8, 1000, 2e8), ["requests", "bandwidth"], [0.125, 0.5]),
        (Storage(None, None, None), [None, None], [1.0, 1.0]),
    ]
    for storage, limits, fed in cases:
        found = scale.set_ups(cluster, storage)
        assert [each.limit for each in found] == limits
        assert [each.fed for each in found] == pytest.approx(fed)
    assert found[0].requests_per_s == pytest.approx(8000)
    assert found[1].requests_per_s == pytest.approx(8e8 / scale.BLOCK_NBYTES)


def test_ranks_that_share_lanes_read_more_until_there_are_more_lanes() -> None:
    found = plan(**STEP, gpus=512, nodes=64, dataset_size="100TB").cluster
    assert found is not None
    random_order, plain, better = found.set_ups
    assert (random_order.overlap, plain.overlap, better.overlap) == (1, 8, 1)
    assert better.name == "quasi-random, 512 lanes"
    words = " ".join(found.sentences())
    assert f"QuasiRandom(window_nbytes={512 * 2 * MIB}) there are 512 lanes" in words
    odd = plan(**STEP, gpus=40, nodes=5, dataset_size="100TB").cluster
    assert odd is not None and len(odd.set_ups) == 2
    assert "a power of two, or three times a power of two." in " ".join(odd.sentences())
    small = plan(**STEP, gpus=512, nodes=64, dataset_size="100MB").cluster
    assert small is not None and 'order="random"' in " ".join(small.sentences())


def test_caches_and_copies() -> None:
    options: dict[str, Any] = {**STEP, "gpus": 16, "nodes": 2, "dataset_size": "1TB", "storage_bandwidth": "0.5GB/s"}
    pinned = plan(**options, local_disk="250GB", node_memory="500GiB").cluster
    assert pinned is not None
    _, plain, page_cache, part = pinned.set_ups
    assert part.hits == 0.25 and part.nbytes_per_s == pytest.approx(0.75 * plain.nbytes_per_s)
    assert 0.2 < page_cache.hits < 0.536 and plain.hits == 0
    assert pinned.copy_seconds == pytest.approx(4000)  # 1 TB to each of two nodes
    copied = plan(**options, local_disk="2TB").cluster
    assert copied is not None and copied.set_ups[-1].name == "a copy on each node"
    assert copied.set_ups[-1].nbytes_per_s == 0 and copied.set_ups[-1].fed == 1
    assert "`lmdbloader stage`" in " ".join(copied.sentences())
    # Two experiments share the storage.
    shared = plan(**options, experiments=2).cluster
    assert shared is not None and shared.storage.nbytes_per_s == 0.25e9
    assert shared.set_ups[0].fed == pytest.approx(copied.set_ups[0].fed / 2)


def test_what_would_feed_all_gpus_does() -> None:
    options: dict[str, Any] = {**STEP, "gpus": 128, "nodes": 16, "dataset_size": "10TB", "storage_bandwidth": "2GB/s"}
    found = plan(**options, storage_iops=5000, network_bandwidth="0.5GB/s")
    text = " ".join(str(found).split())
    advice = re.search(
        r"None of these ways feeds all GPUs, the best of them 16%. Any one of these would: a storage that delivers "
        r"(\S+ GB/s) and ([\d,]+) requests a second and (\S+ MB/s) to each node; a disk in each node for "
        r"(\S+ TB) of the dataset \(local_disk\), from the second epoch on; or images that take (0.\d+) times",
        text,
    )
    assert advice is not None
    bandwidth, requests, network, disk, ratio = advice.groups()
    enough: list[dict[str, Any]] = [
        {"storage_bandwidth": "12.9GB/s", "storage_iops": "6200", "network_bandwidth": "0.81GB/s"},
        {"local_disk": "8.5TB"},
        {"example_size": 15_000},
    ]
    assert (bandwidth, requests, network) == ("12.8 GB/s", "6,104", "800 MB/s")
    assert (disk, ratio) == ("8.44 TB", "0.16")
    for change in enough:
        fed = plan(**{**options, "storage_iops": 5000, **change}).cluster
        assert fed is not None and fed.set_ups[-1].fed == 1


def test_a_node_of_several_needs_its_share_of_the_experiment() -> None:
    options: dict[str, Any] = {**STEP, "gpus": 64, "dataset_size": "10TB", "storage_bandwidth": "1GB/s"}
    one, several = (" ".join(str(plan(**options, nodes=nodes)).split()) for nodes in (1, 8))
    assert "in the machine can serve it as it is" in one and "less than one experiment needs" in one  # 6.4 GB/s
    assert "in each of the 8 nodes can serve its GPUs, 800 MB/s, from a copy" in several
    assert "in the machine" not in several and "(*)" not in several


def test_memory_grows_with_the_dataset_and_is_said() -> None:
    small, large = (plan(**STEP, gpus=8, nodes=1, dataset_size=size).cluster for size in ("100GB", "1000TB"))
    assert small is not None and large is not None
    assert small.memory.index_nbytes == 45 * 10**6 and large.memory.index_nbytes == 45 * 10**10
    assert small.memory.process_nbytes == large.memory.process_nbytes == 150 * MIB + 6 * 100 * 100_000
    assert large.memory.order_nbytes > 10 * GIB and "take 24.9 GiB in each rank" in " ".join(large.sentences())
    assert "arrays of the quasi-random order" not in " ".join(small.sentences())
    tight = plan(**STEP, gpus=8, nodes=1, dataset_size="1000TB", node_memory="64GiB").cluster
    assert tight is not None and "more than the 64 GiB of a node" in " ".join(tight.sentences())


def test_a_plan_without_nodes_is_as_it_was_and_one_with_them_says_that_it_predicts() -> None:
    assert plan(**STEP).cluster is None and plan(**STEP).as_json()["cluster"] is None
    found = plan(**STEP, gpus=4, nodes=2, dataset_size="1TB", storage_iops="50k", network_bandwidth="3 GB / s")
    text = str(found)
    assert "Storage for 2 nodes of 2 GPUs: 50,000 requests a second, 3 GB/s to a node (predicted)" in text
    assert "The figures of the nodes are predictions." in text and max(map(len, text.splitlines())) <= 88
    plain = json.loads(json.dumps(found.as_json(), allow_nan=False))["cluster"]
    assert plain["cluster"]["nodes"] == 2 and plain["storage"]["node_nbytes_per_s"] == 3e9
    assert [each["name"] for each in plain["set_ups"]] == ["random", "quasi-random"] and plain["assumptions"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nodes": 2}, "nodes without dataset_size: what caches save"),
        ({"storage_bandwidth": "1GB/s"}, "storage_bandwidth without dataset_size"),
        ({"nodes": 0}, "nodes=0: expected a whole number of at least 1"),
        ({"nodes": 2.5}, "nodes=2.5: expected a whole number"),
        ({"nodes": 3, "gpus": 8}, "gpus=8 on nodes=3: expected equally many on each node, a multiple of 3: gpus=9"),
        ({"nodes": 3, "gpus": 8}, "It counts the GPUs of all nodes: with 8 on each node write gpus=24"),
        ({"nodes": 2}, "gpus=1 on nodes=2: expected equally many on each node, a multiple of 2: gpus=2"),
        ({"storage_bandwidth": "fast"}, "storage_bandwidth='fast': expected bytes a second, such as 2GB/s"),
        ({"storage_bandwidth": "0"}, "storage_bandwidth='0': expected bytes a second"),
        ({"storage_bandwidth": -5}, "storage_bandwidth=-5: expected bytes a second"),
        ({"storage_bandwidth": float("nan")}, "storage_bandwidth=nan: expected bytes a second"),
        ({"storage_bandwidth": float("inf")}, "storage_bandwidth=inf: expected bytes a second"),
        ({"storage_bandwidth": True}, "storage_bandwidth=True: expected bytes a second"),
        (
            {"network_bandwidth": "25Gb/s"},
            "these are bits; expected bytes a second. Divide by 8: network_bandwidth='3.125",
        ),
        ({"network_bandwidth": "100 Gbps"}, "Divide by 8: network_bandwidth='12.5GB/s'"),
        ({"network_bandwidth": "..Gb"}, "these are bits"),
        ({"storage_iops": 0}, "storage_iops=0: expected requests a second"),
        ({"storage_iops": "many"}, "storage_iops='many': expected requests a second"),
        ({"storage_iops": 1.5}, "storage_iops=1.5: expected requests a second"),
        ({"node_memory": "much"}, "node_memory='much': expected a size"),
        ({"local_disk": "-1GB"}, "local_disk='-1GB': expected a size"),
    ],
)
def test_nonsense_is_refused(options: dict[str, Any], message: str) -> None:
    size = {} if "without" in message else {"dataset_size": "1TB"}
    with pytest.raises(OptionError, match=re.escape(message)):
        plan(**STEP, **size, **options)


def test_time_to_convert_is_that_of_the_workers_or_of_the_storage() -> None:
    assert scale.convert_seconds(1e6, 100, 10, 1e12, None) == 1000
    assert scale.convert_seconds(1e6, 100, 10, 1e12, 1e8) == 10_000
