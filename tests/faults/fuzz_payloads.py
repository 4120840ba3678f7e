"""Payloads of every codec, changed, between pages that nothing may touch; some of them through whole datasets."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.forbidden_pages import between_forbidden_pages

from .cases import Case, Wrong
from .forging import with_value
from .hostile import Copy, mutate, use

# The codec of images in tiles.
_TILED = 2

_MARK = 0xA5


@dataclass(frozen=True, slots=True)
class _Payload:
    """One payload, and all that an index says of it."""

    stored: bytes
    raw_nbytes: int
    codec: int
    geometry: tuple[int, int, int, int]
    tile: int


def prepare_payloads(paths: dict[str, str], folder: Path, seed: int) -> Case:
    """Return the case of one payload given to the kernel that reads all of them."""
    import numpy as np

    from lmdbloader.format.codecs import checksum
    from lmdbloader.format.layout import CODEC_FILE
    from lmdbloader.kernels import entries

    payloads = [payload for path in paths.values() for payload in _payloads(path) if payload.codec != CODEC_FILE]
    by_codec = {payload.codec: [p for p in payloads if p.codec == payload.codec] for payload in payloads}
    source, out, room, scratch, work = (_Walled() for _ in range(5))
    memory_file = os.memfd_create("payload")

    def case(number: int) -> str:
        rng = random.Random(f"{seed} payload {number}")
        payload = rng.choice(by_codec[rng.choice(sorted(by_codec))])
        stored = mutate(rng, payload.stored, _focus(payload))[: 2**21]
        height, width, channels, bits = payload.geometry
        raw_nbytes = payload.raw_nbytes
        if rng.random() < 0.2 and bits in (8, 16):  # another shape, as an index may state it
            height, width, channels = rng.randint(1, 400), rng.randint(1, 400), rng.choice((1, 3))
            raw_nbytes = height * width * channels * bits // 8
        at_end, by_descriptor = rng.random() < 0.5, rng.random() < 0.25
        data = source.place(len(stored), at_end)
        data[:] = np.frombuffer(stored, np.uint8)
        file = (data.ctypes.data, len(stored), -1, 0, 0)
        if by_descriptor:
            os.ftruncate(memory_file, 0)
            os.pwrite(memory_file, stored, 0)
            file = (0, len(stored), memory_file, 0, 0)
        target = out.place(raw_nbytes, at_end)
        hashed = stored[: _covered_nbytes(payload.codec, height, width, payload.tile)]
        columns = _columns(
            (0, len(stored), raw_nbytes, checksum(hashed), payload.codec), ("i8", "u4", "u4", "u8", "u1")
        )
        geometry = _columns((height, width, channels, bits), ("u4", "u4", "u1", "u1"))
        status = entries.gather(
            file, np.zeros(1, np.int64), columns, rng.random() < 0.3, geometry, payload.tile,
            np.empty((0, 4), np.int64), target, np.zeros(1, np.int64), np.array([raw_nbytes], np.int64),
            room.place(len(stored) * by_descriptor, at_end),
            scratch.place(payload.tile * payload.tile * 6, at_end),
            work.place(int(entries.jpeg_room(len(stored), height, width)), at_end), np.zeros(1, np.int64),
        )  # fmt: skip
        for walled in (out, room, scratch, work):
            walled.check()
        return "refused" if status else "read"

    return case


def _columns(values: tuple[int, ...], kinds: tuple[str, ...]) -> tuple[Any, ...]:
    """Return columns of an index that has one row."""
    import numpy as np

    return tuple(np.array([value], kind) for value, kind in zip(values, kinds, strict=True))


def _tables_nbytes(height: int, width: int, tile: int) -> tuple[int, int]:
    """Return the bytes of a table of tiles, and how many of them its checksum covers."""
    import numpy as np

    from lmdbloader.format.codecs import tile_table_nbytes

    num_tiles = np.array(-(-height // tile) * -(-width // tile))
    table, covered = tile_table_nbytes(num_tiles)
    return int(table), int(covered)


def _covered_nbytes(codec: int, height: int, width: int, tile: int) -> int | None:
    """Return how many of a payload's bytes the checksum in the index covers; None for all."""
    return _tables_nbytes(height, width, tile)[1] if codec == _TILED else None


