"""Splits: nothing lost, nothing twice, groups whole, shares as asked."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmdbloader.batch.splits import share_out
from lmdbloader.errors import OptionError

groups = st.lists(st.integers(0, 12), min_size=4, max_size=200)


@given(groups, st.integers(1, 4), st.integers(0, 2**32 - 1), st.data())
def test_every_sample_is_in_one_part_and_every_group_on_one_side(
    group: list[int], num_parts: int, seed: int, data: st.DataObject
) -> None:
    weights = data.draw(st.lists(st.integers(1, 20), min_size=num_parts, max_size=num_parts))
    fractions = [w / sum(weights) for w in weights]
    array = np.array(group)
    if len(np.unique(array)) < num_parts:
        with pytest.raises(OptionError, match="cannot be split into"):
            share_out(array, fractions, seed)
        return
    parts = share_out(array, fractions, seed)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(group)))
    assert all(len(part) and (np.diff(part) > 0).all() for part in parts)
    members = [set(array[part].tolist()) for part in parts]
    assert sum(map(len, members)) == len(set(group))


def test_the_parts_of_a_seed_stay_the_same() -> None:
    assert [part.tolist() for part in share_out(np.arange(12), [0.75, 0.25], 3)] == [
        [0, 1, 2, 4, 6, 7, 9, 10, 11],
        [3, 5, 8],
    ]
    assert [part.tolist() for part in share_out(np.repeat([9, 4, 7, 1], 3), [0.5, 0.5], 3)] == [
        [0, 1, 2, 6, 7, 8],
        [3, 4, 5, 9, 10, 11],
    ]


def test_the_seed_decides() -> None:
    group = np.repeat(np.arange(40), 3)
    again = [share_out(group, [0.5, 0.5], seed)[0].tolist() for seed in (1, 1, 2)]
    assert again[0] == again[1] != again[2]
