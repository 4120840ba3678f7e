"""Functions of the user are called by one thread at a time, unless they are marked as thread-safe."""

from __future__ import annotations

import functools
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_batch_dataset_processes import exit_status_of_child
from torch import nn

import lmdbloader
from lmdbloader import LMDBDataset, Loader, fields
from lmdbloader.errors import OptionError
from lmdbloader.transforms import WithIndices, thread_safe

COUNT, THREADS = 128, 4


@pytest.fixture(autouse=True)
def several_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmdbloader.loader.loader.count_cores", lambda: THREADS)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Masks are equal to their images, and stay so in any step that moves both in the same way."""
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, (COUNT, 8, 8), np.uint8)
    path = tmp_path_factory.mktemp("turns") / "d"
    samples = ({"image": p[..., None], "mask": p, "label": i} for i, p in enumerate(pictures))
    lmdbloader.write(samples, path, fields={"mask": fields.Mask()})
    return path


class Flip:
    """Keeps its random choice in the object, as most transforms of images and masks do."""

    def draw(self) -> None:
        self.flips = random.random() < 0.5
        time.sleep(0.0002)

    def change(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.flip(-1) if self.flips else tensor

    def __call__(self, values: Any) -> Any:
        self.draw()
        image = self.change(values.image)
        time.sleep(0.0002)
        return values._replace(image=image, mask=self.change(values.mask))


def unfit(batches: Any) -> int:
    """Return the number of masks that do not fit their images."""
    return sum(int((batch.image[:, 0] != batch.mask).flatten(1).any(1).sum()) for batch in batches)


class OfTwo(nn.Module):
    """Two functions that share one object."""

    def __init__(self, flip: Flip) -> None:
        super().__init__()
        self.flip = flip

    def forward(self, values: Any) -> Any:
        return self.flip(values)


class Subclass(LMDBDataset):
    flip: Flip

    def transform(self, sample: Any) -> Any:
        return self.flip(sample)


def test_masks_fit_whatever_calls_the_function(path: Path) -> None:
    flip = Flip()
    own = LMDBDataset(path, transform=flip)
    subclass = Subclass(path)
    subclass.flip = flip
    batched: list[Callable[[Any], Any]] = [flip, OfTwo(flip), lambda batch: flip(batch), functools.partial(flip)]
    loaders = [
        Loader(own, 16, shuffle=True),
        Loader(torch.utils.data.Subset(own, range(0, COUNT, 2)), 16, shuffle=True),
        Loader(subclass, 16, shuffle=True),
        *(Loader(path, 1, shuffle=True, transforms=[function]) for function in batched),
        Loader(path, 1, shuffle=True, transforms=[WithIndices(lambda batch, indices: flip(batch))]),
    ]
    # All at once, and samples in the loop: they share the object.
    for batches in zip(*loaders, strict=False):
        assert unfit(batches) == 0
        assert all(torch.equal(sample.image[0], sample.mask) for sample in (own[0], subclass[1]))
    for loader in loaders:
        assert unfit(loader) == 0
        loader.close()


class Meeting:
    """Each call waits for another one."""

    def __init__(self) -> None:
        self.barrier = threading.Barrier(2)

    def __call__(self, batch: Any, *others: Any) -> Any:
        self.barrier.wait(60)
        return batch

    def method(self, batch: Any) -> Any:
        return self(batch)


@thread_safe
class MarkedMeeting(Meeting):
    pass


def of_torchvision(function: Any) -> Any:
    """Return a container of stand-ins for transforms of torchvision."""

    class Transform(nn.Module):
        __module__ = "torchvision.transforms.v2._transform"

        def forward(self, batch: Any) -> Any:
            return function(batch)

    return nn.Sequential(Transform(), nn.Sequential())


def test_marked_functions_are_called_at_once(path: Path) -> None:
    def function(batch: Any) -> Any:
        return meeting(batch)

    meeting = Meeting()
    ways: list[Any] = [
        thread_safe(function),
        thread_safe(Meeting()),
        MarkedMeeting(),
        MarkedMeeting().method,
        functools.partial(thread_safe(Meeting())),
        thread_safe(OfTwo(Meeting())),  # type: ignore[arg-type]
        WithIndices(thread_safe(Meeting())),
        of_torchvision(Meeting()),
    ]
    for way in ways:
        loader = Loader(path, COUNT // 4, transforms=[way])
        assert len(list(loader)) == 4
        loader.close()
    loader = Loader(LMDBDataset(path, transform=thread_safe(Meeting())), COUNT // 4)
    assert len(list(loader)) == 4
    loader.close()


def test_a_function_reads_from_another_loader(path: Path) -> None:
    """One without functions, or with marked ones; else it is an error and not a deadlock."""
    plain = Loader(path, 16)
    marked = Loader(path, 16, transforms=[thread_safe(lambda batch: batch)])

    alone = Loader(LMDBDataset(path, transform=Flip()), 16)

    def pasting(inner: Loader) -> Callable[[Any], Any]:
        return lambda batch: batch._replace(label=batch.label + sum(len(other.label) for other in inner))

    for inner in (plain, marked):
        assert all((batch.label >= COUNT).all() for batch in Loader(path, 32, transforms=[pasting(inner)]))
    with pytest.raises(OptionError, match=r"the function .*pasting.* reads from a Loader .* the function .*Flip"):
        list(Loader(path, 32, transforms=[pasting(alone)]))
    outer = Loader(path, 32, transforms=[thread_safe(pasting(alone))])
    assert all((batch.label >= COUNT).all() for batch in outer)


def test_a_child_forked_during_a_turn_has_turns_of_its_own(path: Path) -> None:
    entered, leave, parent = threading.Event(), threading.Event(), os.getpid()

    def hold(batch: Any) -> Any:
        if os.getpid() == parent:
            entered.set()
            leave.wait()
        return batch

    loader = Loader(path, 16, transforms=[hold])
    thread = threading.Thread(target=lambda: list(loader))
    thread.start()
    try:
        assert entered.wait(60)
        assert exit_status_of_child(lambda: sum(len(batch.label) for batch in loader) == COUNT) == 0
    finally:
        leave.set()
        thread.join()
    loader.close()
