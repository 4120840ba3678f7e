"""Assembles samples and batches: images, other columns, a dataset's own transform, and batch functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MethodType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import default_collate, get_worker_info
from torch.utils.data._utils.collate import collate as collate_with
from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map

from lmdbloader.base import clock_words
from lmdbloader.base.stage_times import NO_CLOCK, Clock
from lmdbloader.batch.columns import read_different_images, read_values
from lmdbloader.batch.forms import Form, JsonName, ListName, in_form, marks_of
from lmdbloader.batch.memory import BatchMemory, in_shared_memory, is_plain, shared_like
from lmdbloader.batch.pipeline import Pipeline, Scratch
from lmdbloader.batch.sample import Batch, Formed, Ragged, sample_type
from lmdbloader.batch.steps import ConversionStep, OwnStep, Step, bound
from lmdbloader.batch.turns import in_turn
from lmdbloader.errors import OptionError
from lmdbloader.fields import kind_named
from lmdbloader.format.layout import Field, image_of
from lmdbloader.transforms import CompiledFunction
from lmdbloader.transforms.batch_functions import call, described
from lmdbloader.transforms.foreign import check_pixels
from lmdbloader.transforms.in_step import in_step

I64 = npt.NDArray[np.int64]
# Of tensors of Python's numbers.
_DTYPES = {bool: torch.bool, int: torch.int64, float: torch.float64}


@dataclass(slots=True)
class Begun:
    """A batch that several threads fill.

    Attributes:
        columns: Of each field, in order: memory for images of the pipeline, else None.
        addresses: (1, fields of the pipeline) int64, of that memory.
    """

    columns: list[Any]
    addresses: I64


class Assembler:
    """Reads all fields of many samples; safe from several threads and across forks.

    Attributes:
        pipeline: Reads the images, except those of fields whose images differ in shape.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        fields: Mapping[str, Field],
        memory: type[BatchMemory],
        *,
        keep: int,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Prepare to read.

        Args:
            pipeline: Of some or all of the image fields.
            fields: All fields to read, by name and in order.
            memory: Where images of the pipeline are written.
            keep: The most arrays of one size that this memory keeps.
            dtype: Of images that are read without the pipeline, from 0 to 1; None reads them as stored.

        Raises:
            OptionError: A transform would move images without the arrays of their size.
        """
        self.pipeline = pipeline
        for name, field in fields.items():
            if field.kind == "array":
                pipeline.refuse_to_leave_behind(name)
            if field.kind in ("array", "json"):
                pipeline.refuse_to_leave_places(name, partial(read_values, pipeline.reader, field))
        ragged = tuple(name for name, field in fields.items() if kind_named(field.kind).is_ragged)
        json = tuple(name for name, field in fields.items() if field.kind == "json")
        self._names, self._type = tuple(fields), sample_type(tuple(fields), ragged, json)
        self._kinds = {name: field.kind for name, field in fields.items()}
        stored = pipeline.reader.fields.values()
        self._images = {name: image_of(f, stored) for name, f in fields.items() if f.kind in ("boxes", "points")}
        self._own: tuple[Callable[[Any], Any], Callable[[Any], Any]] | None = None
        self._memory_type = memory
        self._memory = [memory(o.stored_shape, o.values.carrier, keep=keep) for o in pipeline.outputs]
        self._places = [self._names.index(o.name) for o in pipeline.outputs]
        # Whether they have pixels, and the image with which they move: computed once, as every sample needs it.
        self._others = [
            (place, f, f.has_pixels, pipeline.image_of_places(f) if f.kind in ("boxes", "points") else None)
            for place, f in enumerate(fields.values())
            if place not in self._places
        ]
        self._dtype = dtype
        # Working memory that no thread is using.
        self._scratch: list[Scratch] = []

    def in_step(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return what `in_step` makes of a function for these fields; the last one is kept.

        Raises:
            OptionError: As `in_step`; or it would take the floats of the pipeline for others.
        """
        if type(function) is MethodType:  # a new object for every call; to keep it would keep its dataset alive
            return in_step(function, self._kinds, self._images)
        own = self._own
        if own is None or own[0] is not function:
            self.check_pixels([function])
            own = self._own = (function, in_step(function, self._kinds, self._images))
        return own[1]

    def check_pixels(self, functions: Sequence[Callable[[Any], Any]]) -> None:
        """Raise OptionError if torchvision's transforms would take the floats of the pipeline for others."""
        found = {o.name: o.values for o in self.pipeline.outputs}
        check_pixels(functions, {name: v.limits for name, v in found.items() if v.dtype.is_floating_point})

    def bound(self, functions: Sequence[Callable[[Any], Any]], keep: int) -> tuple[Callable[[Any], Any] | Step, ...]:
        """Return the functions of a Loader for these fields; `keep` is as for `__init__`.

        Raises:
            OptionError, KernelError: As `steps.bound`. Or a compiled function that names no fields may move images
                without the arrays of their size.
        """
        self._refuse_to_leave_arrays(functions)
        outputs = {o.name: (o.values.dtype, o.shape[0], o.channels_last) for o in self.pipeline.outputs}
        return bound(functions, self._kinds, outputs, memory=self._memory_type, keep=keep)

    def _refuse_to_leave_arrays(self, functions: Sequence[Callable[[Any], Any]]) -> None:
        for function in functions:
            if isinstance(function, CompiledFunction) and function.fields is None:
                for name in (name for name, kind in self._kinds.items() if kind == "array"):
                    if image := self.pipeline.image_of_size(name):
                        raise OptionError(
                            f"{function}: field {name!r} holds arrays of the size of {image!r}, which a function that "
                            "moves pixels would leave behind. If it changes values only, write "
                            f"fields={self.pipeline.fields}. If it moves pixels and {name!r} holds labels of pixels, "
                            "write that field as lmdbloader.fields.Mask()."
                        )

    def read_samples(self, rows: I64, samples: I64, epoch: int, clock: Clock = NO_CLOCK) -> Batch:
        """Return samples as views of one read; their values may differ in shape. Arguments as for `Pipeline.read`."""
        (columns,) = self._read(rows, samples, epoch, max(len(rows), 1), clock)
        return self._samples(columns, len(rows))

    def read_many_samples(
        self, rows: I64, samples: I64, epoch: int, batch_size: int, clock: Clock = NO_CLOCK
    ) -> list[Batch]:
        """Return the samples of batches, as `read_samples` does. Arguments as for `Pipeline.read`."""
        found = self._read(rows, samples, epoch, batch_size, clock)
        sizes = (min(batch_size, len(rows) - start) for start in range(0, len(rows), batch_size))
        return [self._samples(columns, size) for columns, size in zip(found, sizes, strict=True)]

    def _samples(self, columns: list[Any], length: int) -> Batch:
        values = [column.tolist() if isinstance(column, np.ndarray) else column for column in columns]
        return Batch(dict(zip(self._names, values, strict=True)), length, self._type)

    def read_batches(self, rows: I64, samples: I64, epoch: int, batch_size: int, clock: Clock = NO_CLOCK) -> list[Any]:
        """Return batches as named tuples of stacked values, each of batch_size samples except the last.

        Args:
            rows, samples, epoch, batch_size, clock: As for `Pipeline.read`.

        Raises:
            CorruptError: A payload is damaged; names the sample and its source.
            OptionError: Arrays of one batch differ in shape.
        """
        found = self._read(rows, samples, epoch, batch_size, clock)
        return [self._type(*map(stacked, self._names, columns)) for columns in found]

    def read_images(self, row: int, sample: int, epoch: int) -> dict[str, torch.Tensor]:
        """Return the pipeline's images (C, H, W) of one sample, by the names of their fields."""
        begun = self.begin(1)
        self.read_part(begun, np.array([row], np.int64), np.array([sample], np.int64), epoch, 0)
        self._show([begun.columns])
        return {self._names[place]: begun.columns[place][0] for place in self._places}

    def begin(self, num_samples: int) -> Begun:
        """Return a batch without values yet, with memory for so many samples; `read_part` reads into it."""
        columns: list[Any] = [None] * len(self._names)
        return Begun(columns, self._take([columns], num_samples, num_samples))

    def read_part(self, begun: Begun, rows: I64, samples: I64, epoch: int, first: int, clock: Clock = NO_CLOCK) -> None:
        """Read the images of some samples of a batch; other threads may read the other samples.

        Args:
            begun: The batch.
            rows, samples, epoch, clock: As for `Pipeline.read`.
            first: Place of the first of these samples in the batch.
        """
        if len(rows) and self._memory:
            addresses = begun.addresses + np.array([[first * o.nbytes for o in self.pipeline.outputs]], np.int64)
            self._fill(rows, samples, epoch, addresses, len(rows), clock)

    def complete(self, begun: Begun, rows: I64, samples: I64, epoch: int, clock: Clock = NO_CLOCK) -> Any:
        """Return a batch whose images were all read, as `read_batches` does."""
        return self._type(*map(stacked, self._names, self._completed(begun, rows, samples, epoch, clock)))

    def complete_samples(self, begun: Begun, rows: I64, samples: I64, epoch: int, clock: Clock = NO_CLOCK) -> Batch:
        """Return the samples of a batch whose images were all read."""
        return self._samples(self._completed(begun, rows, samples, epoch, clock), len(rows))

    def _completed(self, begun: Begun, rows: I64, samples: I64, epoch: int, clock: Clock) -> list[Any]:
        self._show([begun.columns])
        self._read_others(rows, samples, epoch, [begun.columns], len(rows), clock)
        return begun.columns

    def _read(self, rows: I64, samples: I64, epoch: int, batch_size: int, clock: Clock) -> list[list[Any]]:
        """Return the columns of each batch, at least one, in the order of the fields."""
        batches: list[list[Any]] = [[None] * len(self._names) for _ in range(0, max(len(rows), 1), batch_size)]
        if self._memory:
            clock.tick(clock_words.FUNCTION)
            self._fill(rows, samples, epoch, self._take(batches, len(rows), batch_size), batch_size, clock)
            self._show(batches)
        if self._others:
            self._read_others(rows, samples, epoch, batches, batch_size, clock)
        return batches

    def _read_others(
        self, rows: I64, samples: I64, epoch: int, batches: list[list[Any]], batch_size: int, clock: Clock
    ) -> None:
        """Fill in the columns that the pipeline does not read."""
        reader = self.pipeline.reader
        for place, f, has_pixels, image in self._others:
            for number, batch in enumerate(batches):
                part = rows if len(batches) == 1 else rows[number * batch_size : (number + 1) * batch_size]
                if has_pixels:
                    batch[place] = read_different_images(reader, f.name, part, self._dtype, clock)
                else:
                    batch[place] = read_values(reader, f, part, clock)
                if image is not None:
                    chosen = samples[number * batch_size :][: len(part)]
                    batch[place] = Ragged(self.pipeline.move(batch[place], f.kind, image, part, chosen, epoch))

    def _take(self, batches: list[list[Any]], count: int, batch_size: int) -> I64:
        """Put memory for `count` samples into the columns of the pipeline's fields; return addresses (batches, fields).

        The last batch has memory for its own samples only: torch saves a part of a tensor with the rest of it.
        """
        addresses = np.empty((len(batches), len(self._memory)), np.int64)
        for number, batch in enumerate(batches):
            size = min(batch_size, count - number * batch_size)
            for f, memory in enumerate(self._memory):
                batch[self._places[f]], addresses[number, f] = memory.take(size)
        return addresses

    def _fill(self, rows: I64, samples: I64, epoch: int, addresses: I64, batch_size: int, clock: Clock) -> None:
        """Read the images to their addresses."""
        try:
            scratch = self._scratch.pop()
        except IndexError:
            scratch = self.pipeline.scratch()
        clock.tick(clock_words.BUFFER)
        try:
            self.pipeline.read(rows, samples, epoch, addresses, batch_size, scratch, clock)
        finally:
            self._scratch.append(scratch)

    def _show(self, batches: list[list[Any]]) -> None:
        """Turn the memory of the pipeline's fields into images."""
        for place, output in zip(self._places, self.pipeline.outputs, strict=True):
            for batch in batches:
                batch[place] = output.images(batch[place])


