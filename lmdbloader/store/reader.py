"""Reads a finished dataset through its own memory map: no LMDB environment, no B-tree, nothing to fork or pickle."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lmdbloader.codecs import checksum
from lmdbloader.errors import CorruptError, FormatError, ImageError, OptionError
from lmdbloader.format import (
    CODEC_FILE,
    CODEC_JPEG,
    CODEC_TILES,
    DATA_FILE,
    FORMAT_NAME,
    INDEX_FILE,
    MANIFEST_FILE,
    PARTIAL_SUFFIX,
    Field,
    parse_array_type,
)
from lmdbloader.images import DecodePolicy, decode_image
from lmdbloader.manifest import MAX_MANIFEST_NBYTES, Manifest, parse_manifest
from lmdbloader.store.index import Index, map_open_file

I64 = npt.NDArray[np.int64]
_REASONS = {
    1: "its bytes lie outside of the file or have another length than the index says",
    2: "its checksum does not match: the stored bytes were damaged",
    3: "its lz4 block does not decompress",
    4: "its tile table is damaged",
    5: "its codec is unknown",
    6: "its JPEG data, or their seek table, does not decode",
}


def read_manifest(path: str | os.PathLike[str]) -> Manifest:
    """Return a dataset's manifest.

    Raises:
        FormatError: The folder is no finished dataset of this format version.
        FileNotFoundError: There is nothing at `path`.
    """
    folder = Path(path)
    if not folder.is_dir():
        partial = folder.with_name(folder.name + PARTIAL_SUFFIX)
        if partial.is_dir():
            raise FormatError(
                f"{folder}: its conversion is not finished ({partial} is there). Run the conversion again."
            )
        kind = "is a file, not a dataset folder" if folder.exists() else "there is no such folder"
        raise (FormatError if folder.exists() else FileNotFoundError)(
            f"{folder}: {kind}; expected a dataset made by lmdbloader."
        )
    if folder.name.endswith(PARTIAL_SUFFIX):
        raise FormatError(f"{folder}: is an unfinished conversion. Run the conversion again.")
    try:
        with open(folder / MANIFEST_FILE, "rb") as file:
            return parse_manifest(file.read(MAX_MANIFEST_NBYTES + 1), str(folder))
    except (FileNotFoundError, IsADirectoryError):
        what = "an LMDB, but not of ours" if (folder / DATA_FILE).exists() else "no dataset"
        raise FormatError(
            f"{folder}: has no {MANIFEST_FILE}, so it is {what} (a {FORMAT_NAME} dataset has {MANIFEST_FILE}, "
            f"{INDEX_FILE} and {DATA_FILE}). Make one with `lmdbloader convert`."
        ) from None


@cache
def _kernels() -> Any:
    """Return the kernels; numba is imported when the first payload is read."""
    from lmdbloader.kernels import gather

    return gather


class Reader:
    """Random access to the samples of one dataset.

    Pickles as its path; safe from several threads and across forks. Arrays that it returns own their memory.

    Attributes:
        path: Of the dataset, absolute.
        manifest: Its description.
        fields: Its fields by name.
        index: Its columns.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open a dataset.

        Raises:
            FileNotFoundError: There is nothing at `path`.
            FormatError: Not a finished dataset of this format version.
            CorruptError: A file is cut short or damaged.
        """
        self.path = Path(path).absolute()
        self.manifest = read_manifest(path)
        self.fields = {f.name: f for f in self.manifest.fields}
        data_path = self.path / DATA_FILE
        try:
            self._map, self._descriptor = map_open_file(data_path)
            weakref.finalize(self, os.close, self._descriptor)
            expected = self.manifest.sizes["data_nbytes"]
            if len(self._map) != expected:
                raise CorruptError(
                    f"{data_path}: {len(self._map)} bytes, expected {expected}: it is cut short or was changed. "
                    "Copy it again, or convert again."
                )
            self.index = Index(self.path, self.manifest, expected)
        except (FileNotFoundError, IsADirectoryError) as error:
            raise CorruptError(f"{error.filename}: is missing. Copy the dataset again, or convert again.") from error
        except KeyError as error:
            raise FormatError(f"{self.path / MANIFEST_FILE}: does not state {error}") from error
        self.data = np.frombuffer(self._map, np.uint8)
        self._thread = threading.local()
        self._gathered = {f.name: self._gather_arguments(f) for f in self.manifest.fields if f.is_payload}

    @property
    def descriptor(self) -> int:
        """A descriptor of the very file that is mapped, whatever lies under its name now; closed with the reader."""
        return self._descriptor

    def extents(self, fields: Sequence[str], rows: I64) -> tuple[I64, I64]:
        """Return where samples lie: the offset of the first payload (n,) and the bytes of all of them (n,)."""
        columns = [self._gathered[name][0] for name in fields if name in self._gathered]
        if not columns:
            return rows.copy(), np.ones(len(rows), np.int64)
        nbytes = sum((c[1][rows].astype(np.int64) for c in columns), np.zeros(len(rows), np.int64))
        return columns[0][0][rows], nbytes

    def file(self, descriptor: int = -1) -> tuple[int, int, int]:
        """Return what kernels read from: the map's address and bytes, and a descriptor of the file to use instead."""
        return self.data.ctypes.data, len(self.data), descriptor

    def _gather_arguments(self, f: Field) -> tuple[Any, Any, int, int]:
        """Return what the gather kernel needs of a field: index columns, geometry, tile side, bytes of one tile."""
        a = self.index.arrays
        parts = ("offset", "stored_nbytes", "raw_nbytes", "checksum", "codec")
        columns = tuple(a[f"{f.name}.{part}"] for part in parts)
        if f.kind != "image":  # only images have tiles; the kernel does not look at their geometry
            return columns, (columns[1], columns[1], columns[4], columns[4]), 1, 0
        geometry = tuple(a[f"{f.name}.{part}"] for part in ("height", "width", "channels", "bits"))
        tile = f.tile_size or 1
        tiled = bool((columns[4] == CODEC_TILES).any())
        return columns, geometry, tile, tile * tile * 3 * 2 * tiled

    def __len__(self) -> int:
        """Return the number of samples."""
        return self.manifest.num_samples

    def __getstate__(self) -> tuple[Path, str]:
        return self.path, self.manifest.manifest_digest

    def __setstate__(self, state: tuple[Path, str]) -> None:
        Reader.__init__(self, state[0])
        if self.manifest.manifest_digest != state[1]:
            raise CorruptError(
                f"{self.path}: was replaced by another dataset since this reader was pickled. Open it again."
            )

    def raw_nbytes(self, name: str, rows: I64) -> I64:
        """Return the decoded lengths (n,) of a payload field's values."""
        nbytes: I64 = self.index.arrays[f"{name}.raw_nbytes"][rows].astype(np.int64)
        return nbytes

    def read_into(
        self,
        name: str,
        rows: I64,
        out: npt.NDArray[np.uint8],
        start: I64,
        *,
        verify: bool = True,
        descriptor: int = -1,
    ) -> None:
        """Decode payloads into a buffer.

        Args:
            name: A payload field.
            rows: (n,) int64 sample numbers, each in range(len(self)).
            out: (m,) uint8.
            start: (n,) int64, where in `out` each payload's raw bytes begin.
            verify: Whether to check the checksums.
            descriptor: Of the open data file, to read from instead of the map.

        Raises:
            CorruptError: A payload is damaged; names the sample and its source.
        """
        columns, geometry, tile, scratch_nbytes = self._gathered[name]
        is_file = columns[4][rows] == CODEC_FILE
        if is_file.any():
            for row, at in zip(rows[is_file].tolist(), start[is_file].tolist(), strict=True):
                image = self.read_file(name, row, verify=verify, descriptor=descriptor)
                out[at : at + image.nbytes] = image.reshape(-1).view(np.uint8)
            rows, start = rows[~is_file], start[~is_file]
        scratch = np.empty(scratch_nbytes, np.uint8)
        room = np.empty(int(columns[1][rows].max()) if descriptor >= 0 and len(rows) else 0, np.uint8)
        failed = np.empty(1, np.int64)
        status = _kernels().gather(
            self.file(descriptor),
            rows,
            columns,
            verify,
            geometry,
            tile,
            out,
            start,
            room,
            scratch,
            self._jpeg_work(name),
            failed,
        )
        if status:
            raise self.damaged(name, int(rows[failed[0]]), status)

    def read_bytes(self, name: str, row: int, descriptor: int = -1) -> npt.NDArray[np.uint8]:
        """Return one payload's raw bytes (n,), read by a descriptor of the data file where there is one."""
        rows = np.array([row], np.int64)
        out = np.empty(int(self.raw_nbytes(name, rows)[0]), np.uint8)
        self.read_into(name, rows, out, np.zeros(1, np.int64), descriptor=descriptor)
        return out

    def image_shape(self, name: str, row: int) -> tuple[int, int, int]:
        """Return (C, H, W) of one stored image."""
        a = self.index.arrays
        return int(a[f"{name}.channels"][row]), int(a[f"{name}.height"][row]), int(a[f"{name}.width"][row])

    def image_dtype(self, name: str, row: int) -> np.dtype[Any]:
        """Return uint8 or uint16."""
        return np.dtype(np.uint16 if self.index.arrays[f"{name}.bits"][row] == 16 else np.uint8)

    def read_image(self, name: str, row: int) -> npt.NDArray[Any]:
        """Return one image, (C, H, W) uint8 or uint16."""
        return self.read_bytes(name, row).view(self.image_dtype(name, row)).reshape(self.image_shape(name, row))

    def read_array(self, name: str, row: int, descriptor: int = -1) -> npt.NDArray[Any]:
        """Return one n-dimensional array in its own dtype and shape, read as by `read_bytes`."""
        dtype, shape = parse_array_type(self.index.text(f"{name}.type", row))
        data = self.read_bytes(name, row, descriptor)
        kind = np.dtype(dtype).newbyteorder("<")
        if data.size != kind.itemsize * int(np.prod(shape, dtype=np.float64)):
            raise self.damaged(name, row, 1)
        return data.view(kind).reshape(shape)

    def read_crop(self, name: str, row: int, *, top: int, left: int, height: int, width: int) -> npt.NDArray[Any]:
        """Return a window of one image, (C, height, width); of a large one only the tiles it touches are read.

        Raises:
            OptionError: The window is not inside the image.
            CorruptError: A tile that it touches is damaged.
        """
        channels, full_height, full_width = self.image_shape(name, row)
        if min(top, left) < 0 or min(height, width) < 1 or top + height > full_height or left + width > full_width:
            raise OptionError(
                f"{self.where(name, row)}: a crop of {height}x{width} at row {top}, column {left} is not inside "
                f"the image of {full_height}x{full_width}"
            )
        a, dtype, tile = self.index.arrays, self.image_dtype(name, row), self.fields[name].tile_size or 0
        codec = a[f"{name}.codec"][row]
        if codec == CODEC_JPEG:
            out = np.empty((channels, height, width), dtype)
            status = _kernels().read_jpeg_window(
                self.file(), int(a[f"{name}.offset"][row]), int(a[f"{name}.stored_nbytes"][row]),
                a[f"{name}.checksum"][row], True, (full_height, full_width, channels),
                (top, top + height, left, left + width), out.reshape(-1).view(np.uint8), np.empty(0, np.uint8),
                self._jpeg_work(name),
            )  # fmt: skip
            if status:
                raise self.damaged(name, row, status)
            return out
        if codec != CODEC_TILES:
            whole = self.read_image(name, row)
            return np.ascontiguousarray(whole[:, top : top + height, left : left + width])
        out = np.empty((channels, height, width), dtype)
        scratch = np.empty(tile * tile * 6, np.uint8)
        status = _kernels().read_window(
            self.file(), int(a[f"{name}.offset"][row]), int(a[f"{name}.stored_nbytes"][row]),
            a[f"{name}.checksum"][row], True, (full_height, full_width, channels, dtype.itemsize), tile,
            (top, top + height, left, left + width), out.reshape(-1).view(np.uint8), np.empty(0, np.uint8), scratch,
        )  # fmt: skip
        if status:
            raise self.damaged(name, row, status)
        return out

    def jpeg_room(self, name: str) -> int:
        """Return how many bytes of scratch decoding any of a field's JPEGs takes, 0 where there are none."""
        columns, (height, width, _, _), _, _ = self._gathered[name]
        is_jpeg = columns[4] == CODEC_JPEG
        if self.fields[name].kind != "image" or not is_jpeg.any():
            return 0
        from lmdbloader.kernels.jpeg import jpeg_room

        # No image is higher than the highest and wider than the widest one: that takes some address space only.
        return int(jpeg_room(*(int(column[is_jpeg].max()) for column in (columns[1], height, width))))

    def _jpeg_work(self, name: str) -> npt.NDArray[np.uint8]:
        """Return this thread's scratch for decoding JPEGs of a field."""
        kept: dict[str, npt.NDArray[np.uint8]] = self._thread.__dict__
        if name not in kept:
            kept[name] = np.empty(self.jpeg_room(name), np.uint8)
        return kept[name]

    def read_file(self, name: str, row: int, *, verify: bool = True, descriptor: int = -1) -> npt.NDArray[Any]:
        """Return one image that is stored as a file of a kind that no kernel decodes, (C, H, W) uint8 or uint16.

        Raises:
            CorruptError: It is damaged, or decodes to something else than the index says.
        """
        channels, height, width = self.image_shape(name, row)
        data = self.stored_bytes(name, row, verify=verify, descriptor=descriptor)
        try:
            pixels = decode_image(data, DecodePolicy(max_pixels=height * width), name=self.where(name, row))
        except ImageError as error:
            raise self.corrupt(
                name, row, f"{error.reason}. Restore the dataset from a copy, or convert again."
            ) from error
        if pixels.shape != (height, width, channels) or pixels.dtype != self.image_dtype(name, row):
            raise self.corrupt(
                name,
                row,
                f"its file decodes to {pixels.dtype} {pixels.shape}; the index says "
                f"{self.image_dtype(name, row)} {(height, width, channels)}. Restore the dataset from a copy.",
            )
        return np.ascontiguousarray(pixels.transpose(2, 0, 1))

    def stored_bytes(self, name: str, row: int, *, verify: bool = True, descriptor: int = -1) -> bytes:
        """Return one payload as it is stored.

        Raises:
            CorruptError: Its checksum does not match, or its file is cut short.
        """
        columns = self._gathered[name][0]
        at, nbytes = int(columns[0][row]), int(columns[1][row])
        data = os.pread(descriptor, nbytes, at) if descriptor >= 0 else self.data[at : at + nbytes].tobytes()
        if len(data) != nbytes:
            raise self.damaged(name, row, 1)
        if verify and columns[4][row] != CODEC_TILES and checksum(data) != int(columns[3][row]):
            raise self.damaged(name, row, 2)
        return data

    def source(self, row: int) -> str | None:
        """Return the relative path of the file that a sample was made from, None where the dataset has none."""
        return self.index.text("source", row) if self.manifest.with_source else None

    def where(self, name: str, row: int) -> str:
        """Return dataset, field, sample and source, for messages."""
        source = self.source(row)
        return f"{self.path}: field {name!r} of sample {row}" + (f" (from {source})" if source else "")

    def damaged(self, name: str, row: int, status: int) -> CorruptError:
        """Return the error for a kernel's status."""
        return self.corrupt(
            name,
            row,
            f"{_REASONS[status]}. `lmdbloader verify {self.path}` lists every damaged sample; "
            "restore the dataset from a copy, or convert again.",
        )

    def corrupt(self, name: str, row: int, reason: str) -> CorruptError:
        """Return the error for one payload, which names dataset, field, sample and source."""
        return CorruptError(
            f"{self.where(name, row)}: {reason}", sample=row, field=name, source=self.source(row), path=str(self.path)
        )


def check_rows(rows: Sequence[int] | I64, length: int) -> I64:
    """Return sample numbers as int64 with negative ones counted from the end.

    Raises:
        IndexError: One is out of range.
    """
    found = np.asarray(rows)
    if found.size == 0:
        return np.empty(0, np.int64)
    if found.ndim == 1 and found.dtype in (np.uint64, object):  # numbers that int64 may not hold
        beyond = [row for row in found.tolist() if isinstance(row, int) and not -length <= row < length]
        if beyond:
            raise IndexError(f"sample {beyond[0]} of a dataset of {length} samples")
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise TypeError(f"sample numbers of dtype {found.dtype} and shape {found.shape}: expected a list of ints")
    found = found.astype(np.int64, copy=False)
    # As unsigned numbers negative ones are the largest, so one pass finds that there is nothing to do.
    if np.maximum.reduce(found.view(np.uint64)) < length:
        return found
    low, high = int(found.min()), int(found.max())
    if low < -length or high >= length:
        raise IndexError(f"sample {low if low < -length else high} of a dataset of {length} samples")
    return np.where(found < 0, found + length, found)
