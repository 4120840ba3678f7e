"""Orders that a user gives: lists, functions of the epoch, weights and repeats, for any number of ranks."""

from __future__ import annotations

import json
import math
import pickle
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, SubsetRandomSampler, WeightedRandomSampler

import lmdbloader
from lmdbloader import LMDBDataset, Loader, QuasiRandom
from lmdbloader.errors import OptionError
from lmdbloader.loader.options import orders_of
from lmdbloader.loader.orders import Layout, Orders, Share
from lmdbloader.transforms import RandomCrop, RandomDihedral

COUNT = 41
STEPS = [RandomCrop(8), RandomDihedral()]
WORLDS = (1, 3, 8)


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> LMDBDataset:
    path = tmp_path_factory.mktemp("choices") / "d.lmdb"
    rng = np.random.default_rng(0)
    pictures = (rng.integers(0, 256, (16, 16, 3)).astype(np.uint8) for _ in range(COUNT))
    lmdbloader.write(({"image": image, "number": i} for i, image in enumerate(pictures)), path)
    return LMDBDataset(path)


def make(ds: LMDBDataset, batch_size: int = 4, **options: Any) -> Loader:
    return Loader(ds, batch_size, **{"seed": 3, "transforms": STEPS, "num_threads": 1, **options})


def read(batches: Any) -> list[tuple[int, bytes]]:
    """Return the number and the pixels of each sample."""
    return [
        (int(number), image.numpy().tobytes())
        for batch in batches
        for number, image in zip(batch.number, batch.image, strict=True)
    ]


def numbers(batches: Any) -> list[int]:
    return [number for number, _ in read(batches)]


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> LMDBDataset:
    """More samples than a Loader computes the order of at once."""
    path = tmp_path_factory.mktemp("choices") / "many.lmdb"
    pixel = np.zeros((1, 1, 3), np.uint8)
    lmdbloader.write(({"image": pixel, "number": i} for i in range(5003)), path, codec="raw")
    return LMDBDataset(path)


@pytest.mark.parametrize("order", ["random", "quasi_random", "sequential"])
@pytest.mark.parametrize(("batch_size", "num_threads"), [(7, 1), (64, 2), (1500, 2)])
def test_batches_of_any_size_go_through_a_long_epoch_in_one_order(
    many: LMDBDataset, order: Any, batch_size: int, num_threads: int
) -> None:
    (whole,) = (batch.number.tolist() for batch in Loader(many, len(many), order=order, seed=3))
    loader = Loader(many, batch_size, order=order, seed=3, num_threads=num_threads)
    batches = [batch.number.tolist() for batch in loader]
    assert [number for batch in batches for number in batch] == whole
    assert [len(batch) for batch in batches[:-1]] == [batch_size] * (len(loader) - 1)


def orders(count: int = COUNT, **options: Any) -> Orders:
    given_ones: dict[str, Any] = {"order": None, "shuffle": None, "weights": None, "draws": None, "repeat": 1}
    return orders_of(count, **{**given_ones, **options})


def layout(count: int = COUNT) -> Layout:
    return Layout(count, lambda first, end: (np.arange(first, end) * 100, np.full(end - first, 100)))


def draws_of(chosen: Orders, epoch: int = 0, count: int = COUNT, seed: int = 3) -> np.ndarray[Any, Any]:
    order = chosen.of(epoch, layout(count), seed)
    assert order.length == chosen.length(epoch)
    return order.samples(np.arange(order.length))


# --- Lists ---


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-7, 6), max_size=40), st.integers(1, 3))
def test_draws_of_a_list_are_its_samples_with_their_occurrences(listed: list[int], repeat: int) -> None:
    found = draws_of(orders(7, order=listed, repeat=repeat), 5, 7).tolist()
    seen: Counter[int] = Counter()
    expected = []
    for sample in [number % 7 for number in listed * repeat]:
        expected.append(sample + 7 * seen[sample])
        seen[sample] += 1
    assert found == expected and len(set(found)) == len(found)


