"""Samples of inputs, drawn at random by size, and the totals over all inputs that follow from them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
#: Takes (n,) int64 indices of inputs; returns (n,) float64, about the bytes that each will have in a dataset.
Guess: TypeAlias = Callable[[I64], F64]

# Inputs of each stratum: two would give its variance, and four give a better slope within it.
_PER_STRATUM = 4
# Sizes of photographs are skewed, and a small sample often has none of the largest. With Student's 97.5 % quantile the
# intervals of simulated conversions held the truth in 87 to 91 of 100 cases (20 to 200 inputs), with this in 94 to 98.
_QUANTILE = 0.995
# The inputs that are looked at for their guesses: a kind that is one input in 300 is missed in one survey of 28.
_SURVEYED = 1000
# Of n inputs none is of a kind; then this number over n is the most that the kind's share can be, with 95 % confidence:
# the rule of three (Hanley and Lippman-Hand, If nothing goes wrong, is everything all right?, JAMA 249, 1983).
_RULE_OF_THREE = 3.0
_MOST_SLOPES = 2
_SURVEY_DEGREES = _SURVEYED / _PER_STRATUM
# Guesses that are this close to the measured values hold for inputs that were not tried, too.
_EXACT = 1e-3


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimated number.

    Attributes:
        value: The estimate.
        low: The lower end of its 95 % interval.
        high: The upper end.
    """

    value: float
    low: float
    high: float

    def scaled(self, factor: float, offset: float = 0.0) -> Interval:
        """Return the interval of factor * x + offset, for a factor of 0 or more.

        >>> Interval(2, 1, 4).scaled(10, 1)
        Interval(value=21, low=11, high=41)
        """
        return Interval(self.value * factor + offset, self.low * factor + offset, self.high * factor + offset)

    def widened(self, by: float) -> Interval:
        """Return the interval with a margin on both sides."""
        return Interval(self.value, max(0.0, self.low - by), self.high + by)


@dataclass(frozen=True, slots=True, eq=False)
class Covariate:
    """A quantity that is known beforehand for the sample, and for all inputs together.

    Attributes:
        values: (n,) float64, of the sample's inputs, each for all that it represents in the survey.
        total: Its total over all inputs.
        variance: Of the total; 0 if all inputs were looked at.
    """

    values: F64
    total: float
    variance: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """A sample of the inputs, or of a survey of them, drawn from strata of inputs of similar size.

    Attributes:
        rows: (n,) int64, the indices of the sample's inputs, ascending.
        stratum: (n,) int64, the stratum of each.
        sizes: (number of strata,) int64, the number of inputs in each stratum.
        weights: (n,) float64, how many inputs each represents in the survey; 1 without one.
        covariates: What is known of the sample's inputs and of all inputs.
    """

    rows: I64
    stratum: I64
    sizes: I64
    weights: F64
    covariates: tuple[Covariate, ...]

    def estimate_total(self, values: Any) -> Interval:
        """Return the total over all inputs of a quantity of 0 or more that was measured for the sample.

        The combined regression estimator of stratified sampling (Cochran, Sampling Techniques, 3rd edition, chapter 7)
        with the finite-population correction, on the two covariates that explain most. If a covariate's total is itself
        an estimate, its variance is added, as in double sampling (chapter 12). The interval is the t distribution's,
        with Satterthwaite's degrees of freedom (chapter 5). On both sides it also leaves room for a kind of input that
        is not in the sample and takes no bytes at all, or twice those of the others, with the largest share that such
        a kind can have by the rule of three.

        Args:
            values: (n,) measured values.
        """
        measured: F64 = np.asarray(values, np.float64)
        y = measured * self.weights
        value, left, added = 0.0, y, 0.0
        others = list(self.covariates)
        for _ in range(min(_MOST_SLOPES, len(others))):
            fits = [self._fit(known.values, left) for known in others]
            best = int(np.argmin([residual for _, residual in fits]))
            slope, known = fits[best][0], others.pop(best)
            value += slope * known.total
            left = left - slope * known.values
            added += slope * slope * known.variance
        drawn, means = self._drawn(), self._means(left)
        value += float((self.sizes * means).sum())
        variances = self._sums((left - means[self.stratum]) ** 2) / np.maximum(drawn - 1, 1)
        parts = self.sizes**2 * (1 - drawn / self.sizes) * variances / drawn
        variance, half = float(parts.sum()) + added, 0.0
        if variance > 0:
            # If a few strata of large inputs have most of the variance, there are few degrees of freedom.
            few = float((parts**2 / np.maximum(drawn - 1, 1)).sum()) + added**2 / _SURVEY_DEGREES
            half = student(variance**2 / few, _QUANTILE) * math.sqrt(variance)
        least = float(measured.sum())  # the sample itself is known
        value = max(value, least)
        half += self._unlike_any(value - least, np.sqrt(variances), self._means(np.abs(y)))
        return Interval(value, max(least, value - half), value + half)

    @property
    def represents(self) -> F64:
        """(n,) float64, the number of inputs of its stratum that each input stands for."""
        return (self.sizes / self._drawn())[self.stratum]

    def _fit(self, known: F64, values: F64) -> tuple[float, float]:
        """Return the slope of values over a covariate within the strata, and the sum of squares that it leaves."""
        represents = self.represents
        dx, dy = known - self._means(known)[self.stratum], values - self._means(values)[self.stratum]
        spread = float((represents * dx * dx).sum())
        slope = float((represents * dx * dy).sum()) / spread if spread > 0 else 0.0
        return slope, float((represents * (dy - slope * dx) ** 2).sum())

    def _unlike_any(self, rest: float, spreads: F64, means: F64) -> float:
        """Return the most that inputs of a kind that was not drawn may add to the rest, or be missing from it."""
        drawn = self._drawn()
        at_random = drawn < self.sizes
        if (spreads[at_random] <= _EXACT * means[at_random]).all():
            return 0.0
        return rest * min(1.0, _RULE_OF_THREE / float(drawn[at_random].sum()))

    def _drawn(self) -> I64:
        return np.bincount(self.stratum, minlength=len(self.sizes))

    def _sums(self, values: F64) -> F64:
        return np.bincount(self.stratum, values, len(self.sizes)).astype(np.float64)

    def _means(self, values: F64) -> F64:
        return np.asarray(self._sums(values) / self._drawn(), np.float64)


