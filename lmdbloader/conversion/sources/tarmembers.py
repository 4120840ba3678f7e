"""The members of one tar, in order; a tar that is damaged or cut short anywhere is an error, never a shorter one."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Literal

from lmdbloader.errors import SourceError

_COMPRESSED = (
    (b"\x1f\x8b", "gzip -d"),
    (b"BZh", "bzip2 -d"),
    (b"\xfd7zXZ\0", "xz -d"),
    (b"\x28\xb5\x2f\xfd", "zstd -d"),
)
_BLOCK_NBYTES = 512
# Of what stands before a member to describe it: names, times, access lists. Linux has no path of more than 4 KiB.
_MOST_EXTRA_NBYTES = 2**20
_MOST_NAME_NBYTES = 2**12
_REGULAR, _FOLDER = b"0\0007", b"5"
# What has no content: links, folders, devices and FIFOs, whatever size their header gives.
_WITHOUT_CONTENT = b"123456"
_LONG_NAME, _LONG_LINK, _SPARSE = b"L", b"K", b"S"
_PAX, _PAX_OF_ALL = b"xX", b"g"
# Where a sparse file's header, and each block of the rest of its map, say whether more of the map follows.
_GOES_ON_AT, _MORE_GOES_ON_AT = 482, 504
_RECORD = re.compile(rb"(\d{1,7}) ")
# Octal digits up to a NUL or a blank; a field without any is empty.
_OCTAL = re.compile(rb" *([0-7]+) *(?:\0.*)?|[ \0]*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Member:
    """One member of a tar.

    Attributes:
        name: Its path as it stands there; bytes that are no UTF-8 are surrogates, as in every path of Python's.
        size: Of its content in the tar, in bytes.
        offset_data: Where its content starts.
        kind: "file" where the content lies there as it is (of a sparse file only parts do), else "folder" or "other".
    """

    name: str
    size: int
    offset_data: int
    kind: Literal["file", "folder", "other"]


def list_members(file: IO[bytes], where: str) -> Iterator[Member]:
    """Yield the members of a tar: V7, ustar, GNU or pax. Memory is bounded, whatever the tar says.

    Args:
        file: The tar; it can seek.
        where: What messages call it.

    Raises:
        SourceError: It is none, or is damaged or cut short.
    """
    start = file.read(6)
    for signature, command in _COMPRESSED:
        if start.startswith(signature):
            raise SourceError(f"{where}: is compressed, so that nothing in it can be found by itself. Use {command}.")
    end = 0
    try:
        nbytes = file.seek(0, os.SEEK_END)
        if nbytes < _BLOCK_NBYTES:
            raise _Damage(f"it has {nbytes} bytes")
        while (found := _next_member(file, end, nbytes)) is not None:
            member, end = found
            yield member
    except _Damage as error:
        raise SourceError(f"{where}: is no tar, or is damaged or cut short ({error})") from error
    _check_end(file, end, where)


def _check_end(file: IO[bytes], end: int, where: str) -> None:
    """Raise SourceError unless a tar ends there, with nothing behind it."""
    file.seek(end)
    rest = file.read(_BLOCK_NBYTES)
    if len(rest) < _BLOCK_NBYTES:
        raise SourceError(f"{where}: ends without the mark at the end of a tar; it was cut short at byte {end}")
    while rest:
        if rest.strip(b"\0"):
            raise SourceError(
                f"{where}: there is no member at byte {end}, but something that is none: it is damaged there, or two "
                "tars were put together. What follows would be lost."
            )
        rest = file.read(64 * 1024)


class _Damage(Exception):
    """A tar does not say what tars say."""


@dataclass(slots=True)
class _Extra:
    """What headers before a member's own say of it; None where they say nothing."""

    name: bytes | None = None
    size: int | None = None
    is_sparse: bool = False


def _next_member(file: IO[bytes], at: int, nbytes: int) -> tuple[Member, int] | None:
    """Return the member whose headers start at a byte, and where the next one's do; None where none starts there.

    Args:
        file: The tar.
        at: The first byte of the headers.
        nbytes: Of the tar.
    """
    extra = _Extra()
    begun = at
    while True:
        file.seek(at)
        header = file.read(_BLOCK_NBYTES)
        if not _is_header(header):
            if begun == 0 and header.strip(b"\0"):
                raise _Damage(f"at byte {at} there is no header")
            if begun != at:
                raise _Damage(f"at byte {at} the member is missing that the header at byte {begun} describes")
            return None
        kind, size = header[156:157], _number(header[124:136], at)
        content = at + _BLOCK_NBYTES
        if kind not in _LONG_NAME + _LONG_LINK + _PAX + _PAX_OF_ALL:
            break
        at = content + _whole_blocks(size)
        if size > _MOST_EXTRA_NBYTES or at > nbytes:
            raise _Damage(f"at byte {content - _BLOCK_NBYTES} a member is described in {size} bytes")
        if kind != _LONG_LINK:
            _read_extra(file.read(at - content), size, kind, content, extra)
    if kind == _SPARSE:
        content = _behind_sparse_map(file, header, content)
    size = size if extra.size is None else extra.size
    if kind in _WITHOUT_CONTENT:
        size = 0
    end = content + _whole_blocks(size)
    if end > nbytes:
        raise _Damage(f"the member at byte {at} has {size} bytes, and there are {nbytes - content}")
    return _member(header, kind, size, content, extra), end


