"""Pinned memory, and copies from it: in order, ahead of the loop, from memory that is kept until they are done."""

from __future__ import annotations

import contextlib
import pickle
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lmdbloader
from lmdbloader import LMDBDataset, Loader
from lmdbloader.loader.device import Copies, on_device
from lmdbloader.transforms import RandomCrop, ToDtype
from tests.faults.late_copies import WAYS, not_from_the_beginning, num_wrong, of_strided_views
from tests.faults.late_cuda import late_cuda
from tests.faults.small import write_small

Pair = namedtuple("Pair", ["lr", "names"])


class FakeCuda:
    """The part of torch.cuda that `on_device` uses, with a list of the calls."""

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
    for batch in on_device(batches(3), torch.device("cpu"), "side"):
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

    loop = on_device(watched(), torch.device("meta"), "side")
    for _ in range(3):
        next(loop)
    assert [ref() is not None for ref in alive] == [True] * 4
    cuda.finished = 3
    next(loop)
    assert [ref() is not None for ref in alive] == [False, False, False, True, True]
    loop.close()  # type: ignore[attr-defined]
    assert cuda.log[-2:] == ["synchronize 3", "synchronize 4"]


def test_the_batch_that_is_copied_ahead_does_not_count_as_given(cuda: FakeCuda, tmp_path: Path) -> None:
    lmdbloader.write(({"n": i, "image": np.zeros((4, 4, 3), np.uint8)} for i in range(10)), tmp_path / "d")
    loader = lmdbloader.Loader(lmdbloader.LMDBDataset(tmp_path / "d"), 3, order="random", seed=0)
    loader._copies = Copies(torch.device("cpu", 0))  # whose copies the fake counts
    found = [(len(batch.n), cuda.started, loader.state_dict()["position"]) for batch in loader]
    assert found == [(3, 2, 3), (3, 3, 6), (3, 4, 9), (1, 4, 10)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small(tmp_path_factory.mktemp("device") / "d", 96)


@pytest.fixture
def ds(path: Path) -> LMDBDataset:
    return LMDBDataset(path)


@pytest.mark.parametrize(
    ("device", "pin_memory", "is_pinned"),
    [
        (None, "auto", True), ("cpu", "auto", False), (torch.device("cpu"), "auto", False), ("cuda", "auto", True),
        ("cuda:0", "auto", True), (None, True, True), ("cpu", True, True), ("cuda", True, True), (None, False, False),
        ("cpu", False, False),
    ],
)  # fmt: skip
def test_memory_is_pinned_where_something_may_be_copied(
    ds: LMDBDataset, device: Any, pin_memory: Any, is_pinned: bool
) -> None:
    with late_cuda() as cuda:
        loader = Loader(ds, 8, order="random", seed=0, device=device, pin_memory=pin_memory)
        assert loader.pin_memory is is_pinned
        assert ("pin_memory=True" in repr(loader)) == is_pinned
        batch = next(iter(loader))
        assert (cuda.host.num_taken > 0) == is_pinned
        if device is None:
            assert cuda.host.has(batch.image.data_ptr()) == is_pinned
        loader.set_resolution(None)
        copy = pickle.loads(pickle.dumps(loader))
        assert copy.pin_memory is is_pinned
        loader.close()
    if not torch.cuda.is_available():
        assert pickle.loads(pickle.dumps(copy)).pin_memory is False


@pytest.mark.parametrize(("way", "device"), WAYS, ids=[way.__name__ for way, _ in WAYS])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16])
def test_a_late_copy_reads_its_own_batch(ds: LMDBDataset, way: Any, device: str | None, dtype: torch.dtype) -> None:
    with late_cuda(most_lag=40) as cuda:
        loader = Loader(
            ds, 8, order="random", device=device, transforms=[RandomCrop(16), ToDtype(dtype, scale=False)], prefetch=1
        )
        copies = [copy for _ in range(2) for copy in way(loader, cuda)]
        cuda.synchronize()
        assert len(copies) >= 12
        # A tensor that is not contiguous is gathered before it is copied.
        assert (cuda.num_late == 0) if way is of_strided_views else (cuda.num_late >= 12)
        assert num_wrong(copies) == 0


def test_a_copy_ahead_holds_memory_that_a_function_reached_through_numpy(ds: LMDBDataset) -> None:
    with late_cuda(most_lag=40) as cuda:
        loader = Loader(ds, 8, order="random", seed=0, device="cuda", transforms=[not_from_the_beginning])
        copies = [(batch.image, batch.number) for _ in range(3) for batch in loader]
        cuda.synchronize()
        assert cuda.num_late == len(copies) == 36
        assert num_wrong(copies) == 0


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.float16, torch.bfloat16, torch.float32])
def test_pinned_batches_are_those_of_plain_memory(tmp_path: Path, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(0)
    kind = np.uint16 if dtype == torch.uint16 else np.uint8
    lmdbloader.write(({"image": rng.integers(0, 250, (9, 7, 3)).astype(kind)} for _ in range(20)), tmp_path / "d")
    dataset = LMDBDataset(tmp_path / "d")
    for memory_format in (torch.contiguous_format, torch.channels_last):
        options: Any = {"memory_format": memory_format, "transforms": [ToDtype(dtype, scale=False)]}
        plain = [
            batch.image for batch in Loader(dataset, 8, pin_memory=False, **{"order": "random", "seed": 0, **options})
        ]
        with late_cuda() as cuda:
            pinned = [batch.image for batch in Loader(dataset, 8, **{"order": "random", "seed": 0, **options})]
            assert all(cuda.host.has(image.data_ptr()) and image.data_ptr() % 64 == 0 for image in pinned)
        for a, b in zip(plain, pinned, strict=True):
            assert a.dtype == b.dtype == dtype and a.stride() == b.stride() and a.shape == b.shape
            assert torch.equal(a.double(), b.double())


def test_pinned_memory_is_used_again_and_a_batch_that_is_held_never_changes(ds: LMDBDataset) -> None:
    with late_cuda():
        loader = Loader(ds, 8, order="random", seed=0, num_threads=1, prefetch=1)
        held = [(batch.image, batch.image.clone()) for batch in loader][::5]
        views = [(image[1].numpy(), image[1].numpy().copy()) for image, _ in held]
        for _ in range(20):
            for _ in loader:
                pass
        assert all(torch.equal(a, b) for a, b in held) and all((a == b).all() for a, b in views)
        places = {batch.image.data_ptr() for _ in range(20) for batch in loader}
    assert len(places) <= (1 + 1 + 2) * 8
