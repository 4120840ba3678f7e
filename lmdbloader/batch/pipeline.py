"""Reads the images of many samples into batches in one call of compiled code, transforms included."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from lmdbloader.base.arguments import whole
from lmdbloader.base.stage_times import NO_CLOCK, Clock
from lmdbloader.errors import OptionError
from lmdbloader.kernels import assemble_columns as at
from lmdbloader.kernels import entries
from lmdbloader.kernels.calls.entry import Prepared
from lmdbloader.kernels.codec_numbers import CHANGED
from lmdbloader.kernels.transform import opcodes
from lmdbloader.store import Reader
from lmdbloader.store.rows import Rows, as_array, parts_of
from lmdbloader.transforms import Geometry, Transform
from lmdbloader.transforms.base import leaves
from lmdbloader.transforms.compilation import UNSUITED, compile_program, undrawn
from lmdbloader.transforms.values import ImageField, Values

if TYPE_CHECKING:
    from lmdbloader.transforms.views import Views

I64 = npt.NDArray[np.int64]
_DTYPES = {8: torch.uint8, 16: torch.uint16, 17: torch.float16, 33: torch.float32}
_BITS = {dtype: bits for bits, dtype in _DTYPES.items()}
# Bytes of a pixel between stages, at least: three channels of 16 bits.
_LEAST_PIXEL_NBYTES = 6
_ALIGNMENT = 64


def check_seed(seed: Any) -> int:
    """Return a seed; raise OptionError if it is not a whole number of 64 bits."""
    return whole("seed", seed, 0, 2**64 - 1)


def check_epoch(epoch: Any) -> int:
    """Return the number of an epoch; raise OptionError if it is not a whole number of 63 bits."""
    return whole("epoch", epoch, 0, 2**63 - 1)


@dataclass(frozen=True, slots=True)
class Output:
    """The images or masks of one field in a batch.

    Attributes:
        name: The field's name.
        shape: (C, H, W) of every image; C of a mask is 1.
        values: Their type, and how it is made from the stored one.
        channels_last: Whether they are (H, W, C) in memory.
        is_mask: Whether they are masks, which a batch has as (B, H, W).
        nbytes: Bytes of one image.
    """

    name: str
    shape: tuple[int, int, int]
    values: Values
    channels_last: bool
    is_mask: bool = False
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        """Compute `nbytes` once: every sample asks for it."""
        object.__setattr__(self, "nbytes", math.prod(self.shape) * self.values.carrier.itemsize)

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape in memory."""
        c, h, w = self.shape
        if self.is_mask:
            return h, w
        return (h, w, c) if self.channels_last else (c, h, w)

    def images(self, memory: torch.Tensor) -> torch.Tensor:
        """Return memory (n, *stored_shape) of the carrier type as the images (n, C, H, W) or masks (n, H, W) in it."""
        images = memory.view(self.values.dtype) if self._is_carried else memory
        return images.permute(0, 3, 1, 2) if self.channels_last and not self.is_mask else images

    @property
    def _is_carried(self) -> bool:
        return self.values.dtype in (torch.float16, torch.bfloat16)

    @property
    def is_changed(self) -> bool:
        """Whether `images` returns another tensor than it gets."""
        return self._is_carried or (self.channels_last and not self.is_mask)


