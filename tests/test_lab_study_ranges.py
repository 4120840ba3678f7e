"""A figure has the digits that its turns agree on, and two figures differ if their turns do not overlap."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from lmdbloader.lab.study.ranges import Measured, duration, is_clear, measured, ratio, show_span, show_times

SPEEDS = st.lists(st.floats(1e-3, 1e7), min_size=2, max_size=5).map(sorted)


def of(turns: list[float]) -> Measured:
    return measured(turns[len(turns) // 2], turns)


@given(SPEEDS, SPEEDS)
def test_a_ratio_of_overlapping_turns_says_nothing(one: list[float], other: list[float]) -> None:
    overlap = one[0] <= other[-1] and other[0] <= one[-1]
    found = ratio(of(one), of(other))
    assert found.low <= found.value <= found.high
    if overlap:
        assert not is_clear(found)
    elif not 0.9 < found.value < 1.1:
        assert is_clear(found)


@given(SPEEDS)
def test_no_digit_is_below_half_of_the_range(turns: list[float]) -> None:
    found = of(turns)
    half = (found.high - found.low) / 2
    assert 1 <= found.digits <= 3
    assert abs(found.rounded - found.value) <= max(half, 0.005 * found.value) * (1 + 1e-9) or found.digits == 1
    unit = 10.0 ** (math.floor(math.log10(found.value)) - found.digits + 1)
    assert found.digits == 1 or unit * 10 > half


def test_digits_by_the_turns() -> None:
    assert str(measured(85_509.0, (85_508.0, 85_509.0, 85_510.0))) == "85,500"
    assert str(measured(85_509.0, (84_000.0, 85_509.0, 87_000.0))) == "86,000"
    assert str(measured(85_509.0, (50_000.0, 85_509.0, 120_000.0))) == "90,000"
    assert str(measured(85_509.0, ())) == str(measured(85_509.0, (85_509.0,))) == "86,000"
    assert str(measured(0.0, (0.0, 0.0))) == "0"


def test_a_figure_of_nothing_breaks_nothing() -> None:
    still = measured(0.0, (0.0, 0.0))
    fast = measured(10.0, (9.0, 11.0))
    for found in (ratio(still, fast), ratio(fast, still), ratio(still, still), duration(100, still)):
        assert str(found)
        assert show_times(found).endswith(" times")
    assert not is_clear(ratio(still, still))


def test_a_duration_is_shortest_at_the_fastest_turn() -> None:
    found = duration(100, Measured(10.0, 5.0, 20.0))
    assert (found.value, found.low, found.high) == (10.0, 5.0, 20.0)


def test_a_span_of_equal_ratios_is_one() -> None:
    assert show_span([Measured(3.01, 2.9, 3.1), Measured(3.02, 2.9, 3.1)]) == "3 times"
    assert show_span([Measured(1500.0, 1499.0, 1501.0), Measured(0.5, 0.49, 0.51)]) == "0.5 to 1,500 times"
