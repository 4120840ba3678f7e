"""`write_lmdb`: writes the rows of a `ray.data.Dataset` to one dataset."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from lmdbloader.base.arguments import flag, optional, whole
from lmdbloader.base.option_names import option, shown
from lmdbloader.conversion.destination import new_folder
from lmdbloader.conversion.storage import WriteMode
from lmdbloader.errors import DestinationError, OptionError
from lmdbloader.fields import FieldType
from lmdbloader.ray.cluster import need_ray
from lmdbloader.store import Work, Written, check_destination

if TYPE_CHECKING:
    import ray.data


def write_lmdb(
    data: ray.data.Dataset,
    path: str | os.PathLike[str],
    *,
    fields: Mapping[str, FieldType | None] | Sequence[str] | None = None,
    classes: Mapping[str, Sequence[str]] | None = None,
    codec: str | Mapping[str, str] | None = None,
    write_mode: WriteMode | Mapping[str, WriteMode] | None = None,
    max_resolution: int | None = None,
    jpeg_quality: int | None = None,
    jpeg_code: Literal["fast", "file"] | None = None,
    smart_threshold: int | None = None,
    overwrite: bool = False,
    min_rows_per_part: int | None = None,
    concurrency: int | None = None,
    ray_remote_args: Mapping[str, Any] | None = None,
) -> Written:
    """Write the rows of a `ray.data.Dataset` to one dataset, in the order of its blocks.

    Each write task writes one part. At the end this process joins them, which writes only an index
    and a manifest. The samples, their order and the content digest are those that `lmdbloader.write` makes of the same
    rows. A task that fails or is retried leaves nothing behind, and if the job fails, there is nothing at `path`.

    Every node of the cluster must have lmdbloader installed, and see the folder of `path` under the same path.

    Args:
        data: A dataset whose rows are samples as `lmdbloader.write` takes them: arrays (H, W, 3) and (H, W) of uint8 or
            uint16 are images, other arrays keep their shape, and masks, boxes, points and their labels are declared in
            `fields`.
        path: The new dataset.
        fields: The columns to write, in this order (default: all); or a mapping from columns to types, such as Mask(),
            to set types that should not be guessed.
        classes: The names of the values from 0 on, by field of ints or Labels(). Rows of `read_lmdb` do not have those
            of their dataset; there is a warning if these are given up.
        codec: As in `lmdbloader.write`, like the next five. By default chosen once for all parts, from the first rows
            of the task that starts first.
        write_mode: As in `lmdbloader.write`; not "proportion".
        max_resolution: As in `lmdbloader.write`.
        jpeg_quality: As in `lmdbloader.write`.
        jpeg_code: As in `lmdbloader.write`.
        smart_threshold: As in `lmdbloader.write`.
        overwrite: Replace an existing dataset, once the new one is complete.
        min_rows_per_part: The fewest rows of a part; blocks are put together until they have as many. By default a part
            is one block, about 128 MiB of rows.
        concurrency: The most write tasks that run at the same time; by default Ray decides.
        ray_remote_args: Options of `ray.remote` for the write tasks.

    Returns:
        A summary of the dataset.

    Raises:
        OptionError: Ray is not installed; or there are no rows, a row does not fit, or an option is out of range.
        DestinationError: `path` is taken, has no parent folder, or has the name of an unfinished conversion.
        FormatError: The parts do not fit together.
        DiskFullError: No room left.

    >>> write_lmdb(ray.data.read_images("photos"), "photos.lmdb")  # doctest: +SKIP
    """
    out = new_folder(path).absolute()
    overwrite = flag("overwrite", overwrite)
    least = optional(_count, "min_rows_per_part", min_rows_per_part)
    at_once = optional(_count, "concurrency", concurrency)
    modes = write_mode.values() if isinstance(write_mode, Mapping) else [write_mode]
    if "proportion" in modes:
        raise OptionError(
            f"{option('write_mode', write_mode)}: the images that are stored as JPEG would depend on how Ray divides "
            'the rows into parts. Write write_mode="smart" or "jpg".'
        )
    if isinstance(fields, str):
        raise OptionError(f"{option('fields', fields)}: expected a list of names, such as [{fields!r}]")
    ray = need_ray("write_lmdb", data=True)
    if not isinstance(data, ray.data.Dataset):
        raise OptionError(
            f"write_lmdb({shown(data)}): expected a ray.data.Dataset. For other samples write "
            "lmdbloader.write(samples, path)."
        )
    check_destination(out, overwrite=overwrite)
    if classes is None:
        _warn_of_classes(data, fields)
    from lmdbloader.ray.datasink import LmdbDatasink

    storage = {
        "write_mode": write_mode,
        "max_resolution": max_resolution,
        "jpeg_quality": jpeg_quality,
        "jpeg_code": jpeg_code,
        "smart_threshold": smart_threshold,
    }
    work = Work(out)
    if work.has_parts():
        raise DestinationError(f"{work.folder}: another dataset is unfinished there. Finish it, or remove the folder.")
    work.discard()
    work.begin({"made_by": {"layout": "ray"}})
    try:
        with _in_order(data):
            sink = LmdbDatasink(
                work, overwrite=overwrite, fields=fields, classes=classes, codec=codec, storage=storage, least=least
            )
            data.write_datasink(sink, ray_remote_args=dict(ray_remote_args or {}), concurrency=at_once)
    finally:
        work.leave(discard=True)
    return sink.written


def _warn_of_classes(data: Any, fields: Any) -> None:
    """Warn of names of classes that the datasets behind the rows have: rows hold numbers only.

    Args:
        data: The rows. After `materialize` Ray does not know where they are from.
        fields: The columns to write, as given.
    """
    for source in _sources_of(getattr(getattr(data, "_logical_plan", None), "dag", None)):
        found = [name for name in source.classes if fields is None or name in fields]
        if found:
            warnings.warn(
                f"write_lmdb: rows hold labels as numbers, so the new dataset does not get the names of classes that "
                f"{source.place} has for {', '.join(found)}. If the numbers mean the same, write "
                f"classes=LMDBDataset({source.place!r}).reader.manifest.classes; for no names, classes={{}}.",
                stacklevel=3,
            )
            return


def _sources_of(operator: Any) -> Iterator[Any]:
    """Yield the datasets of lmdbloader that a plan of ray.data reads; another release of Ray may not show them."""
    source = getattr(operator, "_datasource", None) or getattr(operator, "datasource", None)
    if hasattr(source, "classes"):
        yield source
    for inner in getattr(operator, "input_dependencies", ()):
        yield from _sources_of(inner)


def _count(name: str, value: Any) -> int:
    return whole(name, value, 1)


@contextmanager
def _in_order(data: Any) -> Iterator[None]:
    """Make Ray keep the order of the blocks, which it does on request only."""
    options = data.context.execution_options
    before, options.preserve_order = options.preserve_order, True
    try:
        yield
    finally:
        options.preserve_order = before
