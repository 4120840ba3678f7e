"""CompiledFunction: a user's own function as compiled code, called for each image of a batch without the GIL."""

from __future__ import annotations

import dis
import inspect
import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from types import FunctionType
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import torch

from lmdbloader.errors import OptionError
from lmdbloader.kernels import entries
from lmdbloader.kernels.calls.functions import Callee, compile_function
from lmdbloader.transforms.functions import BatchFunction

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]
# The types of pixels that NumPy and Numba have, too.
_DTYPES: dict[torch.dtype, np.dtype[Any]] = {
    torch.uint8: np.dtype(np.uint8), torch.uint16: np.dtype(np.uint16), torch.float32: np.dtype(np.float32),
}  # fmt: skip
# Of the random numbers: the purpose of the first function's permutation, far from those of orders.
_PURPOSE, _BITS = 2**32, 53
_FIRST = ("image", "out")
# What to do if a test fails.
_ADVICE = (
    " NumPy's numbers of 8 bits wrap around at 256; Numba computes with 64 bits, and keeps the last 8 of the result. "
    "Write int(image[c, y, x]) before you calculate, limit the result, and draw random values with `draw`."
)


class CompiledFunction(BatchFunction):
    """Your own function as a step of a Loader: compiled code, called for each image, in the reading threads.

    `function(image, out, ...)` gets two arrays (C, H, W), and changes `out`, which starts as a copy of `image`; masks
    are (1, H, W). The drawn values and the parameters are passed by name. Numba compiles it when a Loader is made, and
    keeps the code until the process ends, 1 to 2 MB each: functions with equal code, that use equal values and have
    equal parameters, share it.

    The drawn values depend on the seed, the epoch and the sample's number alone. All fields of a sample get the same.

    >>> def solarize(image, out, threshold):
    ...     for c in range(image.shape[0]):
    ...         for y in range(image.shape[1]):
    ...             for x in range(image.shape[2]):
    ...                 if image[c, y, x] >= threshold:
    ...                     out[c, y, x] = 255 - image[c, y, x]
    >>> CompiledFunction(solarize, draw={"threshold": (100.0, 200.0)}, p=0.5)
    CompiledFunction(solarize, draw={'threshold': (100.0, 200.0)}, p=0.5)
    """

    is_compiled = True

    def __init__(
        self,
        function: Any,
        *,
        draw: Mapping[str, tuple[float, float] | range] | None = None,
        parameters: Mapping[str, Any] | None = None,
        p: float = 1.0,
        fields: Sequence[str] | None = None,
    ) -> None:
        """Check the arguments; nothing is compiled yet.

        Args:
            function: A Python function that Numba can compile, also one with `numba.njit`.
            draw: The values that are drawn for each sample, by name: (low, high) for a float from low to below high,
                each equally likely, or a range of whole numbers.
            parameters: Numbers or NumPy arrays that are the same for all samples, by name.
            p: Probability that a sample is changed.
            fields: Names of the image fields that it changes; None for all image fields, if there are neither masks nor
                boxes.

        Raises:
            OptionError: An argument is not valid, or the function's arguments are others.
        """
        self.function, self.p = function, _probability(p)
        self.draw = {name: _range(name, limits) for name, limits in _named("draw", draw).items()}
        self.parameters = {name: _parameter(name, value) for name, value in _named("parameters", parameters).items()}
        names = () if isinstance(fields, str) or not isinstance(fields, Iterable) else tuple(dict.fromkeys(fields))
        if fields is not None and not (names and all(isinstance(name, str) for name in names)):
            raise OptionError(f"CompiledFunction(fields={fields!r}): expected names, such as fields=('image',)")
        self.fields = None if fields is None else names
        self._check_names()
        self.__qualname__ = f"CompiledFunction({self._name})"  # which reports show
        self.__wrapped__ = function  # which errors show
        self._callees: dict[tuple[torch.dtype, bool, bool], Callee] = {}
        self._rooms = threading.local()

    def _check_names(self) -> None:
        named = [*self.draw, *self.parameters]
        if twice := [name for name in self.draw if name in self.parameters or name in _FIRST]:
            raise OptionError(f"CompiledFunction(draw={{{twice[0]!r}: ...}}): the name is in use already. Rename it.")
        python = getattr(self.function, "py_func", self.function)
        if not isinstance(python, FunctionType):
            raise OptionError(f"CompiledFunction({self.function!r}): expected a Python function")
        expected = f"def {self._name}({', '.join((*_FIRST, *named))})"
        try:
            inspect.signature(python).bind(*_FIRST, **dict.fromkeys(named))
            if python.__code__.co_flags & inspect.CO_VARKEYWORDS:
                raise TypeError("Numba compiles no **keywords")
        except TypeError as error:
            raise OptionError(
                f"CompiledFunction: {self._name}{inspect.signature(python)}: {error}; expected {expected}, with the "
                "names of `draw` and `parameters`"
            ) from None
        self._check_code(python)

    def _check_code(self, python: FunctionType) -> None:
        """Refuse a function that surely changes no image, or that starts threads of its own."""
        if python.__code__.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
            raise OptionError(
                f"CompiledFunction: {self._name} has `yield` or `async`, so a call does nothing. Leave it out."
            )
        if python.__code__.co_argcount > 1 and _never_uses(python, 1):
            raise OptionError(
                f"CompiledFunction: {self._name} never uses `out`, so nothing changes. Write into it, out[:] = ..., "
                "instead of `image[:] = ...`, `out = ...` or `return ...`."
            )
        if getattr(self.function, "targetoptions", {}).get("parallel"):
            raise OptionError(
                f"CompiledFunction: {self._name} is made with parallel=True, which may end the process in the Loader's "
                "threads. Leave it out."
            )

    @property
    def _name(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__)

    @property
    def is_random(self) -> bool:
        """Whether it makes random choices."""
        return bool(self.draw) or 0 < self.p < 1

    def __repr__(self) -> str:
        shown = {"draw": self.draw, "parameters": self.parameters, "p": self.p, "fields": self.fields}
        usual: tuple[object, ...] = ({}, {}, 1.0, None)
        given = [f"{k}={v!r}" for (k, v), default in zip(shown.items(), usual, strict=True) if v != default]
        return f"CompiledFunction({', '.join([self._name, *given])})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_callees": None, "_rooms": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _callees={}, _rooms=threading.local())

    def prepare(self, dtype: torch.dtype, *, channels_last: bool = False, boundscheck: bool = False) -> Callee:
        """Return the code for images of a type, compiled if it was not before.

        Args:
            dtype: Of the pixels.
            channels_last: Whether images are (H, W, C) in memory.
            boundscheck: Whether an index outside of an array is an error, for tests.

        Raises:
            KernelError: Numba is not installed.
            OptionError: It does not take such pixels, or Numba cannot compile it.
        """
        if dtype not in _DTYPES:
            expected = ", ".join(map(str, _DTYPES))
            raise OptionError(f"{self}: the pixels are {dtype}; expected {expected}. Put ToDtype after it.")
        key = dtype, channels_last, boundscheck
        if key not in self._callees:
            whole = [(name, isinstance(limits, range)) for name, limits in self.draw.items()]
            self._callees[key] = compile_function(
                self.function, whole, self.parameters,
                dtype=_DTYPES[dtype], channels_last=channels_last, boundscheck=boundscheck,
            )  # fmt: skip
        return self._callees[key]

    def drawn(self, draws: I64, *, seed: int = 0, epoch: int = 0, number: int = 0) -> tuple[npt.NDArray[np.bool_], F64]:
        """Return which samples are changed, (n,), and the drawn values, (n, values) float64.

        Args:
            draws: (n,) int64, numbers of the samples.
            seed: The Loader's.
            epoch: Its number.
            number: Of this function among the compiled functions of the Loader.
        """
        columns = len(self.draw) + 1
        positions = (draws[:, None] * columns + np.arange(columns)).reshape(-1) % 2**_BITS
        words = np.empty_like(positions)
        # A few numbers of a permutation of 2**53 are as good as independent ones.
        entries.permute(positions, 2**_BITS, seed, epoch, _PURPOSE + number, words)
        units = words.reshape(-1, columns) * 2.0**-_BITS
        values = np.empty((len(draws), columns - 1))
        for k, limits in enumerate(self.draw.values()):
            unit = units[:, k + 1]
            if isinstance(limits, range):
                values[:, k] = limits.start + limits.step * np.floor(unit * len(limits))
            else:
                low, high = limits
                np.minimum(low + (high - low) * unit, np.nextafter(high, low), out=values[:, k])  # never high itself
        return units[:, 0] < self.p, values

    def apply(self, batch: Any, random: np.random.Generator) -> NoReturn:
        """Raise OptionError: only a Loader knows the numbers of the samples, and which fields hold images.

        Args:
            batch: A batch.
            random: Random numbers.

        Raises:
            OptionError: Always.
        """
        raise OptionError(
            f"{self}: only a Loader calls it. Add it to Loader(..., transforms=[...]). To change images without a "
            "Loader, use .check(images)."
        )

    def change(
        self, images: torch.Tensor, chosen: npt.NDArray[np.bool_], values: F64, *, boundscheck: bool = False
    ) -> None:
        """Change images in place.

        Args:
            images: (B, C, H, W), contiguous or channels_last, or masks (B, H, W), contiguous.
            chosen: (B,), which ones to change.
            values: (B, values) float64, the drawn values.
            boundscheck: Whether an index outside of an array is an error, for tests.

        Raises:
            OptionError: They are something else, or the function failed.
        """
        is_flat, shape = _memory_of(self, images)
        callee = self.prepare(images.dtype, channels_last=not is_flat, boundscheck=boundscheck)
        nbytes = math.prod(shape) * images.element_size()
        addresses = images.data_ptr() + np.flatnonzero(chosen) * nbytes
        if not len(addresses) or not nbytes:
            return
        room = getattr(self._rooms, "memory", None)
        if room is None or room.nbytes < nbytes:
            room = self._rooms.memory = np.empty(nbytes, np.uint8)
        arrays = [
            np.ascontiguousarray(addresses, np.int64), room, np.array(shape, np.int64),
            np.ascontiguousarray(values[chosen], np.float64),
        ]  # fmt: skip
        status = callee(len(addresses), *(array.ctypes.data for array in arrays))
        if status:
            self._raise(status - 1, np.flatnonzero(chosen), room, shape, is_flat, images.dtype, values)

    def _raise(
        self, k: int, chosen: Any, room: Any, shape: Any, is_flat: bool, dtype: torch.dtype, values: F64
    ) -> None:
        """Raise the error of the function for an image, a copy of which is in `room`."""
        c, h, w = shape
        pixels = room[: math.prod(shape) * dtype.itemsize].view(_DTYPES[dtype])
        image = pixels.reshape(c, h, w) if is_flat else pixels.reshape(h, w, c).transpose(2, 0, 1)
        self.in_python(image, values[chosen[k]])
        raise OptionError(
            f"{self}: the compiled function raised an exception for an image that raises none in Python. Test it with "
            ".check(images)."
        )

    def check(self, images: Any, *, seed: int = 0) -> torch.Tensor:
        """Test the function with images and drawn values: the compiled code must do what Python does.

        Each image is changed by code that checks every index, also with the lowest and the highest drawn values, by the
        code of the Loader, and by Python. The last two must give the same pixels, floats to within rounding. Small
        images are enough, and Python is slow.

        Args:
            images: (C, H, W) or (B, C, H, W), a tensor or a NumPy array. One image is tested with four draws.
            seed: Of the drawn values; `p` has no effect here.

        Returns:
            The changed images, (B, C, H, W), to look at.

        Raises:
            KernelError: Numba is not installed.
            OptionError: The results differ, or `images` are not images.
            IndexError: The function uses an index outside of an array.
        """
        given = torch.as_tensor(images, device="cpu")
        given = given[None].expand(4, -1, -1, -1) if given.ndim == 3 else given
        if given.ndim != 4 or not given.numel():
            raise OptionError(f"{self}.check: found {tuple(given.shape)}; expected images (C, H, W) or (B, C, H, W)")
        _, values = self.drawn(np.arange(len(given), dtype=np.int64), seed=seed)
        chosen, found = np.ones(len(given), np.bool_), given.contiguous().clone()
        # First, as an index far outside of an array ends the process.
        self.change(found.clone(), chosen, values, boundscheck=True)
        for row in self._extremes(values[0]):
            self.change(found[:1].clone(), chosen[:1], row[None], boundscheck=True)
        self.change(found, chosen, values)
        try:
            with np.errstate(over="ignore"):
                python = [self.in_python(image, v) for image, v in zip(given.numpy(), values, strict=True)]
        except OverflowError as error:
            raise OptionError(f"{self}.check: in Python, {error}.{_ADVICE}") from error
        self._compare(found, torch.from_numpy(np.stack(python)))
        return found

    def _extremes(self, values: F64) -> list[F64]:
        """Return drawn values (values,), each in turn the lowest and the highest that it can be."""
        found = []
        for k, limits in enumerate(self.draw.values()):
            low, high = limits[0], limits[-1]
            for extreme in (low, high if isinstance(limits, range) else np.nextafter(high, low)):
                found.append(values.copy())
                found[-1][k] = extreme
        return found

    def _compare(self, found: torch.Tensor, expected: torch.Tensor) -> None:
        """Raise OptionError if compiled code and Python differ, in floats by more than rounding."""
        a, b = found.double(), expected.double()
        if found.dtype.is_floating_point:
            wrong = ~torch.isclose(a, b, rtol=1e-5, atol=1e-6, equal_nan=True)
        else:
            wrong = a != b
        if wrong.any():
            place = tuple(wrong.nonzero()[0].tolist())
            k, c, y, x = place
            raise OptionError(
                f"{self}.check: in Python and compiled the results differ in {int(wrong.sum())} of {wrong.numel()} "
                f"values; the first is out[{c}, {y}, {x}] of image {k}: {b[place].item():g} and {a[place].item():g}."
                f"{_ADVICE}"
            )

    def in_python(self, image: npt.NDArray[Any], values: F64) -> npt.NDArray[Any]:
        """Return an image (C, H, W) as the function changes it when Python runs it.

        Args:
            image: The image; the function gets a copy.
            values: (values,) float64, the drawn values.

        Raises:
            OptionError: The function returns another array than `out`, or raises StopIteration.
        """
        python = getattr(self.function, "py_func", self.function)
        drawn = {
            name: int(value) if isinstance(limits, range) else float(value)
            for (name, limits), value in zip(self.draw.items(), values, strict=True)
        }
        out = image.copy()
        try:
            result = python(image.copy(), out, **drawn, **self.parameters)
        except StopIteration as error:  # it would end the epoch
            raise OptionError(f"{self}: it raised StopIteration; expected no exception") from error
        if result is not None and result is not out:
            raise OptionError(
                f"{self}: it returned a {type(result).__name__}, which is ignored. Write into `out`: out[:] = ..."
            )
        return out


