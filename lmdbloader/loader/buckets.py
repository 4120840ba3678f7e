"""Batches of images of one shape, of a dataset with many: which samples come together, and what reads each shape."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lmdbloader.base.arguments import shown, whole
from lmdbloader.base.text import counted
from lmdbloader.batch.batcher import Batcher
from lmdbloader.batch.dataset import LMDBDataset
from lmdbloader.batch.pipeline import Pipeline
from lmdbloader.errors import OptionError
from lmdbloader.loader.choices import ListedOrders
from lmdbloader.loader.orders import BatchOrders, EpochOrder, Layout, Orders, SeededOrders, in_batches
from lmdbloader.transforms import Resize, Transform

if TYPE_CHECKING:
    from lmdbloader.loader.epoch import Plan

I64 = npt.NDArray[np.int64]
# What reads this many shapes is kept, of those that were used last: about 10 KB each, made in a millisecond.
_KEPT_BATCHERS = 2048
# So many shapes are checked before the first batch: the smallest and the largest, or the tallest and the widest.
_CHECKED = 4


@dataclass(frozen=True, slots=True)
class Buckets:
    """Shapes of about equal numbers of pixels, to which images are resized whole, for batches of one shape each.

    Each image gets the shape with the nearest ratio of its sides, and is resized to it with antialiasing; small ones
    are enlarged. Nothing is cropped, so the ratio changes a little, by at most `largest_change`.

    The shapes are those of NovelAI's and kohya's buckets: both sides are multiples of `multiple_of`, and at least half
    the side of a square; for each side the other one is the largest within `max_pixels`.

    Attributes:
        max_pixels: The largest height times width.
        multiple_of: Of both sides, in pixels.

    >>> Buckets(256 * 256, multiple_of=128).shapes
    ((512, 128), (384, 128), (256, 256), (128, 384), (128, 512))
    >>> round(Buckets(512 * 512).largest_change, 3)
    1.164
    """

    max_pixels: int = 512 * 512
    multiple_of: int = 64

    def __post_init__(self) -> None:
        for name in ("max_pixels", "multiple_of"):
            object.__setattr__(self, name, whole(name, getattr(self, name), 1, 2**31 - 1))
        if not self.shapes:
            raise OptionError(f"{self}: no sides that are multiples of {self.multiple_of} have so few pixels")

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """All (height, width), from the tallest to the widest."""
        step, square = self.multiple_of, math.isqrt(self.max_pixels)
        low = max(square // 2, 1)
        found = {(side, side) for side in [square // step * step] if side >= low}
        for side in range(-(-low // step) * step, self.max_pixels // low + 1, step):
            if (other := self.max_pixels // side // step * step) >= low:
                found |= {(side, other), (other, side)}
        return tuple(sorted(found, key=lambda shape: (shape[1] / shape[0], shape)))

    @property
    def largest_change(self) -> float:
        """The factor by which the ratio changes at most, of images between the tallest and the widest shape."""
        ratios = [width / height for height, width in self.shapes]
        return math.sqrt(max((b / a for a, b in itertools.pairwise(ratios)), default=1.0))


@dataclass(frozen=True)
class Shapes:
    """Which samples have images of one shape in a batch.

    Attributes:
        text: A short text; equal ones of one dataset mean the same.
        kinds: (n,) the number of each sample's shape.
        resizes: What is done to the images of each shape before all other transforms; () for stored shapes.
        rows: (n,) rows of the index.
    """

    text: str
    kinds: I64
    resizes: tuple[Resize, ...]
    rows: I64

    @cached_property
    def num_kinds(self) -> int:
        return int(self.kinds.max(initial=-1)) + 1

    def pipeline(self, kind: int, pipeline_of: Callable[..., Pipeline], transforms: Sequence[Transform]) -> Pipeline:
        """Return what reads the images of a kind; raise OptionError if a transform does not suit them."""
        rows = np.sort(self.rows[self.kinds == kind])
        return pipeline_of((*self.resizes[kind : kind + 1], *transforms), rows=rows, alike=self.rows)

    def largest(self, pipeline_of: Callable[..., Pipeline], transforms: Sequence[Transform]) -> Pipeline:
        """Return what reads the largest images; raise OptionError if a transform does not suit these or small ones."""
        kinds = range(self.num_kinds)
        tried = sorted({*kinds[:_CHECKED], *kinds[-_CHECKED:]}) or [0]
        pipelines = [self.pipeline(kind, pipeline_of, transforms) for kind in tried]
        return max(pipelines, key=lambda pipeline: sum(output.nbytes for output in pipeline.reading.outputs))

    def batchers(
        self,
        pipeline_of: Callable[..., Pipeline],
        transforms: Sequence[Transform],
        batcher_of: Callable[..., Batcher],
        plan: Plan,
    ) -> Callable[[int], Batcher]:
        """Return what returns what reads the batches of a kind: made when it is first needed, with common memory."""

        @lru_cache(_KEPT_BATCHERS)
        def batcher_of_kind(kind: int) -> Batcher:
            pipeline = self.pipeline(kind, pipeline_of, transforms)
            if plan.outgrows_caches:
                pipeline.reading.stream()
            batcher = batcher_of(pipeline)
            batcher.takes_turns = True
            return batcher

        return batcher_of_kind


def shapes_of(dataset: LMDBDataset, buckets: Any) -> Shapes:
    """Return the shapes of a dataset's samples for a Loader's `buckets`.

    Raises:
        OptionError: It is something else, or does not suit the images.
    """
    if not isinstance(buckets, Buckets) and not (isinstance(buckets, str) and buckets == "size"):
        raise OptionError(f"buckets={shown(buckets)}: expected 'size', Buckets(max_pixels=512 * 512), or None")
    rows = np.asarray(dataset.stored_rows, np.int64)
    names = [name for name, f in dataset.fields.items() if f.has_pixels]
    if not names:
        raise OptionError(f"{dataset.path}: buckets={shown(buckets)}: the dataset has no image field")
    take = dataset.reader.index.take
    sides = np.stack([take(f"{name}.{side}", rows) for name in names for side in ("height", "width")], axis=1)
    if isinstance(buckets, Buckets):
        return _nearest(dataset, buckets, sides, rows)
    areas = sides[:, :1] * sides[:, 1:2]  # from the smallest to the largest
    kinds = np.unique(np.hstack([areas, sides]), axis=0, return_inverse=True)[1]
    return Shapes("by size", kinds.reshape(-1).astype(np.int64), (), rows)


def _nearest(dataset: LMDBDataset, buckets: Buckets, sides: I64, rows: I64) -> Shapes:
    """Return for each image the shape with the nearest ratio; sides (n, 2 * fields) are heights and widths.

    Raises:
        OptionError: Images are longer than every shape, or those of one sample differ.
    """
    shapes, change = buckets.shapes, math.log(buckets.largest_change)
    ratios, own = np.log([width / height for height, width in shapes]), np.log(sides[:, 1] / sides[:, 0])
    differ = (sides != np.tile(sides[:, :2], sides.shape[1] // 2)).any(1)
    unsuited = np.flatnonzero(differ | (own < ratios[0] - change) | (own > ratios[-1] + change))
    if len(unsuited):
        sizes = ", ".join(f"{height}x{width}" for height, width in sides[unsuited[0]].reshape(-1, 2).tolist())
        raise OptionError(
            f"{dataset.path}: buckets={buckets}: {counted(len(unsuited), 'sample')} with an image that is longer than "
            f"all shapes, or with images of several sizes, as sample {unsuited[0]} ({sizes}). Write buckets='size', "
            "a smaller multiple_of, or leave them out: Loader(dataset.select(numbers), ...)."
        )
    kinds = np.searchsorted((ratios[1:] + ratios[:-1]) / 2, own)
    used, kinds = np.unique(kinds, return_inverse=True)
    resizes = tuple(Resize(shapes[number]) for number in used.tolist())
    return Shapes(str(buckets), kinds.reshape(-1).astype(np.int64), resizes, rows)


class BucketOrders(BatchOrders):
    """Orders in which each batch has samples of one kind, and all ranks' batches of a step are of one kind and size.

    They follow another order: a step comes when that order has as many samples of a kind as the ranks' batches take.
    What is left of each kind in the end are the last steps, which are short: left out with `drop_last`, else filled up
    with the first samples of the kind, so that ranks have equally many.
    """

    def __init__(self, inner: Orders, shapes: Shapes, batch_size: int, given: Any, *, drop_last: bool) -> None:
        """Take the order to follow, the shapes of its samples, and the Loader's arguments.

        Raises:
            OptionError: The order is of another kind.
        """
        if type(inner) not in (SeededOrders, ListedOrders):
            raise OptionError(
                f"buckets, order={shown(inner.shown)}: buckets follow the order 'random', 'sequential' or a list, and "
                "no weights or mixture. Leave one of them out."
            )
        self._inner, self._shapes, self.batch_size, self._drop_last = inner, shapes, batch_size, drop_last
        self._world_size = 1
        self._of_ranks: dict[int, BucketOrders] = {1: self}
        self._kept: tuple[int, I64] | None = None  # an epoch, and its counts
        self.shown, self.options = inner.shown, {**inner.options, "buckets": given}
        self.repeats, self.changes, self.follow_the_seed = inner.repeats, inner.changes, inner.follow_the_seed

    def among(self, world_size: int) -> Orders:
        if world_size not in self._of_ranks:
            orders = self._of_ranks[world_size] = copy.copy(self)
            orders._world_size, orders._kept = world_size, None
        return self._of_ranks[world_size]

    def counts(self, epoch: int) -> I64:
        key = epoch if self.changes else 0
        if self._kept is None or self._kept[0] != key:
            nothing = np.empty(0, np.int64)  # as many as with any seed, and any places in the file
            layout = Layout(len(self._shapes.kinds), lambda first, end: (nothing, nothing))
            self._kept = key, np.diff(self._batches(epoch, layout, 0)[1])
        return self._kept[1]

    def of(self, epoch: int, layout: Layout, seed: int) -> EpochOrder:
        return in_batches(*self._batches(epoch, layout, seed))

    def text(self, epoch: int, layout: Layout) -> str:
        rest = ", short ones left out" if self._drop_last else ""
        return (
            f"{self._inner.text(epoch, layout)}, in batches of {self.batch_size} {self._shapes.text}{rest}, of "
            f"{counted(self._world_size, 'rank')}"
        )

    def _batches(self, epoch: int, layout: Layout, seed: int) -> tuple[I64, I64, I64]:
        """Return the draws (m,) of an epoch, the bounds (b + 1,) of its batches, and their kinds (b,)."""
        length, world_size, shapes = self._inner.length(epoch), self._world_size, self._shapes
        draws = self._inner.of(epoch, layout, seed).samples(np.arange(length, dtype=np.int64))
        kinds = shapes.kinds[draws % max(len(shapes.kinds), 1)]
        # Places in the order, those of one kind after those of another.
        by_kind = np.argsort(kinds, kind="stable")
        step = self.batch_size * world_size
        full, full_kinds, short = [np.empty((0, step), np.int64)], [np.empty(0, np.int64)], []
        end = 0
        for kind, count in enumerate(np.bincount(kinds, minlength=shapes.num_kinds).tolist()):
            places, end = by_kind[end : end + count], end + count
            num_full = count // step
            full.append(places[: num_full * step].reshape(-1, step))
            full_kinds.append(np.full(num_full, kind))
            rest = places[num_full * step :]
            if len(rest) and not self._drop_last:
                more = np.resize(places, -len(rest) % world_size)
                short.append((int(rest[-1]), kind, np.append(rest, more)))
        steps, step_kinds = np.concatenate(full), np.concatenate(full_kinds)
        order = np.argsort(steps[:, -1])
        steps, step_kinds = steps[order], step_kinds[order]
        short.sort(key=lambda item: item[0])
        # A rank has every world_size-th sample of a step, as in other orders.
        by_rank = [steps.reshape(-1, self.batch_size, world_size).transpose(0, 2, 1).ravel()]
        by_rank += [places.reshape(-1, world_size).T.ravel() for _, _, places in short]
        sizes = np.append(np.full(len(steps), self.batch_size), [len(places) // world_size for _, _, places in short])
        all_kinds = np.append(step_kinds, [kind for _, kind, _ in short])
        bounds = np.append(0, np.cumsum(np.repeat(sizes, world_size))).astype(np.int64)
        return draws[np.concatenate(by_rank)], bounds, np.repeat(all_kinds, world_size).astype(np.int64)


def bucketed(
    orders: Orders, dataset: LMDBDataset, buckets: Any, batch_size: int, *, drop_last: bool
) -> tuple[BucketOrders, Shapes]:
    """Return the orders of a Loader's `buckets`, which follow those of samples, and the shapes of the images."""
    shapes = shapes_of(dataset, buckets)
    return BucketOrders(orders, shapes, batch_size, buckets, drop_last=drop_last), shapes