def finished(
    batch: Any,
    transform: Callable[[Any], Any] | None,
    functions: Sequence[Callable[[Any], Any] | Step],
    *,
    seed: int,
    epoch: int,
    position: int,
    samples: I64,
    draws: I64,
    form: Form = None,
    run: Callable[[Callable[[], Any]], Any] | None = None,
) -> Any:
    """Return a batch of a Loader after a dataset's own transform and the batch functions, each called once for it.

    Args:
        batch: A named tuple of stacked values; or a `Batch` of samples, for a transform.
        transform: Called with each sample of a `Batch`; None if there is none.
        functions: Called with the whole batch, one after the other.
        seed, epoch, position: Determine the random numbers of batch functions; see `call`.
        samples: (B,) sample numbers of the batch.
        draws: (B,) numbers that differ for samples that come more than once.
        form: Of the result.
        run: Calls what calls the transform and the functions; None calls it at once.

    Raises:
        OptionError: The transform or a function returned no batch.
    """
    is_fresh = True
    if isinstance(batch, Batch):
        is_fresh = False
        changed = batch if transform is None else in_turn(transform, partial(each, transform, batch), run)
        if any(sample is None for sample in changed):
            raise OptionError(
                f"{described(transform)} returned None for a sample; expected the sample, changed or not. End it "
                "with `return sample`. To leave samples out, select the others first: dataset.select(numbers)."
            )
        batch = collate(changed)
    for place, function in enumerate(functions):
        if isinstance(function, OwnStep):
            batch = function.run(batch, draws, seed=seed, epoch=epoch, is_fresh=is_fresh)
        elif isinstance(function, ConversionStep):
            batch = function.run(batch)
        else:
            called = partial(call, seed=seed, epoch=epoch, position=position, place=place, samples=samples)
            batch = in_turn(function, partial(called, function, batch), run)
            is_fresh = False  # it may keep what it returned, or have returned one tensor twice
    return batch if form is None else in_form(batch, form, is_batch=True)


