"""Samples as named tuples, and batches whose samples are views of one read."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, overload

import torch

from lmdbloader.base.foreign_names import SAMPLE
from lmdbloader.errors import OptionError, UnknownNameError


@cache
def sample_type(names: tuple[str, ...]) -> type[Any]:
    """Return the named tuple type with these fields; unlike others it pickles although no module defines it.

    A field can be read by its name in brackets too, as in the dicts of other libraries.

    >>> sample = sample_type(("lr", "hr"))(1, 2)
    >>> sample, sample["hr"]
    (Sample(lr=1, hr=2), 2)
    """
    # Not a subclass: older torch, and torchvision with it, takes apart only types whose single base is tuple.
    made: Any = namedtuple("Sample", names)  # type: ignore[misc]

    def __reduce__(self: Any) -> tuple[Any, ...]:
        return _make_sample, (names, tuple(map(_loadable, self)))

    def __getitem__(self: Any, index: Any) -> Any:
        if not isinstance(index, str):
            return tuple.__getitem__(self, index)
        if index in names:
            return getattr(self, index)
        raise OptionError(f"no field {index!r}; expected one of {', '.join(names)}")

    def __getattr__(self: Any, name: str) -> Any:
        if name in SAMPLE:
            raise UnknownNameError(f"a named tuple of {', '.join(names)} has no {name!r}: {SAMPLE[name].advice(None)}")
        return tuple.__getattribute__(self, name)

    made.__reduce__ = __reduce__  # type: ignore[method-assign]
    made.__getitem__, made.__getattr__ = __getitem__, __getattr__  # type: ignore[method-assign, attr-defined]
    made.__doc__ = "One sample of a dataset; `sample[name]` is a field too."
    return made


def _make_sample(names: tuple[str, ...], values: tuple[Any, ...]) -> Any:
    return sample_type(names)(*values)


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
        return list(map(_loadable, value))
    return value


class Batch(Sequence[Any]):
    """Samples that were read together; each is a named tuple of views of the batch.

    Attributes:
        columns: The values of each field: one tensor (B, ...) if all have one shape, else a list of B values.
    """

    __slots__ = ("_length", "columns")

    def __init__(self, columns: Mapping[str, Any], length: int) -> None:
        self.columns = columns
        self._length = length

    def __reduce__(self) -> tuple[Any, ...]:
        return Batch, ({name: _loadable(column) for name, column in self.columns.items()}, self._length)

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
        return sample_type(tuple(self.columns))(*[column[index] for column in self.columns.values()])

    def __iter__(self) -> Iterator[Any]:
        return map(sample_type(tuple(self.columns)), *self.columns.values())
