"""The statuses of the kernels in `paging`, and the most bytes of one request."""

from __future__ import annotations

LOADED, STOPPED, UNREADABLE = 0, 1, 2
# For one call Linux reads at most the larger of the file system's readahead (usually 128 KiB) and the device's largest
# request, and does not report the rest.
PIECE_NBYTES = 128 * 1024
