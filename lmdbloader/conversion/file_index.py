"""What a Loader knows of image files that it reads as they are: found once, by several threads, and kept in a cache."""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from lmdbloader.base.cores import count_own_cores
from lmdbloader.base.progress import watched
from lmdbloader.base.text import command, plain
from lmdbloader.base.user_cache import cache_folder
from lmdbloader.conversion.doubts import refuse_mistaken
from lmdbloader.conversion.sources.layouts import list_sources
from lmdbloader.conversion.sources.listing import Names
from lmdbloader.errors import ImageError, OptionError
from lmdbloader.format.layout import bits_of
from lmdbloader.images.decode import DecodePolicy, inspect_image, is_jpeg

I64 = npt.NDArray[np.int64]
_logger = logging.getLogger("lmdbloader")

#: As a conversion without options.
POLICY = DecodePolicy()
# What is kept of each file: its bytes, its last change and that of its inode (ns since 1970), which changes even if a
# program keeps the former; of the upright image rows, columns, channels and `bits`; the orientation that makes it so.
_FACTS = ("stored_nbytes", "changed_ns", "inode_changed_ns", "height", "width", "channels", "bits", "orientation")
_HEIGHT = 3
# Nearly every JPEG has its frame header in so many bytes.
_HEAD_NBYTES = 64 * 1024
_FILES_AT_ONCE = 64
_MOST_THREADS = 32
_MOST_CACHED = 50
# What is kept differs from that of releases with another number.
_CACHE = "files-2"


@dataclass(frozen=True, slots=True, eq=False)
class FileIndex:
    """Image files, in the order and with the labels of a conversion.

    Attributes:
        names: Their paths below a folder.
        columns: (n,) int64 each: those of a dataset's index, by the ends of their names, with "changed_ns" and
            "orientation". A file that cannot be used has the shape of one that can.
        labels: (n,) int64, of class folders.
        classes: Class names by label.
        problems: Why files cannot be used, by number.
    """

    names: Names
    columns: Mapping[str, I64]
    labels: I64 | None = None
    classes: tuple[str, ...] = ()
    problems: Mapping[int, str] = field(default_factory=dict)

    def path(self, number: int) -> str:
        """Return the path of a file."""
        return os.fsdecode(self.names.path(number))


def index_folder(place: Path) -> FileIndex:
    """Return the images of a folder as `convert` finds them: classes are its subfolders, or there are none.

    Raises:
        SourceError: It is no folder of images, or seems to hold something else.
        OptionError: It holds tars, an LMDB or pairs, which are only read by a conversion.
        ImageError: None of its images can be used.
    """
    place = place.absolute()
    listing = list_sources(place)
    if listing.layout not in ("images", "classes") or listing.sources.spans is not None:
        line = command("convert", place, f"{place.name}.lmdb")
        raise OptionError(
            f"{place}: holds {listing.layout}; only folders of images, or of one folder for each class, are read as "
            f"they are. Convert it, {line}, and load that."
        )
    refuse_mistaken(place, listing)
    for name, reason in listing.ignored:
        _logger.info("lmdbloader: %s: %s", place, plain(f"{name}: {reason}"))
    return _found(listing.sources.names, listing.sources.labels, listing.classes)


def index_samples(root: str, samples: Sequence[tuple[str, int]], classes: Sequence[str]) -> FileIndex:
    """Return files with labels, in this order; `root` is the folder of most of them. Errors as `index_folder`."""
    top = os.path.join(os.path.abspath(os.fsencode(root)), b"")
    paths = (os.path.abspath(os.fsencode(path)) for path, _ in samples)
    names = Names.join(top[:-1], (path.removeprefix(top) for path in paths))
    return _found(names, np.array([label for _, label in samples], np.int64), tuple(classes))


