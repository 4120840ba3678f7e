"""Every exception that lmdbloader raises on purpose; each is also a builtin one, so ordinary handlers catch it."""

from __future__ import annotations

from lmdbloader.base.text import plain

__all__ = [
    "CorruptError",
    "DestinationError",
    "DiskError",
    "DiskFullError",
    "FormatError",
    "ImageError",
    "KernelError",
    "LmdbloaderError",
    "LockedError",
    "NotFoundError",
    "OptionError",
    "OutputError",
    "SourceError",
    "SourceNotFoundError",
    "UnknownNameError",
    "WorkerError",
]


class LmdbloaderError(Exception):
    """Base of every error below; catch it to catch all of them.

    The message escapes control characters, as file names may contain anything.
    """

    def __str__(self) -> str:
        return plain(super().__str__())


class FormatError(LmdbloaderError, ValueError):
    """Not a dataset of lmdbloader, or it is unfinished, of another format version, or its description is not valid."""


class NotFoundError(LmdbloaderError, FileNotFoundError):
    """There is nothing at a path that is to be read."""


class CorruptError(LmdbloaderError, OSError):
    """Stored bytes differ from the bytes that were written: a checksum, a size or an offset does not match.

    Args:
        message: The damage found, its place, and the remedy.
        sample: Row of the index whose payload is damaged; None if the damage is not in one sample.
        field: Name of the payload's field.
        source: Relative path of the file that the sample was made from, if the dataset has sources.
        path: The dataset's, absolute.
    """

    def __init__(
        self,
        message: str,
        *,
        sample: int | None = None,
        field: str | None = None,
        source: str | None = None,
        path: str | None = None,
    ) -> None:
        super().__init__(message)
        self.sample = sample
        self.field = field
        self.source = source
        self.path = path


class ImageError(LmdbloaderError, ValueError):
    """One source image cannot be used: it does not decode, or a stated policy refuses it.

    Attributes:
        name: The image's name, unchanged.
        reason: The cause, without the name; control characters are escaped.
    """

    def __init__(self, name: str, reason: str) -> None:
        reason = plain(reason)
        super().__init__(f"{name}: {reason}")
        self.name = name
        self.reason = reason

    def __reduce__(self) -> tuple[type[ImageError], tuple[str, str]]:
        return type(self), (self.name, self.reason)


class KernelError(LmdbloaderError, ImportError):
    """The compiled kernels are missing, damaged, not for this processor, or not allowed to run."""


class SourceError(LmdbloaderError, ValueError):
    """A source folder does not match its layout."""


class SourceNotFoundError(SourceError, NotFoundError):
    """There is nothing at the path of a source."""


class OptionError(LmdbloaderError, ValueError):
    """An option's value, or a combination of options, makes no sense."""


class UnknownNameError(LmdbloaderError, AttributeError):
    """A dataset does not have an attribute that datasets with labels have."""


class OutputError(LmdbloaderError, RuntimeError):
    """The command's output cannot be printed. Not an OSError, because no file of a dataset has failed."""


class DestinationError(LmdbloaderError, OSError):
    """The place to write to is taken, or inside the source."""


class LockedError(DestinationError):
    """Another process is writing to the same destination."""


class DiskError(LmdbloaderError, OSError):
    """A disk or a file server failed to read or write a file, not for lack of space."""


class DiskFullError(LmdbloaderError, OSError):
    """The destination's file system, or shared memory, is full."""


class WorkerError(LmdbloaderError, RuntimeError):
    """A worker process or thread could not start, died, or failed with an error that is not the image's."""

    def __str__(self) -> str:
        return "\n".join(map(plain, Exception.__str__(self).split("\n")))  # it may quote the worker's output
