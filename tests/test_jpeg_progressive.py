"""Progressive JPEGs are recoded, whatever their scans are, and come back byte for byte; or they stay as they are."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_jpeg_recoding import GUARD, MARK, PHOTOGRAPHS, coefficients, is_recoded, recoded
from test_kernels_jpeg import decoded, encoded, pictures, reference

from lmdbloader.errors import FormatError
from lmdbloader.format import jpeg_payload
from lmdbloader.format.codecs import unpack_jpeg
from lmdbloader.kernels import entries

# Components, first and last coefficient, bit that is known, bit that the scan adds.
Scan = tuple[tuple[int, ...], int, int, int, int]


class Codes:
    """The bits of a scan; codes are the symbols, with 4 bits (DC) or 9."""

    def __init__(self) -> None:
        self.bits: list[str] = []

    def put(self, value: int, nbits: int) -> None:
        self.bits.append(f"{value & ((1 << nbits) - 1):0{nbits}b}" if nbits else "")

    def value(self, value: int) -> None:
        nbits = abs(value).bit_length()
        self.put(value - (value < 0), nbits)

    def ended(self) -> bytes:
        return coded("".join(self.bits))


def coded(bits: str) -> bytes:
    bits += "1" * (-len(bits) % 8)
    return int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\0")


def segment(marker: int, body: bytes) -> bytes:
    return bytes([0xFF, marker]) + struct.pack(">H", 2 + len(body)) + body


def header(names: bytes, first: int, last: int, high: int, low: int) -> bytes:
    tables = b"".join(bytes([name, 0]) for name in names)
    return segment(0xDA, bytes([len(names)]) + tables + bytes([first, last, high << 4 | low]))


class Runs:
    """The ends of blocks of a scan, and the bits of refinement that wait for them, as in libjpeg."""

    def __init__(self, codes: Codes) -> None:
        self.codes, self.run, self.waiting = codes, 0, ""

    def flush(self) -> None:
        if self.run:
            nbits = self.run.bit_length() - 1
            self.codes.put(nbits << 4, 9)
            self.codes.put(self.run, nbits)
            self.codes.bits.append(self.waiting)
        self.run, self.waiting = 0, ""

    def end(self, bits: str = "") -> None:
        self.run, self.waiting = self.run + 1, self.waiting + bits
        if self.run == 0x7FFF or len(self.waiting) > 937:
            self.flush()


def put_others(codes: Codes, runs: Runs, block: np.ndarray, first: int, last: int, low: int) -> None:
    zeros = 0
    for value in block[first : last + 1].tolist():
        value = (abs(value) >> low) * (-1 if value < 0 else 1)
        if value == 0:
            zeros += 1
            continue
        runs.flush()
        for _ in range(zeros // 16):
            codes.put(0xF0, 9)
        codes.put(zeros % 16 << 4 | abs(value).bit_length(), 9)
        codes.value(value)
        zeros = 0
    if zeros:
        runs.end()


def put_refined(codes: Codes, runs: Runs, block: np.ndarray, first: int, last: int, low: int) -> None:
    sizes = [abs(value) >> low for value in block.tolist()]
    newest = max([k for k in range(first, last + 1) if sizes[k] == 1], default=0)
    zeros, bits = 0, ""
    for k in range(first, last + 1):
        if sizes[k] == 0:
            zeros += 1
            continue
        while zeros > 15 and k <= newest:
            runs.flush()
            codes.put(0xF0, 9)
            codes.bits.append(bits)
            zeros, bits = zeros - 16, ""
        if sizes[k] > 1:
            bits += str(sizes[k] & 1)
            continue
        runs.flush()
        codes.put(zeros << 4 | 1, 9)
        codes.put(int(block[k] > 0), 1)
        codes.bits.append(bits)
        zeros, bits = 0, ""
    if zeros or bits:
        runs.end(bits)


def units(size: tuple[int, int], sampling: list[tuple[int, int]], chosen: tuple[int, ...]) -> Iterator[list[Any]]:
    """Yield the (component, number in the order of baseline files) of blocks that come together in a scan."""
    most = sampling[0]
    down, across = (-(-side // (8 * n)) for side, n in zip(size, most, strict=True))
    begins = np.cumsum([0, *(h * w for h, w in sampling)]).tolist()
    if len(chosen) > 1:
        for mcu in range(down * across):
            yield [(c, mcu * begins[-1] + b) for c in chosen for b in range(begins[c], begins[c + 1])]
        return
    (c,), (h, w) = chosen, sampling[chosen[0]]
    for y in range(-(-size[0] * h // (8 * most[0]))):
        for x in range(-(-size[1] * w // (8 * most[1]))):
            yield [(c, (y // h * across + x // w) * begins[-1] + begins[c] + y % h * w + x % w)]


def transcoded(file: bytes, script: list[Scan], restarts: int = 0) -> bytes:
    """Return a baseline file as a progressive one with these scans, by a plain encoder."""
    blocks, frame = coefficients(file).astype(int), file.index(b"\xff\xc0")
    nbytes = int.from_bytes(file[frame + 2 : frame + 4], "big")
    height, width, components = struct.unpack(">HHB", file[frame + 5 : frame + 10])
    sampling = [divmod(file[frame + 11 + 3 * c], 16)[::-1] for c in range(components)]
    if components == 1:
        sampling = [(1, 1)]
    out = file[: frame + 1] + b"\xc2" + file[frame + 2 : frame + 2 + nbytes]
    for kind, length, count in ((0, 4, 12), (16, 9, 255)):
        out += segment(0xC4, bytes([kind, *(count * (k == length) for k in range(1, 17)), *range(count)]))
    out += segment(0xDD, struct.pack(">H", restarts))
    for chosen, first, last, high, low in script:
        out += header(bytes(file[frame + 10 + 3 * c] for c in chosen), first, last, high, low)
        codes = Codes()
        runs, levels = Runs(codes), [0] * components
        for number, unit in enumerate(units((height, width), sampling, chosen)):
            if restarts and number and number % restarts == 0:
                runs.flush()
                out += codes.ended() + bytes([0xFF, 0xD0 + (number // restarts - 1) % 8])
                codes.bits, levels = [], [0] * components
            for c, b in unit:
                level = int(blocks[b, 0]) >> low
                if first:
                    (put_refined if high else put_others)(codes, runs, blocks[b], first, last, low)
                elif high:
                    codes.put(level, 1)
                else:
                    codes.put(abs(level - levels[c]).bit_length(), 4)
                    codes.value(level - levels[c])
                    levels[c] = level
        runs.flush()
        out += codes.ended()
    return out + b"\xff\xd9"


@st.composite
def scripts(draw: st.DrawFn, components: int) -> list[Scan]:
    """Draw scans that have each bit of each coefficient once."""
    script: list[Scan] = []
    whole = tuple(range(components))
    groups = draw(st.sampled_from([[whole], [(c,) for c in whole], [whole[:1], whole[1:]], [whole[:2], whole[2:]]]))
    for chosen in (group for group in groups if group):
        lowest = draw(st.integers(0, 3))
        script.append((chosen, 0, 0, 0, lowest))
        script += [(chosen, 0, 0, low + 1, low) for low in reversed(range(lowest))]
    for c in whole:
        bounds = sorted(draw(st.sets(st.integers(2, 63), max_size=3)))
        bands = list(zip([1, *bounds], [*(bound - 1 for bound in bounds), 63], strict=True))
        lowest = draw(st.integers(0, 3))
        script += [((c,), *band, 0, lowest) for band in bands]
        for low in reversed(range(lowest)):  # other bands than before
            bands = [(1, 63)] if draw(st.booleans()) else bands
            script += [((c,), *band, low + 1, low) for band in bands]
    return script


def check(file: bytes, windows: list[tuple[int, int, int, int]]) -> None:
    """A progressive file is recoded, comes back, and has libjpeg's pixels."""
    payload, expected = recoded(file), reference(file)
    assert payload is not None
    assert is_recoded(payload)
    assert unpack_jpeg(payload) == file
    channels, height, width = expected.shape
    for top, bottom, left, right in [(0, height, 0, width), *windows]:
        found = decoded(payload, (height, width, channels), (top, bottom, left, right))
        np.testing.assert_array_equal(found, expected[:, top:bottom, left:right])


