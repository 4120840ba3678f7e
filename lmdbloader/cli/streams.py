"""Standard input, output and error of the command: there in any case, and named where they cannot be written to."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO

from lmdbloader.base.files import occupy_standard_descriptors
from lmdbloader.errors import OutputError


class _Named:
    """Passes on to a text stream; what fails there is an error of the stream's, not of a file that is written."""

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
        except BrokenPipeError:  # whoever read has seen enough
            raise
        except OSError as error:
            raise OutputError(f"{self._name} cannot be written to: {error.strerror or error}.") from error


@contextlib.contextmanager
def standard_streams() -> Iterator[None]:
    """Have all three standard streams open, and their failures named, as long as this is entered."""
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
    """Have nothing of a stream that cannot be written to flushed when the interpreter exits, which would fail again."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
