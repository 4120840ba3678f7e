"""The outside functions that kernels call: functions of the C library only."""

from __future__ import annotations

from numba.core.types import ExternalFunction

from lmdbloader.kernels.runtime import symbols


def test_kernels_call_these_functions_of_the_c_library() -> None:
    bound = {value.symbol for value in vars(symbols).values() if isinstance(value, ExternalFunction)}
    names = ("memcpy", "pread", "lseek", "clock_gettime", "madvise", "mincore")
    assert bound == {f"lmdbloader_{name}" for name in names}
