"""The view that a Loader reads: a path is opened, torch's Subset and ConcatDataset become views."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch.utils.data import ConcatDataset, Subset

from lmdbloader.base.text import first_of
from lmdbloader.batch.clips import Clips
from lmdbloader.batch.dataset import LMDBDataset
from lmdbloader.batch.many import overridden
from lmdbloader.errors import OptionError
from lmdbloader.format.layout import Field
from lmdbloader.loader.image_files import is_image_folder, of_image_folder
from lmdbloader.store import Reader
from lmdbloader.store.joined_reader import JoinedReader
from lmdbloader.store.rows import join, shifted

# Attributes in which views may differ and still be read together.
_OWN = frozenset({"reader", "fields", "_rows", "_draws", "_own_last_set", "_batcher", "_targets", "_source"})


def view_of(dataset: Any, call: str = "Loader") -> LMDBDataset:
    """Return the view with the samples of a Loader's argument.

    Args:
        dataset: An LMDBDataset, the path of one, a Subset of those, or a ConcatDataset of them.
        call: The function, for messages.

    Raises:
        OptionError: A Loader cannot read it; the message has the line to write.
    """
    if isinstance(dataset, str | bytes | os.PathLike):
        return LMDBDataset(os.fsdecode(dataset))
    # Their subclasses may make other samples.
    if type(dataset) is Subset:
        inner = view_of(dataset.dataset, call)
        view = inner.select(dataset.indices)
        view._source = _Source((inner,), "", dataset)
        return view
    if type(dataset) is ConcatDataset:
        return union_of([view_of(part, call) for part in dataset.datasets], f"{call}(ConcatDataset)", dataset)
    if is_image_folder(dataset):
        inner = of_image_folder(dataset, call)
        view = inner.with_rows(inner.stored_rows)
        view._source = _Source((inner,), "", dataset)
        return view
    if isinstance(dataset, Clips):
        raise OptionError(f"{call}: Clips are read as a whole. Choose frames first: Clips(dataset.where(...), 5).")
    if not isinstance(dataset, LMDBDataset):
        raise OptionError(
            f"{call}({type(dataset).__name__}): expected an LMDBDataset, or the path of one. lmdbloader.write(dataset, "
            "out) makes one of a dataset in Python, and torch's DataLoader reads any other."
        )
    if name := overridden(dataset):
        raise OptionError(
            f"{type(dataset).__name__} overrides {name}, which the Loader does not call. Override `transform` instead, "
            "or use torch's DataLoader: lmdbloader.dataloader(dataset, batch_size)."
        )
    return dataset


class _Source:
    """What a view stands for: views that are read as one, and torch's Subset or ConcatDataset of them.

    Calling it returns the dataset whose own transform the view has.
    """

    def __init__(self, views: Sequence[LMDBDataset], call: str, given: Any = None) -> None:
        self._views, self._call, self._given = tuple(views), call, given
        self._samples = _samples_of(given)

    def __call__(self) -> LMDBDataset:
        return _agreed(self._views, self._call)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Source, (self._views, self._call)  # in another process nobody changes what was given

    def check(self) -> None:
        """Raise OptionError if what was given has other samples than the view."""
        for view in self._views:
            if view._source is not None:
                view._source.check()
        if _samples_of(self._given) != self._samples:
            kind = type(self._given).__name__
            raise OptionError(
                f"the samples of the {kind} have changed since the Loader was made. Make another Loader of it: "
                "Loader(dataset, batch_size, ...)."
            )


def _samples_of(given: Any) -> tuple[Any, ...]:
    """Return the datasets in torch's Subset or ConcatDataset, and a hash of the numbers of a Subset; () for None.

    Of torchvision's ImageFolder, its functions and the number of its samples.
    """
    if is_image_folder(given):
        return given.transform, given.target_transform, len(given.samples)
    if type(given) is not Subset:
        return () if given is None else tuple(given.datasets)
    is_range = isinstance(given.indices, range)  # which takes no memory
    return given.dataset, given.indices if is_range else hash(np.asarray(given.indices).tobytes())


def _agreed(views: Sequence[LMDBDataset], call: str) -> LMDBDataset:
    """Return the first of the views that are read as one.

    Raises:
        OptionError: Their transforms or attributes differ by now.
    """
    first = _followed_by(views[0])
    for view in views[1:]:
        if (other := _followed_by(view)) is not first and not _are_equal(_state(other), _state(first)):
            raise OptionError(f"{call}: the transforms of its parts differ. Set the same one on each of them.")
    return first


def _followed_by(view: LMDBDataset) -> LMDBDataset:
    """Return the dataset whose transform a view has."""
    return view if view._source is None or "transform" in vars(view) else view._source()


def union_of(views: Sequence[LMDBDataset], call: str, given: ConcatDataset[Any] | None = None) -> LMDBDataset:
    """Return one view with the samples of several, in order.

    Views of one dataset share its index; of several datasets an index of all is made in memory.

    Args:
        views: At least one.
        call: For messages.
        given: The ConcatDataset that the view stands for, if it stands for one.

    Raises:
        OptionError: They differ in more than their samples.
    """
    first = views[0]
    for view in views[1:]:
        _check_alike(first, view, call)
    readers: dict[tuple[str, str], Reader] = {}
    for view in views:
        readers.setdefault(_name_of(view), view.reader.with_io(first.reader.io))
    if len(readers) == 1:
        union = first.with_rows(join([view.stored_rows for view in views]))
        union._source = _Source(views, call, given)
        return union
    if not all(type(reader) is Reader for reader in readers.values()):
        raise OptionError(
            f"{call}: image files that were not converted are read as one folder only. Convert each, `lmdbloader "
            "convert FOLDER OUT`, and join the datasets."
        )
    joined = JoinedReader(list(readers.values()), list(first.fields))
    begins = dict(zip(readers, joined.firsts, strict=True))
    union = first.with_rows(range(0))
    vars(union).update(reader=joined, fields={name: joined.fields[name] for name in first.fields})
    union = union.with_rows(join([shifted(view.stored_rows, begins[_name_of(view)]) for view in views]))
    union._source = _Source(views, call, given)
    return union


def _name_of(view: LMDBDataset) -> tuple[str, str]:
    """Return what two views of one dataset have in common."""
    return view.path, view.reader.manifest.manifest_digest


def _check_alike(first: LMDBDataset, view: LMDBDataset, call: str) -> None:
    """Raise OptionError if two views differ in more than their samples."""
    is_same = _name_of(first) == _name_of(view)
    these = f"its parts, views of {first.path}," if is_same else f"{first.path} and {view.path}"
    if (
        type(view) is not type(first)
        or list(view.fields) != list(first.fields)
        or not _are_equal(_state(view), _state(first))
    ):
        names = [", ".join(part.fields) for part in (first, view)]
        found = f": ({names[0]}) and ({names[1]})" if names[0] != names[1] else ""
        raise OptionError(
            f"{call}: {these} have different fields or transforms{found}. Open them with the same, as "
            "LMDBDataset(path, fields=[...]), and give transforms to Loader(..., transforms=[...]); or use "
            "lmdbloader.dataloader(dataset, batch_size) with torch's ConcatDataset."
        )
    if is_same:
        return
    merge = f"`lmdbloader merge {shlex.quote(first.path)} {shlex.quote(view.path)} -o both.lmdb`"
    for name, one in first.fields.items():
        facts = _facts(first, one), _facts(view, view.fields[name])
        for what in facts[0]:
            a, b = (found[what] for found in facts)
            if a != b and None not in (a, b):
                raise OptionError(
                    f"{call}: field {name!r} has the {what} {a} in {first.path}, {b} in {view.path}. {merge} makes one "
                    "dataset of them, or says what to change."
                )
        check_classes(first, view, call, name, f"{merge} matches labels by the names of their classes.")


def check_classes(first: LMDBDataset, view: LMDBDataset, call: str, name: str, line: str) -> None:
    """Raise OptionError if a field of two datasets has different classes.

    Args:
        first, view: The datasets.
        call: For messages.
        name: Of the field.
        line: What to write instead, as a sentence.
    """
    classes = [d.reader.manifest.classes.get(name) for d in (first, view)]
    if classes[0] != classes[1]:
        known = [f"{d.path} has {first_of(c) if c else 'none'}" for d, c in zip((first, view), classes, strict=True)]
        raise OptionError(
            f"{call}: the classes of field {name!r} differ: {known[0]}; {known[1]}. Labels must mean the same in "
            f"all datasets. {line}"
        )


def check_evaluation(train: LMDBDataset, other: LMDBDataset, call: str) -> None:
    """Raise OptionError if a dataset to evaluate on names the classes of a field in another way than that for training.

    Args:
        train, other: The datasets.
        call: For messages.
    """
    for name in train.reader.manifest.classes.keys() & other.reader.manifest.classes.keys():
        line = "Convert both in one call, `lmdbloader convert SRC OUT --split`, or with the same classes=[...]."
        check_classes(train, other, call, name, line)


def _facts(view: LMDBDataset, f: Field) -> dict[str, Any]:
    """Return in what two fields have to agree; None agrees with anything."""
    return {
        "kind": f.kind, "ignore_index": str(f.ignore_index), "image": f.image or "(none)",
        "pixels": view.reader.look(f.name) if f.has_pixels and len(view) else None, "tile size": f.tile_size or 0,
        "place": f.holds_text and ("data.mdb" if f.is_payload else "the index"),
    }  # fmt: skip


def _state(view: LMDBDataset) -> dict[str, Any]:
    own = {name: value for name, value in vars(view).items() if name not in _OWN}
    return {**own, "seed": None if view._draws is None else view._draws.seed}


def _are_equal(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    try:
        return one.keys() == other.keys() and all(one[name] is other[name] or one[name] == other[name] for name in one)
    except (ValueError, RuntimeError):  # arrays and tensors of a subclass
        return False
