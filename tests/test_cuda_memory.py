"""Memory that a copy on a CUDA device still reads, or a step still uses, is not written to; and none is lost over time.

The device is held up, so that copies wait while the loop runs ahead and the loader's memory goes round several times.
Wrong reuse then shows in the batches, which are compared with those of the CPU.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from cuda_device import DEVICE, NEEDS_CUDA, assert_all_same, hold_up, on_cpu, repeated, sleep, watch_streams

import lmdbloader
from lmdbloader import LMDBDataset, Loader
from lmdbloader.transforms import ToDtype

pytestmark = NEEDS_CUDA

SIDE = 32
COUNT = 96
# Batches of an epoch; many more than a loader keeps memory for, where they are large.
NUM_BATCHES = 72
# The device is held up this long at a time, and again after so many batches: in the first of these a loader without
# anything to wait for has gone through the epoch.
SECONDS = 0.05
EVERY = 24
# A copy that is not awaited leaves the loop free to ask for so many batches, at least, while it is pending.
AHEAD = 2
OPTIONS: dict[str, Any] = {"order": "random", "seed": 5, "num_threads": 2, "prefetch": 1}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> LMDBDataset:
    path = tmp_path_factory.mktemp("cuda") / "images.lmdb"
    rng = np.random.default_rng(0)
    samples = (
        {"image": rng.integers(0, 256, (SIDE, SIDE, 3), np.uint8), "label": i, "vector": rng.random(700)}
        for i in range(COUNT)
    )
    lmdbloader.write(samples, path)
    return LMDBDataset(path, fields=["image"])


@pytest.fixture(scope="module")
def fields(images: LMDBDataset) -> LMDBDataset:
    """The same with a label and an array, whose memory the loader does not pin."""
    return LMDBDataset(images.path)


@pytest.fixture(autouse=True)
def device_is_idle() -> Iterator[None]:
    yield
    torch.cuda.synchronize()
    gc.collect()


class Wait:
    """Holds a stream up again and again, and counts the batches that came while the first copy was pending."""

    def __init__(self) -> None:
        self.step, self.ahead = 0, 0
        self._first: Any = None

    def __call__(self) -> None:
        """Call once a batch, before it is used."""
        if self.step % EVERY == 0:
            event = hold_up(SECONDS)
            self._first = self._first or event
        elif self.ahead == self.step - 1 and not self._first.query():
            self.ahead = self.step
        self.step += 1


def many(dataset: LMDBDataset, batch_size: int) -> Any:
    return repeated(dataset, NUM_BATCHES * batch_size)


# --- Pinned batches that the loop copies itself ---

WAYS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "to": lambda image: image.to(DEVICE, non_blocking=True),
    "cuda": lambda image: image.cuda(non_blocking=True),
    "copy_": lambda image: torch.empty(image.shape, dtype=image.dtype, device=DEVICE).copy_(image, non_blocking=True),
    "a slice": lambda image: image[1:].to(DEVICE, non_blocking=True),
    "a flat view": lambda image: image.flatten()[5:].to(DEVICE, non_blocking=True),
    "turned": lambda image: image.transpose(2, 3).to(DEVICE, non_blocking=True),
    "through numpy": lambda image: torch.from_numpy(image.numpy()).to(DEVICE, non_blocking=True),
    "through dlpack": lambda image: torch.from_dlpack(image).to(DEVICE, non_blocking=True),
    "chunks": lambda image: torch.cat([one.to(DEVICE, non_blocking=True) for one in image.chunk(2)]),
}


def blocking(way: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the equivalent of a way for tensors on the CPU."""
    return {
        "a slice": lambda image: image[1:],
        "a flat view": lambda image: image.flatten()[5:],
        "turned": lambda image: image.transpose(2, 3),
    }.get(way, lambda image: image)


