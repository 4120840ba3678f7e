"""The Datasource of ray.data that reads datasets in tasks of contiguous samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from ray.data import DataContext, Datasource
from ray.data.block import BlockMetadata
from ray.data.datasource import ReadTask

from lmdbloader.batch.dataset import LMDBDataset
from lmdbloader.ray.blocks import SOURCE, Kinds, read_block
from lmdbloader.store.rows import choose
from lmdbloader.transforms import ToDtype

# The size of a block if Ray has no limit set.
_BLOCK_NBYTES = 128 * 2**20
# The most rows of a block, which bounds the memory for their lengths.
_MOST_ROWS = 2**20
# The bytes of a text of the index in estimates.
_TEXT_NBYTES = 32


class LmdbDatasource(Datasource):  # type: ignore[misc]
    """Reads a dataset in tasks, each a contiguous range of samples."""

    def __init__(self, dataset: LMDBDataset, columns: Sequence[str]) -> None:
        """Prepare to read.

        Args:
            dataset: A dataset without transforms in Python.
            columns: Names of fields, and `SOURCE` for the names of the files.
        """
        super().__init__()
        self._dataset, self._columns = dataset, tuple(columns)
        # Ray sets this in a copy of this object when a pipeline needs fewer columns.
        self._projection_map: dict[str, str] | None = None

    @property
    def place(self) -> str:
        """The dataset's path, or its URL."""
        return self._dataset.path

    @property
    def classes(self) -> Mapping[str, tuple[str, ...]]:
        """The names of the values of the columns that are read, by field."""
        named = self._dataset.reader.manifest.classes
        return {name: names for name, names in named.items() if name in self._columns}

    def supports_projection_pushdown(self) -> bool:
        """Return True: columns that the pipeline does not need are not read."""
        return True

    def estimate_inmemory_data_size(self) -> int:
        """Return the bytes of all samples, decoded."""
        return int(self._mean_nbytes * len(self._dataset))

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        """Return tasks that read contiguous ranges of samples.

        Args:
            parallelism: The number of tasks, at most the number of samples.
            per_task_row_limit: The most samples that each task reads; None for no limit.
            data_context: The DataContext of the execution; None for the current one.
        """
        count, limit = len(self._dataset), per_task_row_limit
        number = min(max(parallelism, 1), count)
        ends = [count * i // number for i in range(1, number + 1)]
        target = (data_context or DataContext.get_current()).target_max_block_size or _BLOCK_NBYTES
        mean, schema = self._mean_nbytes, self._schema
        tasks, first = [], 0
        for end in ends:
            numbers = range(first, end if limit is None else min(end, first + limit))
            metadata = BlockMetadata(
                num_rows=len(numbers),
                size_bytes=int(mean * len(numbers)),
                input_files=None,
                exec_stats=None,
            )
            tasks.append(ReadTask(self._task(numbers, target), metadata, schema=schema))
            first = end
        return tasks

    def _task(self, numbers: range, target_nbytes: int) -> Any:
        """Return the function of a task, which is pickled with a view of its own samples only."""
        dataset = self._dataset
        # Random choices of transforms depend on the numbers of the samples in the whole view.
        if not dataset.all_transforms:
            dataset, numbers = dataset[numbers.start : numbers.stop], range(len(numbers))
        return partial(read_blocks, dataset, numbers, self._names, self._kinds, target_nbytes)

    @property
    def _names(self) -> tuple[str, ...]:
        wanted = self._projection_map
        return self._columns if wanted is None else tuple(name for name in self._columns if name in wanted)

    @cached_property
    def _kinds(self) -> Kinds:
        return Kinds.of(self._dataset)

    @property
    def _schema(self) -> pa.Schema | None:
        """The types of the columns; None with transforms, because reading a sample would draw random numbers."""
        if self._dataset.all_transforms or not len(self._dataset):
            return None
        return read_block(self._dataset, range(1), self._names, self._kinds).schema

    @property
    def _mean_nbytes(self) -> float:
        """The mean bytes of a sample in memory."""
        dataset, kinds, total = self._dataset, self._kinds, 0.0
        for name in self._names:
            f = None if name == SOURCE else dataset.fields[name]
            if f is None or not f.is_payload:
                total += _TEXT_NBYTES if f is None or f.holds_text else 8
            elif name in kinds.nbytes:
                total += kinds.nbytes[name]
            else:
                total += dataset.reader.mean_nbytes(name, "raw_nbytes", dataset.stored_rows) * _factor(dataset, name)
        return total


def read_blocks(
    dataset: LMDBDataset, numbers: range, columns: Sequence[str], kinds: Kinds, target_nbytes: int
) -> Iterator[pa.Table]:
    """Yield samples in order as blocks, each of which ends with the sample that exceeds `target_nbytes`.

    Args:
        dataset: The dataset.
        numbers: The numbers of the samples.
        columns: Names of fields, and `SOURCE` for the names of the files.
        kinds: Properties of the dataset's fields.
        target_nbytes: The size of a block in bytes.

    Raises:
        CorruptError: A payload is damaged.
    """
    while numbers:
        some = numbers[:_MOST_ROWS]
        ends = np.cumsum(_nbytes(dataset, some, columns, kinds))
        count = min(int(np.searchsorted(ends, target_nbytes, "right")) + 1, len(some))
        yield read_block(dataset, some[:count], columns, kinds)
        numbers = numbers[count:]


def _nbytes(dataset: LMDBDataset, numbers: range, columns: Sequence[str], kinds: Kinds) -> npt.NDArray[np.int64]:
    """Return the bytes of each sample in memory, (n,) int64, not counting short texts."""
    rows = choose(dataset.stored_rows, numbers)
    nbytes = np.full(len(numbers), 8 * len(columns), np.int64)
    for name in columns:
        if name in kinds.nbytes:
            nbytes += kinds.nbytes[name]
        elif name != SOURCE and dataset.fields[name].is_payload:
            raw = dataset.reader.index.take(f"{name}.raw_nbytes", rows).astype(np.int64)
            nbytes += raw * _factor(dataset, name)
    return nbytes


def _factor(dataset: LMDBDataset, name: str) -> int:
    """Return by what factor a field grows in memory: ToDtype may make images floats."""
    sizes = [made.dtype.itemsize for made in dataset.all_transforms if isinstance(made, ToDtype)]
    return sizes[-1] if sizes and dataset.fields[name].kind == "image" else 1
