"""LMDBDataset: samples, every way of choosing them, views, transforms, crops, damage; memory does not grow."""

from __future__ import annotations

import copy
import gc
import itertools
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import lmdbloader
from lmdbloader import LMDBDataset
from lmdbloader.batch.sample import Batch
from lmdbloader.errors import OptionError

COUNT = 24
PATCHES_A_PHOTO = 6


def samples_of_every_kind() -> list[dict[str, Any]]:
    """Return samples that hold every kind of field; images (H, W, C) as `write` takes them."""
    rng = np.random.default_rng(7)
    return [
        {
            "image": rng.integers(0, 256, (6, 8, 3), dtype=np.uint8),
            "depth": rng.integers(0, 65536, (5 + i % 3, 4, 1), dtype=np.uint16),
            "label": i % 4,
            "weight": i / 8,
            "name": f"sample {i} é",
            "blob": bytes([i]) * i,
            "extra": {"number": i, "list": [None, True, 0.5]},
            "vector": rng.standard_normal(3).astype(np.float32),
            "count": np.array([i, 2**31 + i], np.uint32),
        }
        for i in range(COUNT)
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("datasets")


@pytest.fixture(scope="module")
def written() -> list[dict[str, Any]]:
    return samples_of_every_kind()


@pytest.fixture(scope="module")
def mixed(folder: Path, written: list[dict[str, Any]]) -> LMDBDataset:
    """A dataset of every kind of field."""
    fields = dict.fromkeys(written[0]) | {"count": lmdbloader.fields.Array()}
    lmdbloader.write(written, folder / "mixed", fields=fields)
    return LMDBDataset(folder / "mixed")


@pytest.fixture(scope="module")
def pairs(folder: Path, photos: Path) -> LMDBDataset:
    """Pairs of patches of eight photographs, six of each."""
    lmdbloader.convert(photos, folder / "pairs", patch_size=96, scale=2, codec="lz4", workers=1)
    return LMDBDataset(folder / "pairs")


def tall_image(kind: type[np.generic], channels: int) -> NDArray[Any]:
    top = np.iinfo(kind).max  # type: ignore[type-var]
    height, width = 331, 290
    plane = np.add.outer(np.arange(height) * 3, np.arange(width))[:, :, None] + np.arange(channels) * 50
    return (plane * 37 % (int(top) + 1)).astype(kind)


LARGE = [tall_image(np.uint8, 3), tall_image(np.uint16, 3), tall_image(np.uint16, 1), tall_image(np.uint8, 3)[:40, :50]]


@pytest.fixture(scope="module")
def large(folder: Path) -> LMDBDataset:
    """Images of several sizes and depths; the first three are stored in tiles."""
    lmdbloader.write([{"image": image} for image in LARGE], folder / "large", codec="lz4")
    return LMDBDataset(folder / "large")


def chw(image: NDArray[Any]) -> NDArray[Any]:
    return np.moveaxis(image, 2, 0)


def check_equal(sample: Any, expected: dict[str, Any]) -> None:
    """Fail unless a sample equals the one that was written."""
    assert sample._fields == tuple(expected)
    for name, value in expected.items():
        found = getattr(sample, name)
        if isinstance(value, np.ndarray):
            wanted = chw(value) if name in ("image", "depth") else value
            assert isinstance(found, torch.Tensor)
            assert found.numpy().dtype == wanted.dtype
            np.testing.assert_array_equal(found.numpy(), wanted)
        else:
            assert type(found) is type(value)
            assert found == value


def labels_of(samples: Any) -> list[int]:
    return [sample.label for sample in samples]


def names_of(ds: LMDBDataset) -> list[str]:
    return [sample.name for sample in ds]


def test_every_kind_of_field_comes_back_as_it_was_written(mixed: LMDBDataset, written: list[dict[str, Any]]) -> None:
    for i, expected in enumerate(written):
        check_equal(mixed[i], expected)


@given(number=st.integers(-COUNT - 3, COUNT + 2))
@pytest.mark.parametrize("kind", [int, np.int64, np.int16, np.array, torch.tensor])
def test_a_number_is_an_index_as_in_a_list(mixed: LMDBDataset, kind: Callable[[int], Any], number: int) -> None:
    names = [f"sample {i} é" for i in range(COUNT)]
    if -COUNT <= number < COUNT:
        assert mixed[kind(number)].name == names[number]
    else:
        with pytest.raises(IndexError, match=rf"sample {number} of a dataset of {COUNT} samples"):
            mixed[kind(number)]


@pytest.mark.parametrize("kind", [list, tuple, np.array, torch.tensor], ids=["list", "tuple", "array", "tensor"])
@pytest.mark.parametrize("numbers", [[5], [3, 0, 3], [-1, 1], [COUNT - 1, -COUNT]])
def test_numbers_are_a_view(mixed: LMDBDataset, kind: Callable[[list[int]], Any], numbers: list[int]) -> None:
    view = mixed[kind(numbers)]

    assert isinstance(view, LMDBDataset)
    assert names_of(view) == [f"sample {i % COUNT} é" for i in numbers]


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor], ids=["list", "array", "tensor"])
def test_a_mask_gives_a_view_of_its_true_samples(mixed: LMDBDataset, kind: Callable[[list[bool]], Any]) -> None:
    mask = [i % 5 == 0 for i in range(COUNT)]

    assert names_of(mixed[kind(mask)]) == [f"sample {i} é" for i in range(0, COUNT, 5)]
    with pytest.raises(OptionError, match=r"a mask of shape \(3,\) for a dataset of 24 samples"):
        mixed[kind([True, False, True])]


