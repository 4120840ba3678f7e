"""Clips: windows of neighboring frames as samples, over a dataset whose samples are the frames, stored once each."""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lmdbloader.base.arguments import flag, listed, shown, whole
from lmdbloader.base.text import counted, first_of
from lmdbloader.batch.dataset import LMDBDataset
from lmdbloader.batch.draws import drawn
from lmdbloader.batch.many import ReadsMany, Ticket
from lmdbloader.batch.sample import Batch, sample_type, stacked
from lmdbloader.batch.splits import groups_of
from lmdbloader.errors import OptionError, UnknownNameError
from lmdbloader.fields import kind_named
from lmdbloader.format.layout import CLIP, FRAME, holds_clips
from lmdbloader.kernels import entries
from lmdbloader.kernels.transform.opcodes import FRAME_BITS
from lmdbloader.store import check_rows
from lmdbloader.store.rows import as_array, digest_of

I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
# The purpose of the permutation of random numbers, far from those of orders and of compiled functions.
_PURPOSE, _BITS = 2**48, 53
# A clip's number and a frame's number make one number of 64 bits.
_MOST = 2**62
# What BasicSR's lists have after a key: the number of frames and their shape, as in "000 100 (720,1280,3)".
_AFTER_KEY = re.compile(r"\s+\d+\s+\([\d, ]*\)\s*$")


