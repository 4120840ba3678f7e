"""The standard streams of the command: always open, safe for a terminal, and named in errors."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO

from lmdbloader.base.files import occupy_standard_descriptors
from lmdbloader.base.text import plain
from lmdbloader.errors import OutputError


def say(line: str, *, error: bool = False) -> None:
    """Print one line, without the characters that move the cursor, change colors or start another line.

    Names of files may hold such characters, and a terminal acts on them.

    Args:
        line: The line.
        error: Print to the standard error.
    """
    print(plain(line), file=sys.stderr if error else sys.stdout)


def say_error(line: str) -> None:
    """Print one line to the standard error, as `say` does."""
    say(line, error=True)


def say_nothing(line: str) -> None:
    """Print nothing, for --quiet."""


def say_lines(text: str) -> None:
    """Print several lines, each as `say` does. Values in the text must not have line breaks of their own."""
    for line in text.split("\n"):
        say(line)


class _Named:
    """A text stream whose failures are errors of the stream, and not of a file that is written."""

    def __init__(self, stream: TextIO, name: str) -> None:
        self._stream, self._name = stream, name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._explained():
            return self._stream.write(text)

    def flush(self) -> None:
        with self._explained():
            self._stream.flush()

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:  # the reader has seen enough
            raise
        except OSError as error:
            raise OutputError(f"{self._name} cannot be written to: {error.strerror or error}.") from error


@contextlib.contextmanager
def standard_streams() -> Iterator[None]:
    """Keep all three standard streams open, and name them in errors, until the end of the `with` statement."""
    occupy_standard_descriptors()
    with contextlib.ExitStack() as stack:
        for name, title in (("stdout", "standard output"), ("stderr", "standard error")):
            stream = getattr(sys, name)
            if stream is None:  # it was closed when Python started
                stream = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
            stack.callback(setattr, sys, name, getattr(sys, name))
            setattr(sys, name, _Named(stream, title))
        yield


def forget(stream: Any) -> None:
    """Drop the rest of a stream that cannot be written to: flushing it at the exit would fail again."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
