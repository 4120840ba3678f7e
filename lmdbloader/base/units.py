"""Parses and formats sizes in bytes."""

from __future__ import annotations

import re

from lmdbloader.errors import OptionError

KIB, MIB, GIB = 2**10, 2**20, 2**30
_PREFIXES = "KMGTPE"
_SIZE = re.compile(rf"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*(?:([{_PREFIXES}])(i?))?(?:B|bytes?)?\s*", re.IGNORECASE)


def parse_nbytes(size: int | str, *, name: str = "size") -> int:
    """Return a size in bytes, rounded to a whole number.

    Units are those of storage and networks: K, KB, M, MB, G, GB ... are powers of 1000, and KiB, MiB, GiB ... of 1024.
    Case does not matter, and there may be a space before the unit.

    Args:
        size: Bytes, or a number with a unit.
        name: The option's, for errors.

    Raises:
        OptionError: It is not a size, or less than one byte.

    >>> parse_nbytes("64KiB"), parse_nbytes("500K"), parse_nbytes("1.5 GB"), parse_nbytes(4096)
    (65536, 500000, 1500000000, 4096)
    """
    if isinstance(size, int) and not isinstance(size, bool):
        nbytes = size
    else:
        match = _SIZE.fullmatch(size) if isinstance(size, str) else None
        if match is None:
            raise OptionError(f"{name}={size!r}: expected a size like '64KiB', '500K' or '150GB', or a number of bytes")
        number, prefix, binary = match.groups()
        power = _PREFIXES.index(prefix.upper()) + 1 if prefix else 0
        whole, _, fraction = number.partition(".")
        # In whole numbers: a float lacks the digits for an exact size of many gigabytes.
        digits, scale = int(f"{whole}{fraction}" or "0"), 10 ** len(fraction)
        nbytes = (2 * digits * (1024 if binary else 1000) ** power + scale) // (2 * scale)
    if nbytes < 1:
        raise OptionError(f"{name}={size!r}: expected at least one byte")
    return nbytes


def show_nbytes(nbytes: float) -> str:
    """Return a size in powers of 1024, with three digits.

    >>> show_nbytes(65536), show_nbytes(150e9), show_nbytes(700), show_nbytes(1023.9 * 1024)
    ('64 KiB', '140 GiB', '700 bytes', '1 MiB')
    """
    return f"{nbytes:.0f} bytes" if nbytes < KIB else _scaled(nbytes, 1024, "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def show_decimal_nbytes(nbytes: float) -> str:
    """Return a size in powers of 1000, with three digits, as vendors of disks do.

    >>> show_decimal_nbytes(65536), show_decimal_nbytes(150e9), show_decimal_nbytes(999.9e6)
    ('65.5 KB', '150 GB', '1 GB')
    """
    return f"{nbytes:.0f} bytes" if nbytes < 1000 else _scaled(nbytes, 1000, "KB", "MB", "GB", "TB", "PB", "EB")


def _scaled(number: float, step: int, *units: str) -> str:
    for unit in units:
        number /= step
        # A number that rounds up to the next unit is shown in that unit.
        if number < step - 0.5 or unit == units[-1]:
            break
    text = f"{number:.0f}" if number >= 99.95 else f"{number:.1f}" if number >= 9.995 else f"{number:.2f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text} {unit}"
