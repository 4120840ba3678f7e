"""Compilation of transforms: the result of every stored value, and the lists that are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from lmdbloader import transforms as T
from lmdbloader.errors import OptionError
from lmdbloader.kernels.transform import opcodes
from lmdbloader.transforms.compilation import compile_program
from lmdbloader.transforms.values import ImageField, Values

RGB, GREY = ImageField("rgb", 3, torch.uint8), ImageField("grey", 1, torch.uint8)
DEEP = ImageField("deep", 3, torch.uint16)
FLOATS = (torch.float16, torch.bfloat16, torch.float32)
FLOAT32 = T.ToDtype(torch.float32, scale=True)


def values(field: ImageField, *transforms: T.Transform) -> Values:
    return compile_program(transforms, [field]).values[0]


def results(field: ImageField, *transforms: T.Transform) -> torch.Tensor:
    """Return the result of every stored value in the first channel."""
    found = values(field, *transforms)
    stored = np.arange(256 if field.dtype == torch.uint8 else 65536)
    if found.kind == opcodes.COPY:
        return torch.from_numpy(stored).to(found.dtype)
    if found.table is not None:
        assert found.table.shape == (3, len(stored))
        assert (found.table == found.table[0]).all()
        return torch.from_numpy(found.table[0].copy()).view(found.dtype)
    factor, term = found.affine[0]
    return torch.from_numpy(stored.astype(np.float32) * factor + term).to(found.dtype)


@pytest.mark.parametrize("field", [RGB, DEEP])
def test_pixels_that_stay_as_they_are_are_copied(field: ImageField) -> None:
    for transforms in (
        [],
        [T.RandomCrop(4)],
        [T.ToDtype(field.dtype, True)],
        [T.ToDtype(field.dtype, False)],
        [FLOAT32, T.ToDtype(field.dtype, True)],
        [T.ToDtype(torch.float32, False), T.ToDtype(field.dtype, False)],
    ):
        assert values(field, *transforms).kind == opcodes.COPY


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("field", [RGB, DEEP])
def test_floats_are_scaled_as_torch_scales_them(field: ImageField, dtype: torch.dtype) -> None:
    top = 255 if field is RGB else 65535
    stored = torch.arange(top + 1)
    found = results(field, T.ToDtype(dtype, scale=True))
    assert torch.equal(found, (stored.to(torch.float32) * (1 / top)).to(dtype))
    assert (found[0], found[-1]) == (0, 1)
    assert torch.equal(results(field, T.ToDtype(dtype, scale=False)), stored.to(dtype))


def test_integers_are_shifted_as_torchvision_shifts_them() -> None:
    assert torch.equal(results(RGB, T.ToDtype(torch.uint16, True)).int(), torch.arange(256, dtype=torch.int32) << 8)
    assert torch.equal(results(DEEP, T.ToDtype(torch.uint8, True)).int(), torch.arange(65536, dtype=torch.int32) >> 8)
    assert torch.equal(results(RGB, T.ToDtype(torch.uint16, False)).int(), torch.arange(256, dtype=torch.int32))
    assert results(DEEP, T.ToDtype(torch.uint8, False)).tolist() == [min(v, 255) for v in range(65536)]


def test_floats_become_integers_as_torchvision_makes_them() -> None:
    stored = torch.arange(65536).to(torch.float32) / 65535
    expected = stored.mul(256 - 1e-3).to(torch.uint8)
    found = results(DEEP, FLOAT32, T.ToDtype(torch.uint8, True))
    assert (found.int() - expected.int()).abs().max() <= 1  # torch computes in float32
    assert (found != expected).float().mean() < 1e-3
    # Without a scale values are truncated and clipped.
    halves = results(RGB, FLOAT32, T.Normalize(0.5, 1 / 510), T.ToDtype(torch.uint8, False))
    assert halves.tolist() == [min(max(2 * v - 255, 0), 255) for v in range(256)]


def test_values_rounded_in_between_stay_rounded() -> None:
    few = T.ToDtype(torch.uint8, False)
    found = results(RGB, T.ToDtype(torch.float32, False), T.Normalize(0, 100), few, T.ToDtype(torch.float32, False))
    assert found.tolist() == [v // 100 for v in range(256)]
    # Small enough to pass for the same by comparison.
    smaller = [T.Normalize(0, 10)] * 9
    tiny = results(RGB, FLOAT32, *smaller, few, T.ToDtype(torch.float32, False), T.Normalize(0, 1e-9))
    assert not tiny.any()


def test_several_normalizations_are_one_factor_and_term() -> None:
    found = values(RGB, FLOAT32, T.Normalize((0.1, 0.2, 0.3), 0.5), T.Normalize(1, (1, 2, 4)))
    assert found.kind == opcodes.FLOAT
    assert found.table is None
    expected = [[2 / 255 / s, (-2 * m - 1) / s] for m, s in ((0.1, 1), (0.2, 2), (0.3, 4))]
    np.testing.assert_allclose(found.affine, expected, rtol=1e-6)


def test_later_transforms_apply_to_erased_values() -> None:
    found = values(
        RGB, T.RandomErasing(value=(0, 51, 255)), FLOAT32, T.RandomErasing(value=0.5), T.Normalize(0.5, 0.25),
        T.RandomErasing(value=-7),
    ).erased.view(np.float32)  # fmt: skip
    np.testing.assert_allclose(found, [[-2, -1.2, 2], [0, 0, 0], [-7, -7, -7]], atol=1e-6)


MOVES = (
    T.RandomCrop(8), T.CenterCrop(8), T.RandomResizedCrop(8), T.Resize(8), T.RandomHorizontalFlip(),
    T.RandomVerticalFlip(), T.RandomDihedral(), T.RandomTranslate(8), T.ColorJitter(1),
    T.RandomGrayscale(), T.RandomSolarize(128), T.GaussianBlur(3), T.GaussianNoise(),
    T.RandomInvert(), T.RandomPosterize(3), T.RandomEqualize(), T.RandomAutocontrast(), T.RandomAdjustSharpness(2),
    T.RandomChannelPermutation(),
)  # fmt: skip


@pytest.mark.parametrize("late", MOVES, ids=repr)
@pytest.mark.parametrize("early", [FLOAT32, T.ToDtype(torch.uint8, False), T.RandomErasing(), T.Cutout(2)], ids=repr)
def test_transforms_that_move_or_color_pixels_must_come_first(early: T.Transform, late: T.Transform) -> None:
    name = type(late).__name__
    with pytest.raises(OptionError, match=f"^{name} after {type(early).__name__}: expected .* Change the order"):
        compile_program([early, late], [RGB])
    compile_program([late, early], [RGB])
    only = replace(early, fields=("deep",))
    with pytest.raises(OptionError, match="Change the order"):
        compile_program([only, late], [RGB, DEEP])
    compile_program([only, replace(late, fields=("rgb",))], [RGB, DEEP])


LEVELS = T.ToDtype(torch.float32)
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
BYTES = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)


@pytest.mark.parametrize(
    ("field", "transforms"),
    [
        (RGB, [FLOAT32, T.Normalize(*BYTES)]),
        (RGB, [FLOAT32, T.Normalize((104, 117, 123), 1)]),
        (GREY, [FLOAT32, T.Normalize(33.3, 78.6)]),
        (DEEP, [FLOAT32, T.Normalize(30000, 9000)]),
        (RGB, [T.ToDtype(torch.uint16, True), T.ToDtype(torch.float16, True), LEVELS, T.Normalize(3, 1)]),
        (RGB, [LEVELS, T.Normalize(*IMAGENET)]),
        (DEEP, [T.ToDtype(torch.bfloat16), T.Normalize(0.3, 0.2)]),
        (GREY, [LEVELS, T.Normalize(0.1307, 0.3081)]),
        (RGB, [LEVELS, T.Normalize((0.4488, 0.4371, 0.404), (1, 1, 1))]),
        (RGB, [FLOAT32, T.Normalize(0, 255)]),
        (RGB, [FLOAT32, T.Normalize(IMAGENET[0], BYTES[1])]),
        (RGB, [FLOAT32, T.Normalize(BYTES[0], IMAGENET[1])]),
        (DEEP, [FLOAT32, T.Normalize(100, 80)]),
        (RGB, [LEVELS, T.Normalize(0.5, 0.5)]),
    ],
)
def test_statistics_of_other_units_are_refused(field: Any, transforms: Any) -> None:
    with pytest.raises(OptionError, match=rf"^Normalize\(.*: the pixels of '{field.name}' are from 0 to .* here"):
        compile_program(transforms, [field])


def test_a_second_normalization_is_judged_by_the_range_that_it_gets() -> None:
    compile_program([FLOAT32, T.Normalize(*IMAGENET), T.Normalize(3, 2)], [RGB])
    compile_program([LEVELS, T.Normalize(0, 255), T.Normalize(*IMAGENET)], [RGB])
    with pytest.raises(OptionError, match="from 0 to 1 here"):
        compile_program([LEVELS, T.Normalize(0, 255), T.Normalize(*BYTES)], [RGB])


@given(st.data())
def test_the_statistics_of_pixels_are_never_refused_for_them(data: st.DataObject) -> None:
    field = data.draw(st.sampled_from([RGB, GREY, DEEP]))
    highest = 65535 if field is DEEP else 255
    most = data.draw(st.sampled_from([1, 2, 9, 255, highest]))
    pixels = st.lists(st.integers(0, most), min_size=field.channels * 4, max_size=field.channels * 30)
    found = np.array(data.draw(pixels))
    found = found[: len(found) // field.channels * field.channels].reshape(-1, field.channels)
    mean, std = found.mean(0), found.std(0)
    # A std of 1, and 0.5 with a mean of 0.5, may be meant for pixels from 0 to 1.
    assume((std > 0).all() and (std != 1).all() and not ((mean == 0.5) & (std == 0.5)).any())
    compile_program([LEVELS, T.Normalize(mean, std)], [field])
    compile_program([FLOAT32, T.Normalize(mean / highest, std / highest)], [field])


@pytest.mark.parametrize(
    ("transforms", "message"),
    [
        ([T.RandomCrop(8, fields=("hr",))], r"RandomCrop\(.*\): no image field 'hr'; there are rgb, grey"),
        ([FLOAT32, T.Normalize((0.1, 0.2, 0.3), 1)], "Normalize: 'grey' has one channel"),
        ([FLOAT32, T.Normalize(1, (1, 2, 3))], "Normalize: 'grey' has one channel"),
        ([T.RandomTranslate(1, (1, 2, 3))], "'grey' has one channel, the fill is for three"),
        ([T.RandomErasing(value=(1, 2, 3))], "'grey' has one channel, the fill is for three"),
        ([T.RandomTranslate(1, 256)], "the fill must be pixels of 'rgb', whole numbers of torch.uint8"),
        ([T.RandomTranslate(1, -1)], "the fill must be pixels of 'rgb'"),
        ([T.RandomCrop(8, padding=1, fill=0.5)], "the fill must be pixels of 'rgb'"),
        ([T.RandomErasing(value=0.5)], "the fill must be pixels of 'rgb'"),
        ([T.RandomErasing(value=256)], "the fill must be pixels of 'rgb'"),
        ([T.Transform()], "neither a transform of lmdbloader.transforms nor callable"),
        ([T.Geometry()], "neither a transform of lmdbloader.transforms nor callable"),
        (["flip"], "'flip' is neither a transform of lmdbloader.transforms nor callable"),
        ([T.RandomDihedral], "neither a transform of lmdbloader.transforms nor callable"),
    ],
)
def test_lists_that_make_no_sense_are_refused(transforms: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        compile_program(transforms, [RGB, GREY])


BANDS, DEPTH = ImageField("bands", 5, torch.uint16), ImageField("depth", 1, torch.float32)


@pytest.mark.parametrize(
    ("field", "transforms", "message"),
    [
        (BANDS, [FLOAT32, T.Normalize((1, 2, 3), 1)], "'bands' has 5 channels, .* is for three"),
        (BANDS, [FLOAT32, T.Normalize(0, (1, 2))], "'bands' has 5 channels, .* is for 2"),
        (BANDS, [T.RandomTranslate(1, (1, 2, 3))], "'bands' has 5 channels, the fill is for three"),
        (BANDS, [T.ColorJitter(0.1)], r"of 'bands' are torch.uint16 with 5 channels; .*ColorJitter\(\.\.\., fields="),
        (DEPTH, [T.RandomGrayscale(0.1)], "of 'depth' are torch.float32 with one channel; expected uint8 or uint16"),
        (DEPTH, [T.ToDtype(torch.uint8, scale=True)], "of 'depth' are stored as torch.float32, and a conversion"),
        (DEPTH, [T.ToDtype(torch.float16), T.ToDtype(torch.uint16)], "of 'depth' are stored as torch.float32"),
    ],
)
def test_what_does_not_suit_floats_or_many_bands_is_refused(field: ImageField, transforms: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        compile_program(transforms, [field])


def test_floats_keep_their_values() -> None:
    for dtype in (torch.float16, torch.float32):
        field = ImageField("depth", 2, dtype)
        for transforms in ([], [T.ToDtype(dtype, scale=True)], [T.ToDtype(torch.bfloat16), T.ToDtype(dtype)]):
            assert compile_program(transforms, [field]).values[0].kind == opcodes.COPY
    (values,) = compile_program([T.Normalize((1.0, 2.0), (4.0, 8.0))], [ImageField("flow", 2, torch.float16)]).values
    assert values.affine.tolist() == [[0.25, -0.25], [0.125, -0.25]]
