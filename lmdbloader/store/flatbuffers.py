"""Reads flatbuffers, in which Arrow describes its data, from untrusted bytes: no offset is followed unchecked."""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]

_U16, _I32, _U32 = struct.Struct("<H"), struct.Struct("<i"), struct.Struct("<I")
_NUMBERS = {kind: struct.Struct(f"<{kind}") for kind in "?Bhiq"}


class FlatbufferError(ValueError):
    """An offset points outside of the bytes, or a part is missing; the message is the end of a sentence."""


class Table:
    """A table: fields in numbered slots, each of which may be left out.

    It refuses what flatbuffers' own verifier refuses, so that other readers can read whatever this one does.
    """

    __slots__ = ("_at", "_data", "_slots")

    def __init__(self, data: bytes, at: int) -> None:
        """Check a table's head.

        Args:
            data: All bytes.
            at: The table's first byte.

        Raises:
            FlatbufferError: It is not within the bytes.
        """
        _check(data, at, 4, 4)
        slots_at = at - _I32.unpack_from(data, at)[0]
        _check(data, slots_at, 2, 2)
        (nbytes,) = _U16.unpack_from(data, slots_at)
        if nbytes % 2 or nbytes < 4:
            raise FlatbufferError(f"the slots of a table take {nbytes} bytes")
        _check(data, slots_at, nbytes, 2)
        self._data, self._at = data, at
        self._slots = struct.unpack_from(f"<{nbytes // 2 - 2}H", data, slots_at + 4)

    @classmethod
    def root(cls, data: bytes) -> Table:
        """Return the outermost table.

        Raises:
            FlatbufferError: It is not within the bytes.
        """
        return cls(data, _target(data, 0))

    def has(self, slot: int) -> bool:
        """Return whether a field is there."""
        return slot < len(self._slots) and self._slots[slot] != 0

    def number(self, slot: int, kind: str) -> int:
        """Return a number, 0 if it is left out.

        Args:
            slot: Its number.
            kind: "?" (bool), "B", "h", "i" or "q": 8 to 64 bits, as in the module struct.

        Raises:
            FlatbufferError: It is not within the bytes.
        """
        if slot >= len(self._slots) or not self._slots[slot]:
            return 0
        number, at = _NUMBERS[kind], self._at + self._slots[slot]
        if at % number.size or at + number.size > len(self._data):
            _check(self._data, at, number.size, number.size)
        return int(number.unpack_from(self._data, at)[0])

    def table(self, slot: int) -> Table:
        """Return another table.

        Raises:
            FlatbufferError: It is left out, or not within the bytes.
        """
        return Table(self._data, self._follow(slot))

    def text(self, slot: int) -> bytes:
        """Return a text, empty if it is left out.

        Raises:
            FlatbufferError: It is not within the bytes.
        """
        at, nbytes = self._vector(slot, 1)
        if self.has(slot) and self._data[at + nbytes : at + nbytes + 1] != b"\0":
            raise FlatbufferError("a text has no end")
        return self._data[at : at + nbytes]

    def count(self, slot: int) -> int:
        """Return the number of tables in a vector of them, 0 if it is left out; they are not checked.

        Raises:
            FlatbufferError: It is not within the bytes.
        """
        return self._vector(slot, 4)[1]

    def tables(self, slot: int, most: int) -> list[Table]:
        """Return the first `most` tables of a vector of them, none if it is left out.

        Raises:
            FlatbufferError: One is not within the bytes.
        """
        at, count = self._vector(slot, 4)
        return [Table(self._data, _target(self._data, at + 4 * i)) for i in range(min(count, most))]

    def numbers(self, slot: int, width: int) -> I64:
        """Return a vector of structs of `width` int64 numbers, (n, width); (0, width) if it is left out.

        Raises:
            FlatbufferError: It is not within the bytes.
        """
        at, count = self._vector(slot, 8 * width)
        return np.frombuffer(self._data[at : at + 8 * width * count], "<i8").reshape(count, width)

    def _follow(self, slot: int) -> int:
        if not self.has(slot):
            raise FlatbufferError("a part is missing")
        return _target(self._data, self._at + self._slots[slot])

    def _vector(self, slot: int, item_nbytes: int) -> tuple[int, int]:
        """Return the first byte of a vector's items and their number."""
        if not self.has(slot):
            return 0, 0
        at = self._follow(slot)
        _check(self._data, at, 4, 4)
        (count,) = _U32.unpack_from(self._data, at)
        _check(self._data, at + 4, count * item_nbytes, 1)
        return at + 4, count


def _target(data: bytes, at: int) -> int:
    """Return the place that an offset points to."""
    _check(data, at, 4, 4)
    (distance,) = _U32.unpack_from(data, at)
    if not 0 < distance < 2**31:
        raise FlatbufferError(f"an offset is {distance}")
    return at + int(distance)


def _check(data: bytes, at: int, nbytes: int, alignment: int) -> None:
    if at < 0 or at + nbytes > len(data) or at % alignment:
        raise FlatbufferError(
            f"an offset points to bytes {at} to {at + nbytes} of {len(data)}; expected a multiple of {alignment}"
        )
