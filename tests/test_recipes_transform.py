"""The recipe for a compiled transform in CONTRIBUTING, followed with a toy that inverts rows.

Its description runs through the unchanged package. Its kernels are compiled alone, by Numba's JIT, without the kernels
that would call them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pytest
import torch

from lmdbloader.base.arguments import whole
from lmdbloader.errors import OptionError
from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.philox import below, unit
from lmdbloader.kernels.transform import opcodes
from lmdbloader.transforms import CenterCrop, Normalize, RandomCrop, Resize, ToDtype
from lmdbloader.transforms.arguments import Kind, Probability, Size
from lmdbloader.transforms.base import Geometry
from lmdbloader.transforms.compilation import compile_program
from lmdbloader.transforms.resolution import full_size, with_resolution
from lmdbloader.transforms.values import ImageField

# 1. The number, in kernels/transform/opcodes.py: after the last one.
INVERT_ROWS = opcodes.AUGMIX + 1
INVERT_P, INVERT_STEP = range(2)
DRAWN_STEP, DRAWN_FIRST = 1, 2


# 2. The description, in transforms/operations.py.
@dataclass(frozen=True, slots=True, repr=False)
class InvertRows(Geometry):
    """Invert every step-th row of an image, from a random one on, with probability p."""

    step: Annotated[int, Kind(lambda transform, name, value: whole(name, value, 1))]
    p: Probability = 0.5

    code = INVERT_ROWS

    @property
    def real_numbers(self) -> tuple[float, ...]:
        """INVERT_P and INVERT_STEP."""
        return self.p, self.step


# 3. The branches, in kernels/transform/color.py: of `draw_colors`, and of `change_colors`.
@kernel
def draw(numbers: Any, words: Any, more: Any, drawn: Any) -> Any:
    drawn[opcodes.COLOR_CODE] = INVERT_ROWS
    drawn[DRAWN_STEP] = numbers[INVERT_STEP]
    drawn[DRAWN_FIRST] = below(words[0], np.int64(numbers[INVERT_STEP]))
    return unit(more[0]) < numbers[INVERT_P]


@kernel
def invert_rows(pixels: Any, channels: Any, height: Any, width: Any, drawn: Any) -> None:
    top = 255 if pixels.itemsize == 1 else 65535
    for c in range(channels):
        for y in range(np.int64(drawn[DRAWN_FIRST]), height, np.int64(drawn[DRAWN_STEP])):
            for i in range((c * height + y) * width, (c * height + y + 1) * width):
                pixels[i] = top - pixels[i]


FIELD = ImageField("image", 3, torch.uint8)


def test_its_description_becomes_an_operation_of_its_own_stage() -> None:
    program = compile_program([RandomCrop(20), InvertRows(3, 0.25), CenterCrop(8)], [FIELD])
    assert program.whole[:, opcodes.OP_CODE].tolist() == [opcodes.RANDOM_CROP, INVERT_ROWS, opcodes.CENTER_CROP]
    assert program.whole[:, opcodes.OP_STAGE].tolist() == [0, 0, 1]
    assert program.real[1].tolist() == [0.25, 3, *[0] * (opcodes.NUM_REAL - 2)]
    assert (program.num_stages, program.resizes) == (2, False)


def test_its_description_is_checked_like_any_other() -> None:
    assert repr(InvertRows(3)) == "InvertRows(step=3, p=0.5)"
    with pytest.raises(OptionError, match=r"InvertRows\(step=3, p=2\): expected a probability"):
        InvertRows(3, 2)
    with pytest.raises(OptionError, match="no image field 'mask'"):
        compile_program([InvertRows(3, fields=("mask",))], [FIELD])
    with pytest.raises(OptionError, match="InvertRows after Normalize"):
        compile_program([ToDtype(torch.float32, True), Normalize(0, 1), InvertRows(3)], [FIELD])


def test_its_kernels_alone_invert_as_numpy_does() -> None:
    numbers = np.array([0.5, 3, *[0] * (opcodes.NUM_REAL - 2)], np.float64)
    low, high = np.uint64(0), np.uint64(2**64 - 1)
    for word, more, first, is_drawn in ((low, high, 0, False), (high, low, 2, True)):
        drawn = np.zeros(opcodes.NUM_COLOR)
        assert draw(numbers, (word,) * 4, (more,) * 4, drawn) == is_drawn
        assert drawn[DRAWN_FIRST] == first
        image = np.random.default_rng(0).integers(0, 256, (3, 10, 7)).astype(np.uint8)
        expected = image.copy()
        expected[:, first::3] = 255 - expected[:, first::3]
        invert_rows(flat := image.reshape(-1), 3, 10, 7, drawn)
        np.testing.assert_array_equal(flat.reshape(3, 10, 7), expected)


def test_one_that_sets_the_size_follows_the_resolution() -> None:
    @dataclass(frozen=True, slots=True, repr=False)
    class CropTop(Geometry):
        size: Size

        code = 99
        sets_size = True

    assert full_size([CropTop((8, 6))]) == (8, 6)
    assert with_resolution([Resize(32), CropTop((8, 6))], (4, 3)) == [Resize(16), CropTop((4, 3))]