def copy_in_the_loop(dataset: Any, batch_size: int, way: str, *, must_run_ahead: bool = True, **options: Any) -> None:
    """Copy each batch behind a stream that is held up, and let it go at once; compare at the end."""
    wanted = [blocking(way)(batch.image) for batch in on_cpu(dataset, batch_size, **OPTIONS)]
    loader = Loader(dataset, batch_size, **OPTIONS, **options)
    copy = WAYS[way]
    # A kernel is loaded when it is first used, which waits for the device.
    copy(on_cpu(dataset, batch_size, **OPTIONS)[0].image.pin_memory())
    torch.cuda.synchronize()
    wait = Wait()
    moved = []
    for batch in loader:
        wait()
        moved.append(copy(batch.image))
        del batch
    torch.cuda.synchronize()
    loader.close()
    assert_all_same(moved, wanted)
    assert not must_run_ahead or wait.ahead >= AHEAD, f"after {wait.ahead} batches the loop waited for the device"


# Copies of memory that is not contiguous, or that a tensor does not own, may wait for the device.
MAY_WAIT = {"turned", "through numpy", "through dlpack", "chunks"}


@pytest.mark.parametrize("batch_size", [2, 64])
@pytest.mark.parametrize("way", WAYS)
def test_a_batch_that_is_dropped_while_its_copy_is_pending(images: LMDBDataset, way: str, batch_size: int) -> None:
    copy_in_the_loop(many(images, batch_size), batch_size, way, must_run_ahead=way not in MAY_WAIT)


def test_several_epochs_left_early_with_copies_pending(images: LMDBDataset) -> None:
    dataset = many(images, 64)
    loader = Loader(dataset, 64, **OPTIONS)
    wanted, moved = [], []
    for epoch in range(4):
        loader.set_epoch(epoch)
        for number, batch in enumerate(loader):
            if number == 0:
                hold_up(SECONDS)
            moved.append(batch.image.to(DEVICE, non_blocking=True))
            del batch
            if number == 20:
                break
    loader.close()
    del loader  # its memory is given back while copies are pending
    gc.collect()
    epochs = on_cpu(dataset, 64, epochs=4, **OPTIONS)
    for epoch in range(4):
        wanted += [batch.image for batch in epochs[epoch * NUM_BATCHES :][:21]]
    torch.cuda.synchronize()
    assert_all_same(moved, wanted)


# --- Which memory is pinned ---


# --- Batches that the Loader copies ---

