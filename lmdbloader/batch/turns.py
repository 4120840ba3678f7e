"""Functions of the user take turns in a process, whichever thread calls them, unless they are marked as thread-safe."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from lmdbloader.transforms.functions import WithIndices, is_marked

T = TypeVar("T")


class _Here(threading.local):
    """What a thread is doing: the function whose turn it is, None without one."""

    function: Any = None


_here = _Here()
# One for all functions, as two of them may change one object. By process: a fork may copy a lock that is held.
_locks: dict[int, threading.RLock] = {}


def needs_turn(function: Any) -> bool:
    """Return whether a function has to be called by one thread at a time."""
    from lmdbloader.transforms.of_torchvision import InStep, is_stateless

    while isinstance(function, InStep | WithIndices):
        function = function.function
    return not (is_marked(function) or is_stateless(function))


def in_turn(function: Any, call: Callable[[], T], run: Callable[[Callable[[], T]], T] | None = None) -> T:
    """Return the result of a call of a function, during which no other function of the user has its turn.

    Args:
        function: The function.
        call: Calls it.
        run: Calls `call`; None calls it at once.
    """
    whole = call if run is None else partial(run, call)
    if not needs_turn(function):
        return whole()
    process = os.getpid()
    with _locks.get(process) or _locks.setdefault(process, threading.RLock()):
        before = _here.function
        try:
            _here.function = function
            return whole()
        finally:
            _here.function = before


def in_turn_of_main(function: Any, call: Callable[[], T]) -> T:
    """Return the result of a call that a user makes: as `in_turn` in the main thread, at once in others.

    Other threads are the user's own: a function in its turn may be waiting for them.
    """
    return in_turn(function, call) if threading.current_thread() is threading.main_thread() else call()


def running() -> Any:
    """Return the function that this thread is calling in its turn; None without one."""
    return _here.function
