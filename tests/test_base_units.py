"""Sizes are parsed exactly in all common spellings, and shown with three digits."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmdbloader.base.units import (
    NBYTES,
    PIXELS,
    REAL,
    SHARE,
    WHOLE,
    parse_nbytes,
    show_decimal_nbytes,
    show_nbytes,
)
from lmdbloader.errors import OptionError

UNITS = {
    "": 1, "B": 1, "b": 1, " bytes": 1, " byte": 1,
    "K": 10**3, "k": 10**3, "KB": 10**3, "kB": 10**3, "KiB": 2**10, "Ki": 2**10, "kib": 2**10,
    "M": 10**6, "MB": 10**6, "MiB": 2**20, "G": 10**9, "GB": 10**9, "GiB": 2**30, "Gi": 2**30,
    "TB": 10**12, "TiB": 2**40, "PB": 10**15, "PiB": 2**50, "EB": 10**18, "EiB": 2**60,
}  # fmt: skip


@given(
    whole=st.integers(0, 10**6),
    fraction=st.text("0123456789", max_size=9),
    unit=st.sampled_from(sorted(UNITS)),
    spaces=st.tuples(*[st.text(" \t", max_size=2)] * 3),
)
def test_every_number_with_every_unit(whole: int, fraction: str, unit: str, spaces: tuple[str, str, str]) -> None:
    number = f"{whole}.{fraction}" if fraction else f"{whole}"
    exact = Fraction(number) * UNITS[unit]
    text = f"{spaces[0]}{number}{spaces[1]}{unit}{spaces[2]}"
    if exact < Fraction(1, 2):
        with pytest.raises(OptionError, match="at least one byte"):
            parse_nbytes(text)
    else:
        assert abs(parse_nbytes(text) - exact) <= Fraction(1, 2)


@pytest.mark.parametrize(
    "text",
    ["", " ", "K", "KiB", "much", "-1", "-64K", "64 K B", "64KiBs", "6 4K", "50%", "1__0", "_1", "0x10",
     "1,000", "1.2.3", "nan",
     "inf", "64ZB", "64iB", "64Bi", "٣K", "64K\n64K", None, 1.5, True, [1], b"64K"],
)  # fmt: skip
def test_an_invalid_size_is_refused_with_an_example(text: object) -> None:
    with pytest.raises(OptionError, match=re.escape("64KiB")) as caught:
        parse_nbytes(text, name="example_size")  # type: ignore[arg-type]
    assert "example_size=" in str(caught.value) and repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "whole", "pixels", "real", "share", "nbytes"),
    [
        ("1e6", 10**6, 10**6, 1e6, 1e6, 10**6),
        ("1_000", 1000, 1000, 1000.0, 1000.0, 1000),
        ("4k", 4000, None, None, None, 4000),
        ("2GB", None, None, None, None, 2 * 10**9),
        ("2GiB", None, None, None, None, 2**31),
        ("512M", 512 * 10**6, None, None, None, 512 * 10**6),
        ("50%", None, None, None, 0.5, None),
        ("0.5", None, None, 0.5, 0.5, 1),
        ("1e-3", None, None, 0.001, 0.001, 0),
        ("1,000", None, None, None, None, None),
        ("ten", None, None, None, None, None),
        ("1e999", 10**999, 10**999, None, None, 10**999),
    ],
)
def test_a_text_means_the_same_number_everywhere_or_none(
    text: str, whole: object, pixels: object, real: object, share: object, nbytes: object
) -> None:
    found = [grammar.parse(text) for grammar in (WHOLE, PIXELS, REAL, SHARE, NBYTES)]
    assert found == [whole, pixels, real, share, nbytes]


@given(st.integers(-(10**30), 10**30), st.integers(0, 20))
def test_whole_numbers_are_exact(number: int, zeros: int) -> None:
    scaled = number * 10**zeros
    for text in (f"{scaled:_}", f"{number}e{zeros}", f" {scaled} "):
        assert WHOLE.parse(text) == PIXELS.parse(text) == scaled
    assert WHOLE.parse(f"{number}k") == number * 1000


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_float_is_read_back(number: float) -> None:
    assert REAL.parse(repr(number)) == SHARE.parse(repr(number)) == number


@pytest.mark.parametrize("size", [0, -1, "0", "0 GB", "0.4"])
def test_zero_is_not_a_size(size: int | str) -> None:
    with pytest.raises(OptionError, match="at least one byte"):
        parse_nbytes(size)


@given(st.integers(1, 2**70))
def test_a_shown_size_parses_to_within_its_digits(nbytes: int) -> None:
    for text in (show_nbytes(nbytes), show_decimal_nbytes(nbytes)):
        assert abs(parse_nbytes(text) - nbytes) <= 0.0051 * nbytes
        number = text.split()[0]
        assert len(number.replace(".", "")) <= 4 or nbytes > 2**69


@pytest.mark.parametrize(
    ("nbytes", "binary", "decimal"),
    [
        (1, "1 bytes", "1 bytes"),
        (1023, "1023 bytes", "1.02 KB"),
        (1024, "1 KiB", "1.02 KB"),
        (2**20 - 1, "1 MiB", "1.05 MB"),
        (999_499, "976 KiB", "999 KB"),
        (999_500, "976 KiB", "1 MB"),
        (12.97 * 2**30, "13 GiB", "13.9 GB"),
        (100 * 2**20, "100 MiB", "105 MB"),
    ],
)
def test_shown(nbytes: float, binary: str, decimal: str) -> None:
    assert (show_nbytes(nbytes), show_decimal_nbytes(nbytes)) == (binary, decimal)
