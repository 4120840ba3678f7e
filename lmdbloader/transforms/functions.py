"""The contract of the user's functions: of whole batches, with numbers or random numbers, safe in several threads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import MethodType
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from lmdbloader.errors import OptionError

T = TypeVar("T")
_MARK = "_lmdbloader_thread_safe"


class BatchFunction:
    """A function of whole batches whose random numbers depend only on the seed, the epoch and the batch's place in it.

    Subclass it for your own functions; their random numbers then do not depend on threads. Each function of a Loader's
    list has its own for each batch.

    Attributes:
        is_compiled: Whether its steps are compiled code, as those of a CompiledFunction and a Degradation.
        makes_pairs: Whether it is a Degradation, which makes a second image.
    """

    is_compiled: ClassVar[bool] = False
    makes_pairs: ClassVar[bool] = False

    @property
    def is_random(self) -> bool:
        """Whether it makes random choices."""
        return True

    def apply(self, batch: Any, random: np.random.Generator) -> Any:
        """Return the changed batch.

        Args:
            batch: A named tuple of the dataset's fields, images as tensors (B, C, H, W), numbers as tensors (B,).
            random: The random generator of this batch and this function alone.
        """
        raise NotImplementedError

    def __call__(self, batch: Any) -> Any:
        """Return the changed batch, with new random numbers at every call."""
        return self.apply(batch, np.random.default_rng())


@dataclass(frozen=True, slots=True)
class WithIndices:
    """Call a function with the whole batch and its sample numbers, as `with_indices=True` of Hugging Face's `map` does.

    Attributes:
        function: Called with the batch and a tensor (B,) int64 of numbers in the dataset that the Loader reads; returns
            the batch.

    >>> numbered = WithIndices(lambda batch, indices: (*batch, indices))
    """

    function: Callable[[Any, torch.Tensor], Any]

    def __post_init__(self) -> None:
        """Check the function."""
        if not callable(self.function) or isinstance(self.function, BatchFunction):
            raise OptionError(f"WithIndices({self.function!r}): expected a function of a batch and its sample numbers")

    def __call__(self, batch: Any) -> Any:
        """Raise OptionError: without a Loader there are no numbers."""
        raise OptionError("WithIndices: only a Loader has sample numbers. Give it to Loader(..., transforms=[...]).")


def is_compiled(function: object) -> bool:
    """Return whether a function is compiled code: a CompiledFunction or a Degradation."""
    return isinstance(function, BatchFunction) and function.is_compiled


def call(
    function: Callable[[Any], Any],
    batch: Any,
    *,
    seed: int,
    epoch: int,
    position: int,
    place: int = 0,
    samples: npt.NDArray[np.int64] | None = None,
) -> Any:
    """Return a function's result for a batch; the numbers seed the random numbers of a BatchFunction.

    A plain tuple with a value for each field gets the names of the fields.

    Args:
        function: A BatchFunction, a function of the batch, or WithIndices.
        batch: The batch.
        seed, epoch: Of the Loader.
        position: Of the batch's first sample in the epoch's order, which no other batch of any rank has.
        place: Of the function among those of the Loader.
        samples: (B,) numbers of its samples, for WithIndices.

    Raises:
        OptionError: A BatchFunction follows a function without a named tuple as result, or the function returned None.
    """
    if isinstance(function, BatchFunction):
        if not hasattr(batch, "_replace"):
            raise OptionError(
                f"{function} comes after a function that returned a {type(batch).__name__}; expected a named tuple or "
                "a tuple of all fields. Put it before that function."
            )
        words = np.array([seed, epoch, position, place], "<u8").view("<u4")  # as many for every number
        called = partial(function.apply, batch, np.random.Generator(np.random.Philox(np.random.SeedSequence(words))))
    elif isinstance(function, WithIndices):
        called = partial(function.function, batch, torch.from_numpy(np.array(samples, np.int64)))
    else:
        called = partial(function, batch)
    try:
        result = called()
    except StopIteration as error:  # it would end the epoch
        raise OptionError(f"{described(function)} raised StopIteration; expected a batch. Catch it there.") from error
    if result is None:
        raise OptionError(
            f"{described(function)} returned None for a batch; expected the batch, changed or not. End it with "
            "`return batch`."
        )
    is_bare = type(result) is tuple and hasattr(batch, "_fields") and len(result) == len(batch)
    return type(batch)(*result) if is_bare else result


def described(function: Any) -> str:
    """Return the name of a function for errors, with its file and line if it is written in Python."""
    while isinstance(function, partial | WithIndices) or hasattr(function, "__wrapped__"):
        if isinstance(function, WithIndices):
            function = function.function
        else:
            function = function.func if isinstance(function, partial) else function.__wrapped__
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    code = getattr(function.apply if isinstance(function, BatchFunction) else function, "__code__", None)
    return f"the function {name}" + ("" if code is None else f" ({code.co_filename}, line {code.co_firstlineno})")


def thread_safe(function: T) -> T:
    """Mark a function, a class of functions, or one object as safe to be called by several threads at once.

    A Loader calls the functions of the user one at a time, a batch each, because most transforms of other libraries
    keep their random choice in the object. Marked ones are called in parallel, which is faster if they spend their
    time outside of Python's interpreter lock, as operations on large tensors do.

    Mark only what changes nothing that two calls share: no attribute of `self`, no variable of a module or of an
    enclosing function, and no object that does so, such as a transform of MONAI, kornia or albumentations, or a NumPy
    Generator. torch's own random numbers may be used. As a decorator it is the outermost one; a subclass of a marked
    class is not marked.

    Args:
        function: The function, class or object.

    Returns:
        The same object.

    Raises:
        OptionError: It cannot be marked, as functions written in C.

    >>> @thread_safe
    ... def brighter(batch):
    ...     return batch._replace(image=batch.image * 1.5)
    """
    try:
        # The object itself: an attribute is inherited, and copied to what wraps the object.
        if isinstance(function, type):
            setattr(function, _MARK, function)
        else:  # a torch module would take it for a part
            vars(function)[_MARK] = function
    except (AttributeError, TypeError) as error:
        raise OptionError(
            f"thread_safe({function!r}): it has no attributes of its own. Mark its class, or a function that calls it."
        ) from error
    return function


def is_marked(function: Any) -> bool:
    """Return whether a function, its class, or for a bound method its object is marked.

    >>> is_marked(partial(thread_safe(lambda batch, k: batch), k=2))
    True
    """
    if isinstance(function, partial):
        return is_marked(function.func)
    if isinstance(function, MethodType):
        return is_marked(function.__func__) or is_marked(function.__self__)
    return any(getattr(of, _MARK, None) is of for of in (function, type(function)))