def _probability(p: Any) -> float:
    if isinstance(p, bool) or not isinstance(p, int | float) or not 0 <= p <= 1:
        raise OptionError(f"CompiledFunction(p={p!r}): expected a probability from 0 to 1")
    return float(p)


def _named(option: str, values: Any) -> Mapping[str, Any]:
    """Return the values of an option by name, none for None."""
    if values is None:
        return {}
    if not isinstance(values, Mapping) or not all(isinstance(name, str) for name in values):
        raise OptionError(f"CompiledFunction({option}={values!r}): expected a dict with the names of arguments")
    return values


def _range(name: object, limits: Any) -> tuple[float, float] | range:
    # Drawn values are floats, which hold no larger whole numbers.
    if isinstance(limits, range) and limits and max(abs(limits[0]), abs(limits[-1])) <= 2**_BITS:
        return limits
    if isinstance(limits, tuple | list) and len(limits) == 2:
        low, high = limits
        are_numbers = all(isinstance(n, int | float) and not isinstance(n, bool) and math.isfinite(n) for n in limits)
        if are_numbers and low <= high and math.isfinite(high - low):
            return float(low), float(high)
    raise OptionError(
        f"CompiledFunction(draw={{{name!r}: {limits!r}}}): expected (low, high) for a float, with a low of at most "
        "high, or range(first, end) for a whole number of at most 2**53"
    )


