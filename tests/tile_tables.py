"""Tables of tiles as docs/reference/format.md describes them, written and read without the package's codecs."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

from lmdbloader.format.codecs import checksum

GROUP = 64


@dataclass(frozen=True, slots=True)
class Table:
    """The entries of the tiles of one payload.

    Attributes:
        sums: XXH3 of each tile.
        ends: Where each ends, counted from the end of the table.
        start: Where the first begins.
    """

    sums: tuple[int, ...]
    ends: tuple[int, ...]
    start: int = 0

    def to_bytes(self) -> bytes:
        """Return the table; the sums of its groups are those of their bytes."""
        n = len(self.ends)
        pairs = zip(self.sums, self.ends, strict=True)
        entries = struct.pack("<I", self.start) + b"".join(struct.pack("<QI", *pair) for pair in pairs)
        return sign_groups(bytes(8 * -(-n // GROUP)) + entries, n)


def table_nbytes(count: int) -> int:
    return covered_nbytes(count) + 4 + 12 * count


def covered_nbytes(count: int) -> int:
    """Return how many of the table's bytes the checksum in the index covers."""
    return 8 * -(-count // GROUP)


def sign_groups(payload: bytes, count: int) -> bytes:
    """Set the sum of each group of a table to that of its present bytes."""
    entries = payload[covered_nbytes(count) : table_nbytes(count)]
    firsts = range(0, count, GROUP)
    sums = [checksum(entries[12 * first : 12 * min(first + GROUP, count) + 4]) for first in firsts]
    return struct.pack(f"<{len(sums)}Q", *sums) + payload[8 * len(sums) :]


def read_table(payload: bytes, count: int) -> tuple[Table, bytes]:
    """Return the table of a payload, and the tiles behind it."""
    at, body = covered_nbytes(count), payload[table_nbytes(count) :]
    pairs = list(struct.iter_unpack("<QI", payload[at + 4 : at + 4 + 12 * count]))
    start = struct.unpack_from("<I", payload, at)[0]
    return Table(tuple(s for s, _ in pairs), tuple(e for _, e in pairs), start), body


def sign_tiles(payload: bytes, count: int) -> bytes:
    """Set the checksum of each tile whose place is valid, and those of the groups."""
    table, body = read_table(payload, count)
    starts = (table.start, *table.ends)
    pairs = zip(starts, table.ends, strict=False)
    sums = tuple(checksum(body[a:b]) if a <= b <= len(body) else 0 for a, b in pairs)
    return replace(table, sums=sums).to_bytes() + body
