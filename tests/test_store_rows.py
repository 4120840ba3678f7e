"""Rows of views: ranges do what arrays do, take no memory, and have the same digest."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmdbloader.format.codecs import checksum
from lmdbloader.store.reader import check_rows
from lmdbloader.store.rows import (
    as_array,
    choose,
    digest_of,
    extremes,
    join,
    parts_of,
    places_in,
    rows_at,
    take,
    text_of,
)

STEPS = st.integers(-4, 4).filter(bool)
# Python takes any step, arrays only those of 64 bits.
ANY_STEPS = STEPS | st.sampled_from([2**63 - 1, 2**63, -(2**63), -(2**80)])


@st.composite
def ranges(draw: st.DrawFn, most: int = 40, steps: st.SearchStrategy[int] = STEPS) -> range:
    """Return rows of an index of `most` rows, in any direction."""
    return range(most)[slice(*draw(st.tuples(*[st.none() | st.integers(-50, 50)] * 2, steps)))]


@given(rows=ranges(), data=st.data())
def test_a_range_is_its_array(rows: range, data: st.DataObject) -> None:
    array = np.array(rows, np.int64)
    column = np.arange(40) * 7 % 40
    assert as_array(rows).dtype == np.int64
    assert as_array(rows).tolist() == list(rows)
    assert take(column, rows).tolist() == column[array].tolist()
    assert np.shares_memory(take(column, rows), column) or not rows
    assert extremes(column, rows) == extremes(column, array)
    places = data.draw(st.lists(st.integers(0, len(rows) - 1))) if rows else []
    assert rows_at(rows, np.array(places, np.int64)).tolist() == array[places].tolist()
    assert [row for part in parts_of(rows, 3) for row in part] == list(rows)


@given(rows=ranges(), data=st.data())
def test_a_range_of_places(rows: range, data: st.DataObject) -> None:
    places = data.draw(ranges(max(len(rows), 1), ANY_STEPS)) if rows else range(0)
    expected = [rows[place] for place in places]
    for kind in (rows, np.array(rows, np.int64)):
        chosen = choose(kind, places)
        assert list(chosen) == expected
        assert rows_at(chosen, np.arange(len(places))).tolist() == expected


@given(start=st.integers(-15, 15), stop=st.integers(-15, 15), step=STEPS)
def test_negative_places_count_from_the_end(start: int, stop: int, step: int) -> None:
    places = range(start, stop, step)
    try:
        expected = check_rows(list(places), 10).tolist()
    except IndexError as error:
        with pytest.raises(IndexError) as caught:
            places_in(places, 10)
        assert str(caught.value) == str(error)
        return
    found = places_in(places, 10)
    if found is None:
        assert min(places) < 0 <= max(places)
    else:
        assert list(found) == expected


def test_texts_of_ranges_are_pinned() -> None:
    found = {text_of(rows) for rows in (range(0), range(5, 5), range(9, 2), np.empty(0, np.int64))}
    assert found == {"0:0:1"}
    assert {text_of(rows) for rows in (range(3, 4), range(3, 90, 100), range(3, -9, -50), np.array([3]))} == {"3:4:1"}
    assert text_of(range(8, -1, -4)) == text_of(np.array([8, 4, 0])) == "8:-1:-4"
    others = np.arange(200_000) % 7
    assert text_of(others) == digest_of(others) == f"xxh3:{checksum(others.astype('<i8').tobytes()):016x}"


def test_neighbors_join_without_an_array() -> None:
    assert join([range(10**12), range(10**12, 10**13), range(0)]) == range(10**13)
    assert join([range(9, 5, -2), range(5, 4, -1), range(3, 0, -2)]) == range(9, 0, -2)
