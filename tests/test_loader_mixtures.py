"""The order of a mixture: exact shares, every sample equally often, the same steps for any number of ranks."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmdbloader.loader.mixtures import Mixture, whole_shares
from lmdbloader.loader.orders import Layout, Share
from lmdbloader.loader.quasi_random import QuasiRandom

KINDS = ("random", "sequential", "quasi_random", QuasiRandom(200, 800))
SHARES = st.lists(st.integers(0, 9), min_size=1, max_size=5).filter(any)


def layout(count: int) -> Layout:
    return Layout(count, lambda first, end: (np.arange(first, end) * 100, np.full(end - first, 100)))


def mixture(shares: Any, length: int, lengths: Any = None) -> Mixture:
    return Mixture(tuple(lengths or [5] * len(shares)), tuple(shares), length)


def dealt(mixed: Mixture) -> tuple[Any, Any]:
    return mixed.deal(np.arange(mixed.length))


# --- Shares ---


@settings(max_examples=60, deadline=None)
@given(SHARES, st.integers(1, 400), st.integers(0, 3))
def test_positions_are_dealt_in_turn(shares: list[int], length: int, epoch: int) -> None:
    mixed = mixture(shares, length)
    chosen, numbers = mixed.deal(np.arange(length), 7, epoch)
    for dataset in range(len(shares)):
        mine = np.flatnonzero(chosen == dataset)
        assert numbers[mine].tolist() == list(range(len(mine)))
        assert len(mine) == mixed.num_draws(dataset)
        assert abs(len(mine) - Fraction(length * shares[dataset], sum(shares))) <= len(shares)
        if len(mine):
            assert mixed.positions_of(dataset, np.arange(len(mine)), 7, epoch).tolist() == mine.tolist()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 2**47), min_size=2, max_size=4), st.integers(2**20, 2**44))
def test_large_shares_of_long_epochs_are_dealt_exactly(shares: list[int], length: int) -> None:
    mixed = mixture(shares, length)
    positions = np.arange(length - 50, length)
    chosen, numbers = mixed.deal(positions, 1, 2)
    for dataset in range(len(shares)):
        mine = numbers[chosen == dataset]
        last = mixed.num_draws(dataset)
        assert mine.tolist() == list(range(last - len(mine), last))  # at the end all of them were drawn
        assert abs(last - Fraction(length * shares[dataset], sum(shares))) <= len(shares)
        if len(mine):
            assert mixed.positions_of(dataset, mine, 1, 2).tolist() == positions[chosen == dataset].tolist()


def test_any_1000_draws_have_the_shares_that_were_asked_for() -> None:
    for weights in ([0.7, 0.3], [0.123, 0.5, 0.377], [1, 1], [999, 1], [0.25] * 4, [0.5, 0, 0.5]):
        shares = whole_shares(weights, [9] * len(weights))
        chosen, _ = dealt(mixture(shares, 5000))
        expected = [round(1000 * weight / sum(weights)) for weight in weights]
        sums = [np.cumsum(np.append(0, chosen == dataset)) for dataset in range(len(weights))]
        for counts, share in zip(sums, expected, strict=True):
            assert set((counts[1000:] - counts[:-1000]).tolist()) == {share}
    # A third of 1,000 is no whole number.
    chosen, _ = dealt(mixture(whole_shares([1, 2], [9, 9]), 5000))
    sums_of_first = np.cumsum(np.append(0, chosen == 0))
    assert np.abs((sums_of_first[1000:] - sums_of_first[:-1000]) - 1000 / 3).max() < 10


@pytest.mark.parametrize("shares", [(1, 1), (3, 1), (1001, 1000), (1, 63), (1, 2, 1)])
@pytest.mark.parametrize("world_size", [2, 3, 4, 8, 64])
def test_every_rank_gets_its_share_of_each_dataset(shares: tuple[int, ...], world_size: int) -> None:
    # Datasets that took turns in a fixed pattern would give one rank all of one dataset.
    chosen, _ = mixture(shares, 64_000).deal(np.arange(64_000), 5, 1)
    for rank in range(world_size):
        mine = chosen[rank::world_size]
        for dataset, share in enumerate(shares):
            expected = len(mine) * share / sum(shares)
            # A pattern of 1,000 positions comes again and again.
            assert abs((mine == dataset).sum() - expected) <= 0.5 * expected + 6 * math.sqrt(expected)
            first = (mine[:256] == dataset).mean() if share * 4 >= sum(shares) else share / sum(shares)
            assert abs(first - share / sum(shares)) < 0.25


# --- Orders ---


def draws_of(mixed: Mixture, kind: Any, epoch: int = 0, seed: int = 3) -> list[int]:
    order = mixed.order(kind, layout(mixed.num_samples), seed=seed, epoch=epoch)
    assert order.length == mixed.length
    found: list[int] = order.samples(np.arange(mixed.length)).tolist()
    # Positions in any order give the same, and after the end the order begins again.
    again = np.array([mixed.length + 3, mixed.length // 2, 1], np.int64)
    assert order.samples(again).tolist() == [found[p % mixed.length] for p in again.tolist()]
    return found


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(0, 5)), min_size=1, max_size=4).filter(
        lambda pairs: any(share for _, share in pairs)
    ),
    st.integers(1, 200),
    st.sampled_from(KINDS),
    st.integers(0, 3),
)
def test_each_dataset_comes_whole_before_it_comes_again(
    pairs: list[tuple[int, int]], length: int, kind: Any, epoch: int
) -> None:
    lengths, shares = zip(*pairs, strict=True)
    mixed = Mixture(lengths, shares, length)
    found = draws_of(mixed, kind, epoch)
    assert len(set(found)) == length
    at = np.cumsum([0, *lengths])
    chosen = np.searchsorted(at, np.array(found) % mixed.num_samples, "right") - 1
    for dataset, n in enumerate(lengths):
        mine = np.array(found, np.int64)[chosen == dataset]
        times, samples = np.divmod(mine, mixed.num_samples)
        own = samples - sum(lengths[:dataset])
        assert len(mine) == mixed.num_draws(dataset)
        assert ((own >= 0) & (own < n)).all()
        for first in range(0, len(own), n):
            one = own[first : first + n].tolist()
            assert len(set(one)) == len(one) and (times[first : first + n] == first // n).all()
            if kind == "sequential":
                assert one == list(range(len(one)))


@pytest.mark.parametrize("kind", ["random", QuasiRandom(10**6, 10**7)])
def test_permutations_of_a_small_dataset_are_uniform(kind: Any) -> None:
    mixed, n, epochs = Mixture((6, 3), (2, 1), 36), 6, 800
    at = np.zeros((n, n))
    for epoch in range(epochs):
        found = mixed.order(kind, layout(9), seed=1, epoch=epoch).samples(np.arange(36))
        for time in range(4):
            own = [sample - 9 * time for sample in found.tolist() if 9 * time <= sample < 9 * time + 6]
            at[own, np.arange(n)] += 1
    expected = 4 * epochs / n
    chi = (n - 1) / n * float(((at - expected) ** 2 / expected).sum())
    assert abs(chi - (n - 1) ** 2) < 5 * math.sqrt(2 * (n - 1) ** 2)


@settings(max_examples=60, deadline=None)
@given(
    st.tuples(st.integers(1, 60), st.integers(1, 9)),
    st.tuples(st.integers(1, 3), st.integers(0, 3)),
    st.integers(1, 150),
    st.sampled_from([QuasiRandom(200, 400), QuasiRandom(150, 2000)]),
    st.integers(0, 100),
    st.data(),
)
def test_windows_hold_the_samples_when_they_are_needed(
    lengths: tuple[int, int], shares: tuple[int, int], length: int, kind: QuasiRandom, start: int, data: st.DataObject
) -> None:
    mixed = Mixture(lengths, shares, length)
    order = mixed.order(kind, layout(sum(lengths)), seed=5, epoch=1)
    world_size, start = data.draw(st.sampled_from([1, 2, 3, 8])), min(start, length - 1)
    mine = Share(4, data.draw(st.integers(0, world_size - 1)), world_size).positions(length, start)
    windows = order.windows(mine)
    assert windows is not None
    assert (np.diff(windows.begins) >= 0).all() and (windows.ends > windows.begins).all()
    here = [{s % sum(lengths) for s in windows.samples(k, k + 1).tolist()} for k in range(len(windows.begins))]
    positions = mine.of_batches(0, len(mine))
    for position, draw in zip(positions.tolist(), order.samples(positions).tolist(), strict=True):
        assert any(
            draw % sum(lengths) in here[k] and windows.begins[k] <= position < windows.ends[k] for k in range(len(here))
        )


def test_mixtures_are_the_same_in_every_release() -> None:
    # A run that was interrupted continues with the order of another day's release: it must never change.
    mixed = Mixture((5, 3), (1, 1), 12)
    assert [draws_of(mixed, kind, 1) for kind in ("random", "sequential", QuasiRandom(100, 400))] == GOLDEN


GOLDEN = [
    [2, 7, 1, 6, 5, 4, 15, 3, 13, 0, 14, 8],
    [5, 0, 6, 1, 2, 7, 3, 13, 14, 4, 8, 15],
    [3, 5, 4, 7, 6, 0, 13, 1, 14, 2, 15, 12],
]
