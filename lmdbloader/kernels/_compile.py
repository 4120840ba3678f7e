"""How every kernel is compiled: without the GIL, and kept on disk for the next process."""

from __future__ import annotations

import numba

kernel = numba.njit(nogil=True, cache=True, error_model="numpy")
