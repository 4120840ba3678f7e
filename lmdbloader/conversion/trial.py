"""Trials: what inputs may take in a dataset, guessed from their headers, and what some take that were converted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from lmdbloader.conversion import pool
from lmdbloader.conversion.sampling import F64, I64, Guess, Interval
from lmdbloader.conversion.sources.listing import Source, Sources, is_url
from lmdbloader.conversion.sources.reading import read_head
from lmdbloader.conversion.storage import guess_nbytes
from lmdbloader.conversion.tasks import Part, Recipe, patch_positions
from lmdbloader.format.layout import Field, record_schema
from lmdbloader.format.sizes import BLOCK_NBYTES
from lmdbloader.images.decode import glance, is_jpeg

# Of a file that is looked at: most JPEG files have their size in front of this, behind an EXIF preview.
_HEAD_NBYTES = 2**16
_PAGE_NBYTES, _PAGE_HEAD_NBYTES, _ENTRY_NBYTES = 4096, 16, 48
_RUN_END_NBYTES = 4
# An LMDB without records.
_EMPTY_DATA_NBYTES = 4 * _PAGE_NBYTES
# The uncertainty of how samples share LMDB's pages.
_PACKING_ERROR = 0.015


def make_guess(recipe: Recipe, sources: Sources) -> Guess | None:
    """Return a function that guesses the stored size of inputs from their headers; None if their size says as much.

    A header is read in about 30 us from a local file. An input whose header says nothing gets the others' ratio to the
    size of its file. Files at URLs are not read.
    """
    places = sources.spans.paths if sources.spans is not None else (sources.names.folder,)
    keeps_all = recipe.storage.mode == "original" and recipe.storage.max_resolution is None
    if keeps_all or any(map(is_url, places)):
        return None

    def guess(rows: I64) -> F64:
        found = np.array([_guess_one(recipe, sources[row]) for row in rows.tolist()])
        known = found >= 0
        usual = found[known].sum() / max(float(sources.nbytes[rows[known]].sum()), 1.0) if known.any() else 1.0
        return np.where(known, found, usual * sources.nbytes[rows])

    return guess


def _guess_one(recipe: Recipe, source: Source) -> float:
    """Return about how many bytes an input will take; -1 if its header does not say."""
    head = read_head(source.file, _HEAD_NBYTES)
    if (info := glance(head)) is None:
        return -1.0
    patch = recipe.options.patch_size
    if patch is None:
        return guess_nbytes(recipe.storage, info, nbytes=source.nbytes, was_jpeg=is_jpeg(head), key=source.name)
    count = len(patch_positions(info.height, info.width, patch, recipe.stride)[0])
    return float(count * patch * patch * info.channels * info.dtype.itemsize)


class Tried:
    """The sizes of converted inputs, one after the other.

    Attributes:
        num_samples: (n,) float64, samples of each input.
        stored_nbytes: (n,) float64, bytes of its payloads.
        seconds: (n,) float64, time of the work on it.
        stored_as: (256,) int64, images by codec.
        unusable: (name, reason) of inputs that cannot be used.
    """

    def __init__(self, sources: Sequence[Source], fields: Sequence[Field]) -> None:
        """Take the inputs that will be converted, and the fields of their samples."""
        self.num_samples, self.stored_nbytes, self.seconds = np.zeros((3, len(sources)))
        self.stored_as = np.zeros(256, np.int64)
        self.unusable: list[tuple[str, str]] = []
        self._source_nbytes = [source.nbytes for source in sources]
        self._payloads: list[F64] = [np.zeros(0)] * len(sources)  # bytes of each sample of each input
        # Bytes of an LMDB value, in addition to its payloads: for each sample, for each input, and for the rest of it.
        self._row_nbytes, self._input_nbytes = _columns_nbytes(sources, fields)
        self._frames: list[float] = []

    def add(self, at: int, part: Part) -> None:
        """Add a part of one input, by its number."""
        self.seconds[at] += part.seconds
        self.unusable += part.skipped
        if part.chunk is None:
            return
        self.num_samples[at] += part.chunk.num_samples
        each = np.zeros(part.chunk.num_samples)
        for payloads in part.chunk.payloads.values():
            each += payloads.stored_nbytes
            self.stored_as += np.bincount(payloads.codec, minlength=256)
        self.stored_nbytes[at] += each.sum()
        self._payloads[at] = np.append(self._payloads[at], each)
        first = 0
        for block in part.blocks:
            here = each[first : first + block.num_samples]
            self._frames.append(block.value.size - float((here + self._row_nbytes).sum()) - self._input_nbytes)
            first += block.num_samples

    def add_all(self, parts: Iterable[Part]) -> None:
        """Add the parts of all inputs, in order."""
        at = 0
        for part in parts:
            self.add(at, part)
            # A large source has several parts, and the last one counts it.
            at += part.num_sources

    def data_nbytes(self, payload: Interval) -> Interval:
        """Return the bytes of data.mdb for the payload bytes of all inputs."""
        data = payload.scaled(self._packing(), _EMPTY_DATA_NBYTES)
        return data.widened(_PACKING_ERROR * data.value + _EMPTY_DATA_NBYTES)

    def _packing(self) -> float:
        """Return the bytes of LMDB's pages for each byte of payload.

        A value takes whole pages. The tried inputs had values of their own; in a conversion the samples of a task share
        values, so this packs them as a conversion would.
        """
        frame = float(np.median(self._frames)) if self._frames else 0.0
        pages = group = used = 0.0
        for at, each in enumerate(self._payloads):
            sizes = each + self._row_nbytes
            sizes[:1] += self._input_nbytes
            for nbytes in sizes.tolist():
                if used and used + nbytes > BLOCK_NBYTES:
                    pages += _whole_pages(used + frame)
                    used = 0.0
                used += nbytes
            group += self._source_nbytes[at]
            if group >= pool.TASK_NBYTES or at == len(self._payloads) - 1:
                pages += _whole_pages(used + frame) if used else 0.0
                group = used = 0.0
        return pages / max(float(self.stored_nbytes.sum()), 1.0)


def _columns_nbytes(sources: Sequence[Source], fields: Sequence[Field]) -> tuple[float, float]:
    """Return the bytes of a record batch's columns for each sample, and for each input, whose values make a run."""
    of_row = of_input = 0.0
    for column in record_schema(fields, with_source=True):
        kind = str(column.type)
        is_run = kind.startswith("run_end_encoded")
        width = 4 if any(text in kind for text in ("string", "binary")) else 8 if "64" in kind else 4
        if is_run:
            of_input += _RUN_END_NBYTES + width
        else:
            of_row += width
    return of_row, of_input + sum(len(source.name) for source in sources) / max(len(sources), 1)


def _whole_pages(value_nbytes: float) -> float:
    """Return the bytes of a value in LMDB: whole pages with a small head, and an entry in the tree."""
    return -(-(value_nbytes + _PAGE_HEAD_NBYTES) // _PAGE_NBYTES) * _PAGE_NBYTES + _ENTRY_NBYTES
