"""The torch Dataset: samples as named tuples of tensors, many read in one call."""

from __future__ import annotations

import copy
import operator
import os
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset, get_worker_info

from lmdbloader.base import clock_words
from lmdbloader.base.stage_times import Clock, StageTimes, Stopwatch
from lmdbloader.batch.buffers import Buffers
from lmdbloader.batch.columns import read_different_images, read_values
from lmdbloader.batch.pipeline import Pipeline, check_epoch, check_seed
from lmdbloader.batch.sample import Batch
from lmdbloader.batch.shared import shared_tensor
from lmdbloader.batch.splits import groups_of, share_out
from lmdbloader.errors import OptionError
from lmdbloader.format.layout import Field
from lmdbloader.store import IO, Reader, check_rows
from lmdbloader.transforms import ToDtype, Transform

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
    from typing_extensions import Self

I64 = npt.NDArray[np.int64]
_HIDDEN_COLUMNS = (".offset", ".stored_nbytes", ".raw_nbytes", ".checksum", ".codec")


class LMDBDataset(Dataset[Any]):
    """A dataset made by lmdbloader, read through a memory map or by its descriptor.

    `ds[i]` is a named tuple of the fields: images as uint8 or uint16 tensors (C, H, W), arrays as tensors, labels as
    int, text as str, bytes as bytes. Slices and lists of numbers give views of the dataset. Subclass it and override
    `transform` to change what a sample is. It pickles as its path, and reads from any number of threads and processes.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        fields: Sequence[str] | None = None,
        transform: Callable[[Any], Any] | None = None,
        *,
        io: IO = "mmap",
    ) -> None:
        """Open a dataset.

        Args:
            path: The folder that `lmdbloader convert` or `lmdbloader.write` made.
            fields: Which fields to read, in this order; all of them by default. Others are never touched.
            transform: Called with every sample; a subclass may override the method `transform` instead.
            io: "mmap" reads through a memory map. Bytes that the disk does not read, or that the file has lost, are a
                CorruptError; a file that is cut short in the moment in which it is read ends the process (SIGBUS).
                "pread" maps nothing and reads copies, at some cost in speed: such a file is a CorruptError always.

        Raises:
            FileNotFoundError: There is nothing at `path`.
            FormatError: It is no finished dataset of this format version.
            CorruptError: A file is cut short or damaged.
            OptionError: A field that it does not have, or `io` is neither "mmap" nor "pread".
        """
        if isinstance(fields, str):
            raise OptionError(f"fields={fields!r}: expected a list of names, such as [{fields!r}]")
        self.reader = Reader(path, io=io)
        names = tuple(self.reader.fields) if fields is None else tuple(fields)
        for name in names:
            if name not in self.reader.fields:
                raise OptionError(f"{self.reader.path}: no field {name!r}; it has {', '.join(self.reader.fields)}")
        if not names or len(set(names)) != len(names):
            raise OptionError(f"fields={names!r}: expected at least one name, each once")
        self.fields: dict[str, Field] = {name: self.reader.fields[name] for name in names}
        self._transform = transform
        self._rows: I64 | None = None
        self._dtype: torch.dtype | None = None
        self._transforms: tuple[Transform, ...] = ()
        self._seed = 0
        # In a view of `transformed` it is shared, so that worker processes see it change.
        self._epoch = torch.zeros(1, dtype=torch.int64)
        self._forget_pipeline()
        self._buffers = Buffers()
        self._stopwatch = Stopwatch()

    def _forget_pipeline(self) -> None:
        self._pipeline: Pipeline | None = None
        self._opened = False
        self._scratch = _Scratch()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pipeline": None, "_opened": False}

    @property
    def path(self) -> str:
        """The dataset's folder, absolute."""
        return str(self.reader.path)

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names by label; empty where the dataset was not made from class folders."""
        return next(iter(self.reader.manifest.classes.values()), ())

    @property
    def table(self) -> pa.Table:
        """The small columns, one row a sample: labels, text, source, patch position, image sizes."""
        import pyarrow as pa

        batch = self.reader.index.batch
        shown = [name for name in batch.schema.names if not name.endswith(_HIDDEN_COLUMNS)]
        table = pa.Table.from_batches([batch]).select(shown)
        return table if self._rows is None else table.take(pa.array(self._rows))

    def transform(self, sample: Any) -> Any:
        """Return what `ds[i]` gives for a sample; override it in a subclass."""
        return sample if self._transform is None else self._transform(sample)

    @property
    def has_own_transform(self) -> bool:
        """Whether samples go through a Python function one by one."""
        return self._transform is not None or type(self).transform is not LMDBDataset.transform

    def __len__(self) -> int:
        return len(self.reader) if self._rows is None else len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        """Return sample `index`, or a view for a slice or a list of numbers.

        Raises:
            IndexError: Beyond either end.
            CorruptError: The stored bytes are damaged.
        """
        if getattr(index, "ndim", 0):  # a tensor of one number passes for a number
            return self.select(index)
        try:
            number = operator.index(index)
        except TypeError:
            return self.select(index)
        sample: Any = self._transformed([number])[0]
        return sample

    def __getitems__(self, indices: Sequence[int]) -> Sequence[Any]:
        """Return many samples read in one call: a `Batch` of views, or a list where there is a transform."""
        return self._transformed(indices)

    def time_stages(self, on: bool = True) -> bool:
        """Have this dataset and its views count what reading samples in this process spends its time on, or stop that.

        That is for torch's DataLoader with num_workers=0; a Loader has its own.

        Returns:
            Whether it was counted before.
        """
        return self._stopwatch.switch(on)

    def stage_times(self) -> StageTimes:
        """Return what reading samples spent its time on since `time_stages`; every call for samples is a batch."""
        return self._stopwatch.times()

    def __repr__(self) -> str:
        fields = ", ".join(f"{f.name} ({f.kind})" for f in self.fields.values())
        return f"{type(self).__name__}({self.path!r}: {len(self)} samples of {fields})"

    def _repr_html_(self) -> str:
        """Return what Jupyter shows: some samples, the fields, the sizes; what is damaged shows as such."""
        from lmdbloader.show.dataset_card import dataset_card

        steps = [*map(repr, self.all_transforms), *(["a function of its own"] if self.has_own_transform else [])]
        title, fields = type(self).__name__, list(self.fields.values())
        return dataset_card(self.reader, fields, self._rows, title=title, transforms=steps).to_html()

    def crop(
        self, index: int, *, top: int, left: int, height: int, width: int, field: str | None = None
    ) -> torch.Tensor:
        """Return a window (C, height, width) of one image; of a large one only the tiles it touches are read.

        Args:
            index: Sample number.
            top: First row of the window, in pixels.
            left: Its first column.
            height: In pixels.
            width: In pixels.
            field: An image field; may be left out where there is only one.

        Raises:
            OptionError: The window is not inside the image, or the field is not clear.
        """
        images = [name for name, f in self.fields.items() if f.kind == "image"]
        name = field if field is not None else images[0] if len(images) == 1 else None
        if name not in images:
            raise OptionError(f"{self.path}: field={field!r}; expected one of its image fields: {', '.join(images)}")
        row = int(self._numbers([index])[0])
        return torch.from_numpy(self.reader.read_crop(name, row, top=top, left=left, height=height, width=width))

    def scaled(self, dtype: torch.dtype = torch.float32) -> Self:
        """Return a view whose images are numbers from 0 to 1, converted while they are read.

        Args:
            dtype: torch.float32, float16 or bfloat16.

        Raises:
            OptionError: Another type is asked for.
        """
        if dtype not in (torch.float32, torch.float16, torch.bfloat16):
            raise OptionError(f"scaled({dtype}): expected torch.float32, torch.float16 or torch.bfloat16")
        view = copy.copy(self)
        view._dtype = dtype
        view._forget_pipeline()
        return view

    def transformed(self, transforms: Sequence[Transform], *, seed: int = 0) -> Self:
        """Return a view whose images are transformed while they are read, by compiled code.

        Every random choice depends only on the seed, the epoch (see `set_epoch`) and the sample's number in this view,
        so it is the same in any number of worker processes.

        Args:
            transforms: Of lmdbloader.transforms.
            seed: From 0 to 2**64 - 1.

        Raises:
            OptionError: A transform does not suit the images.
        """
        view = copy.copy(self)
        view._transforms = (*self._transforms, *transforms)
        view._seed = check_seed(seed)
        view._epoch = shared_tensor(8).view(torch.int64).zero_()
        view._forget_pipeline()
        if view._open_pipeline() is None and transforms:
            raise OptionError(f"{self.path}: transformed({list(transforms)}): the dataset has no image field")
        return view

    def with_io(self, io: IO) -> Self:
        """Return a view of the very same files, whatever has their names by now, that reads them as `io` says.

        Raises:
            OptionError: `io` is neither "mmap" nor "pread".
        """
        view = copy.copy(self)
        view.reader = self.reader.with_io(io)
        view._forget_pipeline()
        return view

    def set_epoch(self, epoch: int) -> None:
        """Make the random choices of `transformed` those of an epoch, also in worker processes that run already.

        Raises:
            OptionError: It is negative, or does not fit 63 bits.
        """
        self._epoch[0] = check_epoch(epoch)

    def select(self, indices: Any) -> Self:
        """Return a view with the samples of a slice, a list of numbers, or a mask of one bool a sample.

        Args:
            indices: Which, counted in this view; negative ones from its end.

        Raises:
            IndexError: A number beyond either end.
            OptionError: A mask of another length.
        """
        everything = np.arange(len(self), dtype=np.int64)
        if isinstance(indices, slice):
            chosen = everything[indices]
        else:
            array = np.asarray(indices)
            if array.dtype == np.bool_ and array.shape != everything.shape:
                raise OptionError(f"a mask of shape {array.shape} for a dataset of {len(self)} samples")
            chosen = everything[array] if array.dtype == np.bool_ else check_rows(array, len(self))
        view = copy.copy(self)
        view._rows = chosen if self._rows is None else self._rows[chosen]
        if self._transforms:
            view._forget_pipeline()
        return view

    def where(self, condition: pc.Expression) -> Self:
        """Return a view with the samples whose row of `table` fulfils an Arrow expression; no pixel is read.

        Args:
            condition: Such as pyarrow.compute.field("label") == 3.

        Raises:
            OptionError: The expression does not fit the table, for example names a column that it does not have.
        """
        import pyarrow as pa

        table = self.table
        numbered = table.append_column("sample number", pa.array(np.arange(table.num_rows)))
        try:
            found = numbered.filter(condition)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            reason = str(error).partition("\n")[0]
            raise OptionError(
                f"where({condition}): {reason}; the columns are {', '.join(table.column_names)}"
            ) from error
        return self.select(found.column("sample number").to_numpy())

    def split(self, fractions: Sequence[float], *, seed: int = 0, by: str | None = "source") -> tuple[Self, ...]:
        """Return views that share the samples out at random, each in the dataset's order.

        Args:
            fractions: Share of each view, adding up to 1.
            seed: Of the shuffle.
            by: Column of `table` whose equal values stay on one side: by default all patches of one photograph do.
                None splits sample by sample, as happens where the dataset has no sources.

        Raises:
            OptionError: The fractions do not add up, there are fewer groups than views, or no such column.
        """
        parts = share_out(groups_of(self.reader, self.table.column_names, self._rows, by), fractions, seed)
        return tuple(self.select(part) for part in parts)

    def _numbers(self, indices: Sequence[int]) -> I64:
        return self.rows_of(check_rows(indices, len(self)))

    def rows_of(self, samples: I64) -> I64:
        """Return the rows of the stored index (n,) of this view's samples (n,)."""
        return samples if self._rows is None else self._rows[samples]

    def _transformed(self, indices: Sequence[int]) -> Sequence[Any]:
        """Return many samples after this dataset's own transform."""
        clock = self._stopwatch.take()
        try:
            samples = check_rows(indices, len(self))
            batch = self._read(self.rows_of(samples), samples, clock)
            found = [self.transform(sample) for sample in batch] if self.has_own_transform else batch
            clock.count(len(found), 1)
            return found
        finally:
            clock.end()

    def _read(self, rows: I64, samples: I64, clock: Clock) -> Batch:
        pipeline = self._open_pipeline()
        images = {} if pipeline is None else self._read_images(pipeline, rows, samples, clock)
        columns: dict[str, Any] = {}
        for name, f in self.fields.items():
            if name in images:
                columns[name] = images[name]
            elif f.kind == "image":
                columns[name] = read_different_images(self.reader, name, rows, self._dtype, clock)
            else:
                columns[name] = read_values(self.reader, f, rows, clock)
        return Batch(columns, len(rows))

    @property
    def all_transforms(self) -> tuple[Transform, ...]:
        """What is done to images while they are read: `transformed`, then `scaled`."""
        return self._transforms if self._dtype is None else (*self._transforms, ToDtype(self._dtype, True))

    def _open_pipeline(self) -> Pipeline | None:
        """Return what reads images in one call; None where all of them differ in shape."""
        if self._pipeline is None and not self._opened:
            names = [name for name, f in self.fields.items() if f.kind == "image"]
            if not self._transforms:
                names = [name for name in names if self._is_uniform(name)]
            if names:
                rows = self._rows if self._transforms else None
                self._pipeline = Pipeline(self.reader, names, self.all_transforms, rows=rows, seed=self._seed)
            self._opened = True
        return self._pipeline

    def _is_uniform(self, name: str) -> bool:
        columns = [self.reader.index.arrays[f"{name}.{part}"] for part in ("channels", "height", "width", "bits")]
        return len(self.reader) > 0 and all(bool((column == column[0]).all()) for column in columns)

    def _read_images(self, pipeline: Pipeline, rows: I64, samples: I64, clock: Clock) -> dict[str, torch.Tensor]:
        clock.tick(clock_words.FUNCTION)
        if self._scratch.of is not pipeline:
            self._scratch.of, self._scratch.memory = pipeline, pipeline.scratch()
        # In a worker process the memory is shared, so that the batch needs no copy on its way to the training loop.
        take = self._buffers.take_tensor if get_worker_info() is None else shared_tensor
        flat = [take(len(rows) * output.nbytes) for output in pipeline.outputs]
        at = np.array([[memory.data_ptr() for memory in flat]], np.int64)
        clock.tick(clock_words.BUFFER)
        pipeline.read(rows, samples, int(self._epoch[0]), at, max(len(rows), 1), self._scratch.memory, clock)
        return {o.name: o.tensor(memory) for o, memory in zip(pipeline.outputs, flat, strict=True)}


class _Scratch(threading.local):
    """Each thread's working memory, and the pipeline that it is for."""

    of: Pipeline | None = None
    memory: Any = None

    def __reduce__(self) -> tuple[type[_Scratch], tuple[()]]:
        return _Scratch, ()
