"""Which samples make a batch: batch samplers, buckets of shapes, draws balanced by class, batches of classes."""

from __future__ import annotations

import copy
import itertools
import json
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler, SequentialSampler, Subset

import lmdbloader
from lmdbloader import Buckets, ClassBatches, LMDBDataset, Loader, ProgressiveResize
from lmdbloader.batch.memory_kinds import Rooms
from lmdbloader.errors import OptionError
from lmdbloader.loader.options import orders_of
from lmdbloader.loader.orders import Share, on_rank
from lmdbloader.transforms import CenterCrop, RandomCrop, RandomHorizontalFlip, Resize, ToDtype

SIZES = [(40, 60), (60, 40), (50, 50), (33, 64), (40, 60)]
COUNT = 83
LABELS = np.random.default_rng(3).choice(5, COUNT, p=[0.5, 0.25, 0.15, 0.06, 0.04]).tolist()
STEPS = [RandomCrop(16), RandomHorizontalFlip()]


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> LMDBDataset:
    path = tmp_path_factory.mktemp("batches") / "d.lmdb"
    rng = np.random.default_rng(0)

    def samples() -> Any:
        for number in range(COUNT):
            height, width = SIZES[number % 5]
            image = rng.integers(0, 256, (height, width, 1 if number % 7 == 3 else 3), np.uint8)
            mask = np.full((height, width), number, np.uint8)
            boxes = np.array([[0, 0, width, height]], np.float32)
            yield {"image": image, "mask": mask, "boxes": boxes, "label": LABELS[number], "number": number}

    lmdbloader.write(samples(), path, fields={"mask": lmdbloader.fields.Mask(), "boxes": lmdbloader.fields.Boxes()})
    return LMDBDataset(path)


def make(ds: LMDBDataset, *batch_size: int, **options: Any) -> Loader:
    return Loader(ds, *batch_size, **{"seed": 3, "transforms": STEPS, "num_threads": 2, **options})


def numbers(batches: Any) -> list[list[int]]:
    return [batch.number.tolist() for batch in batches]


def assert_same(found: Any, expected: Any) -> None:
    found, expected = list(found), list(expected)
    assert numbers(found) == numbers(expected)
    assert all(torch.equal(a.image, b.image) for a, b in zip(found, expected, strict=True))


