"""Philox without a state: NumPy's own words, and fair numbers made of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmdbloader.kernels.runtime.philox import below, philox, unit

WORD = st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, 2**32 - 1, 2**32, 2**63, 2**64 - 1])


@given(st.tuples(WORD, WORD), st.tuples(WORD, WORD, WORD, WORD))
def test_the_words_are_those_of_numpys_philox(key: tuple[int, int], counter: tuple[int, int, int, int]) -> None:
    found = philox(*map(np.uint64, key), *map(np.uint64, counter))
    whole = sum(word << 64 * k for k, word in enumerate(counter))
    numpys = np.random.Philox(counter=(whole - 1) % 2**256, key=key[0] | key[1] << 64)  # it counts before it draws
    assert list(map(int, found)) == numpys.random_raw(4).tolist()


@given(WORD, st.integers(1, 2**63 - 1))
def test_below_is_the_upper_half_of_the_product(word: int, n: int) -> None:
    assert below(np.uint64(word), n) == word * n >> 64
    assert 0 <= below(np.uint64(word), n) < n


@given(WORD)
def test_unit_equals_numpys_conversion_of_a_word(word: int) -> None:
    assert unit(np.uint64(word)) == (word >> 11) / 2**53


@pytest.mark.parametrize(("word", "expected"), [(0, 0.0), (2**63, 0.5), (2**64 - 1, 1 - 2**-53)])
def test_unit_never_reaches_one(word: int, expected: float) -> None:
    assert unit(np.uint64(word)) == expected
