"""Colors that torch changes are those of a Loader, bit for bit, without waiting for the device."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from cuda_device import DEVICE, NEEDS_CUDA
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.utils._python_dispatch import TorchDispatchMode
from transform_reference import COLORS

import lmdbloader
from lmdbloader import LMDBDataset, Loader, fields
from lmdbloader import transforms as T
from lmdbloader.batch.params import _redraw
from lmdbloader.batch.pipeline import Pipeline
from lmdbloader.kernels.transform import opcodes as op
from lmdbloader.store import Reader
from lmdbloader.transforms.colors_in_torch import change_colors

COUNT = 12
SIZES = ((1, 1), (1, 9), (2, 3), (3, 2), (5, 7), (17, 40), (64, 33), (64, 64))


def pictures(folder: Path, channels: int, height: int, width: int, dtype: Any) -> np.ndarray:
    """Return images (COUNT, C, H, W): of one color, noise of all and of a few levels, grays, and photographs."""
    rng, top = np.random.default_rng([channels, height, width]), np.iinfo(dtype).max
    found = rng.integers(0, top + 1, (COUNT, channels, height, width))
    found[0], found[1], found[2] = 0, top, rng.integers(0, top + 1, (channels, 1, 1))
    found[3] = found[3] * 9 // top + top // 2
    found[4, :] = found[4, 0]
    found[5] = np.sort(found[5])
    for k, file in zip(range(6, COUNT), sorted(folder.glob("*.png")), strict=False):
        photo = np.asarray(Image.open(file).convert("RGB"))[60 : 60 + height, 90 : 90 + width, np.arange(channels) % 3]
        found[k] = photo.transpose(2, 0, 1).astype(int) * (1 if top == 255 else 257) - (top > 255) * photo[0, 0, 0] // 2
    return found.clip(0, top).astype(dtype)


@pytest.fixture(scope="module")
def sets(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a function that gives the path of a dataset of images of some channels, size and type."""
    folder, made = tmp_path_factory.mktemp("colors"), set()

    def get(channels: int, size: tuple[int, int], dtype: Any) -> Path:
        path = folder / f"{channels}-{size}-{np.dtype(dtype).name}"
        if path not in made:
            images = map(torch.from_numpy, pictures(photos, channels, *size, dtype))
            lmdbloader.write(({"image": image} for image in images), path, fields={"image": fields.Image()})
            made.add(path)
        return path

    return get


