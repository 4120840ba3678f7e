"""Figures with the range of their turns: which of them differ, and how many digits were measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lmdbloader.lab.formatting import number, seconds

# The range of a figure with fewer than two turns is unknown. Turns on a quiet machine differ by about this much.
_ASSUMED = 0.1
_MOST_DIGITS = 3
# Differences below this say nothing, however little the turns differ.
_ALIKE = 0.05


@dataclass(frozen=True, slots=True)
class Measured:
    """A figure that was measured in turns. As text it has the digits that the turns agree on.

    Attributes:
        value: The median of the turns.
        low, high: The smallest and the largest turn; 10 % below and above the value if there are fewer than two.
    """

    value: float
    low: float
    high: float

    @property
    def rounded(self) -> float:
        """The value with no digit that is smaller than half of the range, and three digits at most."""
        return _round(self.value, self.digits)

    @property
    def digits(self) -> int:
        """How many digits of the value the turns support: 1 to 3."""
        half = (self.high - self.low) / 2
        if not self.value or not math.isfinite(self.value) or half <= 0:
            return _MOST_DIGITS
        if not math.isfinite(half):
            return 1
        # A digit is kept if its unit is at most half of the range.
        digits = _place(self.value) - _place(half) + 1
        return max(1, min(_MOST_DIGITS, digits))

    def __str__(self) -> str:
        """Return the rounded value with separators of thousands.

        >>> str(Measured(52431.0, 51000.0, 54000.0)), str(Measured(1.128, 1.0, 1.2))
        ('52,000', '1.1')
        """
        return number(self.rounded)


def measured(value: float, turns: Sequence[float]) -> Measured:
    """Return a figure with the range of its turns.

    >>> measured(10.0, (9.0, 10.0, 12.0)), measured(10.0, ())
    (Measured(value=10.0, low=9.0, high=12.0), Measured(value=10.0, low=9.0, high=11.0))
    """
    if len(turns) < 2:
        return Measured(value, value * (1 - _ASSUMED), value * (1 + _ASSUMED))
    return Measured(value, min(*turns, value), max(*turns, value))


def is_clear(found: Measured) -> bool:
    """Return whether a ratio says that two figures differ: their turns do not overlap, and it is 5 % or more.

    With three turns each, equal figures have ranges that do not overlap once in ten times.

    >>> is_clear(Measured(1.2, 1.1, 1.3)), is_clear(Measured(1.2, 0.9, 1.3)), is_clear(Measured(1.02, 1.01, 1.03))
    (True, False, False)
    """
    return not found.low <= 1 <= found.high and not 1 - _ALIKE < found.value < 1 + _ALIKE


def ratio(one: Measured, other: Measured) -> Measured:
    """Return how many times the other one is, with the least and the most that the turns allow.

    The range contains 1 exactly if the turns overlap.
    """
    return Measured(_over(one.value, other.value), _over(one.low, other.high), _over(one.high, other.low))


def duration(num_samples: float, speed: Measured) -> Measured:
    """Return the seconds of samples at a speed: the fastest turn is the shortest time."""
    return Measured(*(_over(num_samples, value) for value in (speed.value, speed.high, speed.low)))


def show_seconds(time: Measured) -> str:
    """Return a time with the digits that were measured.

    >>> show_seconds(Measured(12.34, 11.0, 13.0))
    '12 s'
    """
    return seconds(time.rounded)


def show_times(found: Measured) -> str:
    """Return a ratio in words, with the digits that were measured: two, and more near 1.

    >>> [show_times(Measured(*found)) for found in ((44.3, 40.0, 47.0), (3.2, 1.5, 6.0), (1.04, 1.03, 1.05))]
    ['44 times', '3 times', '1.04 times']
    """
    return f"{_ratio_text(found)} times"


def show_span(found: Sequence[Measured]) -> str:
    """Return the smallest and the largest of ratios in words.

    >>> show_span([Measured(4.02, 3.9, 4.1), Measured(44.3, 40.0, 47.0)])
    '4 to 44 times'
    """
    low, high = (_ratio_text(choose(found, key=lambda entry: entry.value)) for choose in (min, max))
    return f"{low} times" if low == high else f"{low} to {high} times"


def _ratio_text(found: Measured) -> str:
    most = 2 if not 0.9 < found.value < 1.1 and abs(found.value) < 100 else _MOST_DIGITS
    return f"{_round(found.value, min(found.digits, most)):,.{_MOST_DIGITS}g}" if found.value < 1000 else str(found)


def _round(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}")


def _place(value: float) -> int:
    """Return the power of ten of the first digit."""
    return math.floor(math.log10(abs(value)))


def _over(one: float, other: float) -> float:
    return one / other if other else math.inf if one else 1.0
