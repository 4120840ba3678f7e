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

from lmdbloader.errors import OptionError
from lmdbloader.loader.orders import (
    EpochOrder,
    QuasiRandom,
    Share,
    check_order,
    epoch_order,
    with_repeats,
)

ORDERS = ("random", "quasi_random", "sequential", QuasiRandom(1, 1), QuasiRandom(100, 1000), QuasiRandom(7, 10**9))


def layout(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return offsets and lengths of samples that follow each other in a file, in random order."""
    rng = np.random.default_rng(seed)
    nbytes = rng.integers(1, 60, count)
    at = np.cumsum(nbytes) - nbytes
    chosen = rng.permutation(count)
    return at[chosen], nbytes[chosen]


@settings(max_examples=60)
@given(st.integers(0, 300), st.sampled_from(ORDERS), st.integers(0, 2**64 - 1), st.integers(0, 5))
def test_every_order_has_every_sample_once(count: int, order: Any, seed: int, epoch: int) -> None:
    offset, nbytes = layout(count)
    found = epoch_order(order, seed=seed, epoch=epoch, offset=offset, nbytes=nbytes)
    assert sorted(found.samples.tolist()) == list(range(count))
    again = epoch_order(order, seed=seed, epoch=epoch, offset=offset, nbytes=nbytes)
    assert (again.samples == found.samples).all()
    if found.windows is not None:
        assert found.windows[0] == 0
        assert found.windows[-1] == count
        assert (np.diff(found.windows) > 0).all()


@pytest.mark.parametrize("order", ["random", "quasi_random", QuasiRandom(100, 1000)])
def test_seeds_and_epochs_differ(order: Any) -> None:
    offset, nbytes = layout(200)
    orders = [
        tuple(epoch_order(order, seed=seed, epoch=epoch, offset=offset, nbytes=nbytes).samples.tolist())
        for seed in range(3)
        for epoch in range(3)
    ]
    assert len(set(orders)) == 9


def test_orders_are_the_same_in_every_release() -> None:
    # A run that was interrupted continues with the order of another day's release: it must never change.
    offset = np.arange(10) * 5
    nbytes = np.full(10, 5)
    found = [
        epoch_order(order, seed=0, epoch=epoch, offset=offset, nbytes=nbytes).samples.tolist()
        for order in ("random", QuasiRandom(10, 20), "sequential")
        for epoch in (0, 1)
    ]
    assert found == GOLDEN


GOLDEN = [
    [7, 9, 3, 2, 1, 0, 8, 6, 5, 4],
    [8, 1, 6, 2, 4, 9, 7, 5, 3, 0],
    [4, 9, 5, 8, 1, 0, 7, 6, 2, 3],
    [7, 5, 6, 4, 3, 2, 9, 8, 1, 0],
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9],
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9],
]


@pytest.mark.parametrize("count", [2, 3, 4])
def test_random_permutations_are_uniform(count: int) -> None:
    offset, nbytes = layout(count)
    draws = 2000 * math.factorial(count) // 2
    found = Counter(
        tuple(epoch_order("random", seed=11, epoch=epoch, offset=offset, nbytes=nbytes).samples.tolist())
        for epoch in range(draws)
    )
    expected = draws / math.factorial(count)
    assert len(found) == math.factorial(count)
    chi_square = sum((n - expected) ** 2 / expected for n in found.values())
    degrees = math.factorial(count) - 1
    assert chi_square < degrees + 5 * math.sqrt(2 * degrees)


def test_random_positions_are_uniform_in_a_larger_order() -> None:
    offset, nbytes = layout(50)
    positions = np.zeros((50, 50))
    for epoch in range(4000):
        samples = epoch_order("random", seed=1, epoch=epoch, offset=offset, nbytes=nbytes).samples
        positions[samples, np.arange(50)] += 1
    chi_square = ((positions - 80) ** 2 / 80).sum()
    degrees = 49 * 49
    assert abs(chi_square - degrees) < 5 * math.sqrt(2 * degrees)


@settings(max_examples=60)
@given(st.integers(1, 300), st.integers(1, 500), st.integers(0, 3000), st.integers(0, 9))
def test_quasi_random_windows_are_whole_blocks_of_neighbours(count: int, block: int, more: int, epoch: int) -> None:
    offset, nbytes = layout(count, seed=epoch)
    order = QuasiRandom(block, block + more)
    found = epoch_order(order, seed=4, epoch=epoch, offset=offset, nbytes=nbytes)
    assert found.windows is not None
    # The blocks, the slow way: samples in the order of storage, a new block at every multiple of its size.
    stored = np.argsort(offset)
    blocks: dict[int, list[int]] = {}
    at = 0
    for sample in stored.tolist():
        blocks.setdefault(at // block, []).append(sample)
        at += int(nbytes[sample])
    block_of = {sample: number for number, samples in blocks.items() for sample in samples}
    sizes = {number: sum(int(nbytes[s]) for s in samples) for number, samples in blocks.items()}
    for low, high in zip(found.windows[:-1].tolist(), found.windows[1:].tolist(), strict=True):
        window = found.samples[low:high].tolist()
        numbers = {block_of[sample] for sample in window}
        assert sorted(window) == sorted(s for number in numbers for s in blocks[number])
        window_nbytes = sum(sizes[number] for number in numbers)
        assert len(numbers) == 1 or window_nbytes < order.window_nbytes + max(sizes.values())
        assert high == count or window_nbytes > order.window_nbytes - max(sizes.values())


@given(st.lists(st.integers(0, 30), max_size=200))
def test_samples_in_the_same_place_keep_their_order(places: list[int]) -> None:
    # As where a view has a sample twice. Sorting could leave their order to NumPy's version and the processor.
    offset, nbytes = np.array(places, np.int64), np.full(len(places), 7)
    apart = offset * 1000 + np.arange(len(places))
    found, expected = (
        epoch_order(QuasiRandom(20, 60), seed=5, epoch=2, offset=o, nbytes=nbytes).samples for o in (offset, apart)
    )
    assert found.tolist() == expected.tolist()


def test_the_order_of_storage_is_read_in_windows_too() -> None:
    offset, nbytes = np.arange(9) * 2**24, np.full(9, 2**24)
    found = epoch_order("sequential", seed=0, epoch=3, offset=offset, nbytes=nbytes)
    assert found.samples.tolist() == list(range(9))
    assert found.windows is not None
    assert found.windows.tolist() == [0, 2, 4, 6, 8, 9]


def shares(length: int, share: Share, start: int = 0) -> list[list[list[int]]]:
    """Return the positions of every batch of every rank as the documents define them, the slow way."""
    positions, ranks = list(range(start, length)), [[] for _ in range(share.world_size)]  # type: ignore[var-annotated]
    step = share.world_size * share.batch_size
    while len(positions) >= step:
        for rank in ranks:
            rank.append(positions[: share.batch_size])
            del positions[: share.batch_size]
    left = len(positions)
    if share.pad:
        positions += range(length, length + -left % share.world_size)
        left = len(positions)
    if not share.drop_last:
        for number, rank in enumerate(ranks):
            count = len(range(number, left, share.world_size))
            if count:
                rank.append(positions[:count])
                del positions[:count]
    return ranks


SHARES = st.builds(
    lambda batch_size, world_size, last: Share(batch_size, 0, world_size, last == "drop", last == "pad"),
    st.integers(1, 12),
    st.integers(1, 7),
    st.sampled_from(["short", "drop", "pad"]),
)


def bounds_of(share: Share, length: int, start: int = 0) -> list[list[list[int]]]:
    found = []
    for rank in range(share.world_size):
        mine = replace(share, rank=rank)
        starts, stops = mine.bounds(length, start)
        found.append([list(range(a, b)) for a, b in zip(starts.tolist(), stops.tolist(), strict=True)])
        assert len(found[-1]) == mine.num_batches(length - start)
    return found


@given(st.integers(0, 200), st.integers(0, 200), SHARES)
def test_ranks_share_the_order_out_from_any_position_on(length: int, start: int, share: Share) -> None:
    start = min(start, length)
    found = bounds_of(share, length, start)
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
    found = bounds_of(share, length)
    assert len({tuple(len(batch) for batch in rank) for rank in found}) == 1
    # As many as torch's DistributedSampler gives each.
    assert sum(len(batch) for batch in found[0]) == -(-length // share.world_size)
    samples = np.random.default_rng(length).permutation(length)
    last = max((p + 1 for rank in found for batch in rank for p in batch), default=0)
    order = with_repeats(EpochOrder(samples, np.unique([0, length // 2, length])), last)
    assert order.windows is not None
    assert order.windows[-1] == len(order.samples) == max(last, length)
    given_out = [int(order.samples[p]) for rank in found for batch in rank for p in batch]
    assert set(given_out) == set(range(length))
    assert order.samples[length:].tolist() == [int(samples[k % length]) for k in range(len(order.samples) - length)]


@given(st.integers(0, 200), SHARES, st.lists(st.tuples(SHARES, st.integers(0, 4)), max_size=4))
def test_the_rest_is_divided_again_after_any_number_of_steps(
    length: int, last: Share, runs: list[tuple[Share, int]]
) -> None:
    start = 0
    seen: list[int] = []
    for share, steps in runs:
        share = replace(share, drop_last=False)
        ranks = bounds_of(share, length, start)
        steps = min(steps, len(ranks[0]))
        taken = [p for rank in ranks for batch in rank[:steps] for p in batch]
        seen += taken
        places = {replace(share, rank=r).position_after(steps, length, start) for r in range(share.world_size)}
        start = places.pop()
        assert not places
        assert start == length or steps < len(ranks[0])
    rest = bounds_of(replace(last, drop_last=False), length, start)
    seen += [p for rank in rest for batch in rank for p in batch]
    assert sorted({p for p in seen if p < length}) == list(range(length))
    assert len([p for p in seen if p < length]) == length


def test_a_step_is_the_same_place_for_all_ranks_and_the_last_one_is_the_end() -> None:
    for share in (Share(4, 0, 3), Share(4, 0, 3, drop_last=True), Share(4, 0, 3, pad=True)):
        ranks = [replace(share, rank=rank) for rank in range(3)]
        most = share.num_batches(31)
        places = [{rank.position_after(steps, 31) for rank in ranks} for steps in range(most + 1)]
        assert places == [*({12 * steps} for steps in range(most)), {31}]
    assert Share(4, 1, 2).num_batches(9) == 1
    assert Share(4, 1, 2).position_after(1, 9) == Share(4, 0, 2).position_after(1, 9) == 8
    assert Share(4, drop_last=True).position_after(0, 3) == 0


@pytest.mark.parametrize("order", ["Random", "", None, 3])
def test_unknown_orders_are_refused(order: Any) -> None:
    with pytest.raises(OptionError, match="expected 'random', 'quasi_random', 'sequential'"):
        check_order(order)


@pytest.mark.parametrize("sizes", [(0, 5), (10, 5), (-1, -1), (1, 2**63), (1.0, 5), (math.nan, math.nan), ("1", "5")])
def test_invalid_sizes_are_refused(sizes: tuple[Any, Any]) -> None:
    with pytest.raises(OptionError, match="QuasiRandom"):
        QuasiRandom(*sizes)
