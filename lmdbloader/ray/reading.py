"""`read_lmdb`: a dataset as a `ray.data.Dataset`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from lmdbloader.base.arguments import field_names, flag, optional, whole
from lmdbloader.base.option_names import option, shown
from lmdbloader.batch.dataset import LMDBDataset
from lmdbloader.errors import OptionError
from lmdbloader.ray.cluster import need_ray
from lmdbloader.transforms import ToDtype

if TYPE_CHECKING:
    import ray.data


def read_lmdb(
    dataset: str | os.PathLike[str] | LMDBDataset,
    fields: Sequence[str] | None = None,
    *,
    include_sources: bool = False,
    override_num_blocks: int | None = None,
    concurrency: int | None = None,
    ray_remote_args: Mapping[str, Any] | None = None,
) -> ray.data.Dataset:
    """Return a dataset as a `ray.data.Dataset`; each of its read tasks reads a contiguous range of samples.

    A row is a dict of the fields. Images are arrays as `ray.data.read_images` gives them: (H, W, C) uint8 or uint16,
    and (H, W) if all images of the field are gray; sizes may differ. Masks are arrays (H, W). Other arrays, boxes,
    points and labels of boxes have the shapes in which they were written. The rest is int, float, str, bytes, and
    values of JSON. Every checksum is verified. Columns that `select_columns` leaves out are not read.

    Every node of the cluster must have lmdbloader installed, and see the dataset under the same path.

    Args:
        dataset: The path or URL of a dataset, or an LMDBDataset, which may be a view of some samples and may have
            compiled transforms. Images that these scale are float32 or float16.
        fields: The fields to read, in this order; by default all that the dataset has.
        include_sources: Add a column `source`: the relative path of the file that each sample was made from.
        override_num_blocks: The number of read tasks; by default Ray decides.
        concurrency: The most read tasks that run at the same time; by default Ray decides.
        ray_remote_args: Options of `ray.remote` for the read tasks, such as `num_cpus` and `memory`.

    Raises:
        OptionError: Ray is not installed; or the dataset has no such field, no sources, a transform in Python, a form
            of its own (`as_`), or bfloat16 images.
        NotFoundError: There is nothing at the path.
        FormatError: It is not a finished dataset of this format version.
        CorruptError: A file is damaged. If a sample is damaged, the task that reads it raises this.
    """
    options = {
        "override_num_blocks": optional(_count, "override_num_blocks", override_num_blocks),
        "concurrency": optional(_count, "concurrency", concurrency),
        **(ray_remote_args or {}),
    }
    opened, names = _opened(dataset, fields)
    include_sources = flag("include_sources", include_sources)
    if include_sources and not opened.reader.manifest.with_source:
        raise OptionError(
            f"{option('include_sources', True)}: {opened.path} has no sources, because it was written from Python "
            "without them. Leave it out."
        )
    ray = need_ray("read_lmdb", data=True)
    from lmdbloader.ray.datasource import LmdbDatasource

    source = LmdbDatasource(opened, ("source", *names) if include_sources else names)
    return ray.data.read_datasource(source, **{name: value for name, value in options.items() if value is not None})


def _count(name: str, value: Any) -> int:
    return whole(name, value, 1)


def _opened(dataset: Any, fields: Sequence[str] | None) -> tuple[LMDBDataset, tuple[str, ...]]:
    """Return the dataset to read, and the names of the fields.

    Raises:
        OptionError: Its samples are not rows of arrays, or it has no such field.
    """
    if not isinstance(dataset, LMDBDataset):
        opened = LMDBDataset(dataset, fields)
        return opened, tuple(opened.fields)
    if dataset.has_own_transform:
        raise OptionError(
            f"read_lmdb({shown(dataset)}): its samples pass through a function in Python. Write "
            "read_lmdb(path).map(function), where rows are dicts."
        )
    if dataset._form not in (None, "dict"):
        raise OptionError(
            f"read_lmdb({shown(dataset)}): rows are dicts of the fields. Leave as_ out, and for other names write "
            'read_lmdb(path).rename_columns({"image": "pixel_values"}).'
        )
    if any(isinstance(made, ToDtype) and made.dtype is torch.bfloat16 for made in dataset.all_transforms):
        raise OptionError(
            f"read_lmdb({shown(dataset)}): its images are bfloat16, which NumPy and Arrow do not have. Convert them to "
            "float32 or float16."
        )
    names = tuple(dataset.fields) if fields is None else field_names(fields, [(dataset.path, dataset.reader.fields)])
    if missing := [name for name in names if name not in dataset.fields]:
        raise OptionError(f"fields: the dataset was opened without {missing[0]!r}; it has {', '.join(dataset.fields)}")
    return dataset, names
