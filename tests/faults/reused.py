"""Samples whose producer reuses memory: the dataset equals one written from copies."""

from __future__ import annotations

import copy
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from PIL import Image

from .containers import CONTAINERS, IMAGES, Refill
from .outcome import Outcome

# A group of samples is as large as one sample, a few, or all of them.
_GROUP_NBYTES = (1, 5000, 8 * 2**20)
_OPTIONS: tuple[dict[str, Any], ...] = ({"codec": "raw"}, {"codec": "lz4"}, {})
_OF_IMAGES: tuple[dict[str, Any], ...] = (
    {"write_mode": "jpg"},
    {"write_mode": "proportion", "seed": 3},
    {"max_resolution": 7},
    {"write_mode": "jpg", "max_resolution": 7},
)


def run(count: int, seed: int, folder: Path) -> Outcome:
    """Write `count` datasets of samples in reused memory, each container in turn."""
    found = dict.fromkeys(("written", "kinds of memory", "samples", "same digest", "other digest"), 0)
    failures = []
    for number in range(count):
        rng = random.Random(f"reused {seed} {number}")
        name = list(CONTAINERS)[number % len(CONTAINERS)]
        what, num_samples, reused, copied = _case(rng, name, folder)
        same = reused == copied
        found["written"] += 1
        found["samples"] += num_samples
        found["same digest" if same else "other digest"] += 1
        if not same:
            failures.append(f"case {number} of seed {seed}: {name}, {what}: {reused}, of copies {copied}")
    found["kinds of memory"] = min(count, len(CONTAINERS))
    return Outcome(found, failures)


def _case(rng: random.Random, name: str, folder: Path) -> tuple[str, int, str, str]:
    """Return the way of writing, the number of samples, and the digests of the datasets of them and of copies."""
    height, width, num_samples = rng.randrange(1, 20), rng.randrange(1, 20), rng.randrange(2, 40)
    options = rng.choice((*_OPTIONS, *_OF_IMAGES) if name in IMAGES else _OPTIONS)
    refill = CONTAINERS[name](folder, height, width)
    make = rng.choice((_dicts, _one_dict, _one_list, _tuples))
    fields = {} if make in (_dicts, _one_dict) else {"fields": ("x", "number")}
    limit = rng.choice(_GROUP_NBYTES)
    with mock.patch("lmdbloader.conversion.samples.GROUP_NBYTES", limit):
        reused = _digest(make(refill, num_samples), folder, {**options, **fields})
        refill = CONTAINERS[name](folder, height, width)
        copies = [(copied_of(refill(number)), number) for number in range(num_samples)]
        copied = _digest(copies, folder, {**options, "fields": ("x", "number")})
    what = f"{num_samples} of {height} x {width}, {make.__name__.strip('_')}, {options}, groups of {limit} bytes"
    return what, num_samples, reused, copied


def _digest(samples: Any, folder: Path, options: dict[str, Any]) -> str:
    import lmdbloader

    out = folder / "out"
    digest = lmdbloader.write(samples, out, **options).content_digest
    shutil.rmtree(out)
    return digest


def _dicts(refill: Refill, num_samples: int) -> Iterator[Any]:
    for number in range(num_samples):
        yield {"x": refill(number), "number": number}


def _one_dict(refill: Refill, num_samples: int) -> Iterator[Any]:
    sample: dict[str, Any] = {}
    for number in range(num_samples):
        sample["x"] = refill(number)
        sample["number"] = number
        yield sample
        sample.clear()
    refill(num_samples)  # also behind the last one


def _one_list(refill: Refill, num_samples: int) -> Iterator[Any]:
    sample: list[Any] = []
    for number in range(num_samples):
        sample[:] = refill(number), number
        yield sample


def _tuples(refill: Refill, num_samples: int) -> Iterator[Any]:
    return ((refill(number), number) for number in range(num_samples))


def copied_of(value: Any) -> Any:
    """Return a value that shares no memory with the one that is given."""
    if isinstance(value, np.ndarray):
        return np.array(value)
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, Image.Image):
        return Image.fromarray(np.array(value))
    return bytes(value) if isinstance(value, bytearray | memoryview) else copy.deepcopy(value)
