"""A short pass through a Loader with steps of a given length: whether it keeps up, and whether memory grows."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lmdbloader.base import system
from lmdbloader.base.option_names import option
from lmdbloader.base.units import MIB, show_nbytes
from lmdbloader.batch.dataset import LMDBDataset
from lmdbloader.errors import OptionError
from lmdbloader.lab.checkup.findings import DatasetFacts, Finding
from lmdbloader.lab.profiling import Profile, Recorder
from lmdbloader.lab.profiling.loader_facts import facts_of
from lmdbloader.lab.tuning import crop_of
from lmdbloader.loader import Loader

# How long a pass takes, and how long one of many batches read at once or of long steps may; it ends after a step.
_SECONDS, _MOST_SECONDS = 6.0, 60.0
_FEWEST_STEPS, _MOST_STEPS = 12, 2000
# Steps in which the threads get ahead again after they were emptied.
_CATCHING_UP = 3
# A loader that needs less than this share of a step for a batch is not held up by how many it reads at a time.
_FAST = 0.8
# Memory that grows by more than this in both of the last quarters of the pass is a leak ...
_GROWTH_NBYTES = 8 * MIB
# ... and a problem if this many steps would use up the free memory.
_STEPS = 10_000


def loader_for(facts: DatasetFacts, batch_size: int, crop: int | None) -> Loader:
    """Return the Loader that is tried.

    Args:
        facts: Of the dataset.
        batch_size: Samples in a batch.
        crop: Side of the windows that are cut, None for whole images.

    Raises:
        OptionError: Images differ in size, and `crop` is None; or another option makes no sense.
    """
    dataset = LMDBDataset(facts.path)
    transforms = [] if crop is None else [crop_of(dataset, crop)]
    try:
        return Loader(dataset, batch_size, order="random", transforms=transforms)
    except OptionError as error:
        if crop is not None:
            raise
        raise OptionError(f"{error} Images of many sizes need a crop: give {option('crop')}.") from error


def try_out(loader: Iterable[Any], step_seconds: float) -> tuple[Profile, list[int]]:
    """Return the profile of a pass with steps that are waited out, and the memory in use after each step, in bytes."""
    if not 0 <= step_seconds < float("inf"):
        raise OptionError(f"{option('step_seconds', step_seconds)}: expected seconds, at least 0")
    used: list[int] = []
    recorder = Recorder(loader, device="cpu")
    emptying, fewest = recorder.warmup, _FEWEST_STEPS
    recorder.warmup += _CATCHING_UP
    with recorder:
        began = time.perf_counter()
        for batch in recorder.take(_MOST_STEPS):
            used.append(_own_memory())
            del batch
            elapsed = time.perf_counter() - began
            # The batches that were read ahead are taken at once: with long steps, hundreds of them would take minutes.
            if len(used) < emptying:
                if elapsed > _MOST_SECONDS / 3:
                    emptying = len(used) + 1
                    recorder.warmup = emptying + _CATCHING_UP
                continue
            if len(used) == emptying:
                if elapsed > _FAST * step_seconds * emptying:
                    # Batches come several at a time: only as many steps as the threads read in one go show the waiting.
                    fewest = max(fewest, 2 * facts_of(loader).period)
                began = time.perf_counter()
            time.sleep(step_seconds)
            elapsed, measured = time.perf_counter() - began, len(used) - recorder.warmup
            if elapsed >= _MOST_SECONDS:
                if measured >= 1:
                    break
                recorder.warmup = len(used)  # in so long a step the threads have caught up
            elif measured >= fewest and elapsed >= _SECONDS:
                break
    return recorder.profile(), used


def judge_pass(found: Profile, used: list[int], step_seconds: float, free_nbytes: int) -> tuple[Finding, ...]:
    """Return the findings of a pass.

    Args:
        found: Its profile.
        used: Memory in use after each step, in bytes.
        step_seconds: That a step should take.
        free_nbytes: Memory that is free.
    """
    few = "" if found.num_steps >= _FEWEST_STEPS else f" (of {found.num_steps} only)"
    asked = f"{1000 * step_seconds:.3g} ms{few}"
    if found.is_healthy:
        feeding = Finding("feeding", "good", f"keeps up with steps of {asked}: waits {found.stall:.1%} of the time")
    else:
        value = (
            f"does not keep up with steps of {asked}: they take {1000 * found.step_seconds:.3g} ms, {found.stall:.0%} "
            f"of it waiting; what holds them up is {found.bottleneck}"
        )
        feeding = Finding("feeding", "problem", value, str(found.advice))
    return feeding, _growth(used, free_nbytes)


def _growth(used: list[int], free_nbytes: int) -> Finding:
    """Return whether memory grows from step to step: at first it always does, buffers are made once."""
    quarter = len(used) // 4
    if not quarter or not used[-1]:
        return Finding("memory growth", "good", "not known")
    half, three, end = used[2 * quarter], used[3 * quarter], used[-1]
    each = (end - half) / (len(used) - 1 - 2 * quarter)
    value = f"{show_nbytes(end)} in use"
    if min(end - three, three - half) < _GROWTH_NBYTES or each * _STEPS < free_nbytes:
        return Finding("memory growth", "good", f"{value}, steady")
    return Finding(
        "memory growth",
        "problem",
        f"{value}, {show_nbytes(each)} more with each step",
        "Something keeps every batch: a list of losses that are still tensors, an unbounded cache in `transform`.",
    )


def _own_memory() -> int:
    """Return this process's memory in bytes, without pages shared with the page cache; 0 if unknown."""
    for line in system.read_text(Path("/proc/self/status")).splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0
