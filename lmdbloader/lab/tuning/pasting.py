"""One line of Python that makes a loader, which runs as it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lmdbloader.batch.dataset import LMDBDataset
from lmdbloader.lab.tuning.race import Setting
from lmdbloader.transforms import Transform


def line_of(
    dataset: Any, batch_size: int, transforms: Sequence[Any], setting: Setting, *, has_pinned: bool = False
) -> str:
    """Return a line that makes a loader with a setting.

    It names a dataset or transforms by variables, `dataset` and `transforms`, where text cannot make them: a view, a
    subclass, functions.

    Args:
        dataset: What it reads.
        batch_size: Samples in a batch.
        transforms: Of the Loader.
        setting: Threads or workers.
        has_pinned: Whether it says if the DataLoader pins memory, too.
    """
    imports = ["lmdbloader"]
    source = f"lmdbloader.LMDBDataset({dataset.path!r})" if _is_plain(dataset) else "dataset"
    described = ""
    if transforms:
        if all(isinstance(t, Transform) for t in transforms):
            described = f"[{', '.join(f'lmdbloader.transforms.{t!r}' for t in transforms)}]"
        else:
            described = "transforms"
    if "torch." in described:
        imports.append("torch")
    if setting.kind == "threads":
        more = f", transforms={described}" if described else ""
        made = f"lmdbloader.Loader({source}, batch_size={batch_size}{more}, num_threads={setting.count})"
    else:
        read = f"{source}.transformed({described})" if described else source
        more = f", pin_memory={setting.pinned}" if has_pinned else ""
        made = (
            f"lmdbloader.dataloader({read}, batch_size={batch_size}, shuffle=True, num_workers={setting.count}{more})"
        )
    return f"import {', '.join(imports)}; loader = {made}"


def _is_plain(dataset: Any) -> bool:
    """Return whether a dataset is all that its path is."""
    return (
        type(dataset) is LMDBDataset
        and dataset._rows is None
        and not dataset.has_own_transform
        and not dataset.all_transforms
        and dataset.reader.io == "mmap"
        and list(dataset.fields) == list(dataset.reader.fields)
    )