@settings(max_examples=150)
@given(pictures(), st.data())
def test_files_of_libjpeg_are_recoded(pixels: np.ndarray, data: st.DataObject) -> None:
    options: dict[str, Any] = {"quality": data.draw(st.integers(1, 100))}
    if pixels.ndim == 3:
        options["subsampling"] = data.draw(st.sampled_from([0, 1, 2]))
    restarts = data.draw(st.sampled_from(["none", "rows", "blocks"]))
    if restarts != "none":
        options[f"restart_marker_{restarts}"] = data.draw(st.integers(1, 9 if restarts == "blocks" else 2))
    height, width = pixels.shape[:2]
    top, left = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
    bottom, right = data.draw(st.integers(top + 1, height)), data.draw(st.integers(left + 1, width))
    check(encoded(pixels, progressive=True, **options), [(top, bottom, left, right)])


@settings(max_examples=200)
@given(pictures(60), st.data())
def test_files_with_any_scans_are_recoded(pixels: np.ndarray, data: st.DataObject) -> None:
    options = {"subsampling": data.draw(st.sampled_from([0, 1, 2]))} if pixels.ndim == 3 else {}
    file = encoded(pixels, quality=data.draw(st.sampled_from([10, 80, 100])), **options)
    script = data.draw(scripts(3 if pixels.ndim == 3 else 1))
    check(transcoded(file, script, data.draw(st.sampled_from([0, 0, 1, 5]))), [])


