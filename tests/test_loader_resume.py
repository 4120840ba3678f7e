"""Continuing in the middle of an epoch: the same samples with the same augmentations, with other options too."""

from __future__ import annotations

import copy
import io
import json
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import lmdbloader
from lmdbloader import LMDBDataset, Loader, ProgressiveResize, QuasiRandom
from lmdbloader.errors import OptionError, WorkerError
from lmdbloader.superres import degradations
from lmdbloader.transforms import MixUp, RandomCrop, RandomDihedral

COUNT = 83
ORDERS = ("random", "quasi_random", "sequential", QuasiRandom(2000, 9000))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("resume") / "d.lmdb"
    rng = np.random.default_rng(0)
    pictures = (rng.integers(0, 256, (16, 16, 3)).astype(np.uint8) for _ in range(COUNT))
    lmdbloader.write(({"image": image, "number": i} for i, image in enumerate(pictures)), path)
    return path


@pytest.fixture(scope="module")
def ds(path: Path) -> LMDBDataset:
    return LMDBDataset(path)


def make(ds: LMDBDataset, batch_size: int = 4, **options: Any) -> Loader:
    return Loader(
        ds, batch_size, **{"order": "random", "seed": 3, "transforms": [RandomCrop(8), RandomDihedral()], **options}
    )


