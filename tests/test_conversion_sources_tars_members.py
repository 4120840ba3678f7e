"""The members of one tar: those that tarfile finds, or an error, whatever is damaged."""

from __future__ import annotations

import io
import tarfile
import tracemalloc

import pytest
from faults.tarmakers import header, member, pax
from hypothesis import example, given
from hypothesis import strategies as st
from tars import tar_bytes

from lmdbloader.conversion.sources.tar_members import list_members
from lmdbloader.errors import SourceError

WHOLE = tar_bytes([("a/plain.png", b"x" * 700), ("long/" * 30 + "name.cls", b"1"), ("last.png", b"")])


def found(data: bytes) -> list[tuple[str, int, int, bool]]:
    members = list_members(io.BytesIO(data), "a.tar")
    return [(m.name, m.size, m.offset_data, m.kind == "file") for m in members]


def test_members_are_those_that_tarfile_finds() -> None:
    with tarfile.open(fileobj=io.BytesIO(WHOLE)) as tar:
        assert found(WHOLE) == [(m.name, m.size, m.offset_data, True) for m in tar.getmembers()]
    assert len(found(WHOLE)) == 3


@given(st.integers(0, len(WHOLE) - 1), st.binary(min_size=1, max_size=12), st.booleans())
@example(124, b"\x80" + bytes(10) + b"\x05", True)  # a size that is not an octal number
@example(156, b"5", True)
@example(345, b"prefix", True)
@example(148, b"        ", False)
def test_damage_is_an_error_or_read_as_tarfile_reads_it(at: int, damage: bytes, mend: bool) -> None:
    data = bytearray(WHOLE)
    data[at : at + len(damage)] = damage[: len(data) - at]
    if mend and at < 512:
        data[148:156] = b"%06o\0 " % (sum(data[:148]) + 256 + sum(data[156:512]))
    try:
        members = found(bytes(data))
    except SourceError as error:
        assert str(error).startswith("a.tar: ")
        return
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:", errors="surrogateescape") as tar:
            expected = tar.getmembers()
    except tarfile.ReadError:  # a time or an owner that is not a number, which is not read here
        assert at + len(damage) >= 100
        assert at < 345
        return
    assert members == [(m.name, m.size, m.offset_data, m.isreg() and not m.issparse()) for m in expected]


GOOD = member(b"good.png", b"image")
END = bytes(1024)


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (member(b"a.png", b"image", b"\0"), "a.png"),  # V7
        (header(b"b.png", 5, more=b"long/prefix") + b"image".ljust(512, b"\0"), "long/prefix/b.png"),
        # GNU's times stand where POSIX has the start of a long name.
        (header(b"b.png", 5, magic=b"ustar  \0", more=b"14537661000\0") + b"image".ljust(512, b"\0"), "b.png"),
        (member(b"l", b"x" * 300 + b".png\0", b"L") + member(b"cut", b"image"), "x" * 300 + ".png"),
        (pax([(b"path", "漢.png".encode())]) + member(b"cut", b"image"), "漢.png"),
        (pax([(b"path", b"\xff.png")]) + member(b"cut", b"image"), "\udcff.png"),
        (pax([(b"size", b"5"), (b"path", b"a.png")]) + header(b"cut", 0) + b"image".ljust(512, b"\0"), "a.png"),
        (pax([(b"path", b"a.png")]) + member(b"k", b"target", b"K") + pax([(b"mtime", b"1")]) + GOOD, "a.png"),
        (pax([(b"comment", b"for all")], b"g") + member(b"a.png", b"image"), "a.png"),
        (header(b"a.png", b"\x80" + bytes(10) + b"\5") + b"image".ljust(512, b"\0"), "a.png"),
    ],
)
def test_every_way_to_write_a_member_is_read(data: bytes, name: str) -> None:
    ((found_name, size, at, plain),) = found(data + END)
    assert (found_name, size, plain) == (name, 5, True)
    assert data[at : at + size] == b"image"


def test_the_map_of_a_sparse_file_is_skipped() -> None:
    old = header(b"old.png", 3, b"S", magic=b"ustar  \0", more=bytes(137) + b"\1")
    old += (bytes(504) + b"\1" + bytes(7)) + bytes(512) + b"abc".ljust(512, b"\0")
    new = pax([(b"GNU.sparse.major", b"1"), (b"GNU.sparse.minor", b"0"), (b"GNU.sparse.name", b"new.png")])
    new += member(b"cut", b"1\n0\n3\n".ljust(512, b"\0") + b"abc")
    assert [(name, plain) for name, _, _, plain in found(old + new + GOOD + END)] == [
        ("old.png", False), ("new.png", False), ("good.png", True)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (member(b"l", b"a.png\0", b"L") * 5000, "the member described at byte 0 is missing"),
        (pax([(b"size", b"-512")]) + GOOD, "the size b'-512' is not a number"),
        (pax([(b"size", b"1_0")]) + GOOD, "the size b'1_0' is not a number"),
        (pax([(b"size", b"9" * 5000)]) + GOOD, r"the size b'9{40}' is not a number"),
        (pax([(b"size", b"9" * 19)]) + GOOD, "has 9{19} bytes, and there are"),
        (pax([(b"path", b"a.png")], b"g") + GOOD, "gives all members the same path"),
        (pax([(b"path", b"a.png")]) + member(b"l", b"b.png\0", b"L") + GOOD, "two names: b'a.png' and b'b.png'"),
        (member(b"p", b"0 a=b\n", b"x") + GOOD, "at byte 512 a pax header is damaged"),
        (member(b"p", b"9" * 100_000, b"x") + GOOD, "a pax header is damaged"),
        (member(b"p", b"99 a=b\n", b"x") + GOOD, "a pax header is damaged"),
        (member(b"p", b"5 ab\n", b"x") + GOOD, "a pax header is damaged"),
        (header(b"a.png", b"\xff" * 12) + GOOD, r"the size b'\\xff.*' is not a number"),
        (header(b"a.png", b"\x00 000000005\0") + GOOD, r"the size b'.*' is not a number"),
        (header(b"l", 4, b"L") + b"long.png".ljust(512, b"\0") + GOOD, "a name is longer than its 4 bytes"),
        (header(b"a.png", 2**80) + GOOD, f"has {2**80} bytes"),
        (header(b"l", 2**40, b"L") + GOOD, f"is described in {2**40} bytes"),
        (header(b"l", 2**21, b"x") + bytes(2**21) + GOOD, f"is described in {2**21} bytes"),
        (member(b"l", b"n" * 5000, b"L") + GOOD, "a name of 5000 bytes"),
    ],
)
def test_a_tar_that_is_made_to_do_harm_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(SourceError, match=rf"^a\.tar: is not a tar, or is damaged or cut short \(.*{message}"):
        found(data + END)


def test_a_sparse_files_map_without_an_end_is_refused() -> None:
    data = header(b"s", 0, b"S", more=bytes(137) + b"\1") + (bytes(504) + b"\1" * 8) * 4
    with pytest.raises(SourceError, match="a sparse file's map does not end, at byte 2560"):
        found(data)


def test_memory_is_bounded_whatever_a_tar_holds() -> None:
    data = b"".join(pax([(b"key%d" % i, b"x" * 500_000)], b"g") for i in range(40)) + GOOD + END
    file = io.BytesIO(data)
    tracemalloc.start()
    try:
        assert [m.name for m in list_members(file, "a.tar")] == ["good.png"]
        assert tracemalloc.get_traced_memory()[1] < 3e6
    finally:
        tracemalloc.stop()
