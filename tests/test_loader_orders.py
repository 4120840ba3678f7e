"""Orders are permutations that depend only on seed and epoch; ranks divide them without a rest or a repetition."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmdbloader.loader.orders import EpochOrder, Layout, RankPositions, Share, random_order
from lmdbloader.loader.quasi_random import QuasiRandom, epoch_order

MIB = 2**20
ORDERS = ("random", "quasi_random", "sequential", QuasiRandom(1, 1), QuasiRandom(100, 1000), QuasiRandom(7, 10**9))


def places(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return offsets and lengths of samples that follow each other in a file, in random order."""
    rng = np.random.default_rng(seed)
    nbytes = rng.integers(1, 60, count)
    at = np.cumsum(nbytes) - nbytes
    chosen = rng.permutation(count)
    return at[chosen], nbytes[chosen]


def layout_of(offset: np.ndarray, nbytes: np.ndarray) -> Layout:
    return Layout(len(offset), lambda first, end: (offset[first:end], nbytes[first:end]))


def layout(count: int, seed: int = 0) -> Layout:
    return layout_of(*places(count, seed))


def alike(count: int, nbytes: int) -> Layout:
    """Return the layout of samples of one length in order."""
    return Layout(count, lambda first, end: (np.arange(first, end) * nbytes, np.full(end - first, nbytes)))


def all_of(order: EpochOrder) -> list[int]:
    found = order.samples(np.arange(order.length)).tolist()
    assert isinstance(found, list)
    return found


# --- Permutations ---


@settings(max_examples=60)
@given(st.integers(0, 300), st.sampled_from(ORDERS), st.integers(0, 2**64 - 1), st.integers(0, 5), st.data())
def test_every_order_has_every_sample_once(count: int, order: Any, seed: int, epoch: int, data: st.DataObject) -> None:
    found = epoch_order(order, layout(count), seed=seed, epoch=epoch)
    samples = all_of(found)
    assert sorted(samples) == list(range(count))
    # Any positions, in any order, give the same; after the end the order begins again.
    positions = data.draw(st.lists(st.integers(0, 3 * count), max_size=20)) if count else []
    again = epoch_order(order, layout(count), seed=seed, epoch=epoch)
    assert again.samples(np.array(positions, np.int64)).tolist() == [samples[p % count] for p in positions]


@pytest.mark.parametrize("order", ["random", "quasi_random", QuasiRandom(100, 1000)])
def test_seeds_and_epochs_differ(order: Any) -> None:
    found = [all_of(epoch_order(order, layout(200), seed=s, epoch=e)) for s in range(3) for e in range(3)]
    assert len(set(map(tuple, found))) == 9


def test_orders_are_the_same_in_every_release() -> None:
    # A run that was interrupted continues with the order of another day's release: it must never change.
    found = [
        all_of(epoch_order(order, alike(10, 5), seed=0, epoch=epoch))
        for order in ("random", QuasiRandom(10, 20), "sequential")
        for epoch in (0, 1)
    ]
    assert found == GOLDEN


GOLDEN = [
    [3, 0, 2, 4, 5, 8, 1, 7, 6, 9],
    [3, 9, 0, 2, 7, 6, 8, 5, 1, 4],
    [1, 3, 0, 4, 6, 5, 7, 8, 2, 9],
    [9, 1, 8, 4, 7, 5, 6, 3, 0, 2],
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9],
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9],
]


# --- Statistics: within five standard deviations, for fixed seeds ---


def deviation(counts: np.ndarray, expected: float, degrees: int, factor: float = 1.0) -> float:
    """Return by how many standard deviations chi-squared differs from its mean."""
    chi_square = factor * float(((counts - expected) ** 2 / expected).sum())
    return (chi_square - degrees) / math.sqrt(2 * degrees)


@pytest.mark.parametrize("count", [2, 3, 4, 5, 6])
def test_random_permutations_are_uniform(count: int) -> None:
    draws = 500 * math.factorial(count)
    positions = np.arange(count)
    found = Counter(tuple(random_order(count, 11, epoch).samples(positions).tolist()) for epoch in range(draws))
    assert len(found) == math.factorial(count)
    assert deviation(np.array([*found.values()]), 500, math.factorial(count) - 1) < 5


