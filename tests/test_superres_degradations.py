"""The presets' arguments: names and defaults of the projects' option files, and errors that name the argument."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lmdbloader.errors import OptionError
from lmdbloader.superres import degradations
from lmdbloader.superres.degradations import Degradation

PRESETS = (
    degradations.real_esrgan, degradations.neosr, degradations.trainner_redux, degradations.first_order,
    degradations.bsrgan, degradations.bsrgan_plus,
)  # fmt: skip


@pytest.mark.parametrize("preset", PRESETS)
def test_the_text_is_the_call(preset: Callable[..., Degradation]) -> None:
    for options in ({}, {"scale": 2, "fixed": True, "field": "hr", "jpeg_range": (50, 90)}):
        made = preset(**options)
        for same in (copy.deepcopy(made), pickle.loads(pickle.dumps(made)), eval(repr(made), vars(degradations))):
            assert repr(same) == repr(made)
            for table, other in zip(same.tables, made.tables, strict=True):
                np.testing.assert_array_equal(table, other)
            assert (same.fixed, same.field) == (made.fixed, made.field)


@pytest.mark.parametrize("preset", PRESETS)
def test_numbers_of_numpy_are_numbers(preset: Callable[..., Degradation]) -> None:
    assert repr(preset(np.int64(4), jpeg_range=[np.float32(40), np.int16(90)])) == repr(
        preset(4, jpeg_range=(40.0, 90))
    )


@pytest.mark.parametrize("scale", [0, 5, -1, 2.5, "4", True, None, math.nan])
@pytest.mark.parametrize("preset", PRESETS)
def test_other_scales_are_refused(preset: Callable[..., Degradation], scale: Any) -> None:
    with pytest.raises(OptionError, match=preset.__name__):
        preset(scale)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("noise_rng", (1, 2)), ("noise_range", 5), ("noise_range", "12"), ("noise_range", (5, 1)),
        ("noise_range", (-1, 2)), ("noise_range", (math.nan, 1)), ("noise_range", (1, 2, 3)),
        ("noise_range", (True, 2)), ("blur_sigma", (1, math.inf)), ("sinc_prob", 1.5), ("sinc_prob", math.nan),
        ("sinc_prob", "0.5"), ("sinc_prob", [0.5]), ("kernel_range", (8, 8)), ("kernel_range", (7, 53)),
        ("kernel_list", ["foo"]), ("kernel_list", []), ("kernel_list", ["iso"]), ("kernel_prob", (1, 0)),
        ("resize_prob", (1, 0)), ("resize_prob", (0, 0, 0)), ("resize_prob", (-1, 1, 1)), ("jpeg_range", (0, 90)),
        ("jpeg_range", (90, 101)), ("jpeg_range", (100, 100)), ("resize_range", (1, 17)),
        ("gt_usm", "no"), ("fixed", 2),
        ("resize_mode_list", ["cubic"] * 3),
    ],
)  # fmt: skip
def test_an_error_names_the_argument(name: str, value: Any) -> None:
    with pytest.raises(OptionError, match="kernel_list" if name == "kernel_prob" else name):
        degradations.real_esrgan(4, **{name: value})


def test_bsrgan_draws_whole_numbers() -> None:
    for options in ({"noise_level": (2.5, 3)}, {"noise_level": (2, 256)}, {"jpeg_range": (30, 95.5)}):
        with pytest.raises(OptionError, match="whole"):
            degradations.bsrgan(4, **options)
    degradations.bsrgan(4, jpeg_range=(100, 100))


def test_only_a_loader_calls_it() -> None:
    with pytest.raises(OptionError, match="Loader"):
        degradations.real_esrgan(4)(None)


def test_what_is_sharpened() -> None:
    made = [
        degradations.real_esrgan(4, **o).sharpens for o in ({}, {"gt_usm": False}, {"gt_usm": False, "lq_usm": False})
    ]
    assert made == ["both", "lr", ""]
    with pytest.raises(OptionError, match="lq_usm"):
        degradations.real_esrgan(4, lq_usm=False)
