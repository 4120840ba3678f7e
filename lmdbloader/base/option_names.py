"""Options and their values in messages."""

from __future__ import annotations

import reprlib
from typing import Any

_NO_VALUE = object()


def option(name: str, value: Any = _NO_VALUE) -> str:
    """Return an option, with a value if one is given, as it is written in Python.

    >>> option("seed"), option("write_mode", "jpg"), option("overwrite", True)
    ('seed', "write_mode='jpg'", 'overwrite=True')
    """
    return name if value is _NO_VALUE else f"{name}={shown(value)}"


def shown(value: Any) -> str:
    """Return the start of a value's text; a value whose own text is an error gets another one.

    >>> shown("16"), shown(16.0)
    ("'16'", '16.0')
    """
    try:
        return reprlib.repr(value)
    except Exception:  # of an integer with thousands of digits, or of a class of the caller's
        return f"a value of type {type(value).__name__}"
