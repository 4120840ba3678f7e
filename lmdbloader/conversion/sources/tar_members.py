"""The members of one tar, found by its headers: V7, ustar, GNU and pax, in bounded memory for every file."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

from lmdbloader.errors import SourceError

_COMPRESSED = (
    (b"\x1f\x8b", "gzip -d"),
    (b"BZh", "bzip2 -d"),
    (b"\xfd7zXZ\0", "xz -d"),
    (b"\x28\xb5\x2f\xfd", "zstd -d"),
)
BLOCK_NBYTES = 512
# The most for descriptions before a member: names, times, access lists. Linux has no path of more than 4 KiB.
_MOST_EXTRA_NBYTES = 2**20
_MOST_NAME_NBYTES = 2**12
_REGULAR, _FOLDER = b"0\0007", b"5"
_LINK, _HARD_LINK = b"2", b"1"
# Links, folders, devices and FIFOs have no content, whatever size their header gives.
_WITHOUT_CONTENT = b"123456"
_LONG_NAME, _LONG_LINK, _SPARSE = b"L", b"K", b"S"
_PAX, _PAX_OF_ALL = b"xX", b"g"
# The byte of a sparse file's header, and of each later block of its map, that is set if more of the map follows.
_GOES_ON_AT, _MORE_GOES_ON_AT = 482, 504
_RECORD = re.compile(rb"(\d{1,7}) ")
# Octal digits up to a NUL or a blank; a field without any is empty.
_OCTAL = re.compile(rb" *([0-7]+) *(?:\0.*)?|[ \0]*", re.DOTALL)


class Readable(Protocol):
    """A binary file that can be read at any place."""

    def seek(self, offset: int, whence: int = ..., /) -> int:
        """Go to a byte, and return its number."""

    def read(self, size: int = ..., /) -> bytes:
        """Return the next bytes; fewer only at the end."""


@dataclass(frozen=True, slots=True)
class Member:
    """One member of a tar.

    Attributes:
        name: Its path in the tar; bytes that are not UTF-8 are surrogates, as in every path of Python's.
        size: Of its content in the tar, in bytes.
        offset_data: The first byte of its content.
        kind: "file" if the tar has the whole content; of a sparse file it has only parts.
        target: Of a link, the path in the tar that it leads to, without "." and ".." as far as that is possible.
    """

    name: str
    size: int
    offset_data: int
    kind: Literal["file", "folder", "link", "sparse", "other"]
    target: str = ""


def list_members(file: Readable, where: str) -> Iterator[Member]:
    """Yield the members of a tar: V7, ustar, GNU or pax. Memory is bounded for every tar.

    Raises:
        SourceError: The file, which messages call `where`, is not a tar, or is damaged or cut short.
    """
    start = file.read(6)
    for signature, command in _COMPRESSED:
        if start.startswith(signature):
            raise SourceError(f"{where}: is compressed, so its members cannot be read one by one. Use {command}.")
    end = 0
    try:
        nbytes = file.seek(0, os.SEEK_END)
        if nbytes < BLOCK_NBYTES:
            raise Damage(f"it has {nbytes} bytes")
        while (found := next_member(file, end, nbytes)) is not None:
            member, end = found
            yield member
    except Damage as error:
        raise SourceError(f"{where}: is not a tar, or is damaged or cut short ({error})") from error
    _check_end(file, end, where)


def _check_end(file: Readable, end: int, where: str) -> None:
    """Raise SourceError unless a tar ends at a byte, with nothing after it."""
    file.seek(end)
    rest = file.read(BLOCK_NBYTES)
    if len(rest) < BLOCK_NBYTES:
        raise SourceError(f"{where}: ends without the mark at the end of a tar; it was cut short at byte {end}")
    while rest:
        if rest.strip(b"\0"):
            raise SourceError(
                f"{where}: there is something other than a member at byte {end}: the tar is damaged there, or two tars "
                "were joined. The rest would be lost."
            )
        rest = file.read(64 * 1024)


class Damage(Exception):
    """The bytes are not those of a tar."""


@dataclass(slots=True)
class _Extra:
    """The description of a member in headers before its own; None for parts that they do not give."""

    name: bytes | None = None
    target: bytes | None = None
    size: int | None = None
    is_sparse: bool = False


def next_member(file: Readable, at: int, nbytes: int) -> tuple[Member, int] | None:
    """Return the member whose headers start at a byte, and the first byte after it; None without a header.

    Nothing in front of `at` counts, except that a tar begins at byte 0.

    Raises:
        Damage: The bytes there are not those of a tar of `nbytes` bytes.
    """
    extra = _Extra()
    begun = at
    while True:
        file.seek(at)
        header = file.read(BLOCK_NBYTES)
        if not is_header(header):
            if begun == 0 and header.strip(b"\0"):
                raise Damage(f"at byte {at} there is no header")
            if begun != at:
                raise Damage(f"at byte {at} the member described at byte {begun} is missing")
            return None
        kind, size = header[156:157], _number(header[124:136], at)
        content = at + BLOCK_NBYTES
        if kind not in _LONG_NAME + _LONG_LINK + _PAX + _PAX_OF_ALL:
            break
        at = content + whole_blocks(size)
        if size > _MOST_EXTRA_NBYTES or at > nbytes:
            raise Damage(f"at byte {content - BLOCK_NBYTES} a member is described in {size} bytes")
        _read_extra(file.read(at - content), size, kind, content, extra)
    if kind == _SPARSE:
        content = _behind_sparse_map(file, header, content)
    size = size if extra.size is None else extra.size
    if kind in _WITHOUT_CONTENT:
        size = 0
    end = content + whole_blocks(size)
    if end > nbytes:
        raise Damage(f"the member at byte {at} has {size} bytes, and there are {nbytes - content}")
    return _member(header, kind, size, content, extra), end


def _member(header: bytes, kind: bytes, size: int, content: int, extra: _Extra) -> Member:
    name = header[:100].partition(b"\0")[0]
    # GNU has times in the place where POSIX has the start of a long name.
    if header[257:265] != b"ustar  \0" and (prefix := header[345:500].partition(b"\0")[0]):
        name = prefix + b"/" + name
    is_folder = kind == _FOLDER or (kind == b"\0" and name.endswith(b"/"))
    name = name if extra.name is None else extra.name
    if len(name) > _MOST_NAME_NBYTES:
        raise Damage(f"a member has a name of {len(name)} bytes: {name[:40]!r} ...")
    if is_folder:
        return Member(os.fsdecode(name.rstrip(b"/")), size, content, "folder")
    if kind in (_LINK, _HARD_LINK):
        target = header[157:257].partition(b"\0")[0] if extra.target is None else extra.target
        if len(target) > _MOST_NAME_NBYTES:
            raise Damage(f"a link leads to a name of {len(target)} bytes: {target[:40]!r} ...")
        # A symbolic link begins at its own folder, a hard one at that of the tar.
        start = os.path.dirname(name) if kind == _LINK else b""
        path = os.fsdecode(posixpath.normpath(posixpath.join(start, target)))
        return Member(os.fsdecode(name), 0, content, "link", path)
    if kind == _SPARSE or (kind in _REGULAR and extra.is_sparse):
        return Member(os.fsdecode(name), size, content, "sparse")
    return Member(os.fsdecode(name), size, content, "file" if kind in _REGULAR else "other")


def is_header(block: bytes) -> bool:
    """Return whether a block is a header: by its checksum, which counts its own eight bytes as blanks."""
    if len(block) < BLOCK_NBYTES:
        return False
    stored = _OCTAL.fullmatch(block[148:156])
    if stored is None or not stored[1]:
        return False
    rest = block[:148] + block[156:]
    total, expected = sum(rest) + 8 * ord(" "), int(stored[1], 8)
    # Some old programs have added signed bytes.
    return expected == total or expected == total - 256 * sum(byte > 127 for byte in rest)


def _number(digits: bytes, at: int) -> int:
    """Return a number of a header: octal digits, or base 256 after a first bit that is set."""
    if digits[0] == 0x80:
        return int.from_bytes(digits[1:], "big")
    found = _OCTAL.fullmatch(digits)
    if found is None:
        raise Damage(f"at byte {at} the size {digits!r} is not a number")
    return int(found[1] or b"0", 8)


def whole_blocks(nbytes: int) -> int:
    """Return the bytes of the blocks that some bytes take.

    >>> whole_blocks(1), whole_blocks(512)
    (512, 512)
    """
    return -(-nbytes // BLOCK_NBYTES) * BLOCK_NBYTES


def _read_extra(blocks: bytes, size: int, kind: bytes, at: int, extra: _Extra) -> None:
    """Add the description in a header before a member's own: the first `size` bytes of some blocks."""
    if kind in (_LONG_NAME, _LONG_LINK):
        if blocks[size:].strip(b"\0"):
            raise Damage(f"at byte {at} a name is longer than its {size} bytes")
        text = blocks[:size].partition(b"\0")[0]
        if kind == _LONG_NAME:
            _name(text, at, extra)
        else:
            extra.target = text
        return
    for key, value in _pax_records(blocks[:size], at):
        if kind == _PAX_OF_ALL and (key in (b"path", b"linkpath", b"size") or key.startswith(b"GNU.sparse.")):
            raise Damage(f"at byte {at} a pax header gives all members the same {key.decode()}")
        if key in (b"path", b"GNU.sparse.name"):
            _name(value, at, extra)
        elif key == b"linkpath":
            extra.target = value
        elif key == b"size":
            if not value.isdigit() or len(value) > 19:
                raise Damage(f"at byte {at} the size {value[:40]!r} is not a number")
            extra.size = int(value)
        extra.is_sparse |= key.startswith(b"GNU.sparse.")


