"""Decides whether the numbers of masks are labels: those of soft edges, of shades and of differing palettes are not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from lmdbloader.base.option_names import option
from lmdbloader.conversion.sources.listing import Source, Sources
from lmdbloader.conversion.sources.reading import fetch, read
from lmdbloader.errors import ImageError, SourceError
from lmdbloader.fields import IGNORED
from lmdbloader.images.decode import decode_labels, palette_of

Pixels = npt.NDArray[Any]
#: The color of each number in the palettes of masks (RGB), and the name of a sample with it.
Colors: TypeAlias = dict[int, tuple[bytes, str]]

# Masks that are read before any is converted; more if these do not tell.
_GLANCED_AT = 16
# A few numbers from here on are shades of gray, as in masks of 0, 128 and 255.
_LEAST_SHADE, _MOST_SHADES = 64, 3
# A mask of that many numbers has hardly a pixel of 0 and 255 if its edges are very soft. Labels are never that many.
_MANY_NUMBERS = 128
# From so many numbers between 0 and 255 on, edges are soft whatever other masks have.
_SURELY_SOFT = 16


def soft_numbers(mask: Pixels, least: int = 1) -> int:
    """Return how many numbers the soft edges of a binary mask have between 0 and 255, 0 if it has labels.

    A pixel of an edge lies between its neighbors, one of a label is like them.

    Args:
        mask: (H, W, 1) whole numbers.
        least: Fewer numbers count as none.

    >>> soft_numbers(np.array([[0, 0, 90, 255, 255]] * 3, np.uint8)[:, :, None])
    1
    >>> soft_numbers(np.array([[0, 7, 7, 7, 255]] * 3, np.uint8)[:, :, None])
    0
    """
    if mask.dtype != np.uint8:
        return 0
    counts = np.bincount(mask.reshape(-1), minlength=256)
    num_others = mask.size - int(counts[0] + counts[IGNORED])
    numbers = int(np.count_nonzero(counts[1:IGNORED]))
    # Labels that fill most of a mask are rarely so high: most of it is the edges of very small objects then.
    is_binary = (
        counts[0] and counts[IGNORED] and (2 * num_others <= mask.size or counts[IGNORED // 2 + 1 : IGNORED].any())
    )
    if numbers < least or not (is_binary or numbers >= _MANY_NUMBERS):
        return 0
    padded = np.pad(mask[:, :, 0], 1, mode="edge")
    around = np.lib.stride_tricks.sliding_window_view(padded, 3, 0)
    least = np.lib.stride_tricks.sliding_window_view(around.min(-1), 3, 1).min(-1)
    most = np.lib.stride_tricks.sliding_window_view(around.max(-1), 3, 1).max(-1)
    plane = mask[:, :, 0]
    between = (least < plane) & (plane < most) & (plane != 0) & (plane != IGNORED)
    return numbers if 2 * np.count_nonzero(between) >= num_others else 0


def refuse_soft(source: Source, mask: Pixels) -> None:
    """Raise ImageError if a mask among masks with labels is a binary one with soft edges."""
    if numbers := soft_numbers(mask, _SURELY_SOFT):
        raise ImageError(
            source.name,
            f"its mask has 0, {IGNORED} and {numbers} numbers between them, which are soft edges of objects and not "
            f"labels; {IGNORED} marks pixels without a label. Save it with a label for each pixel.",
        )


def to_binary(source: Source, mask: Pixels) -> Pixels:
    """Return a mask of 0 and 255 as one of 0 and 1; numbers of soft edges become the nearer one.

    Raises:
        ImageError: It has another number.
    """
    others = mask[(mask != 0) & (mask != IGNORED)]
    if others.size and not soft_numbers(mask):
        raise ImageError(
            source.name,
            f"its mask has {int(others[0])}; expected 0 and {IGNORED} only, with {option('binary_masks', True)}",
        )
    return (mask > IGNORED // 2).astype(np.uint8)


def colors_of(source: Source, data: bytes, mask: Pixels) -> Colors:
    """Return the color that a mask file's palette has for each of the mask's numbers; none without a palette."""
    palette = palette_of(data)
    if not palette:
        return {}
    numbers = np.flatnonzero(np.bincount(mask.reshape(-1))).tolist()
    return {number: (palette[3 * number : 3 * number + 3], source.name) for number in numbers}


def add_colors(colors: Colors, others: Mapping[int, tuple[bytes, str]]) -> None:
    """Add the colors of other masks.

    Raises:
        SourceError: A number has another color, so it stands for another class.
    """
    for number, (color, name) in others.items():
        first, first_name = colors.setdefault(number, (color, name))
        if first != color:
            raise SourceError(
                f"the palettes of the masks differ: {number} has the color {tuple(first)} in {first_name} and "
                f"{tuple(color)} in {name}, so one number would stand for two classes. If the numbers are right, save "
                "the masks without a palette, as PNG: Image.fromarray(np.asarray(Image.open(path))).save(path). If the "
                "colors are right, turn them into numbers."
            )


@dataclass(slots=True)
class _Seen:
    """What the masks have that were read so far."""

    num_read: int = 0
    num_soft: int = 0
    have_labels: bool = False
    numbers: set[int] = field(default_factory=set)
    colors: Colors = field(default_factory=dict)

    def add(self, source: Source, data: bytes) -> None:
        mask = decode_labels(data)
        found = set(np.flatnonzero(np.bincount(mask.reshape(-1))).tolist())
        add_colors(self.colors, colors_of(source, data, mask))
        others = found - {0, IGNORED}
        is_soft = soft_numbers(mask) > 0
        are_shades = len(others) <= _MOST_SHADES and min(others, default=IGNORED) >= _LEAST_SHADE
        self.num_read += 1
        self.num_soft += is_soft
        self.have_labels |= not is_soft and not are_shades
        self.numbers |= found

    @property
    def is_enough(self) -> bool:
        return self.num_read >= _GLANCED_AT and (self.have_labels or {0, IGNORED} <= self.numbers)


def check_numbers(sources: Sources, *, is_binary: bool) -> tuple[str, ...]:
    """Check a few masks, and more of them until one has a label or an object; return notes.

    Args:
        sources: With masks.
        is_binary: Whether the caller says that they have 0 and 255 alone.

    Raises:
        SourceError: They have no labels but 0 and 255, soft edges between them, or a few shades: 255 is the label of
            pixels without one, so no loss would see the objects. Or the palettes of two of them differ.
    """
    seen = _Seen()
    for source, data in _masks_of(sources):
        try:
            seen.add(source, data)
        except (ImageError, MemoryError):  # the conversion names it, or leaves it out
            continue
        if seen.is_enough or (is_binary and seen.num_read >= _GLANCED_AT):
            break
    read = f"{seen.num_read} of {len(sources):,} were read"
    if is_binary:
        soft = f"{seen.num_soft} of the {seen.num_read} masks that were read have soft edges between 0 and {IGNORED}"
        return (f"{soft}: 1 is stored from {IGNORED // 2 + 1} on, and 0 below",) * (seen.num_soft > 0)
    if seen.have_labels or not {0, IGNORED} <= seen.numbers:
        return ()
    others = sorted(seen.numbers - {0, IGNORED})
    have, advice = f"0 and {IGNORED} only", f"{option('binary_masks', True)} stores 1 for it."
    if seen.num_soft:
        have = f"0, {IGNORED} and soft edges of {len(others)} numbers between them"
    elif others:
        have, advice = f"the shades {', '.join(map(str, [0, *others, IGNORED]))} only", "Number the classes 0, 1, 2 ..."
    raise SourceError(
        f"the masks have {have} ({read}), and {IGNORED} marks pixels without a label, which losses leave out. {advice}"
    )


def _masks_of(sources: Sources) -> Iterator[tuple[Source, bytes]]:
    """Yield the files of masks that can be read: some that are evenly spread, then the others."""
    spread = np.unique(np.linspace(0, len(sources) - 1, _GLANCED_AT).astype(int))
    order = np.concatenate([spread, np.setdiff1d(np.arange(len(sources)), spread)])
    for first in range(0, len(order), _GLANCED_AT):
        group = [sources[row] for row in order[first : first + _GLANCED_AT].tolist()]
        masks = [replace(s, file=file, attached=()) for s in group if (file := dict(s.attached)["mask"])]
        fetched = fetch(masks)
        for source in masks:
            try:
                yield source, read(source.file, fetched)
            except OSError:  # the conversion names it
                continue
