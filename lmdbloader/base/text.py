"""Formats numbers and texts for display, and makes text safe for terminals."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterable, Sequence


def counted(number: int, noun: str, nouns: str | None = None) -> str:
    """Return a number with its noun; `nouns` is the plural if it is not the noun with an s.

    >>> counted(1, "sample"), counted(1280, "sample"), counted(2, "process", "processes")
    ('1 sample', '1,280 samples', '2 processes')
    """
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"


def rough_time(seconds: float) -> str:
    """Return a time that is only known roughly.

    >>> rough_time(0.2), rough_time(75), rough_time(170), rough_time(9000)
    ('1 s', '75 s', '3 min', '2.5 h')
    """
    if seconds < 90:
        return f"{max(round(seconds), 1)} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def extent(values: tuple[int, int]) -> str:
    """Return the smallest and the largest.

    >>> extent((5, 5)), extent((5, 1000))
    ('5', '5 to 1,000')
    """
    return f"{values[0]:,}" if values[0] == values[1] else f"{values[0]:,} to {values[1]:,}"


def first_of(names: Sequence[str], most: int = 5) -> str:
    """Return the first names, and how many more there are.

    >>> first_of(["a", "b"]), first_of(["a"] * 1200, most=2)
    ('a, b', 'a, a and 1,198 more')
    """
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def table(rows: Iterable[Iterable[str]]) -> bytes:
    """Return tab-separated lines for a file; tabs, line breaks and control characters are escaped.

    >>> table([("name", "reason"), ("a\\tcat.png", "no image")])
    b'name\\treason\\na\\\\tcat.png\\tno image\\n'
    """
    return "".join("\t".join(map(plain, row)) + "\n" for row in rows).encode()


def command(*words: str | os.PathLike[str]) -> str:
    """Return a line of the command lmdbloader for a message, quoted as a shell takes it.

    >>> command("verify", "train.lmdb"), command("repair", "my set.lmdb", "OUT")
    ('`lmdbloader verify train.lmdb`', "`lmdbloader repair 'my set.lmdb' OUT`")
    """
    import shlex

    return f"`{shlex.join(['lmdbloader', *map(str, words)])}`"


def plain(text: str) -> str:
    """Return text on one line that is safe to print: characters that move the cursor or change colors are escaped.

    Every file name, and every text of a dataset, passes through this on its way to a terminal, a log or a list.

    >>> plain("a cat"), plain("a\\x1b[2Jcat")
    ('a cat', 'a\\\\x1b[2Jcat')
    """
    if text.isprintable():
        return text
    return "".join(c if _is_plain(c) else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def _is_plain(character: str) -> bool:
    # Spaces of other widths are harmless; str.isprintable accepts only the usual one.
    return character.isprintable() or unicodedata.category(character) == "Zs"