def drawn_by(path: Path, transform: Any, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of each sample's operation, of which it has one at most, and whether there is one."""
    rows = np.arange(COUNT)
    _, _, applied, numbers, _ = _redraw(Pipeline(Reader(path), ["image"], [transform], seed=seed), rows, rows, 0, 0)
    is_one = (applied != 0) & (numbers[:, :, op.COLOR_CODE] >= op.JITTER)
    return numbers[rows, is_one.argmax(1)], is_one.any(1)


def of_loader(path: Path, transforms: Any, seed: int = 0) -> torch.Tensor:
    (batch,) = Loader(LMDBDataset(path), COUNT, shuffle=False, transforms=transforms, seed=seed)
    return batch.image


FACTOR = st.sampled_from([0, 0.5, (0, 3), (0.9, 1.1), (1.7, 1.7)])
HUE = st.sampled_from([0, 0.1, 0.5, (-0.2, -0.2), (1e-9, 1e-9)])
SIDE = st.sampled_from([1, 3, 5, 9, 23, 33, 35, 51])
SIGMA = st.sampled_from([0.01, 0.3, (0.1, 2.0), (2.0, 9.0), 60.0])
ANY_CHANNELS = [
    st.builds(lambda a, b, sigma: T.GaussianBlur((a, b), sigma), SIDE, SIDE, SIGMA),
    st.builds(T.GaussianNoise, st.sampled_from([0.0, 0.2, -0.1]), st.sampled_from([0.0, 0.01, 0.1, 1.0])),
]
OPERATIONS = [
    st.builds(T.ColorJitter, FACTOR, FACTOR, FACTOR, HUE), st.just(T.RandomGrayscale(1)), st.just(T.RandomInvert(1)),
    st.builds(T.RandomSolarize, st.sampled_from([0, 1, 100.5, 255, 256, 40_000, 65_536]), st.just(1.0)), *ANY_CHANNELS,
    st.builds(T.RandomPosterize, st.integers(0, 8), st.just(1.0)), st.just(T.RandomChannelPermutation()),
    st.just(T.RandomEqualize(1.0)), st.just(T.RandomAutocontrast(1.0)),
    st.builds(T.RandomAdjustSharpness, st.sampled_from([0, 0.7, 1, 2, 9, 1e6]) | st.floats(0, 20), st.just(1.0)),
]  # fmt: skip


def assert_equal_to_a_loader(path: Path, transform: Any, seed: int) -> None:
    given, expected = of_loader(path, []), of_loader(path, [transform], seed)
    before = given.clone()
    numbers, applied = drawn_by(path, transform, seed)
    for images in (given, given.to(memory_format=torch.channels_last)):
        found = change_colors(images, numbers, applied)
        assert found.dtype == given.dtype
        np.testing.assert_array_equal(found.numpy(), expected.numpy())
    np.testing.assert_array_equal(given.numpy(), before.numpy())


@settings(max_examples=150)
@given(
    st.sampled_from([1, 3]), st.sampled_from(SIZES), st.sampled_from([np.uint8, np.uint16]),
    st.lists(st.one_of(OPERATIONS), min_size=1, max_size=4), st.sampled_from([0.3, 1.0]), st.integers(0, 9),
)  # fmt: skip
def test_every_operation_equals_that_of_a_loader(
    sets: Any, channels: int, size: Any, dtype: Any, operations: Any, p: float, seed: int
) -> None:
    choice = T.RandomChoice([*operations, *[[]] * (p < 1)])
    assert_equal_to_a_loader(sets(channels, size, dtype), choice, seed)


@settings(max_examples=15)
@given(st.sampled_from([2, 5]), st.sampled_from([np.uint8, np.uint16]), st.one_of(ANY_CHANNELS), st.integers(0, 9))
def test_any_number_of_channels_is_blurred_and_gets_noise(
    sets: Any, channels: int, dtype: Any, operation: Any, seed: int
) -> None:
    assert_equal_to_a_loader(sets(channels, (17, 40), dtype), operation, seed)


@pytest.mark.parametrize("channels", [1, 3])
def test_colors_of_a_policy(sets: Any, channels: int) -> None:
    path, seen = sets(channels, (17, 40), np.uint8), set()
    given = of_loader(path, [])
    for seed in range(30):
        numbers, applied = drawn_by(path, T.TrivialAugmentWide(), seed)
        found, expected = change_colors(given, numbers, applied), of_loader(path, [T.TrivialAugmentWide()], seed)
        np.testing.assert_array_equal(found[applied].numpy(), expected[applied].numpy())
        seen |= set(zip(numbers[applied, op.COLOR_CODE], numbers[applied, op.COLOR_ORDER] < 0, strict=True))
    assert {(op.JITTER, True), (op.JITTER, False), (op.EQUALIZE, False), (op.SHARPNESS, False)} <= seen


EVERY = [
    T.ColorJitter(0.4, 0.4, 0.4, 0.1), T.RandomGrayscale(1.0), T.RandomInvert(1.0), T.GaussianBlur(9),
    T.GaussianBlur(41, 8.0), T.GaussianNoise(), T.RandomPosterize(3, 1.0), T.RandomEqualize(1.0),
    T.RandomAutocontrast(1.0), T.RandomAdjustSharpness(2, 1.0), T.RandomChannelPermutation(),
    T.RandomSolarize(128, 1.0),
]  # fmt: skip


def test_every_change_of_colors_is_tested() -> None:
    assert {type(transform) for transform in EVERY} == set(get_args(COLORS))


class Calls(TorchDispatchMode):
    """Counts the operations of torch."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("transform", EVERY, ids=repr)
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_larger_batches_have_no_more_calls_and_nothing_is_read_back(sets: Any, transform: Any, dtype: Any) -> None:
    path = sets(3, (17, 40), dtype)
    numbers, applied = drawn_by(path, transform, 0)
    counts = []
    for times in (2, 20):
        many, repeats = np.tile(numbers, (times, 1)), [times, 1, 1, 1]
        with Calls() as calls:
            change_colors(of_loader(path, []).repeat(repeats), many, np.tile(applied, times))
        counts.append(calls.count)
        # Tensors of this device have no values: who wanted to know one would get an error.
        shapes = change_colors(of_loader(path, []).repeat(repeats).to("meta"), many, np.tile(applied, times))
        assert shapes.shape == (times * COUNT, 3, 17, 40) and shapes.dtype == getattr(torch, np.dtype(dtype).name)
    assert counts[0] == counts[1]


def test_the_default_dtype_changes_nothing(sets: Any) -> None:
    path, before = sets(3, (17, 40), np.uint8), torch.get_default_dtype()
    for transform in EVERY:
        numbers, applied = drawn_by(path, transform, 0)
        images = of_loader(path, [])
        expected = change_colors(images, numbers, applied)
        try:
            torch.set_default_dtype(torch.float64)
            found = change_colors(images, numbers, applied)
        finally:
            torch.set_default_dtype(before)
        np.testing.assert_array_equal(found.numpy(), expected.numpy())


@pytest.mark.parametrize("mark", [pytest.param(None, marks=NEEDS_CUDA)])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_a_gpu_makes_the_same_pixels(sets: Any, dtype: Any, mark: None) -> None:
    for channels, size in ((3, (64, 64)), (1, (17, 40)), (3, (1, 1))):
        path = sets(channels, size, dtype)
        for transform in (*EVERY, T.RandomChoice(EVERY)):
            numbers, applied = drawn_by(path, transform, 0)
            images = of_loader(path, [])
            found = change_colors(images.to(DEVICE), numbers, applied)
            expected = change_colors(images, numbers, applied)
            np.testing.assert_array_equal(found.cpu().numpy(), expected.numpy(), err_msg=repr(transform))
