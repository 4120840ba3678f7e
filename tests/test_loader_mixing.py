"""Several datasets read as one: torch's ConcatDataset of them, and mixtures, for the Loader and torch's DataLoader."""

from __future__ import annotations

import json
import pickle
import shutil
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from remote_store import objects_of, serving, write_dataset
from torch.utils.data import ConcatDataset, DataLoader, Subset

import lmdbloader
from lmdbloader import LMDBDataset, Loader, QuasiRandom, mix
from lmdbloader.errors import CorruptError, OptionError
from lmdbloader.transforms import RandomCrop, RandomDihedral

FIRST, SECOND = 30, 12
WORLDS = (1, 3, 8)
KINDS: tuple[Any, ...] = ("random", "sequential", "quasi_random", QuasiRandom(2000, 4000))


def samples(count: int, first: int) -> Any:
    rng = np.random.default_rng(first)
    for i in range(first, first + count):
        yield {
            "image": rng.integers(0, 256, (16, 16, 3)).astype(np.uint8),
            "number": i,
            "name": f"name {i}",
            "tags": [i] * (i % 3),
            "array": np.full(3, i, np.float32),
            "label": i % 2,
        }


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("mixing")
    made = []
    for name, count, first in (("a", FIRST, 0), ("b", SECOND, 100)):
        lmdbloader.write(samples(count, first), folder / f"{name}.lmdb", classes={"label": ["even", "odd"]})
        made.append(folder / f"{name}.lmdb")
    return made


@pytest.fixture(scope="module")
def both(paths: list[Path]) -> list[LMDBDataset]:
    return [LMDBDataset(path) for path in paths]


@pytest.fixture(scope="module")
def merged(paths: list[Path], tmp_path_factory: pytest.TempPathFactory) -> LMDBDataset:
    out = tmp_path_factory.mktemp("merged") / "both.lmdb"
    lmdbloader.merge(paths, out)
    return LMDBDataset(out)


def plain(batch: Any) -> list[tuple[Any, ...]]:
    """Return the samples of a batch as values that can be compared."""
    arrays = [array.tolist() for array in batch.array]
    columns = (batch.number.tolist(), batch.name, batch.tags, arrays, batch.label.tolist())
    images = [image.numpy().tobytes() for image in batch.image]
    return [tuple(values) for values in zip(images, *map(list, columns), strict=True)]


def read(batches: Any) -> list[tuple[Any, ...]]:
    return [sample for batch in batches for sample in plain(batch)]


def numbers(batches: Any) -> list[int]:
    return [number for batch in batches for number in batch.number.tolist()]


STEPS = [RandomCrop(8), RandomDihedral()]


def make(dataset: Any, batch_size: int = 4, **options: Any) -> Loader:
    given: dict[str, Any] = {"order": "random", "seed": 3, "transforms": STEPS, "num_threads": 1}
    return Loader(dataset, batch_size, **{**given, **options})


# --- One view of several datasets ---


@pytest.mark.parametrize("io", ["mmap", "pread"])
@pytest.mark.parametrize("order", KINDS, ids=str)
def test_a_concat_dataset_is_read_like_the_merged_dataset(
    both: list[LMDBDataset], merged: LMDBDataset, order: Any, io: Any
) -> None:
    fields = [field for field in merged.fields if field != "array"]
    parts, one = [LMDBDataset(d.path, fields) for d in both], LMDBDataset(merged.path, fields)
    found = [[b.number.tolist(), b.name, b.image] for b in make(ConcatDataset(parts), order=order, io=io)]
    expected = [[b.number.tolist(), b.name, b.image] for b in make(one, order=order)]
    assert [item[:2] for item in found] == [item[:2] for item in expected]
    assert all(torch.equal(a[2], b[2]) for a, b in zip(found, expected, strict=True))


