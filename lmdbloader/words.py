"""Numbers and texts as people read them."""

from __future__ import annotations


def mebibytes(nbytes: float) -> str:
    """Return a size.

    >>> mebibytes(3 * 2**20), mebibytes(5 * 2**30), mebibytes(700)
    ('3.0 MiB', '5.00 GiB', '700 bytes')
    """
    if nbytes < 1024:
        return f"{nbytes:.0f} bytes"
    if nbytes < 2**20:
        return f"{nbytes / 1024:.1f} KiB"
    return f"{nbytes / 2**20:.1f} MiB" if nbytes < 2**30 else f"{nbytes / 2**30:.2f} GiB"


def counted(number: int, noun: str, nouns: str | None = None) -> str:
    """Return a number with its noun; `nouns` is its plural where that is not the noun with an s.

    >>> counted(1, "sample"), counted(1280, "sample"), counted(2, "process", "processes")
    ('1 sample', '1,280 samples', '2 processes')
    """
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"


def extent(values: tuple[int, int]) -> str:
    """Return the smallest and the largest.

    >>> extent((5, 5)), extent((5, 1000))
    ('5', '5 to 1,000')
    """
    return f"{values[0]:,}" if values[0] == values[1] else f"{values[0]:,} to {values[1]:,}"


def plain(text: str) -> str:
    """Return text on one line, as a terminal may show it: what could move the cursor or change colours is escaped.

    >>> plain("a cat"), plain("a\\x1b[2Jcat")
    ('a cat', 'a\\\\x1b[2Jcat')
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)