def _name(name: bytes, at: int, extra: _Extra) -> None:
    if extra.name is not None and extra.name != name:
        raise Damage(f"at byte {at} a member is given two names: {extra.name[:40]!r} and {name[:40]!r}")
    extra.name = name


def _pax_records(data: bytes, at: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of a pax header, whose lines are "length key=value"."""
    start = 0
    while start < len(data) and data[start]:
        found = _RECORD.match(data, start)
        end = start + int(found[1]) if found else start
        if found is None or end > len(data) or end <= found.end() or data[end - 1 : end] != b"\n":
            raise Damage(f"at byte {at + start} a pax header is damaged")
        key, equals, value = data[found.end() : end - 1].partition(b"=")
        if not equals:
            raise Damage(f"at byte {at + start} a pax header is damaged")
        yield key, value
        start = end


def _behind_sparse_map(file: Readable, header: bytes, content: int) -> int:
    """Return the first byte of the content of a sparse file in GNU's old format, which follows the rest of its map."""
    goes_on = header[_GOES_ON_AT]
    while goes_on:
        file.seek(content)
        block = file.read(BLOCK_NBYTES)
        if len(block) < BLOCK_NBYTES:
            raise Damage(f"a sparse file's map does not end, at byte {content}")
        goes_on = block[_MORE_GOES_ON_AT]
        content += BLOCK_NBYTES
    return content
