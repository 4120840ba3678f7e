"""Recoded JPEGs: the pixels of libjpeg for any window, the files back byte for byte, and no harm from damaged ones."""

from __future__ import annotations

import contextlib
import hashlib
import io
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
import skimage.data
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from test_kernels_jpeg import decoded, encoded, files, reference

import lmdbloader
from lmdbloader import LMDBDataset
from lmdbloader.errors import FormatError
from lmdbloader.format.codecs import pack_jpeg, unpack_jpeg
from lmdbloader.kernels import entries

PHOTOGRAPHS = [skimage.data.astronaut(), skimage.data.coffee(), skimage.data.chelsea(), skimage.data.rocket()]
PAGE = Path(__file__).parents[1] / "docs" / "reference" / "format.md"
GUARD, MARK = 4096, 0xA5


def recoded(file: bytes, *, orientation: int = 1, fast: bool = True) -> bytes | None:
    """Return the payload of a file; None if the kernels do not decode it."""
    with Image.open(io.BytesIO(file)) as image:
        raw_nbytes = image.width * image.height * len(image.getbands())
    payloads = pack_jpeg(file, orientation, raw_nbytes, fast=fast)
    return None if payloads is None else payloads.data.tobytes()


def is_recoded(payload: bytes | None) -> bool:
    return payload is not None and payload.endswith(b"FAST")


def coefficients(file: bytes) -> np.ndarray:
    """Return the coefficients of a file's blocks (n, 64), in zigzag order."""
    source, work = np.frombuffer(file, np.uint8), np.empty(entries.jpeg_room(len(file), 0, 0), np.uint8)
    at = work.ctypes.data
    number, step = entries.count_entries(source, at)
    blocks = np.zeros((entries.count_blocks(at) + 1, 64), np.int16)
    entries.scan(source, step, at, np.empty(8 * number, np.uint8), blocks.ctypes.data)
    return blocks[:-1]


@settings(max_examples=150)
@given(files(), st.data())
def test_every_window_equals_libjpegs_and_the_file_comes_back(file: bytes, data: st.DataObject) -> None:
    expected = reference(file)
    channels, height, width = expected.shape
    payload = recoded(file)
    assert payload is not None
    assert unpack_jpeg(payload) == file
    for _ in range(3):
        top, left = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
        bottom, right = data.draw(st.integers(top + 1, height)), data.draw(st.integers(left + 1, width))
        for window in ((top, bottom, left, right), (0, height, 0, width)):
            found = decoded(payload, (height, width, channels), window)
            np.testing.assert_array_equal(found, expected[:, window[0] : window[1], window[2] : window[3]])


@pytest.mark.parametrize("quality", [5, 30, 75, 92, 100])
@pytest.mark.parametrize("subsampling", [0, 1, 2, "grey"])
def test_photographs_are_recoded_in_no_more_bytes(quality: int, subsampling: Any) -> None:
    for number, photograph in enumerate(PHOTOGRAPHS):
        pixels = np.ascontiguousarray(photograph[: 300 + number, : 371 + number])
        options = {} if subsampling == "grey" else {"subsampling": subsampling}
        file = encoded(pixels[..., 0] if subsampling == "grey" else pixels, quality=quality, **options)
        payload, expected = recoded(file), reference(file)
        assert is_recoded(payload) or quality in (5, 100), f"photograph {number}"
        assert payload is not None
        assert unpack_jpeg(payload) == file
        channels, height, width = expected.shape
        for window in ((0, height, 0, width), (17, 140, 33, 365), (290, 300, 0, 5)):
            found = decoded(payload, (height, width, channels), window)
            np.testing.assert_array_equal(found, expected[:, window[0] : window[1], window[2] : window[3]])


