"""Trials: what inputs may take in a dataset, guessed from their headers, and what some take that were converted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from lmdbloader.conversion.sampling import F64, I64, Guess, Interval
from lmdbloader.conversion.sources.listing import Source, Sources, is_url
from lmdbloader.conversion.sources.reading import read_head
from lmdbloader.conversion.storage import guess_nbytes
from lmdbloader.conversion.tasks import Part, Recipe, patch_positions
from lmdbloader.format.codecs import codec_for, holds_pixels, name_counts, saves_enough
from lmdbloader.format.layout import Field
from lmdbloader.images.decode import glance, is_jpeg

# Of a file that is looked at: most JPEG files have their size in front of this, behind an EXIF preview.
_HEAD_NBYTES = 2**16
# Bytes of LMDB's pages for each byte of payload, for each sample, and without any. How full the last pages of values
# are depends on the sizes of samples.
_OF_PAYLOAD, _OF_SAMPLE, _EMPTY = 1.012, 32, 4 * 4096
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
    if (shape := glance(head)) is None:
        return -1.0
    patch = recipe.options.patch_size
    if patch is None:
        return guess_nbytes(recipe.storage, shape, nbytes=source.nbytes, was_jpeg=is_jpeg(head), key=source.name)
    count = len(patch_positions(*shape[:2], patch, recipe.stride)[0])
    return float(count * patch * patch * shape[2] * shape[3])


class Tried:
    """The sizes of converted inputs.

    Attributes:
        num_samples: (n,) float64, samples of each input.
        stored_nbytes: (n,) float64, bytes of its payloads.
        seconds: (n,) float64, time of the work on it.
        codecs: By field, (256,) int64, payloads by codec.
        unusable: (name, reason) of inputs that cannot be used.
    """

    def __init__(self, count: int) -> None:
        """Take the number of inputs."""
        self.num_samples, self.stored_nbytes, self.seconds = np.zeros((3, count))
        self.codecs: dict[str, I64] = {}
        self.unusable: list[tuple[str, str]] = []
        # By field: bytes of the pixels of each input, as stored and decoded. JPEGs and files are not among them.
        self._pixels: dict[str, F64] = {}
        self._at = 0

    def add(self, part: Part) -> None:
        """Add the next part of the inputs, which are converted one by one."""
        at = self._at
        # A large source has several parts, and the last one counts it.
        self._at += part.num_sources
        self.seconds[at] += part.seconds
        self.unusable += part.notes.skipped
        if part.chunk is None:
            return
        self.num_samples[at] += part.chunk.num_samples
        for name, payloads in part.chunk.payloads.items():
            self.stored_nbytes[at] += payloads.stored_nbytes.sum()
            counts = self.codecs.setdefault(name, np.zeros(256, np.int64))
            counts += np.bincount(payloads.codec, minlength=256)
            is_pixels = holds_pixels(payloads.codec)
            sizes = self._pixels.setdefault(name, np.zeros((2, len(self.seconds))))
            sizes[:, at] += [nbytes[is_pixels].sum() for nbytes in (payloads.stored_nbytes, payloads.raw_nbytes)]

    @property
    def has_pixels(self) -> bool:
        """Whether any input was stored as pixels, for which a codec is chosen."""
        return any(raw.any() for _, raw in self._pixels.values())

    @property
    def saving(self) -> float:
        """The share of the bytes of pixels that the codec saves."""
        stored, raw = np.sum([np.zeros(2), *(sizes.sum(1) for sizes in self._pixels.values())], axis=0)
        return float(1 - stored / raw) if raw else 0.0

    def choose_codecs(self, fields: Sequence[Field], packed: Tried | None) -> tuple[Field, ...]:
        """Return the fields with the codecs of their pixels.

        Args:
            fields: With lz4, which the inputs were tried with. It is not kept if it saves too little.
            packed: The same inputs with delta where it can be used, to choose the codec of the fewest bytes.
        """
        chosen = list(fields)
        for number, f in enumerate(fields):
            stored, raw = self._pixels.get(f.name, np.zeros((2, 1)))
            if not f.is_payload or not raw.any():
                continue
            sizes = {"raw": raw, "lz4": stored}
            if packed is not None:
                small, same = packed._pixels.get(f.name, np.zeros((2, 1)))
                if np.array_equal(same, raw):  # an input may be gone meanwhile
                    sizes[codec_for(f.kind, "delta")] = small
                best = min(sizes, key=lambda codec: sizes[codec].sum())
            else:
                best = "lz4" if saves_enough(int(stored.sum()), int(raw.sum())) else "raw"
            chosen[number] = replace(f, codec=best)
            self.stored_nbytes += sizes[best] - stored
        return tuple(chosen)

    def describe_codecs(self, fields: Sequence[Field]) -> str:
        """Return the fields that have payloads, each with the codecs of its samples, for messages."""
        texts = []
        for f in fields:
            if f.is_payload:
                counts = self.codecs.get(f.name, np.zeros(256, np.int64))
                is_pixels = holds_pixels(np.arange(256, dtype=np.uint8))
                names = list(name_counts(np.where(is_pixels, 0, counts)))
                names += [f.codec or "raw"] if counts[is_pixels].any() or not names else []
                texts.append(f"{f.name} {' and '.join(names)}")
        return ", ".join(texts)


def data_nbytes(payload: Interval, num_samples: Interval) -> Interval:
    """Return the bytes of data files, for the payload bytes and the samples of all inputs."""
    data = payload.scaled(_OF_PAYLOAD, _EMPTY).plus(num_samples.scaled(_OF_SAMPLE))
    return data.widened(_PACKING_ERROR * data.value + _EMPTY)
