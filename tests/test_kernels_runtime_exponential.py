"""exp and log: within one unit in the last place of the true value, and the same bits everywhere."""

from __future__ import annotations

import hashlib
import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmdbloader.kernels.runtime.exponential import exp, log

POSITIVE = st.floats(0, exclude_min=True, allow_infinity=False) | st.floats(0.5, 2) | st.floats(0.99, 1.01)


def units_off(found: float, true: Decimal) -> Decimal:
    """Return the distance to the true value in units of the last place."""
    return abs(Decimal(found) - true) / Decimal(math.ulp(found))


@given(st.floats(-745, 709.7) | st.floats(-1, 1) | st.floats(-1e-3, 1e-3))
def test_exp_is_within_one_unit_in_the_last_place(x: float) -> None:
    with localcontext() as context:
        context.prec = 60
        assert units_off(exp(x), Decimal(x).exp()) < (1 if x < -708 else 0.75)


@given(POSITIVE)
def test_log_is_within_one_unit_in_the_last_place(x: float) -> None:
    with localcontext() as context:
        context.prec = 60
        assert units_off(log(x), Decimal(x).ln()) < 0.85 or x == 1


@pytest.mark.parametrize(
    ("x", "value"),
    [
        (0.0, 1.0),
        (-0.0, 1.0),
        (math.inf, math.inf),
        (-math.inf, 0.0),
        (709.8, math.inf),
        (-745.2, 0.0),
        (-745.1, 5e-324),
    ],
)  # fmt: skip
def test_exp_of_zero_and_at_the_ends(x: float, value: float) -> None:
    assert exp(x) == value


@pytest.mark.parametrize(("x", "value"), [(1.0, 0.0), (math.inf, math.inf), (0.0, -math.inf), (-0.0, -math.inf)])
def test_log_of_one_and_at_the_ends(x: float, value: float) -> None:
    assert log(x) == value


def test_what_is_no_number_stays_none() -> None:
    assert math.isnan(exp(math.nan)) and math.isnan(log(math.nan))
    assert math.isnan(log(-1.0)) and math.isnan(log(-math.inf))


def test_the_bits_are_the_same_on_every_machine() -> None:
    numbers = np.arange(20_000)
    found = [exp(x) for x in (numbers / 64 - 150).tolist()] + [log(x) for x in (numbers / 64 + 1 / 64).tolist()]
    assert (
        hashlib.sha256(np.array(found, "<f8").tobytes()).hexdigest()
        == "8c6045a990983c57dce1e7f1bc36426801efabafd41efda07ac7b7dc6a6018ed"
    )
