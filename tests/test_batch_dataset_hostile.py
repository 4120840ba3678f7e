"""Payloads of an attacker, with valid checksums: our error or pixels, and nothing is read or written outside."""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from damage import change_index
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from payloads import TILE, Stored, footer, kept_jpeg, one_of_each, photograph, write_payloads
from tile_tables import covered_nbytes, read_table, sign_tiles
from windows import read_window

from lmdbloader import LMDBDataset, Loader
from lmdbloader import transforms as T
from lmdbloader.errors import CorruptError, FormatError, OptionError
from lmdbloader.format.codecs import checksum
from lmdbloader.format.layout import CODEC_JPEG
from lmdbloader.kernels.entries import jpeg_room
from lmdbloader.store import Reader

# A kernel that writes beyond its buffers would write here.
GUARD = 4096


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Stored]:
    return one_of_each()


def read_everything(path: Path) -> None:
    """Read the only image in every way; each gives pixels or CorruptError."""
    for io in ("mmap", "pread"):
        ds = LMDBDataset(path, io=io)  # type: ignore[arg-type]
        _, height, width = ds.reader.image_shape("image", 0)
        for number in range(4):
            try:
                if number == 0:
                    ds[0]
                elif number == 1:
                    ds.crop(0, top=height // 3, left=width // 3, height=height // 3, width=width // 4)
                else:
                    moved = T.CenterCrop(min(height, width, 32)) if number == 2 else T.Resize((9, 9))
                    list(Loader(ds, 1, shuffle=True, num_threads=1, transforms=[moved]))
            except CorruptError as error:
                assert (error.sample, error.field, error.source) == (0, "image", "0.png")


def write_image(path: Path, stored: Stored) -> Path:
    return write_payloads(path, {"image": "image"}, [{"image": stored}])


def decode_between_guards(stored: Stored, window: tuple[int, int, int, int]) -> int:
    """Decode a window of a JPEG with guard bytes around every buffer; return the status."""
    height, width, channels = stored.shape
    top, bottom, left, right = window
    nbytes = (bottom - top) * (right - left) * channels
    room = jpeg_room(len(stored.data), height, width)
    work, out = (np.full(GUARD + size + GUARD, 0xA5, np.uint8) for size in (room, nbytes))
    data = np.frombuffer(stored.data, np.uint8)
    nowhere = np.empty(0, np.uint8)
    status = read_window(
        (data.ctypes.data, len(data), -1, 0, 0), 0, len(data), np.uint64(checksum(stored.data)), np.uint8(CODEC_JPEG),
        True, (*stored.shape, 1), 64, window, out[GUARD : GUARD + nbytes], nowhere, nowhere, work[GUARD : GUARD + room],
    )  # fmt: skip
    for memory in (work, out):
        assert (memory[:GUARD] == 0xA5).all() and (memory[-GUARD:] == 0xA5).all()
    return int(status)


jpegs = [
    kept_jpeg(photograph(90, 130), quality=60),
    kept_jpeg(photograph(90, 130), quality=60, subsampling=0, restart_marker_rows=1),
    kept_jpeg(photograph(70, 50), quality=90, subsampling=1, orientation=6),
    kept_jpeg(photograph(40, 200, 1)[:, :, 0][:, :, None].repeat(3, 2), quality=30, orientation=3),
]
places = st.one_of(st.integers(0, 2**32 - 1), st.sampled_from([0, 1, 2**25 - 1, 2**63, 2**64 - 1, 2**28]))


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(number=st.integers(0, len(jpegs) - 1), data=st.data())
def test_a_hostile_seek_table_or_file_stays_inside_of_its_buffers(number: int, data: st.DataObject) -> None:
    jpeg = jpegs[number]
    payload = bytearray(jpeg.data)
    file_nbytes, entries, _, _ = footer(jpeg.data)
    for _ in range(data.draw(st.integers(1, 4))):
        what = data.draw(st.sampled_from(["entry", "entry", "offset", "footer", "file", "header", "size"]))
        if what in ("entry", "offset"):
            at = file_nbytes + 8 * data.draw(st.integers(0, entries - 1))
            entry = data.draw(st.integers(0, 2**64 - 1))
            if what == "offset":  # somewhere else in the file, with the rest as it was
                (entry,) = struct.unpack_from("<Q", payload, at)
                entry = entry & ~(2**28 - 1) | data.draw(st.integers(0, min(2**28 - 1, 8 * file_nbytes)))
            struct.pack_into("<Q", payload, at, entry)
        elif what == "footer":
            kind, at = data.draw(st.sampled_from([("<I", 16), ("<I", 12), ("<H", 8), ("B", 6), ("B", 5)]))
            most = 2 ** (8 * struct.calcsize(kind)) - 1
            struct.pack_into(kind, payload, len(payload) - at, min(data.draw(places), most))
        elif what == "size":
            cut = data.draw(st.integers(0, len(payload)))
            del payload[: len(payload) - cut]
        else:
            end = file_nbytes if what == "file" else 700
            if payload:
                payload[data.draw(st.integers(0, min(end, len(payload)) - 1))] = data.draw(st.integers(0, 255))
        if len(payload) < len(jpeg.data):
            break
    height, width, _ = jpeg.shape
    top, left = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
    window = top, data.draw(st.integers(top + 1, height)), left, data.draw(st.integers(left + 1, width))
    for each in (window, (0, height, 0, width)):
        assert decode_between_guards(replace(jpeg, data=bytes(payload)), each) in (0, 1, 6)


def with_footer(payload: bytes, nbytes: int, entries: int, step: int, orientation: int) -> bytes:
    return payload[:-16] + struct.pack("<IIHBx4s", nbytes, entries, step, orientation, b"SEEK")


def entry_at(payload: bytes, number: int, entry: int) -> bytes:
    at = footer(payload)[0] + 8 * number
    return payload[:at] + struct.pack("<Q", entry) + payload[at + 8 :]


@pytest.mark.parametrize(
    "change",
    [
        lambda p: with_footer(p, 2**32 - 1, 2**29 + 1, 4, 1),  # sums that wrap around 32 bits
        lambda p: with_footer(p, footer(p)[0], footer(p)[1], 0, 1),
        lambda p: with_footer(p, footer(p)[0], footer(p)[1], 65535, 1),
        lambda p: with_footer(p, footer(p)[0] - 8, footer(p)[1] + 1, footer(p)[2], 1),
        lambda p: with_footer(p, len(p) - 16, 0, footer(p)[2], 1),
        lambda p: with_footer(p, *footer(p)[:3], 6),  # turned, so that it has another shape
        lambda p: p.replace(b"\xff\xdb\0\x43\1", b"\xff\xdb\0\x43\3"),  # no quantization for color
        lambda p: entry_at(p, 0, 0),
        lambda p: entry_at(p, 0, 2**64 - 1),
        lambda p: entry_at(p, 4, footer(p)[0]),  # where the second row begins
        lambda p: p[:-16],
        lambda p: p[-16:],
        lambda p: b"",
    ],
)
def test_a_jpeg_whose_table_cannot_be_right_is_damaged(
    sound: dict[str, Stored], tmp_path: Path, change: Callable[[bytes], bytes]
) -> None:
    stored = replace(sound["jpeg"], data=change(sound["jpeg"].data), checksum=None)
    if len(stored.data) * 512 < stored.raw_nbytes:
        with pytest.raises(FormatError, match="which no payloads have"):
            Reader(write_image(tmp_path / "d", stored))
        return
    ds = LMDBDataset(write_image(tmp_path / "d", stored))
    with pytest.raises(CorruptError, match="its JPEG data, or their seek table, does not decode"):
        ds[0]
    read_everything(tmp_path / "d")


@pytest.mark.parametrize("codec", ["jpeg", "tiles", "lz4", "delta", "delta_tiles", "png"])
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=6))
def test_any_payload_gives_pixels_or_our_error(
    sound: dict[str, Stored], tmp_path_factory: pytest.TempPathFactory, codec: str, changes: list[tuple[float, int]]
) -> None:
    stored = sound[codec]
    payload = bytearray(stored.data)
    for place, value in changes:
        at = int(place**3 * len(payload))  # most of them where the tables and headers are
        payload[-1 - at if codec == "delta" else at] = value
    sums = None
    if "tiles" in codec:
        tiles = -(-stored.shape[0] // TILE) * -(-stored.shape[1] // TILE)
        payload = bytearray(sign_tiles(bytes(payload), tiles))
        sums = checksum(bytes(payload[: covered_nbytes(tiles)]))
    path = tmp_path_factory.mktemp("hostile") / "d"
    read_everything(write_image(path, replace(stored, data=bytes(payload), checksum=sums)))


@pytest.mark.parametrize(
    "ends",
    [
        lambda ends, body: [2**32 - 1] * len(ends),
        lambda ends, body: [body] * len(ends),  # one tile that is longer than its pixels
        lambda ends, body: ends[::-1],
        lambda ends, body: [0] * len(ends),
        lambda ends, body: [*ends[:-1], body + 1],
        lambda ends, body: [*ends[:3], ends[2] - 1, *ends[4:]],
    ],
)
def test_a_tile_table_that_cannot_be_right_is_damaged(
    sound: dict[str, Stored], tmp_path: Path, ends: Callable[[list[int], int], list[int]]
) -> None:
    stored = sound["tiles"]
    count = -(-stored.shape[0] // TILE) * -(-stored.shape[1] // TILE)
    table, body = read_table(stored.data, count)
    data = replace(table, ends=tuple(ends(list(table.ends), len(body)))).to_bytes() + body
    data = sign_tiles(data, count)
    sums = checksum(data[: covered_nbytes(count)])
    path = write_image(tmp_path / "d", replace(stored, data=data, checksum=sums))
    with pytest.raises(CorruptError, match=r"its tile table is damaged|its lz4 block does not decompress"):
        LMDBDataset(path)[0]
    read_everything(path)


@pytest.mark.parametrize(
    "block",
    [
        b"\xff" * 60,  # a literal that goes on and on
        b"\x0f\x00\x00" + b"\xff" * 20,  # a match before the beginning
        b"\x1fa\x01\x00" + b"\xff" * 200 + b"\x00",  # more than there is room for
        b"\x10a",  # less than it says
        b"\x00" * 50,
    ],
)
def test_an_lz4_block_that_does_not_give_its_size_is_damaged(tmp_path: Path, block: bytes) -> None:
    image = Stored(block, 40 * 12, 1, shape=(40, 12, 1))
    blob = Stored(block, 100, 1)
    path = write_payloads(tmp_path / "d", {"image": "image", "blob": "bytes"}, [{"image": image, "blob": blob}])
    for io in ("mmap", "pread"):
        for name in ("image", "blob"):
            ds = LMDBDataset(path, [name], io=io)  # type: ignore[arg-type]
            with pytest.raises(CorruptError, match="its lz4 block does not decompress"):
                ds[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"[" * 100_000, "cannot be read as JSON"),
        (b"9" * 5000, None),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "cannot be read as JSON"),
        (b"\xff\xfe\xff", "cannot be read as JSON"),
        (b"", "cannot be read as JSON"),
    ],
)
def test_json_that_does_not_read_is_our_error(tmp_path: Path, text: bytes, expected: str | None) -> None:
    path = write_payloads(tmp_path / "d", {"notes": "json"}, [{"notes": Stored(text, len(text))}])
    try:
        LMDBDataset(path)[0]
    except CorruptError as error:
        assert "field 'notes' of sample 0 (from 0.png): cannot be read as JSON" in str(error)
        assert (error.sample, error.field, error.source) == (0, "notes", "0.png")
        return
    assert expected is None