def draw_sample(
    nbytes: I64, count: int, seed: int, kind: npt.NDArray[np.bool_] | None = None, guess: Guess | None = None
) -> Sample:
    """Return a sample of `count` inputs, or all inputs if there are fewer.

    Inputs are sorted by size and split into strata with equal shares of all bytes (Cochran, chapter 5A), so that large
    inputs are drawn more often; those that are as large as a share of one are drawn for certain. As the size may be of
    little use, half of a share goes by the number of inputs.

    Args:
        nbytes: (N,) int64, the size of every input.
        count: At least 4.
        seed: The same seed draws the same inputs.
        kind: (N,) bool, one of two kinds of every input; nearly all strata have one kind only.
        guess: Makes guesses that are better than the sizes. With more than 1,000 inputs it makes them for a survey of
            1,000, drawn in the same way by size, and the sample is drawn from these (double sampling).
    """
    everything, ones = np.arange(len(nbytes)), np.ones(len(nbytes))
    sized = Covariate(nbytes.astype(np.float64), float(nbytes.sum()))
    if count >= len(nbytes):
        return Sample(everything, np.zeros(len(nbytes), np.int64), np.array([len(nbytes)]), ones, ())
    rng = np.random.default_rng(seed)
    if guess is None:
        return _sample(everything, ones, sized.values, (sized,), count, rng, kind)
    if len(nbytes) <= _SURVEYED:
        guesses = guess(everything)
        return _sample(everything, ones, guesses, (Covariate(guesses, float(guesses.sum())), sized), count, rng, kind)
    survey = _sample(everything, ones, sized.values, (sized,), _SURVEYED, np.random.default_rng([seed, 1]), kind)
    guesses = guess(survey.rows)
    total = survey.estimate_total(guesses)
    # Without the room for what is not in the survey, the interval is at least this quantile of the deviation.
    deviation = (total.high - total.value) / NormalDist().inv_cdf(_QUANTILE)
    weights = survey.represents
    covariates = (
        Covariate(weights * guesses, total.value, deviation**2),
        Covariate(weights * nbytes[survey.rows], sized.total),
        Covariate(weights, float(len(nbytes))),
    )
    kind = None if kind is None else kind[survey.rows]
    return _sample(survey.rows, weights, weights * guesses, covariates, count, rng, kind)


def _sample(
    rows: I64,
    weights: F64,
    sizes: F64,
    covariates: tuple[Covariate, ...],
    count: int,
    rng: np.random.Generator,
    kind: npt.NDArray[np.bool_] | None,
) -> Sample:
    """Return a sample of some inputs, with their weights and covariates, drawn by size."""
    chosen, stratum, numbers = _draw(sizes, count, rng, kind)
    taken = tuple(Covariate(known.values[chosen], known.total, known.variance) for known in covariates)
    return Sample(rows[chosen], stratum, numbers, weights[chosen], taken)


def _draw(known: Any, count: int, rng: np.random.Generator, kind: Any) -> tuple[I64, I64, I64]:
    """Return rows, strata and the sizes of the strata of a sample, see `Sample`."""
    share = known + max(float(known.mean()), 1.0)
    is_sure = np.zeros(len(known), bool)
    # Without those that are certain, others are as large as a share of the rest.
    while (new := ~is_sure & (share * (count - is_sure.sum()) >= share[~is_sure].sum())).any():
        is_sure |= new
    by_size = np.argsort(known, kind="stable") if kind is None else np.lexsort((known, kind))
    groups = [np.flatnonzero(is_sure)] if is_sure.any() else []
    chosen = groups.copy()
    if (left := count - int(is_sure.sum())) > 0:
        others = by_size[~is_sure[by_size]]
        so_far = np.cumsum(share[others])
        num_strata = max(1, left // _PER_STRATUM)
        ends = np.searchsorted(so_far, so_far[-1] * np.arange(1, num_strata) / num_strata)
        strata = [group for group in np.split(others, ends) if len(group)]
        counts = [len(part) for part in np.array_split(np.arange(left), len(strata))]
        groups += strata
        chosen += [
            rng.choice(group, min(n, len(group)), replace=False) for group, n in zip(strata, counts, strict=True)
        ]
    rows = np.concatenate(chosen)
    stratum = np.repeat(np.arange(len(groups)), [len(part) for part in chosen])
    order = np.argsort(rows)
    return rows[order], stratum[order], np.array([len(group) for group in groups])


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