@pytest.mark.parametrize("kind", [list, tuple, np.array, torch.tensor, lambda numbers: np.array(numbers, np.uint8)])
def test_a_list_is_read_as_given_and_each_occurrence_has_its_own_crop(ds: LMDBDataset, kind: Any) -> None:
    loader = make(ds, order=kind([5, 0, 5, 40, 5, 5, 0]))
    assert len(loader) == 2
    first = read(loader)
    assert [number for number, _ in first] == [5, 0, 5, 40, 5, 5, 0]
    assert len(set(first)) == 7
    # The first occurrence has the choices that the sample has in any other order.
    usual = dict(read(make(ds, order="random")))
    assert all(usual[number] == pixels for number, pixels in [first[0], first[1], first[3]])
    assert {pixels for _, pixels in read(loader)}.isdisjoint(pixels for _, pixels in first)  # the next epoch


# --- Functions of the epoch ---


def test_a_function_is_called_once_for_an_epoch(ds: LMDBDataset) -> None:
    called: list[int] = []

    def choose(epoch: int) -> list[int]:
        called.append(epoch)
        return [epoch, epoch + 1, epoch] + [9] * epoch

    loader = make(ds, 2, order=choose)
    assert len(loader) == 2 and loader.sampler is not None
    for epoch, expected in enumerate([[0, 1, 0], [1, 2, 1, 9], [2, 3, 2, 9, 9]]):
        batches = []
        for batch in loader:
            assert len(loader) == -(-len(expected) // 2)  # of the epoch that is being read
            loader.state_dict()
            batches.append(batch)
        assert numbers(batches) == expected
        assert called == list(range(epoch + 1))
    loader.set_epoch(7)
    assert numbers(loader)[:3] == [7, 8, 7]


# --- Weights ---


def test_draws_by_weight_are_the_same_in_every_release() -> None:
    # A run that was interrupted continues with the draws of another day's release: they must never change.
    chosen = orders(5, weights=[0, 1, 2, 0, 3], draws=9)
    assert [(draws_of(chosen, epoch, 5, seed=0) % 5).tolist() for epoch in (0, 1)] == WEIGHTED
    assert draws_of(orders(4, order="random", repeat=3), 0, 4, seed=0).tolist() == REPEATED


WEIGHTED = [[2, 4, 2, 4, 4, 4, 2, 1, 4], [4, 4, 4, 2, 2, 4, 4, 1, 2]]
REPEATED = [10, 0, 2, 4, 5, 8, 1, 11, 6, 9, 3, 7]


def test_samples_are_drawn_in_proportion_to_their_weights() -> None:
    weights = np.array([0, 1, 2, 3.5, 0, 0.5, 0])
    found = draws_of(orders(7, weights=weights, draws=70_000), 2, 7) % 7
    counts = np.bincount(found, minlength=7)
    assert not counts[weights == 0].any()
    expected = (weights / weights.sum() * 70_000)[weights > 0]
    degrees = len(expected) - 1
    chi = ((counts[weights > 0] - expected) ** 2 / expected).sum()
    assert abs(chi - degrees) < 5 * math.sqrt(2 * degrees)
    # Neighbors, and the same position of two epochs, do not depend on each other.
    other = draws_of(orders(7, weights=weights, draws=70_000), 3, 7) % 7
    for first, second in ((found[:-1], found[1:]), (found, other)):
        pairs = np.bincount(first * 7 + second, minlength=49).reshape(7, 7)[weights > 0][:, weights > 0]
        likely = np.outer(expected, expected) * (len(first) / 70_000**2)
        assert abs(((pairs - likely) ** 2 / likely).sum() - 15) < 5 * math.sqrt(30)


def test_a_loader_draws_by_weight(ds: LMDBDataset) -> None:
    weights = [0.0] * COUNT
    weights[3] = weights[17] = 1.0
    loader = make(ds, weights=weights)
    first = read(loader)
    assert len(first) == COUNT and {number for number, _ in first} == {3, 17}
    assert len(set(first)) > 30  # crops of their own
    assert [number for number, _ in first] != numbers(loader)
    # As torch writes it.
    sampler = WeightedRandomSampler(weights, 10)
    named, torchs = make(ds, weights=weights, num_samples=10), make(ds, sampler=sampler)
    assert len(named) == 3 and read(named) == read(torchs) and "weighted" in repr(torchs)
    ranks = [numbers(make(ds, 2, weights=weights, num_samples=11, shard=(rank, 3))) for rank in range(3)]
    alone = numbers(make(ds, 2, weights=weights, num_samples=11))
    assert [alone[rank::3] for rank in range(3)] == ranks


@pytest.mark.parametrize(
    "weights",
    [
        [1.0] * 3, [1.0] * (COUNT - 1) + [-1.0], [math.nan] + [1.0] * (COUNT - 1), [1e308] * COUNT, [5e-324] * COUNT,
        ["1.0"] * COUNT, np.ones(COUNT, np.complex64), np.ones(COUNT, "M8[s]"),
    ],
    ids=str,
)  # fmt: skip
def test_other_weights_are_refused(ds: LMDBDataset, weights: Any) -> None:
    with pytest.raises(OptionError, match="weights"):
        make(ds, weights=weights)


# --- Repeats ---


@pytest.mark.parametrize("order", ["random", "sequential", "quasi_random", QuasiRandom(250, 1000)])
@pytest.mark.parametrize("world_size", WORLDS)
def test_repeats_come_with_choices_of_their_own(ds: LMDBDataset, order: Any, world_size: int) -> None:
    loaders = [make(ds, 5, order=order, repeat=3, shard=(rank, world_size)) for rank in range(world_size)]
    found = [sample for loader in loaders for sample in read(loader)]
    assert sum(loader._num_samples() for loader in loaders) == 3 * COUNT
    assert Counter(number for number, _ in found) == dict.fromkeys(range(COUNT), 3)
    assert len(set(found)) == 3 * COUNT
    # The first time they are those of a Loader without repeats.
    assert set(read(make(ds, order="sequential"))) <= set(found)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 60), st.integers(1, 4), st.sampled_from([QuasiRandom(100, 400), QuasiRandom(350, 10**9)]), st.data()
)
def test_windows_hold_repeated_samples_when_they_are_needed(
    count: int, repeat: int, order: QuasiRandom, data: st.DataObject
) -> None:
    offset = np.random.default_rng(count).permutation(count) * 100
    places = Layout(count, lambda first, end: (offset[first:end], np.full(end - first, 100)))
    found = orders(count, order=order, repeat=repeat).of(1, places, 3)
    samples = found.samples(np.arange(found.length)).tolist()
    assert sorted(samples) == list(range(count * repeat))
    world_size = data.draw(st.sampled_from(WORLDS))
    mine = Share(3, data.draw(st.integers(0, world_size - 1)), world_size).positions(found.length)
    windows = found.windows(mine)
    assert windows is not None
    here = [set(windows.samples(k, k + 1).tolist()) for k in range(len(windows.begins))]
    for position in mine.of_batches(0, len(mine)).tolist():
        holding = [k for k, window in enumerate(here) if windows.begins[k] <= position < windows.ends[k]]
        assert sum(samples[position] in here[k] for k in holding) == 1


