"""The polynomial hash of columns against the same sums in plain Python integers; parts give the whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lmdbloader.format.codecs import checksum
from lmdbloader.kernels.entries import hash_names, hash_numbers, hash_texts
from lmdbloader.kernels.polynomial_numbers import BASES, PRIME

pytestmark = pytest.mark.usefixtures("both_ways")

WHOLE = 2**64 - 1
# The primes that divide PRIME - 1.
FACTORS = (2, 3, 5, 7, 11, 13, 31, 41, 61, 151, 331, 1321)
KINDS = (np.uint8, np.uint16, np.uint32, np.uint64)
# Equal values in a row have a shorter way in the kernel; 64 bits near the prime and its multiples have the same rest.
WORDS = st.sampled_from([0, 1, PRIME, PRIME + 1, 8 * PRIME + 7, WHOLE]) | st.integers(0, WHOLE)
RUNS = st.lists(st.tuples(WORDS, st.integers(1, 20)), max_size=8).map(
    lambda runs: [v for v, n in runs for _ in range(n)]
)
TEXTS = st.lists(st.text(max_size=40).map(str.encode), max_size=12)


def mixed(value: int) -> int:
    value = value + 0x9E3779B97F4A7C15 & WHOLE
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & WHOLE
    value = (value ^ value >> 27) * 0x94D049BB133111EB & WHOLE
    return value ^ value >> 31


def expected(values: Sequence[int], before: tuple[int, int] = (0, 0)) -> tuple[int, int]:
    """Return the two hashes as the specification defines them."""
    first, second = before
    for value in values:
        bits = mixed(value)
        first = (first * BASES[0] + bits) % PRIME
        second = (second * BASES[1] + (bits << 32 & WHOLE | bits >> 32)) % PRIME
    return first, second


def as_values(texts: Sequence[bytes]) -> list[int]:
    """Return the two values of each text."""
    return [value for text in texts for value in (len(text), checksum(text))]


def found(call: Any, *arguments: Any) -> tuple[int, int]:
    """Return the hashes after a call, which writes nothing else."""
    guarded = np.array([3, 0, 0, 3], np.uint64)
    call(*arguments, guarded[1:3])
    assert (guarded[[0, 3]] == 3).all()
    return int(guarded[1]), int(guarded[2])


def stored(texts: Sequence[bytes], kind: type = np.int64) -> tuple[Any, Any]:
    return np.frombuffer(b"".join(texts), np.uint8), np.append(0, np.cumsum([len(t) for t in texts])).astype(kind)


def test_no_distance_is_too_far_for_the_order_to_matter() -> None:
    rest = PRIME - 1
    for factor in FACTORS:
        while rest % factor == 0:
            rest //= factor
    assert rest == 1
    for base in BASES:  # a primitive root: base ** n is 1 for no n from 1 to PRIME - 2
        assert all(pow(base, (PRIME - 1) // factor, PRIME) != 1 for factor in FACTORS)


@pytest.mark.parametrize("kind", KINDS)
@given(values=RUNS)
@example(values=[PRIME] * 8)
@example(values=[WHOLE] * 7 + [0] * 9)
def test_numbers_have_the_hash_of_the_specification(kind: type, values: list[int]) -> None:
    column = np.array([value % 2 ** (8 * np.dtype(kind).itemsize) for value in values], kind)
    assert found(hash_numbers, column) == expected(column.tolist())


@given(values=RUNS, cuts=st.lists(st.integers(0, 200), max_size=4))
def test_numbers_that_are_added_piece_by_piece_have_the_hash_of_all(values: list[int], cuts: list[int]) -> None:
    column, sums = np.array(values, np.uint64), np.zeros(2, np.uint64)
    for piece in np.split(column, sorted(min(cut, len(values)) for cut in cuts)):
        hash_numbers(piece, sums)
    assert tuple(sums.tolist()) == expected(values)


def test_many_numbers_have_the_hash_of_the_specification() -> None:
    column = np.random.default_rng(0).integers(0, WHOLE, 100_003, np.uint64, endpoint=True)
    assert found(hash_numbers, column) == expected(column.tolist())


@given(values=st.lists(WORDS, min_size=1, max_size=40), at=st.integers(0, 39), other=WORDS)
@example(values=[0], at=0, other=PRIME)
def test_one_changed_value_always_changes_a_hash(values: list[int], at: int, other: int) -> None:
    changed = list(values)
    changed[at % len(values)] = other
    hashes = [found(hash_numbers, np.array(column, np.uint64)) for column in (values, changed)]
    assert (hashes[0] == hashes[1]) == (values == changed)


@given(bits=st.integers(0, WHOLE), multiple=st.integers(-7, 7))
@example(bits=0, multiple=1)
def test_mixed_bits_with_the_same_remainder_differ_with_their_halves_exchanged(bits: int, multiple: int) -> None:
    other = bits + multiple * PRIME
    if multiple and 0 <= other <= WHOLE:
        assert len({(v << 32 & WHOLE | v >> 32) % PRIME for v in (bits, other)}) == 2


@pytest.mark.parametrize("kind", [np.int32, np.int64])
@given(texts=TEXTS, before=st.lists(WORDS, max_size=3))
@example(texts=[b"", b"", b"a"], before=[])
def test_texts_have_the_hash_of_the_specification(kind: type, texts: list[bytes], before: list[int]) -> None:
    sums = np.array(expected(before), np.uint64)
    assert hash_texts(*stored(texts, kind), sums) == len(texts)
    assert tuple(sums.tolist()) == expected(as_values(texts), expected(before))


@pytest.mark.parametrize("kind", [np.int32, np.int64])
@given(names=TEXTS.filter(len), numbers=st.lists(st.integers(0, 11), max_size=40))
def test_texts_that_repeat_have_the_hash_of_the_texts(kind: type, names: list[bytes], numbers: list[int]) -> None:
    codes = np.array([number % len(names) for number in numbers], np.int32)
    sums = np.zeros(2, np.uint64)
    assert hash_names(*stored(names, kind), codes, sums) == len(codes)
    assert tuple(sums.tolist()) == expected(as_values([names[code] for code in codes]))


@pytest.mark.parametrize(
    ("ends", "row"),
    [([0, 2, 5], 1), ([0, 2, 1], 1), ([-1, 2, 4], 0), ([0, 2**40, 2**40], 0), ([3, 4, -(2**40)], 1), ([0, 4, 4], 2)],
)
def test_texts_outside_of_the_bytes_are_not_read(ends: list[int], row: int) -> None:
    data, sums = np.frombuffer(b"abcd", np.uint8), np.zeros(2, np.uint64)
    assert hash_texts(data, np.array(ends), sums) == row
    assert hash_names(data, np.array(ends), np.arange(2, dtype=np.int32), sums) == row


@pytest.mark.parametrize("codes", [[-1], [0, 1, 2], [2**31 - 1], [1, -(2**31)]])
def test_numbers_of_no_text_are_not_read(codes: list[int]) -> None:
    data, ends, sums = np.frombuffer(b"abcd", np.uint8), np.array([0, 1, 4]), np.zeros(2, np.uint64)
    assert hash_names(data, ends, np.array(codes, np.int32), sums) == len(codes) - 1