class Sampler:
    """A batch sampler with torch's protocol, which counts what is called."""

    def __init__(self, count: int = COUNT, batch_size: int = 4) -> None:
        self.count, self.batch_size, self.epoch, self.calls = count, batch_size, 0, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return -(-self.count // self.batch_size)

    def __iter__(self) -> Any:
        self.calls += 1
        order = np.random.default_rng(self.epoch).permutation(self.count).tolist()
        return (order[k : k + self.batch_size] for k in range(0, self.count, self.batch_size))


WAYS: dict[str, dict[str, Any]] = {
    "list": {"batch_sampler": [[1, 2, 3], [4], [5, 5], [-1, 0], *([k, k + 1] for k in range(40))]},
    "object": {"batch_sampler": Sampler()},
    "classes": {"batch_sampler": ClassBatches(3, 4)},
    "size": {"batch_size": 3, "shuffle": True, "buckets": "size"},
    "buckets": {"batch_size": 3, "shuffle": True, "buckets": Buckets(48 * 48, 8)},
    "repeated": {"batch_size": 3, "shuffle": True, "repeat": 2, "buckets": "size"},
    "listed": {"batch_size": 3, "order": [*range(50), *range(30)], "buckets": "size"},
    "in order": {"batch_size": 3, "shuffle": False, "buckets": "size", "drop_last": True},
    "balanced": {"batch_size": 3, "weights": "balanced"},
}


@pytest.mark.parametrize("way", WAYS)
def test_an_epoch_continues_anywhere_and_a_copy_does_too(ds: LMDBDataset, way: str) -> None:
    whole = make(ds, **WAYS[way])
    epochs = [list(whole), list(whole)]
    assert [len(epoch) for epoch in epochs] == [len(whole)] * 2
    assert whole.sampler.__len__() == sum(len(batch.number) for batch in epochs[0])
    for taken in {0, 1, 2, len(whole) // 2, len(whole) - 1, len(whole)}:
        loader = make(ds, **WAYS[way])
        batches = iter(loader)
        first = list(itertools.islice(batches, taken))
        assert_same(first, epochs[0][:taken])
        state = json.loads(json.dumps(loader.state_dict()))
        copies = [make(ds, **WAYS[way]), pickle.loads(pickle.dumps(loader)), copy.copy(loader)]
        copies[0].load_state_dict(state)
        for other in copies:
            assert_same(other, epochs[0][taken:] if taken else epochs[0])
            assert_same(other, epochs[1])
            assert len(other) == len(whole)


@pytest.mark.parametrize("way", WAYS)
def test_ranks_divide_an_epoch_and_resume_together(ds: LMDBDataset, way: str) -> None:
    pad = None if "buckets" in WAYS[way] else True
    ranks = [make(ds, shard=(rank, 3), pad=pad, **WAYS[way]) for rank in range(3)]
    epochs = [list(rank) for rank in ranks]
    assert {len(epoch) for epoch in epochs} == {len(rank) for rank in ranks} and len({*map(len, epochs)}) == 1
    assert [len(rank.sampler) for rank in ranks] == [sum(len(b.number) for b in epoch) for epoch in epochs]
    if "buckets" in WAYS[way]:
        for step in zip(*epochs, strict=True):  # one shape and size on all ranks
            assert len({batch.number.shape for batch in step}) == 1
    half = [make(ds, shard=(rank, 3), pad=pad, **WAYS[way]) for rank in range(3)]
    begun = iter(half[0])
    list(itertools.islice(begun, 2))
    state = half[0].state_dict()
    for rank, loader in enumerate(half):
        loader.load_state_dict(state)
        assert_same(loader, epochs[rank][2:])


@pytest.mark.parametrize("way", WAYS)
def test_a_framework_builds_a_dataloader_of_the_parts(ds: LMDBDataset, way: str) -> None:
    expected, loader = list(make(ds, **WAYS[way])), make(ds, **WAYS[way])
    other: DataLoader[Any] = DataLoader(
        loader.dataset, batch_sampler=loader.batch_sampler, collate_fn=loader.collate_fn
    )
    assert_same(other, expected)
    # As Lightning: the class again, with the batch sampler.
    again = type(loader)(ds, batch_sampler=loader.batch_sampler, batch_size=1, shuffle=False)
    again.set_epoch(0)
    assert_same(again, expected)
    assert "buckets" in WAYS[way] or "balanced" in repr(loader) or "batch_sampler=" in repr(loader)


# --- Batch samplers ---


def test_batches_of_a_list_come_as_given_and_repeats_have_choices_of_their_own(ds: LMDBDataset) -> None:
    given = [[5, 5, 5], [80], [1, 2, 3, 4, 5, 6, 7], [5]]
    loader = make(ds, batch_sampler=given)
    batches = list(loader)
    given[0][0] = 3
    assert numbers(batches) == [[5, 5, 5], [80], [1, 2, 3, 4, 5, 6, 7], [5]] == numbers(loader)
    assert loader.batch_size is None and len(loader) == 4
    crops = [*batches[0].image, batches[3].image[0], batches[2].image[4]]
    assert len({crop.numpy().tobytes() for crop in crops}) == 5
    # The first occurrence has the choices of any other order.
    usual = dict(zip(range(COUNT), (image for b in make(ds, 8, shuffle=False) for image in b.image), strict=True))
    assert torch.equal(crops[0], usual[5]) and torch.equal(batches[1].image[0], usual[80])


def test_an_object_is_iterated_once_for_each_epoch(ds: LMDBDataset) -> None:
    sampler = Sampler()
    loader = make(ds, batch_sampler=sampler)
    assert len(loader) == 21 and sampler.calls == 0
    for epoch in range(3):
        found = numbers(loader)
        loader.state_dict()
        sampler.epoch, calls = epoch, sampler.calls
        expected = list(sampler)
        sampler.calls = calls
        assert found == expected
    assert sampler.calls == 4  # also those of the epoch whose place is the state's


def test_torchs_batch_samplers_give_their_batches(ds: LMDBDataset) -> None:
    assert numbers(make(ds, batch_sampler=BatchSampler(SequentialSampler(ds), 10, True))) == numbers(
        make(ds, 10, drop_last=True, shuffle=False)
    )
    shards = [DistributedSampler(ds, 2, rank, shuffle=True) for rank in range(2)]
    loaders = [make(ds, batch_sampler=BatchSampler(shard, 5, False)) for shard in shards]
    epochs = [[numbers(loader) for loader in loaders] for _ in range(2)]
    assert all({n for rank in epoch for batch in rank for n in batch} == set(range(COUNT)) for epoch in epochs)
    assert epochs[0] != epochs[1]  # the sampler inside got the epoch
    with pytest.raises(OptionError, match="shard out"):
        len(make(ds, batch_sampler=BatchSampler(shards[0], 5, False), shard=(0, 2)))
    with pytest.raises(OptionError, match="generator="):
        list(make(ds, batch_sampler=BatchSampler(RandomSampler(ds), 5, False), shard=(0, 2)))


def test_a_state_of_other_random_batches_is_refused(ds: LMDBDataset) -> None:
    first, other = (make(ds, batch_sampler=BatchSampler(RandomSampler(ds), 5, False)) for _ in range(2))
    batches = iter(first)
    next(batches)
    assert numbers(pickle.loads(pickle.dumps(first))) == numbers(batches)
    first = make(ds, batch_sampler=BatchSampler(RandomSampler(ds), 5, False))
    batches = iter(first)
    next(batches)
    with pytest.raises(OptionError, match="another order"):
        other.load_state_dict(first.state_dict())


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(-9, 8), min_size=1, max_size=5), max_size=12),
    st.integers(1, 4), st.integers(0, 12), st.booleans(),
)  # fmt: skip
def test_ranks_take_turns_with_batches(given_ones: Any, world: int, start: int, pad: bool) -> None:
    none: dict[str, Any] = {"order": None, "shuffle": None, "weights": None, "draws": None, "repeat": 1}
    order = orders_of(9, batch_sampler=given_ones, **none).of(0, None, 0)  # type: ignore[arg-type]
    expected = [[number % 9 for number in batch] for batch in given_ones]
    start = min(start, len(expected))
    for rank in range(world):
        mine = on_rank(order, Share(1, rank, world, pad=pad), start)
        own = expected[start + rank :: world]
        if pad and len(own) < -(-(len(expected) - start) // world):
            own.append(expected[(start + rank + world * len(own)) % len(expected)])
        assert len(mine) == len(own) and mine.num_samples == sum(map(len, own))
        assert [(order.samples(mine.of_batches(k, k + 1)) % 9).tolist() for k in range(len(mine))] == own
        assert [mine.size_of(k) for k in range(len(mine))] == list(map(len, own))
        assert [mine.place_of(k) for k in range(len(own) + 1)] == np.cumsum([0, *map(len, own)]).tolist()


@pytest.mark.parametrize(
    ("given_ones", "message"),
    [
        ([1, 2, 3], r"order=\["), ([[1], []], "batch 1"), ([[1], [83]], "sample numbers from 0 to 82"), ("ab", "ab"),
        ([["a"]], "batch_sampler"), ([[0.5]], "batch_sampler"), ([[True, False]], "batch_sampler"), (5, "a list"),
        (iter([[1]]), "iterated once"), (range(4), "order="), (Sampler, "expected a list"),
        (ClassBatches(6, 2), "5 classes"), ([[(1, 2)]], "batch_sampler"), ([[1, [2]]], "batch_sampler"),
    ],
)  # fmt: skip
def test_what_is_no_batches_is_refused(ds: LMDBDataset, given_ones: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make(ds, batch_sampler=given_ones)


def test_an_iteration_without_an_end_is_refused(ds: LMDBDataset) -> None:
    class Endless:
        def __iter__(self) -> Any:
            return itertools.repeat([0] * 100_000)

    with pytest.raises(OptionError, match="islice"):
        list(make(ds, batch_sampler=Endless()))


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 4}, {"shuffle": True}, {"order": "random"}, {"weights": "balanced"}, {"num_samples": 3},
        {"repeat": 2}, {"drop_last": True},
    ],
)  # fmt: skip
def test_a_batch_sampler_chooses_alone(ds: LMDBDataset, options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="batch_sampler"):
        make(ds, batch_sampler=[[1, 2]], **options)
    with pytest.raises(OptionError, match="batch_sampler"):
        make(lmdbloader.mix([ds, ds]), batch_sampler=[[1, 2]])  # type: ignore[arg-type]


