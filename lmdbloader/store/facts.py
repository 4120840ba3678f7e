"""What is true of all payloads of a field: found while an index is checked, so that nobody looks at every row again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lmdbloader.format.layout import CODEC_JPEG, CODEC_RAW, CODEC_TILES, Field

_LENGTHS = ("stored_nbytes", "raw_nbytes")
# Columns whose extremes are kept: of every payload field, and of images and masks.
_PLAIN, _SHAPE = (*_LENGTHS, "codec"), ("height", "width", "channels", "bits")


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about the payloads of one field.

    Attributes:
        codecs: Numbers of their codecs, ascending.
        extremes: The least and the greatest number of a column, by the end of its name: "height", "stored_nbytes" ...;
            (0, 0) without payloads.
        totals: The sums of "stored_nbytes" and "raw_nbytes".
        encoded_nbytes: The greatest raw_nbytes of those that are not stored raw.
        jpeg: Of JPEGs the greatest stored_nbytes, the longest side, and the most pixels; zeros without any.
    """

    codecs: tuple[int, ...]
    extremes: Mapping[str, tuple[int, int]]
    totals: Mapping[str, int]
    encoded_nbytes: int
    jpeg: tuple[int, int, int]

    @property
    def has_tiles(self) -> bool:
        """Whether some are images in tiles."""
        return CODEC_TILES in self.codecs

    def to_plain(self) -> list[Any]:
        """Return lists, dicts and numbers, for JSON."""
        extremes = {name: list(pair) for name, pair in self.extremes.items()}
        return [list(self.codecs), extremes, dict(self.totals), self.encoded_nbytes, list(self.jpeg)]

    @classmethod
    def from_plain(cls, f: Field, plain: Any) -> Facts:
        """Return the facts of a field that `to_plain` has written.

        Raises:
            ValueError: They are something else.
        """
        try:
            codecs, extremes, totals, encoded_nbytes, jpeg = plain
            nbytes, side, pixels = map(_count, jpeg)
            made = cls(
                tuple(map(_count, codecs)),
                {name: (_count(extremes[name][0]), _count(extremes[name][1])) for name in _names_of(f)},
                {name: _count(totals[name]) for name in _LENGTHS},
                _count(encoded_nbytes),
                (nbytes, side, pixels),
            )
        except (TypeError, KeyError, IndexError) as error:
            raise ValueError(f"not the facts about a field ({error})") from error
        if made.to_plain() != plain or any(codec > 255 for codec in made.codecs):
            raise ValueError("not the facts about a field")
        return made


def _names_of(f: Field) -> tuple[str, ...]:
    """Return the columns whose extremes are kept, by the ends of their names."""
    return _PLAIN + (_SHAPE if f.has_pixels else ())


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no number of anything")
    return value


class FactsSoFar:
    """Gathers the facts about a field from parts of its columns."""

    def __init__(self, f: Field) -> None:
        """Start without rows."""
        self._names = _names_of(f)
        self._has_jpegs = f.kind == "image"
        self._extremes: dict[str, tuple[int, int]] = {}
        self._totals = dict.fromkeys(_LENGTHS, 0)
        self._has_codec = np.zeros(256, np.bool_)
        self._encoded_nbytes = 0
        self._jpeg = 0, 0, 0

    def add(self, part: Mapping[str, npt.NDArray[Any]]) -> None:
        """Add some rows, at least one: columns (n,) by the ends of their names."""
        for name in self._names:
            low, high = int(part[name].min()), int(part[name].max())
            before = self._extremes.get(name, (low, high))
            self._extremes[name] = min(low, before[0]), max(high, before[1])
        for name in _LENGTHS:
            self._totals[name] += int(part[name].sum(dtype=np.int64))
        codec = part["codec"]
        self._has_codec[codec] = True
        is_encoded = codec != CODEC_RAW
        self._encoded_nbytes = max(self._encoded_nbytes, int(part["raw_nbytes"][is_encoded].max(initial=0)))
        if self._has_jpegs and (is_jpeg := codec == CODEC_JPEG).any():
            nbytes, height, width = (
                part[name][is_jpeg].astype(np.int64) for name in ("stored_nbytes", "height", "width")
            )
            found = nbytes.max(), np.maximum(height, width).max(), (height * width).max()
            self._jpeg = tuple(max(a, int(b)) for a, b in zip(self._jpeg, found, strict=True))  # type: ignore[assignment]

    def facts(self) -> Facts:
        """Return what is true of the rows that were added."""
        codecs = tuple(np.flatnonzero(self._has_codec).tolist())
        extremes = {name: self._extremes.get(name, (0, 0)) for name in self._names}
        return Facts(codecs, extremes, dict(self._totals), self._encoded_nbytes, self._jpeg)
