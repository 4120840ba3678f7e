"""Samples that tests write in processes of their own, which import neither torch nor pytest for them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import numpy as np

COUNT = 300  # with `prepare`, a task has 64 samples


def picture(number: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(number).integers(0, 256, (5 + number % 3, 7, 3)).astype(np.uint8)


class Pictures:
    """A dataset that does something at one of its samples."""

    classes = ("cat", "dog", "eel")

    def __init__(self, at: int = -1, act: Callable[[], None] = lambda: None) -> None:
        self.at, self.act = at, None if at < 0 else act

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        if index == self.at and self.act is not None:
            self.act()
        return picture(index), index % 3


def prepared(sample: Any) -> dict[str, Any]:
    return {"image": sample[0][:, ::2], "label": sample[1], "name": f"n{sample[1]}"}


def drawn(number: int) -> dict[str, Any]:
    return {"image": picture(number), "number": number, "text": "é" * number}


def numbered(sample: Any) -> dict[str, Any]:
    return {"image": sample["image"], "number": sample["more"][0]["number"].item()}


def fail() -> None:
    raise ZeroDivisionError("the lamp is broken")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
