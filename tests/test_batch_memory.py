"""Memory of batches: reused when, and only when, nothing refers to it; shared memory, and a full /dev/shm."""

from __future__ import annotations

import errno
import math
import os
import threading
import tracemalloc
from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch

from lmdbloader.batch.memory import BatchMemory
from lmdbloader.batch.shared_memory import (
    SharedMemory,
    in_shared_memory,
    shared_tensor,
)

SHAPE = (3, 64, 64)
COUNT = 16  # with SHAPE, more bytes than a batch that is too small to keep


def make(kind: type[BatchMemory] = BatchMemory, dtype: Any = np.uint8, keep: int = 100) -> BatchMemory:
    return kind(SHAPE, np.dtype(dtype), keep=keep)


kinds = pytest.mark.parametrize("kind", [BatchMemory, SharedMemory])


@kinds
@pytest.mark.parametrize(
    "hold",
    [
        lambda t: t,
        lambda t: t[2:5],
        lambda t: t.view(torch.int16).flatten()[5:6],
        lambda t: t.numpy(),
        lambda t: t.numpy()[1:, 2].view(np.int8),
        lambda t: memoryview(t.numpy()),
        lambda t: t.untyped_storage(),
        lambda t: torch.from_dlpack(t),
    ],
    ids=["tensor", "rows", "cast", "array", "alias", "memoryview", "storage", "dlpack"],
)
def test_any_view_of_memory_keeps_it(kind: type[BatchMemory], hold: Any) -> None:
    memory = make(kind)
    (taken,), (address,) = memory.take(COUNT, COUNT)
    held = hold(taken)
    del taken
    others = [memory.take(COUNT, COUNT) for _ in range(20)]
    assert len({address, *(other for _, (other,) in others)}) == 21
    del held


@kinds
@pytest.mark.parametrize("shape", [SHAPE, (3, 5, 7)])
@pytest.mark.parametrize(
    ("count", "batch_size", "sizes"), [(16, 4, 4 * [4]), (17, 7, [7, 7, 3]), (3, 8, [3]), (0, 8, [0])]
)
def test_batches_that_are_taken_together_lie_apart_and_any_of_them_keeps_their_memory(
    kind: type[BatchMemory], shape: tuple[int, ...], count: int, batch_size: int, sizes: list[int]
) -> None:
    memory = kind(shape, np.dtype(np.float32), keep=100)
    tensors, addresses = memory.take(count, batch_size)
    assert [len(tensor) for tensor in tensors] == sizes
    assert all(tensor.shape[1:] == shape and tensor.dtype == torch.float32 for tensor in tensors)
    if count:
        assert [tensor.data_ptr() for tensor in tensors] == addresses
    # torch saves a tensor with the whole of its storage.
    assert [tensor.untyped_storage().nbytes() for tensor in tensors] == [4 * tensor.numel() for tensor in tensors]
    for number, tensor in enumerate(tensors):
        tensor.fill_(number)
    assert all((tensor == number).all() for number, tensor in enumerate(tensors))
    held, tensors = tensors[-1][:1], []
    again = [memory.take(count, batch_size) for _ in range(9)]
    assert not count or addresses[-1] not in {at for _, others in again for at in others}
    del held


def test_a_batch_that_is_kept_keeps_its_own_memory_only() -> None:
    memory, nbytes = make(keep=3), math.prod(SHAPE)
    tracemalloc.start()
    try:
        held = [memory.take(32, 1)[0][5] for _ in range(60)]
        assert tracemalloc.get_traced_memory()[0] < (60 + 4 * 32) * (nbytes + 1000)
    finally:
        tracemalloc.stop()
    del held


def test_threads_never_share_memory_that_is_in_use() -> None:
    memory, wrong = make(keep=3), []

    def work(number: int) -> None:
        for turn in range(300):
            tensors, _ = memory.take(COUNT + turn % 2, COUNT // 2)
            for tensor in tensors:
                tensor.fill_(number)
            if not all((tensor == number).all() for tensor in tensors):
                wrong.append(turn)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


Pair = namedtuple("Pair", ["first", "second"])
linux = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no memory without a name")


def forbid_memory_without_name(monkeypatch: pytest.MonkeyPatch, number: int = errno.EPERM) -> None:
    def refuse(name: str) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "memfd_create", refuse, raising=False)


@pytest.mark.parametrize("forbidden", [False, True])
@pytest.mark.parametrize("nbytes", [0, 1, 4096, 1_000_001])
def test_shared_memory_is_seen_by_a_forked_child(nbytes: int, forbidden: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if forbidden:
        forbid_memory_without_name(monkeypatch)
    memory = shared_tensor(nbytes)
    assert memory.shape == (nbytes,) and memory.dtype == torch.uint8 and memory.is_shared()
    if nbytes:
        child = os.fork()
        if child == 0:
            memory[-1] = 7
            os._exit(0)
        os.waitpid(child, 0)
        assert memory[-1] == 7


@linux
def test_shared_memory_is_in_no_file_system_and_its_descriptor_is_closed_with_it() -> None:
    before = set(os.listdir("/proc/self/fd"))
    memory = shared_tensor(10_000)
    (own,) = set(os.listdir("/proc/self/fd")) - before
    assert os.readlink(f"/proc/self/fd/{own}").startswith("/memfd:lmdbloader")
    del memory
    assert set(os.listdir("/proc/self/fd")) <= before


def test_a_batch_is_moved_with_its_structure() -> None:
    numbers, strided = torch.arange(6), torch.arange(24.0).reshape(4, 6).T[::2]
    batch = {"a": [numbers, "text"], "b": Pair(strided, (torch.tensor(3),)), "c": None}
    moved = in_shared_memory(batch)
    assert moved["a"][1] == "text" and moved["c"] is None and type(moved["b"]) is Pair
    for found, expected in ((moved["a"][0], numbers), (moved["b"].first, strided), (moved["b"].second[0], 3)):
        assert found.is_shared()
        assert torch.equal(found, torch.as_tensor(expected))
    assert in_shared_memory(moved)["b"].first is moved["b"].first


@pytest.mark.parametrize(
    "tensor",
    [
        torch.empty(0),
        torch.ones(3, requires_grad=True),
        torch.ones(2, 2).to_sparse(),
        torch.nn.Parameter(torch.ones(2)),
        torch.empty(3, device="meta"),
    ],
    ids=["empty", "with gradient", "sparse", "parameter", "without memory"],
)
def test_tensors_that_are_more_than_numbers_are_left_to_torch(tensor: torch.Tensor) -> None:
    assert in_shared_memory(tensor) is tensor
