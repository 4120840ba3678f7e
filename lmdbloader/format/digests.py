"""The digests of a dataset's files and descriptions, which reveal any change, as text: SHA-256, `sha256:` first."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from lmdbloader.base import system
from lmdbloader.base.disk_errors import naming

_PIECE_NBYTES = 4 * 2**20


class Digest:
    """SHA-256 of bytes that are added piece by piece.

    >>> digest = Digest()
    >>> digest.update(b"abc")
    >>> str(digest)[:23]
    'sha256:ba7816bf8f01cfea'
    """

    def __init__(self) -> None:
        self._state = hashlib.sha256()

    def update(self, piece: Any, /) -> None:
        """Add a bytes-like object."""
        self._state.update(piece)

    def __str__(self) -> str:
        return f"sha256:{self._state.hexdigest()}"


def digest_of(data: Any) -> str:
    """Return the digest of bytes.

    >>> digest_of(b"")[:23]
    'sha256:e3b0c44298fc1c14'
    """
    digest = Digest()
    digest.update(data)
    return str(digest)


def read_digest(descriptor: int) -> str:
    """Return the digest of a whole file, read piece by piece: a bad disk is an OSError, unlike with a map."""
    digest, room, at = Digest(), memoryview(bytearray(_PIECE_NBYTES)), 0
    while nbytes := system.read_into(descriptor, room, at):
        digest.update(room[:nbytes])
        at += nbytes
    return str(digest)


def digest_from_disk(path: Path) -> str:
    """Return the digest of a file, read from the disk if the system drops its pages."""
    with naming(path), open(path, "rb", buffering=0) as file:
        system.drop_cache(file.fileno())
        return read_digest(file.fileno())
