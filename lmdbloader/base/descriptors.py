"""File descriptors 0 to 2: no file of a dataset may get one of them."""

from __future__ import annotations

import os

__all__ = ["occupy_standard_descriptors"]


def occupy_standard_descriptors() -> None:
    """Open /dev/null in the place of each of standard input, output and error that is closed.

    The next file that is opened gets the lowest free descriptor. Were data.mdb number 2, whatever any library writes
    to standard error would be written into it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:  # another thread has just taken it
                os.close(opened)
            else:
                os.set_inheritable(number, True)