def test_the_union_is_a_dataset(both: list[LMDBDataset], merged: LMDBDataset) -> None:
    union = mix(both).union
    assert len(union) == FIRST + SECOND
    for i in (0, FIRST - 1, FIRST, -1):
        one, other = union[i], merged[i]
        assert torch.equal(one.image, other.image) and torch.equal(one.array, other.array)
        assert (one.number, one.name, one.tags, one.label) == (other.number, other.name, other.tags, other.label)
    assert union.table.to_pylist() == merged.table.to_pylist()
    assert union.where("number >= 100 and label == 'odd'").targets == (1,) * 6
    assert union.targets == merged.targets and union.classes == ("even", "odd")
    assert torch.equal(union.crop(31, top=2, left=3, height=4, width=5), union[31].image[:, 2:6, 3:8])
    copied = pickle.loads(pickle.dumps(union))
    assert [copied[i].number for i in (0, 29, 30)] == [0, 29, 100]
    assert [len(part) for part in union.split([0.5, 0.5], by=None)] == [21, 21]


def test_views_of_datasets_are_joined(both: list[LMDBDataset]) -> None:
    a, b = both
    parts = ConcatDataset([b[::-1], a.select([5, 3]), Subset(b, [0, 0]), a[::10]])
    expected = [sample.number for sample in parts]
    assert numbers(Loader(parts, 3, shuffle=False)) == expected
    # Two readers of one dataset are one; a mixture of views of one dataset copies no index.
    assert mix([a[:10], LMDBDataset(a.path)[10:]]).union.reader is a.reader


# --- Mixtures ---


@pytest.mark.parametrize("order", KINDS, ids=str)
def test_without_weights_each_sample_comes_once(both: list[LMDBDataset], order: Any) -> None:
    mixed = mix(both)
    assert len(mixed) == FIRST + SECOND
    loader = make(mixed, order=order)
    first, second = read(loader), read(loader)
    assert sorted(n for _, n, *_ in first) == [*range(FIRST), *range(100, 100 + SECOND)]
    assert (order == "sequential") == ([n for _, n, *_ in first] == [n for _, n, *_ in second])
    known = {sample[1]: sample[2:] for d in both for sample in read(Loader(d, 8, shuffle=False))}
    assert all(known[sample[1]] == sample[2:] for sample in first)


@pytest.mark.parametrize("order", KINDS, ids=str)
def test_weights_are_shares_of_the_draws(both: list[LMDBDataset], order: Any) -> None:
    mixed = mix(both, weights=[1, 3], length=4000)
    found = numbers(make(mixed, 50, order=order))
    for first in range(0, 3001, 100):
        assert sum(number < 100 for number in found[first : first + 1000]) == 250
    # Each dataset comes whole before it comes again.
    for dataset, n in ((0, FIRST), (1, SECOND)):
        mine = [number for number in found if (number >= 100) == dataset]
        assert all(len(set(mine[k : k + n])) == n for k in range(0, len(mine) - n, n))


