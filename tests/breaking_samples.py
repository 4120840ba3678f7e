"""A dataset that breaks, for tests and for processes that they kill; these import neither torch nor pytest for it."""

from __future__ import annotations

from typing import Any

import numpy as np

COUNT = 240


def sample(number: int) -> dict[str, Any]:
    image = np.random.default_rng(number).integers(0, 256, (9 + number % 4, 11, 3)).astype(np.uint8)
    return {
        "image": image,
        "label": number % 5,
        "weight": number / 7 if number % 9 else float("nan"),
        "name": f"ü{number}",
    }


class Samples:
    """A dataset that can break, and whose samples can be changed."""

    def __init__(self, breaks_at: int = -1, **changed: Any) -> None:
        self.breaks_at, self.changed = breaks_at, changed

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == self.breaks_at:
            raise RuntimeError("a bad sample")
        return {**sample(index), **self.changed}
