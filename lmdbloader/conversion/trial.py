"""What is found out from a few of the inputs before anything is written: fields, scale, codecs and the map's size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from lmdbloader.conversion.pairs import pair_scale
from lmdbloader.conversion.pool import WorkerPool
from lmdbloader.conversion.sources import Source, Sources
from lmdbloader.conversion.tasks import Recipe, decode_pair, read_files
from lmdbloader.errors import ImageError, SourceError
from lmdbloader.format.codecs import Payloads, holds_pixels, join, name_counts, saves_enough
from lmdbloader.format.layout import Field, Kind, make_field
from lmdbloader.store import estimate_map_nbytes

_TRIAL_SOURCES = 8
_TRIAL_NBYTES = 16 * 2**20


@dataclass(frozen=True, slots=True)
class Trial:
    """What a few inputs promise of all.

    Attributes:
        fields: Of the dataset, their codecs settled.
        map_nbytes: Estimated size of LMDB's map.
        codecs: For people: of each field with payloads, its name and how those of the inputs tried are stored.
        num_sources: Inputs that were tried.
    """

    fields: tuple[Field, ...]
    map_nbytes: int
    codecs: tuple[str, ...] = ()
    num_sources: int = 0


def find_scale(recipe: Recipe, sources: Sequence[Source]) -> int:
    """Return the scale that the first readable pair has; every other one must have it too.

    Raises:
        ImageError: The first pair (or, where the recipe skips, each) cannot be used.
    """
    error: ImageError | None = None
    for source in sources:
        try:
            hr, lr = decode_pair(recipe, source, *read_files(source))
            return pair_scale(hr, lr, recipe.scale, source.name)
        except ImageError as problem:
            error = error or problem
        if recipe.on_error == "stop":
            break
    raise error or SourceError("there are no pairs")


def make_fields(recipe: Recipe, others: Sequence[tuple[str, Kind]], codec: str) -> tuple[Field, ...]:
    """Return the fields of the dataset; "auto" tries lz4 first and decides from what it saves.

    Args:
        recipe: Says whether there are pairs.
        others: (name, kind) of the fields beside the images.
        codec: As asked for.
    """
    images: list[tuple[str, Kind]] = [(name, "image") for name in (("lr", "hr") if recipe.scale else ("image",))]
    return tuple(make_field(name, kind, "raw" if codec == "raw" else "lz4") for name, kind in (*images, *others))


def try_out(recipe: Recipe, sources: Sources, pool: WorkerPool, codec: str) -> Trial:
    """Encode some inputs, evenly spread, to choose the codecs and to estimate the map size."""
    chosen = _choose(sources)
    # Whatever is wrong with them, the conversion itself will say it.
    parts = pool.convert(replace(recipe, on_error="skip"), [[s] for s in chosen])
    # Only the sizes are kept: the pixels of several photographs are many.
    tried = [(p.chunk.num_samples, {n: _sizes(x) for n, x in p.chunk.payloads.items()}) for p in parts if p.chunk]
    if not tried:
        untried = tuple(f"{f.name} {f.codec}" for f in recipe.fields if f.is_payload)
        return Trial(recipe.fields, estimate_map_nbytes(int(sources.nbytes.sum()), len(sources)), untried)
    stored = 0
    fields, codecs = [], []
    for f in recipe.fields:
        if not f.is_payload:
            fields.append(f)
            continue
        payloads = join([payloads[f.name] for _, payloads in tried])
        # What is no pixels (JPEGs, files) is stored the same whatever the codec.
        is_pixels = holds_pixels(payloads.codec)
        pixels_stored = int(payloads.stored_nbytes[is_pixels].sum())
        pixels_raw = int(payloads.raw_nbytes[is_pixels].sum())
        keep = codec != "auto" or not is_pixels.any() or saves_enough(pixels_stored, pixels_raw)
        stored += (pixels_stored if keep else pixels_raw) + int(payloads.stored_nbytes[~is_pixels].sum())
        fields.append(f if keep else replace(f, codec="raw"))
        others = list(name_counts(np.bincount(payloads.codec[~is_pixels], minlength=256)))
        pixels = [fields[-1].codec or "raw"] if is_pixels.any() else []
        codecs.append(f"{f.name} {' and '.join([*others, *pixels])}")
    growth = int(sources.nbytes.sum()) / max(sum(s.nbytes for s in chosen), 1)
    num_samples = sum(count for count, _ in tried)
    return Trial(tuple(fields), estimate_map_nbytes(stored * growth, num_samples * growth), tuple(codecs), len(chosen))


def _choose(sources: Sequence[Source]) -> list[Source]:
    step = max(1, len(sources) // _TRIAL_SOURCES)
    chosen: list[Source] = []
    for source in sources[step // 2 :: step]:
        chosen.append(source)
        if len(chosen) >= 2 and sum(s.nbytes for s in chosen) >= _TRIAL_NBYTES:
            break
    return chosen


def _sizes(payloads: Payloads) -> Payloads:
    return replace(payloads, data=payloads.data[:0].copy())
