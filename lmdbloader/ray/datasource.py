"""The Datasource of ray.data for datasets of lmdbloader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from lmdbloader.store.rows import choose, take

# A block that Ray takes as it is, if it has no other limit.
_BLOCK_NBYTES = 128 * 2**20
# Rows whose lengths are looked at to find the end of a block.
_MOST_ROWS = 2**20
# What a text of the index is taken for in estimates.
_TEXT_NBYTES = 32


class LmdbDatasource(Datasource):  # type: ignore[misc]
    """Reads a dataset in tasks of contiguous ranges of samples."""

    def __init__(self, dataset: LMDBDataset, columns: Sequence[str]) -> None:
        """Prepare to read.

        Args:
            dataset: A dataset whose samples are not changed by Python.
            columns: Names of fields, and `SOURCE` for the names of the files.
        """
        super().__init__()
        self._dataset, self._columns = dataset, tuple(columns)
        # Set by Ray, in a copy of this object, when fewer columns are needed.
        self._projection_map: dict[str, str] | None = None

    def supports_projection_pushdown(self) -> bool:
        """Return True: columns that nobody needs are not read."""
        return True

    def estimate_inmemory_data_size(self) -> int:
        """Return the bytes of all samples, decoded."""
        return int(self._mean_nbytes * len(self._dataset))

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        """Return tasks that read contiguous ranges of samples.

        Args:
            parallelism: The number of tasks; there are fewer if there are fewer samples.
            per_task_row_limit: The most samples that each task reads.
            data_context: Of the execution.
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
        """Return the function of a task; it carries no more than the numbers of its own samples."""
        dataset = self._dataset
        # Random choices depend on the numbers of the samples in the view.
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
        """The types of the columns, known without a task; None for transforms, which would use up random numbers."""
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
    """Yield samples in order as blocks, each, except the last, of barely more bytes than `target_nbytes`.

    Args:
        dataset: The dataset.
        numbers: Of the samples.
        columns: Names of fields, and `SOURCE`.
        kinds: Of the dataset.
        target_nbytes: Of a block.

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
    """Return the bytes (n,) of samples in memory, without the short texts."""
    rows = choose(dataset.stored_rows, numbers)
    nbytes = np.full(len(numbers), 8 * len(columns), np.int64)
    for name in columns:
        if name in kinds.nbytes:
            nbytes += kinds.nbytes[name]
        elif name != SOURCE and dataset.fields[name].is_payload:
            raw = take(dataset.reader.index.arrays[f"{name}.raw_nbytes"], rows).astype(np.int64)
            nbytes += raw * _factor(dataset, name)
    return nbytes


def _factor(dataset: LMDBDataset, name: str) -> int:
    """Return how many times as large as stored the numbers of a field are; of images from 0 to 1 they are floats."""
    dtype = dataset._dtype
    return 1 if dtype is None or dataset.fields[name].kind != "image" else dtype.itemsize
