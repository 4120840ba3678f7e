"""Decides whether the values of an image field look like the labels of a mask."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lmdbloader.fields import likeness

# A mask has at most this many labels; a photograph with enough pixels for a warning has more values.
MOST_LABELS = 64
_LEAST_PIXELS = 4096
# A photograph shows more values among so many of its pixels, evenly spread.
_GLANCED_AT = 1024
# Values that are counted at once, which bounds memory.
_AT_ONCE = 1 << 20


class LabelWatch:
    """Counts the values of a field's images until they are too many for labels.

    Attributes:
        name: The field's.
        values: The values so far, sorted; None once they are too many, or an image has three channels.
        num_pixels: Pixels of these images.
    """

    def __init__(self, name: str) -> None:
        """Start without images."""
        self.name = name
        self.values: npt.NDArray[Any] | None = np.empty(0, np.int64)
        self.num_pixels = 0
        self._is_drawn = False

    def add(self, image: npt.NDArray[Any]) -> None:
        """Add an image of integers: (H, W), (H, W, C) or (C, H, W)."""
        if self.values is None or image.dtype.kind == "f":
            self.values = None
            return
        flat = image.reshape(-1)
        self.num_pixels += flat.size
        if image.ndim == 3 and 3 in (image.shape[0], image.shape[2]) and 1 not in (image.shape[0], image.shape[2]):
            self.values = None
            return
        for part in (flat[:: flat.size // _GLANCED_AT + 1], flat):
            values = _values(part)
            found = np.union1d(self.values, values)
            if len(found) > MOST_LABELS:
                self.values = None
                return
        self.values = found
        self._is_drawn |= len(values) > 1  # a picture of one value alone says nothing

    @property
    def looks_like_labels(self) -> bool:
        """Whether there are few values, and the field is named like a mask."""
        return self._are_few and likeness(self.name) == "mask"

    @property
    def may_be_labels(self) -> bool:
        """Whether there are few values among many pixels, and the field's name does not say what they are."""
        return self._are_few and self._is_drawn and self.num_pixels >= _LEAST_PIXELS and not likeness(self.name)

    @property
    def _are_few(self) -> bool:
        return self.values is not None and self.num_pixels > 0

    def describe(self) -> str:
        """Describe the values for a message.

        >>> watch = LabelWatch("mask")
        >>> watch.add(np.array([[0, 2], [255, 2]], np.uint8))
        >>> watch.describe()
        'one channel with the values 0, 2, 255 only'
        """
        values = [] if self.values is None else self.values.tolist()
        if len(values) == 1:
            return f"one channel with the value {values[0]} only"
        shown = ", ".join(map(str, values[:6])) + (f" ... {values[-1]} ({len(values)} values)" if values[6:] else "")
        return f"one channel with the values {shown} only"


def _values(numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the different values (n,) of whole numbers; of few bits without sorting them."""
    if numbers.dtype not in (np.uint8, np.uint16):
        return np.unique(numbers)
    counts = np.zeros(np.iinfo(numbers.dtype).max + 1, np.int64)
    for first in range(0, len(numbers), _AT_ONCE):
        counts += np.bincount(numbers[first : first + _AT_ONCE], minlength=len(counts))
    return np.flatnonzero(counts)
