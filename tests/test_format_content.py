"""Column digests are joined to those of the whole, and parse back."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmdbloader.errors import FormatError
from lmdbloader.format.content import ColumnDigest, digest_of_columns, join_columns, parse_column_digest
from lmdbloader.kernels.polynomial_numbers import BASES, PRIME

HASHES = st.tuples(st.integers(0, PRIME - 1), st.integers(0, PRIME - 1))
COLUMNS = st.builds(ColumnDigest, st.sampled_from(["uint8", "float64", "text"]), st.integers(0, 10**18), HASHES)
EMPTY = "int64[0]:" + "0" * 32


def hashed(values: list[int], kind: str) -> ColumnDigest:
    """Return the digest of a column whose mixed bits are these, two for each text."""
    sums = [sum(v * base ** (len(values) - 1 - i) for i, v in enumerate(values)) % PRIME for base in BASES]
    return ColumnDigest(kind, len(values) // (2 if kind == "text" else 1), (sums[0], sums[1]))


@given(COLUMNS)
def test_a_column_digest_parses_back(column: ColumnDigest) -> None:
    assert parse_column_digest(str(column)) == column


@pytest.mark.parametrize(
    "text",
    [
        "", "int64", "int64[1]", EMPTY[:-1], EMPTY + "0", EMPTY.replace("[0]", "[00]"), EMPTY.replace("[0]", "[-1]"),
        EMPTY.replace(":0", ":A"), EMPTY.replace("int64", "Int"), f"int64[1]:{PRIME:016x}{0:016x}", EMPTY + "\n",
        f"int64[1]:{0:016x}{2**64 - 1:016x}", EMPTY.replace("[0]", "[٣]"), EMPTY.replace("[0]", f"[{10**19}]"),
    ],
)  # fmt: skip
def test_other_text_is_not_a_column_digest(text: str) -> None:
    with pytest.raises(FormatError, match="expected something like"):
        parse_column_digest(text)
    with pytest.raises(FormatError, match="expected something like"):
        join_columns([{"n": EMPTY}, {"n": text}])


@pytest.mark.parametrize("kind", ["uint32", "text"])
@given(st.data())
def test_any_parts_join_to_the_whole(kind: str, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.integers(0, 2**64 - 1), max_size=24).map(lambda v: v[: len(v) // 2 * 2]))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(values) // 2), max_size=4)))
    edges = [2 * cut for cut in (0, *cuts, len(values) // 2)]
    parts = [{"c": str(hashed(values[a:b], kind))} for a, b in pairwise(edges)]
    whole = {"c": str(hashed(values, kind))}
    assert join_columns(parts) == whole
    # Joins of joins, too: the order of joining does not matter.
    at = data.draw(st.integers(1, len(parts)))
    assert join_columns([join_columns(parts[:at]), *parts[at:]]) == whole
    assert digest_of_columns(join_columns(parts)) == digest_of_columns(whole)


def test_the_number_of_leading_rows_that_hash_to_nothing_counts() -> None:
    columns = [ColumnDigest("uint8", n, (0, 0)) for n in (0, 1, 2)]
    assert len({digest_of_columns({"c": str(column)}) for column in columns}) == 3


@pytest.mark.parametrize(
    "other",
    [
        {}, {"a": EMPTY}, {"b": EMPTY, "a": EMPTY}, {"a": EMPTY, "c": EMPTY}, {"a": EMPTY, "b": EMPTY, "c": EMPTY},
        {"a": EMPTY, "b": EMPTY.replace("int64", "float64")},
    ],
)  # fmt: skip
def test_parts_of_other_columns_do_not_join(other: dict[str, str]) -> None:
    with pytest.raises(FormatError, match=r"^part 2 has the columns .* part 0 a \(int64\), b \(int64\): digests are"):
        join_columns([{"a": EMPTY, "b": EMPTY}, {"a": EMPTY, "b": EMPTY}, other])


def test_nothing_does_not_join() -> None:
    with pytest.raises(FormatError, match="at least one"):
        join_columns([])


@given(st.lists(st.dictionaries(st.sampled_from("abc"), COLUMNS.map(str), max_size=3), min_size=2, max_size=2))
def test_other_columns_have_another_digest(two: list[dict[str, Any]]) -> None:
    equal = list(two[0].items()) == list(two[1].items())
    assert (digest_of_columns(two[0]) == digest_of_columns(two[1])) == equal


def test_the_digest_of_a_dataset_is_that_of_the_specification() -> None:
    column = ColumnDigest("uint8", 3, tuple(np.array([1, 2]).tolist()))
    assert digest_of_columns({"c": str(column)}) == "poly61:" + _blake2b(
        b"c\0uint8[3]:00000000000000010000000000000002\n"
    )


def _blake2b(data: bytes) -> str:
    import hashlib

    return hashlib.blake2b(data, digest_size=16).hexdigest()
