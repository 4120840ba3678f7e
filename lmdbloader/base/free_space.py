"""Free space of disks, and the space that files take there."""

from __future__ import annotations

import os
import shutil


def free_nbytes(path: str | os.PathLike[str]) -> int | None:
    """Return the free bytes where a path is; None if its file system states no size, such as ramfs and some FUSE."""
    usage = shutil.disk_usage(path)
    return usage.free if usage.total else None


def taken_nbytes(path: str | os.PathLike[str]) -> int:
    """Return the bytes that a file takes on its disk, without its holes; 0 if there is none."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return 0
    blocks: int | None = getattr(found, "st_blocks", None)  # Windows has none
    return found.st_size if blocks is None else blocks * 512
