"""What extracted files are called: names from a dataset, which may say anything, to paths that stay inside a folder."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence

from lmdbloader.images.decode import IMAGE_SUFFIXES

# The suffixes of files that extraction writes; no folder ends in one, so that no folder is where a file must go.
FILE_SUFFIXES = (".png", ".npy", ".bin", ".json", ".jsonl", *sorted(IMAGE_SUFFIXES - {".png"}))

_NAME_NBYTES = 180
_PATH_NBYTES = 1000
_MAX_DEPTH = 32
# What a file name cannot hold, or a terminal acts on.
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def safe_stem(source: str, *, keep_suffix: bool = False) -> str:
    """Return a relative path without a suffix for the files made from a source.

    It has no empty, "." or ".." component, does not start with "/", and no component is longer than 180 bytes. What is
    changed for that is changed to "_", or cut and marked with a digest.

    Args:
        source: The source's name, by intention a relative path with "/".
        keep_suffix: Whether an image's suffix stays (as a part of the stem).

    >>> safe_stem("cats/0001.png"), safe_stem("cats/0001.png", keep_suffix=True)
    ('cats/0001', 'cats/0001.png')
    >>> safe_stem("../../etc/passwd"), safe_stem("/x//y.JPG"), safe_stem("")
    ('_/_/etc/passwd', 'x/y', '_')
    """
    parts = [part for part in source.split("/") if part not in ("", ".")] or [""]
    root, suffix = os.path.splitext(parts[-1])
    if not keep_suffix and suffix.lower() in IMAGE_SUFFIXES:
        parts[-1] = root
    *folders, last = [_safe_name(part) for part in parts]
    folders = [folder + "_" if folder.lower().endswith(FILE_SUFFIXES) else folder for folder in folders]
    stem = "/".join((*folders, last))
    if len(folders) >= _MAX_DEPTH or len(stem.encode()) > _PATH_NBYTES:
        return f"{_digest(source)}_{last}"
    return stem


def unique_stems(sources: Sequence[str]) -> list[str]:
    """Return a safe stem for each source, no two alike.

    A source that is "<stem>.png" already keeps its name; others take theirs in the order given, those that come too
    late with their suffix as a part of it, or else with a number.

    >>> unique_stems(["a.jpg", "a.png", "b.tif", "a.jpg"])
    ['a.jpg', 'a', 'b', 'a~2']
    """
    wanted = [safe_stem(source) for source in sources]
    stems = [""] * len(sources)
    taken: set[str] = set()
    next_number: dict[str, int] = {}
    for i, (source, stem) in enumerate(zip(sources, wanted, strict=True)):
        if source == f"{stem}.png" and stem not in taken:
            stems[i] = stem
            taken.add(stem)
    for i, (source, stem) in enumerate(zip(sources, wanted, strict=True)):
        if not stems[i]:
            stems[i] = stem if stem not in taken else _free(source, stem, taken, next_number)
            taken.add(stems[i])
    return stems


def with_position(stem: str, top: int, left: int) -> str:
    """Return the stem of one patch; from different (stem, top, left) never the same.

    >>> with_position("cats/0001", 96, 192)
    'cats/0001_r00096_c00192'
    """
    return f"{stem}_r{top:05d}_c{left:05d}"


def _free(source: str, stem: str, taken: set[str], next_number: dict[str, int]) -> str:
    """Return a stem for a source whose own is taken."""
    with_suffix = safe_stem(source, keep_suffix=True)
    if with_suffix not in taken:
        return with_suffix
    # Remembered, so that many equal names do not each count from the start.
    number = next_number.get(stem, 2)
    while f"{stem}~{number}" in taken:
        number += 1
    next_number[stem] = number + 1
    return f"{stem}~{number}"


def _safe_name(part: str) -> str:
    """Return one path component that every Linux file system takes."""
    name = _UNSAFE.sub("_", part)
    if name in ("", ".", ".."):
        return "_"
    data = name.encode()
    if len(data) <= _NAME_NBYTES:
        return name
    return f"{data[: _NAME_NBYTES - 9].decode('utf-8', 'ignore')}~{_digest(part)}"


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
