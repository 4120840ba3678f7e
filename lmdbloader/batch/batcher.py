"""Batcher: reads samples and batches of a dataset, all fields of many samples in one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from lmdbloader.base import clock_words
from lmdbloader.base.stage_times import NO_CLOCK, Clock
from lmdbloader.batch.memory import FieldMemories
from lmdbloader.batch.pipeline import Pipeline, Scratch
from lmdbloader.batch.sample import Batch, Form, Ragged, in_form, sample_type, stacked
from lmdbloader.errors import CorruptError, OptionError
from lmdbloader.fields import kind_named
from lmdbloader.format.layout import Field
from lmdbloader.store import Reader
from lmdbloader.store.rows import Rows, rows_at

if TYPE_CHECKING:
    from lmdbloader.batch.functions import Functions

I64 = npt.NDArray[np.int64]
# Of a thread: making less memory costs as much as reading a batch of small images.
_SMALL_NBYTES = 2**18
# A column of a batch: a tensor or array (B, ...), or a list of B values.
Columns = list[Any]
# Calls functions of the user; None calls them at once.
Run = Callable[[Callable[[], Any]], Any] | None
# Reads a field, of rows (n,), draws (n,), an epoch and a clock that is started.
Read = Callable[[I64, I64, int, Clock], Any]


@dataclass(slots=True)
class Begun:
    """Batches that are being read.

    Attributes:
        rows: (n,) rows of the index, one for each sample; for windows, one for each frame.
        draws: (n,) of the samples; of frames, as `Clips` numbers them.
        epoch: From 0 on.
        batch_size: Rows in a batch (samples, or frames of windows); the last batch may be shorter.
        batches: The columns of each batch, in the order of the fields; None for fields that are still to be read.
        addresses: (batches, fields of the pipeline) int64, of the memory of images.
        blocks: The one allocation of each batch, (bytes,) uint8, and the bytes of its images; or none.
    """

    rows: I64
    draws: I64
    epoch: int
    batch_size: int
    batches: list[Columns]
    addresses: I64
    blocks: Sequence[tuple[torch.Tensor, int]]


class Batcher:
    """Reads all fields of many samples; safe from several threads and across forks.

    Samples are given as draws, on which the random choices depend: sample + number of samples * occurrence.

    Attributes:
        pipeline: Reads the images, except those of fields whose images differ in shape.
        fields: All fields, by name and in order.
        rows: Of the index, those of the samples.
        frames: Rows of a sample: 1, or the frames of a window.
        takes_turns: Whether it is one of many, and keeps the working memory of one thread only, if it is small.
    """

    takes_turns = False

    def __init__(
        self,
        pipeline: Pipeline,
        fields: Mapping[str, Field],
        rows: Rows,
        memory: Callable[..., FieldMemories],
        *,
        keep: int,
        source: Any = None,
        functions: Sequence[Callable[[Any], Any]] = (),
        form: Form = None,
        channels: Mapping[str, int] | None = None,
        repeats: bool = False,
        clips: Any = None,
    ) -> None:
        """Prepare to read.

        Args:
            pipeline: Of some or all of the image fields.
            fields: All fields to read, by name and in order.
            rows: Of the index, those of the samples, a range or (n,).
            memory: Makes the memory where images of the pipeline are written, of their shapes and types.
            keep: The most arrays of one size that this memory keeps.
            source: The LMDBDataset, if its own transform belongs to finished batches; it may change at any time.
            functions: Called with whole batches.
            form: Of finished batches.
            channels: Of images that are read without the pipeline, one by one, and come in its memory format.
            repeats: Whether samples may come more than once in an epoch.
            clips: The Clips, if samples are windows; `rows` are then rows of frames.

        Raises:
            OptionError: Transforms would move images without boxes or arrays of their size; or functions do not fit.
        """
        self.pipeline, self.fields, self.rows, self._source = pipeline, fields, rows, source
        self._form, self._channels, self._repeats = form, channels or {}, repeats
        self._clips, self.frames = clips, 1 if clips is None else int(clips.frames)
        reader = pipeline.reader
        if any(f.kind in ("array", "json") for f in fields.values()):
            from lmdbloader.batch.places import refuse_to_leave

            refuse_to_leave(pipeline, list(fields.values()))
        self._is_whole = isinstance(rows, range) and rows == range(len(reader))
        ragged = tuple(name for name, f in fields.items() if kind_named(f.kind).is_ragged)
        json = tuple(name for name, f in fields.items() if f.kind == "json")
        self._names, self._type = tuple(fields), sample_type(tuple(fields), ragged, json)
        # Of the pipeline's outputs: the place in a batch, and what makes images of the memory, if anything.
        self._reading, outputs = pipeline.reading, pipeline.reading.outputs
        self._images = [(self._names.index(o.name), o.is_changed and o.images) for o in outputs]
        self._memory = memory([(o.stored_shape, o.values.carrier) for o in outputs], keep=keep)
        places = [place for place, _ in self._images]
        # Computed once, as every sample needs them.
        self._others = [
            (place, f.name, self._reads(f)) for place, f in enumerate(fields.values()) if place not in places
        ]
        # Working memory that no thread is using.
        self._scratch: list[Scratch] = []
        self._functions: Functions | None = None
        if self._own_transform is not None or functions:
            self._functions = self._bound(functions)

    @property
    def _own_transform(self) -> Callable[[Any], Any] | None:
        own: Callable[[Any], Any] | None = None if self._source is None else self._source._own_transform
        if own is not None and self.pipeline.views is not None:  # it may be set at any time
            raise OptionError(
                "Views: the dataset has a transform of its own, which gets samples one by one. Write a function of the "
                "batch: Loader(dataset, ..., transforms=[Views(...), function])."
            )
        return own

    def _reads(self, f: Field) -> Read:
        """Return what reads a field that the pipeline does not read."""
        # They do not refer to this object, which then ends with its last user.
        pipeline, reader = self.pipeline, self.pipeline.reader
        if f.has_pixels:
            return lambda rows, draws, epoch, clock: _different_images(reader, f.name, rows, clock)
        values = _values_of(reader, f)
        if f.kind in ("boxes", "points"):
            from lmdbloader.batch.places import image_of_places, moved

            image, is_several = image_of_places(pipeline, f), pipeline.views is not None

            def read(rows: I64, draws: I64, epoch: int, clock: Clock) -> Any:
                found = values(rows, draws, epoch, clock)
                views = [
                    found if image is None else moved(pipeline, found, f.kind, image, rows, draws, epoch, view)
                    for view in range(pipeline.num_views)
                ]
                return [list(each) for each in views] if is_several else Ragged(views[0])

            return read if image is not None or is_several else values
        return values

    def _bound(self, functions: Sequence[Callable[[Any], Any]]) -> Functions:
        from lmdbloader.batch.functions import Functions

        return Functions(self.pipeline, self.fields, self._own_transform, functions, self._clips)

    def add(self, name: str, read: Callable[[I64, I64, int, Clock], Mapping[str, Any]]) -> None:
        """Add a column after the fields: nested dicts of tensors (B, ...)."""
        self._others.append((len(self._names), name, read))
        self._names = (*self._names, name)
        self._type = sample_type(self._names, self._type._lists, self._type._json)

    @property
    def own_functions(self) -> Functions:
        """The dataset's own transform and the functions, as they are called for these fields."""
        if self._functions is None:  # a transform that was set later
            self._functions = self._bound(())
        return self._functions

    def samples_of(self, draws: I64) -> I64:
        """Return the sample numbers (n,) of draws (n,)."""
        return draws % len(self._clips or self.rows) if self._repeats else draws

    def rows_of(self, draws: I64, epoch: int) -> I64:
        """Return the rows of the index (n,) of draws (n,) in an epoch; of windows, (n * frames,)."""
        samples = self.samples_of(draws)
        if self._clips is not None:
            samples = self._clips._frames_of(samples, draws, self.pipeline.seed, epoch)
        return samples if self._is_whole else rows_at(self.rows, samples)

    def read(self, draws: I64, epoch: int, batch_size: int, clock: Clock = NO_CLOCK) -> list[Any]:
        """Return the batches of samples (n,), each of batch_size samples except the last, for `finish`.

        Args:
            draws: (n,), of the samples.
            epoch: From 0 on.
            batch_size: Samples of a batch.
            clock: This thread's, started.

        Raises:
            CorruptError: A payload is damaged; names the sample and its source.
            OptionError: Arrays of one batch differ in shape.
        """
        begun = self.begin(draws, epoch, batch_size, clock)
        self.read_images(begun, 0, len(begun.rows), clock)
        return self.complete(begun, clock)

    def read_samples(self, rows: I64, draws: I64, epoch: int) -> Batch:
        """Return samples as views of one read, by their rows (n,); their values may differ in shape."""
        begun = self._begin(rows, draws, epoch, max(len(rows), 1))
        self.read_images(begun, 0, len(rows))
        self._fill(begun, NO_CLOCK, stack=False)
        return self._samples(begun.batches[0], len(rows))

    def begin(self, draws: I64, epoch: int, batch_size: int, clock: Clock = NO_CLOCK) -> Begun:
        """Return batches without values, at least one, with memory for their images; the arguments are those of `read`.

        Several threads may read one batch: `read_images` for the parts, and then one of them calls `complete`.
        """
        rows = self.rows_of(draws, epoch)
        clock.tick(clock_words.FUNCTION)
        draws = draws if self._clips is None else self._clips._draws_of_frames(draws)
        return self._begin(rows, draws, epoch, batch_size * self.frames)

    def _begin(self, rows: I64, draws: I64, epoch: int, batch_size: int) -> Begun:
        count, nothing = len(rows), [None] * len(self._names)
        batches: list[Columns] = [nothing[:] for _ in range(0, max(count, 1), batch_size)]
        there = self.pipeline.device_images
        if there is not None and there.is_complete:
            places = torch.from_numpy(there.places(rows))
            for number, batch in enumerate(batches):
                own = places[number * batch_size :][:batch_size]
                for place, _ in self._images:
                    batch[place] = own if self.pipeline.views is None else [own]
            return Begun(rows, draws, epoch, batch_size, batches, np.empty((len(batches), 0), np.int64), ())
        taken, addresses, blocks = self._memory.take(count, batch_size)
        for (place, as_images), tensors in zip(self._images, taken, strict=True):
            for batch, tensor in zip(batches, map(as_images, tensors) if as_images else tensors, strict=True):
                batch[place] = tensor if self.pipeline.views is None else [*(batch[place] or ()), tensor]
        return Begun(rows, draws, epoch, batch_size, batches, addresses, blocks)

    def read_images(self, begun: Begun, first: int, end: int, clock: Clock = NO_CLOCK) -> None:
        """Read the pipeline's images of rows first ... end - 1: of all rows, or of some of a single batch."""
        addresses = begun.addresses
        if not addresses.size or first == end:
            return
        if first:
            addresses = addresses + np.array([[first * o.nbytes for o in self._reading.outputs]], np.int64)
        try:
            scratch = self._scratch.pop()
        except IndexError:
            scratch = self._reading.scratch()
        clock.tick(clock_words.BUFFER)
        rows, draws = begun.rows[first:end], begun.draws[first:end]
        try:
            self._reading.read(rows, draws, begun.epoch, addresses, begun.batch_size, scratch, clock)
        except CorruptError:  # the call was made, or not begun
            self._scratch.append(scratch)
            raise
        if not self.takes_turns or (not self._scratch and scratch.nbytes <= _SMALL_NBYTES):
            self._scratch.append(scratch)

    def complete(self, begun: Begun, clock: Clock = NO_CLOCK) -> list[Any]:
        """Return batches whose images were all read, as `read` does."""
        is_finished = self._own_transform is None
        self._fill(begun, clock, stack=is_finished)
        if is_finished:
            return [self._type(*columns) for columns in begun.batches]
        size = begun.batch_size
        return [self._samples(b, min(size, len(begun.rows) - k * size)) for k, b in enumerate(begun.batches)]

    def _fill(self, begun: Begun, clock: Clock, *, stack: bool) -> None:
        """Read the columns that the pipeline does not read, as tensors if they can be."""
        size = begun.batch_size
        for place, name, read in self._others:
            for number, batch in enumerate(begun.batches):
                part = slice(number * size, (number + 1) * size)
                values = read(begun.rows[part], begun.draws[part], begun.epoch, clock)
                batch[place] = stacked(name, values) if stack else values

    def _samples(self, columns: Columns, length: int) -> Batch:
        values = [column.tolist() if isinstance(column, np.ndarray) else column for column in columns]
        return Batch(dict(zip(self._names, values, strict=True)), length, self._type)

    @property
    def finishes(self) -> bool:
        """Whether `finish` changes batches, or calls functions with them."""
        changes = self._own_transform is not None or self._functions is not None or self._clips is not None
        return changes or bool(self._channels) or self._form is not None or self.pipeline.carry_out is not None

    @property
    def python_functions(self) -> list[Callable[[Any], Any]]:
        """The dataset's own transform and the functions that are called in Python."""
        own = self._own_transform
        functions = [] if self._functions is None else self._functions.in_python
        return functions if own is None else [own, *functions]

    def finish(self, batch: Any, draws: I64, epoch: int, position: int, run: Run = None) -> Any:
        """Return a batch of `read` after the dataset's own transform and the functions, called once for each batch.

        Args:
            batch: Of `read`; on a device if the pipeline carries transforms out there, as is done first.
            draws: (B,), of its samples.
            epoch: Its number.
            position: Of the whole batch's first sample in the epoch's order.
            run: Calls what calls the functions; None calls it at once.
        """
        if self.pipeline.carry_out is not None:
            of_images = draws if self._clips is None else self._clips._draws_of_frames(draws)
            batch = self.pipeline.carry_out(batch, of_images, epoch)
        transform = self._own_transform
        if transform is None and self._channels:
            changed = starmap(self._as_from_pipeline, ((name, getattr(batch, name)) for name in self._channels))
            batch = batch._replace(**dict(changed))
        if self._clips is not None:
            batch = self._clips._joined(batch, has_views=self.pipeline.views is not None)
        if transform is not None or self._functions is not None:
            batch = self.own_functions.finish(
                batch, transform, epoch=epoch, position=position, samples=self.samples_of(draws), draws=draws, run=run
            )
        if self.pipeline.views is not None and isinstance(self._form, Mapping):
            batch = self.pipeline.views.named(batch)
        return batch if self._form is None else in_form(batch, self._form, is_batch=True)

    def _as_from_pipeline(self, name: str, images: torch.Tensor) -> tuple[str, torch.Tensor]:
        """Return images (1, C, H, W) with the channels and the memory format of a pipeline's; masks (1, H, W) as is."""
        if images.ndim == 4:
            images = images.expand(-1, self._channels[name], -1, -1)
            images = images.contiguous(memory_format=self.pipeline.memory_format)
        return name, images


