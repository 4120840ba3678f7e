"""`lmdbloader.estimate`: how large a dataset would be and how long its conversion would take, from a few inputs."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from lmdbloader.base.arguments import whole
from lmdbloader.conversion.plan import Plan, make_plan, settle_scale
from lmdbloader.conversion.pool import TASK_NBYTES, WorkerPool
from lmdbloader.conversion.sampled import Interval, draw_sample
from lmdbloader.conversion.sources import Layout, Source, Sources
from lmdbloader.conversion.sources.listing import as_text
from lmdbloader.conversion.storage import WriteMode, draw
from lmdbloader.conversion.tasks import Part, Recipe
from lmdbloader.conversion.trial import try_out
from lmdbloader.errors import OptionError, SourceError
from lmdbloader.format.codecs import name_counts
from lmdbloader.format.digests import DEFAULT_DIGEST, DigestName, digest_of_text
from lmdbloader.format.layout import BLOCK_NBYTES
from lmdbloader.store import Written, open_writer

_F64 = npt.NDArray[np.float64]
# So much of what was tried is also written, to measure that.
_WRITTEN_NBYTES = 64 * 2**20
# With so much all of what a digest is made with is loaded.
_LOADING_NBYTES = 2**18
_LEAST = 4
_PAGE_NBYTES, _PAGE_HEAD_NBYTES, _ENTRY_NBYTES = 4096, 16, 48
# An LMDB without records, and the frame of an index without rows.
_EMPTY_DATA_NBYTES, _EMPTY_INDEX_NBYTES, _MANIFEST_NBYTES = 4 * _PAGE_NBYTES, 4096, 2048
# What is not known of how samples share LMDB's pages.
_PACKING_ERROR = 0.005


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a conversion would make. Its intervals hold the truth in 95 of 100 cases, as far as the inputs decide it.

    Attributes:
        layout: How the source is laid out.
        num_sources: Images or pairs in the source.
        num_tried: How many of them were converted to know.
        source_nbytes: Bytes of all their files.
        num_samples: Samples of the dataset.
        payload_nbytes: Bytes of what is stored of the samples.
        data_nbytes: Bytes of data.mdb.
        index_nbytes: Bytes of index.arrow.
        dataset_nbytes: Bytes of all of the dataset's files.
        seconds: The conversion would take on this machine, as busy as it is, with `num_workers`.
        num_workers: Worker processes.
        codecs: The codec of each image field's pixels.
        stored_as: How many images of those that were tried are stored how: raw, lz4, tiles, jpeg or file.
        unusable: (name, reason) of those that were tried and cannot be used.
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


def estimate(
    src: str | os.PathLike[str] | None,
    *,
    sample: int = 100,
    sample_seed: int = 0,
    layout: Layout | Literal["auto"] = "auto",
    hr: str | os.PathLike[str] | None = None,
    lr: str | os.PathLike[str] | None = None,
    patch_size: int | None = None,
    stride: int | None = None,
    scale: int | None = None,
    bicubic: Literal["matlab", "pillow"] = "matlab",
    alpha: Literal["refuse", "drop", "white"] = "refuse",
    max_pixels: int = 200_000_000,
    codec: str | None = None,
    write_mode: WriteMode | None = None,
    max_resolution: int | None = None,
    jpeg_quality: int | None = None,
    compress_probability: float | None = None,
    smart_threshold: int | None = None,
    digest: DigestName = DEFAULT_DIGEST,
    subset: int | None = None,
    seed: int | None = None,
    classes: Sequence[str] | None = None,
    on_error: Literal["stop", "skip"] = "stop",
    min_pair_psnr: float = 20.0,
    workers: int | None = None,
) -> Estimate:
    """Return the predicted size and time of a conversion, from a sample of its inputs.

    The sample is drawn at random among inputs of each size and really converted; totals are estimated from the sizes
    of all files. Nothing is left on the disk.

    Args:
        src: As `convert` has it, and so are all options but the next two.
        sample: Inputs to try, at least 4.
        sample_seed: What is drawn depends on it and on the inputs' sizes only.
        layout: As in `convert`.
        hr: As in `convert`.
        lr: As in `convert`.
        patch_size: As in `convert`.
        stride: As in `convert`.
        scale: As in `convert`.
        bicubic: As in `convert`.
        alpha: As in `convert`.
        max_pixels: As in `convert`.
        codec: As in `convert`.
        write_mode: As in `convert`.
        max_resolution: As in `convert`.
        jpeg_quality: As in `convert`.
        compress_probability: As in `convert`.
        smart_threshold: As in `convert`.
        digest: As in `convert`.
        subset: As in `convert`.
        seed: As in `convert`.
        classes: As in `convert`.
        on_error: As in `convert`; of those that are tried, inputs that cannot be used are counted in any case.
        min_pair_psnr: As in `convert`.
        workers: As in `convert`; the time is that with so many.

    Raises:
        OptionError: Options that make no sense.
        SourceError: No folder, no images, pairs that do not match, or none of the inputs tried can be used.
        ImageError: No pair can be used whose scale would be that of all.
    """
    sample, sample_seed = whole("sample", sample), whole("sample_seed", sample_seed)
    if sample < _LEAST:
        raise OptionError(f"sample {sample}: expected at least {_LEAST} inputs")
    if sample_seed < 0:
        raise OptionError(f"sample_seed {sample_seed}: expected 0 or more")
    began = time.monotonic()
    plan = make_plan(
        src,
        layout=layout,
        hr=hr,
        lr=lr,
        patch_size=patch_size,
        stride=stride,
        scale=scale,
        bicubic=bicubic,
        alpha=alpha,
        max_pixels=max_pixels,
        codec=codec,
        write_mode=write_mode,
        max_resolution=max_resolution,
        jpeg_quality=jpeg_quality,
        compress_probability=compress_probability,
        smart_threshold=smart_threshold,
        digest=digest,
        subset=subset,
        seed=seed,
        classes=classes,
        on_error=on_error,
        min_pair_psnr=min_pair_psnr,
        workers=workers,
    )
    recipe = settle_scale(plan)
    sources = plan.listing.sources
    with WorkerPool(plan.num_workers) as pool:
        recipe = replace(recipe, fields=try_out(recipe, sources, pool, plan.codec).fields, on_error="skip")
        started = time.monotonic() - began
        drawn = draw_sample(sources.nbytes, sample, sample_seed, _become_jpegs(recipe, sources))
        tried = _try(recipe, [sources[row] for row in drawn.rows.tolist()], plan, pool)
    if tried.written is None:
        raise SourceError(
            f"none of the {len(drawn.rows)} inputs tried can be used; the first: {': '.join(tried.unusable[0])}"
        )
    num_samples = drawn.estimate_total(tried.num_samples)
    payload = drawn.estimate_total(tried.stored_nbytes)
    data = payload.scaled(_packing(tried), _EMPTY_DATA_NBYTES)
    data = data.widened(_PACKING_ERROR * data.value + _EMPTY_DATA_NBYTES)
    sizes, count = tried.written.sizes, tried.written.num_samples
    index = num_samples.scaled(max(0, sizes["index_nbytes"] - _EMPTY_INDEX_NBYTES) / count, _EMPTY_INDEX_NBYTES)
    work = drawn.estimate_total(tried.seconds).scaled(1 / plan.num_workers)
    writing = payload.scaled(tried.writing_seconds / max(sizes["payload_nbytes"], 1))
    return Estimate(
        layout=plan.listing.layout,
        num_sources=len(sources),
        num_tried=len(drawn.rows),
        source_nbytes=int(drawn.total),
        num_samples=num_samples,
        payload_nbytes=payload,
        data_nbytes=data,
        index_nbytes=index,
        dataset_nbytes=_sum(data, index).scaled(1, _MANIFEST_NBYTES),
        # Workers go on while the parent writes; with one, it does both.
        seconds=(_sum(work, writing) if plan.num_workers == 1 else _larger(work, writing)).scaled(1, started),
        num_workers=plan.num_workers,
        codecs={f.name: f.codec for f in recipe.fields if f.codec},
        stored_as=name_counts(tried.stored_as),
        unusable=tuple(tried.unusable),
    )


def _become_jpegs(recipe: Recipe, sources: Sources) -> npt.NDArray[np.bool_] | None:
    """Return which sources "proportion" will store as JPEG: known beforehand, it need not be estimated."""
    storage = recipe.storage
    if storage.mode != "proportion" or recipe.patch_size is not None:
        return None
    seed, share = storage.seed or 0, storage.compress_probability or 0.0
    drawn = (draw(seed, as_text(name)) < share for name in sources.names)
    return np.fromiter(drawn, np.bool_, len(sources))


class _Tried:
    """What was measured of each input that was tried, in their order."""

    def __init__(self, count: int) -> None:
        self.num_samples, self.stored_nbytes, self.seconds, self.source_nbytes = np.zeros((4, count))
        self.stored_as = np.zeros(256, np.int64)
        self.unusable: list[tuple[str, str]] = []
        self.payloads: list[_F64] = [np.zeros(0)] * count  # bytes of each of its samples
        self.beside_nbytes = 0  # what a sample takes in a value beside its payloads, and a value beside its samples
        self.frames: list[float] = []
        self.written: Written | None = None
        self.writing_seconds = 0.0

    def add(self, at: int, part: Part) -> None:
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
        self.payloads[at] = np.append(self.payloads[at], each)
        self.beside_nbytes = 4 * len(part.chunk.payloads) + 8 * len(part.chunk.columns)
        first = 0
        for block in part.blocks:
            here = each[first : first + block.num_samples]
            self.frames.append(block.value.size - float((here + self.beside_nbytes).sum()))
            first += block.num_samples


def _try(recipe: Recipe, sources: list[Source], plan: Plan, pool: WorkerPool) -> _Tried:
    """Convert some sources one by one, and write what they become, into a folder that is removed."""
    tried = _Tried(len(sources))
    tried.source_nbytes[:] = [s.nbytes for s in sources]
    # What a worker loads at first is not to be counted as work for its first source.
    for _ in pool.convert(recipe, [[sources[0]]] * 2 * plan.num_workers):
        pass
    digest_of_text(bytes(_LOADING_NBYTES), plan.digest)
    written_nbytes, at = 0.0, 0
    with (
        tempfile.TemporaryDirectory(prefix="lmdbloader-estimate-") as folder,
        open_writer(Path(folder) / "tried", recipe.fields, with_source=True, map_nbytes=_WRITTEN_NBYTES) as writer,
    ):
        for part in pool.convert(recipe, [[source] for source in sources]):
            tried.add(at, part)
            # A large source comes in several parts, of which the last counts it.
            at += part.num_sources
            if part.chunk is not None and written_nbytes < _WRITTEN_NBYTES:
                began = time.perf_counter()
                writer.add(part.chunk, part.blocks)
                tried.writing_seconds += time.perf_counter() - began
                written_nbytes += sum(float(p.stored_nbytes.sum()) for p in part.chunk.payloads.values())
        if writer.num_samples:
            began = time.perf_counter()
            tried.written = writer.finish(classes={}, made_by={}, digest=plan.digest)
            tried.writing_seconds += time.perf_counter() - began
    return tried


def _packing(tried: _Tried) -> float:
    """Return the bytes of LMDB's pages for each byte of payload.

    A value has whole pages to itself. What was tried were values of their own; in a conversion the samples of a task
    share values, so they are laid out here as they would be there.
    """
    frame = float(np.median(tried.frames))
    pages = group = used = 0.0
    for at, each in enumerate(tried.payloads):
        for nbytes in (each + tried.beside_nbytes).tolist():
            if used and used + nbytes > BLOCK_NBYTES:
                pages += _whole_pages(used + frame)
                used = 0.0
            used += nbytes
        group += tried.source_nbytes[at]
        if group >= TASK_NBYTES or at == len(tried.payloads) - 1:
            pages += _whole_pages(used + frame) if used else 0.0
            group = used = 0.0
    return pages / max(float(tried.stored_nbytes.sum()), 1.0)


def _whole_pages(value_nbytes: float) -> float:
    """Return what a value takes: pages of its own behind a small head, and its entry in the tree."""
    return -(-(value_nbytes + _PAGE_HEAD_NBYTES) // _PAGE_NBYTES) * _PAGE_NBYTES + _ENTRY_NBYTES


def _sum(a: Interval, b: Interval) -> Interval:
    return Interval(a.value + b.value, a.low + b.low, a.high + b.high)


def _larger(a: Interval, b: Interval) -> Interval:
    return Interval(max(a.value, b.value), max(a.low, b.low), max(a.high, b.high))
