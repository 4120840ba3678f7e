"""Functions that a Loader's threads call see what holds around the loop, as in a DataLoader without workers."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lmdbloader
from lmdbloader import LMDBDataset, Loader
from lmdbloader.transforms import ToDtype

COUNT = 24
VARIABLE: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=0)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("surroundings") / "d"
    lmdbloader.write(({"image": np.full((8, 8, 3), i, np.uint8), "label": i} for i in range(COUNT)), path)
    return path


def seen() -> tuple[Any, ...]:
    """Return what a function can see of the thread that calls it."""
    weight = torch.ones(2, 2, device="cpu", requires_grad=True)
    return (
        (weight * 2).requires_grad,
        torch.is_inference_mode_enabled(),
        (weight @ weight).dtype,
        torch.is_autocast_cache_enabled(),
        torch.get_autocast_dtype("cuda"),
        torch.empty(1).device,
        VARIABLE.get(),
        np.geterr()["over"],
    )


class Noting:
    """Notes what it sees, and in which thread."""

    def __init__(self) -> None:
        self.seen: set[tuple[Any, ...]] = set()
        self.threads: set[int] = set()

    def __call__(self, values: Any) -> Any:
        self.seen.add(seen())
        self.threads.add(threading.get_ident())
        return values


class Set(AbstractContextManager[None]):
    """Sets something for a thread, and sets it back."""

    def __init__(self, setting: Callable[[Any], Any], value: Any, before: Any) -> None:
        self.setting, self.value, self.before = setting, value, before

    def __enter__(self) -> None:
        self.setting(self.value)

    def __exit__(self, *error: object) -> None:
        self.setting(self.before)


AROUND: dict[str, Callable[[], Any]] = {
    "nothing": nullcontext,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.float16),
    "autocast without cache": lambda: torch.autocast("cpu", torch.bfloat16, cache_enabled=False),
    "autocast off": lambda: torch.autocast("cpu", enabled=False),
    "autocast dtype": lambda: Set(lambda t: torch.set_autocast_dtype("cuda", t), torch.bfloat16, torch.float16),
    "device": lambda: torch.device("meta"),
    "default device": lambda: Set(torch.set_default_device, "meta", None),
    "variable": lambda: Set(VARIABLE.set, 3, 0),
    "errstate": lambda: np.errstate(over="raise"),
}


@pytest.mark.parametrize("name", AROUND)
def test_functions_see_what_is_around_the_loop(path: Path, name: str) -> None:
    batched, own, again = Noting(), Noting(), Noting()
    loader = Loader(LMDBDataset(path, transform=own), 4, transforms=[batched])
    plain = Loader(path, 4, transforms=[ToDtype(torch.float32), again])
    batches = iter(plain)  # made outside: as with torch, the place of the call for a batch counts
    with AROUND[name]():
        found = [batch for loop in (loader, batches) for batch in loop]
        expected = seen()
    assert batched.seen == own.seen == again.seen == {expected}
    assert threading.get_ident() not in batched.threads | own.threads | again.threads
    assert sum(len(batch.label) for batch in found) == 2 * COUNT
    # The memory of batches is for every loop.
    assert not any(batch.image.is_inference() or batch.image.requires_grad for batch in found)
    assert {batch.label.device.type for batch in found} == {"cpu"}
    for noting in (batched, own, again):
        noting.seen.clear()
    list(loader), list(plain)
    assert batched.seen == own.seen == again.seen == {seen()}
    loader.close()
    plain.close()
