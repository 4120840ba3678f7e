"""Samples as named tuples, batches whose samples are views of one read, and other forms of both on request."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Literal, cast, overload

import numpy as np
import torch

from lmdbloader.errors import OptionError

Form = Literal["tuple", "dict"] | Mapping[str, str] | None
# The column of a batch with what was drawn for its samples.
PARAMS = "params"
# Of tensors of Python's numbers.
_DTYPES = {bool: torch.bool, int: torch.int64, float: torch.float64}


class Ragged(list[Any]):
    """Tensors of one field that may differ in length: a batch has a list of them, even if all are equally long."""


@cache
def sample_type(names: tuple[str, ...], lists: tuple[str, ...], json: tuple[str, ...], /) -> type[Any]:
    """Return the named tuple type with these fields; unlike others it pickles although no module defines it.

    A field can also be read by its name in brackets, as in a dict.

    Args:
        names: Of the fields.
        lists: Those that a batch has as a list of tensors, `_lists` of the type.
        json: Those of JSON values, `_json` of the type.

    >>> sample = sample_type(("lr", "hr"), (), ())(1, 2)
    >>> sample, sample["hr"]
    (Sample(lr=1, hr=2), 2)
    """
    # Not a subclass: older torch, and torchvision with it, takes apart only types whose single base is tuple.
    made: Any = namedtuple("Sample", names)  # type: ignore[misc]

    def __reduce__(self: Any) -> tuple[Any, ...]:
        return _make_sample, (names, tuple(map(_loadable, self)), lists, json)

    def __getitem__(self: Any, index: Any) -> Any:
        if not isinstance(index, str):
            return tuple.__getitem__(self, index)
        if index in names:
            return getattr(self, index)
        raise OptionError(f"no field {index!r}; expected one of {', '.join(names)}")

    made.__reduce__ = __reduce__  # type: ignore[method-assign]
    made._lists, made._json = lists, json  # type: ignore[attr-defined]
    made.__getitem__ = __getitem__  # type: ignore[method-assign]
    made.__doc__ = "One sample of a dataset; `sample[name]` is also a field."
    return made


def _make_sample(names: tuple[str, ...], values: tuple[Any, ...], lists: tuple[str, ...], json: tuple[str, ...]) -> Any:
    return sample_type(names, lists, json)(*values)


# torch pickles tensors of these dtypes but cannot load them; their bits are pickled as signed integers.
_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


class _Unsigned:
    """Pickles in place of an unsigned tensor, and loads as that tensor."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __reduce__(self) -> tuple[Any, ...]:
        return _view, (self._tensor.view(_SIGNED[self._tensor.dtype]), self._tensor.dtype)


def _view(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return tensor.view(dtype)


def _loadable(value: Any) -> Any:
    """Return a field's value, or a column of them, in a form that pickles and loads as the same value."""
    if isinstance(value, torch.Tensor):
        return _Unsigned(value) if value.dtype in _SIGNED else value
    if isinstance(value, list) and value and isinstance(value[0], torch.Tensor):
        return type(value)(map(_loadable, value))
    return value


class Batch(Sequence[Any]):
    """Samples that were read together; each is a named tuple of views of the batch, or has another form.

    Attributes:
        columns: The values of each field: one tensor (B, ...) if all have one shape, else a list of B values.
        type: The named tuple type of its samples.
        form: Of the samples, and of the batch that `collate` makes of them.
    """

    __slots__ = ("_length", "columns", "form", "type")

    def __init__(self, columns: Mapping[str, Any], length: int, type: type[Any], form: Form = None) -> None:
        self.columns = columns
        self.form = form
        self._length = length
        self.type = type

    def __reduce__(self) -> tuple[Any, ...]:
        columns = {name: _loadable(column) for name, column in self.columns.items()}
        return _make_batch, (columns, self._length, self.form, self.type._lists, self.type._json)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._length))]
        if not -self._length <= index < self._length:
            raise IndexError(f"sample {index} of a batch of {self._length}")
        sample = self.type(*[column[index] for column in self.columns.values()])
        return sample if self.form is None else in_form(sample, self.form)

    def __iter__(self) -> Iterator[Any]:
        samples = map(self.type, *self.columns.values())
        return samples if self.form is None else (in_form(sample, self.form) for sample in samples)


