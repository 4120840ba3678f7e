"""The torch Dataset: samples as named tuples of tensors, many read in one call."""

from __future__ import annotations

import copy
import json
import math
import operator
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from lmdbloader.batches import Batch
from lmdbloader.buffers import Buffers
from lmdbloader.errors import FormatError, OptionError
from lmdbloader.format import Field
from lmdbloader.splits import share_out
from lmdbloader.store import SCALE_FACTORS, Reader, check_rows

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
    from typing_extensions import Self

I64 = npt.NDArray[np.int64]
_HIDDEN_COLUMNS = (".offset", ".stored_nbytes", ".raw_nbytes", ".checksum", ".codec")


class LMDBDataset(Dataset[Any]):
    """A dataset made by lmdbloader, read through a memory map.

    `ds[i]` is a named tuple of the fields: images as uint8 or uint16 tensors (C, H, W), arrays as tensors, labels as
    int, text as str, bytes as bytes. Slices and lists of numbers give views of the dataset. Subclass it and override
    `transform` to change what a sample is. It pickles as its path, and reads from any number of threads and processes.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        fields: Sequence[str] | None = None,
        transform: Callable[[Any], Any] | None = None,
    ) -> None:
        """Open a dataset.

        Args:
            path: The folder that `lmdbloader convert` or `lmdbloader.write` made.
            fields: Which fields to read, in this order; all of them by default. Others are never touched.
            transform: Called with every sample; a subclass may override the method `transform` instead.

        Raises:
            FileNotFoundError: There is nothing at `path`.
            FormatError: It is no finished dataset of this format version.
            CorruptError: A file is cut short or damaged.
            OptionError: A field that it does not have.
        """
        if isinstance(fields, str):
            raise OptionError(f"fields={fields!r}: expected a list of names, such as [{fields!r}]")
        self.reader = Reader(path)
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
        self._uniform: dict[str, tuple[tuple[int, ...], np.dtype[Any]] | None] = {}
        self._starts: dict[str, I64] = {}
        self._buffers = Buffers()

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
        rows = self._numbers([number])
        return self.transform(self._read(rows)[0])

    def __getitems__(self, indices: Sequence[int]) -> Sequence[Any]:
        """Return many samples read in one call: a `Batch` of views, or a list where there is a transform."""
        batch = self._read(self._numbers(indices))
        if self._transform is None and type(self).transform is LMDBDataset.transform:
            return batch
        return [self.transform(sample) for sample in batch]

    def __repr__(self) -> str:
        fields = ", ".join(f"{f.name} ({f.kind})" for f in self.fields.values())
        return f"{type(self).__name__}({self.path!r}: {len(self)} samples of {fields})"

    def crop(
        self, index: int, *, top: int, left: int, height: int, width: int, field: str | None = None
    ) -> torch.Tensor:
        """Return a window (C, height, width) of one image; of a large one only the tiles it touches are read.

        Args:
            index: Sample number.
            top, left, height, width: In pixels.
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
        return view

    def select(self, indices: Any) -> Self:
        """Return a view with the samples of a slice, a list of numbers, or a mask of one bool a sample.

        Raises:
            IndexError: A number beyond either end.
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
        return view

    def where(self, condition: pc.Expression) -> Self:
        """Return a view with the samples whose row of `table` fulfils an Arrow expression; no pixel is read.

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
        parts = share_out(self._groups(by), fractions, seed)
        return tuple(self.select(part) for part in parts)

    def _groups(self, by: str | None) -> npt.NDArray[Any]:
        batch = self.reader.index.batch
        if by is None or (by == "source" and by not in batch.schema.names):
            return np.arange(len(self))
        if by not in self.table.column_names:
            raise OptionError(f"{self.path}: by={by!r}; expected one of {', '.join(self.table.column_names)}, or None")
        column = batch.column(by)
        values = column.indices if hasattr(column, "indices") else column.dictionary_encode().indices
        codes: npt.NDArray[Any] = values.to_numpy(zero_copy_only=False)
        return codes if self._rows is None else codes[self._rows]

    def _numbers(self, indices: Sequence[int]) -> I64:
        rows = check_rows(indices, len(self))
        return rows if self._rows is None else self._rows[rows]

    def _read(self, rows: I64) -> Batch:
        return Batch({name: self._read_column(f, rows) for name, f in self.fields.items()}, len(rows))

    def _read_column(self, f: Field, rows: I64) -> Any:
        reader = self.reader
        if f.kind == "image":
            return self._read_images(f.name, rows)
        if f.kind == "array":
            return _stack_if_equal([torch.from_numpy(reader.read_array(f.name, row)) for row in rows.tolist()])
        if f.kind in ("bytes", "json"):
            values = [reader.read_bytes(f.name, row).tobytes() for row in rows.tolist()]
            return (
                values
                if f.kind == "bytes"
                else [self._parse_json(f.name, v, row) for v, row in zip(values, rows, strict=True)]
            )
        if f.kind == "text":
            return [reader.index.text(f.name, row) for row in rows.tolist()]
        return reader.index.arrays[f.name][rows].tolist()

    def _parse_json(self, name: str, value: bytes, row: int) -> Any:
        try:
            return json.loads(value)
        except (ValueError, RecursionError) as error:
            raise FormatError(f"{self.reader.where(name, int(row))}: does not read as JSON ({error})") from error

    def _read_images(self, name: str, rows: I64) -> Any:
        same = self._uniform_shape(name)
        if same is None:
            return self._read_different_images(name, rows)
        shape, dtype = same
        if self._dtype is not None:
            flat = self._buffers.take(4 * len(rows) * math.prod(shape))
            scaled = flat.view(np.float32).reshape(len(rows), *shape)
            self.reader.read_scaled_into(name, rows, scaled.reshape(len(rows), math.prod(shape)))
            images = torch.from_numpy(scaled)
            return images if self._dtype == torch.float32 else images.to(self._dtype)
        flat = self._buffers.take(len(rows) * math.prod(shape) * dtype.itemsize)
        self.reader.read_into(name, rows, flat, self._evenly_spaced(name, len(rows), flat.size))
        return torch.from_numpy(flat.view(dtype).reshape(len(rows), *shape))

    def _evenly_spaced(self, name: str, count: int, nbytes: int) -> I64:
        """Return where each of `count` equal images starts in a buffer; the last answer is kept, as batches repeat."""
        start = self._starts.get(name)
        if start is None or len(start) != count:
            start = self._starts[name] = np.arange(count, dtype=np.int64) * (nbytes // max(count, 1))
        return start

    def _read_different_images(self, name: str, rows: I64) -> Any:
        nbytes = self.reader.raw_nbytes(name, rows)
        # Each image on an 8-byte boundary, as 16-bit pixels need an even one.
        room = -(-nbytes // 8) * 8
        start = np.cumsum(room) - room
        buffer = np.empty(int(room.sum()), np.uint8)
        self.reader.read_into(name, rows, buffer, start)
        images = []
        for row, at, length in zip(rows.tolist(), start.tolist(), nbytes.tolist(), strict=True):
            pixels = buffer[at : at + length].view(self.reader.image_dtype(name, row))
            if self._dtype is not None:
                pixels = pixels.astype(np.float32) * SCALE_FACTORS[pixels.itemsize]
            image = torch.from_numpy(pixels.reshape(self.reader.image_shape(name, row)))
            images.append(image if self._dtype is None else image.to(self._dtype))
        return _stack_if_equal(images)

    def _uniform_shape(self, name: str) -> tuple[tuple[int, ...], np.dtype[Any]] | None:
        """Return the shape and dtype that every image of a field has, None where they differ."""
        if name not in self._uniform:
            columns = [self.reader.index.arrays[f"{name}.{part}"] for part in ("channels", "height", "width", "bits")]
            same = len(self.reader) > 0 and all(bool((column == column[0]).all()) for column in columns)
            dtype = np.dtype(np.uint16 if same and columns[3][0] == 16 else np.uint8)
            self._uniform[name] = (tuple(int(column[0]) for column in columns[:3]), dtype) if same else None
        return self._uniform[name]


def _stack_if_equal(values: list[torch.Tensor]) -> Any:
    if values and all(v.shape == values[0].shape and v.dtype == values[0].dtype for v in values):
        return torch.stack(values)
    return values