def test_batches_of_equal_images_need_no_transform(ds: LMDBDataset) -> None:
    images = ds.select(np.arange(COUNT) % 7 != 3)
    sizes = [SIZES[number % 5] for number in range(COUNT) if number % 7 != 3]
    groups = [[k for k, size in enumerate(sizes) if size == one] for one in sorted(set(sizes))]
    batches = list(Loader(images, batch_sampler=groups))
    assert [tuple(batch.image.shape[2:]) for batch in batches] == sorted(set(sizes))


# --- Buckets ---


@pytest.mark.parametrize("buckets", ["size", Buckets(48 * 48, multiple_of=8), Buckets(32 * 32, 4)])
@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"shuffle": True, "shard": (1, 2)}, {"repeat": 2}])
def test_a_batch_has_one_shape_and_every_sample_comes(ds: LMDBDataset, buckets: Any, options: dict[str, Any]) -> None:
    loader = Loader(ds, 6, buckets=buckets, seed=1, **options)
    if "shard" in options:
        both = [list(Loader(ds, 6, buckets=buckets, seed=1, **{**options, "shard": (rank, 2)})) for rank in range(2)]
        batches = [batch for step in zip(*both, strict=True) for batch in step]
    else:
        batches = list(loader)
    counts = Counter(itertools.chain.from_iterable(numbers(batches)))
    extra = sum(counts.values()) - COUNT * options.get("repeat", 1)
    assert set(counts) == set(range(COUNT)) and (extra == 0 or ("shard" in options and extra <= 5))
    sizes = [len(batch.number) for batch in batches]
    assert sizes[: sizes.count(6)] == [6] * sizes.count(6)  # short ones at the end
    for batch in batches:
        _, channels, height, width = batch.image.shape
        assert channels == 3 and batch.mask.shape == batch.image[:, 0].shape
        assert batch.mask[:, height // 2, width // 2].tolist() == batch.number.tolist()
        if buckets == "size":
            assert {SIZES[number % 5] for number in batch.number.tolist()} == {(height, width)}
        else:
            assert (height, width) in buckets.shapes and height * width <= buckets.max_pixels
            for number in batch.number.tolist():
                own = SIZES[number % 5]
                assert 1 / buckets.largest_change <= own[1] / own[0] / (width / height) <= buckets.largest_change
        assert all(torch.equal(box, torch.tensor([[0.0, 0.0, width, height]])) for box in batch.boxes)


def test_a_bucket_resizes_as_a_loader_of_that_size(ds: LMDBDataset) -> None:
    for batch in make(ds, 6, buckets=Buckets(48 * 48, 8), shuffle=True, transforms=[RandomHorizontalFlip()]):
        size = tuple(batch.image.shape[2:])
        whole = make(ds, order=batch.number.tolist(), transforms=[Resize(size), RandomHorizontalFlip()])
        expected = [image for one in whole for image in one.image]
        assert all(torch.equal(a, b) for a, b in zip(batch.image, expected, strict=True))


def test_samples_go_through_a_function_of_the_dataset_after_the_resize(ds: LMDBDataset) -> None:
    def twice(sample: Any) -> Any:
        return sample._replace(image=sample.image.expand(3, -1, -1) * 2)

    own = LMDBDataset(ds.path, fields=["image"], transform=twice)
    for buckets in ("size", Buckets(48 * 48, 8)):
        plain = Loader(LMDBDataset(ds.path, fields=["image"]), 5, shuffle=True, seed=0, buckets=buckets)
        for found, expected in zip(Loader(own, 5, shuffle=True, seed=0, buckets=buckets), plain, strict=True):
            assert torch.equal(found.image, expected.image * 2)


@given(st.integers(1, 2**21), st.integers(4, 200))
def test_shapes_are_as_promised(max_pixels: int, step: int) -> None:
    try:
        buckets = Buckets(max_pixels, step)
    except OptionError:
        return
    shapes = buckets.shapes
    assert len(set(shapes)) == len(shapes) and {(b, a) for a, b in shapes} == set(shapes)
    assert all(h % step == w % step == 0 and 0 < h * w <= max_pixels for h, w in shapes)
    assert buckets.largest_change >= 1


def test_many_shapes_take_the_memory_of_one(ds: LMDBDataset) -> None:
    rooms = Rooms(3)
    memories = [rooms.memory((3, side, 64 - side), np.dtype(np.uint8), keep=1) for side in range(32, 0, -1)]
    assert len({memory.take(4, 4)[1][0] for memory in memories}) == 1
    held = [memory.take(4, 4)[0][0].fill_(number) for number, memory in enumerate(memories)]
    assert all((tensor == number).all() for number, tensor in enumerate(held))
    kept = [(batch, batch.image.clone()) for batch in Loader(ds, 3, shuffle=True, buckets="size")]
    assert all(torch.equal(batch.image, image) for batch, image in kept)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"buckets": "sizes"}, "expected 'size'"), ({"buckets": True}, "expected 'size'"),
        ({"weights": "balanced"}, "buckets follow"), ({"order": "quasi_random"}, "buckets follow"),
        ({"batch_sampler": [[1]], "batch_size": 1}, "buckets follow"), ({"pad": False, "shard": (0, 2)}, "pad"),
        ({"resolution": ProgressiveResize(2)}, "resolution"), ({"transforms": [RandomCrop(36)]}, "crop"),
        ({"buckets": Buckets(16 * 16, 16)}, "longer than all shapes"),
    ],
)  # fmt: skip
def test_what_buckets_cannot_do_is_refused(ds: LMDBDataset, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make(ds, **{"batch_size": 4, "buckets": "size", **options})


def test_the_ways_out_for_longer_images_work(ds: LMDBDataset) -> None:
    with pytest.raises(OptionError, match=r"Write buckets='size', a smaller multiple_of, .*dataset\.select\(numbers\)"):
        Loader(ds, 4, buckets=Buckets(32 * 32, 32))
    square = [number for number in range(COUNT) if SIZES[number % 5] == (50, 50)]
    assert len(Loader(ds.select(square), 4, buckets=Buckets(32 * 32, 32))) == -(-len(square) // 4)
    assert len(Loader(ds, 4, buckets="size")) and len(Loader(ds, 4, buckets=Buckets(32 * 32, 4)))


def test_a_state_of_buckets_is_of_its_batches(ds: LMDBDataset) -> None:
    loader = make(ds, 4, shuffle=False, buckets="size")
    next(iter(loader))
    state = loader.state_dict()
    for other in ({"batch_size": 5}, {"shard": (0, 2)}, {"drop_last": True}, {"buckets": Buckets(48 * 48, 8)}):
        with pytest.raises(OptionError, match="another"):
            make(ds, **{"batch_size": 4, "shuffle": False, "buckets": "size", **other}).load_state_dict(state)
    with pytest.raises(OptionError, match="set_resolution"):
        loader.set_resolution(8)


@pytest.mark.parametrize("num_threads", [1, 3])
def test_batches_of_one_keep_the_order_and_take_transforms(ds: LMDBDataset, num_threads: int) -> None:
    steps = [RandomHorizontalFlip(1.0), ToDtype(torch.float32, scale=True)]
    batches = list(Loader(ds, 1, buckets="size", shuffle=False, transforms=steps, num_threads=num_threads))
    assert numbers(batches) == [[i] for i in range(COUNT)]
    for batch, sample in zip(batches, ds, strict=True):
        torch.testing.assert_close(batch.image[0], sample.image.expand(3, -1, -1).flip(-1) / 255)


def test_an_error_of_different_shapes_names_buckets(ds: LMDBDataset) -> None:
    with pytest.raises(OptionError, match="buckets='size'"):
        Loader(ds, 4)


def test_an_epoch_without_a_batch_is_a_warning(ds: LMDBDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"drop_last": True, "transforms": [CenterCrop(8)]}
    with pytest.warns(UserWarning, match=rf"{COUNT} samples make no whole batch of {COUNT + 1}, and epochs are empty"):
        assert len(Loader(ds, COUNT + 1, **options)) == 0
    calls: list[int] = []
    Loader(ds, 2, order=lambda epoch: calls.append(epoch) or [0, 1], **options)
    assert calls == []
    monkeypatch.setenv("WORLD_SIZE", "2")  # as by torchrun, before init_process_group
    Loader(ds, 2, shard="auto", **options)


# --- Classes ---


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 300), st.integers(0, 2**64 - 1), st.integers(0, 3), st.integers(1, 4))
def test_balanced_draws_are_exact(ds: LMDBDataset, draws: int, seed: int, epoch: int, world: int) -> None:
    def read(shard: tuple[int, int]) -> list[int]:
        view = LMDBDataset(ds.path, fields=["label", "number"])
        loader = Loader(view, 16, weights="balanced", num_samples=draws, seed=seed, shard=shard)
        loader.set_epoch(epoch)
        return [number for batch in loader for number in batch.number.tolist()]

    found = read((0, 1))
    classes = Counter(LABELS[number] for number in found)
    assert len(found) == draws and set(classes.values()) <= {draws // 5, -(-draws // 5)}
    times = Counter(found)
    for label in set(LABELS):
        own = [times[number] for number in range(COUNT) if LABELS[number] == label]
        assert max(own) - min(own) <= 1
    assert Counter(n for rank in range(world) for n in read((rank, world))) == times


def test_balanced_draws_are_shuffled_and_repeats_have_choices_of_their_own(ds: LMDBDataset) -> None:
    loader = make(ds, 10, weights="balanced", num_samples=500)
    batches = list(loader)
    rare = [image for b in batches for n, image in zip(b.number.tolist(), b.image, strict=True) if n == LABELS.index(4)]
    assert len({image.numpy().tobytes() for image in rare}) == len(rare) > 10
    labels = [LABELS[n] for batch in numbers(batches) for n in batch]
    assert all(5 < labels[k : k + 100].count(label) < 40 for label in range(5) for k in (0, 200, 400))
    assert numbers(loader) != numbers(batches)


@pytest.mark.parametrize(("num_classes", "num_samples"), [(1, 1), (2, 4), (3, 7), (5, 3)])
def test_batches_of_classes(ds: LMDBDataset, num_classes: int, num_samples: int) -> None:
    batches = ClassBatches(num_classes, num_samples)
    loader = make(ds, batch_sampler=batches)
    epochs, sizes = [numbers(loader) for _ in range(60)], Counter(LABELS)
    assert {len(epoch) for epoch in epochs} == {len(loader)} == {COUNT // (num_classes * num_samples)}
    found = [batch for epoch in epochs for batch in epoch]
    for batch in found:
        labels = [LABELS[number] for number in batch]
        assert labels == [label for label in labels[::num_samples] for _ in range(num_samples)]
        assert len(set(labels)) == num_classes
        for first in range(0, len(batch), num_samples):
            own = Counter(batch[first : first + num_samples])
            assert len(own) == min(num_samples, sizes[labels[first]])
            assert max(own.values()) - min(own.values()) <= 1
    times = Counter(LABELS[number] for batch in found for number in batch[::num_samples])
    assert min(times.values()) > len(found) * num_classes / 5 * 0.8
    assert {number for batch in found for number in batch} == set(range(COUNT)) and epochs[0] != epochs[1]


def test_labels_that_cannot_be_balanced_are_an_error_with_the_line(ds: LMDBDataset, tmp_path: Path) -> None:
    def dataset(name: str, classes: Any = None, **fields: Any) -> LMDBDataset:
        samples = ({key: value[k] for key, value in fields.items()} for k in range(4))
        lmdbloader.write(samples, tmp_path / name, classes=classes)
        return LMDBDataset(tmp_path / name)

    several = dataset("s", {"cat": ["a", "b"], "dog": ["c", "d"]}, cat=[0, 1, 0, 1], dog=[1, 0, 1, 0])
    scores, lists = dataset("n", score=[1.0, 2.0, 3.0, 4.0]), dataset("b", label=[[0, 1], [1], [0], []])
    missing = dataset("m", label=[0, -1, 1, -1])
    for option in ({"weights": "balanced"}, {"batch_sampler": ClassBatches(2, 2)}):
        with pytest.raises(OptionError, match=r"fields=\['cat'\]"):
            Loader(several, **option)
        assert len(list(Loader(LMDBDataset(several.path, fields=["dog"]), **option)))
        with pytest.raises(OptionError, match="found score"):
            Loader(scores, **option)
        with pytest.raises(OptionError, match=r"found label \(json\)"):
            Loader(lists, **option)
        with pytest.raises(OptionError, match=r"2 samples of 4 .*where\('label >= 0'\)"):
            Loader(missing, **option)
        assert len(list(Loader(Subset(missing, [0, 2]), **option)))
        with pytest.raises(OptionError, match="mixture"):
            Loader(lmdbloader.mix([missing, missing]), **option)
    with pytest.raises(OptionError, match="'balanced'"):
        Loader(ds, weights="balance", transforms=[CenterCrop(8)])
    for arguments in ((0, 1), (1, 0), (1.5, 1), (-1, 1)):
        with pytest.raises(OptionError):
            ClassBatches(*arguments)
