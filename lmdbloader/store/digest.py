"""The digest of a whole file, as the manifest keeps it."""

from __future__ import annotations

import os
from pathlib import Path

from lmdbloader.codecs import checksum_file


def file_digest(path: Path) -> str:
    """Return the digest of a file, read once from its beginning to its end.

    Raises:
        OSError: It cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return f"xxh64:{checksum_file(descriptor):016x}"
    finally:
        os.close(descriptor)
