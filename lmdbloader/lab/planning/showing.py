"""Numbers of a plan as text."""

from __future__ import annotations

from lmdbloader.base.units import KIB, show_decimal_nbytes, show_nbytes


def show_size(nbytes: int) -> str:
    """Return a size in the units that it was probably given in.

    >>> show_size(65536), show_size(500_000)
    ('64 KiB', '500 KB')
    """
    return show_nbytes(nbytes) if nbytes % KIB == 0 else show_decimal_nbytes(nbytes)


def show_number(value: float) -> str:
    """Return a number without a fraction, if it is not small.

    >>> show_number(5885.06), show_number(0.25)
    ('5,885', '0.25')
    """
    return f"{value:,.0f}" if value >= 10 or value == round(value) else f"{value:.2g}"


def show_seconds(value: float) -> str:
    """Return a time in a suitable unit.

    >>> [show_seconds(value) for value in (0.0005, 0.087, 2, 150, 30000)]
    ['0.5 ms', '87 ms', '2 s', '2.5 min', '8.3 h']
    """
    if value < 1:
        return f"{1000 * value:.3g} ms"
    if value < 120:
        return f"{value:.3g} s"
    return f"{value / 60:.3g} min" if value < 7200 else f"{value / 3600:,.1f} h"
