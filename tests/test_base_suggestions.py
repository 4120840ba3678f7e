"""A mistyped name is matched with the name that was meant, and with no other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmdbloader.base.suggestions import did_you_mean, nearest

NAMES = ("--patch-size", "--max-resolution", "--write-mode", "--workers", "--overwrite", "--hr", "--lr")


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("--patchsize", "--patch-size"),
        ("--PATCH_SIZE", "--patch-size"),
        ("--pacth-size", "--patch-size"),
        ("--worker", "--workers"),
        ("--max-resolutions", "--max-resolution"),
        ("--over", "--overwrite"),
        ("--shuffle", None),
        ("", None),
    ],
)
def test_the_name_that_was_meant(word: str, meant: str | None) -> None:
    assert nearest(word, NAMES) == meant


@given(st.sampled_from(NAMES[:5]), st.integers(2, 30), st.characters(categories=["Ll"]))
def test_one_wrong_letter_is_found(name: str, place: int, letter: str) -> None:
    at = place % len(name)
    for word in (name[:at] + letter + name[at:], name[:at] + name[at + 1 :], name.upper().replace("-", "_")):
        assert nearest(word, NAMES) == name


def test_the_end_of_a_message() -> None:
    assert did_you_mean("orignal", ("raw", "original")) == ". Did you mean original?"
    assert did_you_mean("tiles", ("raw", "original")) == did_you_mean(None, ("raw",)) == ""