@pytest.mark.parametrize("count", [16, 32, 64, 1024])
def test_random_permutations_of_powers_of_two_are_odd_half_of_the_time(count: int) -> None:
    def is_odd(order: Any) -> bool:
        left, cycles = order.tolist(), 0
        for first in range(count):
            cycles += left[first] >= 0
            while left[first] >= 0:
                left[first], first = -1, left[first]
        return (count - cycles) % 2 == 1

    orders = [random_order(count, seed, epoch).samples(np.arange(count)) for seed in range(20) for epoch in range(20)]
    assert 150 < sum(map(is_odd, orders)) < 250
    for order in orders:
        assert (np.sort(order) == np.arange(count)).all()


@pytest.mark.parametrize("count", [9, 64])
def test_random_positions_and_neighbors_are_uniform(count: int) -> None:
    epochs, positions = 4000, np.arange(count)
    at, after = np.zeros((count, count)), np.zeros((count, count))
    for epoch in range(epochs):
        samples = random_order(count, 1, epoch).samples(positions)
        at[samples, positions] += 1
        after[samples[:-1], samples[1:]] += 1
    # Anderson (1959): of permutations, (n - 1) / n of the sum is chi-squared, with (n - 1)^2 degrees of freedom.
    assert abs(deviation(at, epochs / count, (count - 1) ** 2, (count - 1) / count)) < 5
    pairs = after[~np.eye(count, dtype=bool)]
    assert abs(deviation(pairs, epochs / count, count * (count - 1) - 1)) < 5


def test_samples_of_a_block_are_shuffled_uniformly() -> None:
    count, positions = 6, np.arange(6)
    source, epochs = alike(6, 10), 3000
    at = np.zeros((count, count))
    for epoch in range(epochs):
        at[epoch_order(QuasiRandom(60, 60), source, seed=2, epoch=epoch).samples(positions), positions] += 1
    assert abs(deviation(at, epochs / count, (count - 1) ** 2, (count - 1) / count)) < 5


# --- Lanes ---


