"""Copying batches to a device: in order, ahead of the loop, from memory that is held until the copy is done."""

from __future__ import annotations

import contextlib
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lmdbloader
from lmdbloader.loader.device import apply, on_device, usable_device
from lmdbloader.loader.memory import BatchMemory

Pair = namedtuple("Pair", ["lr", "names"])


class FakeCuda:
    """What `on_device` uses of torch.cuda, and a list of what it did."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.finished = 0
        self.started = 0

    def Stream(self, device: Any) -> str:
        return "side"

    def Event(self) -> Any:
        cuda = self
        number = cuda.started
        cuda.started += 1

        class Event:
            def record(self, stream: str) -> None:
                cuda.log.append(f"copy {number} on {stream}")

            def query(self) -> bool:
                return number < cuda.finished

            def synchronize(self) -> None:
                cuda.log.append(f"synchronize {number}")

        Event.number = number  # type: ignore[attr-defined]
        return Event()

    @contextlib.contextmanager
    def stream(self, stream: str) -> Iterator[None]:
        yield

    def current_stream(self, device: Any) -> Any:
        cuda = self

        class Current:
            def wait_event(self, event: Any) -> None:
                cuda.log.append(f"wait {event.number}")

        return Current()


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    for name in ("Stream", "Event", "stream", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, getattr(fake, name))
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, s: fake.log.append("record"))
    return fake


def batches(count: int) -> Iterator[Pair]:
    for number in range(count):
        yield Pair(torch.full((2, 3), number), [f"n{number}"])


def test_the_next_batch_is_copied_before_the_loop_gets_this_one(cuda: FakeCuda) -> None:
    found = []
    for batch in on_device(batches(3), torch.device("cpu")):
        found.append((int(batch.lr[0, 0]), batch.names))
        cuda.log.append(f"step {found[-1][0]}")
        cuda.finished += 1
    assert found == [(0, ["n0"]), (1, ["n1"]), (2, ["n2"])]
    assert cuda.log == [
        "copy 0 on side", "copy 1 on side", "wait 0", "record", "step 0",
        "copy 2 on side", "wait 1", "record", "step 1",
        "wait 2", "record", "step 2", "synchronize 2",
    ]  # fmt: skip


def test_memory_is_held_until_its_copy_is_done(cuda: FakeCuda) -> None:
    import weakref

    alive: list[Any] = []

    def watched() -> Iterator[Pair]:
        for number in range(5):
            tensor = torch.full((4,), number)
            alive.append(weakref.ref(tensor))
            pair = Pair(tensor, [])
            del tensor
            yield pair
            del pair

    loop = on_device(watched(), torch.device("meta"))
    for _ in range(3):
        next(loop)
    assert [ref() is not None for ref in alive] == [True] * 4
    cuda.finished = 3
    next(loop)
    assert [ref() is not None for ref in alive] == [False, False, False, True, True]
    loop.close()  # type: ignore[attr-defined]
    assert cuda.log[-2:] == ["synchronize 3", "synchronize 4"]


def test_an_error_comes_after_the_batches_before_it(cuda: FakeCuda) -> None:
    def failing() -> Iterator[Pair]:
        yield from batches(2)
        raise ZeroDivisionError

    loop = on_device(failing(), torch.device("cpu"))
    assert [int(next(loop).lr[0, 0]) for _ in range(2)] == [0, 1]
    with pytest.raises(ZeroDivisionError):
        next(loop)


def test_no_batch_is_no_batch(cuda: FakeCuda) -> None:
    assert list(on_device(batches(0), torch.device("cpu"))) == []


def test_tensors_are_found_wherever_they_are() -> None:
    value = {"a": [torch.ones(1), "text"], "b": (torch.ones(2), Pair(torch.ones(3), None))}
    found = apply(value, lambda tensor: tensor * 2)
    assert found["a"][0].tolist() == [2]
    assert found["a"][1] == "text"
    assert found["b"][0].tolist() == [2, 2]
    assert found["b"][1] == Pair(found["b"][1].lr, None)
    assert isinstance(found["b"], tuple)


def test_the_cpu_needs_no_copies() -> None:
    assert usable_device(None) is None
    assert usable_device("cpu") is None
    assert usable_device("meta") == torch.device("meta")


def test_the_batch_that_is_copied_ahead_does_not_count_as_given(cuda: FakeCuda, tmp_path: Path) -> None:
    lmdbloader.write(({"n": i, "image": np.zeros((4, 4, 3), np.uint8)} for i in range(10)), tmp_path / "d")
    loader = lmdbloader.Loader(lmdbloader.LMDBDataset(tmp_path / "d"), 3)
    loader._device = torch.device("cpu")  # whose copies the fake counts
    found = [(len(batch.n), cuda.started, loader.state_dict()["position"]) for batch in loader]
    assert found == [(3, 2, 3), (3, 3, 6), (3, 4, 9), (1, 4, 10)]


@pytest.mark.parametrize(("device", "is_pinned"), [(None, True), ("cpu", False), ("cuda", True)])
def test_memory_is_pinned_where_something_may_be_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str | None, is_pinned: bool
) -> None:
    made: list[bool] = []

    class Memory(BatchMemory):
        def __init__(self, *args: Any, pinned: bool, **options: Any) -> None:
            made.append(pinned)
            super().__init__(*args, pinned=False, **options)

    monkeypatch.setattr("lmdbloader.loader.source.BatchMemory", Memory)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    lmdbloader.write([{"image": np.zeros((4, 4, 3), np.uint8)}], tmp_path / "db")
    lmdbloader.Loader(lmdbloader.LMDBDataset(tmp_path / "db"), 1, device=device).close()
    assert set(made) == {is_pinned}
