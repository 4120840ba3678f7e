"""Batches on a CUDA device are those of the CPU bit for bit, whatever is done to them, and from any loader."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cuda_device import DEVICE, NEEDS_CUDA, assert_same, hold_up, on_cpu, repeated, watch_streams

import lmdbloader
from lmdbloader import LMDBDataset, Loader
from lmdbloader import transforms as T

pytestmark = NEEDS_CUDA

ROOT = Path(__file__).resolve().parent.parent
COUNT = 83


def picture(number: int, shape: tuple[int, ...], dtype: Any = np.uint8) -> np.ndarray:
    rng = np.random.default_rng([number, *shape])
    return rng.integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pairs of images with a field of every other kind."""
    path = tmp_path_factory.mktemp("cuda") / "pairs.lmdb"
    samples = (
        {
            "lr": picture(i, (8, 8, 3)),
            "hr": picture(i, (16, 16, 3)),
            "number": i,
            "weight": i / 7,
            "name": f"n{i}",
            "raw": bytes([i] * (i % 5)),
            "array": np.full((2, 3), i, np.float32),
        }
        for i in range(COUNT)
    )
    lmdbloader.write(samples, path)
    return path


@pytest.fixture(scope="module")
def ds(pairs: Path) -> LMDBDataset:
    return LMDBDataset(pairs)


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> LMDBDataset:
    """Images of 16 bits, colored and gray."""
    path = tmp_path_factory.mktemp("cuda") / "deep.lmdb"
    kind = np.uint16
    samples = ({"image": picture(i, (12, 10, 3), kind), "mask": picture(i, (12, 10), kind)} for i in range(21))
    lmdbloader.write(samples, path)
    return LMDBDataset(path)


@pytest.fixture(scope="module")
def labeled(tmp_path_factory: pytest.TempPathFactory) -> LMDBDataset:
    path = tmp_path_factory.mktemp("cuda") / "labeled.lmdb"
    lmdbloader.write(({"image": picture(i, (16, 16, 3)), "label": i % 5} for i in range(37)), path)
    return LMDBDataset(path)


@pytest.fixture(autouse=True)
def device_is_idle() -> Iterator[None]:
    yield
    torch.cuda.synchronize()


def compare(dataset: LMDBDataset, batch_size: int, *, epochs: int = 2, **options: Any) -> list[Any]:
    """Assert that epochs on the device are those of the CPU; returns the batches."""
    options = {"order": "random", "num_threads": 2, "seed": 3, **options}
    wanted = on_cpu(dataset, batch_size, epochs=epochs, **options)
    loader = Loader(dataset, batch_size, device=DEVICE, **options)
    found = [batch for _ in range(epochs) for batch in loader]
    loader.close()
    assert len(found) == len(wanted)
    for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
        assert_same(one, other, where=f"batch {number}")
    return found


def count_loader_threads() -> int:
    return sum(thread.name.startswith("lmdbloader") for thread in threading.enumerate())


# --- The same batches ---


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
def test_every_type(ds: LMDBDataset, memory_format: torch.memory_format) -> None:
    for dtype in T.DTYPES:
        transforms: list[Any] = [T.RandomCrop(8), T.ToDtype(dtype, scale=True)]
        if dtype.is_floating_point:
            transforms.append(T.Normalize((0.4, 0.5, 0.6), (0.2, 0.3, 0.4)))
        first = compare(ds, 16, epochs=1, transforms=transforms, memory_format=memory_format)[0]
        assert first.hr.dtype == dtype
        assert first.hr.is_contiguous(memory_format=memory_format)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("dtype", [None, *T.DTYPES], ids=str)
