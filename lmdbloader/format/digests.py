"""The digests of a dataset's files and descriptions, which reveal any change: algorithms, and their text form.

By default files have an XXH64 digest, and descriptions, which are small, a BLAKE2b digest. SHA-256 and BLAKE3 are used
for both. Every digest is text that begins with the name of its algorithm. That of a content digest is its scheme.
"""

from __future__ import annotations

import hashlib
from typing import Any, Literal, Protocol, get_args

import numpy as np

from lmdbloader.base import system
from lmdbloader.format.codecs import RunningChecksum, checksum
from lmdbloader.kernels import entries
from lmdbloader.kernels.blake3_sizes import GROUP_NBYTES, STACK_ROWS, WORK_NBYTES

DigestName = Literal["xxh64", "sha256", "blake3"]
DIGESTS: tuple[DigestName, ...] = get_args(DigestName)
DEFAULT_DIGEST: DigestName = "xxh64"
# Of descriptions, if files have XXH64.
_BLAKE2B = "blake2b"
# The scheme of content digests that are joined from those of parts: see `lmdbloader.format.content`.
JOINABLE = "poly61"
CONTENT_SCHEMES = (JOINABLE, _BLAKE2B, "sha256", "blake3")
_PIECE_NBYTES = 4 * 2**20


class Digest(Protocol):
    """A digest of bytes that are added piece by piece; its text begins with the name of the algorithm."""

    def update(self, piece: Any, /) -> None:
        """Add a bytes-like object."""

    def __str__(self) -> str: ...


def new_file_digest(name: DigestName) -> Digest:
    """Return a digest for a file, of no bytes yet."""
    return _XXH64() if name == "xxh64" else new_text_digest(name)


def new_text_digest(name: DigestName) -> Digest:
    """Return a digest for a description, of no bytes yet.

    >>> digest = new_text_digest("sha256")
    >>> digest.update(b"abc")
    >>> str(digest)[:23]
    'sha256:ba7816bf8f01cfea'
    """
    if name == "blake3":
        return Blake3()
    if name == "sha256":
        return _OfHashlib(name, hashlib.sha256())
    return _OfHashlib(_BLAKE2B, hashlib.blake2b(digest_size=16))


def digest_of_file(data: Any, name: DigestName) -> str:
    """Return the digest of a whole file, given its bytes.

    >>> digest_of_file(b"", "xxh64")
    'xxh64:ef46db3751d8e999'
    """
    if name == "xxh64":
        return _xxh64_text(checksum(data))
    digest = new_file_digest(name)
    digest.update(data)
    return str(digest)


def read_digest(descriptor: int, name: DigestName) -> str:
    """Return the digest of a whole file, read piece by piece: a bad disk is an OSError, unlike with a map."""
    digest, room, at = new_file_digest(name), memoryview(bytearray(_PIECE_NBYTES)), 0
    while nbytes := system.read_into(descriptor, room, at):
        digest.update(room[:nbytes])
        at += nbytes
    return str(digest)


def digest_of_text(data: bytes, name: DigestName) -> str:
    """Return the digest of a description.

    >>> digest_of_text(b"", "xxh64")
    'blake2b:cae66941d9efbd404e4d88758ea67670'
    """
    digest = new_text_digest(name)
    digest.update(data)
    return str(digest)


def name_of(digest: object) -> DigestName | None:
    """Return the algorithm in the text of a description's digest; None if it is not one of DIGESTS.

    >>> name_of("blake2b:00"), name_of("sha256:00"), name_of("md5:00"), name_of(None)
    ('xxh64', 'sha256', None, None)
    """
    prefix = digest.partition(":")[0] if isinstance(digest, str) and ":" in digest else ""
    by_prefix: dict[str, DigestName] = {_BLAKE2B: "xxh64", "sha256": "sha256", "blake3": "blake3"}
    return by_prefix.get(prefix)


def scheme_of(content_digest: str) -> str:
    """Return the scheme of a content digest, of this release or another.

    >>> scheme_of("poly61:00"), scheme_of("")
    ('poly61', '')
    """
    return content_digest.partition(":")[0]


def scheme_for(name: DigestName, *, is_new: bool) -> str:
    """Return the scheme of content digests of new datasets, or of those that do not name another.

    >>> scheme_for("xxh64", is_new=True), scheme_for("xxh64", is_new=False)
    ('poly61', 'blake2b')
    >>> scheme_for("sha256", is_new=True), scheme_for("sha256", is_new=False)
    ('sha256', 'sha256')
    """
    if name != "xxh64":
        return name
    return JOINABLE if is_new else _BLAKE2B


class _XXH64:
    def __init__(self) -> None:
        self._running = RunningChecksum()

    def update(self, piece: Any, /) -> None:
        self._running.update(piece)

    def __str__(self) -> str:
        return _xxh64_text(self._running.value)


def _xxh64_text(value: int) -> str:
    return f"xxh64:{value:016x}"


class _OfHashlib:
    def __init__(self, prefix: str, state: Any) -> None:
        self._prefix, self._state = prefix, state

    def update(self, piece: Any, /) -> None:
        self._state.update(piece)

    def __str__(self) -> str:
        return f"{self._prefix}:{self._state.hexdigest()}"


class Blake3:
    """The 32 bytes of BLAKE3, of bytes that are added piece by piece.

    >>> digest = Blake3()
    >>> digest.update(b"abc")
    >>> str(digest)
    'blake3:6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85'
    """

    def __init__(self) -> None:
        self._stack = np.zeros((STACK_ROWS, 8), np.uint32)
        self._work = np.zeros(WORK_NBYTES, np.uint8)
        self._num_groups = 0
        # Bytes that are not in the stack. Some always wait here, as the last bytes of all are hashed in another way.
        self._rest = bytearray()

    def update(self, piece: Any, /) -> None:
        """Add a bytes-like object."""
        most = GROUP_NBYTES
        if isinstance(piece, bytes) and len(self._rest) + len(piece) <= most:  # JSON comes in millions of small pieces
            self._rest += piece
            return
        data = np.frombuffer(piece, np.uint8)
        if self._rest:
            taken = most - len(self._rest)
            self._rest.extend(data[:taken].data)
            data = data[taken:]
        if not len(data):
            return
        if self._rest:
            self._add(np.frombuffer(self._rest, np.uint8), 1)
        whole = (len(data) - 1) // most
        self._add(data, whole)
        self._rest = bytearray(data[whole * most :].data)

    def _add(self, data: Any, num_groups: int) -> None:
        stack, work = self._stack.ctypes.data, self._work.ctypes.data
        entries.add_groups(data.ctypes.data, num_groups, self._num_groups, stack, work)
        self._num_groups += num_groups

    def __str__(self) -> str:
        rest, stack, out = np.zeros(GROUP_NBYTES, np.uint8), self._stack.copy(), np.zeros(8, np.uint32)
        rest[: len(self._rest)] = np.frombuffer(self._rest, np.uint8)
        entries.finish_blake3(
            rest.ctypes.data,
            len(self._rest),
            self._num_groups,
            stack.ctypes.data,
            self._work.ctypes.data,
            out.ctypes.data,
        )
        return f"blake3:{out.astype('<u4').tobytes().hex()}"
