"""Buffers are used again when, and only when, nobody refers to them."""

from __future__ import annotations

import copy
import pickle
import threading

import numpy as np
import pytest
import torch

from lmdbloader.batch.buffers import Buffers

NBYTES = 1 << 20


def address(array: np.ndarray) -> int:
    return array.ctypes.data


def test_a_released_buffer_is_given_out_again() -> None:
    buffers = Buffers()
    first = buffers.take(NBYTES)
    where = address(first)
    del first
    assert address(buffers.take(NBYTES)) == where


@pytest.mark.parametrize(
    "hold",
    [
        lambda a: a,
        lambda a: a[10:20],
        lambda a: a.view(np.float32).reshape(2, -1),
        lambda a: torch.from_numpy(a),
        lambda a: torch.from_numpy(a)[5:6],
        lambda a: torch.from_numpy(a).view(torch.int16).numpy(),
        lambda a: memoryview(a),
        lambda a: torch.from_numpy(a).untyped_storage(),
    ],
    ids=["array", "slice", "cast", "tensor", "row", "alias", "memoryview", "storage"],
)
def test_whatever_still_refers_to_a_buffer_keeps_it(hold: object) -> None:
    buffers = Buffers()
    taken = buffers.take(NBYTES)
    where = address(taken)
    held = hold(taken)  # type: ignore[operator]
    del taken
    others = [buffers.take(NBYTES) for _ in range(20)]
    assert where not in map(address, others)
    assert len(set(map(address, others))) == 20
    del held


def test_a_small_batch_does_not_hold_the_memory_of_a_large_one() -> None:
    buffers = Buffers()
    large = buffers.take(8 * NBYTES)
    where = address(large)
    del large
    assert address(buffers.take(NBYTES)) != where
    assert buffers.take(0).size == 0
    assert buffers.take(100).size == 100


def test_every_thread_has_buffers_of_its_own() -> None:
    buffers = Buffers()
    mine = buffers.take(NBYTES)
    where = address(mine)
    del mine
    theirs: list[int] = []
    held: list[np.ndarray] = []

    def take() -> None:
        held.append(buffers.take(NBYTES))
        theirs.append(address(held[-1]))

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    assert theirs and theirs[0] != where


def test_copies_and_pickles_start_empty() -> None:
    buffers = Buffers()
    where = address(buffers.take(NBYTES))
    for other in (pickle.loads(pickle.dumps(buffers)), copy.deepcopy(buffers)):
        held = buffers.take(NBYTES)
        assert address(held) == where
        assert address(other.take(NBYTES)) != where
        del held
