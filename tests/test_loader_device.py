"""Pinned memory, and copies from it: in order, ahead of the loop, from memory that is kept until they are done."""

from __future__ import annotations

import ctypes
import pickle
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lmdbloader
from lmdbloader import LMDBDataset, Loader
from lmdbloader.transforms import RandomCrop, ToDtype
from tests.faults.late_copies import WAYS, not_from_the_beginning, num_wrong, of_strided_views
from tests.faults.late_cuda import Event, LateCuda, late_cuda
from tests.faults.small import write_small


def test_the_batches_that_are_copied_ahead_do_not_count_as_given(ds: LMDBDataset) -> None:
    with late_cuda():
        loader = Loader(ds, 20, order="random", seed=0, device="cuda")
        found = [(len(batch.number), loader.state_dict()["position"]) for batch in loader]
        loader.close()
    assert found == [(20, 20), (20, 40), (20, 60), (20, 80), (16, 96)]


def with_threads(cuda: LateCuda) -> list[str]:
    """Return a list that gets the name of the thread of every copy from now on."""
    names: list[str] = []
    copy = cuda.copy

    def watched(*args: Any, **options: Any) -> Any:
        names.append(threading.current_thread().name)
        return copy(*args, **options)

    cuda.copy = watched  # type: ignore[method-assign]
    return names


def test_a_batch_is_one_copy_of_another_thread(tmp_path: Path) -> None:
    rows = (
        {"lr": np.full((8, 8, 3), i, np.uint8), "hr": np.full((16, 16, 3), i, np.uint8), "label": i, "weight": i / 2,
         "name": f"n{i}"} for i in range(64)
    )  # fmt: skip
    lmdbloader.write(rows, tmp_path / "d")
    dataset = LMDBDataset(tmp_path / "d")
    plain = list(Loader(dataset, 8, shuffle=True, seed=0, as_="dict"))
    with late_cuda(most_lag=40) as cuda:
        names = with_threads(cuda)
        loader = Loader(dataset, 8, shuffle=True, seed=0, device="cuda", as_="dict")
        found = list(loader)
        cuda.synchronize()
        loader.close()
    assert len(names) == cuda.num_late == 8
    assert set(names) == {"lmdbloader-copies-0"}
    for batch, wanted in zip(found, plain, strict=True):
        assert batch["name"] == wanted["name"]
        assert all(torch.equal(batch[name], wanted[name]) for name in ("lr", "hr", "label", "weight"))
        # One allocation on the device.
        assert len({batch[name].untyped_storage().data_ptr() for name in ("lr", "hr", "label", "weight")}) == 1


