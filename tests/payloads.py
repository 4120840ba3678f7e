"""Datasets of payloads made by hand: sound ones of every codec, and such as an attacker makes, with valid checksums."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import lmdbloader
from lmdbloader.format.codecs import Payloads, checksum, encode_image, encode_jpeg, encode_many, pack_file, pack_jpeg
from lmdbloader.format.layout import Field, make_field
from lmdbloader.format.manifest import Description
from lmdbloader.store import Chunk, Work, Written, encode_blocks, join

TILE = 64
#: Of `one_of_each`: which fields there are, and their kinds.
EACH = {
    "raw": "image", "lz4": "image", "tiles": "image", "delta": "image", "delta_tiles": "image",
    "jpeg": "image", "recoded": "image", "made": "image", "png": "image",
    "array": "array", "packed": "array", "bytes": "bytes", "json": "json",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stored:
    """One payload as it is stored.

    Attributes:
        data: Its bytes.
        raw_nbytes: Its length once decoded.
        codec: Its number.
        checksum: None where it is that of `data`.
        shape: (height, width, channels) of an image.
        bits: Of an image's values.
        type: Of an array.
    """

    data: bytes
    raw_nbytes: int
    codec: int = 0
    checksum: int | None = None
    shape: tuple[int, int, int] = (0, 0, 0)
    bits: int = 8
    type: str = ""


def write_payloads(path: Path, kinds: Mapping[str, Any], rows: Sequence[Mapping[str, Stored]]) -> Path:
    """Write a dataset whose sample i was made from "i.png"."""
    fields = [make_field(name, kind) for name, kind in kinds.items()]
    payloads, columns = {}, {}
    for f in fields:
        stored = [row[f.name] for row in rows]
        payloads[f.name] = Payloads(
            np.frombuffer(b"".join(s.data for s in stored), np.uint8),
            np.array([len(s.data) for s in stored]),
            np.array([s.raw_nbytes for s in stored]),
            np.array([checksum(s.data) if s.checksum is None else s.checksum for s in stored], np.uint64),
            np.array([s.codec for s in stored], np.uint8),
        )
        if f.kind == "image":
            for k, part in enumerate(("height", "width", "channels")):
                columns[f"{f.name}.{part}"] = np.array([s.shape[k] for s in stored])
            columns[f"{f.name}.bits"] = np.array([s.bits for s in stored])
        elif f.kind == "array":
            columns[f"{f.name}.type"] = [s.type for s in stored]
    zeros = np.zeros(len(rows), np.int64)
    columns |= {"source": [f"{i}.png" for i in range(len(rows))], "top": zeros, "left": zeros}
    chunk = Chunk(len(rows), payloads, columns)
    write_chunks(path, fields, [chunk], with_source=True)
    return path


def write_chunks(
    path: Path,
    fields: Sequence[Field],
    chunks: Iterable[Chunk],
    *,
    with_source: bool = False,
    map_nbytes: int = 2**24,
    made_by: Mapping[str, Any] | None = None,
) -> Written:
    """Write a dataset of one part."""
    description = Description(tuple(fields), with_source, {}, made_by or {})
    work = Work(path)
    work.begin({})
    with work.part(0, description, map_nbytes=map_nbytes) as writer:
        for chunk in chunks:
            writer.add(chunk, encode_blocks(chunk, fields, with_source=with_source))
        facts = work.complete(0, writer, {})
    return join(work, [facts], description)


def photograph(height: int, width: int, channels: int = 3, *, seed: int = 0) -> np.ndarray:
    """Return pixels (H, W, C) that compress a little."""
    noise = np.random.default_rng(seed).integers(0, 30, (height, width, channels))
    return (noise + np.arange(width)[:, None] * 200 // width).astype(np.uint8)


def as_stored(payloads: Payloads, pixels: np.ndarray | None = None, **more: Any) -> Stored:
    """Return the one payload of an encoding."""
    shape = (0, 0, 0) if pixels is None else pixels.shape
    return Stored(
        payloads.data.tobytes(), int(payloads.raw_nbytes[0]), int(payloads.codec[0]), int(payloads.checksum[0]),
        shape, 8 if pixels is None else 8 * pixels.itemsize, **more,
    )  # fmt: skip


def kept_jpeg(pixels: np.ndarray, *, orientation: int = 1, fast: bool = False, **options: Any) -> Stored:
    """Return a JPEG file with its seek table, or recoded; pixels as the file has them."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", **options)
    payloads = pack_jpeg(file.getvalue(), orientation, pixels.nbytes, fast=fast)
    assert payloads is not None
    assert payloads.data[-4:].tobytes() == (b"FAST" if fast else b"SEEK")
    upright = pixels.shape if orientation < 5 else (pixels.shape[1], pixels.shape[0], pixels.shape[2])
    return replace(as_stored(payloads, pixels), shape=upright)


def one_of_each(seed: int = 0) -> dict[str, Stored]:
    """Return a payload of every codec and kind of field, see EACH."""
    small, large = photograph(40, 52, seed=seed), photograph(330, 300, seed=seed)
    png = io.BytesIO()
    Image.fromarray(small).save(png, "PNG")
    array = np.arange(seed, seed + 900, dtype=np.float32).view(np.uint8)
    return {
        "raw": as_stored(encode_image(small, "raw", TILE), small),
        "lz4": as_stored(encode_image(small // 40, "lz4", TILE), small),
        "tiles": as_stored(encode_image(large // 10, "lz4", TILE), large),
        "delta": as_stored(encode_image(small // 2, "delta", TILE), small),
        "delta_tiles": as_stored(encode_image(large // 2, "delta", TILE), large),
        "jpeg": kept_jpeg(photograph(200, 240, seed=seed), quality=80),
        "recoded": kept_jpeg(photograph(200, 240, seed=seed), quality=80, fast=True),
        "made": as_stored(encode_jpeg(photograph(100, 90, seed=seed), 80), photograph(100, 90)),
        "png": as_stored(pack_file(png.getvalue(), small.nbytes), small),
        "array": as_stored(encode_many(array, np.array([array.size]), "raw"), type="float32[30,30]"),
        "packed": as_stored(
            encode_many(np.zeros(3600, np.uint8), np.array([3600]), "lz4"), type="float32[900]"
        ),
        "bytes": as_stored(encode_many(np.frombuffer(b"some bytes", np.uint8), np.array([10]), "raw")),
        "json": as_stored(encode_many(np.frombuffer(b'{"a": [1, 2]}', np.uint8), np.array([13]), "raw")),
    }  # fmt: skip


def footer(payload: bytes) -> tuple[int, int, int, int]:
    """Return (bytes of the file, number of entries, MCUs from one to the next, orientation) of a JPEG payload."""
    return struct.unpack_from("<IIHB", payload, len(payload) - 16)


def write_columns(folder: Path, count: int) -> Path:
    """Write samples of two images, an int, a float, a text and an array; those of a field have one shape."""
    rng = np.random.default_rng(3)
    samples = [
        {
            "image": rng.integers(0, 256, (6, 4, 3), dtype=np.uint8),
            "depth": rng.integers(0, 65536, (3, 5), dtype=np.uint16),
            "number": i,
            "weight": i / 3,
            "name": f"n{i}",
            "vector": rng.standard_normal(4).astype(np.float32),
        }
        for i in range(count)
    ]
    lmdbloader.write(samples, folder)
    return folder
