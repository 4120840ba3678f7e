"""The arguments of transforms: checked at once, never changed, shown as written."""

from __future__ import annotations

import dataclasses
import enum
import math
import pickle
from typing import Any, get_args

import numpy as np
import pytest
import torch
from PIL import Image
from transform_reference import COLORS

from lmdbloader import transforms as T
from lmdbloader.errors import OptionError
from lmdbloader.kernels.transform import opcodes
from lmdbloader.transforms import operations
from lmdbloader.transforms.base import Geometry

ALL = [
    T.RandomCrop(96),
    T.RandomCrop((3, 4), padding=2, fill=(1, 2, 3)),
    T.RandomCrop(96, (1, 2), True),
    T.CenterCrop(96),
    T.RandomResizedCrop(224),
    T.Resize(8),
    T.Resize((8, 9), "bicubic"),
    T.RandomHorizontalFlip(),
    T.RandomVerticalFlip(0.25),
    T.RandomDihedral(),
    T.RandomTranslate(4),
    T.ColorJitter(0.4, 0.4, (0.5, 1.5)),
    T.ColorJitter(0.4, 0.4, 0.4, 0.1),
    T.ColorJitter(0.4, p=0.8),
    T.RandomGrayscale(),
    T.RandomSolarize(128),
    T.RandomInvert(),
    T.RandomPosterize(4),
    T.RandomPosterize(0, 1.0),
    T.RandomEqualize(),
    T.RandomAutocontrast(0.25),
    T.RandomAdjustSharpness(2),
    T.RandomChannelPermutation(),
    T.RandomRotation(30),
    T.RandomRotation((-10.5, 90), "bilinear", True, (3, 4), (1, 2, 3)),
    T.RandomAffine(0),
    T.RandomAffine((0, 90), (0.1, 0), (0.5, 2), (-5, 5, 0, 9), "bilinear", 7, (3.5, 4)),
    T.RandomPerspective(),
    T.RandomPerspective(0.25, 1.0, "nearest", 9),
    T.ElasticTransform(),
    T.ElasticTransform((9, 30.5), 0, fill=1),
    T.GaussianBlur(9),
    T.GaussianBlur((3, 5), 1.5, p=0.5),
    T.GaussianNoise(),
    T.GaussianNoise(0.1, 0.2, p=0.5),
    T.RandomErasing(),
    T.Cutout(8),
    T.Cutout((8, 9), (1, 2, 3), 0.5),
    T.ToDtype(torch.float32, True),
    T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    T.RandomHorizontalFlip(fields=("hr",)),
    T.RandomApply([T.RandomCrop(8), [T.CenterCrop(8)]], 0.25),
    T.RandomChoice([T.RandomCrop(8), [], T.RandomApply([T.CenterCrop(8)])], [1, 2, 0.5], fields=("hr",)),
    T.RandomOrder([T.RandomHorizontalFlip(), T.GaussianBlur(3)]),
]


def test_every_transform_is_in_the_lists_of_these_tests() -> None:
    classes = {getattr(operations, name) for name in operations.__all__ if name != "DTYPES"}
    assert classes <= {type(transform) for transform in ALL}
    assert {c for c in classes if issubclass(c, Geometry) and c.code >= opcodes.JITTER} == set(get_args(COLORS))


@pytest.mark.parametrize("transform", ALL, ids=repr)
def test_transforms_are_values(transform: T.Transform) -> None:
    again = pickle.loads(pickle.dumps(transform))
    assert again == transform
    assert hash(again) == hash(transform)
    assert sum(other == transform for other in ALL) == 1
    assert eval(repr(transform), {name: getattr(T, name) for name in T.__all__} | {"torch": torch}) == transform
    for name in ("fields", "size"):
        with pytest.raises((dataclasses.FrozenInstanceError, AttributeError, TypeError)):
            setattr(transform, name, None)


def test_positional_arguments_have_torchvisions_order() -> None:
    assert T.RandomCrop(96) == T.RandomCrop(size=96, padding=0, fill=0, fields=None)
    assert T.RandomCrop(96, 4, True, 7).fill == 7
    assert T.RandomResizedCrop(8, (0.5, 1), (1, 2), "bicubic").real_numbers == (0.5, 1, 1, 2)
    assert T.Resize(8, "bicubic").interpolation == "bicubic"
    assert T.Normalize(0.5, 0.25).std == (0.25,)
    assert T.ToDtype(torch.float32, True).scale
    assert T.ToDtype(torch.float32) == T.ToDtype(torch.float32, False)
    jitter = T.ColorJitter(0.4, 0.3, 2, 0.1)
    assert jitter.real_numbers == pytest.approx((0.6, 1.4, 0.7, 1.3, 0, 3, 1, -1, -0.1, 0.1))
    assert T.ColorJitter() == T.ColorJitter(None, 0, 0.0, None) and T.ColorJitter(hue=(-0.5, 0.25)).hue == (-0.5, 0.25)
    with pytest.raises(TypeError, match="positional"):
        T.ColorJitter(0.4, 0.4, 0.4, 0.1, 0.8)  # type: ignore[misc]  # p is ours
    erasing = T.RandomErasing(0.25, (0.1, 0.2), (1, 1), 7)
    assert (erasing.p, erasing.scale, erasing.ratio, erasing.value) == (0.25, (0.1, 0.2), (1, 1), 7)


