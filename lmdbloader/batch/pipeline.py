"""Reads the images of many samples into batches in one call: from the map, or the file, through the transforms."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lmdbloader.base.stage_times import NO_CLOCK, Clock
from lmdbloader.errors import OptionError
from lmdbloader.format.layout import CODEC_FILE, CODEC_RAW, CODEC_TILES
from lmdbloader.kernels.transform import opcodes
from lmdbloader.store import Reader
from lmdbloader.transforms import Transform
from lmdbloader.transforms.compilation import ImageField, Program, Values, compile_program

I64 = npt.NDArray[np.int64]
_PARTS = ("offset", "stored_nbytes", "raw_nbytes", "checksum", "codec", "height", "width", "channels", "bits")
_DTYPES = {8: torch.uint8, 16: torch.uint16}
_ALIGNMENT = 64


@cache
def _kernels() -> Any:
    """Return the kernels; numba is imported when the first payload is read."""
    from lmdbloader.kernels import assemble

    return assemble


def check_seed(seed: int) -> int:
    """Return a seed.

    Raises:
        OptionError: It is not a whole number, or does not fit 64 bits.
    """
    return _whole(seed, 64, "seed={}")


def check_epoch(epoch: int) -> int:
    """Return the number of an epoch.

    Raises:
        OptionError: It is not a whole number, negative, or does not fit 63 bits.
    """
    return _whole(epoch, 63, "set_epoch({})")


def _whole(value: Any, num_bits: int, said: str) -> int:
    try:
        number = operator.index(value)  # NumPy's and torch's integers too, and no float
    except TypeError:
        number = -1
    if not 0 <= number < 2**num_bits:
        raise OptionError(f"{said.format(repr(value))}: expected a whole number from 0 to 2**{num_bits} - 1")
    return number


@dataclass(frozen=True, slots=True)
class Output:
    """What a batch holds of one image field.

    Attributes:
        name: Of the field.
        shape: (C, H, W) of every image.
        values: Their type, and how it comes about.
        channels_last: Whether they lie as (H, W, C) in memory.
        nbytes: Bytes of one image. Every sample asks for them several times.
    """

    name: str
    shape: tuple[int, int, int]
    values: Values
    channels_last: bool
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        """Work the bytes out."""
        object.__setattr__(self, "nbytes", math.prod(self.shape) * self.values.carrier.itemsize)

    @property
    def stored_shape(self) -> tuple[int, int, int]:
        """The shape in memory."""
        c, h, w = self.shape
        return (h, w, c) if self.channels_last else (c, h, w)

    def tensor(self, memory: torch.Tensor) -> torch.Tensor:
        """Return memory (n * nbytes,) uint8 as the images (n, C, H, W) that it holds."""
        count = memory.numel() // self.nbytes if self.nbytes else 0
        return self.arranged(memory.view(self.values.dtype).view(count, *self.stored_shape))

    def finished(self, images: torch.Tensor) -> torch.Tensor:
        """Return memory (n, *stored_shape) of the carrier type as the images (n, C, H, W) that it holds."""
        if self.values.dtype in (torch.float16, torch.bfloat16):
            images = images.view(self.values.dtype)
        return self.arranged(images)

    def arranged(self, images: torch.Tensor) -> torch.Tensor:
        """Return images (n, *stored_shape) as (n, C, H, W)."""
        return images.permute(0, 3, 1, 2) if self.channels_last else images


class Scratch:
    """The memory that one thread works in; what it never needs costs address space only."""

    def __init__(
        self, rooms_nbytes: Sequence[int], image_nbytes: int, resize: tuple[int, int, int], drawn: tuple[Any, ...]
    ) -> None:
        sizes = [-(-nbytes // _ALIGNMENT) * _ALIGNMENT + _ALIGNMENT for nbytes in rooms_nbytes]
        self._memory = np.empty(sum(sizes) + _ALIGNMENT, np.uint8)
        start = -(-self._memory.ctypes.data // _ALIGNMENT) * _ALIGNMENT
        self.rooms = np.append(start + np.cumsum([0, *sizes[:-1]]), image_nbytes).astype(np.int64)
        bounds, weights, line = resize
        self.resize = (np.empty(bounds, np.int32), np.empty(weights, np.float32), np.empty(line, np.float32))
        self.drawn = drawn
        self.failed = np.zeros(2, np.int64)


class Pipeline:
    """Turns rows of a reader's index into batches of its image fields.

    Safe from several threads, each with a Scratch of its own.

    Attributes:
        transforms: What is done to them.
        outputs: What a batch holds, for each field.
    """

    def __init__(
        self,
        reader: Reader,
        fields: Sequence[str],
        transforms: Sequence[Transform] = (),
        *,
        rows: I64 | None = None,
        seed: int = 0,
        channels_last: bool = False,
        verify: bool = True,
    ) -> None:
        """Check that transforms suit every image, and prepare them.

        Args:
            reader: Of the dataset.
            fields: Names of image fields.
            transforms: What to do to them.
            rows: (n,) the rows of the index that will be asked for; all of them by default.
            seed: Of the random choices, from 0 to 2**64 - 1.
            channels_last: Whether images lie as (H, W, C) in memory.
            verify: Whether to check the checksums.

        Raises:
            OptionError: A transform does not suit a field, or images would come out in different shapes.
        """
        self.reader = reader
        self.fields, self.transforms = tuple(fields), tuple(transforms)
        self._rows = np.arange(len(reader), dtype=np.int64) if rows is None else rows
        arrays = reader.index.arrays
        self._columns = [[arrays[f"{name}.{part}"] for part in _PARTS] for name in fields]
        self.addresses = np.array([[c.ctypes.data for c in columns] for columns in self._columns], np.int64)
        self.addresses = self.addresses.reshape(-1, len(_PARTS))
        self.program: Program = compile_program(transforms, [self._image_field(f) for f in range(len(self.fields))])
        self._num_erasings = len(self.program.values[0].erased) if self.fields else 0
        self._operations = (self.program.whole, self.program.real)
        self._seed, self._verify = np.uint64(check_seed(seed)), verify
        self._file = reader.file
        self._most = np.zeros(4, np.int64)
        self._has_files = any(bool((columns[4] == CODEC_FILE).any()) for columns in self._columns)
        self.outputs = self._measure(channels_last)
        self._describe()

    def _image_field(self, f: int) -> ImageField:
        found = []
        for part in ("channels", "bits"):
            column = self._columns[f][_PARTS.index(part)][self._rows]
            if part == "bits" and len(column) and (column != column[0]).any():
                raise OptionError(
                    f"{self.reader.path}: field {self.fields[f]!r} holds images of 8 and of 16 bits, which do not fit "
                    "in one batch. Select those of one kind first."
                )
            # Grey images among coloured ones come as three times the same.
            found.append(int(column.max()) if len(column) else {"channels": 3, "bits": 8}[part])
        return ImageField(self.fields[f], found[0], _DTYPES[found[1]])

    def _drawn(self, most: I64) -> tuple[Any, ...]:
        shape = (len(self.fields), self.program.num_stages)
        return (
            np.zeros((*shape, opcodes.NUM_GEOMETRY), np.int64),
            np.zeros((*shape, opcodes.NUM_COLOR), np.float64),
            np.zeros((len(self.fields), self._num_erasings, 4), np.int64),
            most,
        )

    def _measure(self, channels_last: bool) -> tuple[Output, ...]:
        rows = self._rows
        if not len(rows) or not self.fields:
            return tuple(
                Output(name, (3, 0, 0), v, channels_last)
                for name, v in zip(self.fields, self.program.values, strict=True)
            )
        sizes = [column[rows] for columns in self._columns for column in columns[5:7]]
        if all(bool((size == size[0]).all()) for size in sizes):
            rows = rows[:1]
        shapes = self._measure_shapes(rows)
        outputs = []
        for f, (low_height, height, low_width, width) in enumerate(shapes.tolist()):
            if (low_height, low_width) != (height, width):
                raise OptionError(
                    f"{self.reader.path}: the images of field {self.fields[f]!r} would come out in different shapes, "
                    f"{low_height} to {height} rows and {low_width} to {width} columns. Add a crop "
                    "(RandomCrop, CenterCrop, RandomResizedCrop) or a Resize to (height, width), or convert with "
                    "--patch-size."
                )
            channels = self._image_field(f).channels
            outputs.append(Output(self.fields[f], (channels, height, width), self.program.values[f], channels_last))
        return tuple(outputs)

    def _measure_shapes(self, rows: I64) -> I64:
        """Return the least and most height and width (fields, 4) that come out; note the most that is on the way."""
        shapes = np.zeros((len(self.fields), 4), np.int64)
        if len(self.program.whole) == 0:  # images stay as they are, and a kernel takes its time to load
            for f, columns in enumerate(self._columns):
                height, width = (columns[part][rows].astype(np.int64) for part in (5, 6))
                shapes[f] = height.min(), height.max(), width.min(), width.max()
                self._most = np.maximum(self._most, [(height * width).max(), height.max(), width.max(), 0])
            return shapes
        failed = np.zeros(2, np.int64)
        status = _kernels().measure(self.addresses, self._operations, rows, self._drawn(self._most), shapes, failed)
        if status:
            raise self._error(status, int(rows[failed[0]]), 0)
        return shapes

    def _describe(self) -> None:
        described, affine, self._tables = [], [], []
        for f, output in enumerate(self.outputs):
            values = output.values
            table_at, table_step = 0, 0
            if values.table is not None:
                self._tables.append(values.table)
                table_at, table_step = values.table.ctypes.data, values.table.strides[0]
            bits = {torch.uint8: 8, torch.uint16: 16}[self._image_field(f).dtype]
            described.append([
                self.reader.fields[output.name].tile_size or 1, values.kind, values.carrier.itemsize,
                output.channels_last, *output.shape, bits, table_at, table_step,
            ])  # fmt: skip
            affine.append(values.affine)
        self._described = np.array(described, np.int64).reshape(len(self.outputs), _kernels().NUM_DESCRIBED)
        self._affine = np.array(affine, np.float32).reshape(len(self.outputs), 3, 2)
        erased = [output.values.erased for output in self.outputs]
        self._erased = np.array(erased, np.uint32).reshape(len(erased), self._num_erasings, 3)

    def scratch(self) -> Scratch:
        """Return the memory that one thread needs."""
        stored = pixels = tile = jpeg = 0
        for f, columns in enumerate(self._columns):
            nbytes, raw, codec = (columns[k] for k in (1, 2, 4))
            jpeg = max(jpeg, self.reader.jpeg_room(self.fields[f]))
            if len(codec) == 0:
                continue
            encoded = raw[codec != CODEC_RAW]
            pixels = max(pixels, int(encoded.max()) if len(encoded) else 0)
            stored = max(stored, int(nbytes.max()) if self._file[2] >= 0 else 0)
            if (codec == CODEC_TILES).any():
                tile = max(tile, int(self._described[f, 0]) ** 2 * 6)
        image = int(self._most[0]) * 3 * 2
        bounds = weights = line = 1
        if (self.program.whole[:, opcodes.OP_CODE] == opcodes.RESIZE).any() or (
            self.program.whole[:, opcodes.OP_CODE] == opcodes.RANDOM_RESIZED_CROP
        ).any():
            from lmdbloader.kernels.resize.antialias import resize_scratch

            longest = int(self._most[1:3].max())
            # An image that is resized one way: as high as the window, and as wide as that or the result.
            between = int(self._most.max())
            bounds, weights, line = resize_scratch(longest, longest, longest, longest, 3, True, between)
        rooms, drawn = [stored, tile, pixels, image, image, jpeg], self._drawn(self._most.copy())
        try:
            return Scratch(rooms, image, (bounds, weights, line), drawn)
        except MemoryError as error:
            nbytes = sum(rooms) + 4 * (bounds + weights + line)
            raise OptionError(
                f"{self.reader.path}: images of up to {self._most[1]}x{self._most[2]} pixels want "
                f"{nbytes / 2**20:,.0f} MiB of working memory for each thread, which this machine does not give. "
                "Convert with a max_resolution, in patches, or leave the largest images out."
            ) from error

    def read(
        self,
        rows: I64,
        samples: I64,
        epoch: int,
        out: I64,
        batch_size: int,
        scratch: Scratch,
        clock: Clock = NO_CLOCK,
    ) -> None:
        """Fill batches.

        Args:
            rows: (n,) rows of the index, of those that were announced.
            samples: (n,) what the random choices of each depend on, beside seed and epoch.
            epoch: From 0 on.
            out: (batches, fields) addresses, each with room for batch_size images (the last batch may be shorter).
            batch_size: Samples of a batch.
            scratch: Not used by another thread meanwhile.
            clock: This thread's, begun.

        Raises:
            CorruptError: A payload is damaged; names the sample and its source.
        """
        given, _alive = self._decode_files(rows, clock)
        status = _kernels().assemble(
            (*self._file, clock.address), self._verify, self.addresses, given, self._described, self._affine,
            self._erased, self._operations, self._seed, np.uint64(epoch), rows, samples, out, batch_size, scratch.rooms,
            scratch.resize, scratch.drawn, scratch.failed,
        )  # fmt: skip
        if status:
            raise self._error(status, int(rows[scratch.failed[0]]), int(scratch.failed[1]))

    def _decode_files(self, rows: I64, clock: Clock) -> tuple[I64, list[npt.NDArray[Any]]]:
        """Return addresses (n or 0, fields) of images that no kernel decodes, 0 for others, and their pixels."""
        pixels: list[npt.NDArray[Any]] = []
        given = np.zeros((len(rows) if self._has_files else 0, len(self.fields)), np.int64)
        for f in range(len(self.fields)) if self._has_files else ():
            for j in np.flatnonzero(self._columns[f][4][rows] == CODEC_FILE).tolist():
                image = self.reader.read_file(self.fields[f], int(rows[j]), verify=self._verify, clock=clock)
                pixels.append(image)
                given[j, f] = image.ctypes.data
        return given, pixels

    def _error(self, status: int, row: int, f: int) -> Exception:
        if status < opcodes.CROP_TOO_LARGE:
            return self.reader.damaged(self.fields[f], row, status)
        sizes = ", ".join(
            f"{name} {'x'.join(map(str, self.reader.image_shape(name, row)[1:]))}" for name in self.fields
        )
        where = f"{self.reader.where(self.fields[0], row)} ({sizes})"
        return OptionError(f"{where}: {_UNSUITED[status]}")


_UNSUITED = {
    opcodes.CROP_TOO_LARGE: (
        "a crop is larger than the image, or a Cutout. Use a smaller one, a padding, or Resize first."
    ),
    opcodes.NOT_SQUARE: "RandomDihedral turns square images only. Crop to a square first.",
    opcodes.NOT_ALIGNED: (
        "the images of one sample are cut in step, and one is not a whole multiple of the other. Limit each transform "
        "to some of them with fields=."
    ),
    opcodes.NOT_DIVISIBLE: (
        "a size or padding is no multiple of the scale between the images of one sample. Choose one that is, or limit "
        "the transform to some of them with fields=."
    ),
    opcodes.WRONG_SHAPE: "its shape is not the one that was announced. Was the dataset replaced? Open it again.",
}