def each(transform: Callable[[Any], Any], samples: Sequence[Any]) -> list[Any]:
    """Return samples after a Python function that is called with each.

    Raises:
        OptionError: It is not a function; or it raised StopIteration, which a loop would take for the end of the epoch.
    """
    if not callable(transform):
        raise OptionError(
            f"transform={transform!r} is not a function of a sample. Compiled transforms are given as "
            "ds.transformed([...]), or as Loader(ds, ..., transforms=[...])."
        )
    try:
        return [transform(sample) for sample in samples]
    except StopIteration as error:
        raise OptionError(
            f"{described(transform)} raised StopIteration, which would end a loop without an error. Give next() a "
            "default value, or catch the exception."
        ) from error


def collate(samples: Sequence[Any]) -> Any:
    """Return samples as one batch; those that a dataset has read at once need no copy.

    Images and arrays become tensors (B, ...), ints int64, floats float64 and bools bool tensors (B,); text, bytes and
    other JSON values stay lists. The batch is a named tuple, or has the form of its samples: `LMDBDataset(...,
    as_="dict")` gives dicts. Other samples (of a transform, or of another dataset) go through torch's own collate
    function; so do plain tuples that were read one by one, whose boxes are stacked if all samples have as many.

    Args:
        samples: A list of samples, or what a dataset has read at once.

    Raises:
        OptionError: Images of one batch differ in shape, or a sample is None.
    """
    in_worker = get_worker_info() is not None
    if isinstance(samples, Formed):
        return in_form(collate(samples.plain), samples.form, is_batch=True)
    if isinstance(samples, Batch):
        batch = samples.type(*map(stacked, samples.columns, samples.columns.values()))
        batch = in_form(batch, samples.form, is_batch=True)
    elif any(sample is None for sample in samples):
        raise OptionError(
            "a sample is None: the dataset's transform returned nothing for it. End it with `return sample`. To leave "
            "samples out, select the others first: dataset.select(numbers)."
        )
    elif marks := marks_of(samples[0]):
        first, columns = samples[0], {}
        for name in getattr(first, "_fields", first):
            values, mark = [sample[name] for sample in samples], marks.get(name)
            if mark is JsonName and not any(isinstance(value, torch.Tensor) for value in values):
                columns[str(name)] = stacked(name, values)
            else:
                columns[str(name)] = values if mark is ListName else _collated(values, in_worker)
        batch = columns if isinstance(first, dict) else type(first)(**columns)
    else:
        batch = _collated(samples, in_worker)
    # Tensors that are not shared yet would be when they are sent: in /dev/shm, which may be full.
    return in_shared_memory(batch) if in_worker else batch