@pytest.mark.parametrize("shapes", [[(65000, 8), (8, 65000)], [(1, 1), (5000, 5000)], [(9, 8)], [(300, 7), (20, 100)]])
def test_scratch_is_for_the_largest_image_not_for_one_as_high_and_wide_as_any(
    tmp_path: Path, shapes: list[tuple[int, int]]
) -> None:
    rows = [{"image": Stored(bytes(h * w * 3 // 512 + 1), h * w * 3, 3, shape=(h, w, 3))} for h, w in shapes]
    reader = Reader(write_payloads(tmp_path / "d", {"image": "image"}, rows))
    needed = max(jpeg_room(len(row["image"].data), h, w) for row, (h, w) in zip(rows, shapes, strict=True))
    assert needed <= reader.jpeg_room("image") <= 1.5 * needed + 10**6
    for row in range(len(rows)):
        with pytest.raises(CorruptError, match="does not decode"):
            reader.read_image("image", row)


@pytest.mark.parametrize("transforms", [[], [T.RandomHorizontalFlip()]], ids=["stored", "flipped"])
def test_no_memory_is_taken_for_more_pixels_than_there_can_be(tmp_path: Path, transforms: list[T.Transform]) -> None:
    rows = [{"image": Stored(bytes(3), 3, shape=(side, side, 3))} for side in (1, 46_000)]
    dataset = LMDBDataset(write_payloads(tmp_path / "d", {"image": "image"}, rows))
    with pytest.raises(CorruptError, match=r"'image' of sample 1 .* contradicts the manifest"):
        next(iter(Loader(dataset.select([1] * 64), 64, shuffle=False, transforms=transforms)))


def bomb(nbytes: int) -> bytes:
    """Return an lz4 block that decodes to so many bytes: a literal, a match of it, and twelve literals."""
    times, rest = divmod(nbytes - 1 - 12 - 4 - 15, 255)
    return b"\x1fA\x01\x00" + b"\xff" * times + bytes([rest, 12 << 4]) + b"A" * 12


@pytest.mark.parametrize("codec", ["raw", "lz4", "tiles", "delta", "delta_tiles", "jpeg", "png"])
def test_what_is_changed_in_place_after_it_was_checked_is_refused(
    sound: dict[str, Stored], tmp_path: Path, codec: str
) -> None:
    rows = [{"image": sound[codec], "more": Stored(bytes(300_000), 300_000)}]
    path = write_payloads(tmp_path / "d", {"image": "image", "more": "bytes"}, rows)
    dataset = LMDBDataset(path, ["image"])
    loaders = [
        Loader(dataset, 1, shuffle=False, num_threads=1, transforms=transforms)
        for transforms in ([], [T.CenterCrop(16)], [T.Resize((9, 9))], [T.Resize(8), T.CenterCrop(8)])
    ]
    reads: list[Callable[[], np.ndarray]] = [
        lambda: dataset[0].image.numpy(),
        lambda: dataset._many([0])[0].image.numpy(),
        *(lambda loader=loader: next(iter(loader)).image.numpy() for loader in loaders),  # type: ignore[misc]
    ]
    expected = [read() for read in reads]
    at = int(dataset.reader.index.arrays["image.offset"][0])
    block = bomb(2**15 * 700 * 3)
    large = {"height": 2**15, "width": 700, "raw_nbytes": 2**15 * 700 * 3}
    changes: list[dict[str, int]] = [
        {**large, "codec": 1, "stored_nbytes": len(block), "checksum": checksum(block)},
        {**large, "codec": 0, "stored_nbytes": large["raw_nbytes"]},
        *({**large, "codec": number} for number in (2, 3, 4, 5)),
        *({"codec": number} for number in range(6) if number != sound[codec].codec),
        *({name: value} for name in ("height", "width") for value in (0, 1, 2**16, 2**32 - 1)),
        *({"raw_nbytes": value} for value in (0, 1, 2**32 - 1)),
        *({"offset": value} for value in (-1, -(2**40), 2**62)),
        {"channels": 1}, {"bits": 16}, {"bits": 0}, {"channels": 0}, {"stored_nbytes": 2**32 - 1}, {"codec": 255},
    ]  # fmt: skip
    for changed in changes:
        with open(path / "data.mdb", "r+b") as file:
            kept = file.seek(at) and file.read(len(block))
            file.seek(at)
            file.write(block if "checksum" in changed else kept)
        before = change_index(path, 0, {f"image.{name}": value for name, value in changed.items()})
        for read in reads:
            with pytest.raises((CorruptError, OptionError)):
                read()
        with suppress(CorruptError, OptionError):  # its memory is made for the image as it is now
            dataset.crop(0, top=1, left=2, height=9, width=8)
        change_index(path, 0, before)
        with open(path / "data.mdb", "r+b") as file:
            file.seek(at)
            file.write(kept)
    for read, pixels in zip(reads, expected, strict=True):
        np.testing.assert_array_equal(read(), pixels)
