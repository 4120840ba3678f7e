"""Which rows of a study a chart, a table or a sentence is about."""

from __future__ import annotations

from dataclasses import dataclass

from lmdbloader.lab.study.results import SOURCES, Source, Study, SweepRow


@dataclass(frozen=True, slots=True)
class Sweep:
    """The rows of a sweep, found by what they measured.

    Attributes:
        rows: All of them.
    """

    rows: tuple[SweepRow, ...]

    @property
    def crops(self) -> tuple[int | None, ...]:
        """Sides of windows, in the order in which they were measured."""
        return tuple(dict.fromkeys(row.crop for row in self.rows))

    @property
    def sources(self) -> tuple[Source, ...]:
        """Who was measured."""
        return tuple(source for source in SOURCES if any(row.source == source for row in self.rows))

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Sizes of batches, ascending."""
        return tuple(sorted({row.batch_size for row in self.rows}))

    def curve(self, source: Source, crop: int | None, *, pinned: bool | None = None) -> tuple[SweepRow, ...]:
        """Return one row for each batch size, ascending.

        Args:
            source: Who made the batches.
            crop: Side of the windows.
            pinned: Only rows whose memory is so; None: pinned where that was measured, as is usual with a GPU.
        """
        found: dict[int, SweepRow] = {}
        for row in self.rows:
            if row.source == source and row.crop == crop and pinned in (None, row.is_pinned):
                kept = found.get(row.batch_size)
                if kept is None or (row.is_pinned and not kept.is_pinned):
                    found[row.batch_size] = row
        return tuple(found[size] for size in sorted(found))

    def row(self, source: Source, batch_size: int, crop: int | None) -> SweepRow | None:
        """Return one of the rows of `curve`, None where that was not measured."""
        return next((row for row in self.curve(source, crop) if row.batch_size == batch_size), None)


def loading(study: Study) -> Sweep:
    """Return the whole sweep."""
    return Sweep(study.sweep)


def training(study: Study) -> Sweep:
    """Return the rows with which a model was trained."""
    return Sweep(tuple(row for row in study.sweep if row.training is not None))


def on_gpu(study: Study) -> Sweep:
    """Return the rows that have figures of a GPU."""
    return Sweep(tuple(row for row in study.sweep if row.training is not None and row.training.gpu is not None))


def both_memories(study: Study) -> Sweep:
    """Return the rows of settings that were trained from pinned and from paged memory."""
    trained = training(study).rows

    def key(row: SweepRow) -> tuple[Source, int, int | None]:
        return row.source, row.batch_size, row.crop

    pinned, paged = ({key(row) for row in trained if row.is_pinned is which} for which in (True, False))
    return Sweep(tuple(row for row in trained if key(row) in pinned & paged))


def focus(study: Study) -> tuple[int, int | None]:
    """Return the batch size and the window that sentences are about: the smallest, which is hardest, and the last."""
    sweep = loading(study)
    return sweep.batch_sizes[0], sweep.crops[-1]
