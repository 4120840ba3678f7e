"""The cold test: a pass of each loader with its files, and no others, dropped from the page cache; and once more."""

from __future__ import annotations

import copy
import gc
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from lmdbloader.base import system
from lmdbloader.base.arguments import is_url
from lmdbloader.format.layout import INDEX_FILE, MANIFEST_FILE
from lmdbloader.lab.machine import filesystem_of, residency
from lmdbloader.lab.study.endless_loader import BenchData, random_crop
from lmdbloader.lab.study.interrupts import check
from lmdbloader.lab.study.rows import ColdRow, LoaderKind
from lmdbloader.lab.study.setup import BenchSetup
from lmdbloader.lab.study.sweeps import middle_size
from lmdbloader.loader import Loader
from lmdbloader.loader.torch_loader import dataloader

# A pass ends after this many turns' time; of a disk the first reads say little.
_TURNS = 20
# Files of a folder that are looked at for what is left of them in the page cache.
_LOOKED_AT = 200
_SEED = 0


def read_cold(plan: BenchSetup, notes: list[str]) -> Iterator[ColdRow]:
    """Yield the speed of every loader from a cold page cache, and from a warm one.

    The page cache is dropped for the files that the loader reads, and for no others. It must run before anything else
    has read the dataset in this process: the system keeps pages that a process has mapped.

    Args:
        plan: The settings; the dataset and the files are opened anew for each pass.
        notes: Gets a sentence if nothing can be measured, or if much stayed in memory.
    """
    if not system.CAN_DROP_CACHE:
        notes.append("Cold reads were not measured: this system does not let a program drop pages of the page cache.")
        return
    for place in _places(plan.material):
        if is_url(place):
            notes.append(
                f"Cold reads were not measured: {place} is at a URL. Copy it to a disk with `lmdbloader stage`."
            )
            return
        if filesystem_of(place).kind == "memory":
            notes.append(f"Cold reads were not measured: {place} is on a file system in memory.")
            return
    left = 0.0
    for source, order in _ways(plan.material):
        plan.progress(f"cold: {source}, order {order}")
        files = _files_of(plan.material, source)
        held, cold, warm = [], [], []
        count = 0
        for _ in range(plan.repeats):
            held.append(drop(files))
            count, cold_seconds = _pass(plan, source, order, plan.seconds * _TURNS, None)
            warm_count, warm_seconds = _pass(plan, source, order, float("inf"), count)
            cold.append(count / cold_seconds)
            warm.append(warm_count / warm_seconds)
        left = max(left, *held)
        yield ColdRow(
            source, order, middle_size(plan), plan.crops[-1], count, statistics.median(cold), statistics.median(warm),
            max(held), tuple(cold), tuple(warm),
        )  # fmt: skip
    if left > 0.05:
        notes.append(
            f"Up to {left:.0%} of the files stayed in the page cache when it was dropped: another process, or this "
            "one, has mapped them. The cold figures are too high."
        )


def drop(files: Sequence[str]) -> float:
    """Drop the page cache of some files; return the share that is still there, 0 if that is unknown."""
    gc.collect()  # a reader that is only garbage still maps its file
    for name in files:
        descriptor = system.open_to_read(name)
        try:
            system.drop_cache(descriptor)
        finally:
            os.close(descriptor)
        check()
    step = max(1, len(files) // _LOOKED_AT)
    kept = nbytes = 0.0
    for name in files[::step]:
        size = os.path.getsize(name)
        kept += size * (residency(name) or 0.0)
        nbytes += size
    return kept / max(nbytes, 1.0)


def _ways(material: BenchData) -> list[tuple[LoaderKind, str]]:
    """Return the loaders and orders: random as everywhere else, and the order that the Loader has for cold storage."""
    found: list[tuple[LoaderKind, str]] = [("lmdbloader", "random"), ("lmdbloader", "quasi_random")]
    return found + [(source, "random") for source in material.sources if source != "lmdbloader"]


def _places(material: BenchData) -> list[str]:
    return [material.dataset.path, *([] if material.files is None else [material.files.samples[0][0]])]


def _files_of(material: BenchData, source: LoaderKind) -> list[str]:
    """Return the files that a loader reads."""
    if source == "folder":
        assert material.files is not None
        return sorted({name for sample in material.files.samples for name in sample})
    manifest = material.dataset.reader.manifest
    names = (*manifest.data_files, INDEX_FILE, MANIFEST_FILE)
    return [str(Path(material.dataset.path) / name) for name in names]


def _pass(plan: BenchSetup, source: LoaderKind, order: str, seconds: float, most: int | None) -> tuple[int, float]:
    """Return the samples of a pass, and its time with the start of threads and workers.

    Args:
        plan: The settings.
        source: Who makes the batches.
        order: Of the samples, the same in every pass.
        seconds: The pass ends with the first batch after that time.
        most: The pass ends after so many samples; None: at the end of the epoch.
    """
    with closing(_open(plan, source, order)) as loader:
        count = 0
        began = time.perf_counter()
        batches: Any = iter(loader.batches)
        try:
            for batch in batches:
                count += _num_samples(batch)
                del batch
                check()
                took = time.perf_counter() - began
                if took >= seconds or (most is not None and count >= most):
                    break
        finally:
            end = getattr(batches, "close", None) or getattr(batches, "_shutdown_workers", None)
            if end is not None:
                end()
            del batches
    return count, took


def _num_samples(batch: Any) -> int:
    first = batch[0] if isinstance(batch, tuple | list) else batch
    return len(first)


class _Opened:
    """A loader that reads a dataset or files once, in an order that is always the same."""

    def __init__(self, batches: Any, loader: Loader | None) -> None:
        self.batches, self._loader = batches, loader

    def close(self) -> None:
        """End the threads, and let go of the dataset, which unmaps its file."""
        if self._loader is not None:
            self._loader.close()
        self.batches = self._loader = None


def _open(plan: BenchSetup, source: LoaderKind, order: str) -> _Opened:
    size, crop = middle_size(plan), plan.crops[-1]
    if source == "folder":
        files = plan.material.files
        assert files is not None
        generator = torch.Generator().manual_seed(_SEED)
        kept = files.cropped(crop, len(files.samples))
        return _Opened(DataLoader(kept, size, shuffle=True, num_workers=plan.num_workers, generator=generator), None)
    dataset = copy.deepcopy(plan.material.dataset)  # opens its files anew
    if source == "dataloader":
        view = dataset.transformed(random_crop(crop)) if crop else dataset
        generator = torch.Generator().manual_seed(_SEED)
        return _Opened(dataloader(view, size, shuffle=True, num_workers=plan.num_workers, generator=generator), None)
    loader = Loader(
        dataset, size, order="quasi_random" if order == "quasi_random" else "random", seed=_SEED,
        transforms=random_crop(crop), num_threads=plan.num_threads,
    )  # fmt: skip
    return _Opened(loader, loader)
