"""`doctor`: looks at the machine, at a dataset on it, and at a pass through a Loader."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lmdbloader.errors import OptionError
from lmdbloader.lab.checkup.findings import Checkup, DatasetFacts, dataset_facts
from lmdbloader.lab.checkup.rules import judge_dataset, judge_machine
from lmdbloader.lab.machine import Machine, describe, describe_environment

if TYPE_CHECKING:
    from lmdbloader.lab.profiling import Profile


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
    if loader is None and (batch_size is None) != (step_seconds is None):
        raise OptionError(
            f"batch_size={batch_size}, step_seconds={step_seconds}: give both for a pass through a Loader, or neither."
        )
    if loader is not None and (step_seconds is None or batch_size is not None or crop is not None):
        raise OptionError(
            "loader=...: give it with step_seconds, and without batch_size and crop, which it has itself."
        )
    if loader is None and path is None and (batch_size is not None or crop is not None):
        raise OptionError("batch_size, step_seconds, crop: they need a dataset. Give its path, too.")
    if crop is not None and batch_size is None:
        raise OptionError(
            f"crop={crop}: it applies only when the dataset is read. Give batch_size and step_seconds, too."
        )
    machine = describe()
    facts = None if path is None else dataset_facts(path)
    found = replace(examine(machine, facts), environment=describe_environment(path))
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
    return _with_pass(found, profile, judge_pass(profile, used, step_seconds, machine.memory.free_nbytes))


def examine(machine: Machine, dataset: DatasetFacts | None = None) -> Checkup:
    """Judge facts: of a machine, and of a dataset on it."""
    findings = judge_machine(machine)
    if dataset is not None:
        findings += judge_dataset(dataset, machine)
    return Checkup(findings, machine, dataset)


def _with_pass(found: Checkup, profile: Profile, findings: tuple[Any, ...]) -> Checkup:
    return replace(found, findings=(*found.findings, *findings), profile=profile)
