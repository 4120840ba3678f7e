"""The view that a Loader reads: a path is opened, torch's Subset and ConcatDataset become views."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from torch.utils.data import ConcatDataset, DataLoader, Subset

from lmdbloader.batch.dataset import LMDBDataset
from lmdbloader.errors import OptionError
from lmdbloader.store.rows import join

# Attributes in which views may differ and still be joined.
_OWN = frozenset({"reader", "_rows", "_draws", "_own_last_set", "_assembler", "_stopwatch", "targets"})


def view_of(dataset: Any) -> LMDBDataset:
    """Return the view with the samples of a Loader's argument.

    Args:
        dataset: An LMDBDataset, the path of one, a Subset of those, or a ConcatDataset of views of one dataset.

    Raises:
        OptionError: A Loader cannot read it; the message has the line to write.
    """
    if isinstance(dataset, str | bytes | os.PathLike):
        return LMDBDataset(os.fsdecode(dataset))
    # Their subclasses may make other samples.
    if type(dataset) is Subset:
        return view_of(dataset.dataset).select(dataset.indices)
    if type(dataset) is ConcatDataset:
        return _joined([view_of(part) for part in dataset.datasets])
    if not isinstance(dataset, LMDBDataset):
        raise OptionError(f"Loader({type(dataset).__name__}): {_line(dataset)}")
    for name in ("__getitem__", "__getitems__"):
        if getattr(type(dataset), name) is not getattr(LMDBDataset, name):
            raise OptionError(
                f"{type(dataset).__name__} overrides {name}, which the Loader does not call. Override `transform` "
                "instead, or use torch's DataLoader: lmdbloader.dataloader(dataset, batch_size)."
            )
    return dataset


def _joined(views: list[LMDBDataset]) -> LMDBDataset:
    """Return one view with the samples of several, in order."""
    first = views[0]
    for view in views[1:]:
        if view.reader.manifest.manifest_digest != first.reader.manifest.manifest_digest or view.path != first.path:
            raise OptionError(
                f"Loader(ConcatDataset): {first.path} and {view.path} are different datasets, and a Loader reads one "
                "dataset. Read them with lmdbloader.dataloader(dataset, batch_size), or join them in "
                'one dataset: lmdbloader.merge(dataset, "both.lmdb").'
            )
        if type(view) is not type(first) or not _are_equal(_state(view), _state(first)):
            raise OptionError(
                f"Loader(ConcatDataset): its parts, views of {first.path}, have different fields or transforms. Give "
                "them to Loader(..., transforms=[...]) instead, or use lmdbloader.dataloader(dataset, batch_size)."
            )
    return first.with_rows(join([view.stored_rows for view in views]))


def _state(view: LMDBDataset) -> dict[str, Any]:
    own = {name: value for name, value in vars(view).items() if name not in _OWN}
    return {**own, "seed": None if view._draws is None else view._draws.seed}


def _are_equal(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    try:
        return one.keys() == other.keys() and all(one[name] is other[name] or one[name] == other[name] for name in one)
    except (ValueError, RuntimeError):  # arrays and tensors of a subclass
        return False


def _line(dataset: Any) -> str:
    """Return the advice for a dataset of another library."""
    origin = type(dataset).__module__.partition(".")[0]
    root = getattr(dataset, "root", None)
    has_items = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    if isinstance(dataset, list | tuple) and dataset and all(isinstance(part, LMDBDataset) for part in dataset):
        return "expected one dataset. Join them: Loader(torch.utils.data.ConcatDataset(datasets), batch_size)."
    if isinstance(dataset, DataLoader):
        return "is a DataLoader. Give its dataset: Loader(loader.dataset, batch_size)."
    if isinstance(getattr(dataset, "dataset", None), LMDBDataset | ConcatDataset | Subset):
        return (
            "expected an LMDBDataset, and this dataset wraps one. Read it with "
            "lmdbloader.dataloader(dataset, batch_size)."
        )
    if origin == "torchvision" and hasattr(dataset, "class_to_idx") and hasattr(dataset, "samples") and root:
        make = f'lmdbloader.convert({os.fspath(root)!r}, "train.lmdb", layout="classes")'
    elif origin == "webdataset":
        make = "`lmdbloader convert SHARDS train.lmdb`"
    elif isinstance(dataset, Mapping):
        name = next(iter(dataset), "train")
        make = f'lmdbloader.write(dataset[{name!r}], "{name}.lmdb")'
    elif origin == "datasets" or isinstance(dataset, list):
        make = 'lmdbloader.write(dataset, "train.lmdb")'
    elif has_items or hasattr(dataset, "__iter__"):
        make = 'lmdbloader.write(dataset, "train.lmdb", fields=("image", "label"))'
    else:
        return "expected an LMDBDataset, or the path of one."
    return (
        f"expected an LMDBDataset. Make one once, with {make}, and write "
        'Loader("train.lmdb", batch_size); or use torch\'s DataLoader.'
    )