def _values_of(reader: Reader, f: Field) -> Read:
    """Return what reads the values of a field that is not of images.

    It gives numbers as a NumPy array (B,), arrays of one shape as a tensor (B, ...), boxes and the like as `Ragged`,
    other values as a list; and raises CorruptError if a payload is damaged, or is not a value of the field's kind.
    """
    name = f.name
    if f.kind == "array":
        return lambda rows, draws, epoch, clock: _stack_if_equal(
            [torch.from_numpy(reader.read_array(name, row, clock=clock)) for row in rows.tolist()]
        )
    kind = kind_named(f.kind)
    decode = kind.decode
    if f.is_payload and not f.holds_text:
        if kind.is_ragged:
            return lambda rows, draws, epoch, clock: Ragged(
                torch.from_numpy(reader.read_value(name, row, clock=clock)) for row in rows.tolist()
            )
        return lambda rows, draws, epoch, clock: [reader.read_value(name, row, clock=clock) for row in rows.tolist()]
    if f.holds_text:
        if decode is None:
            return lambda rows, draws, epoch, clock: reader.read_texts(name, rows, clock=clock)
        return lambda rows, draws, epoch, clock: [decode(text) for text in reader.read_texts(name, rows, clock=clock)]
    if decode is None:
        return lambda rows, draws, epoch, clock: reader.index.take(name, rows)
    return lambda rows, draws, epoch, clock: [decode(value) for value in reader.index.take(name, rows)]


def _different_images(reader: Reader, name: str, rows: I64, clock: Clock) -> Any:
    """Return images (C, H, W) or masks (H, W) as stored: one tensor if all have one shape, else a list.

    Raises:
        CorruptError: A payload is damaged.
    """
    nbytes = reader.raw_nbytes(name, rows)
    # Each image starts on an 8-byte boundary: 16-bit pixels need an even one.
    room = -(-nbytes // 8) * 8
    start = np.cumsum(room) - room
    buffer = np.empty(int(room.sum()), np.uint8)
    reader.read_into(name, rows, buffer, start, nbytes, clock=clock)
    images, is_mask = [], reader.fields[name].kind == "mask"
    for row, at, length in zip(rows.tolist(), start.tolist(), nbytes.tolist(), strict=True):
        pixels = reader.as_image(name, row, buffer[at : at + length])
        images.append(torch.from_numpy(pixels[0] if is_mask else pixels))
    return _stack_if_equal(images)


def _stack_if_equal(values: list[torch.Tensor]) -> Any:
    """Return tensors of one shape and dtype as one tensor (B, ...), others unchanged."""
    if values and all(v.shape == values[0].shape and v.dtype == values[0].dtype for v in values):
        return torch.stack(values)
    return values
