"""Functions of users as compiled code: Python functions that Numba compiles, called without the GIL."""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import inspect
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from lmdbloader.errors import KernelError, OptionError

# Of `call_each` below: the number of images, and the addresses of its arrays.
_PROTOTYPE = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, *[ctypes.c_void_p] * 4)
# What Numba compiles: it makes arrays of the addresses, and calls the user's function for each image. A function that
# raises ends it with the number of the image, from 1 on: compiled code that was called through an address cannot raise.
_SOURCE = """
def call_each(count, images, room, shape, drawn):
    addresses, sides = carray(images, (count,)), carray(shape, (3,))
    numbers = carray(drawn, (count, {num_drawn}))
    channels, height, width = sides[0], sides[1], sides[2]
    values = channels * height * width
    image = {view}
    for k in range(count):
        to, kept = array_at(addresses[k], values, like), array_at(room, values, like)
        for i in range(values):
            kept[i] = to[i]
        out = {view_out}
        try:
            function(image, out{arguments})
        except Exception:
            return k + 1
    return 0
"""
_FLAT = "array_at({at}, values, like).reshape((channels, height, width))"
_CHANNELS_LAST = "array_at({at}, values, like).reshape((height, width, channels)).transpose((2, 0, 1))"
# Compiled code, called without the GIL with the number of images and four addresses.
Callee = Callable[..., int]
# Numba compiles in one thread at a time.
_lock = threading.Lock()
# What was compiled, by what it was made of: Numba never frees compiled code.
_compiled: dict[Hashable, Callee] = {}
# Modules whose functions and numbers do not change.
_CONSTANT_MODULES = frozenset({"cmath", "math", "numba", "numpy", "operator"})


def compile_function(
    function: Callable[..., Any],
    drawn: Sequence[tuple[str, bool]],
    parameters: Mapping[str, Any],
    *,
    dtype: np.dtype[Any],
    channels_last: bool,
    boundscheck: bool = False,
) -> Callee:
    """Return a function of one image, `function(image, out, **drawn, **parameters)`, as code for many images.

    Args:
        function: A Python function, or one that Numba has decorated already, whose options then hold.
        drawn: The names of the drawn values in order, and whether each is a whole number.
        parameters: Numbers and arrays, which are constants of the code.
        dtype: Of the pixels.
        channels_last: Whether images are (H, W, C) in memory.
        boundscheck: Whether an index outside of an array is an error.

    Raises:
        KernelError: Numba is not installed.
        OptionError: Numba cannot compile the function; its message says why.
    """
    numba = _numba()
    if numba.config.DISABLE_JIT:
        raise OptionError(
            "NUMBA_DISABLE_JIT=1: no function can be compiled. Unset it. To debug a function, call it yourself, with "
            "two arrays (C, H, W) and its values."
        )
    memory = importlib.import_module(f"{__name__.split('.')[0]}.kernels.runtime.memory")
    name = getattr(function, "__name__", repr(function))
    python = getattr(function, "py_func", function)
    values = {name: f"{'int64' if is_whole else ''}(numbers[k, {i}])" for i, (name, is_whole) in enumerate(drawn)}
    values |= {name: f"parameter_{name}" for name in parameters}
    named, arguments = _in_order(python, values, parameters)
    view = _CHANNELS_LAST if channels_last else _FLAT
    text = _SOURCE.format(
        num_drawn=len(drawn), view=view.format(at="room"), view_out=view.format(at="addresses[k]"), arguments=arguments,
    )  # fmt: skip
    key = _content(
        (python if boundscheck else function, tuple(drawn), *parameters, *parameters.values(), dtype.str,
         channels_last, boundscheck),
    )  # fmt: skip
    with _lock:
        if key in _compiled:
            return _compiled[key]
        if boundscheck or python is function:
            function = numba.njit(boundscheck=boundscheck)(python)
        namespace: dict[str, Any] = {
            "carray": numba.carray, "array_at": memory.array_at, "like": np.empty(0, dtype), "function": function,
            "int64": numba.int64, **named,
        }  # fmt: skip
        exec(text, namespace)
        types = numba.types
        words, reals = types.CPointer(types.int64), types.CPointer(types.float64)
        signature = types.int64(types.int64, words, types.uint64, words, reals)
        try:
            code = numba.cfunc(signature)(namespace["call_each"])
        except (numba.core.errors.NumbaError, AssertionError, NotImplementedError, TypeError, ValueError) as error:
            raise OptionError(
                f"CompiledFunction({name}): Numba cannot compile it for {dtype} pixels. {type(error).__name__}: {error}"
            ) from error
        callee = _PROTOTYPE(code.address)
        callee.code = code  # keeps it in memory
        if key is not None:
            _compiled[key] = callee
    return callee


def _in_order(
    python: Callable[..., Any], values: Mapping[str, str], parameters: Mapping[str, Any]
) -> tuple[dict[str, Any], str]:
    """Return the constants of a call by name, and its arguments after the two images, by position.

    Numba gives keywords to the wrong arguments if they are in another order, or if a default is between them.
    """
    named = {f"parameter_{name}": value for name, value in parameters.items()}
    rest = list(inspect.signature(python).parameters.values())[2:]
    last = max((number for number, argument in enumerate(rest) if argument.name in values), default=-1)
    for argument in rest[: last + 1]:
        if argument.name not in values:
            named[f"parameter_{argument.name}"] = argument.default
    given = (values.get(argument.name, f"parameter_{argument.name}") for argument in rest[: last + 1])
    return named, "".join(f", {value}" for value in given)


def _content(value: Any, within: tuple[CodeType, ...] = ()) -> Hashable:
    """Return what is equal for values of which Numba makes equal code; None if that is not known.

    Args:
        value: A function, or what one uses.
        within: The code of the functions that are being looked at, which may call each other.
    """
    if value is None or isinstance(value, bool | int | float | complex | str | bytes | np.generic):
        return type(value), repr(value)
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return "array", value.dtype.str, value.shape, value.strides, hashlib.sha256(value.tobytes()).digest()
    if isinstance(value, tuple):
        parts = [_content(item, within) for item in value]
    elif isinstance(value, FunctionType):
        code = value.__code__
        if code in within:
            return code
        used = {name: value.__globals__[name] for name in sorted(_names(code)) if name in value.__globals__}
        cells = (cell.cell_contents for cell in value.__closure__ or ())
        try:
            values = (*used, *used.values(), *cells, value.__defaults__, tuple((value.__kwdefaults__ or {}).items()))
        except ValueError:  # a cell without contents so far
            return None
        parts = [_content(item, (*within, code)) for item in values]
        parts.append(code)
    elif isinstance(value, type | BuiltinFunctionType | np.ufunc) or hasattr(value, "py_func"):
        return value  # Numba has compiled its own functions with what they used then
    elif isinstance(value, ModuleType) and value.__name__.partition(".")[0] in _CONSTANT_MODULES:
        return value
    else:
        return None
    return None if None in parts else (type(value), *parts)


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names in a function's code, and in that of functions inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _numba() -> Any:
    """Return Numba.

    Raises:
        KernelError: It is not installed.
    """
    try:
        return importlib.import_module("numba")
    except ModuleNotFoundError as error:
        if error.name not in ("numba", "llvmlite"):
            raise
        raise KernelError(
            "CompiledFunction: compiling a Python function needs Numba, which is not installed: pip install numba"
        ) from error
