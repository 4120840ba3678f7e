"""Datasets of Hugging Face and torchvision as samples of `write`, with their class names."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from lmdbloader.conversion.image_file import is_encoded, names_image
from lmdbloader.errors import OptionError
from lmdbloader.fields import FieldType, Image, is_pil, is_pixels, is_tensor, is_whole_number

_LABEL = "label"
# Lists of transforms hold lists; more of them than this are not looked into.
_DEEPEST = 8
_NAMES = ("image", _LABEL)


@dataclass(frozen=True, slots=True)
class Adapted:
    """Samples as `write` takes them.

    Attributes:
        samples: The samples.
        names: Names of their values, if they are tuples; None if the caller has to give them.
        classes: Names of classes by field.
    """

    samples: Any
    names: tuple[str, ...] | None = None
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def adapt(
    samples: Any,
    fields: Mapping[str, FieldType | None] | Sequence[str] | None,
    classes: Mapping[str, Sequence[str]] | None,
    *,
    prepare: Callable[[Any], Any] | None = None,
) -> Adapted:
    """Return the samples of a dataset of any library. The library is not imported.

    Args:
        samples: As `write` got them.
        fields: As `write` got them.
        classes: As `write` got them; they replace those of the dataset.
        prepare: As `write` got it; it takes the samples as the dataset has them.

    Raises:
        OptionError: They are not samples, but something that is often given instead; the message has the line for it.
    """
    _refuse_others(samples)
    if drawing := _drawing(prepare, 0):
        raise OptionError(
            f"prepare draws at random ({', '.join(dict.fromkeys(drawing))}), and one draw would be stored for all "
            f"epochs. Load the dataset with Loader(transforms=[{drawing[0]}(...), ...]) instead."
        )
    if _is_of_hugging_face(samples):
        found = _of_hugging_face(samples, fields if isinstance(fields, Mapping) else {})
        found = replace(found, samples=samples) if prepare is not None else found
        return found if classes is None else replace(found, classes={})
    _refuse_chance(samples)
    names = tuple(fields) if fields is not None else None
    class_names = None if classes is not None else _class_names(samples)
    if class_names is None or (names is not None and len(names) != len(_NAMES)):
        return Adapted(samples, names)
    return Adapted(samples, names, {_LABEL if names is None else names[1]: class_names})


def names_of(sample: Any) -> tuple[str, ...] | None:
    """Return the names of the values of a plain tuple (image, number), None for other samples.

    Raises:
        OptionError: The image has become an array of floats.

    >>> names_of((np.zeros((4, 4, 3), np.uint8), 7)), names_of((np.zeros((4, 4, 3), np.uint8), "a cat"))
    (('image', 'label'), None)
    """
    if not isinstance(sample, tuple | list) or hasattr(sample, "_fields") or len(sample) != len(_NAMES):
        return None
    image, label = sample
    if not is_whole_number(label):
        return None
    if is_pil(image) or is_pixels(image) or is_encoded(image) or names_image(image):
        return _NAMES
    if is_tensor(image) and image.ndim == 3 and image.shape[0] in (1, 3) and image.is_floating_point():
        raise OptionError(
            f"sample 0: its image is a tensor {tuple(image.shape)} of {image.dtype}, made by the dataset's transform. "
            "Write the dataset with transform=None: images are stored with 8 bits, and Loader(transforms=[...]) "
            "makes floats of them. To store the floats, write "
            "fields={'image': lmdbloader.fields.Image(), 'label': lmdbloader.fields.Int()}."
        )
    return None


def _refuse_others(samples: Any) -> None:
    """Refuse what can be iterated, but not for samples: characters of a path, keys of columns, batches."""
    if isinstance(samples, str | os.PathLike | Mapping):
        raise OptionError(
            f"samples is a {type(samples).__name__}: expected an iterable, or an object with a length and integer "
            "indices, of dicts or tuples; lmdbloader.convert takes a folder of images"
        )
    if getattr(samples, "batch_size", None) is not None and hasattr(samples, "dataset"):
        raise OptionError(
            f"samples is a {type(samples).__name__}, which makes batches of {samples.batch_size}: expected samples. "
            "Write lmdbloader.write(loader.dataset, out), or use a DataLoader with batch_size=None."
        )


def _refuse_chance(dataset: Any) -> None:
    """Refuse a dataset of torchvision's kind whose transform draws: one draw would be stored for all epochs.

    Raises:
        OptionError: A transform of torchvision among them has a name of those that draw.
    """
    while hasattr(dataset, "dataset"):  # torch's Subset
        dataset = dataset.dataset
    several = getattr(dataset, "datasets", None)
    for part in several if isinstance(several, list | tuple) else ():  # torch's ConcatDataset
        _refuse_chance(part)
    found = [name for key in ("transform", "transforms") for name in _drawing(getattr(dataset, key, None), 0)]
    if found:
        raise OptionError(
            f"the dataset's transform draws at random ({', '.join(dict.fromkeys(found))}), and one draw would be "
            "stored for all epochs. Write the dataset with transform=None, and load it with "
            f"Loader(transforms=[{found[0]}(...), ...]). To "
            "store one draw of each sample on purpose, write (sample for sample in dataset)."
        )


def _drawing(transform: Any, depth: int) -> list[str]:
    """Return the names of the transforms of torchvision that draw, in one transform or what holds it."""
    name = type(transform).__name__
    if transform is None or depth > _DEEPEST or not hasattr(type(transform), "__mro__"):
        return []
    inner: Any = getattr(transform, "transforms", None)
    parts: list[Any] = [*inner] if isinstance(inner, list | tuple) or hasattr(inner, "named_modules") else []
    if name == "StandardTransform":  # what torchvision makes of transform=
        parts = [transform.transform]
    of_torchvision = any(cls.__module__.startswith("torchvision.transforms") for cls in type(transform).__mro__)
    if of_torchvision and (name.startswith(("Random", "Rand", "Auto", "Trivial", "AugMix")) or name == "ColorJitter"):
        return [name]
    return [found for part in parts for found in _drawing(part, depth + 1)]


def _is_of_hugging_face(samples: Any) -> bool:
    return hasattr(samples, "features") and hasattr(samples, "column_names") and hasattr(samples, "cast_column")


def _of_hugging_face(samples: Any, fields: Mapping[str, FieldType | None]) -> Adapted:
    """Return a Dataset or IterableDataset with encoded images and with Python numbers, in any format."""
    features: Mapping[str, Any] = samples.features or {}
    kinds = {name: type(feature).__name__ for name, feature in features.items()}
    # A list of ClassLabels has the labels of boxes.
    labels = {name: getattr(feature, "feature", None) or feature for name, feature in features.items()}
    classes = {name: tuple(label.names) for name, label in labels.items() if type(label).__name__ == "ClassLabel"}
    of_format = getattr(samples, "format", None) or {}
    if of_format.get("type") == "custom":  # with_transform: samples of the caller's
        return Adapted(samples, None, classes)
    if of_format.get("type") not in (None, "numpy", "torch"):  # tables, or arrays of yet other libraries
        samples = samples.select_columns(of_format["columns"]).with_format(None)
    for name, kind in kinds.items():
        feature = features[name]
        if kind == "Image" and feature.decode and feature.mode is None and isinstance(fields.get(name), Image | None):
            samples = samples.cast_column(name, type(feature)(decode=False))
    changes: dict[str, Callable[[Any], Any]] = {}
    for name, kind in kinds.items():
        if kind in ("ClassLabel", "Value"):
            changes[name] = _plain
        elif re.fullmatch(r"Array[0-9]+D", kind):
            changes[name] = _to_array(features[name].dtype)
        elif kind != "Image":
            changes[name] = _nested
    has_indices = hasattr(samples, "__getitem__") and hasattr(samples, "__len__")
    return Adapted((_ChangedRows if has_indices else _Changed)(samples, changes), None, classes)


def _plain(value: Any) -> Any:
    """Return a number as a Python number, if the dataset's format has made it an array or a tensor."""
    return value.item() if getattr(value, "shape", None) == () else value