def through_files(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state after torch.save and JSON."""
    memory = io.BytesIO()
    torch.save({"loader": state}, memory)
    memory.seek(0)
    loaded = torch.load(memory, weights_only=True)["loader"]
    assert loaded == state == json.loads(json.dumps(state))
    return json.loads(json.dumps(loaded))  # type: ignore[no-any-return]


def numbers(batches: Any) -> list[list[int]]:
    return [batch.number.tolist() for batch in batches]


def assert_same(found: list[Any], expected: list[Any]) -> None:
    assert numbers(found) == numbers(expected)
    assert all(torch.equal(a.image, b.image) for a, b in zip(found, expected, strict=True))


def images(batches: Any) -> dict[int, torch.Tensor]:
    return {n: image for batch in batches for n, image in zip(batch.number.tolist(), batch.image, strict=True)}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("options", [{}, {"drop_last": True}, {"pad": True}, {"io": "pread", "prefetch": 0}])
def test_the_same_settings_give_the_very_same_batches(ds: LMDBDataset, order: Any, options: dict[str, Any]) -> None:
    whole = make(ds, order=order, **options)
    epochs = [list(whole), list(whole)]
    for taken in (0, 5, len(whole)):
        loader = make(ds, order=order, **options)
        for number, batch in enumerate(loader if taken else ()):
            assert torch.equal(batch.image, epochs[0][number].image)
            if number + 1 == taken:
                break
        other = make(ds, order=order, **options)
        other.load_state_dict(through_files(loader.state_dict()))
        assert other.state_dict() == loader.state_dict()
        assert len(other) == len(whole)
        assert_same(list(other), epochs[0][taken:])
        assert_same(list(other), epochs[1])


SETTINGS = st.tuples(st.integers(1, 12), st.integers(1, 4), st.integers(1, 2), st.sampled_from(["short", "pad"]))


@settings(max_examples=25)
@given(st.lists(st.tuples(SETTINGS, st.integers(0, 5)), min_size=1, max_size=4), SETTINGS, st.sampled_from(ORDERS))
def test_batch_size_threads_and_ranks_may_change_at_every_interruption(
    path: Path, runs: list[Any], last: Any, order: Any
) -> None:
    ds = LMDBDataset(path)

    def ranks(how: Any, state: dict[str, Any] | None) -> list[Loader]:
        batch_size, world_size, num_threads, end = how
        found = [
            make(ds, batch_size, order=order, shard=(rank, world_size), num_threads=num_threads, pad=end == "pad")
            for rank in range(world_size)
        ]
        for loader in found:
            if state is not None:
                loader.load_state_dict(state)
        return found

    expected = images(make(ds, 64, order=order))
    state = None
    seen: dict[int, torch.Tensor] = {}
    again = 0
    for how, steps in runs:
        loaders = ranks(how, state)
        iterators = [iter(loader) for loader in loaders]
        left = COUNT if state is None else COUNT - state["position"]
        for _ in range(min(steps, -(-left // (how[0] * how[1])))):
            batches = [next(iterator, None) for iterator in iterators]
            given_out = images(batch for batch in batches if batch is not None)
            again += len(given_out.keys() & seen.keys())
            seen |= given_out
        states = [loader.state_dict() for loader in loaders]
        state = states[0]
        assert state["epoch"] == 0
        if state["position"] < COUNT:  # in the last step some ranks may be through
            assert all(one == state for one in states)
    rest = [list(loader) for loader in ranks(last, state)]
    last_images = images(batch for rank in rest for batch in rank)
    again += len(last_images.keys() & seen.keys())
    seen |= last_images
    assert seen.keys() == expected.keys()
    assert all(torch.equal(image, expected[n]) for n, image in seen.items())
    assert again < 4 * (len(runs) + 1)
    assert again == 0 or "pad" in [how[3] for how, _ in runs] + [last[3]]


def test_batches_that_were_read_ahead_do_not_count(ds: LMDBDataset) -> None:
    loader = make(ds, 1, prefetch=8, num_threads=2)  # 64 batches are read at once
    batches = iter(loader)
    positions = [(next(batches), loader.state_dict()["position"])[1] for _ in range(5)]
    assert positions == [1, 2, 3, 4, 5]


def test_after_the_last_batch_nothing_is_left_and_after_the_end_the_next_epoch_begins(ds: LMDBDataset) -> None:
    loader, other = make(ds), make(ds)
    expected = [list(make(ds)), [b for loader in [make(ds)] for _ in (list(loader),) for b in loader]]
    batches = iter(loader)
    for _ in range(len(loader)):
        next(batches)
    state = loader.state_dict()
    assert (state["epoch"], state["position"]) == (0, COUNT)
    other.load_state_dict(state)
    assert list(other) == []
    assert_same(list(other), expected[1])
    assert next(batches, None) is None
    state = loader.state_dict()
    assert (state["epoch"], state["position"]) == (1, 0)
    other.load_state_dict(state)
    assert_same(list(other), expected[1])


def test_set_epoch_keeps_the_place_in_the_restored_epoch_only(ds: LMDBDataset) -> None:
    loader = make(ds)
    list(loader)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    assert (state["epoch"], state["position"]) == (1, 4)
    rest = numbers(batches)
    other = make(ds)
    other.load_state_dict(state)
    other.set_epoch(1)
    assert other.state_dict() == state
    assert numbers(other) == rest
    other.load_state_dict(state)
    other.set_epoch(5)
    assert (other.state_dict()["epoch"], other.state_dict()["position"]) == (5, 0)
    other.set_epoch(1)
    assert len(numbers(other)) == len(loader)


def test_a_lower_number_is_a_count_that_began_again(ds: LMDBDataset) -> None:
    whole = make(ds)
    epochs = [numbers(whole) for _ in range(5)]
    for epoch, taken, how in ((2, 3, [0]), (2, 0, [1]), (3, 21, [0, 0]), (2, 3, [1, 2]), (1, 3, [])):
        first = make(ds)
        first.set_epoch(epoch)
        batches = iter(first)
        for _ in range(taken):
            next(batches)
        loader = make(ds)
        loader.load_state_dict(through_files(first.state_dict()))
        named = epoch
        for number in how:
            named = number
            loader.set_epoch(number)
            iter(loader)  # one that is not read
        assert numbers(loader) == epochs[epoch][taken:]
        loader.set_epoch(named + 1)
        assert numbers(loader) == epochs[epoch + 1]


def test_iterations_that_a_framework_does_not_number_go_on_where_they_were(ds: LMDBDataset) -> None:
    def cycle(loader: Loader, number: int) -> list[Any]:
        loader.set_epoch(number)
        return [*numbers(loader), *numbers(loader), *numbers(loader)]

    whole = make(ds)
    expected = [cycle(whole, number) for number in range(3)]
    first = make(ds)
    first.set_epoch(1)
    list(first)
    batches = iter(first)  # epoch 2, which the framework still calls 1
    next(batches)
    loader = make(ds)
    loader.load_state_dict(through_files(first.state_dict()))
    loader.set_epoch(1)
    assert [*numbers(loader), *numbers(loader)] == expected[1][len(loader) + 1 :]
    assert cycle(loader, 2) == expected[2]


def test_the_state_is_that_of_the_iterator_that_began_last(ds: LMDBDataset) -> None:
    loader = make(ds)
    first, second = iter(loader), iter(loader)
    for _ in range(3):
        next(first)
    assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (0, 12)
    next(second)
    next(first)
    state = loader.state_dict()
    assert (state["epoch"], state["position"]) == (1, 4)
    # Restoring leaves both alone, and neither changes the restored place.
    loader.load_state_dict({**state, "position": 40})
    assert len(numbers(first)) == len(loader) - 4
    assert len(numbers(second)) == len(loader) - 1
    assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (1, 40)
    assert len(numbers(loader)) == 11


def test_an_error_leaves_the_place_before_it(ds: LMDBDataset) -> None:
    fails = [True]

    def function(batch: Any) -> Any:
        if fails[0] and 17 in batch.number.tolist():
            raise ZeroDivisionError
        return batch

    expected = numbers(make(ds, transforms=[]))
    loader = make(ds, transforms=[function])
    seen = []
    batches = iter(loader)
    with pytest.raises(ZeroDivisionError):
        for batch in batches:
            seen.append(batch.number.tolist())
    with pytest.raises(WorkerError, match="ZeroDivisionError"):
        next(batches)
    state = loader.state_dict()
    assert (state["epoch"], state["position"]) == (0, 4 * len(seen))
    fails[0] = False
    loader.load_state_dict(state)
    assert seen + numbers(loader) == expected


def test_pickles_and_copies_go_on_at_the_same_place(ds: LMDBDataset) -> None:
    loader = make(ds, num_threads=1, pad=True, on_corrupt="skip")
    batches = iter(loader)
    next(batches), next(batches)
    others = [pickle.loads(pickle.dumps(loader)), copy.deepcopy(loader), copy.copy(loader)]
    restored = make(ds, num_threads=1)
    restored.load_state_dict(loader.state_dict())
    others.append(pickle.loads(pickle.dumps(restored)))
    rest = list(batches)
    for other in others:
        assert_same(list(other), rest)


def test_sizes_of_the_restored_epoch_are_those_of_the_schedule(ds: LMDBDataset) -> None:
    schedule = ProgressiveResize(4, initial_scale=0.5, delay_fraction=0.25, finetune_fraction=0.5, size_increment=1)
    transforms = [RandomCrop(12)]
    whole = make(ds, transforms=transforms, resolution=schedule)
    sizes = [next(iter(whole)).image.shape[-1] for _ in range(4)]
    assert len(set(sizes)) > 1
    for epoch in range(4):
        loader = make(ds, transforms=transforms, resolution=schedule)
        loader.set_epoch(epoch)
        for _ in loader:
            break
        other = make(ds, transforms=transforms, resolution=schedule)
        other.load_state_dict(loader.state_dict())
        assert {batch.image.shape[-1] for batch in other} == {sizes[epoch]}
        other.load_state_dict(loader.state_dict())
        other.set_resolution(5)
        assert {batch.image.shape[-1] for batch in other} == {5}


def flipped(batch: Any) -> Any:
    return batch


def test_other_transforms_are_a_warning_with_both(ds: LMDBDataset) -> None:
    degraded = degradations.real_esrgan(scale=4, jpeg_range=[50, 95])
    state = make(ds, transforms=[RandomCrop(8), degraded, flipped]).state_dict()
    saved = "RandomCrop(size=8, padding=0, fill=0), real_esrgan(scale=4, jpeg_range=(50, 95)), the function flipped"
    assert state["transforms"] == saved
    make(ds, transforms=[RandomCrop(8), degraded, flipped]).load_state_dict(through_files(state))
    loader = make(ds, transforms=[RandomCrop(8), degradations.real_esrgan(scale=4), flipped])
    with pytest.warns(
        UserWarning, match=rf"transforms \[{re.escape(saved)}\]; those .* real_esrgan\(scale=4\), the function flip"
    ):
        loader.load_state_dict(state)
    state.pop("transforms")
    loader.load_state_dict(state)
    state = make(ds, transforms=[RandomCrop(8), MixUp(0.4, 10)]).state_dict()
    with pytest.warns(UserWarning, match=r"MixUp\(alpha=0\.4, .* MixUp\(alpha=4"):
        make(ds, transforms=[RandomCrop(8), MixUp(4, 10)]).load_state_dict(state)


def test_states_of_something_else_are_refused_by_name(ds: LMDBDataset, tmp_path: Path) -> None:
    state = make(ds).state_dict()
    lmdbloader.write(
        ({"image": np.zeros((16, 16, 3), np.uint8), "number": i} for i in range(COUNT)), tmp_path / "other"
    )
    even, odd = ds[: COUNT // 2], ds[COUNT // 2 : COUNT // 2 * 2]
    fewer = LMDBDataset(ds.path, fields=["number"])
    for loader, message in (
        (make(LMDBDataset(tmp_path / "other")), "another dataset.*content_digest is 'sha256:"),
        (make(ds[:50]), "another dataset, or of other samples of it"),
        (make(ds, seed=4), "another seed: its seed is 3, this loader's is 4"),
        (make(ds, order="sequential"), "another order: its order is 'random', this loader's is 'sequential'"),
        (make(ds, order="quasi_random"), r"another order.*'quasi_random\(2097152, 402653184\), stored [0-9a-f]{16}"),
    ):
        with pytest.raises(OptionError, match=message):
            loader.load_state_dict(state)
        assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (0, 0)
    with pytest.raises(OptionError, match="other samples"):
        make(even).load_state_dict(make(odd).state_dict())
    # Blocks follow from the bytes of the fields that are read.
    with pytest.raises(OptionError, match="another order"):
        make(fewer, order="quasi_random", transforms=[]).load_state_dict(make(ds, order="quasi_random").state_dict())
    with pytest.warns(UserWarning, match=r"those of this loader are \[\]"):
        make(fewer, transforms=[]).load_state_dict(state)
    make(ds, order=QuasiRandom()).load_state_dict(make(ds, order="quasi_random").state_dict())
    make(ds.select(range(COUNT))).load_state_dict(state)


@pytest.mark.parametrize("order", ["random", "quasi_random"])
def test_equal_rows_continue_however_they_were_selected(ds: LMDBDataset, order: Any) -> None:
    mask = np.arange(COUNT) % 2 == 1
    ways = [
        ds[1::2],
        ds[mask],
        ds[1:][::2],
        ds[::-1][::-1][1::2],
        pickle.loads(pickle.dumps(ds[1::2])),
        ds.with_rows(np.arange(1, COUNT, 2)),
    ]
    state = make(ways[0], order=order).state_dict()
    for view in ways:
        loader = make(view, order=order)
        assert loader.state_dict() == state
        loader.load_state_dict(state)
    for other in (ds[1:-2:2], ds[::2], ds[1::2][::-1], ds[1:42]):
        with pytest.raises(OptionError, match="load_state_dict"):
            make(other, order=order).load_state_dict(state)


@pytest.mark.parametrize(
    "change",
    [
        {"version": 1}, {"version": None}, {"version": True}, {"epoch": "3"}, {"epoch": -1}, {"epoch": 2**63},
        {"position": 1.0}, {"position": COUNT + 1}, {"length": COUNT + 1}, {"seed": None}, {"order": 5},
        {"content_digest": "x"},
    ],
    ids=str,
)  # fmt: skip
def test_states_that_are_none_are_refused_and_change_nothing(ds: LMDBDataset, change: dict[str, Any]) -> None:
    loader = make(ds)
    loader.set_epoch(2)
    state = loader.state_dict()
    for wrong in ({**state, "epoch": 5, **change}, None, {}, "x"):
        with pytest.raises(OptionError, match="load_state_dict"):
            loader.load_state_dict(wrong)  # type: ignore[arg-type]
    assert loader.state_dict() == state


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@pytest.fixture(scope="module")
def loader(ds: LMDBDataset) -> Loader:
    return make(ds, transforms=[])
