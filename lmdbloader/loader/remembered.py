"""What was measured and is remembered: the threads or workers that suit a dataset here, in one file for each user."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch.utils.data import ConcatDataset, Dataset

from lmdbloader.base.cores import count_cores
from lmdbloader.batch.dataset import LMDBDataset
from lmdbloader.transforms import Geometry, Transform

_VERSION = 1
# The oldest are forgotten beyond it. Every Loader reads the file, so it must stay small.
_MOST_ENTRIES = 200
_MOST_NBYTES = 4 * 2**20
_MOST_THREADS = 4096
# More batches than these make no difference to what is best; fewer do, for starting is a part of so short an epoch.
_MANY_BATCHES = 64
_LOCK_SECONDS = 3.0

Entry = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Workers:
    """How torch's DataLoader reads best.

    Attributes:
        num_workers: Worker processes.
        pin_memory: Whether batches go through pinned memory; None where there was no accelerator to measure it with.
    """

    num_workers: int
    pin_memory: bool | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """What something was measured for; it is best for exactly that.

    Attributes:
        machine: Name of the machine, cores that the process may use, version of torch.
        datasets: Content digests of what is read.
        batch_size: Samples in a batch, None for samples one by one.
        parts: Everything else that tells it from others: fields, Python functions, the size of images.
    """

    machine: tuple[str, int, str]
    datasets: tuple[str, ...]
    batch_size: int | None
    parts: tuple[str, ...]

    def key(self, kind: str) -> str:
        """Return what entries of one kind, "threads" or "workers", are kept by."""
        texts = [kind, *map(str, self.machine), str(self.batch_size), *self.datasets, *self.parts]
        return hashlib.blake2b("\0".join(texts).encode(), digest_size=16).hexdigest()


def case_of(
    dataset: Dataset[Any],
    batch_size: int | None,
    transforms: Sequence[Transform] = (),
    functions: Sequence[Callable[[Any], Any]] = (),
) -> Case:
    """Return what a measurement of a dataset is for.

    Of the transforms only the size that images have in the end counts: other flips or types of numbers change what is
    best too little to measure anew.

    Args:
        dataset: An LMDBDataset, a view of one, or a dataset over them.
        batch_size: None for samples one by one.
        transforms: Of a Loader, beside the dataset's own.
        functions: Called with whole batches: a Loader's, or a collate function of one's own.
    """
    length = len(dataset)  # type: ignore[arg-type]
    batches = min(-(-length // (batch_size or 1)), _MANY_BATCHES)
    described = list(_describe(dataset, transforms))
    digests = tuple(text for is_digest, text in described if is_digest)
    parts = [f"{batches} batches", *(text for is_digest, text in described if not is_digest), *map(_name, functions)]
    machine = platform.node(), count_cores(), torch.__version__
    return Case(machine, digests, batch_size, tuple(parts))


def _describe(dataset: Any, transforms: Sequence[Transform]) -> Iterator[tuple[bool, str]]:
    """Yield what tells a dataset, and those that it stands on, from others, each with whether it is a digest."""
    yield False, f"{type(dataset).__module__}.{type(dataset).__qualname__}"
    if isinstance(dataset, LMDBDataset):
        own: Any = dataset._transform
        yield True, dataset.reader.manifest.content_digest
        yield False, f"{list(dataset.fields)} {own if own is None else _name(own)}"
        yield False, _size([*dataset.all_transforms, *transforms])
    elif isinstance(dataset, ConcatDataset):
        for part in dataset.datasets:
            yield from _describe(part, transforms)
    elif hasattr(dataset, "dataset"):
        yield from _describe(dataset.dataset, transforms)
    else:
        yield False, f"{len(dataset)} samples"
        # Folders of one length are not one dataset, and a transform may be most of the work.
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
    """Return the size that images have after transforms."""
    sized = [t for t in transforms if isinstance(t, Geometry) and t.size_numbers != (0, 0)]
    if not sized:
        return "as stored"
    height, width = sized[-1].size_numbers
    return f"{height} x {width} {sized[-1].fields or ''}".rstrip()


def recall_threads(case: Case) -> int | None:
    """Return how many threads a Loader was found to read best with, None where that was not measured."""
    found = _read().get(case.key("threads"), {}).get("num_threads")
    return found if _is_count(found, 1, _MOST_THREADS) else None


def recall_workers(case: Case) -> Workers | None:
    """Return the DataLoader's settings that were found best, None where that was not measured."""
    entry = _read().get(case.key("workers"), {})
    workers, pin = entry.get("num_workers"), entry.get("pin_memory")
    # More than there are cores were never measured: a damaged file must not start hundreds of processes.
    if not _is_count(workers, 0, count_cores()) or not (pin is None or isinstance(pin, bool)):
        return None
    return Workers(workers, pin)


def remember_threads(case: Case, num_threads: int, samples_per_s: float | None = None) -> bool:
    """Keep what was measured; return whether it could be written."""
    return _remember(case, "threads", {"num_threads": num_threads}, samples_per_s)


def remember_workers(case: Case, workers: Workers, samples_per_s: float | None = None) -> bool:
    """Keep what was measured; return whether it could be written."""
    values = {"num_workers": workers.num_workers, "pin_memory": workers.pin_memory}
    return _remember(case, "workers", values, samples_per_s)


def forget(content_digest: str) -> int:
    """Forget everything that was measured of a dataset; return how many entries that were."""
    forgotten = 0

    def change(entries: dict[str, Entry]) -> None:
        nonlocal forgotten
        kept = {key: entry for key, entry in entries.items() if content_digest not in _texts(entry.get("datasets"))}
        forgotten = len(entries) - len(kept)
        entries.clear()
        entries.update(kept)

    return forgotten if _change(change) else 0


def settings_file() -> Path | None:
    """Return where measurements are remembered; delete it to measure again. None where the user has no home."""
    for base in (os.environ.get("XDG_CACHE_HOME", ""), os.path.join(os.path.expanduser("~"), ".cache")):
        if os.path.isabs(base):
            return Path(base) / "lmdbloader" / "settings.json"
    return None


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
    """Return the entries of the file: none where there is no such file, or it is not one of ours."""
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
    """Change the entries; return whether the file was written. A home that cannot be means measuring again only."""
    path = settings_file()
    if path is None:
        return False
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path.parent):
            entries = _read()
            change(entries)
            kept = dict(list(entries.items())[-_MOST_ENTRIES:])
            _replace(path, json.dumps({"version": _VERSION, "entries": kept}, indent=1))
    except OSError:
        return False
    return True


def _replace(path: Path, text: str) -> None:
    """Write a file whole or not at all: whoever reads it meanwhile gets the old one."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        try:
            file.write(text)
            file.close()
            os.replace(file.name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(file.name)
            raise


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other processes from changing the file between reading and writing it, so that no entry of theirs is lost.

    After some seconds, or where the file system has no locks, it goes on without: an entry that is lost is measured
    again.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        until = time.monotonic() + _LOCK_SECONDS
        while time.monotonic() < until:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.005)
            except OSError:
                break
        yield
    finally:
        os.close(descriptor)
