"""sin and cos are those of mpmath, to less than one unit in the last place."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmdbloader.kernels.runtime.trigonometry import cos, sin

ANGLES = st.floats(-1e6, 1e6) | st.floats(-7, 7) | st.integers(-600_000, 600_000).map(lambda n: n * math.pi / 2)


@pytest.mark.parametrize("found, defined", [(sin, mpmath.sin), (cos, mpmath.cos)], ids=["sin", "cos"])
@given(x=ANGLES)
def test_an_angle_has_its_sine_and_cosine(found, defined, x: float) -> None:  # type: ignore[no-untyped-def]
    with mpmath.workdps(60):
        exact = defined(mpmath.mpf(x))
        assert abs(mpmath.mpf(found(x)) - exact) < np.spacing(abs(float(exact)))
