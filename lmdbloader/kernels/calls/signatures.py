"""The signatures of the kernels that Python calls, and how arguments become the words that compiled code reads.

A signature is written like a Python function with short names of types:

    gather.hash_many(data: u8[:], start: i64[:], nbytes: i64[:], out: u64[:])
    orders.example(file: (i64, i64), is_whole: bool) -> i64, i64

Compiled code takes one address, of a block of int64 words: NUM_RESULTS words for results, then the arguments, one after
the other. A number is one word (a float64 its bits, unsigned ones modulo 2**64), an array is its address and its shape,
a tuple is its items. Arrays are C-contiguous.
"""

from __future__ import annotations

import ast
import ctypes
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

NUM_RESULTS = 8
_DTYPES = {
    "i64": np.dtype(np.int64), "u64": np.dtype(np.uint64), "i32": np.dtype(np.int32), "u32": np.dtype(np.uint32),
    "u16": np.dtype(np.uint16), "u8": np.dtype(np.uint8), "i8": np.dtype(np.int8), "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64), "bool": np.dtype(np.bool_),
}  # fmt: skip
# Words are signed.
LARGEST = 2**63 - 1
_float_bits, _bits = struct.Struct("d"), struct.Struct("q")


@dataclass(frozen=True, slots=True)
class Number:
    """One number; `code` is one of the short names of types."""

    code: str

    @property
    def num_words(self) -> int:
        """The words of the block that it takes."""
        return 1

    def pack(self, value: Any, words: list[int]) -> None:
        """Append the word of a value."""
        if self.code == "f64":
            words += _bits.unpack(_float_bits.pack(value))
        else:
            number = int(value)
            words.append(number if number <= LARGEST else number - 2**64)


@dataclass(frozen=True, slots=True)
class Array:
    """A C-contiguous array."""

    code: str
    ndim: int
    dtype: np.dtype[Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Look up the type once: every call needs it."""
        object.__setattr__(self, "dtype", _DTYPES[self.code])

    @property
    def num_words(self) -> int:
        """The words of the block that it takes."""
        return 1 + self.ndim

    def pack(self, value: Any, words: list[int]) -> None:
        """Append address and shape; raise TypeError for any other kind of array."""
        if not isinstance(value, np.ndarray) or (value.dtype is not self.dtype and value.dtype != self.dtype):
            raise TypeError(self._expected(value))
        shape = value.shape
        if len(shape) != self.ndim or not value.flags.c_contiguous:
            raise TypeError(self._expected(value))
        words.append(address_of(value))
        words += shape

    def _expected(self, value: Any) -> str:
        found = type(value).__name__
        if isinstance(value, np.ndarray):
            found = f"{found} of {value.dtype}, shape {value.shape} and strides {value.strides}"
        return f"expected a contiguous array of {self.dtype} with {self.ndim} dimensions, got {found}"


@dataclass(frozen=True, slots=True)
class Group:
    """A tuple of values."""

    items: tuple[Any, ...]

    @property
    def num_words(self) -> int:
        """The words of the block that it takes."""
        return sum(item.num_words for item in self.items)

    def pack(self, value: Any, words: list[int]) -> None:
        """Append the words of all items."""
        for item, part in zip(self.items, value, strict=True):
            item.pack(part, words)


@dataclass(frozen=True, slots=True)
class Signature:
    """The types of one kernel.

    Attributes:
        module: Of the kernel, inside `lmdbloader.kernels`.
        name: Of the kernel.
        arguments: Name and type of each.
        results: The short names of the results' types.
    """

    module: str
    name: str
    arguments: tuple[tuple[str, Any], ...]
    results: tuple[str, ...]
    _packs: tuple[Callable[[Any, list[int]], None], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Look up the methods once: every call needs them."""
        object.__setattr__(self, "_packs", tuple(kind.pack for _, kind in self.arguments))

    def pack(self, values: tuple[Any, ...]) -> list[int]:
        """Return the words of results, which are zero, and of arguments; raise TypeError if one does not fit."""
        if len(values) != len(self.arguments):
            raise TypeError(f"{self.name}: expected {len(self.arguments)} arguments, got {len(values)}")
        words = [0] * NUM_RESULTS
        position = 0
        try:
            for pack in self._packs:
                pack(values[position], words)
                position += 1
        except TypeError as error:
            # Without a variable: it would be a cycle of the error and this frame, which has the arguments.
            raise TypeError(f"{self.name}, argument {self.arguments[position][0]}: {error}") from None
        return words

    def place(self, argument: str) -> int:
        """Return the number of an argument's first word in the block."""
        at = NUM_RESULTS
        for name, kind in self.arguments:
            if name == argument:
                return at
            at += int(kind.num_words)
        raise KeyError(f"{self.name} has no argument {argument}")


def parse(text: str) -> Signature:
    """Return the signature that a text describes.

    >>> signature = parse("orders.permute(values: i64[:], seed: u64) -> bool")
    >>> signature.module, signature.name, signature.arguments[0]
    ('orders', 'permute', ('values', Array(code='i64', ndim=1)))
    """
    head, _, results = text.partition("->")
    name, _, arguments = head.partition("(")
    function: Any = ast.parse(f"def f({arguments}: 0").body[0]
    module, _, name = name.rpartition(".")
    kinds = tuple((a.arg, _kind(a.annotation)) for a in function.args.args)
    return Signature(module, name, kinds, tuple(_code(word.strip()) for word in results.split(",") if results))


def _kind(annotation: Any) -> Number | Array | Group:
    """Return the type that an annotation describes."""
    if isinstance(annotation, ast.Tuple):
        return Group(tuple(map(_kind, annotation.elts)))
    if isinstance(annotation, ast.Subscript):
        slices = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else (annotation.slice,)
        return Array(_code(ast.unparse(annotation.value)), len(slices))
    return Number(_code(ast.unparse(annotation)))


def _code(text: str) -> str:
    if text not in _DTYPES:
        raise ValueError(f"{text!r} is not the name of a type")
    return text


def _numpys_address(array: Any) -> int:
    return int(array.ctypes.data)


def _fields_address(array: Any) -> int:
    return _pointer_at(id(array) + _FIELDS).value or 0


# The address is an array's first field, after the head of every Python object: compiled extensions read it there.
_pointer_at, _FIELDS = ctypes.c_void_p.from_address, object.__basicsize__
_probes = np.empty(3, np.uint8), np.frombuffer(b"read-only", np.uint8)[2:]
_are_fields = sys.implementation.name == "cpython" and all(_fields_address(p) == p.ctypes.data for p in _probes)
# address_of(array) -> the address of its data, six times as fast as NumPy's own way.
address_of: Callable[[Any], int] = _fields_address if _are_fields else _numpys_address