def _collated(samples: Sequence[Any], in_worker: bool) -> Any:
    """Return a batch of torch's own collate function."""
    try:
        if in_worker:
            return collate_with(list(samples), collate_fn_map={**default_collate_fn_map, torch.Tensor: _stacked_shared})
        return default_collate(list(samples))
    except RuntimeError as error:
        if shapes := _grey_and_colour(samples):
            raise OptionError(
                f"one batch has grey and colour images, {shapes[0]} and {shapes[1]}: the dataset's own transform gets "
                "them as they are stored. Write transform=v2.Compose([v2.RGB(), ...]), of torchvision.transforms.v2."
            ) from error
        raise


def _grey_and_colour(samples: Sequence[Any]) -> list[tuple[int, ...]]:
    """Return two shapes if the images of a field differ only in that some are grey, else none."""
    rows = [
        [*sample.values()] if isinstance(sample, dict) else sample if isinstance(sample, list | tuple) else [sample]
        for sample in samples
    ]
    for values in zip(*rows, strict=False):
        shapes = sorted({tuple(value.shape) if isinstance(value, torch.Tensor) else () for value in values})
        if len(shapes) == 2 and [shape[:1] for shape in shapes] == [(1,), (3,)] and shapes[0][1:] == shapes[1][1:]:
            return shapes
    return []