def test_lists_and_numpy_numbers_do_as_well() -> None:
    assert T.RandomCrop([3, 4]) == T.RandomCrop((3, 4))  # type: ignore[arg-type]
    for cls in (T.RandomCrop, T.CenterCrop, T.RandomResizedCrop, T.Resize):
        assert cls((9,)) == cls([9]) == cls(9)
    assert T.RandomCrop(8, [1, 2]).padding_numbers == (2, 2, 1, 1)
    assert T.RandomCrop(8, (1, 2, 3, 4)).padding_numbers == (2, 4, 1, 3)
    assert T.RandomCrop(8, [5]) == T.RandomCrop(8, 5) and T.RandomCrop(8, None) == T.RandomCrop(8, 0)
    assert repr(T.CenterCrop(np.int64(5))) == "CenterCrop(size=5)"  # type: ignore[arg-type]
    assert T.RandomResizedCrop(8, [0.5, 1.0], np.array([1, 2]).tolist()).real_numbers == (0.5, 1.0, 1, 2)  # type: ignore[arg-type]
    assert T.RandomErasing(value=[1, 2, 3]).value == (1, 2, 3)  # type: ignore[arg-type]
    assert T.Normalize(torch.tensor([0.5, 0.25, 0.125]), np.float32(2)) == T.Normalize([0.5, 0.25, 0.125], 2)  # type: ignore[arg-type]
    assert T.RandomDihedral(fields=["lr", "hr"]).fields == ("lr", "hr")  # type: ignore[arg-type]


NAN, INF = math.nan, math.inf


NAN, INF = math.nan, math.inf
# Values that no such argument takes, and what takes them.
REFUSED: list[tuple[list[Any], list[Any]]] = [
    (
        [0, -1, True, 9.0, "9", None, (9, 9, 9), (), (9, 0), 10**400],
        [T.RandomCrop, T.CenterCrop, T.RandomResizedCrop, T.Resize, T.Cutout],
    ),
    ([-1, True, 1.0, "1", NAN, (1, 2, 3)], [T.RandomTranslate, lambda padding: T.RandomCrop(8, padding)]),
    (
        [NAN, (1, 2), (1, 2, INF), "red", None, True, ()],
        [
            lambda fill: T.RandomCrop(8, fill=fill),
            lambda fill: T.RandomErasing(value=fill),
            lambda fill: T.Cutout(1, fill),
        ],
    ),
    (
        [-0.1, 1.1, NAN, "often", None, True],
        [T.RandomHorizontalFlip, T.RandomErasing, T.RandomGrayscale, T.RandomInvert, T.RandomEqualize],
    ),
    ([0.5, (0, 1), (0.5, 0.4), (0.5, 1.1), (NAN, 1)], [lambda scale: T.RandomResizedCrop(8, scale=scale)]),
    ([1, (0, 1), (2, 1), (1, INF), (-1, 1)], [lambda ratio: T.RandomErasing(ratio=ratio)]),
    ([-0.1, NAN, (1.5, 0.5), (-1, 1), "much", True], [T.ColorJitter, lambda value: T.ColorJitter(saturation=value)]),
    ([0.6, (0.2, 0.1), (-0.6, 0), "red"], [lambda hue: T.ColorJitter(hue=hue)]),
    ([-1, NAN, "much", None], [T.RandomSolarize, T.RandomAdjustSharpness]),
    ([0.5], [T.RandomSolarize]),
    ([-1, 9, 4.0, True, "4", None, NAN], [T.RandomPosterize]),
    ([0, 4, 257, -3, 3.0, True, None, "3", (3, 4), (3, 3, 3)], [T.GaussianBlur]),
    ([0, -1, (0, 1), (2, 1), (1, 2, 3), NAN, None, "1"], [lambda sigma: T.GaussianBlur(3, sigma)]),
    ([-1.1, 25, NAN, None, "1", True], [T.GaussianNoise, lambda sigma: T.GaussianNoise(sigma=sigma)]),
    ([False, 0, None], [lambda clip: T.GaussianNoise(clip=clip)]),
    ([0, 1e-40, INF, (1, 1, 0), (1,) * 65, "std", None], [lambda std: T.Normalize(0, std)]),
    (["hr", ()], [lambda fields: T.RandomDihedral(fields=fields)]),
    ([False], [lambda antialias: T.Resize(8, antialias=antialias)]),
]


@pytest.mark.parametrize(("values", "makers"), REFUSED)
def test_values_out_of_range_are_refused(values: list[Any], makers: list[Any]) -> None:
    for make in makers:
        for value in values:
            with pytest.raises(OptionError):
                make(value)


class InterpolationMode(enum.Enum):  # as torchvision's
    NEAREST = "nearest"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"


@pytest.mark.parametrize("cls", [T.Resize, T.RandomResizedCrop])
def test_the_interpolations_are_two(cls: Any) -> None:
    for name in ("bilinear", "bicubic"):
        pillows, torchvisions = getattr(Image.Resampling, name.upper()), InterpolationMode(name)
        assert {cls(8, interpolation=v).interpolation for v in (name, pillows, int(pillows), torchvisions)} == {name}
    for interpolation in (
        "BILINEAR",
        None,
        True,
        17,
        "nearest",
        InterpolationMode.NEAREST,
        Image.Resampling.NEAREST,
        0,
    ):
        with pytest.raises(OptionError, match=r"expected interpolation='bilinear' or 'bicubic'$"):
            cls(8, interpolation=interpolation)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.int8, torch.bool, "float32", np.float64, np.dtype("int8"), float, None]
)
def test_the_dtypes_are_five(dtype: Any) -> None:
    with pytest.raises(OptionError, match=r"expected one of torch.uint8, .*torch.float32"):
        T.ToDtype(dtype, True)


def test_numpys_types_are_torchs() -> None:
    assert T.ToDtype(np.float16, True) == T.ToDtype(torch.float16, True)  # type: ignore[arg-type]
    assert T.ToDtype(np.dtype("uint16"), False).dtype is torch.uint16  # type: ignore[arg-type]