def _never_uses(python: FunctionType, argument: int) -> bool:
    """Return whether a function surely never reads an argument, by its code: it may still assign to the name."""
    name = python.__code__.co_varnames[argument]
    # From Python 3.13 on, one instruction may name two variables.
    uses = (
        s for s in dis.get_instructions(python) if name in (s.argval if isinstance(s.argval, tuple) else (s.argval,))
    )
    return all(use.opname == "STORE_FAST" for use in uses)


def _parameter(name: object, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        value = (value.float() if value.dtype == torch.bfloat16 else value).numpy()
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        value = np.array(value, order="C")
        value.flags.writeable = False
        return value
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool | int | float):
        return value
    raise OptionError(
        f"CompiledFunction(parameters={{{name!r}: {value!r}}}): expected a number or a NumPy array of numbers"
    )


def _memory_of(of: object, images: torch.Tensor) -> tuple[bool, tuple[int, int, int]]:
    """Return whether images are (C, H, W) in memory and not (H, W, C), and their shape."""
    if images.ndim not in (3, 4) or images.device.type != "cpu":
        raise OptionError(
            f"{of}: found {images.device.type} {tuple(images.shape)}; expected images (B, C, H, W) or masks (B, H, W) "
            "in the computer's memory"
        )
    channels, height, width = (1, *images.shape[1:]) if images.ndim == 3 else images.shape[1:]
    if images.is_contiguous():
        return True, (channels, height, width)
    if images.ndim == 4 and images.is_contiguous(memory_format=torch.channels_last):
        return False, (channels, height, width)
    raise OptionError(f"{of}: the images have strides {images.stride()}; expected contiguous or channels_last images")
