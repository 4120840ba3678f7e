"""What identifies the samples of an interrupted `write`, and whether its stored samples are still the same."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from lmdbloader.base.option_names import option
from lmdbloader.conversion.samples import SampleRecipe
from lmdbloader.errors import DestinationError, OptionError
from lmdbloader.format.digests import Digest
from lmdbloader.store.spool import is_number

# How many stored samples are read and encoded again before an interrupted run continues. Of a list all are, because
# that is fast and lists are edited by hand.
_COMPARED, _AT_ONCE = 32, 256
_LISTS = ("samples", "imgs", "targets", "labels", "indices")


def is_indexed(samples: Any) -> bool:
    """Return whether samples are read by their indices, in any order: a list, or a dataset with `len` and indices.

    An object with an `__iter__` of its own is iterated instead, unless it is a sequence or a Dataset of Hugging Face.

    >>> is_indexed([1, 2]), is_indexed(range(3)), is_indexed(iter([1])), is_indexed({1: 2})
    (True, True, False, False)
    """
    if isinstance(samples, str | bytes | bytearray | memoryview | Mapping):
        return False
    if not (hasattr(samples, "__getitem__") and hasattr(samples, "__len__")):
        return False
    if isinstance(samples, Sequence):
        return True
    if any(cls.__name__ == "IterableDataset" for cls in type(samples).__mro__):
        return False
    is_of_hugging_face = hasattr(samples, "features") and hasattr(samples, "column_names")
    return is_of_hugging_face or not hasattr(samples, "__iter__")


def identity_of(samples: Any, num_samples: int) -> dict[str, Any]:
    """Return what identifies samples with indices, as far as it can be known without reading them.

    It is their type and number and, of datasets like torchvision's, a digest of their lists of files and labels.
    """
    found: dict[str, Any] = {
        "the number of samples": num_samples,
        "the type of the dataset": type(samples).__qualname__,
    }
    lists, is_listed = Digest(), False
    for part in _parts(samples):
        given = getattr(part, "root", None)  # other datasets have other things of this name
        root = os.path.join(os.fsdecode(given), "") if isinstance(given, str | bytes | os.PathLike) and given else ""
        for name in _LISTS:
            values = getattr(part, name, None)
            if not isinstance(values, list | tuple) or not all(_is_plain(value) for value in values):
                continue
            is_listed = True
            lists.update(f"\0{name}\0{len(values)}\0".encode())
            for value in values:
                text = repr(value) if not root else repr(value).replace(root, "", 1)
                lists.update(text.encode("utf-8", "surrogatepass") + b"\0")
    return found | {"the digest of its lists of files and labels": str(lists) if is_listed else None}


def _parts(samples: Any) -> Iterator[Any]:
    """Yield a dataset and, as for torch's Subset and ConcatDataset, those that it is made of."""
    yield samples
    if isinstance(samples, list | tuple):
        return
    several = getattr(samples, "datasets", None)
    for part in (getattr(samples, "dataset", None), *(several if isinstance(several, list | tuple) else ())):
        if part is not None and part is not samples:
            yield from _parts(part)


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | int) or (
        isinstance(value, tuple) and len(value) < 4 and all(isinstance(inner, str | int) for inner in value)
    )


def check_stored(partial: Path, pieces: Sequence[pa.RecordBatch], recipe: SampleRecipe, samples: Any) -> None:
    """Read and encode some of the samples that an interrupted run has stored, and compare them with what it stored.

    Args:
        partial: The folder, for messages.
        pieces: The rows of the stored samples, in order.
        recipe: The settings.
        samples: With integer indices.

    Raises:
        DestinationError: A sample differs.
    """
    is_list = isinstance(samples, list | tuple) and recipe.prepare is None
    begin = 0
    for piece in pieces:
        end = begin + piece.num_rows
        if is_list:
            ranges = [range(first, min(first + _AT_ONCE, end)) for first in range(begin, end, _AT_ONCE)]
        else:
            some = np.unique(np.linspace(begin, end - 1, _COMPARED).astype(np.int64)).tolist() if end > begin else []
            ranges = [range(number, number + 1) for number in some]
        for numbers in ranges:
            stored = piece.slice(numbers.start - begin, len(numbers))
            if (found := _find_difference(stored, recipe, samples, numbers)) is not None:
                number, name = found
                raise DestinationError(
                    f"{partial}: an interrupted write of other samples is there: sample {number}: its {name} differs "
                    "from what was written. If the dataset or prepare draws at random, that is why: such samples "
                    "cannot be continued. Write the same samples again to continue it, or discard it with "
                    f"{option('restart', True)}."
                )
        begin = end


def _find_difference(
    stored: pa.RecordBatch, recipe: SampleRecipe, samples: Any, numbers: range
) -> tuple[int, str] | None:
    """Return the first of some samples that differs from its stored row, and its field; None if none differs."""
    group = recipe.group(numbers.start)
    for number in numbers:
        try:
            group.add(recipe.named(recipe.prepared(samples[number], number), number))
        except OptionError:
            return number, "kind of values"
    chunk, _ = group.encode()
    now = dict(chunk.columns)
    for name, payloads in chunk.payloads.items():
        now |= {f"{name}.{part}": getattr(payloads, part) for part in ("stored_nbytes", "checksum", "codec")}
    for column, values in now.items():
        before = stored.column(column)
        if is_number(before.type):  # bit by bit: NaN is equal to itself
            rows = before.to_numpy(zero_copy_only=True)
            found = np.ascontiguousarray(np.asarray(values).astype(rows.dtype))
            same = (found.view(np.uint8) == rows.view(np.uint8)).reshape(len(rows), -1)
            differs = np.flatnonzero(~same.all(axis=1))
        else:
            differs = np.flatnonzero([a != b for a, b in zip(before.to_pylist(), values, strict=True)])
        if len(differs):
            return numbers[int(differs[0])], repr(column.partition(".")[0])
    return None