def _make_batch(
    columns: Mapping[str, Any], length: int, form: Form, lists: tuple[str, ...], json: tuple[str, ...]
) -> Batch:
    return Batch(columns, length, sample_type(tuple(columns), lists, json), form)


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
    if isinstance(column, torch.Tensor | dict) or not column:
        return column
    first = column[0]
    if isinstance(first, torch.Tensor):
        shapes = sorted({tuple(value.shape) for value in column})
        raise OptionError(
            f"field {name!r}: the values of one batch have different shapes, such as {shapes[0]} and {shapes[-1]}. "
            "Convert with --patch-size, crop them in a transform, or use batch_size=1; classes of boxes are declared "
            "as fields.Labels()."
        )
    # JSON values of one field may differ in type.
    dtype = _DTYPES.get(type(first)) if len(set(map(type, column))) == 1 else None
    return column if dtype is None else torch.tensor(column, dtype=dtype, device="cpu")


class ListName(str):
    """A key of a sample's dict, equal to its text, whose values are a list in a batch even if all have one shape."""

    __slots__ = ()


class JsonName(str):
    """A key of a sample's dict, equal to its text, whose values are as JSON has them, also lists and dicts."""

    __slots__ = ()


def check_form(as_: Any, names: Sequence[str] | None) -> Form:
    """Return a checked form; a mapping is copied.

    Args:
        as_: As given.
        names: The fields of what gets the form; None if a function may change them.

    Raises:
        OptionError: It is not a form, or it names a field that does not exist.
    """
    if as_ is None or (isinstance(as_, str) and as_ in ("tuple", "dict")):
        return cast(Form, as_)
    is_table = isinstance(as_, Mapping) and bool(as_)
    if not is_table or not all(isinstance(text, str) for pair in as_.items() for text in pair):
        raise OptionError(
            f"as_={as_!r}: expected 'tuple', 'dict', None for named tuples, or a dict from new names to fields, such "
            "as {'pixel_values': 'image', 'labels': 'label'}"
        )
    if names is not None and (missing := [field for field in as_.values() if field not in names]):
        raise OptionError(f"as_={as_!r}: no field {missing[0]!r}; there are {', '.join(names)}")
    return dict(as_)


def in_form(value: Any, as_: Form, *, is_batch: bool = False) -> Any:
    """Return a sample or a batch in a form.

    Args:
        value: A named tuple, or a dict that a function has made of one.
        as_: "tuple" gives a tuple, "dict" a dict of the fields, a mapping a dict with its names; None changes nothing.
        is_batch: Whether it is a batch; the names of a sample's dict say how `collate` makes one of them.

    Raises:
        OptionError: It is something else, or lacks a field.
    """
    if as_ is None:
        return value
    if as_ == "tuple" and type(value) is tuple:
        return value
    if hasattr(value, "_asdict"):
        if as_ == "tuple":
            return tuple(value)
        marks = {} if is_batch else marks_of(value)
        value = {marks.get(name, str)(name): item for name, item in value._asdict().items()}
    if not isinstance(value, dict) or as_ == "tuple":
        raise OptionError(
            f"as_={as_!r}: a function returned a {type(value).__name__}; expected a named tuple of fields. Return "
            "`sample._replace(field=...)` from it, or leave out as_."
        )
    if isinstance(as_, str):
        return value
    if missing := [field for field in as_.values() if field not in value]:
        raise OptionError(f"as_={as_!r}: no field {missing[0]!r}; there are {', '.join(map(str, value))}")
    marks = marks_of(value)
    return {marks.get(field, str)(name): value[field] for name, field in as_.items()}


def marks_of(sample: Any) -> dict[str, type[str]]:
    """Return the fields of a sample that torch's collate function would not make the same batch of.

    Returns:
        By name: ListName, of values that are a list in a batch even if all have one shape, or JsonName.
    """
    if isinstance(sample, dict):
        return {name: type(name) for name in sample if isinstance(name, ListName | JsonName)}
    lists, json = getattr(sample, "_lists", ()), getattr(sample, "_json", ())
    return {**dict.fromkeys(lists, ListName), **dict.fromkeys(json, JsonName)}
