"""Samples as named tuples, and batches whose samples are views of one read."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, overload

import torch

from lmdbloader.batch.forms import Form, in_form
from lmdbloader.errors import OptionError


class Ragged(list[Any]):
    """Tensors of one field that may differ in length: a batch has a list of them, even if all are equally long."""


def sample_type(names: tuple[str, ...], lists: tuple[str, ...] = (), json: tuple[str, ...] = ()) -> type[Any]:
    """Return the named tuple type with these fields; unlike others it pickles although no module defines it.

    A field can also be read by its name in brackets, as in a dict.

    Args:
        names: Of the fields.
        lists: Those that a batch has as a list of tensors, `_lists` of the type.
        json: Those of JSON values, `_json` of the type.

    >>> sample = sample_type(("lr", "hr"))(1, 2)
    >>> sample, sample["hr"]
    (Sample(lr=1, hr=2), 2)
    """
    return _sample_type(names, lists, json)


@cache
def _sample_type(names: tuple[str, ...], lists: tuple[str, ...], json: tuple[str, ...]) -> type[Any]:
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


def _make_sample(
    names: tuple[str, ...], values: tuple[Any, ...], lists: tuple[str, ...] = (), json: tuple[str, ...] = ()
) -> Any:
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

    def __init__(
        self, columns: Mapping[str, Any], length: int, type: type[Any] | None = None, form: Form = None
    ) -> None:
        self.columns = columns
        self.form = form
        self._length = length
        lists = () if type else tuple(name for name, column in columns.items() if isinstance(column, Ragged))
        self.type = type or sample_type(tuple(columns), lists)

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


class Formed(list[Any]):
    """Samples in a form after a dataset's own transform; `collate` makes a batch of them as they were before.

    A plain tuple does not say which of its fields are lists in a batch.

    Attributes:
        plain: The samples, as the transform returned them.
        form: Of the samples, and of the batch.
    """

    def __init__(self, plain: list[Any], form: Form) -> None:
        super().__init__(in_form(sample, form) for sample in plain)
        self.plain, self.form = plain, form

    def __reduce__(self) -> tuple[Any, ...]:
        return Formed, (self.plain, self.form)


def _make_batch(
    columns: Mapping[str, Any], length: int, form: Form, lists: tuple[str, ...], json: tuple[str, ...]
) -> Batch:
    return Batch(columns, length, sample_type(tuple(columns), lists, json), form)