class Clips(ReadsMany):
    """Windows of frames of one clip, over a dataset with a sample for each frame, as `convert --layout clips` makes it.

    A sample is a window of N frames: images are tensors (N, C, H, W), masks (N, H, W), numbers (N,), the clip's name is
    one str, and other values are lists of N. A Loader makes batches (B, N, C, H, W). All frames of a window get the
    same crop, flip, turn and color changes.

    There is one window for each frame around which it fits into the clip; that frame is number N // 2 of the window. No
    window spans a missing frame. Windows are ordered by clip, then by frame. To use only some clips, select their
    frames first: `Clips(dataset.where("clip != '000'"), 5)`, or `dataset.split([0.9, 0.1])`, which keeps clips whole.

    >>> clips = Clips(dataset, 5, interval=[1, 2], random_reverse=True)  # doctest: +SKIP
    >>> loader = Loader(clips, 16, shuffle=True, transforms=[RandomCrop(256), RandomDihedral()])  # doctest: +SKIP

    Attributes:
        dataset: The frames.
        frames: The number of frames in a window.
        interval: The distances from one frame of a window to the next, a tuple from which one is drawn.
        random_reverse: Whether half of the windows, drawn at random, run backwards.
    """

    def __init__(
        self,
        dataset: LMDBDataset | str | os.PathLike[str],
        frames: int,
        *,
        interval: int | Sequence[int] = 1,
        random_reverse: bool = False,
        keys: Sequence[str] | str | os.PathLike[str] | None = None,
    ) -> None:
        """Find the windows; no pixel is read.

        Args:
            dataset: A dataset with a text field `clip` and an int field `frame`, a view of one, or its path. For
                `clips[i]` and torch's DataLoader, `dataset.transformed([...])` applies transforms.
            frames: The number of frames in a window, at least 1.
            interval: The distance from one frame of a window to the next. From a list, such as [1, 2, 3], one that fits
                into the clip is drawn for each window and epoch.
            random_reverse: Whether each window runs backwards with probability 0.5.
            keys: The clips, such as "000", or center frames, such as "000/00000012", to use; or a file with one key per
                line, such as BasicSR's `meta_info`. None uses all.

        Raises:
            OptionError: No window fits, a key names no frame or one around which no window fits, two samples are the
                same frame, frames of a clip differ in size, or the dataset has its own transform.
            UnknownNameError: The dataset has no fields `clip` and `frame`.
        """
        dataset = dataset if isinstance(dataset, LMDBDataset) else LMDBDataset(dataset)
        if not holds_clips(dataset.reader.fields):
            line = "Convert again: lmdbloader convert SRC OUT --layout clips"
            raise UnknownNameError(f"{dataset.path}: no fields {CLIP!r} (text) and {FRAME!r} (int). {line}")
        self.dataset, self.frames = dataset, whole("frames", frames, 1)
        self._check_transform()
        intervals = [interval] if isinstance(interval, int) else listed("interval", interval)
        self.interval = tuple(whole("interval", each, 1) for each in intervals)
        if not 1 <= len(set(self.interval)) == len(self.interval):
            raise OptionError(f"interval={shown(interval)}: expected an int, or a list of different ints")
        self.random_reverse = flag("random_reverse", random_reverse)
        self._is_random = self.random_reverse or len(self.interval) > 1
        self._steps = np.arange(self.frames) - self.frames // 2
        self._find_frames()
        fits = np.stack([self._fit(each) for each in self.interval], 1)
        chosen: Mask = fits.max(1)
        if keys is not None:
            chosen = chosen & self._named_by(keys, chosen)
        if not chosen.any():
            given = f"{self.frames} frames, interval={list(self.interval)}"
            raise OptionError(f"{dataset.path}: Clips: no window of {given}, fits into a clip. Use fewer.")
        # (n,) int64, places in `_numbers`; and (n, intervals), which of these fit.
        self._middles, self._fits = np.flatnonzero(chosen), fits[chosen]
        kinds = {name: f.kind for name, f in dataset.fields.items()}
        # Of texts, too: torch would transpose lists.
        lists = (n for n, k in kinds.items() if n != CLIP and (k in ("text", "bytes") or kind_named(k).is_ragged))
        self._fields = tuple(kinds), tuple(lists), tuple(name for name, kind in kinds.items() if kind == "json")

    def _check_transform(self) -> None:
        """Raise OptionError if the dataset has a transform of its own, which may be set at any time."""
        if self.dataset.has_own_transform:
            raise OptionError("Clips: the dataset has a transform of its own. Write Loader(..., transforms=[...]).")

    def _find_frames(self) -> None:
        """Number all frames: within a clip, numbers differ as in the frames' names; between clips, by much more."""
        dataset = self.dataset
        rows, reader = as_array(dataset.stored_rows), dataset.reader
        groups = groups_of(reader, [CLIP], rows, CLIP)
        _, firsts, codes = np.unique(groups, return_index=True, return_inverse=True)
        order = np.argsort(firsts, kind="stable")  # clips in the order of their first frames
        codes = np.argsort(order, kind="stable")[codes.reshape(-1)]
        self._names: list[str] = reader.read_texts(CLIP, rows[firsts[order]])
        numbers = np.asarray(reader.index.take(FRAME, rows), np.int64)
        least, most = (int(numbers.min()), int(numbers.max())) if len(numbers) else (0, 0)
        self._apart = most - least + 1 + self.frames * max(self.interval)
        if self._apart * (len(firsts) + 1) > _MOST or abs(least) > _MOST:
            raise OptionError(f"{dataset.path}: Clips: numbers of frames from {least} to {most} are too far apart")
        numbers, self._least = codes * self._apart + (numbers - least), least
        self._places = np.argsort(numbers, kind="stable")
        self._numbers = numbers[self._places]
        if (same := self._numbers[1:][np.diff(self._numbers) == 0]).size:
            clip, frame = divmod(int(same[0]), self._apart)
            which = f"frame {frame + least} of clip {self._names[clip]!r}"
            raise OptionError(f"{dataset.path}: Clips: two samples are {which}. Leave one out with dataset.select.")
        for name in (name for name, f in dataset.fields.items() if f.has_pixels and self.frames > 1):
            sides = (reader.index.take(f"{name}.{side}", rows)[self._places] for side in ("height", "width"))
            changes = np.logical_or(*(np.diff(side) != 0 for side in sides))
            changes &= np.diff(self._numbers // self._apart) == 0
            if changes.any():
                which = self._names[int(self._numbers[int(np.argmax(changes))]) // self._apart]
                raise OptionError(
                    f"{dataset.path}: Clips: {name!r} of clip {which!r} differs in size from frame to frame, and would "
                    f"have different crops. Leave it out: dataset.where({f'clip != {which!r}'!r})."
                )

    def _fit(self, interval: int) -> Mask:
        """Return around which frames (m,) a window fits into the clip."""
        own, fits = self._numbers, np.ones(len(self._numbers), np.bool_)
        for step in self._steps.tolist() if len(own) else ():
            wanted = own + step * interval
            fits &= own[np.minimum(np.searchsorted(own, wanted), len(own) - 1)] == wanted
        return fits

    def _named_by(self, keys: Any, fits: Mask) -> Mask:
        """Return which frames (m,) keys name; `fits` says around which a window fits."""
        if isinstance(keys, str | os.PathLike):
            lines = Path(keys).read_text("utf-8-sig").splitlines()
            keys = [_AFTER_KEY.sub("", line).strip() for line in lines if line.strip()]
        starts = {name: code * self._apart for code, name in enumerate(self._names)}
        named = np.zeros(len(self._numbers), np.bool_)
        for name in map(str, listed("keys", keys)):
            clip, _, number = name.rpartition("/")
            low, count = starts.get(name, -1), self._apart
            if low < 0 and clip in starts and number.isdecimal():
                frame = int(number) - self._least
                low, count = starts[clip] + (frame if 0 <= frame < self._apart else self._apart - 1), 1
            first, end = np.searchsorted(self._numbers, [low, low + count]).tolist()
            if low < 0 or first == end:
                clips = first_of(self._names)
                raise OptionError(f"keys: {self.dataset.path}: no clip or frame {name!r}; its clips are {clips}")
            if not fits[first:end].any():
                raise OptionError(f"keys: {name!r}: no window of {self.frames} frames fits there. Leave it out.")
            named[first:end] = True
        return named

    def __len__(self) -> int:
        """Return the number of windows."""
        return len(self._middles)

    @property
    def _text(self) -> str:
        """A short text; clips of the same frames with equal texts have the same windows."""
        return f"windows of {self.frames}, {self.interval}, {self.random_reverse}, {digest_of(self._middles)}"

    def _middle_frames(self, first: int, end: int) -> I64:
        """Return the numbers of the frames in the middle of windows first ... end - 1, as samples of the dataset."""
        return self._places[self._middles[first:end]]

    def _frames_of(self, samples: I64, draws: I64, seed: int, epoch: int) -> I64:
        """Return the frames (n * N,) of windows (n,), as samples of the dataset; draws (n,) make random choices."""
        self._check_transform()
        intervals, steps = np.array(self.interval)[:1, None], self._steps[None]
        if self._is_random and len(samples):
            words = np.empty(2 * len(draws), np.int64)
            positions = (draws[:, None] * 2 + np.arange(2)).reshape(-1) % 2**_BITS
            entries.permute(positions, 2**_BITS, seed, epoch, _PURPOSE, words)
            units, fits = words.reshape(-1, 2) * 2.0**-_BITS, self._fits[samples]
            which = np.floor(units[:, :1] * fits.sum(1, keepdims=True))
            intervals = np.array(self.interval)[np.argmax(fits.cumsum(1) > which, 1)][:, None]
            if self.random_reverse:
                steps = np.where(units[:, 1:] < 0.5, steps[:, ::-1], steps)
        numbers = self._numbers[self._middles[samples]][:, None] + steps * intervals
        found: I64 = self._places[np.searchsorted(self._numbers, numbers.reshape(-1))]
        return found

    def _draws_of_frames(self, draws: I64) -> I64:
        """Return draws (n * N,) for the frames of windows (n,), whose choices are the same, except for noise."""
        made: I64 = (draws[:, None] + (np.arange(self.frames) << FRAME_BITS)).reshape(-1)
        return made

    def _joined(self, columns: Any, *, has_views: bool = False) -> Any:
        """Return a named tuple of columns (n * N, ...) of frames, or lists of views, as one of windows (n, N, ...)."""
        joined, fields = [], self.dataset.fields
        for name, column in zip(columns._fields, columns, strict=True):
            is_several = has_views and (name not in fields or fields[name].has_views)  # `params` are no field
            views = [self._of_windows(name, each) for each in (column if is_several else [column])]
            joined.append(views if is_several else views[0])
        return sample_type(columns._fields, *self._fields[1:])(*joined)

    def _of_windows(self, name: str, column: Any) -> Any:
        if isinstance(column, torch.Tensor):
            return column.view(-1, self.frames, *column.shape[1:])
        if isinstance(column, dict):  # `params`
            return {key: self._of_windows(key, value) for key, value in column.items()}
        if name == CLIP:
            return column[:: self.frames]
        return [column[first : first + self.frames] for first in range(0, len(column), self.frames)]

    def _of_frames(self, run: Callable[..., Any], batch: Any, draws: I64, **given: Any) -> Any:
        """Return a batch of windows after a compiled step, which gets their frames as the samples of a batch."""
        if not hasattr(batch, "_replace"):
            return run(batch, draws, **given)  # it is refused there
        shape, values = (len(draws), self.frames), batch._asdict()
        dims = {name: 4 for name, f in self.dataset.fields.items() if f.kind == "mask"}
        tensors = {k: v for k, v in values.items() if isinstance(v, torch.Tensor) and v.ndim == dims.get(k, 5)}
        flat = {k: v.flatten(0, 1) for k, v in tensors.items() if v.shape[:2] == shape}
        made = run(batch._replace(**flat), np.repeat(draws, self.frames), **given)
        found = {k: v for k, v in made._asdict().items() if k in flat or k not in values}
        return made._replace(**{k: v.view(*shape, *v.shape[1:]) for k, v in found.items()})

    def __getitem__(self, index: Any) -> Any:
        """Return a window.

        Raises:
            IndexError: Beyond either end.
            CorruptError: The stored bytes are damaged.
            OptionError: It is not a number.
        """
        if isinstance(index, Ticket):
            return index
        if not hasattr(index, "__index__"):
            line = "Clips(dataset.where(\"clip in ('000', '011')\"), 5)"
            raise OptionError(f"clips[{shown(index)}]: expected the number of a window. Choose frames first: {line}.")
        return self._many([operator.index(index)])[0]

    def _many(self, numbers: Sequence[int]) -> Sequence[Any]:
        """Return windows read in one call, with the random choices of the dataset's seed and epoch, if it has them."""
        samples = draws = check_rows(numbers, len(self))
        dataset = self.dataset
        batcher, epoch = dataset._open_batcher(), 0
        if self._is_random or batcher.pipeline.program.is_random:
            draws, epoch = drawn(samples) if dataset._draws is None else dataset._draws.of(samples)
        rows = dataset.rows_of(self._frames_of(samples, draws, batcher.pipeline.seed, epoch))
        batch = batcher.read_samples(rows, self._draws_of_frames(draws), epoch)
        columns = {name: self._of_windows(name, stacked(name, column)) for name, column in batch.columns.items()}
        return Batch(columns, len(samples), sample_type(*self._fields), dataset._form)

    def __repr__(self) -> str:
        given = f"{self.frames}, interval={list(self.interval)}, random_reverse={self.random_reverse}"
        return f"Clips({self.dataset!r}, {given}: {counted(len(self), 'window')})"
