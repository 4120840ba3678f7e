"""Hostile tars: with wrong sizes, names, descriptions and maps."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from pathlib import Path

_END = bytes(1024)
#: A part of the file: bytes, or the length of a hole.
Piece = bytes | int


def header(
    name: bytes, size: int | bytes = 0, kind: bytes = b"0", *, magic: bytes = b"ustar\x0000", more: bytes = b""
) -> bytes:
    """Return a header of 512 bytes with the right sum.

    Args:
        name: At most 100 bytes.
        size: A number, or the twelve bytes that stand for it.
        kind: One byte.
        magic: Eight bytes.
        more: The bytes from 345 on.
    """
    digits = size if isinstance(size, bytes) else b"%011o\0" % size if size < 8**11 else _base256(size)
    block = bytearray(512)
    for at, part in ((0, name), (100, b"0000644\0"), (108, b"0000000\0" * 2), (124, digits), (136, b"00000000000\0")):
        block[at : at + len(part)] = part
    block[148:156], block[156:157] = b" " * 8, kind
    for at, part in ((257, magic), (345, more)):
        block[at : at + len(part)] = part
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def _base256(size: int) -> bytes:
    return b"\x80" + size.to_bytes(11, "big")


def member(name: bytes, data: bytes, kind: bytes = b"0") -> bytes:
    """Return a header with its content, in whole blocks."""
    return header(name, len(data), kind) + data + bytes(-len(data) % 512)


def pax(records: Iterable[tuple[bytes, bytes]], kind: bytes = b"x") -> bytes:
    """Return a pax header with sound records."""
    return member(b"pax", b"".join(map(_record, records)), kind)


def _record(record: tuple[bytes, bytes]) -> bytes:
    key, value = record
    rest, length = b" " + key + b"=" + value + b"\n", 0
    while len(b"%d" % length) + len(rest) != length:
        length = len(b"%d" % length) + len(rest)
    return b"%d" % length + rest


def _long_names(rng: random.Random, good: bytes) -> list[Piece]:
    kind = rng.choice((b"L", b"K", b"x", b"X", b"g"))
    one = pax([(b"comment", b"x")], kind) if kind in b"xXg" else member(b"././@LongLink", b"a/name.png\0", kind)
    return [one * rng.choice((2, 900, 5000)), good]


def _pax_sizes(rng: random.Random, good: bytes) -> list[Piece]:
    size = rng.choice((b"-512", b"-5", b"1e9", b"0x10", b"1_000", b" 7", b"", b"9" * 5000, b"%d" % 2**80, b"7" * 19))
    return [pax([(rng.choice((b"size", b"GNU.sparse.size", b"GNU.sparse.realsize")), size)]), good]


def _pax_records(rng: random.Random, good: bytes) -> list[Piece]:
    records = rng.choice((
        b"0 path=x\n", b"-9 path=x\n", b"99999999999999 path=x\n", b"11 path=x.png\n", b"5 a=", b"12 pathisx.p\n",
        b"9" * 200_000 + b" a=b\n", b"9" * 60_000, b"7 a" + b"a" * 100_000, b"11 \xff\xfe=\xff\xfe\xff\n", b"\n" * 5000,
        b"7 a=bc" * 1000, _record((b"path", b"a\0b.png")), _record((b"path", b"/" * 3000)), _record((b"path", b"")),
    ))  # fmt: skip
    return [member(b"pax", records, rng.choice((b"x", b"g", b"X"))), good]


def _sparse(rng: random.Random, good: bytes) -> list[Piece]:
    way = rng.randrange(5)
    if way == 0:  # GNU's old way: a map that goes on and on
        blocks = rng.choice((3, 4000))
        goes_on = (bytes(504) + b"\1" + bytes(7)) * blocks
        return [header(b"s.png", 0, b"S", magic=b"ustar  \0", more=bytes(137) + b"\1"), goes_on, good]
    if way == 1:
        text = rng.choice((b"1,2,3", b"", b"a,b", b"1," * 5000, b"-1,-1", b"9" * 5000 + b",1"))
        return [pax([(b"GNU.sparse.map", text), (b"GNU.sparse.size", b"9")]), good]
    if way == 2:
        numbers = [(rng.choice((b"GNU.sparse.offset", b"GNU.sparse.numbytes")), b"x") for _ in range(50)]
        return [pax([(b"GNU.sparse.numblocks", b"x" * 30), *numbers]), good]
    records = [(b"GNU.sparse.major", b"1"), (b"GNU.sparse.minor", b"0"), (b"GNU.sparse.name", b"s.png")]
    text = rng.choice((b"x\n", b"999999999999\n", b"2\n1\n", b"7" * 3000, b"0" * 512, b"-1\n"))
    return [pax([*records, (b"GNU.sparse.realsize", b"99")]), member(b"s.png", text), good]


def _sizes(rng: random.Random, good: bytes) -> list[Piece]:
    digits = rng.choice((
        b"\x80" + b"\xff" * 11, b"\xff" * 12, _base256(2**63), _base256(2**64 - 512),
        b"-0000000512\0", b"+0000000007\0", b"0o000000017\0", b"1_0_0_0_0_0\0", b"99999999999\0", b"           \0",
        b"77777777777\0", b"\0" * 12, b"1 1        \0", "\u0661".encode() * 6,
    ))  # fmt: skip
    return [header(b"a.png", digits, rng.choice((b"0", b"L", b"x", b"g", b"5", b"2", b"Z"))), good]


def _large(rng: random.Random, good: bytes) -> list[Piece]:
    """Much that is not there: holes of gigabytes where a name, a description or a file should be."""
    nbytes = rng.choice((2**31, 2**35, 2**40))
    name, kind = rng.choice(
        ((b"p", b"x"), (b"p", b"g"), (b"n", b"L"), (b"n", b"K"), (b"a.png", b"0"), (b"a.json", b"0"))
    )
    beside = member(b"a.png", b"x") if name == b"a.json" else b""
    return [beside, header(name, nbytes, kind), nbytes, good]


def _global_headers(rng: random.Random, good: bytes) -> list[Piece]:
    number = rng.choice((3, 60))
    return [*(pax([(b"key%d" % i, b"x" * 500_000)], b"g") for i in range(number)), good]


def _names(rng: random.Random, good: bytes) -> list[Piece]:
    name = rng.choice((
        b"../../etc/x.png", b"/etc/x.png", b"a/../x.png", b"./" * 40 + b"x.png", b"", b".", b"..", b"a//b.png", b"a/",
        b"\x1b[2J\x1b]0;gone\x07.png", b"line\nskipped\ta.png", b"\xff\xfe.png", "\u202egnp.exe".encode(),
        b"\xed\xa0\x80.png", b".png", b"." * 90, b"/" * 90, b"a.png" + b".b" * 40,
    ))  # fmt: skip
    if rng.random() < 0.3:
        name = rng.choice((b"n" * 100_000 + b".png", b"./" * 400_000 + b"x.png", b"d/" * 300_000, b"." * 500_000))
        return [member(b"long", name + b"\0", b"L") if rng.random() < 0.5 else pax([(b"path", name)]), good]
    return [member(name, b"no image", rng.choice((b"0", b"\0", b"7", b"Q"))), good]


def _kinds(rng: random.Random, good: bytes) -> list[Piece]:
    kinds = rng.choices((b"1", b"2", b"3", b"4", b"5", b"6", b"7", b"D", b"M", b"N", b"V", b"\xff", b"\1"), k=20)
    return [*(header(b"%d.png" % i, rng.choice((0, 0, 5)), kind) for i, kind in enumerate(kinds)), good]


def _two_names(rng: random.Random, good: bytes) -> list[Piece]:
    pieces = [pax([(b"path", b"one.png")]), member(b"l", b"two.png\0", b"L"), pax([(b"path", b"three.png")])]
    rng.shuffle(pieces)
    return [*pieces[: rng.choice((2, 3))], good]


def _values(rng: random.Random, good: bytes) -> list[Piece]:
    """A sound tar with an image, and with values that are hard to read or to write."""
    digits = b"1" * rng.choice((4299, 4300, 9000))
    json = rng.choice((
        b"[" * 100_000, b'"\\ud800"', b'{"\\udc00": 1}', digits, b'{"a": [-' + digits + b"]}", b"1e999", b"NaN",
        b"\xff", b'"' + digits + b'"', b"", b'"\\ud83d\\ude00"', b"{" * 50_000,
    ))  # fmt: skip
    label = rng.choice((digits, b"-", b"", b"1_0", "\u0663".encode(), b"7"))
    text = rng.choice((b"\xed\xa0\x80", b"\xff", b"a\0b\x1b[2J", b"plain"))
    name, value = rng.choice(((b"good.json", json), (b"good.cls", label), (b"good.txt", text)))
    # With another sample, one that cannot be used is left out; alone it leaves nothing to write.
    return [good, member(name, value), *([member(b"more.png", good[512:])] if rng.random() < 0.8 else [])]


def _cut(rng: random.Random, good: bytes) -> list[Piece]:
    whole = pax([(b"path", b"x.png")]) + good
    return [whole[: rng.randrange(len(whole))]]


def _flipped(rng: random.Random, good: bytes) -> list[Piece]:
    block = bytearray(header("ü.png".encode(), 3))
    block[rng.randrange(512)] ^= 1 << rng.randrange(8)
    return [bytes(block), b"abc".ljust(512, b"\0"), good]


MAKERS: dict[str, Callable[[random.Random, bytes], list[Piece]]] = {
    "descriptions without end": _long_names,
    "sizes in pax": _pax_sizes,
    "records of pax": _pax_records,
    "sparse files": _sparse,
    "sizes": _sizes,
    "holes of gigabytes": _large,
    "headers for all": _global_headers,
    "names": _names,
    "kinds": _kinds,
    "two names": _two_names,
    "values": _values,
    "cut": _cut,
    "flipped bits": _flipped,
}


def write_tar(path: Path, pieces: Iterable[Piece], *, ends: bool) -> None:
    """Write a tar of pieces."""
    with open(path, "wb") as file:
        for piece in pieces:
            if isinstance(piece, int):
                file.seek(piece, 1)
            else:
                file.write(piece)
        file.write(_END if ends else b"")