def _nested(value: Any) -> Any:
    """Return dicts and lists whose arrays and tensors, made by the dataset's format, are lists."""
    if isinstance(value, Mapping):
        return {key: _listed(inner) for key, inner in value.items()}
    return [_listed(inner) for inner in value] if isinstance(value, list) else value


def _listed(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else _nested(value)


def _to_array(dtype: str) -> Callable[[Any], Any]:
    return partial(_as_array, dtype)  # which pickle can take, unlike a lambda


def _as_array(dtype: str, value: Any) -> Any:
    return np.asarray(value, dtype) if isinstance(value, list) else value


class _Changed:
    """Samples (dicts) in which some values are changed."""

    def __init__(self, samples: Any, changes: Mapping[str, Callable[[Any], Any]]) -> None:
        self._samples, self._changes = samples, changes

    def __len__(self) -> int:
        return len(self._samples)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(self._change, self._samples)

    def _change(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        changed = {name: self._changes[name](sample[name]) for name in self._changes.keys() & sample.keys()}
        return {**sample, **changed}


class _ChangedRows(_Changed):
    """Such samples with integer indices."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self._change(self._samples[index])


def _class_names(dataset: Any) -> tuple[str, ...] | None:
    """Return the names of a torchvision dataset's classes by label; None if it has none, or other labels."""
    while hasattr(dataset, "dataset"):  # torch's Subset and DataLoader
        dataset = dataset.dataset
    if isinstance(getattr(dataset, "datasets", None), list):  # torch's ConcatDataset
        of_each = set(map(_class_names, dataset.datasets))
        return of_each.pop() if len(of_each) == 1 else None
    if getattr(dataset, "target_transform", None) is not None:
        return None
    found = getattr(dataset, "classes", None)
    if not isinstance(found, list | tuple):
        numbers = getattr(dataset, "class_to_idx", None)
        if not isinstance(numbers, Mapping) or set(numbers.values()) != set(range(len(numbers))):
            return None
        found = sorted(numbers, key=numbers.__getitem__)
    # A class of torchvision's ImageNet has several names.
    names = tuple(", ".join(name) if isinstance(name, tuple) else name for name in found)
    if not names or not all(isinstance(name, str) for name in names):
        return None
    twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if twice is not None:
        others = " (its `wnids` differ)" if hasattr(dataset, "wnids") else ""
        raise OptionError(
            f"the dataset's `classes` has {twice!r} twice. Give different names, as classes={{'label': [...]}}{others}."
        )
    return names
