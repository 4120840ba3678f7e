"""Clips: windows of neighbouring frames as samples, over a dataset whose samples are the frames, stored once each."""

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
from lmdbloader.batch.batcher import stack_if_equal
from lmdbloader.batch.dataset import LMDBDataset
from lmdbloader.batch.draws import drawn
from lmdbloader.batch.many import ReadsMany, Ticket
from lmdbloader.batch.sample import Batch, sample_type, stacked
from lmdbloader.batch.splits import groups_of
from lmdbloader.errors import OptionError, UnknownNameError
from lmdbloader.fields import kind_named
from lmdbloader.format.layout import CLIP, FRAME, holds_clips
from lmdbloader.kernels import entries
from lmdbloader.store import check_rows
from lmdbloader.store.rows import as_array, digest_of

I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
# Of the random numbers: the purpose of their permutation, far from those of orders and of compiled functions.
_PURPOSE, _BITS = 2**48, 53
# A clip's number and a frame's number make one number of 64 bits.
_MOST = 2**62
# What BasicSR's lists have after a key: the number of frames and their shape, as in "000 100 (720,1280,3)".
_AFTER_KEY = re.compile(r"\s+\d+\s+\([\d, ]*\)\s*$")


class Clips(ReadsMany):
    """Windows of frames of one clip, over a dataset with a sample for each frame, as `convert --layout clips` makes it.

    A sample is a window: its images are tensors (N, C, H, W), masks (N, H, W), numbers (N,), the clip's name is one
    str, and other values are lists of N. A Loader makes batches (B, N, C, H, W) of them; all frames of a window have
    the same crop, the same flip and turn, and the same change of colours.

    There is a sample for each frame around which a window fits into its clip: the window's frame number N // 2 is that
    frame. No window contains a missing frame. Samples are ordered by clip, then by frame. To take some clips, choose
    frames before: `Clips(dataset.where("clip != '000'"), 5)`, or `dataset.split([0.9, 0.1])`, which divides clips.

    >>> clips = Clips(dataset, 5, interval=[1, 2], random_reverse=True)  # doctest: +SKIP
    >>> loader = Loader(clips, 16, shuffle=True, transforms=[RandomCrop(256), RandomDihedral()])  # doctest: +SKIP
    >>> next(iter(loader)).hr.shape  # doctest: +SKIP
    torch.Size([16, 5, 3, 256, 256])

    Attributes:
        dataset: The frames.
        frames: Frames of a window.
        interval: From one of its frames to the next, a tuple of those that are drawn from.
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
            dataset: With a text field `clip` and an int field `frame`; a view of one, perhaps of some fields, or its
                path. `dataset.transformed([...])` has transforms for `clips[i]`, and for torch's DataLoader.
            frames: Frames of a window, at least 1.
            interval: From one frame of a window to the next. Of a list, such as [1, 2, 3], one is drawn for each sample
                among those whose window fits into the clip, new ones in every epoch.
            random_reverse: Whether each window runs backwards with a probability of a half.
            keys: Clips, or frames in the middle of windows, as "000" or "000/00000012"; or a file with one in each
                line, such as BasicSR's `meta_info`. None takes all.

        Raises:
            OptionError: No window fits, a key is of no frame or of one around which no window fits, two samples are the
                same frame, or the dataset has a transform of its own.
            UnknownNameError: The dataset has no fields `clip` and `frame`.
        """
        if isinstance(dataset, str | os.PathLike):
            dataset = LMDBDataset(dataset)
        if not isinstance(dataset, LMDBDataset):
            raise OptionError(f"Clips({type(dataset).__name__}): expected an LMDBDataset, or the path of one")
        if dataset.has_own_transform:
            raise OptionError(
                "Clips: the dataset has a transform of its own, which changes single samples. Give functions of whole "
                "batches to Loader(..., transforms=[...])."
            )
        if not holds_clips(dataset.reader.fields):
            raise UnknownNameError(
                f"{dataset.path}: Clips: there are no fields {CLIP!r} (text) and {FRAME!r} (int). `lmdbloader convert "
                "SRC OUT --layout clips` makes them."
            )
        self.dataset, self.frames = dataset, whole("frames", frames, 1)
        given = [interval] if isinstance(interval, int) else listed("interval", interval)
        self.interval = tuple(whole("interval", each, 1) for each in given)
        if not 1 <= len(set(self.interval)) == len(self.interval):
            raise OptionError(f"interval={shown(interval)}: expected a number, or a list of different numbers")
        self.random_reverse = flag("random_reverse", random_reverse)
        self._steps = np.arange(self.frames) - self.frames // 2
        self._find_frames()
        fits = np.stack([self._fit(each) for each in self.interval], 1)
        chosen: Mask = fits.max(1)
        if keys is not None:
            chosen = chosen & self._named_by(keys, chosen)
        if not chosen.any():
            raise OptionError(
                f"{dataset.path}: Clips: no window of {self.frames} frames at an interval of "
                f"{' or '.join(map(str, self.interval))} fits into a clip, of {counted(len(dataset), 'frame')}"
            )
        # (n,) int64, places in `_numbers`; and (n, intervals), which of them fit.
        self._middles, self._fits = np.flatnonzero(chosen), fits[chosen]
        kinds = {name: kind_named(f.kind) for name, f in dataset.fields.items()}
        lists = [name for name, f in dataset.fields.items() if kinds[name].is_ragged or f.kind in ("text", "bytes")]
        json = tuple(name for name, f in dataset.fields.items() if f.kind == "json")
        self._fields = tuple(kinds), tuple(name for name in lists if name != CLIP), json

    def _find_frames(self) -> None:
        """Number all frames: of those of a clip, the numbers differ as in their names; of two clips by much more."""
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
            raise OptionError(
                f"{dataset.path}: Clips: frames have numbers from {least} to {most}, too far apart. Number the frames "
                "of each clip one after the other."
            )
        self._least = least
        numbers = codes * self._apart + (numbers - least)
        places = np.argsort(numbers, kind="stable")
        self._numbers, self._places = numbers[places], places
        if (same := np.flatnonzero(self._numbers[1:] == self._numbers[:-1])).size:
            raise OptionError(
                f"{dataset.path}: Clips: two samples are {self._frame_at(int(same[0]))}. Leave one out: "
                "dataset.select(numbers)."
            )

    def _frame_at(self, place: int) -> str:
        clip, frame = divmod(int(self._numbers[place]), self._apart)
        return f"frame {frame + self._least} of clip {self._names[clip]!r}"

    def _found(self, numbers: I64) -> tuple[I64, Mask]:
        """Return the places of numbers in `_numbers`, and whether they are there."""
        places = np.searchsorted(self._numbers, numbers)
        return places, self._numbers[np.minimum(places, len(self._numbers) - 1)] == numbers

    def _fit(self, interval: int) -> Mask:
        """Return around which frames (m,) a window fits into the clip."""
        fits: Mask = np.ones(len(self._numbers), np.bool_)
        for step in self._steps.tolist() if len(fits) else ():
            fits &= self._found(self._numbers + step * interval)[1]
        return fits

    def _named_by(self, keys: Any, fits: Mask) -> Mask:
        """Return which frames (m,) keys name; `fits` says around which a window fits."""
        if isinstance(keys, str | os.PathLike):
            lines = Path(keys).read_text("utf-8").splitlines()
            keys = [_AFTER_KEY.sub("", line).strip() for line in lines if line.strip()]
        codes = {name: code for code, name in enumerate(self._names)}
        named = np.zeros(len(self._numbers), np.bool_)
        starts = np.searchsorted(self._numbers, np.arange(len(codes) + 1) * self._apart)
        for name in map(str, listed("keys", keys)):
            clip, _, number = name.rpartition("/")
            if name in codes:
                named[starts[codes[name]] : starts[codes[name] + 1]] = True
                continue
            frame = int(number) - self._least if number.isdecimal() and clip in codes else -1
            wanted = codes[clip] * self._apart + frame if 0 <= frame < self._apart else -1
            places, is_there = self._found(np.array([wanted]))
            if not is_there[0]:
                raise OptionError(
                    f"keys: {self.dataset.path} has neither a clip nor a frame {name!r}; its clips are "
                    f"{first_of(self._names)}"
                )
            if not fits[places[0]]:
                raise OptionError(
                    f"keys: {name!r}: no window of {self.frames} frames fits around {self._frame_at(int(places[0]))}. "
                    f"Leave it out, or name the clip, {clip!r}."
                )
            named[places[0]] = True
        return named

    def __len__(self) -> int:
        """Return the number of windows."""
        return len(self._middles)

    @property
    def is_random(self) -> bool:
        """Whether windows are drawn, other ones in every epoch."""
        return self.random_reverse or len(self.interval) > 1

    @property
    def text(self) -> str:
        """A short text; clips of the same frames with equal texts have the same windows."""
        return (
            f"windows of {self.frames} frames, interval {self.interval}, random_reverse={self.random_reverse}, "
            f"{digest_of(self._middles)}"
        )

    def middles(self, first: int, end: int) -> I64:
        """Return the numbers of the frames in the middle of windows first ... end - 1, as samples of the dataset."""
        return self._places[self._middles[first:end]]

    def frames_of(self, samples: I64, draws: I64, seed: int, epoch: int) -> I64:
        """Return the frames of windows (n,), all of the first, then all of the second ..., as samples of the dataset.

        Args:
            samples: (n,) numbers of windows.
            draws: (n,) numbers on which the random choices depend.
            seed: Of these choices too.
            epoch: Of these choices too.
        """
        intervals, steps = np.array(self.interval)[:1, None], self._steps[None]
        if self.is_random and len(samples):
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

    def joined(self, columns: Any) -> Any:
        """Return a named tuple of columns (n * N, ...) of frames as one of columns (n, N, ...) of windows."""
        return sample_type(*self._fields)(*map(self._joined, columns._fields, columns))

    def _joined(self, name: str, column: Any) -> Any:
        if isinstance(column, torch.Tensor):
            return column.view(-1, self.frames, *column.shape[1:])
        if name == CLIP:
            return column[:: self.frames]
        return [column[first : first + self.frames] for first in range(0, len(column), self.frames)]

    def of_frames(self, run: Callable[..., Any], batch: Any, draws: I64, **given: Any) -> Any:
        """Return a batch of windows after a compiled step, which gets their frames as the samples of a batch."""
        if not hasattr(batch, "_replace"):
            return run(batch, draws, **given)  # it is refused there
        shape = (len(draws), self.frames)
        values = batch._asdict()
        flat = {k: v.flatten(0, 1) for k, v in values.items() if isinstance(v, torch.Tensor) and v.shape[:2] == shape}
        made = run(batch._replace(**flat), np.repeat(draws, self.frames), **given)
        kept = {k for k, v in values.items() if k not in flat and made._asdict().get(k) is v}
        found = {k: v for k, v in made._asdict().items() if isinstance(v, torch.Tensor) and k not in kept}
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
        try:
            number = operator.index(index)
        except TypeError as error:
            raise OptionError(
                f"clips[{shown(index)}]: expected the number of a window. Choose frames before: "
                "Clips(dataset.where(\"clip in ('000', '011')\"), 5)."
            ) from error
        return self._many([number])[0]

    def _many(self, numbers: Sequence[int]) -> Sequence[Any]:
        """Return windows read in one call, with the random choices of the dataset's seed and epoch, if it has them."""
        samples = draws = check_rows(numbers, len(self))
        dataset = self.dataset
        batcher, epoch = dataset._open_batcher(), 0
        if self.is_random or batcher.pipeline.program.is_random:
            draws, epoch = drawn(samples) if dataset._draws is None else dataset._draws.of(samples)
        rows = dataset.rows_of(self.frames_of(samples, draws, batcher.pipeline.seed, epoch))
        batch = batcher.read_samples(rows, np.repeat(draws, self.frames), epoch)
        columns = {name: self._of_windows(name, column) for name, column in batch.columns.items()}
        return Batch(columns, len(samples), sample_type(*self._fields), dataset._form)

    def _of_windows(self, name: str, column: Any) -> Any:
        """Return a column of frames as one of windows; images of two clips may differ in size."""
        if type(column) is list and column and isinstance(column[0], torch.Tensor):
            return stack_if_equal([stack_if_equal(part) for part in self._joined(name, column)])
        return self._joined(name, stacked(name, column))

    def __repr__(self) -> str:
        reverse = ", random_reverse=True" if self.random_reverse else ""
        return (
            f"Clips({self.dataset!r}, {self.frames}, interval={list(self.interval)}{reverse}: "
            f"{counted(len(self), 'window')} of {counted(len(self._names), 'clip')})"
        )
