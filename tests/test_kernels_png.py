"""The kernel that undoes the filters of PNG, compared with the specification byte by byte."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lmdbloader.kernels import entries

GUARD = 0xA5


def predicted(kind, left, above, corner):
    """What the specification adds to a filtered byte."""
    if kind < 4:
        return (0, left, above, (left + above) // 2)[kind]
    return min((left, above, corner), key=lambda value: abs(left + above - corner - value))


def unfiltered(raw, step):
    rows = np.zeros((len(raw) + 1, step + raw.shape[1] - 1), np.uint8)
    for y, (kind, *row) in enumerate(raw.tolist(), 1):
        for x, value in enumerate(row, step):
            near = (int(rows[y, x - step]), int(rows[y - 1, x]), int(rows[y - 1, x - step]))
            rows[y, x] = (value + predicted(kind, *near)) % 256
    return rows[1:, step:]


@given(
    height=st.integers(1, 26),
    width=st.integers(1, 24),
    step=st.sampled_from([1, 2, 3, 4, 6, 8]),
    kinds=st.lists(st.integers(0, 4), min_size=1, max_size=9),
    spread=st.sampled_from([2, 60, 256]),
    seed=st.integers(0, 999),
)
def test_every_filter_in_every_shape_with_the_rows_apart_and_in_one_memory(height, width, step, kinds, spread, seed):
    n = width * step
    raw = np.random.default_rng(seed).integers(0, spread, (height, 1 + n)).astype(np.uint8)
    raw[:, 0] = np.resize(kinds, height)
    expected = unfiltered(raw, step)
    guarded = np.full(height * n + 8, GUARD, np.uint8)
    out = guarded[:-8].reshape(height, n)
    assert entries.unfilter_png(raw, np.zeros(n, np.uint8), out, step) == -1
    np.testing.assert_array_equal(out, expected)
    assert (guarded[-8:] == GUARD).all()
    memory = np.concatenate([np.zeros(8 * n, np.uint8), raw.reshape(-1), np.full(8, GUARD, np.uint8)])
    both = memory[8 * n : -8].reshape(raw.shape), memory[: height * n].reshape(height, n)
    assert entries.unfilter_png(both[0], np.zeros(n, np.uint8), both[1], step) == -1
    np.testing.assert_array_equal(both[1], expected)
    assert (memory[-8:] == GUARD).all()


def test_an_unknown_filter_is_found_before_anything_is_written():
    raw = np.zeros((20, 1 + 30), np.uint8)
    raw[17, 0] = 5
    out = np.full((20, 30), GUARD, np.uint8)
    assert entries.unfilter_png(raw, np.zeros(30, np.uint8), out, 3) == 17
    assert (out == GUARD).all()
