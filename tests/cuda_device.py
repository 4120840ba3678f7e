"""Shared by the tests on a CUDA device: skipping, blocked streams, comparison of batches."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

import lmdbloader

DEVICE = "cuda"
NEEDS_CUDA = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: torch.cuda.is_available() is False"),
]
# The lowest clock of a busy GPU; a sleep calibrated while it was still slow is too short.
_LEAST_CYCLES = 1.2e9


@cache
def cycles_per_second() -> float:
    """Return how many cycles `torch.cuda._sleep` waits in a second."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(200_000_000)
    begin.record()
    torch.cuda._sleep(50_000_000)
    end.record()
    end.synchronize()
    return max(50_000_000 / (begin.elapsed_time(end) / 1000), _LEAST_CYCLES)


def sleep(seconds: float) -> None:
    """Have the current stream do nothing for so long; returns at once."""
    torch.cuda._sleep(int(seconds * cycles_per_second()))


def hold_up(seconds: float, stream: Any = None) -> Any:
    """Have a stream do nothing for so long, and return an event that is over afterwards; None: the current stream."""
    with torch.cuda.stream(torch.cuda.current_stream() if stream is None else stream):
        sleep(seconds)
        event = torch.cuda.Event()
        event.record()
    return event


def watch_streams(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list that gets every stream that is made from now on."""
    made: list[Any] = []
    stream_type = torch.cuda.Stream

    def make(*args: Any, **options: Any) -> Any:
        stream = stream_type(*args, **options)
        if "stream_id" not in options:  # so torch names one that is there already
            made.append(stream)
        return stream

    monkeypatch.setattr(torch.cuda, "Stream", make)
    return made


def repeated(dataset: Any, count: int) -> Any:
    """Return a view of so many samples: those of a small dataset again and again."""
    return dataset.select(np.resize(np.arange(len(dataset)), count))


def on_cpu(dataset: Any, batch_size: int, *, epochs: int = 1, **options: Any) -> list[Any]:
    """Return the batches of the first epochs as they come without a device."""
    loader = lmdbloader.Loader(dataset, batch_size, device="cpu", **{"order": "random", "seed": 0, **options})
    batches = [batch for _ in range(epochs) for batch in loader]
    loader.close()
    return batches


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's bits on the CPU, as whole numbers of the same shape."""
    types = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.detach().cpu().view(types[tensor.element_size()])


def assert_same(found: Any, wanted: Any, *, device: str | None = DEVICE, where: str = "batch") -> None:
    """Assert that values agree in type, shape, layout and every bit, and that their tensors are on a device."""
    if isinstance(wanted, torch.Tensor):
        assert isinstance(found, torch.Tensor), where
        assert device is None or found.device.type == device, f"{where} is on {found.device}"
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape), where
        assert _layout(found) == _layout(wanted), where
        assert torch.equal(bits(found), bits(wanted)), f"{where}: {_difference(bits(found), bits(wanted))}"
    elif isinstance(wanted, dict):
        assert found.keys() == wanted.keys(), where
        for key, value in wanted.items():
            assert_same(found[key], value, device=device, where=f"{where}[{key!r}]")
    elif isinstance(wanted, tuple | list):
        assert type(found) is type(wanted), where
        assert len(found) == len(wanted), f"{where}: {len(found)} of {len(wanted)}"
        names = getattr(wanted, "_fields", range(len(wanted)))
        for name, one, other in zip(names, found, wanted, strict=True):
            assert_same(one, other, device=device, where=f"{where}.{name}")
    else:
        assert found == wanted, where


def assert_all_same(found: Iterable[torch.Tensor], wanted: Iterable[torch.Tensor]) -> None:
    """Assert that tensors on the device have the values of those on the CPU; says how many have not."""
    pairs = list(zip(found, wanted, strict=True))
    wrong = [n for n, (one, other) in enumerate(pairs) if not torch.equal(bits(one), bits(other))]
    if wrong:
        one, other = pairs[wrong[0]]
        raise AssertionError(
            f"{len(wrong)} of {len(pairs)} batches changed, the first is number {wrong[0]}: "
            f"{_difference(bits(one), bits(other))}"
        )


def _layout(tensor: torch.Tensor) -> list[int]:
    """Return the strides that matter: of dimensions of more than one."""
    return [stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]


def _difference(found: torch.Tensor, wanted: torch.Tensor) -> str:
    if found.shape != wanted.shape:
        return f"shape {tuple(found.shape)}, expected {tuple(wanted.shape)}"
    differs = found != wanted
    first = tuple(differs.nonzero()[0].tolist())
    return f"{int(differs.sum())} of {differs.numel()} values differ, at {first}: {found[first]}, not {wanted[first]}"
