"""The members of one tar: those that tarfile finds, or an error, whatever is damaged."""

from __future__ import annotations

import io
import tarfile

from hypothesis import example, given
from hypothesis import strategies as st
from tars import tar_bytes

from lmdbloader.errors import SourceError
from lmdbloader.sources.tarmembers import is_plain, list_members

WHOLE = tar_bytes([("a/plain.png", b"x" * 700), ("long/" * 30 + "name.cls", b"1"), ("last.png", b"")])


def found(data: bytes) -> list[tuple[str, int, int, bool]]:
    members = list_members(io.BytesIO(data), "a.tar")
    return [(m.name, m.size, m.offset_data, is_plain(m)) for m in members]


def test_members_are_those_that_tarfile_finds() -> None:
    with tarfile.open(fileobj=io.BytesIO(WHOLE)) as tar:
        assert found(WHOLE) == [(m.name, m.size, m.offset_data, True) for m in tar.getmembers()]
    assert len(found(WHOLE)) == 3


@given(st.integers(0, len(WHOLE) - 1), st.binary(min_size=1, max_size=12), st.booleans())
@example(124, b"\x80" + bytes(10) + b"\x05", True)  # a size that is no octal number
@example(156, b"5", True)
@example(345, b"prefix", True)
@example(148, b"        ", False)
def test_damage_is_an_error_or_what_tarfile_makes_of_it(at: int, damage: bytes, mend: bool) -> None:
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
    except tarfile.ReadError:  # of a time or an owner that is no number, which nobody asks for here
        assert at + len(damage) >= 100
        assert at < 345
        return
    assert members == [(m.name, m.size, m.offset_data, m.isreg() and not m.issparse()) for m in expected]
