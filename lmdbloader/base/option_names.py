"""Options and their values in messages: in Python, or as flags while a command runs."""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_NO_VALUE = object()
# From Python names to flags. It is of the process, not of a context: the threads of a command write messages too.
_flags: dict[str, str] = {}
# Whether this thread makes text for a file, which is the same whoever makes it.
_is_for_file = ContextVar("_is_for_file", default=False)


def option(name: str, value: Any = _NO_VALUE) -> str:
    """Return an option, with a value if one is given, as the caller writes it.

    >>> option("seed"), option("write_mode", "jpg"), option("overwrite", True)
    ('seed', "write_mode='jpg'", 'overwrite=True')
    >>> with naming_flags({"write_mode": "--write-mode", "overwrite": "--overwrite"}):
    ...     option("seed"), option("write_mode", "jpg"), option("overwrite", True)
    ('seed', '--write-mode jpg', '--overwrite')
    """
    if (flag := _flags.get(name)) and not _is_for_file.get():
        is_alone = value is _NO_VALUE or value is True
        return flag if is_alone else f"{flag} {value if isinstance(value, str) else shown(value)}"
    return name if value is _NO_VALUE else f"{name}={shown(value)}"


@contextmanager
def naming_flags(flags: Mapping[str, str]) -> Iterator[None]:
    """Name options by flags in the messages of this process, until the end of the `with` statement.

    Args:
        flags: From Python names to flags; options without a flag keep their Python names.
    """
    _flags.update(flags)
    try:
        yield
    finally:
        _flags.clear()


@contextmanager
def for_file(is_for_file: bool) -> Iterator[None]:
    """Name options as in Python in what this thread writes into a file, until the end of the `with` statement."""
    token = _is_for_file.set(is_for_file)
    try:
        yield
    finally:
        _is_for_file.reset(token)


def flags_in_use() -> dict[str, str]:
    """Return the flags by which messages name options, for other processes; empty for Python names."""
    return dict(_flags)


def shown(value: Any) -> str:
    """Return the start of a value's text; a value whose own text is an error gets another one.

    >>> shown("16"), shown(16.0)
    ("'16'", '16.0')
    """
    try:
        return reprlib.repr(value)
    except Exception:  # of an integer with thousands of digits, or of a class of the caller's
        return f"a value of type {type(value).__name__}"
