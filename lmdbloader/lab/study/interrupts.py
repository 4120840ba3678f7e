"""Ctrl-C and SIGTERM while a study runs: they end it even if Python loses the exception."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class _Asked:
    """Whether the study that runs in this process has been asked to end."""

    __slots__ = ("is_set",)

    def __init__(self) -> None:
        self.is_set = False


_asked = _Asked()


@contextmanager
def interruptible() -> Iterator[None]:
    """Make sure that an interruption ends the code in this context, as KeyboardInterrupt.

    Python raises it wherever the main thread is. In a destructor or a hook of os.fork, which a
    DataLoader calls often, it is printed and lost: `check` raises it again. Worker processes that are
    forked meanwhile leave a Ctrl-C in their terminal to this process, which ends them. Signals whose handlers raise
    nothing, and other threads than the main one, stay as they are.

    Raises:
        KeyboardInterrupt: One was raised inside, even if it was lost there.
    """
    replaced = {}
    _asked.is_set = False
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            handler = signal.getsignal(number)
            if callable(handler):
                replaced[number] = handler
                signal.signal(number, _noted(handler, os.getpid()))
    try:
        yield
        check()
    except Exception as error:
        if _asked.is_set:  # such as a worker process that heard it before it could leave it to us
            raise KeyboardInterrupt from error
        raise
    finally:
        for number, handler in replaced.items():
            signal.signal(number, handler)
        _asked.is_set = False


def check() -> None:
    """Raise KeyboardInterrupt if one was raised since `interruptible` began."""
    if _asked.is_set:
        raise KeyboardInterrupt


def _noted(handler: Callable[[int, FrameType | None], Any], owner: int) -> Callable[[int, FrameType | None], None]:
    """Return a handler that remembers whether another one raised KeyboardInterrupt."""

    def handle(number: int, frame: FrameType | None) -> None:
        if os.getpid() != owner:
            return
        try:
            handler(number, frame)
        except KeyboardInterrupt:
            _asked.is_set = True
            raise

    return handle
