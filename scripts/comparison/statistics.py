"""Means, their intervals, and the difference of two of them, by Student's t distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and its 95 % interval.

    Attributes:
        value: The estimate.
        low, high: The interval's ends; None where a single run says nothing about it.
    """

    value: float
    low: float | None
    high: float | None

    @property
    def contains_zero(self) -> bool | None:
        """Whether 0 is in the interval; None where there is none."""
        return None if self.low is None or self.high is None else self.low <= 0 <= self.high


def mean(values: Sequence[float]) -> Interval:
    """Return the mean and its 95 % interval.

    >>> found = mean([1.0, 2.0, 3.0])
    >>> found.value, round(found.high - found.value, 3)
    (2.0, 2.484)
    """
    center = fmean(values)
    if len(values) < 2:
        return Interval(center, None, None)
    half = t_quantile(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return Interval(center, center - half, center + half)


def difference(first: Sequence[float], second: Sequence[float]) -> Interval:
    """Return how much larger the first mean is than the second, with the interval of Welch's t test (1947).

    >>> difference([1.0, 1.1, 1.2], [1.0, 1.1, 1.3]).contains_zero, difference([1.0, 1.1], [8.0, 8.1]).contains_zero
    (True, False)
    """
    center = fmean(first) - fmean(second)
    if min(len(first), len(second)) < 2:
        return Interval(center, None, None)
    variances = [stdev(values) ** 2 / len(values) for values in (first, second)]
    total = sum(variances)
    pairs = zip(variances, (first, second), strict=True)
    # Runs that are all the same leave no freedom to estimate, and an interval without width.
    spread = sum(variance**2 / (len(values) - 1) for variance, values in pairs)
    half = t_quantile(total**2 / spread) * math.sqrt(total) if spread else 0.0
    return Interval(center, center - half, center + half)


def t_quantile(freedom: float) -> float:
    """Return the 97.5 % quantile of Student's t distribution.

    >>> round(t_quantile(2), 3), round(t_quantile(1e6), 3)
    (4.303, 1.96)
    """
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.975))