def with_codes(file: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """Return a file with its coded bytes changed."""
    at = file.index(b"\xff\xda")
    at += 2 + int.from_bytes(file[at + 2 : at + 4], "big")
    return file[:at] + change(file[at:-2]) + file[-2:]


def zoo() -> dict[str, bytes]:
    """Return odd files by name."""
    photograph = PHOTOGRAPHS[0][:150, :203]
    plain = encoded(photograph, quality=85)
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = encoded(photograph, quality=85, exif=exif, comment=b"a comment")
    cmyk = io.BytesIO()
    Image.fromarray(photograph).convert("CMYK").save(cmyk, "JPEG")
    restarts = encoded(photograph, quality=85, restart_marker_blocks=3)
    return {
        "plain": plain,
        "optimized": encoded(photograph, quality=85, optimize=True),
        "turned": turned,
        "restarts": restarts,
        "restarts in rows": encoded(photograph, quality=85, restart_marker_rows=1),
        "bytes behind the end": plain + b"\0" * 100 + plain,
        "fill bytes before the end": plain[:-2] + b"\xff\xff" + plain[-2:],
        "fill bytes before a marker": restarts.replace(b"\xff\xd0", b"\xff\xff\xd0", 1),
        "padded with zeros": with_codes(plain, lambda codes: codes[:-1] + bytes([codes[-1] & 0xF0])),
        "another height": plain.replace(b"\x00\x96\x00\xcb", b"\x00\x91\x00\xcb"),
        "one pixel": encoded(photograph[:1, :1], quality=85),
        "one row": encoded(photograph[:1], quality=85),
        "one column": encoded(photograph[:, :1], quality=85),
        "noise of quality 100": encoded(
            np.random.default_rng(0).integers(0, 256, (90, 120, 3)).astype(np.uint8), quality=100, subsampling=0
        ),
        "one color": encoded(np.full((300, 500, 3), 77, np.uint8), quality=85),
        "progressive": encoded(photograph, quality=85, progressive=True),
        "kept as RGB": encoded(photograph, quality=85, keep_rgb=True),
        "CMYK": cmyk.getvalue(),
        "4:1:1": simplejpeg.encode_jpeg(np.ascontiguousarray(photograph), colorsubsampling="411"),
        "cut short": plain[:-300],
    }


UNKNOWN = {"kept as RGB", "CMYK", "4:1:1", "cut short"}


@pytest.mark.parametrize("name", zoo())
def test_odd_files_come_back_or_are_left_to_others(name: str) -> None:
    file = zoo()[name]
    payload = recoded(file)
    assert (payload is None) == (name in UNKNOWN)
    if payload is not None:
        assert unpack_jpeg(payload) == file
        with_table = recoded(file, fast=False)
        if name == "progressive":
            assert with_table is None  # see test_jpeg_progressive
            return
        assert with_table is not None
        assert len(payload) <= len(with_table)
        with Image.open(io.BytesIO(file)) as image:
            shape, window = (image.height, image.width, 3), (0, image.height, 0, image.width)
        np.testing.assert_array_equal(decoded(payload, shape, window), decoded(with_table, shape, window))


@pytest.mark.parametrize(
    "options", [{}, {"subsampling": 0}, {"quality": 30, "restart_marker_rows": 1}, {"grey": 1}, {"progressive": 1}]
)
def test_the_documented_decoder_finds_the_same_coefficients(options: dict[str, Any]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    (block,) = (block for block in blocks if "def decode_coefficients" in block)
    names: dict[str, Any] = {"np": np, "struct": struct}
    exec(block, names)
    photograph = PHOTOGRAPHS[1][:120, :250]
    file = encoded(photograph[..., 0] if "grey" in options else photograph, **{"quality": 97, **options})
    payload = recoded(file)
    assert payload is not None
    assert is_recoded(payload)
    found = names["decode_coefficients"](payload)
    np.testing.assert_array_equal(found.reshape(-1, 64), coefficients(file))


def test_the_bytes_of_a_payload_stay_the_same() -> None:
    file = (Path(skimage.data.__file__).parent / "rocket.jpg").read_bytes()
    payload = recoded(file)
    assert payload is not None
    assert is_recoded(payload)
    assert hashlib.sha256(payload).hexdigest()[:32] == "cab8d0617a9149387c7d5d18abb7e136"


@settings(max_examples=300)
@given(st.integers(0, 3), st.data())
def test_damage_writes_nothing_outside_of_the_buffers(number: int, data: st.DataObject) -> None:
    photograph = PHOTOGRAPHS[number][:90, :130]
    options = [{}, {"subsampling": 0}, {"quality": 50, "subsampling": 1}, {"restart_marker_blocks": 2}][number]
    file = encoded(photograph[..., 1] if number == 3 else photograph, **options)
    whole = recoded(file)
    assert whole is not None
    payload, (footer, head) = bytearray(whole), (len(whole) - 16, 700)
    for _ in range(data.draw(st.integers(1, 4))):
        where = data.draw(st.sampled_from([(0, head), (head, footer), (footer, footer + 11), (footer - 60, footer)]))
        payload[data.draw(st.integers(where[0], where[1] - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del payload[head : data.draw(st.integers(head, footer))]
    channels = 1 if number == 3 else 3
    decoded(bytes(payload), (90, 130, channels), (3, 88, 7, 130))
    source = np.frombuffer(bytes(payload), np.uint8)
    out = np.full(len(file) + 2 * GUARD, MARK, np.uint8)
    room = entries.jpeg_room(max(source.size, len(file)), 0, 0)
    work = np.full(room + 2 * GUARD, MARK, np.uint8)
    at = source.ctypes.data
    entries.restore(at, source.size, work[GUARD:].ctypes.data, out[GUARD : GUARD + len(file)])
    for guarded in (out, work):
        assert (guarded[:GUARD] == MARK).all() and (guarded[-GUARD:] == MARK).all()
    with contextlib.suppress(FormatError):
        unpack_jpeg(bytes(payload))


def test_a_length_that_no_file_can_have_is_refused() -> None:
    payload = recoded(zoo()["plain"])
    assert payload is not None
    with pytest.raises(FormatError, match="its footer says that the file has"):
        unpack_jpeg(payload[:-16] + struct.pack("<I", 2**32 - 1) + payload[-12:])


def test_a_dataset_has_recoded_files_by_default(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    for name, file in zoo().items():
        if name != "cut short":
            (folder / f"{name.replace(':', '')}.jpg").write_bytes(file)
    datasets = {}
    for code in ("fast", "file"):
        lmdbloader.convert(folder, tmp_path / code, layout="images", jpeg_code=code)
        datasets[code] = LMDBDataset(tmp_path / code)
        stored = [datasets[code].reader.stored_bytes("image", i)[-4:] for i in range(len(datasets[code]))]
        assert (b"FAST" in [bytes(end) for end in stored]) == (code == "fast")
        lmdbloader.extract(tmp_path / code, tmp_path / f"{code} files")
        for file in folder.iterdir():
            assert (tmp_path / f"{code} files" / file.name).read_bytes() == file.read_bytes()
    for a, b in zip(datasets["fast"], datasets["file"], strict=True):
        np.testing.assert_array_equal(a.image, b.image)
    lmdbloader.merge([tmp_path / "fast", tmp_path / "file"], tmp_path / "merged", prefix_sources=True)
    merged = LMDBDataset(tmp_path / "merged")
    np.testing.assert_array_equal(merged[0].image, merged[len(merged) // 2].image)
    assert not lmdbloader.verify(tmp_path / "merged").advice


@pytest.mark.parametrize("mode", ["jpg", "smart", "proportion", "original"])
def test_every_write_mode_recodes_its_jpegs(tmp_path: Path, mode: str) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    for number, photograph in enumerate(PHOTOGRAPHS):
        (folder / f"{number}.jpg").write_bytes(encoded(photograph, quality=95))
    options = {"smart": {"smart_threshold": 1000}, "proportion": {"compress_probability": 1.0}}
    how: dict[str, Any] = options.get(mode, {})
    for code in ("fast", "file"):
        lmdbloader.convert(folder, tmp_path / code, layout="images", write_mode=mode, jpeg_code=code, **how)
        reader = LMDBDataset(tmp_path / code).reader
        magic = b"FAST" if code == "fast" else b"SEEK"
        assert [bytes(reader.stored_bytes("image", i)[-4:]) for i in range(4)] == [magic] * 4
    for a, b in zip(LMDBDataset(tmp_path / "fast"), LMDBDataset(tmp_path / "file"), strict=True):
        np.testing.assert_array_equal(a.image, b.image)
