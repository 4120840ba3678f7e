"""Reading from storage: a pass of each arm with its files dropped from the page cache, and once more."""

from __future__ import annotations

import copy
import gc
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from lmdbloader.base import system
from lmdbloader.base.arguments import is_url
from lmdbloader.format.layout import INDEX_FILE, MANIFEST_FILE
from lmdbloader.lab.arms import Arm, Material, open_arm, take_turns
from lmdbloader.lab.machine import filesystem_of, residency
from lmdbloader.lab.study.results import StudyRow, row_of

# A cold pass is an epoch, or ends after this many turns' time; of a disk the first reads say little.
_TURNS = 20
# Files of a folder that are looked at for what is left of them in the page cache.
_LOOKED_AT = 200
# Of the files, as a share: more makes the cold figures too high.
_MOST_HELD = 0.05


def read_cold(
    material: Material, arms: Sequence[Arm], repeats: int, seconds: float, notes: list[str]
) -> Iterator[StudyRow]:
    """Yield the speed of each arm from a cold page cache, and from a warm one.

    Nothing in this process may have read the dataset before: the system keeps pages that a process has mapped.

    Args:
        material: What is read.
        arms: How, the Loader first, which also reads in its order for cold storage.
        repeats: Turns of each.
        seconds: A turn is an epoch, or 20 times as long.
        notes: Gets a sentence if it cannot be measured, or is too high.
    """
    if reason := _why_not(material):
        notes.append(f"Cold reads were not measured: {reason}.")
        return

    def measure(arm: Arm) -> tuple[float, int, float, float]:
        held = drop(_files_of(material, arm))
        count, cold = _pass(material, arm, seconds * _TURNS, None)
        again, warm = _pass(material, arm, float("inf"), count)
        return held, count, count / cold, again / warm

    arms = [arms[0], replace(arms[0], order="quasi_random"), *arms[1:]]
    found = take_turns(arms, repeats, measure)
    for arm, turns in zip(arms, found, strict=True):
        held, counts, cold, warm = zip(*turns, strict=True)
        yield row_of("cold", arm, cold, {"num_samples": counts[-1], "held": max(held)})
        yield row_of("warm", arm, warm, {"num_samples": counts[-1]})
    most = max(turn[0] for turns in found for turn in turns)
    if most > _MOST_HELD:
        notes.append(f"Cold figures are too high: up to {most:.0%} of the files stayed in the page cache, mapped.")


def drop(files: Sequence[str]) -> float:
    """Drop the page cache of some files; return the share that is still there, 0 if that is unknown."""
    gc.collect()  # a reader that is only garbage still maps its file
    for name in files:
        descriptor = system.open_to_read(name)
        try:
            system.drop_cache(descriptor)
        finally:
            os.close(descriptor)
    looked_at = files[:: max(1, len(files) // _LOOKED_AT)]
    sizes = [os.path.getsize(name) for name in looked_at]
    kept = sum(size * (residency(name) or 0.0) for name, size in zip(looked_at, sizes, strict=True))
    return kept / max(sum(sizes), 1)


def _why_not(material: Material) -> str:
    if not system.CAN_DROP_CACHE:
        return "this system does not let a program drop pages of the page cache"
    for place in (material.dataset.path, *(material.files.samples[0] if material.files else ())):
        if is_url(place):
            return f"{place} is at a URL; `lmdbloader stage` copies it to a disk"
        if filesystem_of(place).kind == "memory":
            return f"{place} is on a file system in memory"
    return ""


def _files_of(material: Material, arm: Arm) -> list[str]:
    """Return the files that an arm reads."""
    if arm.source == "folder":
        assert material.files is not None
        return sorted({name for sample in material.files.samples for name in sample})
    manifest = material.dataset.reader.manifest
    names = (*manifest.data_files, INDEX_FILE, MANIFEST_FILE)
    return [str(Path(material.dataset.path) / name) for name in names]


def _pass(material: Material, arm: Arm, seconds: float, most: int | None) -> tuple[int, float]:
    """Return the samples of a pass, and its time with the start of threads and workers.

    Args:
        material: What is read.
        arm: How, in an order that is always the same.
        seconds: The pass ends with the first batch after that time.
        most: The pass ends after so many samples; None: at the end of the epoch.
    """
    opened = Material(copy.deepcopy(material.dataset), material.files)
    count = 0
    with open_arm(opened, arm, is_long=False) as feed:
        began = time.perf_counter()
        for batch in islice(feed.batches, len(feed.loader)):
            count += len(batch[0] if isinstance(batch, tuple | list) else batch)
            del batch
            took = time.perf_counter() - began
            if took >= seconds or (most is not None and count >= most):
                break
    return count, took