@pytest.mark.parametrize("quality", [5, 30, 75, 92, 100])
@pytest.mark.parametrize("subsampling", [0, 1, 2, "grey"])
def test_photographs_are_recoded(quality: int, subsampling: Any) -> None:
    for number, photograph in enumerate(PHOTOGRAPHS):
        pixels = np.ascontiguousarray(photograph[: 300 + number, : 371 + number])
        options = {} if subsampling == "grey" else {"subsampling": subsampling}
        pixels = pixels[..., 0] if subsampling == "grey" else pixels
        file = encoded(pixels, quality=quality, progressive=True, **options)
        check(file, [(17, 140, 33, 365), (290, 300, 0, 5)])


def test_the_longest_runs_of_blocks_come_back() -> None:
    check(encoded(np.full((1600, 1600), 77, np.uint8), progressive=True), [])
    # A few coefficients, and many bits of refinement that wait for the end of a run.
    noise = np.random.default_rng(0).integers(0, 256, (16, 16)).astype(np.uint8)
    check(encoded(np.tile(noise, (20, 20)), progressive=True, quality=90), [])


def test_a_file_made_by_hand() -> None:
    """Two gray blocks: 10, 0, -3, 2 and in place 40 5; 6 and in place 59 1."""
    tables = segment(0xC4, b"\0" + bytes([0, 2, 1, 0] + 12 * [0]) + bytes([2, 3, 0]))  # 00, 01, 100
    head = b"\xff\xd8" + segment(0xDB, b"\0" + bytes([1] * 64))
    head += segment(0xC2, bytes([8, 0, 8, 0, 16, 1, 1, 0x11, 0]))

    def scan(first: int, last: int, high: int, low: int, bits: str) -> bytes:
        return header(b"\1", first, last, high, low) + coded(bits.replace(" ", ""))

    # DC 5 and 3 above the lowest bit: 5 has 3 bits, the difference -2 two; then the lowest bits, 0 and 0.
    file = head + tables + scan(0, 0, 0, 1, "01 101  00 01") + scan(0, 0, 1, 0, "0 0")
    # AC above the lowest bit: past a zero -1, 1, past 36 zeros (sixteen twice, then four) 2; and an end of two blocks.
    symbols = bytes([0x11, 0x01, 0xF0, 0x42, 0x00, 0x10, 0xA1])
    tables = segment(0xC4, b"\x10" + bytes([0, 2, 3, 1, 1] + 11 * [0]) + symbols)
    # 11: 00, 01: 01, F0: 100, 42: 101, 00: 110, 10: 1110, A1: 11110
    file += tables + scan(1, 63, 0, 1, "00 0  01 1  100 100 101 10  1110 0")
    # Their lowest bits: 1 of -3, 0 of 2, 1 of 5 behind the end of the first block; in the second one, 1 past 58 zeros.
    file += scan(1, 63, 1, 0, "110 1 0 1  100 100 100 11110 1  110") + b"\xff\xd9"
    found = coefficients(file)
    expected = np.zeros((2, 64), int)
    expected[0, [0, 2, 3, 40]], expected[1, [0, 59]] = (10, -3, 2, 5), (6, 1)
    np.testing.assert_array_equal(found, expected)
    check(file, [(2, 5, 3, 12)])


