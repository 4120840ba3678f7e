"""Numbers as people write them: one grammar for the command line and for options in Python, and sizes for display."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from lmdbloader.base.option_names import option
from lmdbloader.errors import OptionError

KIB, MIB, GIB = 2**10, 2**20, 2**30
_PREFIXES = "KMGTPE"
_NUMBER = re.compile(
    r"\s*([+-]?)([0-9]+(?:_[0-9]+)*(?:\.[0-9]*)?|\.[0-9]+)(?:e([+-]?[0-9]{1,3}))?"
    rf"\s*(?:(%)|([{_PREFIXES}])?(i)?(B|bytes?)?)\s*",
    re.IGNORECASE | re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Grammar:
    """The ways to write one kind of number.

    Attributes:
        parse: Returns the number of a text; None if the text means none.
        forms: Examples, for messages.
    """

    parse: Callable[[str], int | float | None]
    forms: str


def parse_whole(text: str) -> int | None:
    """Return the whole number in a text; None if it is not one.

    K, M, G, T, P and E are powers of 1000, in upper or lower case.

    >>> [parse_whole(text) for text in ("24", "1_000", "4k", "1.5M", "1e6", "-3")]
    [24, 1000, 4000, 1500000, 1000000, -3]
    >>> [parse_whole(text) for text in ("0.5", "50%", "2GB", "4Ki", "many")]
    [None, None, None, None, None]
    """
    number, unit = _parse(text)
    return int(number) if number is not None and number.denominator == 1 and unit in ("", "K") else None


def _pixels(text: str) -> int | None:
    # 4K is 3840, 4000 or 4096 pixels.
    number, unit = _parse(text)
    return int(number) if number is not None and number.denominator == 1 and not unit else None


def _real(text: str) -> float | None:
    number, unit = _parse(text)
    return None if number is None or unit else _as_float(number)


def _share(text: str) -> float | None:
    number, unit = _parse(text)
    return None if number is None or unit not in ("", "%") else _as_float(number)


def _flops(text: str) -> float | None:
    # As vendors and papers write them: 4G, 4 GFLOP, 7 TFLOPS, 7 TFLOP/s.
    number, unit = _parse(re.sub(r"\s*flops?(/s)?\s*$", "", text, flags=re.IGNORECASE))
    return None if number is None or unit not in ("", "K") else _as_float(number)


def _nbytes(text: str) -> int | None:
    number, unit = _parse(text)
    if number is None or unit == "%":
        return None
    return (2 * number.numerator + number.denominator) // (2 * number.denominator)


WHOLE = Grammar(parse_whole, "a whole number such as 24, 1_000, 4k or 1e6")
PIXELS = Grammar(_pixels, "a whole number of pixels such as 512, 1_000 or 1e3")
REAL = Grammar(_real, "a number such as 0.5, 20 or 1e-3")
SHARE = Grammar(_share, "a share such as 0.5 or 50%")
NBYTES = Grammar(_nbytes, "a size such as 64KiB, 500K, 1.5GB or 1e6, or a number of bytes")

FLOPS = Grammar(_flops, "a number of floating-point operations such as 4e9, 4G, 4 GFLOP or 7 TFLOPS")


def parse_nbytes(size: int | float | str, *, name: str = "size") -> int:
    """Return a size in bytes, rounded to a whole number.

    Units are those of storage and networks: K, KB, M, MB, G, GB ... are powers of 1000, and KiB, MiB, GiB ... of 1024.
    Case does not matter, and there may be a space before the unit.

    Args:
        size: Bytes, or a number with a unit.
        name: The option's, for errors.

    Raises:
        OptionError: It is not a size, or less than one byte.

    >>> parse_nbytes("64KiB"), parse_nbytes("500K"), parse_nbytes("1.5 GB"), parse_nbytes("1e6"), parse_nbytes(4096)
    (65536, 500000, 1500000000, 1000000, 4096)
    """
    nbytes: int | float | None
    if isinstance(size, int | float) and not isinstance(size, bool) and size % 1 == 0:
        nbytes = int(size)
    else:
        nbytes = NBYTES.parse(size) if isinstance(size, str) else None
        if nbytes is None or nbytes < 0:
            raise OptionError(f"{option(name, size)}: expected {NBYTES.forms}")
    if nbytes < 1:
        raise OptionError(f"{option(name, size)}: expected at least one byte")
    return int(nbytes)


def _parse(text: str) -> tuple[Fraction | None, str]:
    """Return a number with its unit multiplied in, and the kind of unit: "", "%", "K" (a power of 1000) or "B" (bytes).

    In fractions: a float lacks the digits for an exact size of many gigabytes.
    """
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None, ""
    sign, digits, exponent, percent, prefix, binary, of_bytes = match.groups()
    if binary and not prefix:
        return None, ""
    number = Fraction(f"{sign}{digits.replace('_', '')}e{exponent or 0}")
    power = _PREFIXES.index(prefix.upper()) + 1 if prefix else 0
    number *= (1024 if binary else 1000) ** power
    if percent:
        return number / 100, "%"
    return number, "B" if binary or of_bytes else "K" if prefix else ""


def _as_float(number: Fraction) -> float | None:
    try:
        return float(number)
    except OverflowError:
        return None


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