@pytest.mark.parametrize("order", KINDS, ids=str)
@pytest.mark.parametrize("world_size", WORLDS)
def test_ranks_share_a_mixture(both: list[LMDBDataset], order: Any, world_size: int) -> None:
    mixed = mix(both, weights=[2, 1], length=100)
    alone = read(make(mixed, 24, order=order))
    loaders = [make(mixed, 24 // world_size, order=order, shard=(rank, world_size)) for rank in range(world_size)]
    ranks = [[plain(batch) for batch in loader] for loader in loaders]
    for step in range(len(loaders[0])):
        together = [sample for batches in ranks for batch in batches[step : step + 1] for sample in batch]
        assert Counter(map(repr, together)) == Counter(map(repr, alone[24 * step : 24 * step + 24]))


@pytest.mark.parametrize("order", KINDS, ids=str)
def test_a_run_continues_with_other_ranks(both: list[LMDBDataset], order: Any) -> None:
    mixed = mix(both, weights=[2, 1], length=100)
    whole = make(mixed, order=order)
    whole.set_epoch(4)
    expected, following = numbers(whole), numbers(whole)
    taken, states = [], []
    for rank in range(3):
        loader = make(mixed, 3, order=order, shard=(rank, 3))
        loader.set_epoch(4)
        batches = iter(loader)
        taken += numbers(next(batches) for _ in range(4))
        states.append(loader.state_dict())
    state = json.loads(json.dumps(states[0]))
    assert states == [state] * 3 and len(json.dumps(state)) < 500
    for world_size in (1, 4):
        rest = [make(mix(both, [2, 1], 100), 5, order=order, shard=(rank, world_size)) for rank in range(world_size)]
        for loader in rest:
            loader.load_state_dict(state)
        assert Counter(taken + [n for loader in rest for n in numbers(loader)]) == Counter(expected)
        assert Counter(n for loader in rest for n in numbers(loader)) == Counter(following)
    alone = make(mixed, order=order)
    alone.load_state_dict(state)
    copied = pickle.loads(pickle.dumps(alone))
    assert numbers(copied) == numbers(alone) == expected[36:]
    assert len(copied) == 25


def test_states_of_other_mixtures_are_refused_with_the_reason(both: list[LMDBDataset]) -> None:
    state = make(mix(both, [1, 1])).state_dict()
    for other, reason in (
        (mix(both, [1, 2]), "mixed 1:1 from 30 \\+ 12 samples', this loader's is 'random, mixed 1:2"),
        (mix(both, [1, 1], length=43), "another number of samples"),
        (mix([both[0], both[1][::-1]], [1, 1]), "another dataset, or of other samples"),
        (mix([both[0], both[0][:12]], [1, 1]), "another dataset, or of other samples"),
        (ConcatDataset(both), "another order"),
    ):
        with pytest.raises(OptionError, match=reason):
            make(other).load_state_dict(state)


def test_transforms_of_the_datasets_are_kept(both: list[LMDBDataset], paths: list[Path]) -> None:
    views = [d.transformed([RandomCrop(8)], seed=5) for d in both]
    mixed = mix(views, [1, 1], 100)
    loader = Loader(mixed, 4, shuffle=True)
    assert loader.seed == 5 and next(iter(loader)).image.shape == (4, 3, 8, 8)
    for other in (both[1], both[1].transformed([RandomCrop(4)], seed=5), LMDBDataset(paths[1], ["image"])):
        with pytest.raises(OptionError, match="have different fields or transforms"):
            mix([views[0], other])
    with pytest.raises(OptionError, match=r"\(image, number, .*\) and \(image\)\. Open"):
        mix([both[0], LMDBDataset(paths[1], ["image"])])
    doubled = [LMDBDataset(path, ["image", "number"], _double) for path in paths]
    with pytest.raises(OptionError, match="have different fields or transforms"):
        mix([doubled[0], LMDBDataset(paths[1], ["image", "number"])])
    assert sorted(numbers(Loader(mix(doubled), 4))) == [2 * n for n in [*range(FIRST), *range(100, 100 + SECOND)]]


def _double(sample: Any) -> Any:
    return sample._replace(number=2 * sample.number)


# --- torch's DataLoader ---


def test_pairs_of_several_scales_are_mixed(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("div2k", "flickr2k")]
    for number, path in enumerate(paths):
        hr = np.zeros((48, 36 + 24 * number, 3), np.uint8)
        hr[..., 0], hr[..., 1], hr[..., 2] = *np.mgrid[: hr.shape[0], : hr.shape[1]], number
        lows = {f"lr{s}": hr[: hr.shape[0] // s, : hr.shape[1] // s] for s in (2, 3, 4)}
        lmdbloader.write([{**lows, "hr": hr}] * 3, path)
    for names in (["lr2", "lr3", "lr4", "hr"], ["lr4", "hr"]):
        views = [LMDBDataset(path, fields=names) for path in paths]
        found = []
        for batch in Loader(mix(views, length=12), 4, shuffle=True, transforms=[RandomCrop(24), RandomDihedral()]):
            assert list(batch._fields) == names
            assert torch.equal(batch.hr[:, :2, ::4, ::4] // 4, batch.lr4[:, :2])
            assert torch.equal(batch.hr[:, 2, 0, 0], batch.lr4[:, 2, 0, 0])
            found += batch.hr[:, 2, 0, 0].tolist()
        assert sorted(found) == [0] * 6 + [1] * 6


@pytest.mark.parametrize("count", [5, 13, 30])
@pytest.mark.parametrize("seeds", [(0, 1), (0, 0)])
def test_unpaired_sets_are_drawn_independently(tmp_path: Path, count: int, seeds: tuple[int, int]) -> None:
    """As docs/how-to/combine.md has it: an epoch of one set, and as many draws of the other."""
    pixels, num = np.zeros((8, 8, 3), np.uint8), 30
    for name, length in (("clean", num), ("real", count)):
        lmdbloader.write(({"image": pixels, "number": i} for i in range(length)), tmp_path / name)

    def loaders() -> list[Loader]:
        real = mix([tmp_path / "real"], length=num)
        return [Loader(d, 4, shuffle=True, seed=s) for d, s in zip((tmp_path / "clean", real), seeds, strict=True)]

    def steps(given: list[Loader], epochs: int) -> list[Any]:
        found = []
        for _ in range(epochs):
            for batches in zip(*given, strict=True):
                found.append(([b.number.tolist() for b in batches], [loader.state_dict() for loader in given]))
        return found

    whole = steps(loaders(), 3)
    per_epoch = len(whole) // 3
    pairs = []
    for epoch in range(3):
        clean, real = (
            [n for both, _ in whole[epoch * per_epoch :][:per_epoch] for n in both[k]] for k in (0, 1)
        )  # fmt: skip
        assert sorted(clean) == list(range(num))
        counts = Counter(real)
        assert max(counts.values()) - min(counts.get(n, 0) for n in range(count)) <= 1
        pairs.append(set(zip(clean, real, strict=True)))
    assert all(len(one & other) < num / 3 for one, other in pairwise(pairs))
    if count == num:  # equal lengths are not equal orders, whatever the seeds
        assert all(sum(one == other for one, other in each) < num / 3 for each in pairs)
    for at in (0, per_epoch - 2, per_epoch - 1, per_epoch + 3):
        continued = loaders()
        for loader, state in zip(continued, whole[at][1], strict=True):
            loader.load_state_dict(state)
        rest = [numbers for numbers, _ in whole[at + 1 :]]
        assert [numbers for numbers, _ in steps(continued, 3)][: len(rest)] == rest


def test_only_a_loader_reads_a_mixture(both: list[LMDBDataset]) -> None:
    mixed: Any = mix(both)
    assert mixed.union.classes == ("even", "odd")
    for read in (lambda: mixed[0], lambda: next(iter(DataLoader(mixed, 8)))):
        with pytest.raises(OptionError, match="only a Loader"):
            read()


def test_a_dataset_without_a_draw_is_noticed(both: list[LMDBDataset]) -> None:
    with pytest.warns(
        UserWarning, match=r"an epoch of 100 draws has none of dataset 1, .*b\.lmdb, whose share is 0\.001"
    ):
        mixed = mix(both, [999, 1], 100)
    assert len(mixed) == 100
    mix(both, [999, 1], 1000)


# --- What does not fit ---


def test_weights_and_lengths_are_checked(both: list[LMDBDataset]) -> None:
    for options, message in (
        ({"weights": [1]}, "1 weights for 2 datasets"),
        ({"weights": [1, -1]}, r"weights\[1\] is -1"),
        ({"weights": ["a", 1]}, "expected a list of numbers"),
        ({"weights": 3}, "expected a list"),
        ({"weights": "37"}, "expected a list of numbers"),
        ({"weights": {1: 0.7, 2: 0.3}}, "expected a list of numbers"),
        ({"weights": [1, 1e-15]}, r"weights\[1\]"),
        ({"length": 0}, "length"),
        ({"length": 1.5}, "length"),
    ):
        with pytest.raises(OptionError, match=message):
            mix(both, **options)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="dataset 1 has no samples"):
        mix([both[0], both[1][:0]], weights=[1, 1])
    assert len(mix([both[0], both[1][:0]])) == FIRST
    weights = mix(both, torch.tensor([0.25, 0.75])).mixture.shares, mix(both, np.array([1, 3])).mixture.shares
    assert weights == ((1, 3), (1, 3))
    for kind in (torch.bfloat16, torch.float16, torch.float64, np.float16, np.float32):
        share = torch.tensor([0.25, 0.75]).to(kind) if isinstance(kind, torch.dtype) else np.array([1, 3], kind)
        assert mix(both, share).mixture.shares == (1, 3)
    assert mix(both, [1, 10**12], 2 * 10**12).mixture.shares == (1, 10**12)  # whole numbers are exact
    mixed = mix(both)
    for wrapped in ([mixed, both[0]], [Subset(mixed, [1])]):
        with pytest.raises(OptionError, match="expected an LMDBDataset"):
            mix(wrapped)  # type: ignore[arg-type]
    assert repr(mixed).startswith("Mix(42 samples: 71.4% of ") and "Mix(" in repr(Loader(mixed, 4))


def other(path: Path, value: Any, **options: Any) -> LMDBDataset:
    lmdbloader.write(({"image": np.zeros((4, 4, 3), np.uint8), "value": value} for _ in range(3)), path, **options)
    return LMDBDataset(path)


@pytest.mark.parametrize(
    ("values", "options", "message"),
    [
        ((1, "text"), {}, "field 'value' has the kind int in .*, text in "),
        (("short", "long " * 50), {}, r"field 'value' has the place the index in .*, data.mdb in"),
        ((1, 1), {"classes": {"value": ["x", "y", "z"]}}, "the classes of field 'value' differ: .* has none; .* has x"),
        (
            (np.zeros((4, 4), np.uint8), np.zeros((4, 4), np.uint16)),
            {"fields": {"image": lmdbloader.fields.Image(), "value": lmdbloader.fields.Mask()}},
            r"has the pixels 8 bits in .*, 16 bits in",
        ),
    ],
)
def test_datasets_that_do_not_fit_are_refused_with_the_line(
    tmp_path: Path, values: tuple[Any, Any], options: dict[str, Any], message: str
) -> None:
    alike = {name: value for name, value in options.items() if name == "fields"}
    parts = [other(tmp_path / "a b.lmdb", values[0], **alike), other(tmp_path / "b.lmdb", values[1], **options)]
    for call in (mix, lambda parts: Loader(ConcatDataset(parts), 4)):
        with pytest.raises(OptionError, match=message) as caught:
            call(parts)
        assert f"`lmdbloader merge '{tmp_path}/a b.lmdb' {tmp_path}/b.lmdb -o both.lmdb`" in str(caught.value)


def test_damage_names_the_dataset_and_its_own_sample(both: list[LMDBDataset], tmp_path: Path) -> None:
    shutil.copytree(both[1].path, tmp_path / "damaged.lmdb")
    column = LMDBDataset(tmp_path / "damaged.lmdb").reader.index.arrays["image.offset"]
    with open(tmp_path / "damaged.lmdb" / "data.mdb", "r+b") as file:
        file.seek(int(column[7]) + 50)
        file.write(b"\x00\xff" * 20)
    mixed = mix([both[0], LMDBDataset(tmp_path / "damaged.lmdb")])
    for io in ("mmap", "pread"):
        with pytest.raises(CorruptError, match=r"damaged\.lmdb: field 'image' of sample 7: "):
            list(Loader(mixed, 4, io=io))  # type: ignore[arg-type]
        loader = Loader(mixed, 4, on_corrupt="skip", io=io)  # type: ignore[arg-type]
        assert 107 not in numbers(loader) and [damage.sample for damage in loader.corrupt] == [7]
    with pytest.raises(CorruptError, match=r"of sample 7"):
        mixed.union[FIRST + 7]


@pytest.mark.parametrize("io", ["mmap", "pread"])
@pytest.mark.parametrize("fraction", [1.0, 0.2])
def test_datasets_on_a_disk_and_at_a_url_are_read_together(tmp_path: Path, io: Any, fraction: float) -> None:
    first = write_dataset(tmp_path / "first.lmdb", seed=1, num_samples=150)
    second = write_dataset(tmp_path / "second.lmdb", seed=2, num_samples=400)
    with serving(objects_of(second)):
        remote = LMDBDataset("s3://bucket/train.lmdb", cache_dir=tmp_path / "cache", cache_fraction=fraction)
        local = mix([first, second], [1, 1])
        mixed = mix([first, remote], [1, 1])
        for order in ("random", "quasi_random", "sequential"):
            expected, found = (Loader(m, 32, order=order, seed=2) for m in (local, mixed))  # type: ignore[arg-type]
            for a, b in zip(expected, pickle.loads(pickle.dumps(found)), strict=True):
                assert torch.equal(a.image, b.image) and a.caption == b.caption
        assert mixed.union[150].caption == local.union[150].caption
        found = Loader(mixed, 32, shuffle=True, io=io)
        assert sum(len(batch.label) for batch in found) == 550