def test_the_end_of_several_blocks_is_damage_in_a_baseline_file() -> None:
    head = b"\xff\xd8" + segment(0xDB, b"\0" + bytes([1] * 64)) + segment(0xC0, bytes([8, 0, 8, 0, 8, 1, 1, 0x11, 0]))
    head += segment(0xC4, b"\0" + bytes([1] + 15 * [0]) + b"\0")
    head += segment(0xC4, b"\x10" + bytes([0, 3, 1] + 13 * [0]) + bytes([0xF0, 0xD1, 0x10, 0x00]))
    for bits, is_sound in (("0 00 00 00 01 1 110", True), ("0 00 00 00 01 1 10", False), ("0 10", False)):
        file = head + header(b"\1", 0, 63, 0, 0) + coded(bits.replace(" ", "")) + b"\xff\xd9"
        assert (jpeg_payload.pack(file, 1, fast=True) is not None) == is_sound


def scan_bounds(file: bytes) -> list[int]:
    """Return where scans begin, with the tables before them, and where the last one ends."""
    at, begin = 2, 0
    bounds: list[int] = []
    while file[at + 1] != 0xD9:
        marker, end = file[at + 1], at + 2 + int.from_bytes(file[at + 2 : at + 4], "big")
        begin = begin or (at if marker in (0xC4, 0xDA) else 0)
        if marker == 0xDA:
            while file[end] != 0xFF or file[end + 1] == 0 or 0xD0 <= file[end + 1] <= 0xD7:
                end += 1
            bounds, begin = [*bounds, begin], 0
        at = end
    return [*bounds, at]


def test_files_of_which_bits_are_missing_or_come_twice_stay_as_they_are() -> None:
    file = encoded(PHOTOGRAPHS[0][:90, :130], progressive=True)
    bounds = scan_bounds(file)
    assert len(bounds) == 11
    scans = [file[a:b] for a, b in pairwise(bounds)]
    head, tail = file[: bounds[0]], file[bounds[-1] :]
    assert is_recoded(recoded(head + b"".join(scans) + tail))
    for k in range(len(scans)):
        assert recoded(head + b"".join(scans[:k] + scans[k + 1 :]) + tail) is None
        assert recoded(head + b"".join(scans[: k + 1] + scans[k:]) + tail) is None
    assert recoded(file[:-2]) is None
    comment = segment(0xFE, b"between the scans")
    check(head + comment.join(scans) + comment + tail + b"and behind the end", [])
    assert recoded(head + scans[0] + file[file.index(b"\xff\xdb") :][:69] + b"".join(scans[1:]) + tail) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda file: file.replace(b"\xff\xd0", b"\xff\xff\xd0", 1),
        lambda file: file.replace(b"\xff\xd1", b"\xff\xd2", 1),
        lambda file: file[:-2] + b"\0" + file[-2:],
        lambda file: file.replace(b"\xff\xc2\0\x11\x08", b"\xff\xc2\0\x11\x0c"),
        lambda file: file.replace(b"\xff\xc2\0\x11", b"\xff\xca\0\x11"),
    ],
)
def test_files_that_would_not_come_back_stay_as_they_are(change: Callable[[bytes], bytes]) -> None:
    file = encoded(PHOTOGRAPHS[0][:90, :130], progressive=True, restart_marker_blocks=4)
    check(file, [])
    assert change(file) != file
    assert jpeg_payload.pack(change(file), 1, fast=True) is None


