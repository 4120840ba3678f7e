"""Statistics of a few inputs that stand for all: which ones to take, and what a total is, with its 95 % interval."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

_F64 = npt.NDArray[np.float64]
_I64 = npt.NDArray[np.int64]
# Of each stratum: two would give its variance, and four give more of the slope within it.
_PER_STRATUM = 4


# Sizes of photographs are skewed, and few inputs seldom hold one of the largest: with Student's 97.5 % quantile the
# intervals of simulated conversions held the truth in 87 to 91 of 100 cases (20 to 200 inputs), with this in 94 to 98.
_QUANTILE = 0.995


@dataclass(frozen=True, slots=True)
class Interval:
    """A number that was estimated.

    Attributes:
        value: The estimate.
        low: Where its 95 % interval begins.
        high: Where it ends.
    """

    value: float
    low: float
    high: float

    def scaled(self, factor: float, offset: float = 0.0) -> Interval:
        """Return the interval of factor * x + offset, for a factor that is not negative.

        >>> Interval(2, 1, 4).scaled(10, 1)
        Interval(value=21, low=11, high=41)
        """
        return Interval(self.value * factor + offset, self.low * factor + offset, self.high * factor + offset)

    def widened(self, by: float) -> Interval:
        """Return the interval made longer on both sides."""
        return Interval(self.value, max(0.0, self.low - by), self.high + by)


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """Some of all inputs, drawn from strata: neighbours in the order of their sizes.

    Attributes:
        rows: (n,) int64, their numbers, ascending.
        stratum: (n,) int64, the stratum of each.
        sizes: (number of strata,) int64, how many inputs each stratum has.
        total: Of what is known of every input, the sum over all of them.
        known: (n,) float64, the same of those that were drawn.
    """

    rows: _I64
    stratum: _I64
    sizes: _I64
    total: float
    known: _F64

    def estimate_total(self, values: Any) -> Interval:
        """Return the total over all inputs of what was measured of the sample.

        The combined regression estimator of stratified sampling on the known sizes (Cochran, Sampling Techniques, 3rd
        edition, 7.10), which becomes the plain mean where sizes tell nothing; the t distribution's interval.

        Args:
            values: (n,) what was measured.
        """
        y: _F64 = np.asarray(values, np.float64)
        num_strata = len(self.sizes)
        drawn = np.bincount(self.stratum, minlength=num_strata)
        weight = self.sizes / drawn
        means = [np.bincount(self.stratum, v, num_strata) / drawn for v in (y, self.known)]
        dy, dx = y - means[0][self.stratum], self.known - means[1][self.stratum]
        # Each input of the sample stands for as many as its stratum has for each that was drawn.
        spread = float((weight[self.stratum] * dx * dx).sum())
        slope = float((weight[self.stratum] * dx * dy).sum()) / spread if spread > 0 else 0.0
        value = float((self.sizes * means[0]).sum()) + slope * (self.total - float((self.sizes * means[1]).sum()))
        left = dy - slope * dx
        variances = np.bincount(self.stratum, left * left, num_strata) / np.maximum(drawn - 1, 1)
        parts = self.sizes**2 * (1 - drawn / self.sizes) * variances / drawn
        variance = float(parts.sum())
        if variance > 0:
            # Where a few strata of large inputs have most of the variance, there are few degrees of freedom
            # (Satterthwaite's; Cochran, 5.16).
            degrees = variance**2 / float((parts**2 / np.maximum(drawn - 1, 1)).sum())
            half = student(degrees, _QUANTILE) * math.sqrt(variance)
        else:
            half = 0.0
        return Interval(value, max(0.0, value - half), value + half)


def draw_sample(known: _I64, count: int, seed: int, kind: npt.NDArray[np.bool_] | None = None) -> Sample:
    """Return `count` of all inputs, or all of them where there are no more.

    Args:
        known: (N,) int64, a size of every input.
        count: At least 4.
        seed: The same one draws the same inputs.
        kind: (N,) bool, which of two kinds every input is of; nearly all strata have one kind only.
    """
    by_size = np.argsort(known, kind="stable") if kind is None else np.lexsort((known, kind))
    if count >= len(known):
        number = np.zeros(len(known), np.int64)
        return Sample(np.arange(len(known)), number, np.array([len(known)]), float(known.sum()), known.astype(float))
    rng = np.random.default_rng(seed)
    groups = np.array_split(by_size, max(1, count // _PER_STRATUM))
    counts = [len(part) for part in np.array_split(np.arange(count), len(groups))]
    # A stratum may be smaller than its share where nearly all are drawn.
    chosen = [rng.choice(g, min(n, len(g)), replace=False) for g, n in zip(groups, counts, strict=True)]
    rows = np.concatenate(chosen)
    stratum = np.repeat(np.arange(len(groups)), [len(c) for c in chosen])
    order = np.argsort(rows)
    rows, stratum = rows[order], stratum[order]
    return Sample(rows, stratum, np.array([len(g) for g in groups]), float(known.sum()), known[rows].astype(float))


def student(degrees: float, quantile: float = 0.975) -> float:
    """Return a quantile of Student's t (Abramowitz and Stegun, 26.7.5).

    >>> round(student(10), 2), round(student(100), 2)
    (2.23, 1.98)
    """
    z, n = NormalDist().inv_cdf(quantile), max(degrees, 2.0)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / n + second / n**2 + third / n**3
