"""Samples as named tuples, and batches whose samples are views of one read."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, overload

import torch


@cache
def sample_type(names: tuple[str, ...]) -> type[Any]:
    """Return the named tuple with these fields; unlike a plain one it pickles without a module that holds it.

    >>> sample_type(("lr", "hr"))(1, 2)
    Sample(lr=1, hr=2)
    """
    base = namedtuple("Sample", names)  # type: ignore[misc]

    def __reduce__(self: Any) -> tuple[Any, ...]:
        # torch pickles uint16 tensors but does not load them again; their bits travel as int16.
        is_uint16 = tuple(isinstance(v, torch.Tensor) and v.dtype == torch.uint16 for v in self)
        values = tuple(v.view(torch.int16) if flag else v for v, flag in zip(self, is_uint16, strict=True))
        return _make_sample, (names, values, is_uint16)

    return type("Sample", (base,), {"__slots__": (), "__reduce__": __reduce__, "__doc__": "One sample of a dataset."})


def _make_sample(names: tuple[str, ...], values: tuple[Any, ...], is_uint16: tuple[bool, ...]) -> Any:
    return sample_type(names)(*[v.view(torch.uint16) if flag else v for v, flag in zip(values, is_uint16, strict=True)])


class Batch(Sequence[Any]):
    """Samples that were read together; each is a named tuple of views of the batch.

    Attributes:
        columns: For each field its values: one tensor (B, ...) where all have one shape, else a list of B values.
    """

    __slots__ = ("_length", "columns")

    def __init__(self, columns: Mapping[str, Any], length: int) -> None:
        self.columns = columns
        self._length = length

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
