"""The mark of functions that several threads may call at once."""

from __future__ import annotations

from functools import partial
from types import MethodType
from typing import Any, TypeVar

from lmdbloader.errors import OptionError

T = TypeVar("T")
_MARK = "_lmdbloader_thread_safe"


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