def sources() -> list[bytes]:
    photograph = PHOTOGRAPHS[1][60:110, 200:270]
    kinds: list[dict[str, Any]] = [{}, {"subsampling": 0}, {"quality": 98}, {"restart_marker_blocks": 3}]
    files = [encoded(photograph, progressive=True, **kind) for kind in kinds]
    return [*files, encoded(photograph[..., 0], progressive=True, quality=20)]


@pytest.mark.parametrize("number", range(5))
def test_damaged_files_come_back_or_stay_as_they_are(number: int) -> None:
    file = sources()[number]
    random = np.random.default_rng(number)
    room = entries.jpeg_room(len(file), 0, 0)
    num_back = 0
    for turn in range(1500):
        damaged = bytearray(file[: random.integers(9, len(file))] if turn % 5 == 0 else file)
        for _ in range(random.integers(1, 4)):
            damaged[random.integers(2, len(damaged))] = random.choice([0, 0xFF, 0xDA, random.integers(0, 256)])
        source, work = np.frombuffer(bytes(damaged), np.uint8), np.full(room + 2 * GUARD, MARK, np.uint8)
        at = work[GUARD:].ctypes.data
        expected, step = entries.count_entries(source, at)
        num_blocks = entries.count_blocks(at) if expected else 0
        if 0 < num_blocks < 8 * len(damaged):
            blocks = np.zeros(64 * (num_blocks + 1) + 2 * GUARD, np.uint16)
            blocks[:GUARD] = blocks[-GUARD:] = MARK
            table = np.full(8 * expected + 2 * GUARD, MARK, np.uint8)
            entries.scan(source, step, at, table[GUARD:-GUARD], blocks[GUARD:].ctypes.data)
            for guarded in (blocks, table):
                assert (guarded[:GUARD] == MARK).all() and (guarded[-GUARD:] == MARK).all()
        assert (work[:GUARD] == MARK).all() and (work[-GUARD:] == MARK).all()
        if (found := jpeg_payload.pack(bytes(damaged), 1, fast=True)) is not None:
            num_back += 1
            assert unpack_jpeg(found[0].data) == damaged
    assert num_back < 1200


@settings(max_examples=300)
@given(st.integers(0, 4), st.data())
def test_damaged_payloads_write_nothing_outside_of_the_buffers(number: int, data: st.DataObject) -> None:
    file = sources()[number]
    payload = bytearray(recoded(file) or b"")
    behind = struct.unpack("<I", payload[-12:-8])[0]
    ends = (20, file.index(b"\xff\xda") + behind, len(payload) - 16, len(payload) - 5)
    for _ in range(data.draw(st.integers(1, 4))):
        where = data.draw(st.integers(0, 2))
        payload[data.draw(st.integers(ends[where], ends[where + 1] - 1))] = data.draw(st.integers(0, 255))
    source = np.frombuffer(bytes(payload), np.uint8)
    out = np.full(len(file) + 2 * GUARD, MARK, np.uint8)
    work = np.full(entries.jpeg_room(max(source.size, len(file)), 0, 0) + 2 * GUARD, MARK, np.uint8)
    at = work[GUARD:].ctypes.data
    num_blocks = entries.count_restored(source.ctypes.data, source.size, at)
    blocks = np.full(64 * min(num_blocks, 8 * source.size) + 2 * GUARD, MARK, np.uint16)
    entries.restore_scans(source.ctypes.data, source.size, at, blocks[GUARD:-GUARD], out[GUARD:-GUARD])
    entries.restore(source.ctypes.data, source.size, at, out[GUARD:-GUARD])
    for guarded in (out, work, blocks):
        assert (guarded[:GUARD] == MARK).all() and (guarded[-GUARD:] == MARK).all()
    with contextlib.suppress(FormatError):
        unpack_jpeg(bytes(payload))
    channels = 1 if number == 4 else 3
    decoded(bytes(payload), (50, 70, channels), (3, 41, 7, 70))
