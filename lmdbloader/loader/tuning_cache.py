"""The measured settings: the best threads or workers for a dataset here, in one file of the user's cache folder."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from lmdbloader.base.cores import count_cores, count_own_cores
from lmdbloader.base.user_cache import cache_folder
from lmdbloader.batch.dataset import LMDBDataset
from lmdbloader.transforms import Geometry, Transform
from lmdbloader.transforms.base import leaves

# More than this, and the oldest is forgotten: every Loader reads the file.
_MOST_ENTRIES = 200
# With fewer batches, starting is a noticeable part of an epoch, which changes the best settings.
_MANY_BATCHES = 64


@dataclass(frozen=True, slots=True)
class Workers:
    """The best settings of torch's DataLoader.

    Attributes:
        num_workers: Worker processes.
        pin_memory: Whether batches go through pinned memory; None if it was measured without an accelerator.
    """

    num_workers: int
    pin_memory: bool | None = None


def case_of(
    dataset: Dataset[Any],
    batch_size: int | None,
    transforms: Sequence[Transform] = (),
    functions: Sequence[Callable[[Any], Any]] = (),
) -> str:
    """Return the conditions of a measurement of a dataset, which is valid for the same conditions only.

    These are the machine, the cores that this process may use, the content of the dataset, its fields and Python
    functions, the batch size, and the final size of images.

    Args:
        dataset: An LMDBDataset, a view of one, or a dataset over them.
        batch_size: None for samples one by one.
        transforms: Of a Loader, in addition to the dataset's own.
        functions: Called with whole batches: a Loader's, or the user's collate function.
    """
    length = len(dataset)  # type: ignore[arg-type]
    batches = min(-(-length // (batch_size or 1)), _MANY_BATCHES)
    machine = f"{platform.node()}, {count_cores()} cores, torch {torch.__version__}"
    parts = [machine, f"{batches} batches of {batch_size}", *_describe(dataset, transforms), *map(_name, functions)]
    return "; ".join(parts)


def _describe(dataset: Any, transforms: Sequence[Transform]) -> Iterator[str]:
    """Yield texts that identify a dataset and those that it is made of."""
    yield f"{type(dataset).__module__}.{type(dataset).__qualname__}"
    if isinstance(dataset, LMDBDataset):
        own = _name(dataset.__dict__.get("transform", dataset._transform))
        size = _size([*dataset.all_transforms, *transforms])
        yield f"{dataset.reader.manifest.content_digest}, {', '.join(dataset.fields)}, {own}, {size}"
    elif isinstance(getattr(dataset, "datasets", None), list | tuple):  # of torch's ConcatDataset, or of `mix`
        for part in dataset.datasets:
            yield from _describe(part, transforms)
    elif hasattr(dataset, "dataset"):
        yield from _describe(dataset.dataset, transforms)
    else:
        # Of torchvision's: folders with equally many samples may differ, and a transform may be most of the work.
        yield f"{len(dataset)} samples, {getattr(dataset, 'root', '')}, {_name(getattr(dataset, 'transform', None))}"


def _name(function: Any) -> str:
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def _size(transforms: Sequence[Transform]) -> str:
    """Return the size of images after transforms."""
    sized = [t for t in leaves(transforms) if isinstance(t, Geometry) and t.size_numbers != (0, 0)]
    return f"{sized[-1].size_numbers} {sized[-1].fields or ''}" if sized else "as stored"


def recall_threads(case: str) -> int:
    """Return the best number of threads of a Loader, at most this process's share of the cores; else all of these."""
    found = _read().get(f"threads; {case}")
    return min(found, count_own_cores()) if _is_count(found) and found else count_own_cores()


def recall_workers(case: str) -> Workers | None:
    """Return the best settings of a DataLoader, with at most a worker for each core of this process's share.

    None if they were not measured.
    """
    found = _read().get(f"workers; {case}")
    if not isinstance(found, list) or len(found) != 2 or not _is_count(found[0]) or found[1] not in (None, True, False):
        return None
    return Workers(min(found[0], count_own_cores()), found[1])


def remember_threads(case: str, num_threads: int) -> None:
    """Remember a number of threads."""
    _remember(f"threads; {case}", num_threads)


def remember_workers(case: str, workers: Workers) -> None:
    """Remember settings of a DataLoader."""
    _remember(f"workers; {case}", [workers.num_workers, workers.pin_memory])


def _remember(key: str, value: Any) -> None:
    """Change the file. What cannot be written, or what another process overwrites, is measured again."""
    folder = cache_folder()
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        others = {other: found for other, found in _read().items() if other != key}
        kept = dict(list({**others, key: value}.items())[-_MOST_ENTRIES:])
        import tempfile  # which most processes do not need

        # Two processes that write at once have a file each.
        with tempfile.TemporaryDirectory(dir=folder) as own:
            written = Path(own, "settings.json")
            written.write_text(json.dumps(kept, indent=1), "utf-8")
            os.replace(written, folder / "settings.json")
    except OSError:
        return


def _is_count(value: Any) -> bool:
    # More than the cores are never measured: a damaged file must not start hundreds of processes.
    return type(value) is int and 0 <= value <= count_cores()


def _read() -> dict[str, Any]:
    """Return the entries of the file; none if it does not exist or is damaged."""
    folder = cache_folder()
    try:
        found = None if folder is None else json.loads((folder / "settings.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
