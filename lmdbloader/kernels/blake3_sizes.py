"""The sizes of BLAKE3's pieces and of its kernels' working memory, in a module that imports no compiler."""

from __future__ import annotations

CHUNK_NBYTES = 1024
BLOCK_NBYTES = 64
GROUP_NBYTES = 64 * CHUNK_NBYTES
STACK_ROWS = 64
# Sixteen vectors' chaining values and counters, the rows of one group and of two more blocks of sixteen, and one block.
WORK_NBYTES = 10 * 4 * 16 + 32 * (64 + 32) + BLOCK_NBYTES