def by_hand(order: QuasiRandom, offset: np.ndarray, nbytes: np.ndarray) -> tuple[list[list[int]], int]:
    """Return the blocks, the slow way: samples in the order of storage, a new block at every multiple of its size."""
    blocks: dict[int, list[int]] = {}
    at = 0
    for sample in np.argsort(offset, kind="stable").tolist():
        blocks.setdefault(at // order.block_nbytes, []).append(sample)
        at += int(nbytes[sample])
    return list(blocks.values()), order.num_lanes(len(blocks))


@settings(max_examples=60)
@given(st.integers(1, 300), st.integers(1, 500), st.integers(0, 3000), st.integers(0, 9))
def test_lanes_of_a_sequence_of_blocks_take_turns(count: int, block: int, more: int, epoch: int) -> None:
    offset, nbytes = places(count, seed=epoch)
    order = QuasiRandom(block, block + more)
    samples = all_of(epoch_order(order, layout_of(offset, nbytes), seed=4, epoch=epoch))
    blocks, num_lanes = by_hand(order, offset, nbytes)
    lanes = [samples[lane::num_lanes] for lane in range(num_lanes)]
    assert max(map(len, lanes)) - min(map(len, lanes)) <= 1
    # One lane after the other they are the blocks, each whole, in some order; what a lane has of each is shuffled.
    sequence = [sample for lane in lanes for sample in lane]
    left = {min(block): sorted(block) for block in blocks}
    home = {sample: min(block) for block in blocks for sample in block}
    at = 0
    while at < count:
        whole = left.pop(home[sequence[at]])
        assert sorted(sequence[at : at + len(whole)]) == whole
        at += len(whole)
    assert not left


@settings(max_examples=80)
@given(
    st.integers(0, 300), st.sampled_from(ORDERS), st.integers(1, 8), st.integers(1, 9), st.integers(0, 40), st.data()
)
def test_a_ranks_windows_hold_its_samples_when_they_are_needed(
    count: int, order: Any, world_size: int, batch_size: int, start: int, data: st.DataObject
) -> None:
    rank, start = data.draw(st.integers(0, world_size - 1)), min(start, count)
    found = epoch_order(order, layout(count), seed=3, epoch=1)
    mine = Share(batch_size, rank, world_size).positions(count, start)
    windows = found.windows(mine)
    if windows is None:
        assert order == "random"
        return
    assert (np.diff(windows.begins) >= 0).all() and (windows.ends > windows.begins).all() and windows.ahead >= 1
    here = [set(windows.samples(k, k + 1).tolist()) for k in range(len(windows.begins))]
    for position in mine.of_batches(0, len(mine)).tolist():
        sample = int(found.samples(np.array([position]))[0])
        holding = [k for k in range(len(here)) if sample in here[k] and windows.begins[k] <= position < windows.ends[k]]
        assert len(holding) == 1
    # Nothing that was read before a restored place is read again.
    rest = set(found.samples(np.arange(start, count)).tolist())
    assert {sample for window in here for sample in window} <= rest | set(found.samples(np.arange(start)).tolist())
    assert all(windows.ends[k] <= mine.first or here[k] <= rest for k in range(len(here)))


@pytest.mark.parametrize("world_size", [1, 3, 8, 64])
def test_ranks_read_long_pieces_and_each_block_once(world_size: int) -> None:
    nbytes, count = 27_000, 300_000  # 7.5 GiB
    order = epoch_order("quasi_random", alike(count, nbytes), seed=0, epoch=0)
    for rank in {0, world_size - 1}:
        windows = order.windows(Share(32, rank, world_size).positions(count))
        assert windows is not None
        lengths = np.array([len(windows.samples(k, k + 1)) for k in range(len(windows.begins))]) * nbytes
        assert all((np.diff(np.sort(windows.samples(k, k + 1))) == 1).all() for k in range(len(windows.begins)))
        assert lengths.mean() > MIB
        assert lengths.sum() <= 1.001 * count * nbytes / world_size
        # Those in use at any position, and those that are read ahead.
        in_use = 1 + np.arange(len(lengths)) - np.searchsorted(np.sort(windows.ends), windows.begins, "right")
        assert (in_use.max() + windows.ahead) * lengths.max() <= 512 * MIB


@pytest.mark.parametrize(
    ("count", "num_classes", "nbytes", "least"), [(1_281_167, 1000, 110_000, 150), (76_800, 256, 27_000, 105)]
)
def test_a_dataset_sorted_by_class_is_mixed(count: int, num_classes: int, nbytes: int, least: int) -> None:
    order = epoch_order("quasi_random", alike(count, nbytes), seed=1, epoch=0)
    labels = np.arange(count) * num_classes // count
    samples = order.samples(np.arange(count))
    distinct = [len(set(labels[samples[k : k + 256]])) for k in range(0, count - 255, 256 * 37)]
    assert np.mean(distinct) >= least


def test_the_order_of_storage_is_read_in_windows_too() -> None:
    found = epoch_order("sequential", alike(9, 2**24), seed=0, epoch=3)
    assert all_of(found) == list(range(9))
    windows = found.windows(RankPositions(1, 2, 4, 2))
    assert windows is not None
    assert windows.begins.tolist() == [0, 2, 4, 6, 8] and windows.ends.tolist() == [2, 4, 6, 8, 9]
    assert [windows.samples(k, k + 1).tolist() for k in range(5)] == [[1], [3], [5], [7], []]


@pytest.mark.parametrize("order", ["random", "quasi_random", "sequential"])
def test_a_layout_is_looked_up_in_pieces(order: Any) -> None:
    count, longest = 2_500_000, 0

    def extents(first: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        nonlocal longest
        longest = max(longest, end - first)
        return np.arange(first, end) * 100, np.full(end - first, 100)

    found = epoch_order(order, Layout(count, extents), seed=0, epoch=0)
    found.windows(Share(64).positions(count))
    assert longest <= 2**16
    blocks = Layout(count, extents).blocks(1000)
    assert blocks.tolist() == list(range(0, count + 1, 10))
    assert Layout(count, extents).digest != Layout(count - 1, extents).digest


# --- Ranks ---


def shares(length: int, share: Share, start: int = 0) -> list[list[list[int]]]:
    """Return the positions of every batch of every rank as the documents define them, the slow way."""
    positions = list(range(start, length))
    step = share.world_size * share.batch_size
    if share.drop_last:
        del positions[len(positions) // step * step :]
    if share.pad:
        positions += range(length, length + -len(positions) % share.world_size)
    ranks: list[list[list[int]]] = [[] for _ in range(share.world_size)]
    for first in range(0, len(positions), step):
        for number, rank in enumerate(ranks):
            batch = positions[first : first + step][number :: share.world_size]
            if batch:
                rank.append(batch)
    return ranks


SHARES = st.builds(
    lambda batch_size, world_size, last: Share(batch_size, 0, world_size, last == "drop", last == "pad"),
    st.integers(1, 12),
    st.integers(1, 8),
    st.sampled_from(["short", "drop", "pad"]),
)


def batches_of(share: Share, length: int, start: int = 0) -> list[list[list[int]]]:
    found = []
    for rank in range(share.world_size):
        mine = replace(share, rank=rank)
        positions = mine.positions(length, start)
        found.append([positions.of_batches(k, k + 1).tolist() for k in range(len(positions))])
        assert len(found[-1]) == mine.num_batches(length - start)
        assert positions.of_batches(0, len(positions)).tolist() == [p for batch in found[-1] for p in batch]
        assert [positions.last_of(k) for k in range(len(positions))] == [batch[-1] for batch in found[-1]]
    return found


@given(st.integers(0, 200), st.integers(0, 200), SHARES)
def test_ranks_share_the_order_out_from_any_position_on(length: int, start: int, share: Share) -> None:
    start = min(start, length)
    found = batches_of(share, length, start)
    assert found == shares(length, share, start)
    everything = sorted(p for rank in found for batch in rank for p in batch)
    step = share.world_size * share.batch_size
    rest = (length - start) % step if share.drop_last else 0
    assert everything[: length - start - rest] == list(range(start, length - rest))
    repeats = everything[length - start - rest :]
    assert len(repeats) < share.world_size
    assert not repeats or share.pad


@given(st.integers(0, 200), SHARES)
def test_padding_gives_every_rank_as_many_batches_of_the_same_sizes(length: int, share: Share) -> None:
    share = replace(share, drop_last=False, pad=True)
    found = batches_of(share, length)
    assert len({tuple(len(batch) for batch in rank) for rank in found}) == 1
    # As many as torch's DistributedSampler gives each.
    assert sum(len(batch) for batch in found[0]) == -(-length // share.world_size)
    order = epoch_order("random", layout(length), seed=length, epoch=0)
    given_out = order.samples(np.array([p for rank in found for batch in rank for p in batch], np.int64)).tolist()
    assert set(given_out) == set(range(length))
    repeated = Counter(given_out) - Counter(range(length))
    assert sum(repeated.values()) == len(given_out) - length < share.world_size


@given(st.integers(0, 200), SHARES, st.lists(st.tuples(SHARES, st.integers(0, 4)), max_size=4))
def test_the_rest_is_divided_again_after_any_number_of_steps(
    length: int, last: Share, runs: list[tuple[Share, int]]
) -> None:
    start = 0
    seen: list[int] = []
    for share, steps in runs:
        share = replace(share, drop_last=False)
        ranks = batches_of(share, length, start)
        steps = min(steps, len(ranks[0]))
        taken = [p for rank in ranks for batch in rank[:steps] for p in batch]
        seen += taken
        places = {replace(share, rank=r).position_after(steps, length, start) for r in range(share.world_size)}
        start = places.pop()
        assert not places
        assert start == length or steps < len(ranks[0])
    rest = batches_of(replace(last, drop_last=False), length, start)
    seen += [p for rank in rest for batch in rank for p in batch]
    assert sorted({p for p in seen if p < length}) == list(range(length))
    assert len([p for p in seen if p < length]) == length