def _stacked_shared(tensors: Sequence[torch.Tensor], *, collate_fn_map: Any = None) -> torch.Tensor:
    """Return tensors as one (B, ...) in shared memory, as torch does, but not in /dev/shm if that can be avoided."""
    first = tensors[0]
    if not all(type(t) is torch.Tensor and is_plain(t) and t.dtype == first.dtype for t in tensors):
        return collate_tensor_fn(tensors, collate_fn_map=collate_fn_map)  # type: ignore[no-any-return]
    return torch.stack(list(tensors), out=shared_like(first, (len(tensors), *first.shape)))


def stacked(name: str, column: Any) -> Any:
    """Return the values of one field as a tensor (B, ...), or as a list if they are not numbers.

    Args:
        name: Of the field.
        column: A tensor or NumPy array (B, ...), or a list of B values.

    Raises:
        OptionError: Images or arrays differ in shape.
    """
    if isinstance(column, np.ndarray):
        return torch.from_numpy(column)
    if isinstance(column, Ragged):
        return list(column)
    if isinstance(column, torch.Tensor) or not column:
        return column
    first = column[0]
    if isinstance(first, torch.Tensor):
        shapes = sorted({tuple(value.shape) for value in column})
        if [len(shape) for shape in shapes] == [3, 3] and shapes == [(1, *shapes[0][1:]), (3, *shapes[0][1:])]:
            raise OptionError(
                f"field {name!r}: one batch has grey and colour images, {shapes[0]} and {shapes[-1]}. Use "
                "lmdbloader.Loader, which gives grey ones three equal channels, or transforms, which do so too: "
                "dataset.transformed([...])."
            )
        raise OptionError(
            f"field {name!r}: the values of one batch have different shapes, such as {shapes[0]} and {shapes[-1]}. "
            "Convert with --patch-size, crop them in a transform, or use batch_size=1. For the "
            f"classes of boxes, give write(..., fields={{{name!r}: fields.Labels()}}): batches then have a list."
        )
    # JSON values of one field may differ in type.
    dtype = _DTYPES.get(type(first)) if len(set(map(type, column))) == 1 else None
    return column if dtype is None else torch.tensor(column, dtype=dtype, device="cpu")
