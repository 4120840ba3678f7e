"""Copies to a device of what functions return, and loops that others close: what went wrong once."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lmdbloader
from lmdbloader import Loader
from tests.faults.late_cuda import late_cuda

SIDE = 64


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    rows = (
        {
            "lr": rng.integers(0, 256, (SIDE // 2, SIDE // 2, 3), np.uint8),
            "hr": rng.integers(0, 256, (SIDE, SIDE, 3), np.uint8),
            "label": i,
            "weight": i / 2,
        }
        for i in range(96)
    )
    place = tmp_path_factory.mktemp("attack") / "d"
    lmdbloader.write(rows, place)
    return place


def luma_and_chroma(batch: Any) -> Any:
    return {"lr": batch.lr, "y": batch.hr[:, :1], "c": batch.hr[:, 1:], "label": batch.label}


def fields_of_video(batch: Any) -> Any:
    return {"lr": batch.lr, "even": batch.hr[:, :, ::2], "odd": batch.hr[:, :, 1::2]}


def label_first(batch: Any) -> Any:
    return {"label": batch.label, "lr": batch.lr, "hr": batch.hr[..., ::2]}


def cropped(batch: Any) -> Any:
    return {"lr": batch.lr, "hr": batch.hr[:, :, 4:-4, 4:-4]}


def flip_by_numpy(batch: Any) -> Any:
    return {"lr": batch.lr, "x": torch.from_numpy(batch.hr.numpy()[:, :, 1:, ::1][:, :, :, 3:])}


FUNCTIONS = [luma_and_chroma, fields_of_video, label_first, cropped, flip_by_numpy]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("threads", [4])
def test_parts_of_images_are_copied_as_they_are(path: Path, function: Any, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        options: Any = {"shuffle": True, "seed": 0, "transforms": [function]}
        expected = [{k: v.clone() for k, v in b.items()} for b in Loader(path, 32, **options)]
        with late_cuda(most_lag=40) as cuda:
            loader = Loader(path, 32, device="cuda", **options)
            found = list(loader)
            cuda.synchronize()
            loader.close()
    finally:
        torch.set_num_threads(before)
    wrong = {name for a, b in zip(expected, found, strict=False) for name in a if not torch.equal(a[name], b[name])}
    assert not wrong


def test_what_a_function_keeps_does_not_change(path: Path) -> None:
    held: list[Any] = []

    def function(batch: Any) -> Any:
        held.append((batch.hr, batch.hr.clone()))
        return {"lr": batch.lr, "label": batch.label}

    with late_cuda() as cuda:
        loader = Loader(path, 32, device="cuda", shuffle=False, transforms=[function])
        list(loader)
        cuda.synchronize()
        loader.close()
    assert all(torch.equal(a, b) for a, b in held)


@dataclass
class Meta:
    hr: torch.Tensor


@pytest.mark.parametrize("way", ["numpy", "object"])
def test_values_that_stay_on_the_cpu_do_not_change(path: Path, way: str) -> None:
    """The label is written over the first bytes of the images that a NumPy array or an object shows."""

    def function(batch: Any) -> Any:
        return {"lr": batch.lr, "label": batch.label, "hr": batch.hr.numpy() if way == "numpy" else Meta(batch.hr)}

    def images(batch: Any) -> Any:
        return batch["hr"] if way == "numpy" else batch["hr"].hr.numpy()

    expected = [images(batch).copy() for batch in Loader(path, 32, shuffle=False, transforms=[function])]
    with late_cuda() as cuda:
        loader = Loader(path, 32, device="cuda", shuffle=False, transforms=[function])
        found = [images(batch).copy() for batch in loader]
        cuda.synchronize()
        loader.close()
    assert all(map(np.array_equal, expected, found))


def test_a_dropped_batch_frees_its_memory(path: Path) -> None:
    """After the epoch, and in the middle, nothing holds the memory of a batch that the loop has dropped."""
    with late_cuda(most_lag=0) as cuda:
        loader = Loader(path, 64, shuffle=False, device="cuda", num_threads=1)
        gc.collect()
        gc.disable()
        try:
            for batch in loader:
                del batch
            loader._copies.threads.submit(lambda: None)
            time.sleep(0.2)
            left = len(cuda.host._contexts), len(cuda.memory._contexts)
            assert left == (0, 0)
        finally:
            gc.enable()
        loader.close()


def test_a_second_iterator_that_waits_ends_when_the_loader_is_closed(path: Path) -> None:
    """Without a device too: its group was dropped, and nobody says so."""
    entered, go = threading.Event(), threading.Event()

    def slow(batch: Any) -> Any:
        entered.set()
        go.wait(5)
        return batch

    loader = Loader(path, 64, shuffle=False, transforms=[slow], num_threads=1, prefetch=2)
    threads = [threading.Thread(target=lambda: _ignoring(loader), daemon=True) for _ in range(2)]
    threads[0].start()
    entered.wait(5)
    threads[1].start()
    time.sleep(0.3)
    closer = threading.Thread(target=loader.close, daemon=True)
    closer.start()
    time.sleep(0.3)
    go.set()
    closer.join(10)
    for thread in threads:
        thread.join(3)
    assert [thread.is_alive() for thread in threads] == [False, False]


def _ignoring(loader: Any) -> None:
    with contextlib.suppress(lmdbloader.errors.WorkerError):
        list(loader)


@pytest.mark.parametrize("device", [None, "cuda"])
def test_closing_from_another_thread_ends_the_wait(path: Path, device: str | None) -> None:
    """A loop that waits for a batch when another thread closes the Loader gets an error, or the batch."""
    entered, go = threading.Event(), threading.Event()

    def slow(batch: Any) -> Any:
        entered.set()
        go.wait(5)
        return batch

    with late_cuda():
        loader = Loader(path, 64, device=device, shuffle=False, transforms=[slow], num_threads=1, prefetch=2)
        thread = threading.Thread(target=lambda: _ignoring(loader), daemon=True)
        thread.start()
        entered.wait(5)
        if device == "cuda":  # the copying thread is late, as it is while it waits for the device
            loader._copies.threads.submit(lambda: time.sleep(1.5))  # type: ignore[union-attr]
        closer = threading.Thread(target=loader.close, daemon=True)
        closer.start()
        time.sleep(0.3)
        go.set()
        closer.join(10)
        thread.join(3)
        assert not thread.is_alive()