STEPS: dict[str, Callable[[Any], torch.Tensor]] = {
    "kept": lambda batch: batch.image,
    "used late, then dropped": lambda batch: batch.image.clone(),
    "a part of it used late": lambda batch: batch.image[1:, :, 3:].contiguous(),
}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("batch_size", [2, 64])
@pytest.mark.parametrize("held_up", ["copies", "steps", "both"])
def test_batches_on_the_device(
    images: LMDBDataset, held_up: str, batch_size: int, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither pending copies nor pending steps see memory that became another batch's, here or on the device."""
    # To load a kernel, when it is first used, waits for the device.
    STEPS[step](next(iter(Loader(images, batch_size, device=DEVICE, **OPTIONS))))
    made = watch_streams(monkeypatch)
    dataset = many(images, batch_size)
    found, wait = [], Wait()
    for number, batch in enumerate(Loader(dataset, batch_size, device=DEVICE, **OPTIONS)):
        assert made, "the Loader copies on a stream of its own"
        if held_up != "copies":
            wait()  # the loop's stream, after the batch came and before it is used
        if held_up != "steps" and number % EVERY == 0:
            hold_up(SECONDS, made[-1])
        found.append(STEPS[step](batch))
        del batch
    if held_up != "copies":
        assert wait.ahead >= AHEAD, f"after {wait.ahead} batches the loop waited for the device"
    torch.cuda.synchronize()
    assert_all_same(found, [STEPS[step](batch) for batch in on_cpu(dataset, batch_size, **OPTIONS)])


def test_every_field_on_the_device(fields: LMDBDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers and arrays are copied from memory that is not pinned; nobody writes to that either."""
    made = watch_streams(monkeypatch)
    dataset = many(fields, 32)
    found = []
    for number, batch in enumerate(Loader(dataset, 32, device=DEVICE, **OPTIONS)):
        if number % EVERY == 0:
            hold_up(SECONDS, made[-1])
            hold_up(SECONDS)
        found.append([value.clone() for value in batch])
        del batch
    torch.cuda.synchronize()
    wanted = [list(batch) for batch in on_cpu(dataset, 32, **OPTIONS)]
    for place in range(3):
        assert_all_same([values[place] for values in found], [values[place] for values in wanted])


def test_a_graph_that_is_captured_while_threads_read(images: LMDBDataset) -> None:
    """A captured step is replayed on batches that are copied into its input; the loader's threads go on meanwhile."""
    dataset = many(images, 64)
    loader = Loader(dataset, 64, device=DEVICE, transforms=[ToDtype(torch.float32, scale=True)], **OPTIONS)
    batches = iter(loader)
    image = next(batches).image.clone()
    sums = torch.zeros(64, device=DEVICE)
    warm = torch.cuda.Stream()
    warm.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warm):
        for _ in range(2):
            sums.copy_((image * 2).sum(dim=(1, 2, 3)))
    torch.cuda.current_stream().wait_stream(warm)
    graph = torch.cuda.CUDAGraph()
    # The way of capturing that the documentation of torch asks for where other threads use CUDA.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        sums.copy_((image * 2).sum(dim=(1, 2, 3)))
    found = []
    for batch in batches:
        image.copy_(batch.image)
        graph.replay()
        found.append(sums.clone())
        del batch
    wanted = on_cpu(dataset, 64, transforms=[ToDtype(torch.float32, scale=True)], **OPTIONS)[1:]
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.cpu(), (other.image * 2).sum(dim=(1, 2, 3)), rtol=1e-4, atol=1e-2)


# --- Over time ---


def test_the_device_memory_that_is_held_does_not_grow_with_the_epochs(images: LMDBDataset) -> None:
    """Memory that one epoch's copies leave is that of the next one's: torch keeps it for the stream it was used on."""
    loader = Loader(many(images, 64), 64, device=DEVICE, transforms=[ToDtype(torch.float32, scale=True)], **OPTIONS)

    def train(epochs: int) -> int:
        for _ in range(epochs):
            for number, batch in enumerate(loader):
                batch.image.mean()
                if number == 5:
                    break
            del batch
        torch.cuda.synchronize()
        return torch.cuda.memory_reserved()

    torch.cuda.empty_cache()
    before = train(3)
    assert train(37) <= before + 4 * 2**20


def test_pinned_memory_does_not_grow_with_the_epochs(images: LMDBDataset) -> None:
    """Copies are pending all the time, and the loader still uses the same memory again in the end."""
    stats = getattr(torch.cuda, "host_memory_stats", None)
    if stats is None:
        pytest.skip("torch.cuda.host_memory_stats is not in this release of torch")
    loader = Loader(many(images, 64), 64, **OPTIONS)

    def train(epochs: int) -> int:
        for _ in range(epochs):
            for number, batch in enumerate(loader):
                if number % 8 == 0:
                    sleep(0.002)
                batch.image.to(DEVICE, non_blocking=True)
                del batch
            torch.cuda.synchronize()
        found = stats()
        key = next((k for k in ("allocated_bytes.current", "allocated_bytes.allocated") if k in found), None)
        if key is None:
            pytest.skip(f"host_memory_stats has other names: {', '.join(list(found)[:20])}")
        return int(found[key])

    # A loop that runs ahead of the device by a whole epoch needs the memory of one, rounded up; twenty need no more.
    of_an_epoch = 2 * NUM_BATCHES * 64 * 3 * SIDE * SIDE
    before = train(3)
    assert train(20) <= before + of_an_epoch
