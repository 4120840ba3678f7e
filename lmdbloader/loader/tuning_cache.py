"""The cache of measured settings: the best threads or workers for a dataset here, in one file per user."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch.utils.data import ConcatDataset, Dataset

from lmdbloader.base import system
from lmdbloader.base.cores import count_cores, count_own_cores
from lmdbloader.base.user_cache import cache_folder, replace_text
from lmdbloader.batch.dataset import LMDBDataset
from lmdbloader.loader.mixing import Mix
from lmdbloader.transforms import Geometry, Transform

_VERSION = 1
# More than this, and the oldest is forgotten. Every Loader reads the file, so it must stay small.
_MOST_ENTRIES = 200
_MOST_NBYTES = 4 * 2**20
_MOST_THREADS = 4096
# With fewer batches, starting is a noticeable part of an epoch, which changes the best settings.
_MANY_BATCHES = 64
_LOCK_SECONDS = 3.0

Entry = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Workers:
    """The best settings of torch's DataLoader.

    Attributes:
        num_workers: Worker processes.
        pin_memory: Whether batches go through pinned memory; None if it was measured without an accelerator.
    """

    num_workers: int
    pin_memory: bool | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """The conditions of a measurement, which is valid for the same conditions only.

    Attributes:
        machine: Name of the machine, cores that the process may use, version of torch.
        datasets: Content digests of the datasets.
        batch_size: Samples in a batch, None for samples one by one.
        parts: All other conditions: fields, Python functions, the size of images.
    """

    machine: tuple[str, int, str]
    datasets: tuple[str, ...]
    batch_size: int | None
    parts: tuple[str, ...]

    def key(self, kind: str) -> str:
        """Return the key of an entry of a kind, "threads" or "workers"."""
        texts = [kind, *map(str, self.machine), str(self.batch_size), *self.datasets, *self.parts]
        return hashlib.blake2b("\0".join(texts).encode(), digest_size=16).hexdigest()


def case_of(
    dataset: Dataset[Any],
    batch_size: int | None,
    transforms: Sequence[Transform] = (),
    functions: Sequence[Callable[[Any], Any]] = (),
) -> Case:
    """Return the conditions of a measurement of a dataset.

    Of the transforms only the final size of images counts: flips or dtypes change the best settings too little to
    measure again.

    Args:
        dataset: An LMDBDataset, a view of one, or a dataset over them.
        batch_size: None for samples one by one.
        transforms: Of a Loader, in addition to the dataset's own.
        functions: Called with whole batches: a Loader's, or the user's collate function.
    """
    length = len(dataset)  # type: ignore[arg-type]
    batches = min(-(-length // (batch_size or 1)), _MANY_BATCHES)
    described = list(_describe(dataset, transforms))
    digests = tuple(text for is_digest, text in described if is_digest)
    parts = [f"{batches} batches", *(text for is_digest, text in described if not is_digest), *map(_name, functions)]
    machine = platform.node(), count_cores(), torch.__version__
    return Case(machine, digests, batch_size, tuple(parts))


def _describe(dataset: Any, transforms: Sequence[Transform]) -> Iterator[tuple[bool, str]]:
    """Yield texts that identify a dataset and those it is made of, each with whether it is a content digest."""
    # The text for our own class is fixed: measurements stay valid when its module moves.
    name = f"{type(dataset).__module__}.{type(dataset).__qualname__}"
    yield False, "lmdbloader.dataset.LMDBDataset" if type(dataset) is LMDBDataset else name
    if isinstance(dataset, LMDBDataset):
        own: Any = dataset.__dict__.get("transform", dataset._transform)
        yield True, dataset.reader.manifest.content_digest
        yield False, f"{list(dataset.fields)} {own if own is None else _name(own)}"
        yield False, _size([*dataset.all_transforms, *transforms])
    elif isinstance(dataset, ConcatDataset | Mix):
        for part in dataset.datasets:
            yield from _describe(part, transforms)
    elif hasattr(dataset, "dataset"):
        yield from _describe(dataset.dataset, transforms)
    else:
        yield False, f"{len(dataset)} samples"
        # Folders with equally many samples may be different datasets, and a transform may be most of the work.
        for name in ("root", "transform", "target_transform", "transforms"):
            value = getattr(dataset, name, None)
            if value is not None:
                yield (
                    False,
                    f"{name} {os.path.abspath(value) if isinstance(value, str | os.PathLike) else _name(value)}",
                )


def _name(function: Any) -> str:
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def _size(transforms: Sequence[Transform]) -> str:
    """Return the size of images after transforms."""
    sized = [t for t in transforms if isinstance(t, Geometry) and t.size_numbers != (0, 0)]
    if not sized:
        return "as stored"
    height, width = sized[-1].size_numbers
    return f"{height} x {width} {sized[-1].fields or ''}".rstrip()


def recall_threads(case: Case) -> int | None:
    """Return the best number of threads of a Loader, at most this process's share of the cores.

    None if it was not measured and the share is all cores. A measurement is of one process that has all of them.
    """
    found, share = _read().get(case.key("threads"), {}).get("num_threads"), count_own_cores()
    if not _is_count(found, 1, _MOST_THREADS):
        return share if share < count_cores() else None
    return found if share == count_cores() else min(found, share)


def recall_workers(case: Case) -> Workers | None:
    """Return the best settings of a DataLoader, with at most a worker for each core of this process's share.

    None if they were not measured.
    """
    entry = _read().get(case.key("workers"), {})
    workers, pin = entry.get("num_workers"), entry.get("pin_memory")
    # More workers than cores are never measured: a damaged file must not start hundreds of processes.
    if not _is_count(workers, 0, count_cores()) or not (pin is None or isinstance(pin, bool)):
        return None
    return Workers(min(workers, count_own_cores()), pin)


def remember_threads(case: Case, num_threads: int, samples_per_s: float | None = None) -> bool:
    """Remember a number of threads; return whether it could be written."""
    return _remember(case, "threads", {"num_threads": num_threads}, samples_per_s)


def remember_workers(case: Case, workers: Workers, samples_per_s: float | None = None) -> bool:
    """Remember settings of a DataLoader; return whether they could be written."""
    values = {"num_workers": workers.num_workers, "pin_memory": workers.pin_memory}
    return _remember(case, "workers", values, samples_per_s)


def forget(content_digest: str) -> int:
    """Forget all measurements of a dataset; return the number of entries."""
    forgotten = 0

    def change(entries: dict[str, Entry]) -> None:
        nonlocal forgotten
        kept = {key: entry for key, entry in entries.items() if content_digest not in _texts(entry.get("datasets"))}
        forgotten = len(entries) - len(kept)
        entries.clear()
        entries.update(kept)

    return forgotten if _change(change) else 0


def settings_file() -> Path | None:
    """Return the path of the file; delete it to measure again. None if the user has no home."""
    folder = cache_folder()
    return None if folder is None else folder / "settings.json"


def _remember(case: Case, kind: str, values: Entry, samples_per_s: float | None) -> bool:
    node, cores, torch_version = case.machine
    entry = {
        "kind": kind, **values, "samples_per_s": samples_per_s, "batch_size": case.batch_size,
        "datasets": list(case.datasets), "parts": list(case.parts), "node": node, "cores": cores,
        "torch": torch_version, "measured": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }  # fmt: skip

    def change(entries: dict[str, Entry]) -> None:
        entries.pop(case.key(kind), None)
        entries[case.key(kind)] = entry  # the newest is the last

    return _change(change)


def _is_count(value: Any, least: int, most: int) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _texts(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _read() -> dict[str, Entry]:
    """Return the entries of the file; none if it does not exist or is not one of ours."""
    path = settings_file()
    try:
        if path is None or path.stat().st_size > _MOST_NBYTES:
            return {}
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(found, dict) or found.get("version") != _VERSION or not isinstance(found.get("entries"), dict):
        return {}
    return {key: entry for key, entry in found["entries"].items() if isinstance(entry, dict)}


def _change(change: Callable[[dict[str, Entry]], None]) -> bool:
    """Change the entries; return whether the file was written. If not, settings are measured again."""
    path = settings_file()
    if path is None:
        return False
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path.parent):
            entries = _read()
            change(entries)
            kept = dict(list(entries.items())[-_MOST_ENTRIES:])
            replace_text(path, json.dumps({"version": _VERSION, "entries": kept}, indent=1))
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other processes from changing the file between reading and writing it, which would lose their entries.

    After some seconds, or if the file system has no locks, it continues without: a lost entry is measured again.
    """
    descriptor = system.open_folder(folder, follow=True)
    try:
        until = time.monotonic() + _LOCK_SECONDS
        while time.monotonic() < until:
            try:
                system.lock(descriptor)
                break
            except BlockingIOError:
                time.sleep(0.005)
            except OSError:
                break
        yield
    finally:
        os.close(descriptor)
