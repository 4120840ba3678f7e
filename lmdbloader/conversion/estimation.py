"""`lmdbloader.estimate`: the size of a dataset and the time of its conversion, predicted from a few inputs."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from lmdbloader.conversion.options import EstimateOptions, with_options
from lmdbloader.conversion.plan import make_plan, settle_scale, try_out, try_sources
from lmdbloader.conversion.pool import WorkerPool
from lmdbloader.conversion.sampling import Interval, draw_sample
from lmdbloader.conversion.sources.listing import Source
from lmdbloader.conversion.tasks import Part, Recipe
from lmdbloader.conversion.trial import Tried, data_nbytes, make_guess
from lmdbloader.errors import SourceError
from lmdbloader.format.codecs import name_counts
from lmdbloader.format.manifest import Description
from lmdbloader.store import Work, Written, join

# The bytes of tried samples that are also written, to measure the time of writing.
_WRITTEN_NBYTES = 64 * 2**20
# The frame of an index without rows, and a manifest.
_EMPTY_INDEX_NBYTES, _MANIFEST_NBYTES = 4096, 2048


@dataclass(frozen=True, slots=True)
class Estimate:
    """The predicted result of a conversion. Its intervals hold the truth in 95 of 100 cases if only inputs vary.

    Attributes:
        layout: The layout of the source.
        num_sources: Images or pairs in the source.
        num_tried: Inputs that were tried.
        source_nbytes: Total size of the files in bytes.
        num_samples: Samples of the dataset.
        payload_nbytes: Bytes of the stored values.
        data_nbytes: Bytes of data.mdb.
        index_nbytes: Bytes of index.arrow.
        dataset_nbytes: Bytes of all files of the dataset.
        seconds: Time of the conversion on this machine, as busy as it is, with `num_workers`.
        num_workers: Worker processes.
        codecs: The codec of each image field's pixels.
        stored_as: Images of the tried inputs by storage: raw, lz4, delta, tiles, delta tiles, jpeg or file.
        unusable: (name, reason) of tried inputs that cannot be used.
        delta_saves: The share of the bytes of pixels that prefer="size" would save with delta; None if that is little,
            or the codec is not chosen by speed.
    """

    layout: str
    num_sources: int
    num_tried: int
    source_nbytes: int
    num_samples: Interval
    payload_nbytes: Interval
    data_nbytes: Interval
    index_nbytes: Interval
    dataset_nbytes: Interval
    seconds: Interval
    num_workers: int
    codecs: Mapping[str, str]
    stored_as: Mapping[str, int]
    unusable: tuple[tuple[str, str], ...]
    delta_saves: float | None = None


@with_options(EstimateOptions)
def estimate(src: str | os.PathLike[str] | None, options: EstimateOptions) -> Estimate:
    """Return the predicted size and time of a conversion, from a sample of its inputs.

    The sample is drawn at random among inputs of each size and really converted; totals are estimated from the sizes
    of all files. Inputs of the sample that cannot be used are counted, whatever `on_error` is. Nothing is left on the
    disk.

    Args:
        src: As in `convert`.

    Returns:
        The prediction.

    Raises:
        OptionError: An option is out of its range, or contradicts another.
        SourceError: No folder, no images, pairs that do not match, or none of the inputs tried can be used.
        ImageError: No pair can be used to find the scale of all pairs.
    """
    began = time.monotonic()
    plan = make_plan(src, options)
    recipe = settle_scale(plan)
    sources = plan.listing.sources
    with WorkerPool(plan.num_workers) as pool:
        settled = try_out(recipe, sources, pool, plan.codec)[0]
        recipe = replace(recipe, fields=settled.fields)
        started = time.monotonic() - began
        drawn = draw_sample(sources.nbytes, options.sample, options.sample_seed, make_guess(recipe, sources))
        tried, written, writing_seconds = _try(recipe, [sources[row] for row in drawn.rows.tolist()], pool)
    if written is None:
        raise SourceError(
            f"none of the {len(drawn.rows)} inputs tried can be used; the first: {': '.join(tried.unusable[0])}"
        )
    num_samples = drawn.estimate_total(tried.num_samples)
    payload = drawn.estimate_total(tried.stored_nbytes)
    data = data_nbytes(payload, num_samples)
    sizes, count = written.sizes, written.num_samples
    index = num_samples.scaled(max(0, sizes["index_nbytes"] - _EMPTY_INDEX_NBYTES) / count, _EMPTY_INDEX_NBYTES)
    writing = payload.scaled(writing_seconds / max(sizes["payload_nbytes"], 1))
    work = drawn.estimate_total(tried.seconds).plus(writing).scaled(1 / plan.num_workers)
    return Estimate(
        layout=plan.listing.layout,
        num_sources=len(sources),
        num_tried=len(drawn.rows),
        source_nbytes=int(sources.nbytes.sum()),
        num_samples=num_samples,
        payload_nbytes=payload,
        data_nbytes=data,
        index_nbytes=index,
        dataset_nbytes=data.plus(index).scaled(1, _MANIFEST_NBYTES),
        seconds=work.scaled(1, started),
        num_workers=plan.num_workers,
        codecs={f.name: f.codec for f in recipe.fields if f.codec},
        stored_as=name_counts(np.sum([*tried.codecs.values()], axis=0)),
        unusable=tuple(tried.unusable),
        delta_saves=settled.delta_saves,
    )


def _try(recipe: Recipe, sources: list[Source], pool: WorkerPool) -> tuple[Tried, Written | None, float]:
    """Convert some sources one by one, and write their samples into a temporary folder.

    Returns:
        Their sizes, what was written (None without a sample), and the seconds that writing took.
    """
    written, seconds = None, 0.0
    with tempfile.TemporaryDirectory(prefix="lmdbloader-estimate-") as folder:
        work, description = Work(Path(folder) / "tried"), Description(recipe.fields, True, {}, {})
        work.begin({})
        with work.part(0, description, map_nbytes=_WRITTEN_NBYTES) as writer:

            def write(part: Part) -> None:
                nonlocal seconds
                if part.chunk is not None and writer.payload_nbytes < _WRITTEN_NBYTES:
                    began = time.perf_counter()
                    writer.add(part.chunk, part.blocks)
                    seconds += time.perf_counter() - began

            tried = try_sources(recipe, sources, pool, write)
            if writer.num_samples:
                began = time.perf_counter()
                written = join(work, [work.complete(0, writer, {})], description)
                seconds += time.perf_counter() - began
    return tried, written, seconds
