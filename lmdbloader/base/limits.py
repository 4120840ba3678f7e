"""Starts threads, and explains the system's refusal of a thread, a process, memory, or a map of a file."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

from lmdbloader.base import system
from lmdbloader.errors import WorkerError

# Python's message, whichever limit is reached.
_NO_THREAD = "can't start new thread"
# Messages of the system's loader when a library does not fit into memory; they come without an error number.
_NO_LIBRARY = ("failed to map segment", "annot allocate memory", "cannot create shared object descriptor")


def start_threads(threads: Iterable[Thread], whose: str, advice: str) -> None:
    """Start threads in order, up to the first that cannot start.

    Args:
        threads: Not started yet.
        whose: The part of the program that needs them, for the message.
        advice: A sentence on how to need fewer, in addition to raising the limit.

    Raises:
        WorkerError: The system refuses one; those before it have started.
    """
    threads = tuple(threads)
    for number, thread in enumerate(threads, 1):
        with explain_limit(f"{whose}: thread {number} of {len(threads)}", advice):
            thread.start()


@contextmanager
def explain_limit(what: str, advice: str) -> Iterator[None]:
    """Turn the system's refusal of a thread or a process into an error with a remedy.

    Args:
        what: The thread or process, and their number.
        advice: A sentence on how to need fewer, in addition to raising the limit.

    Raises:
        WorkerError: The system refuses it.
    """
    try:
        yield
    except (RuntimeError, OSError) as error:
        # EAGAIN is a limit of processes, ENOMEM one of memory; a missing program has another number.
        is_limit = isinstance(error, OSError) and error.errno in (errno.EAGAIN, errno.ENOMEM)
        if not is_limit and _NO_THREAD not in str(error):
            raise
        raise WorkerError(
            f"{what} cannot be started: the system refuses it ({error}). {advice} Or raise the limit: `ulimit -u`, a "
            f"container's --pids-limit.{_address_space()}"
        ) from error


def no_address_space(path: Path, nbytes: int, advice: str) -> str:
    """Return the message for a file that cannot be mapped within the limit of the process's address space.

    Args:
        path: The file's.
        nbytes: Bytes to map.
        advice: A sentence on how to do without the map, in addition to raising the limit.
    """
    return f"{path}: the system refuses to map {nbytes} bytes of it.{_address_space()} {advice}"


def refused_memory(error: BaseException) -> BaseException | None:
    """Return the error, itself or one of its causes, by which the system refused memory; None if there is none."""
    seen: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        is_os = isinstance(at, OSError) and at.errno == errno.ENOMEM
        is_library = isinstance(at, OSError | ImportError) and any(text in str(at) for text in _NO_LIBRARY)
        if isinstance(at, MemoryError) or is_os or is_library:
            return at
        at = at.__cause__ or at.__context__
    return None


def no_memory(what: str, error: BaseException, advice: str) -> str:
    """Return the message, on one line, when the system refused memory.

    Args:
        what: The part of the program that failed.
        error: As `refused_memory` returned it.
        advice: A sentence on how to use less memory.
    """
    why = str(error).partition("\n")[0] or type(error).__name__
    return f"{what}: the system refuses memory ({why}).{_address_space()} {advice}"


def has_address_limit() -> bool:
    """Return whether the address space of this process is limited."""
    return system.address_limit() is not None


def _address_space() -> str:
    limit = system.address_limit()
    return "" if limit is None else f" Maps, libraries and stacks must fit into `ulimit -v`, here {limit} bytes."