class Scratch:
    """The working memory of one thread, and its call that fills batches; `read` replaces the arguments that change.

    Parts of the memory that are never used take address space only.
    """

    def __init__(
        self,
        rooms_nbytes: I64,
        resize: tuple[int, int, int],
        drawn: tuple[Any, ...],
        prepare: Callable[[Scratch], Prepared],
    ) -> None:
        """Allocate rooms (bytes of ROOM_STORED ... ROOM_JPEG), and arrays of so many items for a resize."""
        sizes = -(-rooms_nbytes // _ALIGNMENT) * _ALIGNMENT + _ALIGNMENT
        self._memory = np.empty(int(sizes.sum()) + _ALIGNMENT, np.uint8)
        self.nbytes = self._memory.nbytes
        start = -(-self._memory.ctypes.data // _ALIGNMENT) * _ALIGNMENT
        self.rooms = np.append(start + np.cumsum(sizes) - sizes, rooms_nbytes)
        bounds, weights, line = resize
        self.resize = (np.empty(bounds, np.int32), np.empty(weights, np.float32), np.empty(line, np.float32))
        self.drawn = drawn
        self.failed = np.zeros(2, np.int64)
        self.run = call = prepare(self)
        self.set_clock, self.set_epoch = call.number("file", 4), call.number("epoch")
        self.set_batch_size, self.set_given = call.number("batch_size"), call.copied("given")
        self.set_rows, self.set_samples, self.set_out = map(call.copied, ("rows", "samples", "out"))


class Pipeline:
    """Turns rows of a reader's index into batches of its image fields; thread-safe, with a Scratch for each thread.

    Attributes:
        reader: Of the dataset.
        transforms: Applied to the images, of all views, those in containers too.
        views: Of which a batch has a list, or None; num_views: how many images a batch has of each field.
        outputs: The images of a batch, for each field; of all views, one after the other.
        rows: The rows of the index that may be read.
        seed: Of the random choices.
        memory_format: Of images.
        kept: With decoded images in memory, or None.
        carry_out, changes_pixels, device_images: Of a `DevicePipeline`.
    """

    carry_out: Any = None
    changes_pixels = False
    device_images: Any = None

    def __init__(
        self,
        reader: Reader,
        fields: Sequence[str],
        transforms: Sequence[Transform] = (),
        *,
        views: Views | None = None,
        rows: Rows | None = None,
        alike: Rows | None = None,
        seed: int = 0,
        channels_last: bool = False,
        as_planes: bool = False,
        verify: bool = True,
        kept: Any = None,
    ) -> None:
        """Check that the transforms suit every image, and compile them.

        Args:
            reader: Of the dataset.
            fields: Names of fields of images and masks.
            transforms: Applied to the images.
            views: Further transforms for each of several images in a batch.
            rows: The rows of the index that may be read, a range or (n,); all of them by default.
            alike: The rows with whose images those of `rows` have channels and type in common; `rows` by default.
            seed: Of the random choices, from 0 to 2**64 - 1.
            channels_last: Whether images of finished batches are (H, W, C) in memory.
            as_planes: Whether a later step does this, and needs (C, H, W).
            verify: Whether to verify checksums.
            kept: The `Kept` with decoded images in memory, or None.

        Raises:
            OptionError: A transform does not suit a field, or images would come out in different shapes.
        """
        self.reader = reader
        lists = [tuple(transforms)] if views is None else [(*transforms, *view) for view in views]
        self.fields, self.transforms = tuple(fields), tuple(leaves(chain.from_iterable(lists)))
        self.views, self.num_views = views, len(lists)
        self.rows: Rows = range(len(reader)) if rows is None else rows
        self._alike = rows if alike is None else alike
        self._is_whole = rows is None or (isinstance(rows, range) and rows == range(len(reader)))
        arrays = reader.index.columns
        self._columns = [[arrays[f"{name}.{part}"] for part in at.INDEX_COLUMNS] for name in fields]
        addresses = [
            [c.ctypes.data for c in columns] + _own_rows(reader, name)
            for name, columns in zip(fields, self._columns, strict=True)
        ]
        if len(reader):  # of a column that is equal everywhere, kernels read the first row
            reader.index.check(0)
        self._addresses = np.array(addresses, np.int64).reshape(-1, 2 * len(at.INDEX_COLUMNS))
        self._image_fields = [self._image_field(f) for f in range(len(self.fields))]
        self.program = compile_program(transforms, self._image_fields, views)
        self._num_erasings = max((len(values.erased) for values in self.program.values), default=0)
        self._operations = (self.program.whole, self.program.real, self.program.views)
        self.seed, self.verify, self.kept = check_seed(seed), verify, kept
        self._seed = np.uint64(self.seed)
        self.memory_format = torch.channels_last if channels_last else torch.contiguous_format
        self._file, self._most = reader.data_file.for_kernels(), np.zeros(4, np.int64)
        self._has_files = any(map(reader.has_in_python, self.fields))
        self.outputs = self._measure(channels_last and not as_planes)
        self._describe()

    def _image_field(self, f: int) -> ImageField:
        is_mask = self._is_mask(f)
        if not len(self.rows):
            return ImageField(self.fields[f], 1 if is_mask else 3, torch.uint8, is_mask)
        name, alike = self.fields[f], None if self._is_whole else self._alike
        (low_bits, bits), (low_channels, channels) = (
            self.reader.extremes(name, part, alike) for part in ("bits", "channels")
        )
        # In a batch with color images a gray one has three equal channels.
        if low_bits != bits or (low_channels != channels and (low_channels, channels) != (1, 3)):
            kinds = [
                f"{_DTYPES[b]} with {c}".removeprefix("torch.") for b, c in ((low_bits, low_channels), (bits, channels))
            ]
            raise OptionError(
                f"{self.reader.place}: field {self.fields[f]!r} holds images of {kinds[0]} and of {kinds[1]} channels, "
                "which do not fit in one batch. Select those of one kind first."
            )
        sizes = [self._extremes(f, side) for side in ("height", "width")]
        size = tuple(low for low, _ in sizes) if all(low == high for low, high in sizes) else ()
        ignored = self.reader.fields[name].ignore_index or 0
        return ImageField(name, channels, _DTYPES[bits], is_mask, size, ignored)

    def _extremes(self, f: int, part: str) -> tuple[int, int]:
        """Return the least and the greatest number of a field's column in the rows."""
        return self.reader.extremes(self.fields[f], part, None if self._is_whole else self.rows)

    def _is_mask(self, f: int) -> bool:
        return self.reader.fields[self.fields[f]].kind == "mask"

    def _drawn(self, most: I64) -> tuple[Any, ...]:
        shape = (self.num_views, len(self.fields))
        return (
            np.stack([undrawn(self._image_fields, self.program.num_stages)] * self.num_views),
            np.zeros((*shape, self.program.num_stages, opcodes.NUM_COLOR), np.float64),
            np.zeros((*shape, self._num_erasings, 4), np.int64),
            most,
            np.zeros(math.prod(shape), np.int64),
        )

    def _measure(self, channels_last: bool) -> tuple[Output, ...]:
        rows = self.rows
        num_fields = len(self.fields)
        if not len(rows) or not self.fields:
            return tuple(
                Output(self.fields[f], (1 if self._is_mask(f) else 3, 0, 0), v, channels_last, self._is_mask(f))
                for f, v in ((k % num_fields, v) for k, v in enumerate(self.program.values))
            )
        sizes = [self._extremes(f, side) for f in range(len(self.fields)) for side in ("height", "width")]
        if all(low == high for low, high in sizes):
            rows = rows[:1]
        shapes = self._measure_shapes(rows)
        for k, varies in enumerate(self.program.varying):
            if varies:
                name = self.fields[k % num_fields]
                raise OptionError(
                    f"{self.reader.place}: the images of field {name!r} would come out in different shapes, by the "
                    "angles that RandomRotation(expand=True) draws. Add a crop or Resize((height, width)) after it."
                )
        outputs = []
        for k, (low_height, height, low_width, width) in enumerate(shapes.tolist()):
            f = k % num_fields
            if (low_height, low_width) != (height, width):
                raise OptionError(
                    f"{self.reader.place}: the images of field {self.fields[f]!r}"
                    f"{f', view {k // num_fields},' * (self.num_views > 1)} would come out in different shapes, "
                    f"{low_height} to {height} rows and {low_width} to {width} columns. Add a crop "
                    "or a Resize to (height, width), "
                    "convert with --patch-size, or use Loader(..., buckets='size'), with batches of one "
                    "to keep their order."
                )
            channels = self._image_fields[f].channels
            shape, values = (channels, height, width), self.program.values[k]
            outputs.append(Output(self.fields[f], shape, values, channels_last, self._is_mask(f)))
        return tuple(outputs)

    def _measure_shapes(self, rows: Rows) -> I64:
        """Return LOW_HEIGHT ... HIGH_WIDTH (outputs, 4) of the results; raise `_most` to the sizes on the way."""
        shapes = np.zeros((len(self.program.values), 4), np.int64)
        shapes[:, [at.LOW_HEIGHT, at.LOW_WIDTH]] = np.iinfo(np.int64).max
        for part in map(as_array, parts_of(rows)):
            for path in self.program.paths:
                self._measure_part(part, path, shapes)
        return shapes

    def _measure_part(self, rows: I64, path: Sequence[int], shapes: I64) -> None:
        self.reader.index.check(rows)
        for f, columns in enumerate(self._columns):  # memory is allocated by these sizes
            most = self.reader.index.facts[self.fields[f]].extremes["raw_nbytes"][1]
            if (wrong := columns[at.IMAGE_HEIGHT][rows] > most // np.maximum(columns[at.IMAGE_WIDTH][rows], 1)).any():
                raise self.reader.damaged(self.fields[f], int(rows[int(wrong.argmax())]), CHANGED)
        failed = np.zeros(2, np.int64)
        for operations in _extremes_of(*self.program.part(path)):
            status = entries.measure(self._addresses, operations, rows, self._drawn(self._most), shapes, failed)
            if status:
                raise self._error(status, int(rows[failed[at.FAILED_ROW]]), 0)

    def _describe(self) -> None:
        """Fill the tables that the kernel reads."""
        num_outputs = len(self.outputs)
        self._described = np.zeros((num_outputs, at.NUM_DESCRIBED), np.int64)
        for f, output in enumerate(self.outputs):
            values, described = output.values, self._described[f]
            described[at.TILE] = self.reader.fields[output.name].tile_size or 1
            described[at.KIND], described[at.OUT_ITEMSIZE] = values.kind, values.carrier.itemsize
            described[at.CHANNELS_LAST] = output.channels_last
            described[[at.OUT_CHANNELS, at.OUT_HEIGHT, at.OUT_WIDTH]] = output.shape
            described[at.IN_BITS] = _BITS[self._image_fields[f % len(self.fields)].dtype]
            if values.table is not None:  # `outputs` keeps it alive
                described[at.TABLE], described[at.TABLE_STEP] = values.table.ctypes.data, values.table.strides[0]
        most = max((o.shape[0] for o in self.outputs), default=1)
        self._affine = np.zeros((num_outputs, most, 2), np.float32)
        self._erased = np.zeros((num_outputs, self._num_erasings, most), np.uint32)
        for f, output in enumerate(self.outputs):
            self._affine[f, : output.shape[0]] = output.values.affine
            self._erased[f, : len(output.values.erased), : output.shape[0]] = output.values.erased

    def stream(self) -> None:
        """Write planes of pixels and of float32 past the processor's caches: for batches that do not fit into them."""
        self._described[:, at.STREAMED] = 1

    @property
    def reading(self) -> Pipeline:
        """What reads the images, into memory of its outputs."""
        return self

    @property
    def moves(self) -> bool:
        """Whether a transform moves pixels or changes the size."""
        return any(isinstance(t, Geometry) and t.moves for t in self.transforms)

    def scratch(self) -> Scratch:
        """Return working memory for one thread; raise OptionError if there is not enough."""
        try:
            drawn = self._drawn(self._most.copy())
            return Scratch(self._rooms_nbytes(), self._resize_items(), drawn, self._prepare)
        except (MemoryError, ValueError) as error:  # NumPy's, of sizes that no array has
            height, width = self._most[[at.MOST_HEIGHT, at.MOST_WIDTH]].tolist()
            raise OptionError(
                f"{self.reader.place}: not enough memory to read images of up to {height}x{width} pixels in a thread. "
                "Convert with a max_resolution, in patches, or leave the largest images out."
            ) from error

    def _rooms_nbytes(self) -> I64:
        """Return the bytes of ROOM_STORED ... ROOM_JPEG."""
        rooms = np.zeros(at.ROOM_NBYTES, np.int64)
        # Floats of 16 bits become those of 32 there.
        sizes = (f.channels * (4 if f.dtype.is_floating_point else f.dtype.itemsize) for f in self._image_fields)
        nbytes = max(_LEAST_PIXEL_NBYTES, *sizes)
        rooms[[at.ROOM_FIRST, at.ROOM_SECOND]] = self._most[at.MOST_PIXELS] * nbytes
        for f, name in enumerate(self.fields):
            facts = self.reader.index.facts[name]
            rooms[at.ROOM_JPEG] = max(rooms[at.ROOM_JPEG], self.reader.jpeg_room(name))
            rooms[at.ROOM_PIXELS] = max(rooms[at.ROOM_PIXELS], facts.encoded_nbytes)
            if self.reader.io == "pread":
                rooms[at.ROOM_STORED] = max(rooms[at.ROOM_STORED], facts.extremes["stored_nbytes"][1])
            if facts.has_tiles:
                rooms[at.ROOM_TILE] = max(rooms[at.ROOM_TILE], self._described[f, at.TILE] ** 2 * facts.pixel_nbytes)
        return rooms

    def _resize_items(self) -> tuple[int, int, int]:
        """Return the items of the arrays that resizes, blurs and noise need: bounds, weights and one line."""
        height, width = self._most[[at.MOST_HEIGHT, at.MOST_WIDTH]].tolist()
        (codes, real), filtering = (self.program.whole[:, opcodes.OP_CODE], self.program.real), 1
        if ((codes > opcodes.JITTER) | (codes == opcodes.POLICY)).any():
            sides = real[codes == opcodes.BLUR][:, [opcodes.BLUR_DOWN, opcodes.BLUR_ACROSS]].max(0, initial=0)
            filtering = entries.color_room(height, width, *sides.astype(int).tolist())
        if self.program.warps:
            sizes = (4 if f.dtype.is_floating_point else f.dtype.itemsize for f in self._image_fields)
            filtering = max(filtering, entries.warp_room(height, width, max(sizes), self._elastic_side()))
        if opcodes.AUGMIX in codes:
            filtering = max(filtering, entries.mixing_room(height, width))
        if not self.program.resizes:
            return 1, 1, filtering
        longest = max(height, width)
        # An image that is resized in one direction: the window's height, and the width of the window or the result.
        between = int(self._most.max())
        bounds, weights, line = entries.resize_scratch(longest, longest, longest, longest, 3, True, between)
        return bounds, weights, max(line, filtering)

    def read(
        self, rows: I64, samples: I64, epoch: int, out: I64, batch_size: int, scratch: Scratch, clock: Clock = NO_CLOCK
    ) -> None:
        """Fill batches.

        Args:
            rows: (n,) rows of the index, among the `rows` given at the start.
            samples: (n,) numbers that the random choices depend on, in addition to seed and epoch.
            epoch: From 0 on.
            out: (batches, outputs) addresses, each with room for batch_size images (the last batch may be shorter).
            batch_size: Samples of a batch.
            scratch: This thread's; not to be used again after an exception, perhaps of a signal's handler.
            clock: This thread's, started.

        Raises:
            CorruptError: A payload is damaged; names the sample and its source.
        """
        self.reader.index.check(rows)
        kept = None if self.kept is None else self.kept.given(self, rows, scratch, clock)
        if not self._has_files or (kept is not None and kept[..., 1].all()):
            self.run(rows, samples, epoch, out, batch_size, scratch, clock)
        else:
            from lmdbloader.batch.decoded import read_decoded

            read_decoded(self, kept, (rows, samples, epoch, out, batch_size, scratch, clock))

    def run(
        self, rows: I64, samples: I64, epoch: int, out: I64, batch_size: int, scratch: Scratch, clock: Clock
    ) -> None:
        """Make the call; see `read`."""
        scratch.set_rows(rows)
        scratch.set_samples(samples)
        scratch.set_out(out)
        scratch.set_epoch(epoch)
        scratch.set_batch_size(batch_size)
        scratch.set_clock(clock.address)
        failed = scratch.failed
        if self.reader.data_file.remote is None:
            status = scratch.run()
        else:
            status = self.reader.run(
                self.fields, rows, scratch.run,
                lambda: (self.fields[failed[at.FAILED_FIELD]], int(rows[failed[at.FAILED_ROW]])),
            )  # fmt: skip
        if status:
            raise self._error(status, int(rows[failed[at.FAILED_ROW]]), int(failed[at.FAILED_FIELD]))

    def _elastic_side(self) -> int:
        """Return the side of the largest kernel that smooths an elastic warp, 0 without one."""
        sigmas = self.program.real[self.program.whole[:, opcodes.OP_CODE] == opcodes.ELASTIC, opcodes.ELASTIC_SIGMA :]
        return entries.kernel_side(float(sigmas[:, :2].max())) if len(sigmas) else 0

    def _prepare(self, scratch: Scratch) -> Prepared:
        """Return the call for a thread's working memory, of no samples yet."""
        none, num_fields = np.zeros(0, np.int64), len(self.fields)
        given, out = np.zeros((0, num_fields, 2), np.int64), np.zeros((0, len(self.outputs)), np.int64)
        return entries.assemble.prepare(
            (*self._file, 0), self.verify, self._addresses, given, self._described, self._affine, self._erased,
            self._operations, self._seed, 0, none, none, out, 1, scratch.rooms, scratch.resize, scratch.drawn,
            scratch.failed,
        )  # fmt: skip

    def _error(self, status: int, row: int, f: int) -> Exception:
        if status not in UNSUITED:
            return self.reader.damaged(self.fields[f], row, status)
        sizes = ", ".join(
            f"{name} {'x'.join(map(str, self.reader.image_shape(name, row)[1:]))}" for name in self.fields
        )
        where = f"{self.reader.where(self.fields[0], row)} ({sizes})"
        largest = max(self.fields, key=lambda name: math.prod(self.reader.image_shape(name, row)))
        return OptionError(f"{where}: {UNSUITED[status].format(field=largest)}")


def _extremes_of(whole: I64, real: npt.NDArray[np.float64], views: I64) -> list[tuple[npt.NDArray[Any], ...]]:
    """Return a program, and before it those that give extreme sizes if angles decide on these.

    The sides of a turned image are least, and their ratios most, at an end of the range of angles or at quarter turns.
    """
    turning = (whole[:, opcodes.OP_CODE] == opcodes.AFFINE) & (whole[:, opcodes.OP_EXPANDS] == opcodes.EXPANDS)
    low, high = real[turning, opcodes.AFFINE_LOW], real[turning, opcodes.AFFINE_HIGH]
    found: list[tuple[npt.NDArray[Any], ...]] = [(whole, real, views)]
    if (low < high).any():
        quarter = np.ceil(low / 90) * 90
        for angle in (low, high, quarter, quarter + 90):
            fixed = real.copy()
            fixed[turning, opcodes.AFFINE_LOW] = fixed[turning, opcodes.AFFINE_HIGH] = np.minimum(angle, high)
            found.insert(0, (whole, fixed, views))
        largest = whole.copy()
        largest[turning, opcodes.OP_EXPANDS] = opcodes.EXPANDS_MOST
        found.insert(0, (largest, real, views))
    return found


def _own_rows(reader: Reader, name: str) -> list[int]:
    """Return for each column of a field's images -1 if its rows differ, 0 if all have one value; see `OWN_ROW`."""
    extremes = reader.index.facts[name].extremes
    ends = [extremes.get(part, (0, 1)) for part in at.INDEX_COLUMNS]
    return [0 if low == high else -1 for low, high in ends]
