"""Image files that a Loader reads as they are: those in a folder, or of torchvision's ImageFolder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from lmdbloader.base.arguments import is_url
from lmdbloader.batch.dataset import LMDBDataset
from lmdbloader.errors import OptionError
from lmdbloader.format.layout import DATA_FILE, INDEX_FILE, MANIFEST_FILE, PARTIAL_SUFFIX, REMOTE_FILE

_OF_DATASETS = (MANIFEST_FILE, INDEX_FILE, DATA_FILE, REMOTE_FILE)


def open_path(path: str) -> LMDBDataset:
    """Return the dataset at a path or URL; of a folder of images, one that reads its files as they are.

    Raises:
        LmdbloaderError: There is neither, or the folder seems to hold something else.
    """
    place = Path(path)
    is_plain = not is_url(path) and place.is_dir() and not place.name.endswith(PARTIAL_SUFFIX)
    if is_plain and not any(os.path.lexists(place / name) for name in _OF_DATASETS):
        from lmdbloader.conversion.file_index import index_folder
        from lmdbloader.conversion.file_reader import FileReader
        from lmdbloader.conversion.sources.folders import holds_images

        if holds_images(place):
            return LMDBDataset.of_reader(FileReader(index_folder(place)))
    return LMDBDataset(path)


def is_image_folder(dataset: Any) -> bool:
    """Return whether a dataset is torchvision's ImageFolder, or of a class derived from it."""
    return _base_of(dataset) is not None


def _base_of(dataset: Any) -> Any:
    mro: Any = type(dataset).__mro__
    return next((c for c in mro if c.__name__ == "ImageFolder" and c.__module__.startswith("torchvision.")), None)


def of_image_folder(dataset: Any, call: str) -> LMDBDataset:
    """Return a dataset of the same files with the same labels, in the same order.

    Raises:
        OptionError: Its own functions would change the samples.
        ImageError: None of its images can be used.
    """
    base, name = _base_of(dataset), type(dataset).__name__
    own = f"Loader({name}({str(dataset.root)!r}), batch_size, transforms=[...])"
    for option in ("transform", "target_transform"):
        if (value := getattr(dataset, option, None)) is not None:
            kinds = [type(part).__name__ for part in getattr(value, "transforms", [value])]
            how = f"{own}, with those of lmdbloader.transforms, which have the same names and arguments"
            if option == "target_transform":
                how = f"{own}, and change labels in a function of whole batches among the transforms"
            raise OptionError(f"{call}({name}): its {option} ({', '.join(kinds)}) is not called. Write {how}.")
    is_own = any(getattr(type(dataset), each) is not getattr(base, each) for each in ("__getitem__", "__len__"))
    if is_own or not getattr(dataset.loader, "__module__", "").startswith("torchvision.datasets."):
        raise OptionError(
            f"{call}({name}): its own __getitem__, __len__ or loader of files is not called. Leave it out, or convert "
            "what it makes: lmdbloader.write(dataset, OUT)."
        )
    from lmdbloader.conversion.file_index import index_samples
    from lmdbloader.conversion.file_reader import FileReader

    return LMDBDataset.of_reader(FileReader(index_samples(str(dataset.root), dataset.samples, dataset.classes)))
