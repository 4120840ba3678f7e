"""The samples of `write` in groups: arrays that are alike are stored as any others, and preparation comes first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmdbloader import LMDBDataset, write
from lmdbloader.errors import OptionError
from lmdbloader.fields import Array

FILES = ("data.mdb", "index.arrow", "manifest.json")


def content(path: Path) -> list[bytes]:
    return [(path / name).read_bytes() for name in FILES]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


# --- arrays that are alike ---


def with_layout(array: np.ndarray[Any, Any], layout: str) -> np.ndarray[Any, Any]:
    """Return an equal array that lies differently in memory."""
    if layout == "columns first":
        return np.asfortranarray(array)
    if layout == "other order of bytes":
        return array.astype(array.dtype.newbyteorder())
    if layout == "reversed":
        return np.ascontiguousarray(array[::-1])[::-1]
    if layout == "every second":
        wide = np.zeros((array.shape[0], 2 * array.shape[1], *array.shape[2:]), array.dtype)
        wide[:, ::2] = array
        return wide[:, ::2]
    return array


LAYOUTS = ("plain", "columns first", "reversed", "every second", "other order of bytes")
SHAPES = ((4, 6), (4, 6, 1), (4, 6, 3), (6, 4, 3), (1, 1, 3))


@settings(max_examples=20, deadline=None)
@given(data=st.data(), codec=st.sampled_from(["raw", "lz4", "auto"]), bits=st.sampled_from([8, 16]))
def test_images_alike_or_not_come_back(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, codec: str, bits: int
) -> None:
    shapes = data.draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=12))
    rng = np.random.default_rng(data.draw(st.integers(0, 9)))
    images = [rng.integers(0, 2**bits, shape).astype(f"u{bits // 8}") for shape in shapes]
    given = [with_layout(image, data.draw(st.sampled_from(LAYOUTS))) for image in images]
    out = tmp_path_factory.mktemp("alike") / "out"
    write([{"image": image, "number": i} for i, image in enumerate(given)], out, codec=codec)
    for expected, found in zip(images, LMDBDataset(out), strict=True):
        planes = np.moveaxis(expected if expected.ndim == 3 else expected[:, :, None], 2, 0)
        np.testing.assert_array_equal(found.image.numpy(), planes)


@settings(max_examples=15, deadline=None)
@given(data=st.data(), codec=st.sampled_from(["raw", "lz4", "auto"]))
def test_arrays_alike_or_not_come_back(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, codec: str
) -> None:
    kinds = data.draw(st.lists(st.sampled_from(["<f4", ">f4", "<i8", "?", "u1"]), min_size=1, max_size=12))
    shape = data.draw(st.sampled_from([(), (0,), (5,), (2, 3, 4)]))
    arrays = [(np.random.default_rng(i).random(shape) * 9).astype(kind) for i, kind in enumerate(kinds)]
    out = tmp_path_factory.mktemp("alike") / "out"
    write([{"x": array} for array in arrays], out, codec=codec, fields={"x": Array()})
    for expected, found in zip(arrays, LMDBDataset(out), strict=True):
        np.testing.assert_array_equal(np.asarray(found.x), expected)


def test_records_of_images_alike_are_those_of_images_of_pillow(tmp_path: Path) -> None:
    from PIL import Image

    images = [np.random.default_rng(i).integers(0, 256, (9, 8, 3)).astype(np.uint8) for i in range(30)]
    write([{"image": image} for image in images], tmp_path / "arrays")
    write([{"image": Image.fromarray(image)} for image in images], tmp_path / "pillow")
    assert content(tmp_path / "arrays") == content(tmp_path / "pillow")


# --- the order of bytes ---


@pytest.mark.parametrize("dtype", [">i8", "<i8"])
def test_an_array_of_labels_of_any_byte_order_is_taken_for_a_mask(out: Path, dtype: str) -> None:
    labels = {"image": np.zeros((8, 8, 3), np.uint8), "seg": (np.eye(8) * 3).astype(dtype)}
    with pytest.raises(OptionError, match=r"field 'seg' looks like a mask by its name and values"):
        write([labels], out)


# --- preparation ---


def halved(sample: Any) -> dict[str, Any]:
    return {"image": sample[0][::2, ::2], "label": sample[1] + 1}


def pairs(count: int) -> list[tuple[np.ndarray[Any, Any], int]]:
    return [(np.full((8, 6, 3), i, np.uint8), i) for i in range(count)]


def test_what_prepare_returns_is_stored(out: Path) -> None:
    write(pairs(3), out, prepare=halved)
    assert [(s.image.shape, int(s.image[0, 0, 0]), s.label) for s in LMDBDataset(out)] == [
        ((3, 4, 3), 0, 1),
        ((3, 4, 3), 1, 2),
        ((3, 4, 3), 2, 3),
    ]
    manifest = json.loads((out / "manifest.json").read_bytes())
    assert manifest["made_by"]["options"]["prepare"] == "halved"


@pytest.mark.parametrize("kind", ["list", "iterator", "range"])
def test_prepare_runs_once_for_each_sample_in_order(out: Path, kind: str) -> None:
    seen: list[int] = []

    def noted(number: int) -> dict[str, int]:
        seen.append(number)
        return {"number": number}

    samples: Any = {"list": list(range(200)), "iterator": iter(range(200)), "range": range(200)}[kind]
    write(samples, out, prepare=noted)
    assert seen == list(range(200))
    assert [s.number for s in LMDBDataset(out)] == seen


class Named:
    """Pairs of an image and a label, as torchvision's datasets have them."""

    classes = ("cat", "dog", "eel")

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        return np.full((4, 5, 3), index, np.uint8), index % 3


def as_dict(sample: Any) -> dict[str, Any]:
    return {"image": sample[0][::2], "label": np.int64(sample[1]), "extra": 1.5}


def renumbered(sample: Any) -> Any:
    return sample[0], (sample[1] + 1) % 3


def renumbered_dict(sample: Any) -> Any:
    return {"image": sample[0], "label": max(sample[1], 1)}


def test_preparation_that_keeps_labels_keeps_the_names_of_classes(out: Path) -> None:
    write(Named(), out, prepare=as_dict)
    dataset = LMDBDataset(out)
    assert dataset.classes == Named.classes
    assert [sample.label for sample in dataset] == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize("workers", [None, 2])
@pytest.mark.parametrize("prepare", [renumbered, renumbered_dict])
def test_preparation_that_changes_labels_needs_their_names(out: Path, prepare: Any, workers: int | None) -> None:
    with pytest.raises(OptionError, match=r"sample 0: prepare changed its label from 0 to 1, .*classes=\{"):
        write(Named(), out, prepare=prepare, workers=workers)
    write(Named(), out, prepare=prepare, classes={"label": ["a", "b", "c"]}, workers=workers, restart=True)
    assert LMDBDataset(out).classes == ("a", "b", "c")
    write(Named(), out, prepare=prepare, classes={}, overwrite=True)
    assert not LMDBDataset(out).classes