def _found(names: Names, labels: I64 | None, classes: Sequence[str]) -> FileIndex:
    cached = _Cached(names)
    facts, problems = np.zeros((len(names), len(_FACTS)), np.int64), dict[int, str]()

    def look(first: int) -> int:
        numbers = range(first, min(first + _FILES_AT_ONCE, len(names)))
        for number in numbers:
            path = os.fsdecode(names.path(number))
            try:
                known = cached.facts(number, os.stat(path))
                facts[number] = _inspect(path) if known is None else known
            except OSError as error:
                problems[number] = f"cannot be read ({error.strerror})"
            except ImageError as error:
                problems[number] = error.reason
        return len(numbers)

    with ThreadPoolExecutor(min(2 * count_own_cores(), _MOST_THREADS)) as pool:
        done = pool.map(look, range(0, len(names), _FILES_AT_ONCE))
        for _ in watched("reading the headers of images", done, len(names), lambda count: count):
            pass
    usable = np.flatnonzero(facts[:, _HEIGHT])
    if not len(usable):
        number, reason = next(iter(problems.items()))
        raise ImageError(os.fsdecode(names.path(number)), f"{reason}. None of {len(names):,} images can be used")
    cached.keep(facts)
    facts[facts[:, _HEIGHT] == 0, _HEIGHT:] = facts[usable[0], _HEIGHT:]
    found = dict(zip(_FACTS, np.ascontiguousarray(facts.T), strict=True))
    found["raw_nbytes"] = found["height"] * found["width"] * found["channels"] * (found["bits"] // 8)
    return FileIndex(names, found, labels, tuple(classes), problems)


def _inspect(path: str) -> tuple[int, ...]:
    """Return the facts about a file, from its header."""
    with open(path, "rb", 0) as file:
        status, data = os.fstat(file.fileno()), file.read(_HEAD_NBYTES)
        header = None
        if is_jpeg(data):
            with suppress(ImageError):  # if it does not end here, all of the file is read
                header = inspect_image(data, POLICY, name=path)
        header = header or inspect_image(data + file.readall(), POLICY, name=path)
    shape = (*header.upright, header.channels, bits_of(header.dtype))
    return *_marks(status), *shape, header.orientation


def _marks(status: os.stat_result) -> tuple[int, int, int]:
    """Return what differs if a file has changed."""
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


class _Cached:
    """What an earlier process found of the files of a folder, in the user's cache; a damaged file is as none."""

    def __init__(self, names: Names) -> None:
        own, name = cache_folder(), hashlib.blake2b(names.folder, digest_size=16).hexdigest()
        self._path = None if own is None else own / _CACHE / f"{name}.npz"
        self._names, self._text, self._rows = names, b"", dict[bytes, int]()
        self._facts = np.zeros((0, len(_FACTS)), np.int64)
        if self._path is None:
            return
        with suppress(OSError, EOFError, TypeError, ValueError, KeyError, BadZipFile), open(self._path, "rb") as file:
            kept = np.load(file)
            text, bounds, facts = kept["text"].tobytes(), kept["bounds"], kept["facts"]
            if facts.dtype == np.int64 and facts.shape == (len(bounds) - 1, len(_FACTS)):
                self._rows = {name: row for row, name in enumerate(Names(names.folder, text, bounds))}
                self._text, self._facts = text, facts

    def facts(self, number: int, status: os.stat_result) -> I64 | None:
        """Return the facts about a file if it has still the same size and the same times of its last changes."""
        row = self._rows.get(self._names[number])
        if row is None or not self._facts[row, _HEIGHT]:
            return None
        is_same = (*self._facts[row, :_HEIGHT],) == _marks(status)
        return self._facts[row] if is_same else None

    def keep(self, facts: I64) -> None:
        """Replace what is kept, unless it is the same; what cannot be written is found again."""
        if self._path is None or (self._text == self._names.text and np.array_equal(facts, self._facts)):
            return
        with suppress(OSError):
            folder = self._path.parent
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder) as own:  # two processes that write at once have a file each
                written = Path(own, "kept.npz")
                text = np.frombuffer(self._names.text, np.uint8)
                np.savez(written, text=text, bounds=self._names.bounds, facts=facts)
                os.replace(written, self._path)
            for old in sorted(folder.glob("*.npz"), key=lambda path: path.stat().st_mtime)[:-_MOST_CACHED]:
                old.unlink()
