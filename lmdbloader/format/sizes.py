"""The sizes that the format is built around, in a module that imports nothing."""

from __future__ import annotations

# LMDB stores values in whole pages: 256 KiB a value keeps the waste under 2 % for small samples.
BLOCK_NBYTES = 256 * 1024