# --- Places ---

CHOICES: list[dict[str, Any]] = [
    {"order": [number * number % COUNT for number in range(60)]},
    {"order": lambda epoch: [(number * 7 + epoch) % COUNT for number in range(50 + epoch)]},
    {"weights": np.arange(COUNT), "num_samples": 70},
    {"repeat": 2, "shuffle": True},
    {"repeat": 2, "order": "quasi_random"},
    {"repeat": 2, "order": [4, 4, 5] * 9},
]


@pytest.mark.parametrize("options", CHOICES, ids=lambda options: "-".join(options))
def test_a_run_continues_in_the_middle_with_other_ranks(ds: LMDBDataset, options: dict[str, Any]) -> None:
    def restored(state: dict[str, Any], size: int, rank: int, world_size: int) -> Loader:
        loader = make(ds, size, shard=(rank, world_size), **options)
        loader.load_state_dict(state)
        return loader

    whole = make(ds, **options)
    whole.set_epoch(2)
    expected, after = read(whole), read(whole)
    loaders = [make(ds, 3, shard=(rank, 3), **options) for rank in range(3)]
    taken, states = [], []
    for loader in loaders:
        loader.set_epoch(2)
        batches = iter(loader)
        taken += read(next(batches) for _ in range(2))
        states.append(loader.state_dict())
    assert states[0] == states[1] == states[2]
    state = json.loads(json.dumps(states[0]))
    assert len(json.dumps(state)) < 400
    for world_size in (1, 2, 4):
        rest = [restored(state, 2, rank, world_size) for rank in range(world_size)]
        assert sorted(taken + [sample for loader in rest for sample in read(loader)]) == sorted(expected)
        assert sorted(sample for loader in rest for sample in read(loader)) == sorted(after)
    if not callable(next(iter(options.values()))):
        copied = pickle.loads(pickle.dumps(restored(state, 4, 0, 1)))
        assert copied.state_dict() == state and len(copied) == len(whole)
        assert read(copied) == expected[18:]