def test_the_loops_thread_makes_few_calls(ds: LMDBDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Counter[str] = Counter()

    def counted(name: str, function: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            calls[name] += threading.current_thread() is threading.main_thread()
            return function(*args, **options)

        return call

    with late_cuda() as cuda:
        loader = Loader(ds, 8, shuffle=True, seed=0, device="cuda", num_threads=1)
        list(loader)
        for of, name in ((cuda, "copy"), (cuda, "new_stream"), (cuda.memory, "record_event"), (cuda.host, "empty")):
            monkeypatch.setattr(of, name, counted(name, getattr(of, name)))
        for name in ("Event", "current_stream"):
            monkeypatch.setattr(torch.cuda, name, counted(name, getattr(torch.cuda, name)))
        for name in ("record", "synchronize"):
            monkeypatch.setattr(Event, name, counted(name, getattr(Event, name)))
        monkeypatch.setattr(type(cuda.current), "wait_event", counted("wait_event", type(cuda.current).wait_event))
        assert len(list(loader)) == 12
        loader.close()
    groups, batches = 2, 12  # a group has 64 samples
    # The device's memory records an event when a batch goes back to it.
    assert +calls == {
        "Event": groups, "record": groups + batches, "wait_event": groups, "current_stream": groups + batches,
        "record_event": batches,
    }  # fmt: skip


class Several(torch.Tensor):
    """A class of tensors that is not torch's."""


STRANGE = {
    "strided": torch.arange(60.0).view(3, 4, 5)[:, ::2, 1:],
    "turned": torch.arange(24, dtype=torch.int16).view(4, 6).T,
    "expanded": torch.arange(3, dtype=torch.bfloat16).view(3, 1).expand(3, 700),
    "last": torch.arange(48, dtype=torch.uint8).view(1, 4, 4, 3).permute(0, 3, 1, 2),
    "empty": torch.empty(0, 3),
    "number": torch.tensor(7, dtype=torch.int64),
    "complex": torch.arange(4).to(torch.complex64).conj(),
    "bool": torch.tensor([True, False, True]),
    "double": torch.arange(3001, dtype=torch.float64),
    "own": torch.arange(5.0).as_subclass(Several),
    "learned": torch.arange(2.0, requires_grad=True),
    "nested": [torch.arange(7).to(torch.uint16), ("text", None, {"deep": torch.arange(5, dtype=torch.float16)})],
}  # fmt: skip


def equal(found: Any, wanted: Any) -> bool:
    """Return whether values agree, with the layout that `.to` would give tensors."""
    if isinstance(wanted, torch.Tensor):
        same = type(found) is type(wanted) and found.dtype == wanted.dtype and found.shape == wanted.shape
        same = same and found.stride() == torch.empty_like(wanted, device="meta").stride()
        return same and torch.equal(found.detach().resolve_conj(), wanted.detach().resolve_conj())
    if isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(equal(found[key], wanted[key]) for key in wanted)
    if isinstance(wanted, list | tuple):
        return type(found) is type(wanted) and all(map(equal, found, wanted))
    return bool(found == wanted)


@pytest.mark.parametrize("has_images", [True, False])
@pytest.mark.parametrize("name", STRANGE)
def test_what_functions_return_is_copied_as_it_is(ds: LMDBDataset, name: str, has_images: bool) -> None:
    def function(batch: Any) -> dict[str, Any]:
        return {"images": batch.image.clone()[:, :, 1:] if has_images else None, "other": STRANGE[name]}

    with late_cuda(most_lag=40) as cuda:
        loader = Loader(ds, 32, shuffle=False, device="cuda", transforms=[function])
        found = list(loader)
        cuda.synchronize()
        loader.close()
    assert len(found) == 3
    for number, batch in enumerate(found):
        assert equal(batch["other"], STRANGE[name])
        images = torch.from_numpy(np.stack([ds[32 * number + k].image[:, 1:].numpy() for k in range(32)]))
        assert equal(batch["images"], images if has_images else None)


def slowly(batch: Any) -> Any:
    """Return a batch after the loop has dropped the one before it."""
    time.sleep(0.003)
    return batch


def late_steps(path: Path, *, forgetful: bool = False) -> int:
    """Return how many steps, which read their batch long after the loop has dropped it, read another one.

    Args:
        path: Of the dataset.
        forgetful: Whether the device does not know that a stream uses memory.
    """
    wrong = []
    with late_cuda(most_lag=60) as cuda:
        if forgetful:
            cuda.memory.record_event = lambda source, stream: None  # type: ignore[method-assign]
        dataset = LMDBDataset(path).select(np.resize(np.arange(96), 2048))
        options: Any = {"shuffle": True, "seed": 0, "num_threads": 1}
        loader = Loader(dataset, 64, device="cuda", transforms=[slowly], **options)
        plain = Loader(dataset, 64, device="cpu", **options)
        for _ in range(3):
            numbers = [batch.number.numpy() % 251 for batch in plain]
            for batch, number in zip(loader, numbers, strict=True):
                address, count = batch.image.data_ptr(), batch.image.numel()
                del batch

                def step(address: int = address, count: int = count, number: Any = number) -> None:
                    found = np.frombuffer((ctypes.c_uint8 * count).from_address(address), np.uint8)
                    wrong.append(bool((found.reshape(len(number), -1) != number[:, None]).any()))

                cuda.current.enqueue(step)
        cuda.synchronize()
        loader.close()
        assert len(wrong) == 3 * 32
        if not forgetful:
            assert cuda.memory.num_blocks < 60
    return sum(wrong)


def test_device_memory_is_used_again_when_the_steps_that_read_it_are_done(path: Path) -> None:
    assert late_steps(path) == 0
    assert late_steps(path, forgetful=True) > 0


def test_device_memory_is_bounded_and_a_batch_that_is_kept_never_changes(ds: LMDBDataset) -> None:
    with late_cuda(most_lag=20) as cuda:
        loader = Loader(ds, 16, shuffle=True, seed=0, device="cuda", num_threads=2, prefetch=1)
        kept = [(batch.image, batch.number) for batch in loader]
        for _ in range(10):
            list(zip(loader, range(4)))  # noqa: B905 - breaks off
        before = cuda.memory.num_blocks
        for _ in range(1000):
            for _batch in loader:
                cuda.current.enqueue(lambda: None)
        assert cuda.memory.num_blocks <= before + 4
        cuda.synchronize()
        assert num_wrong(kept) == 0
        loader.close()


def test_an_error_comes_after_the_batches_before_it(ds: LMDBDataset) -> None:
    def fails(batch: Any) -> Any:
        if 40 in batch.number:
            raise ValueError("sample 40")
        return batch

    with late_cuda() as cuda:
        loader = Loader(ds, 8, shuffle=False, device="cuda", transforms=[fails])
        numbers: list[torch.Tensor] = []
        with pytest.raises(ValueError, match="sample 40"):
            numbers += (batch.number for batch in loader)
        cuda.synchronize()
        loader.close()
    assert torch.cat(numbers).tolist() == list(range(40))


def test_too_little_memory_on_the_device_is_an_error_of_the_loop(ds: LMDBDataset) -> None:
    with late_cuda() as cuda:
        copy, count = cuda.copy, [0]

        def scarce(*args: Any, **options: Any) -> Any:
            count[0] += 1
            if count[0] > 5:
                raise torch.OutOfMemoryError("none left")
            return copy(*args, **options)

        cuda.copy = scarce  # type: ignore[method-assign]
        loader = Loader(ds, 8, shuffle=False, device="cuda")
        with pytest.raises(torch.OutOfMemoryError, match="none left"):
            list(loader)
        cuda.copy = copy  # type: ignore[method-assign]
        assert len(list(loader)) == 12
        loader.close()


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