def _focus(payload: _Payload) -> list[tuple[int, int]]:
    """Return where a payload says how it is to be read."""
    nbytes = len(payload.stored)
    if payload.codec == _TILED:
        return [(0, _tables_nbytes(*payload.geometry[:2], payload.tile)[0])]
    if payload.codec == 3:  # the file's head, the table behind it, its end
        return [(0, 700), (150, 700), (nbytes - 200, nbytes), (nbytes - 16, nbytes)]
    return [(0, 40), (nbytes - 40, nbytes)]


def _payloads(path: str) -> list[_Payload]:
    from lmdbloader.store import Reader

    reader = Reader(path)
    a, data = reader.index.arrays, reader.data_file.data
    found = []
    for f in reader.manifest.fields:
        if not f.is_payload:
            continue
        for row in range(len(reader)):
            at, nbytes = int(a[f"{f.name}.offset"][row]), int(a[f"{f.name}.stored_nbytes"][row])
            parts = ("height", "width", "channels", "bits")
            geometry = tuple(int(a[f"{f.name}.{part}"][row]) for part in parts) if f.kind == "image" else (1, 1, 1, 0)
            codec, raw_nbytes = int(a[f"{f.name}.codec"][row]), int(a[f"{f.name}.raw_nbytes"][row])
            stored = bytes(data[at : at + nbytes])
            found.append(_Payload(stored, raw_nbytes, codec, geometry, f.tile_size or 1))  # type: ignore[arg-type]
    return found


class _Walled:
    """Memory between two pages that end the process when they are touched."""

    def __init__(self) -> None:
        self._memory = between_forbidden_pages(1024)
        self._sides: list[Any] = []

    def place(self, nbytes: int, at_end: bool) -> Any:
        """Return memory (nbytes,) uint8 next to one of the pages; the bytes on its other side are marked."""
        # Scratch begins where every number may: eight bytes are a kernel's longest.
        first = (len(self._memory) - nbytes) // 8 * 8 if at_end else 0
        after = first + nbytes
        self._sides = [self._memory[max(first - 64, 0) : first], self._memory[after : after + 64]]
        for side in self._sides:
            side[:] = _MARK
        return self._memory[first:after]

    def check(self) -> None:
        """Raise `Wrong` if bytes next to the memory were written to."""
        if any((side != _MARK).any() for side in self._sides):
            raise Wrong("written outside of its memory")


def prepare_in_datasets(paths: dict[str, str], folder: Path, seed: int) -> Case:
    """Return the case of a dataset with one payload changed, checksums and digests made to fit."""
    from lmdbloader.format.codecs import checksum
    from lmdbloader.store import Reader

    copies = [Copy(Path(path), folder / name) for name, path in paths.items()]
    readers = [Reader(path) for path in paths.values()]
    for copy in copies:
        use(copy.path, batches=True)

    def case(number: int) -> str:
        rng = random.Random(f"{seed} dataset {number}")
        which = rng.randrange(len(copies))
        copy, reader = copies[which], readers[which]
        f = rng.choice([f for f in reader.manifest.fields if f.is_payload])
        a, row = reader.index.arrays, rng.randrange(len(reader))
        at, nbytes = int(a[f"{f.name}.offset"][row]), int(a[f"{f.name}.stored_nbytes"][row])
        if not nbytes:
            return "read"
        payload = mutate(rng, copy.data[at : at + nbytes], [(0, 64), (nbytes - 64, nbytes)])[:nbytes]
        payload = payload.ljust(nbytes, b"\0")
        hashed, codec = payload, int(a[f"{f.name}.codec"][row])
        if f.has_pixels:
            shape = (int(a[f"{f.name}.{side}"][row]) for side in ("height", "width"))
            hashed = payload[: _covered_nbytes(codec, *shape, 64)]
        column = next(c for c in copy.body["index"]["columns"] if c["name"] == f"{f.name}.checksum")
        index = with_value(copy.index, column, row, checksum(hashed))
        copy.write(index=index, data=copy.data[:at] + payload + copy.data[at + nbytes :])
        return use(copy.path, batches=number % 3 == 0)

    return case