def test_images_of_16_bits(deep: LMDBDataset, dtype: torch.dtype | None, memory_format: torch.memory_format) -> None:
    transforms = [] if dtype is None else [T.ToDtype(dtype, scale=True)]
    batches = compare(deep, 4, transforms=transforms, memory_format=memory_format)
    assert batches[0].mask.shape == (4, 1, 12, 10)
    assert batches[0].image.dtype == batches[0].mask.dtype == (dtype or torch.uint16)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"order": "quasi_random", "drop_last": True},
        {"shard": (2, 3), "pad": True},
        {"io": "pread", "prefetch": 0, "num_threads": 1},
        {"on_corrupt": "skip"},
    ],
    ids=str,
)
@pytest.mark.parametrize("batch_size", [1, 5, 200])
def test_every_kind_of_field_and_of_last_batch(ds: LMDBDataset, batch_size: int, options: dict[str, Any]) -> None:
    for batch in compare(ds, batch_size, **options):
        assert batch.number.device.type == batch.array.device.type == DEVICE
        assert batch.name == [f"n{number}" for number in batch.number.tolist()]
        assert batch.raw == [bytes([number] * (number % 5)) for number in batch.number.tolist()]


class Noise(T.BatchFunction):
    def apply(self, batch: Any, random: np.random.Generator) -> Any:
        noise = random.standard_normal(tuple(batch.image.shape), dtype="float32")
        return batch._replace(image=batch.image + torch.from_numpy(noise))


def nested(batch: Any) -> Any:
    """Views, a tensor twice, a tensor that is transposed, nothing, and text, in dicts, lists and tuples."""
    return {
        "parts": [batch.image[:1], batch.image[1:, :, 2:5]],
        "turned": batch.image.transpose(2, 3),
        "both": (batch.label, batch.label),
        "none": None,
        "empty": batch.image[:0],
        "text": "text",
        "number": 7,
    }


def test_functions_of_your_own(labeled: LMDBDataset) -> None:
    compare(labeled, 8, transforms=[T.ToDtype(torch.float32, scale=True), Noise()])
    loader = Loader(labeled, 8, shuffle=True, seed=0, num_threads=2, device=DEVICE, transforms=[nested])
    for one, other in zip(loader, on_cpu(labeled, 8, num_threads=2, transforms=[nested]), strict=True):
        assert one.keys() == other.keys()
        for key in ("parts", "both", "empty", "text", "number", "none"):
            # A part of a larger tensor comes over without the rest of it.
            assert_same(contiguous(one[key]), contiguous(other[key]))
        assert torch.equal(one["turned"].cpu(), other["turned"])


