"""Objects on their way between a process and its own workers: pickled in memory, never into a file."""

from __future__ import annotations

import multiprocessing.spawn
import os
import pickle
import threading
from typing import Any

from lmdbloader.base.arguments import shown
from lmdbloader.errors import LmdbloaderError, OptionError

_MAIN = ("init_main_from_name", "init_main_from_path")
# Whether this process, a worker, is importing the caller's main module, and whether it has done so.
_importing_main, _has_main = threading.Event(), threading.Event()
_THREADS = "Or write threads=True: threads need no pickling"
_GUARD = (
    "The worker processes import the main script, because the dataset, its samples or prepare are defined in it, and "
    "the script calls write again. Put that call below `if __name__ == '__main__':`, or move the definitions into a "
    f"module. {_THREADS}."
)


def dumps(item: object) -> bytes:
    """Return any object of this package as bytes for `loads` in another process.

    multiprocessing's own pickler would not do: torch makes it send tensors through a server that asks for a password,
    which these workers do not have.
    """
    return pickle.dumps(item, pickle.HIGHEST_PROTOCOL)


def loads(data: Any) -> Any:
    """Return the object that `dumps` was given, by the process itself or by the other end of its connection."""
    return pickle.loads(data)


def pack(dataset: Any, prepare: Any, rest: Any, example: Any = None) -> bytes:
    """Return a dataset, a function and other objects as bytes for `unpack` in another process.

    Args:
        dataset: With `len` and integer indices.
        prepare: A function, or None.
        rest: Objects of this package, which can be pickled.
        example: The first of the samples that follow from `pack_sample`, if any do.

    Raises:
        OptionError: One of the first two cannot be pickled, or is defined where a process cannot import it.
    """
    try:
        data = dumps((dataset, prepare, rest))
    except Exception:
        check_pickles("prepare", prepare)
        check_pickles("the dataset", dataset)
        raise
    main = {}
    if any(b"__main__" in packed for packed in (data, pack_sample(example, 0))):  # a name in a pickle is its own text
        given = multiprocessing.spawn.get_preparation_data("lmdbloader")
        main = {key: given[key] for key in ("sys_argv", "dir", *_MAIN) if key in given}
        if _MAIN[0] not in main and not os.path.isfile(main.get(_MAIN[1]) or ""):
            raise OptionError(
                "workers: the dataset, its samples or prepare are defined at the prompt or in a notebook, where worker "
                f"processes cannot import them. Move the definition into a module. {_THREADS}."
            )
    return dumps((main, data))


def unpack(packed: bytes) -> Any:
    """Return what `pack` was given, as (dataset, prepare, rest).

    Raises:
        OptionError: The main script starts to write when it is imported.
    """
    main, data = loads(packed)
    if main and not _has_main.is_set():
        _importing_main.set()
        try:
            multiprocessing.spawn.prepare(main)
            _has_main.set()
        finally:
            _importing_main.clear()
    return _loaded(data)


def pack_sample(sample: Any, number: int) -> bytes:
    """Return a sample as bytes for `unpack_sample` in another process, which needs what `pack` has returned first.

    Raises:
        OptionError: It cannot be pickled.
    """
    try:
        return dumps(sample)
    except Exception:
        check_pickles(f"sample {number}", sample)
        raise


def unpack_sample(packed: bytes) -> Any:
    """Return the sample that `pack_sample` was given.

    Raises:
        OptionError: The worker cannot import its class.
    """
    return _loaded(packed)


def _loaded(data: bytes) -> Any:
    try:
        return loads(data)
    except (AttributeError, ImportError) as error:
        raise OptionError(
            f"workers: a worker process cannot load the dataset, a sample or prepare ({error}). Define classes and "
            "functions at the top level of a module; in the main script, above `if __name__ == '__main__':`. "
            f"{_THREADS}."
        ) from error


def refuse_in_import() -> None:
    """Refuse to write in a worker that is only importing the caller's main script.

    Raises:
        OptionError: This is such a worker.
    """
    if _importing_main.is_set():
        raise OptionError(_GUARD)


def check_pickles(what: str, value: Any) -> None:
    """Refuse an object that cannot be pickled.

    Args:
        what: Its name in messages, "prepare", "the dataset" or "sample 3".
        value: The object.

    Raises:
        OptionError: It cannot be pickled.
    """
    try:
        dumps(value)
    except Exception as error:
        if isinstance(error, MemoryError | LmdbloaderError):
            raise
        raise OptionError(
            f"{what} ({shown(value)}): cannot be pickled to send it to worker processes ({error}). Define functions "
            f"and classes at the top level of a module, and open files when they are first used. {_THREADS}."
        ) from error
