"""Compiled functions of users: what they get, what they draw, what a Loader makes of them, and their own test."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lmdbloader
from lmdbloader import transforms as T
from lmdbloader.errors import OptionError

pytestmark = pytest.mark.filterwarnings("ignore:Loader:UserWarning")
COUNT = 60


def shade(image: Any, out: Any, amount: float, step: int, top: int) -> None:
    for c in range(image.shape[0]):
        for y in range(image.shape[1]):
            for x in range(image.shape[2]):
                out[c, y, x] = min(int(image[c, y, x]) // 2 + int(amount) + step + c, top)


def shaded(image: Any, amount: float, step: int, top: int) -> Any:
    """Return what `shade` makes of an image (C, H, W)."""
    return np.minimum(image.astype(np.int64) // 2 + int(amount) + step + np.arange(3)[:, None, None], top)


def mirror(image: Any, out: Any) -> None:
    width = image.shape[2]
    for c in range(image.shape[0]):
        for y in range(image.shape[1]):
            for x in range(width):
                out[c, y, x] = image[c, y, width - 1 - x]


def halve(image: Any, out: Any) -> None:
    for c in range(image.shape[0]):
        for y in range(image.shape[1]):
            for x in range(image.shape[2]):
                out[c, y, x] = image[c, y, x] / 2


def leave(image: Any, out: Any) -> None:
    out[0, 0, 0] = image[0, 0, 0]


def outside(image: Any, out: Any) -> None:
    for y in range(image.shape[1] + 1):
        out[0, y, 0] = 0


def draws_itself(image: Any, out: Any) -> None:
    out[0, 0, 0] = np.random.randint(0, 256)  # noqa: NPY002 - as users write it


def exceeds(image: Any, out: Any) -> None:
    out[0, 0, 0] = 300


def wraps(image: Any, out: Any) -> None:
    out[0, 0, 0] = min(image[0, 0, 0] * 2, 255)


def says_text(image: Any, out: Any) -> None:
    out[0, 0, 0] = "text"


@functools.cache
def shading() -> T.CompiledFunction:
    return T.CompiledFunction(shade, draw={"amount": (0.0, 64.0), "step": range(2, 7)}, parameters={"top": 180}, p=0.5)


@functools.cache
def halving() -> T.CompiledFunction:
    return T.CompiledFunction(halve)


@functools.cache
def mirroring(*fields: str) -> T.CompiledFunction:
    return T.CompiledFunction(mirror, fields=fields or None)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> lmdbloader.LMDBDataset:
    """Pairs of images that show their number, with labels and masks."""
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("functions") / "pairs.lmdb"
    items = (
        {
            "lr": rng.integers(0, 256, (12, 16, 3), dtype=np.uint8),
            "hr": rng.integers(0, 256, (24, 32, 3), dtype=np.uint8),
            "mask": rng.integers(0, 5, (24, 32), dtype=np.uint8),
            "number": i,
        }
        for i in range(COUNT)
    )
    lmdbloader.write(items, str(path), fields={"mask": lmdbloader.fields.Mask()})
    return lmdbloader.LMDBDataset(path)


@pytest.fixture(scope="module")
def pairs(dataset: lmdbloader.LMDBDataset) -> lmdbloader.LMDBDataset:
    return lmdbloader.LMDBDataset(dataset.path, fields=["lr", "hr", "number"])


def read(dataset: Any, transforms: Sequence[Any], batch_size: int = 16, epoch: int = 0, **options: Any) -> Any:
    """Return the fields of all samples in the order of their numbers."""
    loader = lmdbloader.Loader(dataset, batch_size, shuffle=True, seed=5, transforms=transforms, **options)
    loader.set_epoch(epoch)
    batches = list(loader)
    order = torch.cat([batch.number for batch in batches]).argsort(stable=True)
    columns = [torch.cat(column) for column in zip(*batches, strict=True)]
    # Older releases of torch take no rows of uint16.
    bits = [column.view(torch.int16) if column.dtype == torch.uint16 else column for column in columns]
    return type(batches[0])(*(b[order].view(column.dtype) for b, column in zip(bits, columns, strict=True)))


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_it_gets_images_drawn_values_and_parameters(pairs: Any, memory_format: torch.memory_format) -> None:
    stored = read(pairs, [])
    found = read(pairs, [shading()], memory_format=memory_format)
    chosen, values = shading().drawn(np.arange(COUNT), seed=5)
    assert 0.25 < chosen.mean() < 0.75
    assert {*values[:, 1]} == {2, 3, 4, 5, 6}
    for k in range(COUNT):
        for name in ("lr", "hr"):  # the same draw for both
            image = getattr(stored, name)[k].numpy()
            expected = shaded(image, *values[k], 180) if chosen[k] else image
            np.testing.assert_array_equal(getattr(found, name)[k].numpy(), expected)
    assert found.hr.is_contiguous() == (memory_format == torch.contiguous_format)


@pytest.mark.parametrize(("batch_size", "num_threads"), [(1, 1), (7, 2), (64, 2)])
def test_the_draws_depend_on_nothing_but_seed_epoch_and_sample(pairs: Any, batch_size: int, num_threads: int) -> None:
    steps = [T.RandomCrop(16), shading()]
    expected, found = read(pairs, steps, epoch=3), read(pairs, steps, batch_size, 3, num_threads=num_threads)
    assert all(map(torch.equal, expected, found))
    assert not torch.equal(expected.hr, read(pairs, steps, epoch=4).hr)


def test_samples_that_come_twice_have_draws_of_their_own(pairs: Any) -> None:
    first, second = read(pairs, [shading()], repeat=2).hr.unflatten(0, (COUNT, 2)).unbind(1)
    assert 10 < (first != second).flatten(1).any(1).sum() < COUNT


def test_it_changes_floats_that_are_converted_before_it(pairs: Any) -> None:
    steps = [T.ToDtype(torch.float32, scale=True)]
    expected, found = read(pairs, steps), read(pairs, [*steps, halving()])
    assert torch.equal(found.hr, expected.hr / 2)


def test_masks_change_if_they_are_named(dataset: Any) -> None:
    stored = read(dataset, [])
    found = read(dataset, [mirroring("lr", "hr", "mask")])
    assert torch.equal(found.mask, stored.mask.flip(-1))
    assert torch.equal(found.hr, stored.hr.flip(-1))
    found = read(dataset, [mirroring("hr")])
    assert torch.equal(found.mask, stored.mask) and torch.equal(found.lr, stored.lr)


def test_masks_are_not_left_behind_silently(dataset: Any) -> None:
    with pytest.raises(OptionError, match=r"the dataset has 'mask'.*fields=\('lr', 'hr', 'mask'\)"):
        lmdbloader.Loader(dataset, 4, transforms=[mirroring()])


def test_arrays_of_the_images_size_are_not_left_behind_silently(tmp_path: Path) -> None:
    arrays = {"depth": np.zeros((1, 8, 6), np.float32), "pose": np.zeros(7, np.float32)}
    lmdbloader.write(({"image": np.full((8, 6, 3), i, np.uint8), **arrays} for i in range(4)), tmp_path / "x.lmdb")
    with pytest.raises(OptionError, match=r"field 'depth' holds arrays of the size of 'image'.*fields=\('image',\)"):
        lmdbloader.Loader(tmp_path / "x.lmdb", 4, transforms=[mirroring()])
    loader = lmdbloader.Loader(tmp_path / "x.lmdb", 4, transforms=[mirroring("image")])
    assert next(iter(loader)).depth.shape == (4, 1, 8, 6)


def test_what_a_function_returned_stays_as_it_is(pairs: Any) -> None:
    kept: list[torch.Tensor] = []

    def keep(batch: Any) -> Any:
        kept.append(batch.hr)
        return batch._replace(lr=batch.hr)  # one tensor for both: a change in place would be seen twice

    stored = next(iter(lmdbloader.Loader(pairs, 8)))
    batch = next(iter(lmdbloader.Loader(pairs, 8, transforms=[keep, mirroring()])))
    assert torch.equal(kept[0], stored.hr)
    assert torch.equal(batch.hr, stored.hr.flip(-1)) and torch.equal(batch.lr, batch.hr)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"function": shade}, r"missing a required argument: 'amount'; expected def shade\(image, out\)"),
        ({"function": leave, "draw": {"angle": (0, 1)}}, r"expected def leave\(image, out, angle\)"),
        ({"function": leave, "draw": {"image": (0, 1)}}, "Rename it"),
        ({"function": leave, "draw": {"a": (2, 1)}}, r"draw=\{'a': \(2, 1\)\}.*expected \(low, high\)"),
        ({"function": leave, "draw": {"a": range(2**53, 2**53 + 2)}}, r"expected \(low, high\)"),
        ({"function": leave, "draw": {"a": 3}}, r"expected \(low, high\)"),
        ({"function": leave, "draw": 5}, "expected a dict with the names"),
        ({"function": leave, "parameters": {"a": "text"}}, "a number or a NumPy array"),
        ({"function": leave, "p": 1.5}, "a probability from 0 to 1"),
        ({"function": leave, "fields": "hr"}, r"such as fields=\('image',\)"),
        ({"function": leave, "fields": [5]}, "expected names"),
        ({"function": functools.partial(shade, top=3)}, "expected a Python function"),
    ],
)
def test_invalid_arguments_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        T.CompiledFunction(**options)


def test_a_loader_refuses_what_does_not_suit(pairs: Any) -> None:
    with pytest.raises(OptionError, match="no field 'depth' of images or masks; there are lr, hr"):
        lmdbloader.Loader(pairs, 4, transforms=[mirroring("depth")])
    with pytest.raises(OptionError, match=r"the pixels are torch.float16.*Put ToDtype after it"):
        lmdbloader.Loader(pairs, 4, transforms=[T.ToDtype(torch.float16), mirroring()])
    with pytest.raises(OptionError, match=r"mirror \(.*comes before RandomCrop"):
        lmdbloader.Loader(pairs, 4, transforms=[mirroring(), T.RandomCrop(8)])
    with pytest.raises(OptionError, match=r"says_text\): Numba cannot compile it for uint8 pixels.*setitem"):
        lmdbloader.Loader(pairs, 4, transforms=[T.CompiledFunction(says_text)])
    turned = [lambda batch: batch._replace(hr=[1]), mirroring()]
    with pytest.raises(OptionError, match="'hr' is a list; expected a tensor of 4 images"):
        list(lmdbloader.Loader(pairs, 4, transforms=turned))


# Addresses


# The test of a function


@pytest.fixture
def image() -> Any:
    return np.random.default_rng(1).integers(128, 256, (3, 5, 6), dtype=np.uint8)


def test_a_sound_function_passes_its_test(image: Any) -> None:
    changed = shading().check(image, seed=2)
    _, values = shading().drawn(np.arange(4), seed=2)
    np.testing.assert_array_equal(changed.numpy(), [shaded(image, *row, 180) for row in values])
    floats = torch.from_numpy(image.astype(np.float32))
    assert torch.equal(halving().check(floats[None]), floats[None] / 2)


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (outside, IndexError, "out of bounds"),
        (draws_itself, OptionError, "in Python and compiled.*draw random values with `draw`"),
        (wraps, OptionError, "in Python and compiled.*wrap around at 256"),
        (exceeds, OptionError, "in Python.*300 out of bounds for uint8.*limit the result"),
        (says_text, OptionError, "Numba cannot compile it"),
    ],
)
def test_an_unsound_function_fails_its_test(image: Any, function: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        T.CompiledFunction(function).check(image)


def returns(image: Any, out: Any) -> Any:
    return 255 - image


def changes_in_place(image: Any, out: Any) -> None:
    """As functions of NumPy and of FFCV often do."""
    image[:] = 255 - image


def assigns(image: Any, out: Any) -> None:
    out = 255 - image  # noqa: F841 - as users write it


def assigns_and_returns(image: Any, out: Any) -> Any:
    out = 255 - image
    return out


def generates(image: Any, out: Any) -> Any:
    out[0, 0, 0] = 1
    yield


def test_a_function_whose_result_would_be_lost_is_refused(image: Any) -> None:
    for function in (returns, assigns, changes_in_place, lambda image, out: image):
        with pytest.raises(OptionError, match=r"never uses `out`, so nothing changes. Write into it, out\[:\] = "):
            T.CompiledFunction(function)
    with pytest.raises(OptionError, match="has `yield` or `async`, so a call does nothing"):
        T.CompiledFunction(generates)
    with pytest.raises(OptionError, match="it returned a ndarray, which is ignored"):
        T.CompiledFunction(assigns_and_returns).check(image)


# Numba


SHIFT, TABLE = 3, np.arange(256, dtype=np.uint8)


def shift_by_globals(image: Any, out: Any) -> None:
    for c in range(image.shape[0]):
        for y in range(image.shape[1]):
            for x in range(image.shape[2]):
                out[c, y, x] = (int(TABLE[image[c, y, x]]) + SHIFT) % 256


def shift_by(amount: Any) -> T.CompiledFunction:
    def shift(image: Any, out: Any) -> None:
        for c in range(image.shape[0]):
            for y in range(image.shape[1]):
                for x in range(image.shape[2]):
                    out[c, y, x] = image[c, y, x] + amount

    return T.CompiledFunction(shift)


def test_numba_compiles_equal_functions_once(image: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    numba = pytest.importorskip("numba")
    calls, cfunc = [], numba.cfunc
    monkeypatch.setattr(numba, "cfunc", lambda *arguments: calls.append(1) or cfunc(*arguments))
    for _ in range(20):
        for function in (
            shift_by(5),
            shift_by(6),
            T.CompiledFunction(shift_by_globals),
            T.CompiledFunction(mirror),
            T.CompiledFunction(shade, draw={"amount": (0.0, 1.0)}, parameters={"step": 1, "top": 200}),
        ):
            function.prepare(torch.uint8)
    assert len(calls) <= 5


def test_functions_with_other_values_are_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")

    def changed(function: T.CompiledFunction) -> int:
        images = torch.full((1, 1, 2, 2), 10, dtype=torch.uint8)
        function.change(images, np.ones(1, np.bool_), np.zeros((1, len(function.draw))))
        return int(images[0, 0, 0, 0])

    assert [changed(shift_by(amount)) for amount in (1, 2, np.uint8(3), 1)] == [11, 12, 13, 11]
    assert changed(T.CompiledFunction(shift_by_globals)) == 13
    monkeypatch.setitem(globals(), "SHIFT", 4)
    assert changed(T.CompiledFunction(shift_by_globals)) == 14
    monkeypatch.setitem(globals(), "TABLE", TABLE + 20)
    assert changed(T.CompiledFunction(shift_by_globals)) == 34
    TABLE[10] = 50  # in place
    assert changed(T.CompiledFunction(shift_by_globals)) == 54
    for top in (200, 12, 200.0):
        given = {"step": 40, "top": top}
        assert changed(T.CompiledFunction(shade, draw={"amount": (0.0, 1.0)}, parameters=given)) == min(45, top)


def numbered(image: Any, out: Any, weights: Any, first: float, between: float = 7.0, last: float = 0.0) -> None:
    out[0, 0, 0], out[0, 0, 1], out[0, 0, 2] = int(first), int(between), int(last)
    out[0, 0, 3] = int(weights[0])


def test_values_get_the_arguments_of_their_names(image: Any) -> None:
    """Whatever the order of `draw`, and with a default in between."""
    function = T.CompiledFunction(
        numbered, draw={"last": (10.0, 11.0), "first": (50.0, 51.0)}, parameters={"weights": np.array([3.0])}
    )
    assert np.asarray(function.check(image))[:, 0, 0, :4].tolist() == [[50, 7, 10, 3]] * 4
