"""The transforms that warp images, as torchvision does: with their arguments and their numbers for the kernels."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lmdbloader.kernels.transform import opcodes
from lmdbloader.transforms.arguments import (
    Center,
    Degrees,
    Fill,
    Probability,
    RareFlag,
    Scale,
    Shear,
    Shifts,
    Smoothness,
    Strength,
    WarpInterpolation,
)
from lmdbloader.transforms.base import Geometry


@dataclass(frozen=True, slots=True, repr=False)
class Warp(Geometry):
    """A transform after which pixels are between those of the image, nearest or interpolated; the rest is filled."""

    warps = True


def _around_zero(value: float | tuple[float, ...]) -> tuple[float, ...]:
    return value if isinstance(value, tuple) else (-value, value)


@dataclass(frozen=True, slots=True, repr=False)
class RandomRotation(Warp):
    """Rotate the image by a random angle, as torchvision's RandomRotation does for tensors.

    Attributes:
        degrees: A number d for angles from -d to d, or (min, max), anticlockwise.
        interpolation: "nearest" or "bilinear"; masks are always nearest.
        expand: Whether the result holds all of the rotated image. Its size then depends on the angle, and a later
            transform must set it.
        center: (x, y) in pixels from the upper left corner; None for the middle of the image.
        fill: The value outside of the image: a number, or one for each channel, in the units of the stored pixels.
            Masks have their `ignore_index` there.
    """

    degrees: Degrees
    interpolation: WarpInterpolation = "nearest"
    expand: RareFlag = False
    center: Center = None
    fill: Fill = 0

    code = opcodes.AFFINE

    @property
    def varies_size(self) -> bool:
        """Whether the size of its result depends on the angle that is drawn."""
        low, high = _around_zero(self.degrees)
        return self.expand and low < high

    @property
    def real_numbers(self) -> tuple[float, ...]:
        """AFFINE_LOW ...: torchvision's `rotate` turns against its `affine`."""
        low, high = _around_zero(self.degrees)
        return (-high, -low, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, *(self.center or (math.nan, math.nan)))


@dataclass(frozen=True, slots=True, repr=False)
class RandomAffine(Warp):
    """Rotate, shift, scale and shear the image by random amounts, as torchvision's RandomAffine does for tensors.

    Attributes:
        degrees: A number d for angles from -d to d, or (min, max), clockwise; 0 for none.
        translate: The largest shifts (across, down) as shares of the width and the height; None for none.
        scale: (min, max) factors above 0; None for none.
        shear: A number s for an angle along x from -s to s degrees, (min, max) of it, or (min, max, min, max) along x
            and y; None for none.
        interpolation: "nearest" or "bilinear"; masks are always nearest.
        fill: The value outside of the image, as for RandomRotation.
        center: (x, y) in pixels from the upper left corner; None for the middle of the image.
    """

    degrees: Degrees
    translate: Shifts = None
    scale: Scale = None
    shear: Shear = None
    interpolation: WarpInterpolation = "nearest"
    fill: Fill = 0
    center: Center = None

    code = opcodes.AFFINE

    @property
    def real_numbers(self) -> tuple[float, ...]:
        """AFFINE_LOW ...."""
        shear = (*_around_zero(self.shear or 0.0), 0.0, 0.0)[:4]
        scale, center = self.scale or (1.0, 1.0), self.center or (math.nan, math.nan)
        return (*_around_zero(self.degrees), *(self.translate or (0.0, 0.0)), *scale, *shear, *center)


@dataclass(frozen=True, slots=True, repr=False)
class RandomPerspective(Warp):
    """Look at the image from the side with probability p, as torchvision's RandomPerspective does for tensors.

    Each corner of the image moves towards the middle. An image of one row or column stays as it is. With a distortion
    of 1 a pixel may be on the horizon: torchvision makes it 0, here it is filled.

    Attributes:
        distortion_scale: How far corners move at most, from 0 to 1, where 1 is the middle.
        p: Probability.
        interpolation: "nearest" or "bilinear"; masks are always nearest.
        fill: The value outside of the image, as for RandomRotation.
    """

    distortion_scale: Probability = 0.5
    p: Probability = 0.5
    interpolation: WarpInterpolation = "bilinear"
    fill: Fill = 0

    code = opcodes.PERSPECTIVE

    @property
    def real_numbers(self) -> tuple[float, ...]:
        """PERSPECTIVE_SHARE and PERSPECTIVE_P."""
        return self.distortion_scale, self.p


@dataclass(frozen=True, slots=True, repr=False)
class ElasticTransform(Warp):
    """Displace pixels by smooth random amounts, as torchvision's ElasticTransform does for tensors.

    With equal displacements single values differ by one level, and with "nearest" a single pixel may be the neighbor.
    Boxes and points move, as in torchvision, by the opposite of the displacement where they are, which is approximate.

    Attributes:
        alpha: Strength of the displacements, as a number or (across, down).
        sigma: Smoothness of the displacements in pixels, as a number or (across, down); 0 for none.
        interpolation: "nearest" or "bilinear"; masks are always nearest.
        fill: The value outside of the image, as for RandomRotation.
    """

    alpha: Strength = 50.0
    sigma: Smoothness = 5.0
    interpolation: WarpInterpolation = "bilinear"
    fill: Fill = 0

    code = opcodes.ELASTIC

    @property
    def real_numbers(self) -> tuple[float, ...]:
        """ELASTIC_ALPHA and ELASTIC_SIGMA, across and down."""
        both = (self.alpha, self.sigma)
        return tuple(side for v in both for side in (v if isinstance(v, tuple) else (v, v)))
