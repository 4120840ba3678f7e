"""The decorator of kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def kernel(function: Callable[..., Any]) -> Any:
    """Mark a function as a kernel: it runs without the GIL, divides like NumPy, and neither allocates nor raises.

    The module of a kernel is imported in two cases. `kernels.building` replaces this decorator with its own and
    compiles ahead of time. In tests of single kernels Numba compiles the function for each new combination of argument
    types when it is called. With NUMBA_DISABLE_JIT=1 it stays a Python function, for a debugger.
    """
    return numba.njit(nogil=True, error_model="numpy")(function)
