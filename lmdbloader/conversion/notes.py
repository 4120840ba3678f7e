"""What is noted about inputs while they are converted, as JSON: for the join, and to find inputs that change."""

from __future__ import annotations

import base64
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from lmdbloader.conversion.mask_numbers import Colors, add_colors
from lmdbloader.conversion.sources.listing import Sources
from lmdbloader.conversion.sources.reading import times_of
from lmdbloader.errors import SourceError
from lmdbloader.format.digests import Digest, digest_of
from lmdbloader.format.layout import look_text, looks_of

#: Kinds of `Notes.doubts`.
TURNED_MASK, TURNED_BOXES, FURTHER_IMAGES = "mask", "boxes", "images"


@dataclass(slots=True)
class Notes:
    """The notes on some sources, in order.

    Attributes:
        num_sources: Sources that are done, also skipped ones.
        skipped: (name, reason) of sources that could not be used.
        doubts: By kind, the number of images that a note is about, and the name of the first of them: TURNED_MASK and
            TURNED_BOXES, whose mask or boxes may have to be turned too; FURTHER_IMAGES, after which others follow in
            the file.
        colors: Of the palettes of the masks.
        looks: The types and channels of the images, and of the masks (`looks_of`), with the name of the first of each.
        hashes: XXH3 of the files of every source that was read, also of skipped ones.
        times: Of each of them, before its files were read: mtime and ctime in ns.
    """

    num_sources: int = 0
    skipped: list[tuple[str, str]] = field(default_factory=list)
    doubts: dict[str, tuple[int, str]] = field(default_factory=dict)
    colors: Colors = field(default_factory=dict)
    looks: dict[int, str] = field(default_factory=dict)
    hashes: array[int] = field(default_factory=lambda: array("Q"))
    times: array[int] = field(default_factory=lambda: array("q"))

    def extend(self, other: Notes) -> None:
        """Add the notes on the next sources.

        Raises:
            SourceError: Their masks have other palettes or bits, or the images other types or channels.
        """
        add_colors(self.colors, other.colors)
        self._add_looks(other.looks)
        self.num_sources += other.num_sources
        self.skipped += other.skipped
        for kind, (count, name) in other.doubts.items():
            self.doubt(kind, name, count)
        self.hashes.extend(other.hashes)
        self.times.extend(other.times)

    def add_look(self, kind: str, bits: int, channels: int, name: str) -> None:
        """Add an image or mask; raise SourceError if it differs from the others: no batch could hold both."""
        self._add_looks({_look_of(kind, bits, channels): name})

    def _add_looks(self, looks: Mapping[int, str]) -> None:
        self.looks |= {look: name for look, name in looks.items() if look not in self.looks}
        for kind, least, end in (("masks", 0, 256), ("images", 256, 2**16)):
            found = [f"{look_text(look)} in {name}" for look, name in self.looks.items() if least <= look < end]
            if len(found) > 1:
                both = " and ".join(found)
                raise SourceError(
                    f"the {kind} differ: {both}. A batch needs one type and one number of channels: convert them apart."
                )

    def doubt(self, kind: str, name: str, count: int = 1) -> None:
        """Note that there is such a doubt about some images, of which one is named."""
        before, first = self.doubts.get(kind, (0, name))
        self.doubts[kind] = before + count, first

    @property
    def content(self) -> str:
        """The digest of the content of all sources."""
        return content_digest(self.hashes)

    @property
    def seen(self) -> str:
        """The digest of the times of all sources; see `seen_digest`."""
        return digest_of(_packed(self.times))

    def to_json(self) -> dict[str, Any]:
        """Return the notes of a part."""
        return {
            "num_sources": self.num_sources,
            "skipped": self.skipped,
            "doubts": self.doubts,
            "colors": [[number, color.hex(), name] for number, (color, name) in self.colors.items()],
            "looks": list(self.looks.items()),
            "hashes": base64.b64encode(_packed(self.hashes)).decode(),
            "times": base64.b64encode(_packed(self.times)).decode(),
        }


@cache
def _look_of(kind: str, bits: int, channels: int) -> int:
    return int(looks_of(kind, np.array(bits), np.array(channels)))


def parse_notes(body: Mapping[str, Any]) -> Notes:
    """Return the notes that `Notes.to_json` has made."""
    return Notes(
        body["num_sources"],
        [(name, reason) for name, reason in body["skipped"]],
        {kind: (count, name) for kind, (count, name) in body["doubts"].items()},
        {number: (bytes.fromhex(color), name) for number, color, name in body["colors"]},
        dict(body["looks"]),
        array("Q", np.frombuffer(base64.b64decode(body["hashes"]), "<u8").tolist()),
        array("q", np.frombuffer(base64.b64decode(body["times"]), "<i8").tolist()),
    )


def _packed(numbers: array[int]) -> bytes:
    return np.asarray(numbers, "<i8" if numbers.typecode == "q" else "<u8").tobytes()


def seen_digest(sources: Sources) -> str:
    """Return the digest of the times of the files of sources: if it is the same, their content counts as unchanged.

    The ctime shows a change whose mtime was set back.
    """
    times = array("q")
    for source in sources:
        times.extend(times_of(source))
    return digest_of(_packed(times))


def content_digest(hashes: Iterable[int]) -> str:
    """Return the digest of the content of sources, from the hash of the files of each."""
    digest = Digest()
    digest.update(np.asarray(hashes, "<u8").tobytes())
    return str(digest)
