"""LMDBDataset, a torch Dataset: samples as named tuples of tensors, many read in one call."""

from __future__ import annotations

import copy
import operator
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Subset

from lmdbloader.base.arguments import field_names, listed
from lmdbloader.base.option_names import shown
from lmdbloader.base.text import counted
from lmdbloader.batch.batcher import Batcher
from lmdbloader.batch.many import ReadsMany, Ticket, overridden
from lmdbloader.batch.memory import FieldMemories
from lmdbloader.batch.pipeline import Pipeline, check_epoch
from lmdbloader.batch.sample import Form, check_form
from lmdbloader.errors import OptionError, UnknownNameError
from lmdbloader.format.layout import Field
from lmdbloader.store import IO, Reader, check_rows
from lmdbloader.store.rows import Rows, choose, compact, places_in, rows_at
from lmdbloader.transforms.base import Transform

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Self

    from lmdbloader.batch.draws import Draws

I64 = npt.NDArray[np.int64]
# Batches of one size whose memory is kept for the next ones.
_KEPT = 4
# Options, and attributes that make the samples of other datasets of torch: to set one would have no effect.
WITHOUT_EFFECT = frozenset(
    {"as_", "cache_dir", "cache_fraction", "data", "imgs", "indices", "io", "labels", "loader", "samples"}
    | {"target_transform", "transforms"}
)