@pytest.mark.parametrize("options", CHOICES[1:], ids=lambda options: "-".join(options))
def test_a_state_of_another_order_is_refused(ds: LMDBDataset, options: dict[str, Any]) -> None:
    state = make(ds, **options).state_dict()
    others: list[dict[str, Any]] = [
        {"order": [1, 2]},
        {"order": "random"},
        {"order": "sequential", "repeat": 2},
        {"weights": np.ones(COUNT), "num_samples": 82},
    ]
    for other in others:
        with pytest.raises(OptionError, match=r"the state is of another (order|number of samples)"):
            make(ds, **other).load_state_dict(state)
    make(ds, **options).load_state_dict(state)


# --- Options ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order": [0, COUNT]}, rf"order: sample {COUNT} of a dataset of {COUNT} samples"),
        ({"order": lambda epoch: [1, COUNT]}, rf"order\(0\): sample {COUNT}"),
        ({"order": lambda epoch: None}, r"order\(0\)"),
        ({"order": [1.5]}, "order: sample numbers of dtype float64"),
        ({"order": [[1], [2, 3]]}, "order"),
        ({"order": [True] * COUNT}, "a mask of bools"),
        ({"order": {1, 2}}, "order"),
        ({"order": QuasiRandom}, "order"),
        ({"order": [1], "shuffle": True}, "sets the order"),
        ({"order": [1], "weights": [1.0] * COUNT}, "sets the order"),
        ({"repeat": 2, "weights": [1.0] * COUNT}, "num_samples"),
        ({"num_samples": 5}, "num_samples=5"),
        ({"num_samples": 0, "weights": [1.0] * COUNT}, "num_samples=0"),
        ({"sampler": [1], "order": [2]}, "sampler="),
        ({"sampler": WeightedRandomSampler([1.0] * COUNT, 3), "num_samples": 2}, "sampler="),
        ({"sampler": np.ones(COUNT, bool)}, "a mask of bools"),
        ({"repeat": 0}, "repeat"),
        ({"repeat": 2**62}, "repeat"),
        ({"sampler": SubsetRandomSampler([1, 2])}, "sampler="),
    ],
)
def test_options_that_make_no_sense_are_refused(ds: LMDBDataset, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        list(make(ds, **options))


def test_negative_numbers_count_from_the_end_as_in_torchs_samplers(ds: LMDBDataset) -> None:
    expected = [number for batch in DataLoader(ds, sampler=[-1, 0, -COUNT]) for number in batch.number.tolist()]  # type: ignore[arg-type]
    assert expected == [COUNT - 1, 0, 0]
    for order in ([-1, 0, -COUNT], lambda epoch: [-1, 0, -COUNT], torch.tensor([-1, 0, -COUNT])):
        assert numbers(make(ds, order=order)) == expected
    with pytest.raises(OptionError, match="or negative ones, which count from the end"):
        make(ds, order=[-COUNT - 1])


def test_a_list_may_be_given_as_torchs_sampler_and_may_be_empty(ds: LMDBDataset) -> None:
    assert read(make(ds, sampler=[3, 3, 1])) == read(make(ds, order=[3, 3, 1]))
    assert read(make(ds, sampler=torch.tensor([3, 3, 1]))) == read(make(ds, order=[torch.tensor(3), 3, 1]))
    empty = make(ds, order=[])
    assert len(empty) == 0 and list(empty) == [] and empty.state_dict()["length"] == 0
    nothing = ds.select([])
    for options in ({"repeat": 4}, {"weights": []}, {"repeat": 2, "order": "quasi_random"}):
        assert list(make(nothing, transforms=(), **options)) == []