@given(data=st.data())
def test_views_of_views_count_from_the_view(mixed: LMDBDataset, data: st.DataObject) -> None:
    expected, view = list(range(COUNT)), mixed
    for _ in range(3):
        chosen = data.draw(st.slices(len(expected)) | st.lists(st.integers(-4, 3), max_size=10))
        if isinstance(chosen, list) and len(expected) < 4:
            chosen = []
        expected = expected[chosen] if isinstance(chosen, slice) else [expected[i] for i in chosen]
        view = view[chosen]

    assert names_of(view) == [f"sample {i} é" for i in expected]
    assert view.table.column("name").to_pylist() == [f"sample {i} é" for i in expected]


def test_fields_are_chosen_and_ordered(mixed: LMDBDataset, written: list[dict[str, Any]]) -> None:
    ds = LMDBDataset(mixed.path, fields=["label", "image"])

    assert list(ds.fields) == ["label", "image"]
    check_equal(ds[3], {"label": 3, "image": written[3]["image"]})
    label, _image = ds[-1]
    assert label == written[-1]["label"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (["label", "mask"], "no field 'mask'; it has image, depth"),
        ([], "expected at least one name, each once"),
        (["image", "image"], "expected at least one name, each once"),
        ("image", r"fields='image': expected a list of names, such as \['image'\]"),
    ],
)
def test_fields_that_cannot_be_read_are_refused(mixed: LMDBDataset, fields: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        LMDBDataset(mixed.path, fields=fields)


class Doubled(LMDBDataset):
    """Returns a label times a factor that it was made with."""

    def __init__(self, path: str, *, factor: int) -> None:
        super().__init__(path, fields=["label"])
        self.factor = factor

    def transform(self, sample: Any) -> int:
        return int(sample.label) * self.factor


@pytest.mark.parametrize(
    "view",
    [
        lambda ds: ds,
        lambda ds: ds[2:],
        lambda ds: ds.select([2, 3]),
        lambda ds: ds.where("label >= 2"),
        lambda ds: ds[2:].split([1.0])[0],
        lambda ds: pickle.loads(pickle.dumps(ds)),
        lambda ds: pickle.loads(pickle.dumps(ds[2:])),
        copy.copy,
        copy.deepcopy,
    ],
)
def test_a_subclass_overrides_transform_and_views_keep_its_state(
    mixed: LMDBDataset, view: Callable[[LMDBDataset], LMDBDataset]
) -> None:
    ds = view(Doubled(mixed.path, factor=10))
    plain = labels_of(mixed)[-len(ds) :] if len(ds) > 12 else [2, 3] * (len(ds) // 2)

    assert type(ds) is Doubled
    assert ds.factor == 10
    assert list(ds) == list(ds._many(range(len(ds)))) == [10 * label for label in plain]


@pytest.mark.parametrize("name", ["mixed", "large"])
def test_samples_batches_and_datasets_pickle(name: str, request: pytest.FixtureRequest) -> None:
    ds: LMDBDataset = request.getfixturevalue(name)

    def same(a: Any, b: Any) -> None:
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(np.asarray(x), np.asarray(y))

    numbers = [1, 0, 2, 2]
    batch = pickle.loads(pickle.dumps(ds._many(numbers)))
    again = pickle.loads(pickle.dumps(ds))
    view = pickle.loads(pickle.dumps(ds[numbers]))
    assert isinstance(batch, Batch)
    assert len(view) == len(batch) == len(numbers)
    for place, number in enumerate(numbers):
        for found in (
            pickle.loads(pickle.dumps(ds[number])),
            copy.deepcopy(ds[number]),
            batch[place],
            again[number],
            view[place],
        ):
            assert type(found) is type(ds[number])
            same(found, ds[number])


@settings(max_examples=50)
@given(
    weights=st.lists(st.integers(1, 50), min_size=1, max_size=8),
    seed=st.integers(0, 1000),
    by=st.sampled_from(["source", None]),
)
def test_a_split_shares_every_sample_out_once(
    pairs: LMDBDataset, weights: list[int], seed: int, by: str | None
) -> None:
    fractions = [w / sum(weights) for w in weights]
    group = PATCHES_A_PHOTO if by else 1
    places = pairs.table.select(["source", "top", "left"]).to_pylist()

    parts = [
        view.table.select(["source", "top", "left"]).to_pylist() for view in pairs.split(fractions, seed=seed, by=by)
    ]

    assert sorted(map(str, itertools.chain(*parts))) == sorted(map(str, places))
    for part, fraction in zip(parts, fractions, strict=True):
        assert part == [place for place in places if place in part]  # in the dataset's order
        assert part
        assert len(part) % group == 0
        assert abs(len(part) - fraction * len(places)) <= group * len(parts)


def test_a_split_by_a_column_and_of_a_view(mixed: LMDBDataset) -> None:
    parts = mixed[4:].split([0.5, 0.5], by="label")

    assert sorted(labels_of(parts[0]) + labels_of(parts[1])) == sorted([i % 4 for i in range(4, COUNT)])
    assert not set(labels_of(parts[0])) & set(labels_of(parts[1]))
    groups = [str(label % 4) for label in labels_of(mixed[4:])]
    numbers = torch.tensor([label % 4 for label in labels_of(mixed[4:])])
    with_nan = [float("nan") if group == "0" else float(group) for group in groups]
    for by in (groups, np.array(groups), pa.chunked_array([groups]), numbers, numbers[:, None].numpy(), with_nan):
        again = mixed[4:].split([0.5, 0.5], by=by)
        assert not set(labels_of(again[0])) & set(labels_of(again[1]))
        assert sum(map(len, again)) == COUNT - 4


def test_a_split_into_more_parts_than_there_are_groups_is_refused(pairs: LMDBDataset, mixed: LMDBDataset) -> None:
    with pytest.raises(OptionError, match=r"6 samples in 1 groups .* cannot be split into 2 parts"):
        pairs[:PATCHES_A_PHOTO].split([0.5, 0.5])
    with pytest.raises(OptionError, match="2 samples in 2 groups"):
        mixed[:2].split([0.2, 0.3, 0.5], by=None)
    with pytest.raises(OptionError, match="by='place'; expected one of"):
        mixed.split([0.5, 0.5], by="place")
    with pytest.raises(OptionError, match="by: found 3 values for 4 samples"):
        mixed[:4].split([0.5, 0.5], by=[1, 2, 3])
    for by in ([[1, 2]] * 4, np.zeros((4, 2)), torch.zeros(4, 2)):
        with pytest.raises(OptionError, match=r"expected one number or text for each sample"):
            mixed[:4].split([0.5, 0.5], by=by)
    with pytest.raises(OptionError, match=r"by=.*expected a list"):
        mixed.split([0.5, 0.5], by=str.upper)  # type: ignore[arg-type]


def test_the_table_has_the_small_columns(mixed: LMDBDataset, written: list[dict[str, Any]], pairs: LMDBDataset) -> None:
    table = mixed[::2].table

    assert table.num_rows == COUNT // 2
    assert table.column("label").to_pylist() == [s["label"] for s in written[::2]]
    assert table.column("weight").to_pylist() == [s["weight"] for s in written[::2]]
    assert table.column("depth.height").to_pylist() == [s["depth"].shape[0] for s in written[::2]]
    assert {"source", "top", "left", "hr.width"} <= set(pairs.table.column_names)
    assert not {name for name in table.column_names if name.endswith(("offset", "checksum", "codec"))}


def test_options_of_a_cache_are_refused_for_a_dataset_on_a_disk(folder: Path, pairs: LMDBDataset) -> None:
    options: tuple[dict[str, Any], ...] = ({"cache_fraction": 0.2}, {"cache_fraction": 1.0}, {"cache_dir": "cache"})
    for option in options:
        ((name, value),) = option.items()
        with pytest.raises(OptionError, match=rf"{name}={value!r}.*pairs is on a disk, and only a dataset"):
            LMDBDataset(folder / "pairs", **option)


@given(data=st.data(), number=st.integers(-4, 3))
def test_a_crop_is_a_slice_of_the_image(large: LMDBDataset, data: st.DataObject, number: int) -> None:
    height, width, _ = LARGE[number].shape
    top, left = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
    bottom, right = data.draw(st.integers(top + 1, height)), data.draw(st.integers(left + 1, width))

    crop = large.crop(number, top=top, left=left, height=bottom - top, width=right - left)

    np.testing.assert_array_equal(crop.numpy(), chw(LARGE[number][top:bottom, left:right]))
    assert crop.numpy().dtype == LARGE[number].dtype


@pytest.mark.parametrize(
    ("top", "left", "height", "width"),
    [(-1, 0, 4, 4), (0, -1, 4, 4), (0, 0, 0, 4), (0, 0, 4, 0), (328, 0, 4, 4), (0, 287, 4, 4), (0, 0, 400, 4)],
)
def test_a_crop_that_is_not_inside_is_refused(large: LMDBDataset, top: int, left: int, height: int, width: int) -> None:
    with pytest.raises(OptionError, match="is not inside the image of 331x290"):
        large.crop(0, top=top, left=left, height=height, width=width)


def test_a_crop_needs_a_clear_field_and_a_sample(pairs: LMDBDataset, large: LMDBDataset) -> None:
    window = {"top": 0, "left": 0, "height": 2, "width": 3}
    with pytest.raises(OptionError, match="expected one of its image fields: lr, hr"):
        pairs.crop(0, **window)
    with pytest.raises(OptionError, match="field='label'"):
        pairs.crop(0, **window, field="label")
    with pytest.raises(IndexError):
        large.crop(4, **window)
    assert pairs.crop(3, **window, field="lr").equal(pairs[3].lr[:, :2, :3])
    assert pairs[10:].crop(3, **window, field="hr").equal(pairs[13].hr[:, :2, :3])


def test_a_tensor_outlives_the_dataset(folder: Path, pairs: LMDBDataset) -> None:
    ds = LMDBDataset(folder / "pairs")
    kept = [ds[3].hr, ds._many([3, 4])[0].hr, ds.crop(3, top=0, left=0, height=96, width=96, field="hr")]
    del ds
    gc.collect()

    assert all(tensor.equal(pairs[3].hr) for tensor in kept)
    for tensor in kept:
        tensor += 1  # theirs to write to
    assert not kept[0].equal(pairs[3].hr)


def test_a_batch_that_is_held_never_changes(pairs: LMDBDataset) -> None:
    ds = pairs
    rng = np.random.default_rng(0)
    held: list[tuple[torch.Tensor, torch.Tensor]] = []
    for turn in range(60):
        batch = ds._many(rng.integers(0, len(ds), 16).tolist())
        if turn % 3 == 0:
            column = batch.columns["hr"]
            # Any of these may be the last reference to a batch.
            part = (column, column[5], batch[2].hr, column.view(-1)[100:], column[3:4].permute(1, 0, 2, 3))[turn % 5]
            held.append((part, part.clone()))
        del batch

    assert all(part.equal(copied) for part, copied in held)


def test_memory_stays_flat(pairs: LMDBDataset) -> None:
    def anonymous() -> int:
        text = Path("/proc/self/status").read_text()
        return int(text.split("RssAnon:")[1].split()[0])

    numbers = list(range(len(pairs))) * 4
    for _ in range(5):
        pairs._many(numbers)
    before = anonymous()
    for _ in range(100):  # 660 MB of pixels
        pairs._many(numbers)
    assert anonymous() - before < 30_000


# As torchvision's ImageFolder


@pytest.fixture(scope="module")
def labeled(tmp_path_factory: pytest.TempPathFactory) -> LMDBDataset:
    path = tmp_path_factory.mktemp("labeled") / "d.lmdb"
    samples = ({"image": np.zeros((8, 8), np.uint8), "label": i % 3, "age": i} for i in range(9))
    lmdbloader.write(samples, path, classes={"label": ["ant", "bee", "cat"]})
    return LMDBDataset(path)


def test_labels_and_classes_are_those_of_an_image_folder(labeled: LMDBDataset) -> None:
    assert labeled.class_to_idx == {"ant": 0, "bee": 1, "cat": 2}
    assert labeled.targets == (0, 1, 2) * 3 == tuple(sample.label for sample in labeled)
    assert labeled.targets is labeled.targets  # people ask for it in a loop
    assert all(type(target) is int for target in labeled.targets)


def test_every_view_has_its_own_targets(labeled: LMDBDataset) -> None:
    assert labeled.targets[:1] == (0,)
    assert labeled[::-2].targets == (2, 0, 1, 2, 0)
    assert labeled.select([4, 4, -1]).targets == (1, 1, 2)
    assert labeled.with_io("pread").targets == labeled.targets
    assert copy.copy(labeled[3:5]).targets == pickle.loads(pickle.dumps(labeled[3:5])).targets == (0, 1)


def test_a_dataset_without_labels_has_no_targets(tmp_path: Path) -> None:
    for name in ("age", "text"):
        lmdbloader.write([{name: 3 if name == "age" else "three"}], tmp_path / name)
        ds = LMDBDataset(tmp_path / name)
        assert not hasattr(ds, "targets")
        with pytest.raises(AttributeError, match="targets: the dataset has no labels"):
            _ = ds.targets
