"""Gathering payloads into a batch: equal to NumPy, and never outside of its output, for any stored bytes."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tile_tables import covered_nbytes, read_table, sign_groups, table_nbytes
from windows import read_window

from lmdbloader.format import codecs
from lmdbloader.format.codecs import Payloads, checksum, encode_image, encode_many
from lmdbloader.format.layout import CODEC_LZ4, CODEC_RAW, CODEC_TILES
from lmdbloader.kernels.codec_numbers import (
    BAD_CHECKSUM,
    BAD_CODEC,
    BAD_LZ4,
    BAD_TILES,
    CHANGED,
    OK,
    OUT_OF_BOUNDS,
)
from lmdbloader.kernels.entries import gather, hash_many, hash_pieces

GUARD = 64
MARK = 0xA5
TILE = 16
NOWHERE = np.empty(0, np.uint8)
WHOLE = np.empty((0, 4), np.int64)


def mapped(data: np.ndarray) -> tuple[int, int, int, int, int]:
    """Return an array as the file that a kernel reads through a map."""
    return data.ctypes.data, data.size, -1, 0, 0


@dataclass(slots=True)
class Stored:
    """Payloads as the mapped file and the index have them; change anything before `read`."""

    data: np.ndarray
    offset: np.ndarray
    stored: np.ndarray
    raw: np.ndarray
    checksum: np.ndarray
    codec: np.ndarray
    geometry: tuple[np.ndarray, ...]

    def rehash(self) -> None:
        """Give every payload the checksum of its present bytes, as an attacker would."""
        for i, codec in enumerate(self.codec):
            at, nbytes = int(self.offset[i]), int(self.stored[i])
            if codec == CODEC_TILES:
                signed = sign_groups(self.data[at : at + nbytes].tobytes(), self.num_tiles(i))
                self.data[at : at + nbytes] = np.frombuffer(signed, np.uint8)
                nbytes = min(nbytes, covered_nbytes(self.num_tiles(i)))
            self.checksum[i] = checksum(self.data[at : at + nbytes])

    def num_tiles(self, i: int) -> int:
        return int(-(-int(self.geometry[0][i]) // TILE) * -(-int(self.geometry[1][i]) // TILE))

    def read(self, rows: Any, *, verify: bool = True, room: int | None = None) -> tuple[int, int, list[bytes]]:
        """Gather rows into a guarded buffer; return the status, the failed position and the decoded bytes."""
        rows = np.array(rows, np.int64)
        nbytes = self.raw[rows].astype(np.int64)
        start = np.cumsum(nbytes + GUARD) - nbytes
        size = int((nbytes + GUARD).sum()) + GUARD if room is None else room
        guarded = np.full(size + 2 * GUARD, MARK, np.uint8)
        out = guarded[GUARD : GUARD + size]
        scratch = np.full(TILE * TILE * 6 + GUARD, MARK, np.uint8)
        failed = np.full(1, -7, np.int64)
        data = self.data.view()
        data.flags.writeable = False  # as mapped
        columns = (self.offset, self.stored, self.raw, self.checksum, self.codec)
        status = gather(
            mapped(data), rows, columns, verify, self.geometry, TILE, WHOLE, out, start, nbytes, NOWHERE,
            scratch[: TILE * TILE * 6], NOWHERE, failed,
        )  # fmt: skip
        outside = np.ones(len(guarded), bool)
        for at, length in zip(start.tolist(), nbytes.tolist(), strict=True):
            outside[GUARD + at : GUARD + at + length] = False
        outside[:GUARD] = outside[GUARD + size :] = True
        assert (guarded[outside] == MARK).all(), "gather wrote outside of a payload's place"
        assert (scratch[TILE * TILE * 6 :] == MARK).all(), "gather wrote outside of its scratch"
        values = [out[at : at + length].tobytes() for at, length in zip(start.tolist(), nbytes.tolist(), strict=True)]
        return status, int(failed[0]), values


def store(parts: list[tuple[Payloads, tuple[int, int, int, int]]], lead: int = 5) -> Stored:
    """Store payloads at odd offsets of a file, with their geometry (height, width, channels, bits)."""
    encoded = [p for p, _ in parts]
    stored = np.concatenate([p.stored_nbytes for p in encoded])
    gap = np.full(lead, 0x5A, np.uint8)
    geometry = np.array([g for _, g in parts]).T
    return Stored(
        np.concatenate([piece for p in encoded for piece in (gap, p.data)]),
        np.cumsum(stored + lead) - stored,
        stored.astype(np.uint32),
        np.concatenate([p.raw_nbytes for p in encoded]).astype(np.uint32),
        np.concatenate([p.checksum for p in encoded]),
        np.concatenate([p.codec for p in encoded]),
        tuple(column.astype(t) for column, t in zip(geometry, (np.uint32, np.uint32, np.uint8, np.uint8), strict=True)),
    )


def encode_tiled(image: np.ndarray, codec: str) -> Payloads:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codecs, "TILED_ABOVE_NBYTES", 0)
        return encode_image(image, codec, TILE)


def picture(height: int, width: int, channels: int, dtype: Any = np.uint8, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    image = rng.integers(0, np.iinfo(dtype).max + 1, (height, width, channels)).astype(dtype)
    image[: height // 2] //= 200
    return image


def four_kinds() -> tuple[Stored, list[bytes]]:
    """Return a raw and an lz4 payload, one in tiles of two groups and one in tiles of one; and their bytes."""
    flat = np.arange(3000, dtype=np.uint8) // 7
    image = picture(150, 140, 1, np.uint8)
    small = picture(50, 37, 3, np.uint16)
    parts = [
        (encode_many(flat, np.array([3000]), "raw"), (1, 1, 1, 8)),
        (encode_many(flat, np.array([3000]), "lz4"), (1, 1, 1, 8)),
        (encode_tiled(image, "lz4"), (150, 140, 1, 8)),
        (encode_tiled(small, "lz4"), (50, 37, 3, 16)),
    ]
    stored = store(parts)
    assert stored.codec.tolist() == [CODEC_RAW, CODEC_LZ4, CODEC_TILES, CODEC_TILES]
    assert stored.num_tiles(2) == 90
    return stored, [flat.tobytes(), flat.tobytes(), *(i.transpose(2, 0, 1).tobytes() for i in (image, small))]


@settings(max_examples=40)
@given(
    images=st.lists(
        st.tuples(
            st.integers(1, 40),
            st.integers(1, 40),
            st.sampled_from([1, 3]),
            st.sampled_from([np.uint8, np.uint16]),
            st.booleans(),
            st.sampled_from(["raw", "lz4"]),
        ),
        min_size=1,
        max_size=5,
    ),
    order=st.lists(st.integers(0, 4), max_size=8),
    verify=st.booleans(),
)
def test_any_order_of_any_payloads_decodes_into_its_places(images: list[Any], order: list[int], verify: bool) -> None:
    rows = [i % len(images) for i in order]
    parts, expected = [], []
    for height, width, channels, dtype, is_tiled, codec in images:
        image = picture(height, width, channels, dtype)
        encoded = encode_tiled(image, codec) if is_tiled else encode_image(image, codec, TILE)
        parts.append((encoded, (height, width, channels, 8 * image.itemsize)))
        expected.append(image.transpose(2, 0, 1).tobytes())
    status, _, values = store(parts).read(rows, verify=verify)
    assert status == OK
    assert values == [expected[row] for row in rows]


@settings(max_examples=60)
@given(
    st.data(),
    st.sampled_from([1, 3]),
    st.sampled_from([np.uint8, np.uint16]),
    st.sampled_from(["raw", "lz4"]),
)
def test_a_window_equals_the_slice(data: st.DataObject, channels: int, dtype: Any, codec: str) -> None:
    height, width = data.draw(st.integers(1, 240)), data.draw(st.integers(1, 240))  # up to four groups
    top, left = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
    bottom, right = data.draw(st.integers(top + 1, height)), data.draw(st.integers(left + 1, width))
    image = picture(height, width, channels, dtype)
    payload = encode_tiled(image, codec)
    expected = image[top:bottom, left:right].transpose(2, 0, 1).tobytes()
    out = np.full(len(expected) + 2 * GUARD, MARK, np.uint8)
    scratch = np.empty(TILE * TILE * 6, np.uint8)
    status = read_window(
        mapped(payload.data), 0, payload.data.size, payload.checksum[0], payload.codec[0], True,
        (height, width, channels, image.itemsize), TILE, (top, bottom, left, right), out[GUARD:-GUARD],
        NOWHERE, scratch, NOWHERE,
    )  # fmt: skip
    assert status == OK
    assert out[GUARD:-GUARD].tobytes() == expected
    assert (out[:GUARD] == MARK).all()
    assert (out[-GUARD:] == MARK).all()


def test_a_window_reads_the_groups_of_its_tiles_alone() -> None:
    image = picture(400, 400, 1)  # 25 tiles in a row, 625 in 10 groups
    payload = encode_tiled(image, "raw")
    head, count = covered_nbytes(625), 625
    assert (payload.data.size, head) == (table_nbytes(count) + image.size, 80)

    def read(place: int) -> int:
        data = payload.data.copy()
        data[place] ^= 1
        out = np.zeros(2 * TILE * TILE, np.uint8)
        status: int = read_window(
            mapped(data), 0, data.size, payload.checksum[0], payload.codec[0], True, (400, 400, 1, 1), TILE,
            (0, 2 * TILE, 12 * TILE, 13 * TILE), out, NOWHERE, np.empty(TILE * TILE * 6, np.uint8), NOWHERE,
        )  # fmt: skip
        if status == OK:
            assert out.tobytes() == image[: 2 * TILE, 12 * TILE : 13 * TILE].tobytes()
        return status

    # Tiles 12 and 37, both of the first group: its entries, the place before them and the one after them, all sums.
    assert {read(place) for place in range(head + 4 + 12 * 64)} == {BAD_CHECKSUM}
    body = table_nbytes(count)
    assert {read(place) for place in range(head + 4 + 12 * 64, body)} == {OK}
    tile = TILE * TILE
    for number in (12, 37):
        assert {read(body + number * tile), read(body + (number + 1) * tile - 1)} == {BAD_CHECKSUM}
    assert {read(body + number * tile) for number in range(64) if number not in (12, 37)} == {OK}


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("row", [0, 1, 2, 3])
def test_hostile_bytes_never_write_outside(row: int, verify: bool) -> None:
    sound, _ = four_kinds()
    rng = np.random.default_rng(row)
    at, nbytes = int(sound.offset[row]), int(sound.stored[row])
    statuses = set()
    for _ in range(400):
        hostile, _ = four_kinds()
        table = table_nbytes(hostile.num_tiles(row)) if row >= 2 else nbytes
        place = at + rng.integers(0, rng.choice([nbytes, table, min(nbytes, 16)]), rng.integers(1, 9))
        hostile.data[place] = rng.choice([rng.integers(0, 256, len(place)), np.full(len(place), 255)])
        hostile.rehash()
        status, failed, _ = hostile.read([row], verify=verify)
        statuses.add(status)
        assert status == OK or failed == 0
    # Checksums were made to match, but for those of single tiles, which stand in the table.
    tiled = {BAD_CHECKSUM, BAD_TILES} if verify else {OK, BAD_LZ4, BAD_TILES}
    # Sums of groups were made to match again, wherever they were changed alone.
    assert statuses - {OK} == [set(), {BAD_LZ4}, tiled - {OK}, tiled - {OK}][row]


@pytest.mark.parametrize("seed", range(4))
def test_hostile_index_columns_never_write_outside(seed: int) -> None:
    rng = np.random.default_rng(seed)
    extreme = np.array([0, 1, 7, 255, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1])
    for _ in range(300):
        hostile, _ = four_kinds()
        row = int(rng.integers(4))
        columns = [hostile.stored, hostile.codec, *hostile.geometry]
        for column in rng.permutation(len(columns))[: rng.integers(1, 4)]:
            value = rng.choice(np.append(extreme, int(columns[column][row]) + rng.integers(-3, 4)))
            columns[column][row] = np.int64(value).astype(columns[column].dtype)
        hostile.offset[row] += rng.choice([0, 0, 1, -(2**40), 2**40])
        hostile.read([row], verify=bool(rng.integers(2)))


@pytest.mark.parametrize("row", [0, 1, 2, 3])
def test_each_damage_has_its_status(row: int) -> None:
    def changed(**columns: Any) -> int:
        stored, _ = four_kinds()
        for name, value in columns.items():
            getattr(stored, name)[row] = value
        status, failed, _ = stored.read([0, 1, 2, 3])
        assert failed == row
        return status

    assert changed(checksum=1) == BAD_CHECKSUM
    assert changed(offset=-1) == OUT_OF_BOUNDS
    assert changed(offset=10**9) == OUT_OF_BOUNDS
    assert changed(stored=2**32 - 1) == OUT_OF_BOUNDS
    if row < 2:
        assert changed(codec=9) == BAD_CODEC
    if row == 0:
        assert changed(raw=2999) == OUT_OF_BOUNDS
    if row == 1:
        assert changed(raw=2999) == BAD_LZ4
    if row >= 2:
        assert changed(raw=9) == CHANGED
        assert changed(stored=3) == BAD_TILES


@given(st.binary(max_size=300), st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300)), max_size=6))
def test_hash_many_is_the_checksum_of_each_part(data: bytes, parts: list[tuple[int, int]]) -> None:
    slices = [data[a : a + n] for a, n in parts]
    start = np.array([min(a, len(data)) for a, _ in parts], np.int64)
    out = np.empty(len(parts), np.uint64)
    hash_many(np.frombuffer(data, np.uint8), start, np.array([len(s) for s in slices], np.int64), out)
    assert out.tolist() == [checksum(s) for s in slices]


@pytest.mark.parametrize(("start", "end"), [(0, 1), (500, 0), (2**31, 2**31 + 9), (2**32 - 1 - 500, 0)])
def test_a_tile_that_the_table_puts_outside_of_its_payload_is_refused(start: int, end: int) -> None:
    payload = encode_tiled(np.zeros((TILE, 2 * TILE, 3), np.uint8), "lz4")
    table, body = read_table(payload.data.tobytes(), 2)
    # Wraps around, as an attacker may have it.
    ends = tuple((place + more) % 2**32 for place, more in zip(table.ends, (start, end), strict=True))
    behind = bytes(1000)  # the bytes after it in the file
    data = np.frombuffer(replace(table, ends=ends).to_bytes() + body + behind, np.uint8)
    status = read_window(
        mapped(data), 0, payload.data.size, payload.checksum[0], payload.codec[0], False, (TILE, 2 * TILE, 3, 1), TILE,
        (0, TILE, TILE, 2 * TILE), np.empty(TILE * TILE * 3, np.uint8), NOWHERE,
        np.empty(TILE * TILE * 3, np.uint8), NOWHERE,
    )  # fmt: skip
    assert status == BAD_TILES


def test_a_tile_that_does_not_fit_the_scratch_is_refused() -> None:
    payload = encode_tiled(np.zeros((TILE, TILE, 3), np.uint8), "lz4")
    out = np.empty(TILE * TILE * 3, np.uint8)
    for room, expected in ((out.size, OK), (out.size - 1, CHANGED), (0, CHANGED)):
        status = read_window(
            mapped(payload.data), 0, payload.data.size, payload.checksum[0], payload.codec[0], True,
            (TILE, TILE, 3, 1), TILE, (0, TILE, 0, TILE), out, NOWHERE, np.empty(room, np.uint8), NOWHERE,
        )  # fmt: skip
        assert status == expected


@given(st.binary(max_size=400), st.lists(st.tuples(st.integers(0, 400), st.integers(0, 200)), max_size=6))
def test_pieces_of_a_file_are_hashed(data: bytes, pieces: list[tuple[int, int]]) -> None:
    inside = [piece for piece in pieces if sum(piece) <= len(data)]
    array = np.frombuffer(data, np.uint8)
    outside = [(len(data) - 3, 4), (-1, 1), (2**62, 2**62), (0, -1)]
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        home = np.full(len(data) + GUARD, MARK, np.uint8)
        for handle in (mapped(array), (0, len(data), file.fileno(), 0, 0)):
            start, nbytes = np.array(inside, np.int64).reshape(-1, 2).T.copy()
            sums = np.zeros(len(inside) + 1, np.uint64)
            assert hash_pieces(handle, start, nbytes, home.ctypes.data, sums) == len(inside)
            assert sums.tolist() == [*(checksum(data[at : at + count]) for at, count in inside), 0]
            for wrong in outside:
                start, nbytes = np.array([*inside, wrong], np.int64).T.copy()
                assert hash_pieces(handle, start, nbytes, home.ctypes.data, sums) == len(inside)
        for at, count in inside:
            assert home[at : at + count].tobytes() == data[at : at + count]
        assert (home[len(data) :] == MARK).all()
