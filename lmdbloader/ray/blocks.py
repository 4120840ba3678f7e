"""Samples as blocks of ray.data: Arrow tables in which columns of arrays have Ray's tensor types."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from ray.data.extensions import ArrowPythonObjectArray, ArrowTensorArray, ArrowVariableShapedTensorArray

from lmdbloader.batch.dataset import LMDBDataset
from lmdbloader.fields import kind_named
from lmdbloader.format.layout import Field, parse_array_type
from lmdbloader.store import Reader
from lmdbloader.store.conditions import table_of
from lmdbloader.store.rows import choose

SOURCE = "source"


@dataclass(frozen=True, slots=True)
class Kinds:
    """Properties of the fields of a whole dataset, by which the columns of all of its blocks have the same types.

    Attributes:
        fixed: Fields whose arrays all have one shape.
        objects: Fields whose values have no Arrow type: JSON, complex arrays, and arrays that differ in dtype or in
            the number of dimensions.
        gray: Fields of gray images.
        nbytes: The bytes of an image, by field, if transforms give all images one size.
    """

    fixed: frozenset[str]
    objects: frozenset[str]
    gray: frozenset[str]
    nbytes: Mapping[str, int]

    @classmethod
    def of(cls, dataset: LMDBDataset) -> Kinds:
        """Return those of a dataset; a view has those of the whole dataset."""
        reader, moved = dataset.reader, bool(dataset.all_transforms)
        images = [name for name, f in dataset.fields.items() if f.has_pixels]
        # Transforms give all images one shape.
        fixed = set(images) if moved else set(dataset.uniform_images())
        objects = {name for name, f in dataset.fields.items() if f.kind == "json"}
        for name in images:
            low, high = reader.extremes(name, "bits")
            if low != high and not (moved and dataset.fields[name].kind == "image"):
                objects.add(name)
        for name in (name for name, f in dataset.fields.items() if f.kind == "array"):
            types = _array_types(reader, name)
            if len({(dtype, len(shape)) for dtype, shape in types}) > 1 or any(
                "complex" in dtype for dtype, _ in types
            ):
                objects.add(name)
            elif len(types) == 1 and 0 not in next(iter(types))[1]:
                fixed.add(name)
        gray = {name for name in images if reader.extremes(name, "channels") == (1, 1)}
        outputs = dataset._open_batcher().pipeline.outputs if dataset.all_transforms else ()
        nbytes = {output.name: output.nbytes for output in outputs}
        return cls(frozenset(fixed - objects), frozenset(objects), frozenset(gray), nbytes)


def _array_types(reader: Reader, name: str) -> set[tuple[str, tuple[int, ...]]]:
    """Return every pair of dtype and shape that arrays of a field have."""
    names = reader.index.names[f"{name}.type"]
    return {parse_array_type(names.texts[code]) for code in np.unique(names.codes).tolist()}


def read_block(dataset: LMDBDataset, numbers: range, columns: Sequence[str], kinds: Kinds) -> pa.Table:
    """Return some samples as a block.

    Args:
        dataset: The dataset.
        numbers: The numbers of the samples.
        columns: Names of fields, and `SOURCE` for the names of the files.
        kinds: Properties of the dataset's fields.

    Raises:
        CorruptError: A payload is damaged.
    """
    in_index = [name for name in columns if name == SOURCE or kind_named(dataset.fields[name].kind).column]
    found: dict[str, Any] = {}
    if in_index:
        table = table_of(dataset.reader, choose(dataset.stored_rows, numbers), in_index)
        found = {name: _plain(table.column(name)) for name in in_index}
    if others := [name for name in columns if name not in found]:
        batch: Any = _with_fields(dataset, others)._many(numbers)
        found |= {name: to_column(dataset.fields[name], batch.columns[name], kinds) for name in others}
    if not columns:  # a table without columns forgets how many rows it has
        return pa.Table.from_struct_array(pa.array([{}] * len(numbers), pa.struct([])))
    return pa.table({name: found[name] for name in columns})


def _with_fields(dataset: LMDBDataset, names: Sequence[str]) -> LMDBDataset:
    """Return a view that reads only these fields, or the dataset itself if its transforms may need the others."""
    if dataset.all_transforms:
        return dataset
    view = copy.copy(dataset)
    view.__dict__["fields"] = {name: dataset.fields[name] for name in names}
    return view


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a dictionary column as plain texts, because each block would carry the whole dictionary."""
    return column.cast(pa.large_string()) if pa.types.is_dictionary(column.type) else column


def to_column(f: Field, values: Any, kinds: Kinds) -> pa.Array:
    """Return the values of a field as a column of a block.

    Args:
        f: The field.
        values: The values as in a batch: a tensor (B, ...), or a list of B values.
        kinds: Properties of the dataset's fields.
    """
    if f.kind == "bytes":
        return pa.array(values, pa.large_binary())
    if f.kind == "json":
        return ArrowPythonObjectArray.from_objects(list(values))
    to_array = partial(_as_array, f, is_gray=f.name in kinds.gray)
    if f.name in kinds.objects:
        return ArrowPythonObjectArray.from_objects([to_array(value) for value in values])
    if f.name in kinds.fixed and isinstance(values, torch.Tensor):
        return ArrowTensorArray.from_numpy(to_array(values))
    return ArrowVariableShapedTensorArray.from_numpy([to_array(value) for value in values])


def _as_array(f: Field, values: torch.Tensor, *, is_gray: bool) -> npt.NDArray[Any]:
    """Return a tensor as an array; channels of images are moved last, and those of gray images are removed."""
    array: npt.NDArray[Any] = values.numpy()
    if f.kind == "image":
        array = array[..., 0, :, :] if is_gray and array.shape[-3] == 1 else np.moveaxis(array, -3, -1)
    return np.ascontiguousarray(array)
