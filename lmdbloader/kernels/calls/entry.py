"""Entry points: kernels as Python functions, and calls whose arguments stay packed from one to the next."""

from __future__ import annotations

import ctypes
import itertools
from array import array
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from typing import Any

import numpy as np

from lmdbloader.kernels.calls import libraries
from lmdbloader.kernels.calls.signatures import LARGEST, Array, Number, Signature, address_of, parse

_PACKAGE = __name__.split(".")[0]
# Words are signed.
_RESULTS: dict[str, Callable[[int], Any]] = {"bool": bool, "u64": lambda word: word & (1 << 64) - 1}


class Entry:
    """A kernel that Python calls; it runs without the GIL.

    Arrays are checked for type, dimensions and layout, numbers are converted, and nothing else is checked.
    """

    def __init__(self, text: str, **variables: str) -> None:
        """Describe a kernel.

        Args:
            text: Its signature, see `signatures`; it is read when the kernel is first called.
            variables: The types that a letter in the signature may stand for. Each combination is a variant.
        """
        self._text, self._variables = text, variables

    @cached_property
    def variants(self) -> dict[str, Signature]:
        """The signatures by the names of the functions in the library."""
        found = {}
        for codes in itertools.product(*(types.split() for types in self._variables.values())):
            text = self._text
            for letter, code in zip(self._variables, codes, strict=True):
                text = text.replace(f": {letter}", f": {code}")
            signature = parse(text)
            found["_".join([signature.module.replace(".", "_"), signature.name, *codes])] = signature
        return found

    @cached_property
    def _functions(self) -> dict[str, Any]:
        found = {}
        for name in self.variants:
            function = libraries.load()[f"{_PACKAGE}_{name}"]
            function.argtypes, function.restype = (ctypes.c_void_p,), None
            found[name] = function
        return found

    def __call__(self, *values: Any) -> Any:
        """Run the kernel; raise TypeError for arguments of other types."""
        name, signature, words = self._pack(values)
        block = array("q", words)
        self._functions[name](block.buffer_info()[0])
        return _results(block, signature) if signature.results else None

    def prepare(self, *values: Any) -> Prepared:
        """Return a call with these arguments, some of which can be replaced before it is made.

        The kernel has one result, an int64, or none.
        """
        name, signature, words = self._pack(values)
        assert signature.results in ((), ("i64",))
        return Prepared(self._functions[name], signature, words, values)

    def _pack(self, values: tuple[Any, ...]) -> tuple[str, Signature, list[int]]:
        """Return the variant for these arguments, and their words."""
        *others, (name, signature) = self.variants.items()
        for other, its_signature in others:
            with suppress(TypeError):
                return other, its_signature, its_signature.pack(values)
        return name, signature, signature.pack(values)


class Prepared:
    """One call of a kernel, made as often as necessary by one thread at a time.

    Its arguments are kept alive. Packing all of them can take longer than the call, so only changes are packed.
    A call whose preparation was interrupted by an exception may hold addresses of freed memory: throw it away.
    """

    def __init__(self, function: Any, signature: Signature, words: list[int], values: tuple[Any, ...]) -> None:
        self._function, self._signature = function, signature
        self._values = list(values)
        self._block = array("q", words)
        self._address = self._block.buffer_info()[0]
        self._numbers = {name: k for k, (name, _) in enumerate(signature.arguments)}

    def number(self, name: str, item: int | None = None) -> Callable[[int], None]:
        """Return a function that replaces a number: an argument, or one item of a tuple of numbers."""
        kind = self._signature.arguments[self._numbers[name]][1]
        number = kind if item is None else kind.items[item]
        assert isinstance(number, Number)
        place, block = self._signature.place(name) + (item or 0), self._block
        if number.code == "u64":
            return lambda value: block.__setitem__(place, value if value <= LARGEST else value - 2**64)
        return lambda value: block.__setitem__(place, value)

    def copied(self, name: str) -> Callable[[Any], None]:
        """Return a function that replaces an array of int64 by the values of another, copied into memory of the call.

        Copying a few hundred numbers is faster than asking NumPy for the address of an array.
        """
        kind = self._signature.arguments[self._numbers[name]][1]
        assert kind == Array("i64", kind.ndim)
        place, position, block, values = self._signature.place(name), self._numbers[name], self._block, self._values
        memory = np.array(values[position], np.int64)
        block[place] = memory.ctypes.data

        def replace(array: Any) -> None:
            nonlocal memory
            count = len(array)
            if count > len(memory) or array.shape[1:] != memory.shape[1:]:
                memory = np.empty((2 * count, *array.shape[1:]), np.int64)
                block[place] = memory.ctypes.data
                if kind.ndim == 2:
                    block[place + 2] = array.shape[1]
            memory[:count] = array
            block[place + 1] = count
            values[position] = memory

        replace(values[position])
        return replace

    def array(self, name: str) -> Callable[[Any], None]:
        """Return a function that replaces an array of one dimension, of the same type and contiguous (unchecked).

        The caller keeps that array alive until the call has returned.
        """
        place, position, block, values = self._signature.place(name), self._numbers[name], self._block, self._values

        def replace(array: Any) -> None:
            block[place], block[place + 1] = address_of(array), len(array)

        values[position] = None
        return replace

    def __call__(self) -> Any:
        """Make the call and return its result."""
        self._function(self._address)
        return self._block[0]


def _results(block: Any, signature: Signature) -> Any:
    found = [_RESULTS.get(code, int)(word) for word, code in zip(block, signature.results, strict=False)]
    return found[0] if len(found) == 1 else tuple(found)
