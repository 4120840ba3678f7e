"""What the command prints: names of files come from anywhere, and a terminal acts on some characters."""

from __future__ import annotations

import sys

from lmdbloader.base.text import plain


def say(line: str, *, error: bool = False) -> None:
    """Print one line, with everything escaped that could move the cursor, change colours or begin another line.

    Args:
        line: What is said.
        error: Whether it goes to the standard error.
    """
    print(plain(line), file=sys.stderr if error else sys.stdout)


def say_lines(text: str) -> None:
    """Print several lines, each as `say` does; what is put into them must have no line breaks of its own."""
    for line in text.split("\n"):
        say(line)
