"""Long lists in a JSON file, read element by element in bounded memory."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, TextIO

from lmdbloader.base.files import open_regular
from lmdbloader.errors import SourceError

_PIECE = 2**20
# The most characters of one element, and of a value that is not a list.
MOST_CHARACTERS = 64 * 2**20
_SPACE = " \t\n\r"
_OF_NUMBERS = "+-.0123456789Ee"


def read_lists(path: Path, keys: Collection[str]) -> Iterator[tuple[str, int, Any]]:
    """Yield (key, number, element) of some lists of the object that a JSON file holds, in the order of the file.

    Only one element is in memory at a time, and at most 64 Mi characters of the file. Numbers that JSON does not have
    (NaN, Infinity) are read as Python does.

    Raises:
        SourceError: The file cannot be read, is not JSON or not an object, lacks one of the lists, or has it twice.
    """
    try:
        with open(open_regular(path), encoding="utf-8-sig", newline="") as file:
            yield from _Reader(path, file).lists(keys)
    except UnicodeDecodeError as error:
        raise SourceError(f"{path}: is not JSON: not UTF-8 ({error})") from error
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error.strerror or error})") from error


class _Reader:
    """A JSON file, and a window of its text."""

    def __init__(self, path: Path, file: TextIO) -> None:
        self._path, self._file = path, file
        self._text, self._at, self._before = "", 0, 0
        self._is_whole = False
        self._decode = json.JSONDecoder().raw_decode

    def lists(self, keys: Collection[str]) -> Iterator[tuple[str, int, Any]]:
        if self._next() != "{":
            raise self._error("expected an object, which starts with {")
        self._at += 1
        seen: set[str] = set()
        while self._next() != "}":
            if seen:
                self._skip(",")
            key = self._value("the file")
            if not isinstance(key, str) or (key in seen and key in keys):
                raise self._error(f"a second {key!r}" if isinstance(key, str) else "expected a name in quotes")
            seen.add(key)
            self._skip(":")
            if self._next() == "[":
                for number, element in enumerate(self._elements(key)):
                    if key in keys:
                        yield key, number, element
            elif key in keys:
                raise SourceError(f"{self._path}: {key!r} is not a list")
            else:
                self._value(key)
        self._at += 1
        if self._next():
            raise self._error("more text after the end of the object")
        if missing := [key for key in keys if key not in seen]:
            there = ", ".join(map(repr, sorted(seen)[:10])) or "nothing"
            raise SourceError(f"{self._path}: has no list {missing[0]!r}; it has {there}")

    def _elements(self, key: str) -> Iterator[Any]:
        self._skip("[")
        number = 0
        while self._next() != "]":
            if number:
                self._skip(",")
            yield self._value(f"{key}[{number}]")
            number += 1
        self._at += 1

    def _next(self) -> str:
        """Return the next character that is no white space, "" at the end of the file."""
        while True:
            while self._at < len(self._text):
                if self._text[self._at] not in _SPACE:
                    return self._text[self._at]
                self._at += 1
            if not self._more():
                return ""

    def _skip(self, expected: str) -> None:
        if (found := self._next()) != expected:
            raise self._error(f"expected {expected!r}, found {found!r}" if found else "the file ends too early")
        self._at += 1

    def _value(self, where: str) -> Any:
        self._next()
        while True:
            try:
                value, end = self._decode(self._text, self._at)
                # The rest of a number may be in the next piece: 0.5 is 0, and then 0. without its end.
                if self._is_whole or (end < len(self._text) and self._text[end] not in _OF_NUMBERS):
                    self._at = end
                    return value
            except json.JSONDecodeError as error:
                if self._is_whole:
                    raise self._error(f"{where}: {error.msg}", error.pos) from error
            except (ValueError, RecursionError) as error:
                what = "nested too deeply" if isinstance(error, RecursionError) else str(error).partition(";")[0]
                raise self._error(f"{where}: {what}") from error
            if len(self._text) - self._at > MOST_CHARACTERS:
                raise self._error(f"{where}: does not end within {MOST_CHARACTERS >> 20} Mi characters")
            self._more()

    def _more(self) -> bool:
        """Read another piece, as long as what is left of the text at least; return whether there was any."""
        left = self._text[self._at :]
        piece = self._file.read(max(_PIECE, len(left)))
        self._before += self._at
        self._text, self._at = left + piece, 0
        self._is_whole = not piece
        return not self._is_whole

    def _error(self, what: str, at: int | None = None) -> SourceError:
        position = self._before + (self._at if at is None else at)
        return SourceError(f"{self._path}: is not JSON as expected at character {position:,}: {what}")
