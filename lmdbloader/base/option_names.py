"""The names of options in messages: Python's for a caller in Python, flags for a user of the command."""

from __future__ import annotations

import os
import reprlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_NO_VALUE = object()
_MOST_CHARACTERS = 60
# From Python names to flags, while a command runs. A context of its own per thread: see `use_flags`.
_FLAGS: ContextVar[Mapping[str, str]] = ContextVar("flags", default={})  # noqa: B039 - never changed in place


def option(name: str, value: Any = _NO_VALUE) -> str:
    """Return an option, with a value if one is given, as the caller writes it.

    Args:
        name: The Python name of the option.
        value: The value; True for an option that is switched on.

    >>> option("seed"), option("write_mode", "jpg"), option("overwrite", True)
    ('seed', "write_mode='jpg'", 'overwrite=True')
    >>> with naming_flags({"write_mode": "--write-mode", "overwrite": "--overwrite"}):
    ...     option("seed"), option("write_mode", "jpg"), option("overwrite", True)
    ('seed', '--write-mode jpg', '--overwrite')
    """
    flag = _FLAGS.get().get(name)
    if flag is None:
        return name if value is _NO_VALUE else f"{name}={shown(value)}"
    if value is _NO_VALUE or value is True:
        return flag
    return f"{flag} {value[:_MOST_CHARACTERS] if isinstance(value, str) else shown(value)}"


def pasted(**options: object) -> str:
    """Return options with their values as a line to paste: nothing is shortened, and all is quoted.

    >>> pasted(hr="low", lr="my high", scale=2, overwrite=True)
    "hr='low', lr='my high', scale=2, overwrite=True"
    >>> with naming_flags({"hr": "--hr", "lr": "--lr", "scale": "--scale", "overwrite": "--overwrite"}):
    ...     pasted(hr="low", lr="my high", scale=2, overwrite=True)
    "--hr low --lr 'my high' --scale 2 --overwrite"
    """
    import shlex

    flags = _FLAGS.get()
    if options.keys() <= flags.keys():
        words = ([flags[name], *([] if value is True else [str(value)])] for name, value in options.items())
        return shlex.join(word for pair in words for word in pair)
    return ", ".join(f"{name}={_quoted(value)}" for name, value in options.items())


def pasted_convert(src: object, out: object = None, **options: object) -> str:
    """Return a call of `convert` as a line to paste.

    Args:
        src: The source.
        out: The destination; None for one that the caller fills in.
        **options: As for `pasted`.

    >>> pasted_convert("my photos", "a.lmdb", layout="coco"), pasted_convert("photos")
    ("lmdbloader.convert('my photos', 'a.lmdb', layout='coco')", "lmdbloader.convert('photos', out)")
    >>> with naming_flags({"layout": "--layout"}):
    ...     pasted_convert("my photos", layout="coco")
    "lmdbloader convert 'my photos' OUT --layout coco"
    """
    import shlex

    more = [pasted(**options)] * bool(options)
    if _FLAGS.get():
        words = ["lmdbloader convert", shlex.quote(str(src)), "OUT" if out is None else shlex.quote(str(out)), *more]
        return " ".join(words)
    return f"lmdbloader.convert({', '.join([_quoted(src), 'out' if out is None else _quoted(out), *more])})"


def _quoted(value: object) -> str:
    return repr(os.fspath(value) if isinstance(value, os.PathLike) else value)


@contextmanager
def naming_flags(flags: Mapping[str, str]) -> Iterator[None]:
    """Name options by flags in this thread, until the end of the `with` statement.

    Args:
        flags: From Python names to flags; options without a flag keep their Python names.
    """
    token = _FLAGS.set(flags)
    try:
        yield
    finally:
        _FLAGS.reset(token)


def use_flags(flags: Mapping[str, str]) -> None:
    """Name options by flags in this thread from now on: for threads and processes that work for another one."""
    _FLAGS.set(flags)


def flags_in_use() -> dict[str, str]:
    """Return the flags by which this thread names options; empty for Python names."""
    return dict(_FLAGS.get())


def shown(value: Any) -> str:
    """Return the start of a value's text; a value whose own text is an error gets another one.

    >>> shown("16"), shown(16.0)
    ("'16'", '16.0')
    """
    try:
        return reprlib.repr(value)
    except Exception:  # of an integer with thousands of digits, or of a class of the caller's
        return f"a value of type {type(value).__name__}"
