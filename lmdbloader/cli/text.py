"""Numbers as people read them."""

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
