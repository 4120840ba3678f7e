"""The JPEG kernels give libjpeg's pixels, bit for bit, for any window; damaged and unsupported files are safe."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps
from skimage import data as photographs
from windows import read_window

from lmdbloader.kernels.codec_numbers import CODEC_JPEG, OK, SEEK_ENTRY_NBYTES, SEEK_FOOTER_NBYTES
from lmdbloader.kernels.entries import count_entries, jpeg_room, scan

MARK, GUARD = 0xA5, 4096
ORIENTATION_TAG = 0x0112
PHOTOGRAPHS = [photographs.astronaut(), photographs.coffee(), photographs.camera()]


def packed(file: bytes, step: int, orientation: int = 1) -> bytes | None:
    """Return a file with its seek table, None if the kernels refuse it."""
    source = np.frombuffer(file, np.uint8)
    work = np.empty(jpeg_room(len(file), 0, 0), np.uint8)
    at = np.uint64(work.ctypes.data)
    most = int(count_entries(source, at)[0]) * 8  # with the least step
    table = np.empty(most * SEEK_ENTRY_NBYTES, np.uint8)
    status, number, *_ = scan(source, step, at, table, 0)
    if status:
        return None
    counts = len(file).to_bytes(4, "little") + int(number).to_bytes(4, "little") + step.to_bytes(2, "little")
    return file + table[: number * SEEK_ENTRY_NBYTES].tobytes() + counts + bytes([orientation, 0]) + b"SEEK"


def decoded(payload: bytes, image: tuple[int, int, int], window: tuple[int, int, int, int]) -> np.ndarray | None:
    """Return a window (C, h, w) of a payload, None if it does not decode; no other memory is written."""
    top, bottom, left, right = window
    nbytes = (bottom - top) * (right - left) * image[2]
    out = np.full(nbytes + 2 * GUARD, MARK, np.uint8)
    room = jpeg_room(len(payload), image[0], image[1])
    work = np.full(room + 2 * GUARD, MARK, np.uint8)
    source = np.frombuffer(payload, np.uint8)
    none = np.empty(0, np.uint8)
    status = read_window(
        (source.ctypes.data, len(payload), -1, 0, 0), 0, len(payload), 0, CODEC_JPEG, False, (*image, 1), 1, window,
        out[GUARD:-GUARD], none, none, work[GUARD:-GUARD],
    )  # fmt: skip
    for guarded in (out, work):
        assert (guarded[:GUARD] == MARK).all() and (guarded[-GUARD:] == MARK).all(), "written outside of its room"
    return out[GUARD : GUARD + nbytes].reshape(image[2], bottom - top, right - left) if status == OK else None


def reference(file: bytes) -> np.ndarray:
    """Return all of a file as libjpeg decodes it, (C, H, W)."""
    grey = Image.open(io.BytesIO(file)).mode == "L"
    pixels: np.ndarray = simplejpeg.decode_jpeg(file, "GRAY" if grey else "RGB")
    return pixels.transpose(2, 0, 1)


def encoded(pixels: np.ndarray, **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", **options)
    return file.getvalue()


@st.composite
def pictures(draw: st.DrawFn, most: int = 90) -> np.ndarray:
    """Draw a piece of a photograph, or noise."""
    height, width = draw(st.integers(1, most)), draw(st.integers(1, most))
    if draw(st.booleans()):
        shape = (height, width) if draw(st.booleans()) else (height, width, 3)
        noise: np.ndarray = np.random.default_rng(draw(st.integers(0, 99))).integers(0, 256, shape).astype(np.uint8)
        return noise
    photograph = draw(st.sampled_from(PHOTOGRAPHS))
    top = draw(st.integers(0, photograph.shape[0] - height))
    left = draw(st.integers(0, photograph.shape[1] - width))
    return np.ascontiguousarray(photograph[top : top + height, left : left + width])


@st.composite
def files(draw: st.DrawFn) -> bytes:
    pixels = draw(pictures())
    options: dict[str, Any] = {"quality": draw(st.integers(1, 100)), "optimize": draw(st.booleans())}
    if pixels.ndim == 3:
        options["subsampling"] = draw(st.sampled_from([0, 1, 2]))
    restarts = draw(st.sampled_from(["none", "rows", "blocks"]))
    if restarts != "none":
        options[f"restart_marker_{restarts}"] = draw(st.integers(1, 9 if restarts == "blocks" else 2))
    return encoded(pixels, **options)


@settings(max_examples=150)
@given(files(), st.integers(1, 9), st.data())
def test_every_window_equals_libjpegs_whole(file: bytes, step: int, data: st.DataObject) -> None:
    expected = reference(file)
    channels, height, width = expected.shape
    payload = packed(file, step)
    assert payload is not None
    windows = [(0, height, 0, width)]
    for _ in range(3):
        top, left = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
        bottom, right = data.draw(st.integers(top + 1, height)), data.draw(st.integers(left + 1, width))
        windows.append((top, bottom, left, right))
    for top, bottom, left, right in windows:
        found = decoded(payload, (height, width, channels), (top, bottom, left, right))
        np.testing.assert_array_equal(found, expected[:, top:bottom, left:right])


@given(pictures(40), st.integers(1, 8), st.data())
def test_images_are_turned_as_exif_says(pixels: np.ndarray, orientation: int, data: st.DataObject) -> None:
    exif = Image.Exif()
    exif[ORIENTATION_TAG] = orientation
    file = encoded(pixels, exif=exif)
    upright = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(file))))
    upright = upright[None] if upright.ndim == 2 else upright.transpose(2, 0, 1)
    _, height, width = upright.shape
    top, left = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
    bottom, right = data.draw(st.integers(top + 1, height)), data.draw(st.integers(left + 1, width))
    payload = packed(file, 2, orientation)
    assert payload is not None
    found = decoded(payload, (height, width, len(upright)), (top, bottom, left, right))
    np.testing.assert_array_equal(found, upright[:, top:bottom, left:right])


def with_bytes(file: bytes, at: int, value: int) -> bytes:
    return file[:at] + bytes([value]) + file[at + 1 :]


def test_other_kinds_are_left_to_others() -> None:
    rgb = PHOTOGRAPHS[0][:64, :64]
    cmyk = io.BytesIO()
    Image.fromarray(rgb).convert("CMYK").save(cmyk, "JPEG")
    refused = {
        "progressive": encoded(rgb, progressive=True),
        "cmyk": cmyk.getvalue(),
        "4:1:1": simplejpeg.encode_jpeg(np.ascontiguousarray(rgb), colorsubsampling="411"),
        "kept as rgb": encoded(rgb, keep_rgb=True),
        "png": b"\x89PNG\r\n\x1a\n" + bytes(64),
        "nothing": b"",
        "two bytes": b"\xff\xd8",
    }
    assert [kind for kind, file in refused.items() if packed(file, 4) is not None] == []


@pytest.mark.parametrize("options", [{}, {"restart_marker_rows": 1}])
def test_a_file_that_is_cut_short_or_has_too_much_is_refused(options: dict[str, int]) -> None:
    file = encoded(PHOTOGRAPHS[0][:64, :64], **options)
    assert packed(file, 4) is not None
    # Any bytes may follow the "end of image" marker; those before it belong to the image.
    assert packed(file + b"tail", 4) is not None
    assert [cut for cut in range(len(file)) if packed(file[:cut], 4) is not None] == []
    assert packed(file[:-2] + b"\x00\x00" + file[-2:], 4) is None


@pytest.mark.parametrize("subsampling", [0, 1, 2])
def test_odd_scan_headers_and_strays_before_restart_markers_lose_nothing(subsampling: int) -> None:
    sound = encoded(PHOTOGRAPHS[0][:70, :90], subsampling=subsampling, restart_marker_blocks=3)
    scan = sound.index(b"\xff\xda") + 14
    markers = [at for at in range(scan, len(sound) - 1) if sound[at] == 0xFF and 0xD0 <= sound[at + 1] <= 0xD7]
    odd = with_bytes(sound, scan - 2, 0)
    for at in reversed(markers):
        odd = odd[:at] + b"\x15\xff\0\0" + odd[at:]
    payload = packed(odd, 2)
    assert payload is not None
    for top, bottom, left, right in ((0, 70, 0, 90), (40, 59, 37, 80)):
        found = decoded(payload, (70, 90, 3), (top, bottom, left, right))
        np.testing.assert_array_equal(found, reference(sound)[:, top:bottom, left:right])
    at = markers[3]
    assert packed(sound[:at] + b"\x15" * 12 + sound[at:], 2) is None  # at one place alone, they come from damage


@pytest.mark.parametrize("number", [0, 1])
def test_a_quantization_that_is_missing_is_damage(number: int) -> None:
    file = encoded(PHOTOGRAPHS[0][:64, :64])
    at = file.index(bytes([0xFF, 0xDB, 0, 67, number]))
    assert packed(file, 4) is not None
    # Another number, where nobody looks for it; the segment gone; one with nothing in it.
    assert packed(with_bytes(file, at + 4, 3), 4) is None
    assert packed(file[:at] + file[at + 69 :], 4) is None
    assert packed(file[:at] + b"\xff\xdb\0\2" + file[at + 69 :], 4) is None
    twice = file[:at] + file[at : at + 69] + file[at:]
    assert np.array_equal(decoded(packed(twice, 4) or b"", (64, 64, 3), (0, 64, 0, 64)), reference(file))


@settings(max_examples=300)
@given(files(), st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=5))
def test_damage_is_never_unsafe(file: bytes, changes: list[tuple[float, int]]) -> None:
    channels, height, width = reference(file).shape
    payload = packed(file, 2)
    assert payload is not None
    for place, value in changes:
        payload = with_bytes(payload, int(place * len(payload)), value)
    decoded(payload, (height, width, channels), (0, height, 0, width))  # this test is about its guards
    packed(payload[:-SEEK_FOOTER_NBYTES], 2)


def test_a_payload_of_another_size_is_refused() -> None:
    payload = packed(encoded(PHOTOGRAPHS[0][:64, :48]), 4)
    assert payload is not None
    window = (0, 8, 0, 8)
    assert decoded(payload, (64, 48, 3), window) is not None
    for image in ((64, 49, 3), (63, 48, 3), (48, 64, 3), (64, 48, 1)):
        assert decoded(payload, image, window) is None
    assert decoded(payload[:-1], (64, 48, 3), window) is None
    assert decoded(b"", (64, 48, 3), window) is None
