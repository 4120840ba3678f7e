"""Memory that is used again too early is seen by the stand-in for CUDA."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.faults.late_copies import in_the_loop, make_loader, num_wrong, of_views
from tests.faults.late_cuda import LateCuda, late_cuda
from tests.faults.small import write_small


class Recycled:
    """Pinned memory that is given out again as soon as Python refers to it no more."""

    def __init__(self, images: Any, *, keep: int) -> None:
        ((self._shape, dtype),) = images
        self._dtype, self._taken = torch.from_numpy(np.empty(0, dtype)).dtype, 0
        self._kept: list[Any] = []

    def take(self, count: int, batch_size: int) -> Any:
        tensors = []
        for _ in range(0, count, batch_size):
            self._taken += 1
            if not self._kept:
                shape = (batch_size, *self._shape)
                self._kept = [torch.empty(shape, dtype=self._dtype, pin_memory=True).numpy() for _ in range(3)]
            tensors.append(torch.from_numpy(self._kept[self._taken % 3]))
        return [tensors], np.array([[tensor.data_ptr()] for tensor in tensors]), ()


def aliased(loader: Any, cuda: LateCuda) -> Any:
    """Copy from a batch by way of NumPy, and not from its beginning: torch attributes that to no memory of its own."""
    for batch in loader:
        yield torch.from_numpy(batch.image.numpy()[1:]).to("cuda", non_blocking=True), batch.number[1:]


@pytest.mark.parametrize("way", [in_the_loop, of_views])
def test_memory_that_is_used_again_by_references_is_seen(
    way: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmdbloader.batch.memory_kinds.PinnedMemory", Recycled)
    assert wrong_copies(way, write_small(tmp_path / "d", 192)) > 0


def test_a_copy_that_torch_cannot_attribute_is_seen(tmp_path: Path) -> None:
    assert wrong_copies(aliased, write_small(tmp_path / "d", 192)) > 0


def wrong_copies(way: Any, path: Path) -> int:
    with late_cuda(most_lag=60) as cuda:
        loader = make_loader(path, None, random.Random(0), memory_format=torch.contiguous_format, num_threads=1)
        copies = [copy for _ in range(3) for copy in way(loader, cuda)]
        cuda.synchronize()
        assert cuda.num_late == len(copies)
        return num_wrong(copies)
