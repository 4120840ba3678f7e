"""Checks of options that Python callers pass: each returns the value as one of Python's own types."""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from numbers import Real
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from lmdbloader.base.option_names import option
from lmdbloader.base.option_names import shown as shown
from lmdbloader.errors import OptionError

_BOOLS = (bool, np.bool_)
_Checked = TypeVar("_Checked")
_Function = TypeVar("_Function", bound=Callable[..., Any])


def whole(name: str, value: Any, least: int | None = None, most: int | None = None) -> int:
    """Return a whole number: one of Python, NumPy or torch, but neither a float nor a bool.

    Args:
        name: The option's, for the message.
        value: As passed.
        least, most: Its limits; None if they are checked elsewhere.

    Raises:
        OptionError: It is something else.

    >>> whole("batch_size", np.int64(16))
    16
    """
    try:
        number = None if isinstance(value, _BOOLS) else operator.index(value)
    except (TypeError, ValueError, RuntimeError):  # every tensor has __index__; it raises unless there is one value
        number = None
    if number is None or (least is not None and number < least) or (most is not None and number > most):
        limits = "" if least is None else f" of at least {least}" if most is None else f" from {least} to {most}"
        raise _refused(name, value, f"a whole number{limits}")
    return number


def optional(check: Callable[[str, Any], _Checked], name: str, value: Any) -> _Checked | None:
    """Return None for None, else the result of one of the other checks.

    >>> optional(whole, "seed", None), optional(whole, "seed", 3)
    (None, 3)
    """
    return None if value is None else check(name, value)


def number(name: str, value: Any) -> float:
    """Return a number: one of Python's or NumPy's types, but not a bool.

    Raises:
        OptionError: It is something else.

    >>> number("compress_probability", np.float32(0.5))
    0.5
    """
    # A float cannot hold the largest integers.
    if isinstance(value, Real) and not isinstance(value, _BOOLS):
        try:
            return float(value)
        except OverflowError:
            pass
    raise _refused(name, value, "a number")


def flag(name: str, value: Any) -> bool:
    """Return True or False; other values are refused, as "no" would count as True.

    Raises:
        OptionError: It is something else.
    """
    if isinstance(value, _BOOLS):
        return bool(value)
    raise _refused(name, value, "True or False")


def function(name: str, value: _Function) -> _Function:
    """Return a function.

    Raises:
        OptionError: It cannot be called.
    """
    if callable(value):
        return value
    raise _refused(name, value, "a function")


def listed(name: str, value: Any) -> tuple[Any, ...]:
    """Return the items of a list; none for None.

    Raises:
        OptionError: It is a single item, not a list.

    >>> listed("transforms", [1, 2]), listed("transforms", None)
    ((1, 2), ())
    """
    if value is None:
        return ()
    try:
        return tuple(value)
    except TypeError as error:
        raise _refused(name, value, "a list") from error


def ordered_texts(name: str, value: Any) -> tuple[str, ...]:
    """Return distinct texts in the order given, from a list, a tuple or any other sequence.

    Args:
        name: The option's, for the message.
        value: As passed.

    Raises:
        OptionError: It has no order (a set), can be read only once (a generator), or holds something else.

    >>> ordered_texts("classes", ["cat", "dog"])
    ('cat', 'dog')
    """
    expected = "different names (str) in order, as a list or tuple"
    if isinstance(value, Set | Mapping):
        raise _refused(name, value, f"{expected}: a {type(value).__name__} has no order")
    if isinstance(value, str | bytes) or not (hasattr(value, "__len__") and hasattr(value, "__getitem__")):
        raise _refused(name, value, expected)
    try:
        texts = list(value)
    except TypeError as error:  # an array without dimensions
        raise _refused(name, value, expected) from error
    if not all(isinstance(text, str) for text in texts) or len(set(texts)) != len(texts):
        raise _refused(name, value, expected)
    # NumPy's strings have a type of their own.
    return tuple(map(str, texts))


def path_text(name: str, value: Any) -> str:
    """Return a path as text; undecodable bytes are escaped, as Python does with file names.

    Raises:
        OptionError: It is not a path, or no file can have this name.

    >>> path_text("out", b"train.lmdb")
    'train.lmdb'
    """
    try:
        text = os.fsdecode(value)
    except TypeError as error:
        raise _refused(name, value, "a path") from error
    except UnicodeEncodeError as error:
        raise _refused(name, value, "a path that the system's encoding can represent") from error
    if not text:
        raise _refused(name, value, "a path, and it is empty. Is its environment variable set?")
    if "\0" in text:
        raise _refused(name, value, "a path without NUL, which file names cannot contain")
    return text


def field_names(given: Any, known: Sequence[tuple[str, Iterable[str]]]) -> tuple[str, ...]:
    """Return the names of fields in an option `fields`, each of which all datasets have; None means all of the first.

    Args:
        given: The option.
        known: The place of each dataset, at least one, and the names of its fields.

    Raises:
        OptionError: It is not a list of such names, each once.

    >>> field_names(["image"], [("a.lmdb", ["image", "label"])]), field_names(None, [("a.lmdb", ["image"])])
    (('image',), ('image',))
    """
    if isinstance(given, str):
        raise _refused("fields", given, f"a list of names, such as [{given!r}]")
    try:
        names = tuple(known[0][1] if given is None else given)
    except TypeError as error:
        raise OptionError(f"fields={shown(given)}: expected a list of names") from error
    for place, has in known:
        for name in names:
            if name not in has:
                raise OptionError(f"{place}: no field {name!r:.80}; it has {', '.join(has)}")
    if not names or len(set(names)) != len(names):
        raise _refused("fields", names, "at least one name, each once")
    return names


_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(::[A-Za-z][A-Za-z0-9+.-]*)*://")


def is_url(text: str) -> bool:
    """Return whether a path is a URL.

    >>> is_url("s3://bucket/photos"), is_url("C:/photos")
    (True, False)
    """
    return _URL.match(text) is not None


_PROTOCOL = re.compile(r"(?:^|(?<=::))[A-Za-z][A-Za-z0-9+.-]*(?=::|://)")


def plain_url(url: str) -> str:
    """Return a URL with its protocols in small letters, as programs compare them.

    >>> plain_url("S3://Bucket/Photos"), plain_url("ZIP://A::HTTPS://host/B.zip")
    ('s3://Bucket/Photos', 'zip://A::https://host/B.zip')
    """
    return _PROTOCOL.sub(lambda match: match[0].lower(), url)


def local_path(name: str, value: Any) -> Path:
    """Return the path of a dataset, which is on a disk.

    Raises:
        OptionError: It is not a path, or a URL.

    >>> local_path("path", b"train.lmdb")
    PosixPath('train.lmdb')
    """
    text = path_text(name, value)
    if not is_url(text):
        return Path(text)
    raise OptionError(
        f"{text}: is a URL; expected a dataset on a disk. LMDBDataset(URL) reads one where it is, and `lmdbloader "
        "stage URL FOLDER` copies it."
    )


def new_path(name: str, value: Any) -> Path:
    """Return the path of something that will be made, on a disk.

    Raises:
        OptionError: It is not a path, or a URL.
    """
    text = path_text(name, value)
    if is_url(text):
        raise OptionError(
            f"{text}: is a URL, and output goes to a disk only. Write to a disk, and copy the result to the URL."
        )
    return Path(text)


def _refused(name: str, value: Any, expected: str) -> OptionError:
    return OptionError(f"{option(name, value)}: expected {expected}")
