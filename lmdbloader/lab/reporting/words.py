"""Figures as a report writes them."""

from __future__ import annotations

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def seconds(value: float) -> str:
    """Return a time with three digits and its unit.

    >>> seconds(12.345), seconds(0.0042), seconds(1e-5), seconds(754.2), seconds(0)
    ('12.3 s', '4.2 ms', '10 µs', '754 s', '0 s')
    """
    if value <= 0:
        return "0 s"
    size, unit = next(((size, unit) for size, unit in _UNITS if value >= size * 0.9995), _UNITS[-1])
    return f"{value / size:.0f} {unit}" if value / size >= 100 else f"{value / size:.3g} {unit}"


def three_digits(value: float) -> float:
    """Return a value rounded to three digits.

    >>> three_digits(85509.3), three_digits(7.128), three_digits(0)
    (85500.0, 7.13, 0.0)
    """
    return float(f"{value:.3g}")


def number(value: float) -> str:
    """Return a number with three digits, or all of those before the point.

    >>> number(85509.3), number(12.345), number(0.5), number(0)
    ('85,509', '12.3', '0.5', '0')
    """
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def times(ratio: float) -> str:
    """Return how many times as much.

    >>> times(5.14), times(28.3), times(1.0), times(0.82), times(140.2)
    ('5.1 times', '28 times', '1.0 times', '0.82 times', '140 times')
    """
    if ratio < 0.95:
        return f"{ratio:.2f} times"
    return f"{ratio:.1f} times" if ratio < 10 else f"{ratio:,.0f} times"


def percent(share: float) -> str:
    """Return a share.

    >>> percent(0.61), percent(0.004), percent(0), percent(0.9997)
    ('61 %', '0.4 %', '0 %', '100 %')
    """
    value = 100 * share
    return f"{value:.1f} %" if 0.05 <= value < 0.95 or 99.05 <= value < 99.95 else f"{value:.0f} %"


def window(crop: int | None) -> str:
    """Return what of the images was read.

    >>> window(64), window(None)
    ('64 x 64 crops', 'whole images')
    """
    return "whole images" if crop is None else f"{crop} x {crop} crops"
