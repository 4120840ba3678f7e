"""`doctor`: looks at the machine, at a dataset on it, and at a pass through a Loader."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from lmdbloader.base.option_names import option
from lmdbloader.errors import OptionError
from lmdbloader.lab.checkup.findings import Checkup, DatasetFacts, dataset_facts
from lmdbloader.lab.checkup.rules import judge_dataset, judge_machine
from lmdbloader.lab.machine import Machine, describe


def doctor(
    path: str | os.PathLike[str] | None = None,
    *,
    batch_size: int | None = None,
    step_seconds: float | None = None,
    crop: int | None = None,
    loader: Iterable[Any] | None = None,
) -> Checkup:
    """Look for causes of slow loading on this machine; each fact gets a verdict and a remedy.

    Args:
        path: A dataset, to be judged with its file system and the memory of this machine.
        batch_size: Samples in a batch. With `step_seconds`, a Loader reads the dataset for a few seconds, and the
            result names the bottleneck.
        step_seconds: Time of a training step without waiting for data.
        crop: Side of the windows that are read; needed if images differ in size.
        loader: With `step_seconds`, in place of `batch_size`: your own Loader or DataLoader, with your transforms.

    Returns:
        The findings; `print` shows them as a table, `is_healthy` says whether none of them is a problem.

    Raises:
        OptionError: Options do not go together, or one is out of its range.
        NotFoundError: There is nothing at `path`.
        FormatError: Not a finished dataset of this format version.
        CorruptError: A file is cut short or damaged.

    >>> found = doctor()
    >>> found.finding("cores").verdict in ("good", "note", "problem")
    True
    """
    has_pass, has_size = step_seconds is not None, batch_size is not None
    if loader is not None:
        fits = has_pass and not has_size and crop is None
    else:
        fits = has_pass == has_size and (has_pass or crop is None) and (path is not None or not has_pass)
    if not fits:
        raise OptionError(
            f"a pass through a Loader needs a dataset, {option('batch_size')} and {option('step_seconds')}, and takes "
            f"{option('crop')}; with a loader of your own {option('step_seconds')} alone"
        )
    machine = describe(path)
    facts = None if path is None else dataset_facts(path)
    found = examine(machine, facts)
    if step_seconds is None:
        return found
    from lmdbloader.lab.checkup.rehearsal import judge_pass, loader_for, try_out

    made = None
    # Not `loader or ...`: the truth of a DataLoader is its length, and one of a stream has none.
    if loader is None and facts is not None and batch_size is not None:
        loader = made = loader_for(facts, batch_size, crop)
    try:
        profile, used = try_out(() if loader is None else loader, step_seconds)
    finally:
        if made is not None:
            made.close()
    findings = judge_pass(profile, used, step_seconds, machine.memory.free_nbytes)
    return replace(found, findings=(*found.findings, *findings), profile=profile)


def examine(machine: Machine, dataset: DatasetFacts | None = None) -> Checkup:
    """Judge facts: of a machine, and of a dataset on it."""
    findings = judge_machine(machine)
    if dataset is not None:
        findings += judge_dataset(dataset, machine)
    return Checkup(findings, machine, dataset)