def _member(header: bytes, kind: bytes, size: int, content: int, extra: _Extra) -> Member:
    name = header[:100].partition(b"\0")[0]
    # GNU has times in the place where POSIX has the start of a long name.
    if header[257:265] != b"ustar  \0" and (prefix := header[345:500].partition(b"\0")[0]):
        name = prefix + b"/" + name
    is_folder = kind == _FOLDER or (kind == b"\0" and name.endswith(b"/"))
    name = name if extra.name is None else extra.name
    if len(name) > _MOST_NAME_NBYTES:
        raise _Damage(f"a member has a name of {len(name)} bytes: {name[:40]!r} ...")
    plain = kind in _REGULAR and not extra.is_sparse and not is_folder
    if is_folder:
        name = name.rstrip(b"/")
    return Member(os.fsdecode(name), size, content, "folder" if is_folder else "file" if plain else "other")


def _is_header(block: bytes) -> bool:
    """Return whether a block is a header by its sum, which counts its own eight bytes as blanks."""
    if len(block) < _BLOCK_NBYTES:
        return False
    stored = _OCTAL.fullmatch(block[148:156])
    if stored is None or not stored[1]:
        return False
    rest = block[:148] + block[156:]
    total, expected = sum(rest) + 8 * ord(" "), int(stored[1], 8)
    # Some old programs have added signed bytes.
    return expected == total or expected == total - 256 * sum(byte > 127 for byte in rest)


def _number(digits: bytes, at: int) -> int:
    """Return a number of a header: octal digits, or base 256 behind a first bit that is set."""
    if digits[0] == 0x80:
        return int.from_bytes(digits[1:], "big")
    found = _OCTAL.fullmatch(digits)
    if found is None:
        raise _Damage(f"at byte {at} the size {digits!r} is no number")
    return int(found[1] or b"0", 8)


def _whole_blocks(nbytes: int) -> int:
    return -(-nbytes // _BLOCK_NBYTES) * _BLOCK_NBYTES


def _read_extra(blocks: bytes, size: int, kind: bytes, at: int, extra: _Extra) -> None:
    """Add what one header before a member's own says, in `size` bytes of some blocks."""
    if kind == _LONG_NAME:
        if blocks[size:].strip(b"\0"):
            raise _Damage(f"at byte {at} a name is longer than its {size} bytes")
        _name(blocks[:size].partition(b"\0")[0], at, extra)
        return
    for key, value in _pax_records(blocks[:size], at):
        if kind == _PAX_OF_ALL and (key in (b"path", b"size") or key.startswith(b"GNU.sparse.")):
            raise _Damage(f"at byte {at} all members are given the same {key.decode()}")
        if key in (b"path", b"GNU.sparse.name"):
            _name(value, at, extra)
        elif key == b"size":
            if not value.isdigit() or len(value) > 19:
                raise _Damage(f"at byte {at} the size {value[:40]!r} is no number")
            extra.size = int(value)
        extra.is_sparse |= key.startswith(b"GNU.sparse.")


def _name(name: bytes, at: int, extra: _Extra) -> None:
    if extra.name is not None and extra.name != name:
        raise _Damage(f"at byte {at} a member is given two names: {extra.name[:40]!r} and {name[:40]!r}")
    extra.name = name


def _pax_records(data: bytes, at: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of a pax header: each as "length key=value", with a line's end."""
    start = 0
    while start < len(data) and data[start]:
        found = _RECORD.match(data, start)
        end = start + int(found[1]) if found else start
        if found is None or end > len(data) or end <= found.end() or data[end - 1 : end] != b"\n":
            raise _Damage(f"at byte {at + start} a pax header is damaged")
        key, equals, value = data[found.end() : end - 1].partition(b"=")
        if not equals:
            raise _Damage(f"at byte {at + start} a pax header is damaged")
        yield key, value
        start = end


def _behind_sparse_map(file: IO[bytes], header: bytes, content: int) -> int:
    """Return where the content of a sparse file of GNU's old kind starts: behind the rest of its map."""
    goes_on = header[_GOES_ON_AT]
    while goes_on:
        file.seek(content)
        block = file.read(_BLOCK_NBYTES)
        if len(block) < _BLOCK_NBYTES:
            raise _Damage(f"a sparse file's map does not end, at byte {content}")
        goes_on = block[_MORE_GOES_ON_AT]
        content += _BLOCK_NBYTES
    return content