def contiguous(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.contiguous()
    return type(value)([contiguous(item) for item in value]) if isinstance(value, list | tuple) else value


def test_a_state_of_one_goes_on_with_the_other(ds: LMDBDataset) -> None:
    here, there = (Loader(ds, 5, shuffle=True, seed=1, num_threads=2, device=device) for device in ("cpu", DEVICE))
    batches = iter(there)
    for _ in range(4):
        next(batches)
    assert there.state_dict()["position"] == 20
    here.load_state_dict(there.state_dict())
    whole = on_cpu(ds, 5, seed=1, num_threads=2)
    rest = list(here)
    assert len(rest) == len(whole) - 4
    for one, other in zip(rest, whole[4:], strict=True):
        assert_same(one, other, device="cpu")
    again = Loader(ds, 5, shuffle=True, seed=1, num_threads=2, device=DEVICE)
    again.load_state_dict(there.state_dict())
    for one, other in zip(again, whole[4:], strict=True):
        assert_same(one, other)


# --- Which device ---


# --- Epochs left early, several at once ---


@pytest.mark.parametrize("way", ["break", "exception", "del", "close", "close the loader"])
@pytest.mark.parametrize("batch_size", [2, 64])
def test_an_epoch_left_early_leaves_nothing_behind(
    ds: LMDBDataset, batch_size: int, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its copies wait on the device when it is left; the epochs after it are whole, and its batches stay valid."""
    many = repeated(ds, 40 * batch_size)
    made = watch_streams(monkeypatch)
    loader = Loader(many, batch_size, shuffle=True, seed=1, num_threads=2, device=DEVICE)
    before = count_loader_threads()
    wanted = on_cpu(many, batch_size, seed=1, num_threads=2, epochs=3)
    count = len(loader)
    for epoch in range(2):
        kept = []
        batches = iter(loader)
        try:
            for number, batch in enumerate(batches):
                kept.append(batch)
                if number == 0:
                    hold_up(0.03, made[-1])
                if number == 11:
                    if way == "break":
                        break
                    if way == "exception":
                        raise ZeroDivisionError
                    if way == "del":
                        del batches
                        break
                    if way == "close":
                        batches.close()
                        break
                    loader.close()
                    break
        except ZeroDivisionError:
            pass
        for number, batch in enumerate(kept):
            assert_same(batch, wanted[epoch * count + number], where=f"epoch {epoch}, batch {number}")
    batches = batch = kept = None  # type: ignore[assignment]
    gc.collect()
    for number, found in enumerate(loader):
        assert_same(found, wanted[2 * count + number], where=f"the epoch after them, batch {number}")
    loader.close()
    assert count_loader_threads() <= before


def test_an_error_of_a_function_comes_where_it_is_and_the_next_epoch_is_whole(labeled: LMDBDataset) -> None:
    fails = True

    def failing(batch: Any) -> Any:
        if fails and batch.label[0] == 1:  # of the third batch: its first sample is number 16
            raise ZeroDivisionError
        return batch

    options: dict[str, Any] = {"order": "sequential", "num_threads": 2, "transforms": [failing]}
    loader = Loader(labeled, 8, device=DEVICE, **options)
    given: list[Any] = []
    with pytest.raises(ZeroDivisionError):
        for batch in loader:
            given.append(batch)
    fails = False
    wanted = on_cpu(labeled, 8, **options)
    for one, other in zip(given, wanted[: len(given)], strict=True):
        assert_same(one, other)
    assert len(given) == 2
    for one, other in zip(loader, wanted, strict=True):
        assert_same(one, other)


def test_several_loaders_and_iterators_at_once(ds: LMDBDataset, labeled: LMDBDataset) -> None:
    first, second = (
        Loader(ds, 3, shuffle=True, seed=0, num_threads=2, device=DEVICE),
        Loader(labeled, 4, shuffle=True, seed=0, num_threads=2, device=DEVICE),
    )
    wanted, others = on_cpu(ds, 3, num_threads=2, epochs=3), on_cpu(labeled, 4, num_threads=2)
    count = len(first)
    iterators = [iter(first), iter(first), iter(first)]
    for number, (a, b, c, d) in enumerate(zip(*iterators, second, strict=False)):
        assert_same(d, others[number])
        for epoch, found in enumerate((a, b, c)):
            assert_same(found, wanted[epoch * count + number], where=f"iterator {epoch}, batch {number}")
    assert number == len(second) - 1


# --- Processes ---

FORKED = """
import os, sys, threading, torch, lmdbloader
dataset = lmdbloader.LMDBDataset(sys.argv[1])
device = None if sys.argv[2] == "None" else sys.argv[2]
loader = lmdbloader.Loader(dataset, 4, shuffle=True, seed=0, num_threads=2, device=device)
torch.zeros(1, device="cuda")
batches = iter(loader)
before = [next(batches) for _ in range(3)]
read, write = os.pipe()
child = os.fork()
if not child:
    said = "ok"
    try:
        for batch in loader:
            pass
    except BaseException as error:
        said = f"{type(error).__name__}: {error}"
    os.write(write, said.encode()[:4000])
    os._exit(0)
os.close(write)
print("child:", os.read(read, 5000).decode().replace("\\n", " "))
os.waitpid(child, 0)
rest = list(batches)
torch.cuda.synchronize()
print("parent:", 3 + len(rest), "of", len(loader))
"""


@pytest.mark.parametrize("device", ["cpu", None, "cuda"])
def test_a_fork_after_cuda_was_used_is_clear(pairs: Path, tmp_path: Path, device: str | None) -> None:
    """CUDA does not work in a forked child: code that needs it raises and does not hang; the parent continues."""
    (tmp_path / "forked.py").write_text(FORKED)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-W", "ignore", str(tmp_path / "forked.py"), str(pairs), str(device)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, env=environment)
    assert done.returncode == 0, done.stderr
    child, parent = done.stdout.splitlines()
    assert parent == f"parent: {-(-COUNT // 4)} of {-(-COUNT // 4)}"
    if device == "cpu":
        assert child == "child: ok"
    else:
        assert child == "child: ok" or "fork" in child, child
