"""Tables of tiles as docs/reference/format.md describes them, written and read without the package's codecs."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

import numpy as np

from lmdbloader.format.codecs import Payloads, checksum

#: The codecs: a table that is verified as a whole, and one that is verified in groups of entries.
WHOLE, GROUPED = 2, 5
GROUP = 64


@dataclass(frozen=True, slots=True)
class Table:
    """The entries of the tiles of one payload.

    Attributes:
        codec: WHOLE or GROUPED.
        sums: XXH64 of each tile.
        ends: Where each ends, counted from the end of the table.
        start: Where the first begins, which only GROUPED stores.
    """

    codec: int
    sums: tuple[int, ...]
    ends: tuple[int, ...]
    start: int = 0

    def to_bytes(self) -> bytes:
        """Return the table; the sums of its groups are those of their bytes."""
        n = len(self.ends)
        if self.codec == WHOLE:
            return struct.pack(f"<{n}Q", *self.sums) + struct.pack(f"<{n}I", *self.ends)
        return sign_groups(bytes(8 * -(-n // GROUP)) + self._entries(), n)

    def _entries(self) -> bytes:
        pairs = zip(self.sums, self.ends, strict=True)
        return struct.pack("<I", self.start) + b"".join(struct.pack("<QI", *pair) for pair in pairs)


def table_nbytes(codec: int, count: int) -> int:
    return 12 * count + (0 if codec == WHOLE else covered_nbytes(codec, count) + 4)


def covered_nbytes(codec: int, count: int) -> int:
    """Return how many of the table's bytes the checksum in the index covers."""
    return 12 * count if codec == WHOLE else 8 * -(-count // GROUP)


def sign_groups(payload: bytes, count: int) -> bytes:
    """Set the sum of each group of a GROUPED table to that of its present bytes."""
    entries = payload[covered_nbytes(GROUPED, count) : table_nbytes(GROUPED, count)]
    firsts = range(0, count, GROUP)
    sums = [checksum(entries[12 * first : 12 * min(first + GROUP, count) + 4]) for first in firsts]
    return struct.pack(f"<{len(sums)}Q", *sums) + payload[8 * len(sums) :]


def read_table(payload: bytes, codec: int, count: int) -> tuple[Table, bytes]:
    """Return the table of a payload, and the tiles behind it."""
    body = payload[table_nbytes(codec, count) :]
    if codec == WHOLE:
        sums, ends = struct.unpack_from(f"<{count}Q", payload), struct.unpack_from(f"<{count}I", payload, 8 * count)
        return Table(codec, sums, ends), body
    at = covered_nbytes(codec, count)
    pairs = list(struct.iter_unpack("<QI", payload[at + 4 : at + 4 + 12 * count]))
    start = struct.unpack_from("<I", payload, at)[0]
    return Table(codec, tuple(s for s, _ in pairs), tuple(e for _, e in pairs), start), body


def sign_tiles(payload: bytes, codec: int, count: int) -> bytes:
    """Set the checksum of each tile whose place is valid, and those of the groups."""
    table, body = read_table(payload, codec, count)
    starts = (table.start, *table.ends)
    pairs = zip(starts, table.ends, strict=False)
    sums = tuple(checksum(body[a:b]) if a <= b <= len(body) else 0 for a, b in pairs)
    return replace(table, sums=sums).to_bytes() + body


def as_whole(payload: Payloads, count: int) -> Payloads:
    """Return a payload in tiles as releases stored it that verified tables as a whole."""
    table, body = read_table(payload.data.tobytes(), GROUPED, count)
    head = replace(table, codec=WHOLE).to_bytes()
    stored = np.frombuffer(head + body, np.uint8)
    return Payloads(
        stored,
        np.array([stored.size]),
        payload.raw_nbytes,
        np.array([checksum(head)], np.uint64),
        np.array([WHOLE], np.uint8),
    )
