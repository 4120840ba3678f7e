"""Blur kernels of Real-ESRGAN: Gaussian, generalized, plateau and sinc, and the random draws of their parameters."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lmdbloader.errors import OptionError

__all__ = ["FAMILIES", "Kernel", "KernelDraws", "check_sizes", "draw_final", "pulse"]

F64 = npt.NDArray[np.float64]

# Programs pad every kernel with zeros to this side.
SIZE = 21
FAMILIES = ("iso", "aniso", "generalized_iso", "generalized_aniso", "plateau_iso", "plateau_aniso")
# J1(x) = mean over a period of sin(x sin t) sin t, here at 128 points of which a quarter are distinct: sin t and the
# weights. The error is below 1e-12 up to x = 60; a kernel of 21 reaches 45.
_SINES = np.sin(math.pi / 64 * np.arange(1, 33))
_WEIGHTS = _SINES / 32
_WEIGHTS[-1] /= 2


def pulse(size: int = SIZE) -> F64:
    """Return the kernel (size, size) that changes nothing.

    >>> pulse(3).tolist()
    [[0.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]]
    """
    found = np.zeros((size, size))
    found[size // 2, size // 2] = 1.0
    return found


@dataclass(frozen=True, slots=True)
class Kernel:
    """The parameters of one kernel. With q = x' S^-1 x, S having the deviations `sigma` along axes turned by `angle`:

    - Gaussian (iso, aniso) and generalized: exp(-q**shape / 2), where a Gaussian's shape is 1;
    - plateau: 1 / (1 + q**shape);
    - sinc: shape * J1(shape * r) / (2 pi r) at the radius r, a circular low pass, which rings as sharpened images do.

    Attributes:
        family: One of FAMILIES, or "sinc".
        size: Pixels of a side, odd.
        sigma: Standard deviations along the axes, in pixels; not of a sinc.
        angle: In radians.
        shape: Beta: less than 1 is peaked with heavy tails, more is flat with a steep edge. Of a sinc, the frequency up
            to which it passes, in radians a pixel.

    >>> Kernel("iso", 3, (1.0, 1.0), 0.0, 1.0).weights(5).round(3)[2]
    array([0.   , 0.124, 0.204, 0.124, 0.   ])
    """

    family: str
    size: int
    sigma: tuple[float, float]
    angle: float
    shape: float

    def weights(self, size: int = SIZE) -> F64:
        """Return the kernel (size, size), of sum 1, with zeros around it."""
        if self.family == "sinc":
            found = _sinc(self.size, self.shape)
        else:
            powers = _distance(self.size, self.sigma, self.angle) ** self.shape
            found = 1 / (1 + powers) if self.family.startswith("plateau") else np.exp(-0.5 * powers)
        padded, first = np.zeros((size, size)), (size - self.size) // 2
        padded[first : first + self.size, first : first + self.size] = found / found.sum()
        return padded


@dataclass(frozen=True, slots=True)
class KernelDraws:
    """The random blur kernels of one stage, as Real-ESRGAN's dataset and those derived from it draw them.

    Attributes:
        sizes: Sides of the kernel, all equally likely.
        sinc_prob: Share of kernels that are a sinc.
        kernel_list: The families of the others.
        kernel_prob: The share of each family, or weights.
        blur_sigma: Least and greatest standard deviation.
        betag_range: Of generalized kernels: half have a beta from the first number to 1, half from 1 to the second.
        betap_range: The same of plateau kernels.

    Raises:
        OptionError: A size is even or greater than 21, there is another family, or a range is not one.
    """

    sizes: Sequence[int]
    sinc_prob: float
    kernel_list: Sequence[str]
    kernel_prob: Sequence[float]
    blur_sigma: Sequence[float]
    betag_range: Sequence[float]
    betap_range: Sequence[float]

    def __post_init__(self) -> None:
        check_sizes(self.sizes)
        if unknown := [name for name in self.kernel_list if name not in FAMILIES]:
            raise OptionError(f"kernel_list: {unknown[0]}: expected some of {', '.join(FAMILIES)}")
        if len(self.kernel_prob) != len(self.kernel_list) or min(self.kernel_prob) < 0 or sum(self.kernel_prob) <= 0:
            raise OptionError(
                f"kernel_prob: {[*self.kernel_prob]}: expected {len(self.kernel_list)} shares, one for each kernel"
            )
        if not 0 < self.blur_sigma[0] <= self.blur_sigma[1]:
            raise OptionError(f"blur_sigma: {[*self.blur_sigma]}: expected [least, greatest] in pixels, above 0")
        for name in ("betag_range", "betap_range"):
            low, high = getattr(self, name)
            if not 0 < low <= 1 <= high:
                raise OptionError(f"{name}: {[low, high]}: expected [least, greatest] with 1 between them")

    def draw(self, random: np.random.Generator) -> Kernel:
        """Return a random kernel."""
        size = self.sizes[int(random.integers(len(self.sizes)))]
        if random.uniform() < self.sinc_prob:
            return _drawn_sinc(random, size, 1 / 3 if size < 13 else 1 / 5)
        shares = np.cumsum(self.kernel_prob)
        family = self.kernel_list[int(np.searchsorted(shares, random.uniform(0, shares[-1]), "right"))]
        first = second = float(random.uniform(self.blur_sigma[0], self.blur_sigma[1]))
        angle, beta = 0.0, 1.0
        if family.endswith("aniso"):
            second = float(random.uniform(self.blur_sigma[0], self.blur_sigma[1]))
            angle = float(random.uniform(-math.pi, math.pi))
        if family not in ("iso", "aniso"):
            low, high = self.betag_range if family.startswith("generalized") else self.betap_range
            beta = float(random.uniform(low, 1) if random.uniform() < 0.5 else random.uniform(1, high))
        return Kernel(family, size, (first, second), angle, beta)


def draw_final(random: np.random.Generator, sizes: Sequence[int], prob: float) -> Kernel | None:
    """Return the random sinc of the last stage, or None in 1 - prob of all cases, for `pulse`."""
    if random.uniform() >= prob:
        return None
    return _drawn_sinc(random, sizes[int(random.integers(len(sizes)))], 1 / 3)


def _drawn_sinc(random: np.random.Generator, size: int, least: float) -> Kernel:
    return Kernel("sinc", size, (0.0, 0.0), 0.0, float(random.uniform(math.pi * least, math.pi)))


def check_sizes(sizes: Sequence[int]) -> None:
    """Raise OptionError if a kernel cannot have one of these sides."""
    if not sizes or any(size % 2 == 0 or not 0 < size <= SIZE for size in sizes):
        raise OptionError(f"kernel_range: sizes {[*sizes]}: expected odd numbers of pixels up to {SIZE}")


def _sinc(size: int, cutoff: float) -> F64:
    radius, places = _radii(size)
    values = np.append(cutoff * _j1(cutoff * radius) / (2 * math.pi * radius), cutoff**2 / (4 * math.pi))
    found: F64 = values[places]
    return found


@functools.cache
def _grid(size: int) -> tuple[F64, F64]:
    """Return the coordinates y and x (size, size) of pixels, from the one in the middle."""
    y, x = np.mgrid[-(size // 2) : size // 2 + 1, -(size // 2) : size // 2 + 1].astype(np.float64)
    return y, x


@functools.cache
def _radii(size: int) -> tuple[F64, npt.NDArray[np.int64]]:
    """Return the distinct radii above 0 (n,), and of each pixel (size, size) the place there; -1 of the middle."""
    y, x = _grid(size)
    squares, places = np.unique((x * x + y * y).ravel(), return_inverse=True)
    return np.sqrt(squares[1:]), places.reshape(size, size) - 1


def _distance(size: int, sigma: tuple[float, float], angle: float) -> F64:
    """Return x' S^-1 x of the pixels (size, size), where S has the deviations along the turned axes."""
    y, x = _grid(size)
    cos, sin = math.cos(angle), math.sin(angle)
    found: F64 = ((cos * x + sin * y) / sigma[0]) ** 2 + ((cos * y - sin * x) / sigma[1]) ** 2
    return found


def _j1(x: F64) -> F64:
    """Return Bessel's function of the first kind and order 1.

    >>> _j1(np.array([1.0, 44.4])).round(9)
    array([ 0.44005059, -0.0421023 ])
    """
    found: F64 = np.sin(np.multiply.outer(x, _SINES)) @ _WEIGHTS
    return found