class LMDBDataset(ReadsMany):
    """A dataset made by lmdbloader, read through a memory map or by its descriptor.

    `ds[i]` is a named tuple of the fields: images as uint8 or uint16 tensors (C, H, W), masks as (H, W), arrays as
    tensors, labels as int, text as str, bytes as bytes. Slices and lists of numbers give views of the dataset. Subclass
    it and override `transform` to change the samples. It pickles as its path, and reads from any number of threads and
    processes.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        fields: Sequence[str] | None = None,
        transform: Callable[[Any], Any] | None = None,
        *,
        io: IO = "mmap",
        as_: Form = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_fraction: float | None = None,
    ) -> None:
        """Open a dataset.

        Args:
            path: The folder that `lmdbloader convert` or `lmdbloader.write` made; or the URL of such a folder, such as
                "s3://bucket/train.lmdb", whose bytes are fetched when they are needed, and kept on a local disk.
            fields: The fields to read, in this order; all of them by default. Others are never touched.
            transform: Called with every sample; a subclass may override the method `transform` instead.
            io: "mmap" reads through a memory map. Bytes that the disk cannot read, or that the file has lost, raise
                CorruptError; a file that is truncated during a read ends the process (SIGBUS). "pread" maps nothing and
                reads copies, which costs some speed: such a file always raises CorruptError.
            as_: The form of samples, and of the batches of a Loader: "tuple", "dict", or a dict from new names to
                fields, such as {"pixel_values": "image"}; None gives named tuples. A `transform` is called
                with named tuples before.
            cache_dir: Of a dataset at a URL, the folder of the caches of all datasets; by default `remote` in the
                user's cache folder. For a dataset on a disk, which has no cache, both options are an error.
            cache_fraction: Of a dataset at a URL, the share that is kept on the disk, from 0 to 1; None is 1.0, all of
                it. The rest is fetched in every epoch, and its space is given back after use.

        Raises:
            NotFoundError: There is nothing at `path`.
            FormatError: It is not a finished dataset of this format version.
            CorruptError: A file is truncated or damaged, or was replaced at its URL.
            DiskError: The server of a URL does not answer.
            DiskFullError: There is no room for the cache.
            OptionError: The dataset has no such field, `transform` cannot be called, `io` is neither "mmap" nor
                "pread", or a dataset on a disk has options of a cache.
        """
        if not (transform is None or callable(transform)):
            raise OptionError(
                f"transform={shown(transform)}: expected a function; dataset.transformed([...]) takes those of "
                "lmdbloader.transforms"
            )
        self._open(Reader(path, io=io, cache_dir=cache_dir, cache_fraction=cache_fraction), fields, transform, as_)

    @classmethod
    def of_reader(cls, reader: Reader) -> Self:
        """Return all samples of a reader."""
        dataset = cls.__new__(cls)
        dataset._open(reader, None, None, None)
        return dataset

    def _open(
        self, reader: Reader, fields: Sequence[str] | None, transform: Callable[[Any], Any] | None, as_: Form
    ) -> None:
        self.reader = reader
        names = field_names(fields, [(self.reader.place, self.reader.fields)])
        self.fields: dict[str, Field] = {name: self.reader.fields[name] for name in names}
        self._transform = transform
        # Of a view that stands for torch's Subset or ConcatDataset: returns the dataset whose transform the view has.
        self._source: Any = None
        self._form = check_form(as_, None if self.has_own_transform else names)
        self._rows: Rows | None = None  # a range takes no memory
        self.all_transforms: tuple[Transform, ...] = ()  # the compiled ones of `transformed`
        self._draws: Draws | None = None  # of `transformed`
        self._own_last_set: tuple[int, int] | None = None
        self._targets: tuple[int, ...] | None = None
        self._batcher: Batcher | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute.

        Raises:
            OptionError: It cannot change, or it would have no effect: a subclass that makes samples in a method of its
                own may have such attributes.
        """
        own = self.__dict__
        is_fixed = name in own and name in ("fields", "reader")
        # A view that stands for torch's Subset or ConcatDataset: the samples come from the dataset inside.
        is_of_another = own.get("_source") is not None and name[0] != "_" and name != "transform"
        is_used = overridden(self) or type(self).transform is not LMDBDataset.transform or hasattr(type(self), name)
        if is_fixed or is_of_another or (name in WITHOUT_EFFECT and not is_used):
            raise OptionError(
                f"dataset.{name} = ...: it would have no effect. Write LMDBDataset(path, ...) with other options, "
                "dataset.select(numbers) for some of the samples, or dataset.transform = function to change them."
            )
        super().__setattr__(name, value)

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes for a pickle or a view, which make a batcher of their own."""
        return {**self.__dict__, "_batcher": None, "_targets": None}

    @property
    def path(self) -> str:
        """The dataset's folder, absolute, or its URL."""
        return self.reader.place

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names by label; empty if the dataset was made without them."""
        return next(iter(self.reader.manifest.classes.values()), ())

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Labels by class name, as torchvision's ImageFolder has them."""
        return {name: label for label, name in enumerate(self.classes)}

    @property
    def targets(self) -> tuple[int, ...]:
        """The label of every sample of this view, as torchvision's ImageFolder has them.

        Raises:
            UnknownNameError: The dataset has neither class names nor an int field `label`.
        """
        if self._targets is None:  # a loop may ask for it again and again
            name = next(iter(self.reader.manifest.classes), "label")
            found = self.reader.fields.get(name)
            if found is None or found.kind != "int":
                raise UnknownNameError(f"{self.path}: targets: the dataset has no labels; see dataset.table")
            self._targets = tuple(self.reader.index.take(name, self.stored_rows).tolist())
        return self._targets

    @property
    def table(self) -> pa.Table:
        """The small columns, one row per sample: labels, text, source, patch position, image sizes.

        Long texts, which are in the data file, are read each time, if they are among the `fields` that were chosen;
        the other columns are those of all fields.
        """
        from lmdbloader.store.conditions import table_of

        return table_of(self.reader, self.stored_rows, self._table_columns)

    @property
    def _table_columns(self) -> list[str]:
        """The columns of `table`."""
        from lmdbloader.store.conditions import column_names

        long = self.reader.long_texts
        return [name for name in column_names(self.reader) if name not in long or name in self.fields]

    def transform(self, sample: Any) -> Any:
        """Return a sample as `ds[i]` gives it; override it in a subclass."""
        return sample if self._transform is None else self._transform(sample)

    @property
    def _own_transform(self) -> Callable[[Any], Any] | None:
        """The Python function that samples go through one by one; None if there is none."""
        if "transform" in self.__dict__:  # assigned, as people do with torchvision's datasets
            assigned: Callable[[Any], Any] | None = self.__dict__["transform"]
            return assigned
        if self._source is not None:
            own: Callable[[Any], Any] | None = self._source()._own_transform
            return own
        return self._transform if type(self).transform is LMDBDataset.transform else self.transform

    @property
    def has_own_transform(self) -> bool:
        """Whether samples go through a Python function one by one: a transform, or a subclass's own `__getitem__`."""
        return self._own_transform is not None or overridden(self) is not None

    def __len__(self) -> int:
        return len(self.stored_rows)

    def __getitem__(self, index: Any) -> Any:
        """Return sample `index`, or a view for a slice or a list of numbers.

        Raises:
            IndexError: Beyond either end.
            CorruptError: The stored bytes are damaged.
            OptionError: It is a text.
        """
        if isinstance(index, Ticket):
            return index
        if getattr(index, "ndim", 0):  # a tensor with one number counts as a number
            return self.select(index)
        try:
            number = operator.index(index)
        except TypeError:
            return self.select(index)
        sample: Any = self._many([number])[0]
        return sample

    def __repr__(self) -> str:
        fields = ", ".join(f"{f.name} ({f.kind})" for f in self.fields.values())
        return f"{type(self).__name__}({self.path!r}: {counted(len(self), 'sample')} of {fields})"

    def crop(
        self, index: int, *, top: int, left: int, height: int, width: int, field: str | None = None
    ) -> torch.Tensor:
        """Return a window (C, height, width) of one image, or (height, width) of a mask.

        Of a large one only the tiles that it touches are read.

        Args:
            index: Sample number.
            top: First row of the window, in pixels.
            left: Its first column.
            height: In pixels.
            width: In pixels.
            field: A field of images or masks; not needed if there is only one.

        Raises:
            OptionError: The window is not inside the image, or it is not clear which field is meant.
        """
        images = [name for name, f in self.fields.items() if f.has_pixels]
        name = field if field is not None else images[0] if len(images) == 1 else None
        if name not in images:
            raise OptionError(f"{self.path}: field={field!r}; expected one of its image fields: {', '.join(images)}")
        row = int(self.rows_of(check_rows([index], len(self.stored_rows)))[0])
        window = torch.from_numpy(self.reader.read_crop(name, row, top=top, left=left, height=height, width=width))
        return window[0] if self.fields[name].kind == "mask" else window

    def transformed(self, transforms: Sequence[Transform], *, seed: int | None = None) -> Self:
        """Return a view whose images are transformed by compiled code while they are read.

        Without a seed every read makes new random choices, as with torchvision's transforms: in every epoch of any
        DataLoader, and for every repeated index. They follow `torch.manual_seed`, for the same number of workers.

        With a seed a random choice depends only on the seed, the epoch and the sample's number in this view: `view[i]`
        is the same at every read, in any number of worker processes, until the epoch changes. `lmdbloader.dataloader`
        then advances the epoch at every iteration; with another DataLoader, call `set_epoch` before each epoch.

        Args:
            transforms: Of lmdbloader.transforms.
            seed: From 0 to 2**64 - 1; None keeps the seed of this view, if it has one.

        Raises:
            OptionError: A transform does not suit the images.
        """
        from lmdbloader.batch.draws import Draws

        view, transforms = copy.copy(self), listed("transforms", transforms)
        view.__dict__["all_transforms"] = (*self.all_transforms, *transforms)
        seed = self._draws.seed if seed is None and self._draws else seed
        view._draws = None if seed is None else Draws(seed, len(self.stored_rows))
        if transforms:
            check_images(self, f"transformed({list(transforms)})")
        view._open_batcher()  # checks that the transforms suit the images
        return view

    def with_io(self, io: IO) -> Self:
        """Return a view that reads the same open files as `io` says, even if they were replaced since.

        Raises:
            OptionError: `io` is neither "mmap" nor "pread".
        """
        view = self._view(len(self.stored_rows))
        view.__dict__["reader"] = self.reader.with_io(io)
        return view

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the random choices of `transformed`, here and in the views that were made from this view.

        They depend only on the seed, the epoch and the sample's number, also in worker processes that are running.
        Without a seed they are new at every read, whatever the epoch. The epoch of a view that was made from this one
        can be set, and `dataloader` advances it, without a change here.

        Raises:
            OptionError: It is negative, or does not fit into 63 bits.
        """
        epoch = check_epoch(epoch)
        if self._draws is not None:
            self._draws.set_epoch(epoch)
        else:
            self._own_last_set = epoch, (self._own_last_set or (0, 0))[1] + 1

    @property
    def _last_set(self) -> tuple[int, int] | None:
        """The epoch that `set_epoch` has set, and the number of its calls; None before any call."""
        return self._own_last_set if self._draws is None else self._draws.last_set

    def select(self, indices: Any) -> Self:
        """Return a view with the samples of a slice, a list of numbers, or a mask with one bool per sample.

        The view of a subclass with its own `__getitem__` or `__len__` is torch's Subset, which calls that method with
        the numbers of this dataset; so it is for `split` and `where`.

        Args:
            indices: Numbers of samples in this view; negative ones count from its end.

        Raises:
            IndexError: A number is out of range.
            OptionError: The mask has another length, or it is a text or a function.
        """
        if isinstance(indices, str) or callable(indices):
            raise OptionError(
                f"{shown(indices)}: expected numbers of samples, or one bool per sample; `where` takes a condition"
            )
        places: range | I64 | None = None
        if isinstance(indices, slice):
            places = range(len(self))[indices]
        elif isinstance(indices, range):
            places = places_in(indices, len(self))
        if places is None:
            array = np.asarray(indices)
            if array.dtype == np.bool_ and array.shape != (len(self),):
                raise OptionError(
                    f"a mask of shape {array.shape} for a dataset of {counted(len(self), 'sample')}; "
                    "expected one bool per sample"
                )
            places = np.flatnonzero(array) if array.dtype == np.bool_ else check_rows(array, len(self))
        if overridden(self):
            return cast("Self", Subset(self, places if isinstance(places, range) else places.tolist()))
        if isinstance(places, range):
            return self.with_rows(choose(self.stored_rows, places))
        return self.with_rows(compact(self.rows_of(places)))

    def where(self, condition: str) -> Self:
        """Return a view with the samples whose row of `table` matches a condition; no pixel is read.

        Long texts, which are in the data file, are read only if the condition names them.

        Args:
            condition: In Python's syntax, such as "label == 3", "label in ('cat', 'dog') and image.height >= 256",
                "'night' in source", "score is null". A text is the name of a class for a column of labels.

        Raises:
            OptionError: It is not a condition, or does not fit the table: it names a column that is not there, for
                example.
        """
        from lmdbloader.store.conditions import matching

        return self.select(matching(self.reader, self.stored_rows, condition))

    def split(
        self, fractions: Sequence[float], *, seed: int = 0, by: str | Sequence[Any] | None = "source"
    ) -> tuple[Self, ...]:
        """Return views that divide the samples at random, each in the dataset's order.

        Args:
            fractions: Share of the samples in each view, adding up to 1; met as closely as whole groups allow.
            seed: Of the shuffle.
            by: Column of `table` whose equal values stay in one view: by default all patches of one photograph do, and
                all frames of one clip. Or a list with the group of each sample, such as its patient. None splits sample
                by sample, as does a dataset without sources.

        Raises:
            OptionError: The fractions do not add up to 1, there are fewer groups than views, no such column, or not as
                many groups as samples.
        """
        from lmdbloader.batch.splits import groups_of, share_out
        from lmdbloader.store.conditions import column_names

        groups = groups_of(self.reader, column_names(self.reader), self.stored_rows, by)
        parts = share_out(groups, fractions, seed)
        return tuple(self.select(part) for part in parts)

    def rows_of(self, samples: I64) -> I64:
        """Return the rows of the stored index (n,) for this view's samples (n,)."""
        return samples if self._rows is None else rows_at(self._rows, samples)

    @property
    def stored_rows(self) -> Rows:
        """The rows of the stored index that are this view's samples, in order: a range, or an array (n,)."""
        return range(len(self.reader)) if self._rows is None else self._rows

    def with_rows(self, rows: Rows) -> Self:
        """Return a view whose samples are rows of the stored index, a range or (n,), in this order; see `rows_of`."""
        view = self._view(len(rows))
        view._rows = None if isinstance(rows, range) and rows == range(len(self.reader)) else rows
        return view

    def _view(self, length: int) -> Self:
        """Return a view with the same samples, or of so many others; its epoch is its own."""
        view = copy.copy(self)
        view._draws = self._draws and self._draws.of_view(length)
        return view

    def _many(self, numbers: Sequence[int]) -> Sequence[Any]:
        """Return samples read in one call: a `Batch` of views, or a list if the dataset has a transform of its own."""
        samples = checked = check_rows(numbers, len(self.stored_rows))
        batcher, epoch = self._open_batcher(), 0
        if batcher.pipeline.program.is_random:
            if self._draws is None:
                from lmdbloader.batch.draws import drawn

                samples, epoch = drawn(samples)
            else:
                samples, epoch = self._draws.of(samples)
        return self._read(checked, samples, epoch)

    def _read(self, numbers: I64, draws: I64, epoch: int) -> Sequence[Any]:
        """Return samples (n,) in one call, with the random choices of (seed, epoch, draws) (n,)."""
        batcher = self._open_batcher()
        batch = batcher.read_samples(self.rows_of(numbers), draws, epoch)
        if (transform := self._own_transform) is not None:
            return batcher.own_functions.changed(batch, transform, self._form)
        batch.form = self._form
        return batch

    def _open_batcher(self) -> Batcher:
        """Return the reader of samples, made when it is first needed."""
        if self._batcher is None:
            from lmdbloader.batch.shared_memory import SharedMemory

            images = [name for name, f in self.fields.items() if f.has_pixels]
            if not self.all_transforms:  # a pipeline gives images of one shape; others are read without it
                images = self.uniform_images()
            transforms = self.all_transforms
            rows = self._rows if transforms else None
            seed = self._draws.seed if self._draws else None
            pipeline = Pipeline(self.reader, images, transforms, rows=rows, seed=seed or 0)
            memory = partial(FieldMemories, SharedMemory)
            self._batcher = Batcher(pipeline, self.fields, self.stored_rows, memory, keep=_KEPT)
        return self._batcher

    def uniform_images(self, rows: Rows | None = None, *, of_any_channels: bool = False) -> list[str]:
        """Return the fields of images or masks that all have one shape and bit depth.

        Args:
            rows: Rows of the stored index to consider, a range or (n,); all of them by default.
            of_any_channels: Whether gray images and images in color count as alike.
        """
        if not len(self.reader if rows is None else rows):
            return []
        parts = ["height", "width", "bits", *(() if of_any_channels else ("channels",))]

        def are_alike(name: str) -> bool:
            return all(low == high for low, high in (self.reader.extremes(name, part, rows) for part in parts))

        return [name for name, f in self.fields.items() if f.has_pixels and are_alike(name)]


def check_images(dataset: LMDBDataset, call: str) -> None:
    """Raise OptionError if a dataset has no image that a call could change.

    Args:
        dataset: The dataset.
        call: Named in the error.
    """
    if not any(f.has_pixels for f in dataset.fields.values()):
        names = ", ".join(f"{f.name} ({f.kind})" for f in dataset.fields.values())
        array = next((f'"{f.name}"' for f in dataset.fields.values() if f.kind == "array"), "")
        line = f". If {array} holds images, write them with fields={{{array}: lmdbloader.fields.Image()}}."
        found = f"the dataset has no image field; it is read with {names}{line * bool(array)}"
        raise OptionError(f"{dataset.path}: {call}: {found}")
