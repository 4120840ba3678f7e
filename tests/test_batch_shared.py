"""Shared memory: what lies in it, what does not need to, and what a full /dev/shm is told as."""

from __future__ import annotations

import errno
import os
from collections import namedtuple
from typing import Any

import pytest
import torch

from lmdbloader.batch import shared
from lmdbloader.batch.shared import in_shared_memory, no_space, shared_like, shared_tensor, tells_no_space
from lmdbloader.errors import DiskFullError

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
def test_it_lies_in_no_file_system_and_keeps_no_descriptor_for_long() -> None:
    before = set(os.listdir("/proc/self/fd"))
    memory = shared_tensor(10_000)
    (own,) = set(os.listdir("/proc/self/fd")) - before
    assert os.readlink(f"/proc/self/fd/{own}").startswith("/memfd:lmdbloader")
    del memory
    assert set(os.listdir("/proc/self/fd")) <= before


@linux
def test_an_error_other_than_a_refusal_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    forbid_memory_without_name(monkeypatch, errno.EMFILE)
    with pytest.raises(OSError, match="Too many open files"):
        shared_tensor(1)


def test_a_full_file_system_is_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(nbytes: int) -> Any:
        raise RuntimeError("unable to allocate shared memory(shm) for file </torch_1>: No space left on device (28)")

    forbid_memory_without_name(monkeypatch)
    monkeypatch.setattr(torch.UntypedStorage, "_new_shared", full)
    with pytest.raises(DiskFullError, match=r"/dev/shm is full: .* 5,000 bytes .*--shm-size.*num_workers.*Loader"):
        shared_tensor(5000)


def test_another_error_of_torch_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(nbytes: int) -> Any:
        raise RuntimeError("something else")

    forbid_memory_without_name(monkeypatch)
    monkeypatch.setattr(torch.UntypedStorage, "_new_shared", fail)
    with pytest.raises(RuntimeError, match="something else"):
        shared_tensor(5000)


def test_the_message_says_how_much_is_free_where_that_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "free_nbytes", lambda: 1234567)
    assert "need 8 bytes of shared memory, of which 1,234,567 are free." in str(no_space(8))
    monkeypatch.setattr(shared, "free_nbytes", lambda: None)
    assert "need 8 bytes of shared memory. Enlarge" in str(no_space(8))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.ENOSPC, "x"), True),
        (RuntimeError("no: No space left on device (28)"), True),
        (OSError(errno.EIO, "x"), False),
        (ValueError("no"), False),
    ],
)
def test_errors_that_tell_of_no_space(error: Exception, expected: bool) -> None:
    assert tells_no_space(error) == expected


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
def test_what_is_more_than_numbers_is_left_to_torch(tensor: torch.Tensor) -> None:
    assert in_shared_memory(tensor) is tensor


def test_shared_like_has_the_shape_and_the_type() -> None:
    made = shared_like(torch.empty(1, dtype=torch.bfloat16), (2, 3))
    assert made.shape == (2, 3) and made.dtype == torch.bfloat16 and made.is_shared()
