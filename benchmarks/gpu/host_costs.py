"""The host's cost of starting the copies of a batch: microseconds of the loop's thread, by way of copying.

In short steps the GPU waits for the host, so these count in full. Without a GPU, copies within memory stand
in, and nobody reads the figures.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

CALLS, TURNS = 100, 5
# The device is held up for so long, in cycles, where copies queue behind a step.
_BUSY_CYCLES = 100_000_000
SHAPES = {
    "pairs of 96 px, 64, uint8": ([(64, 3, 48, 48), (64, 3, 96, 96)], torch.uint8),
    "images of 128 px, 256, bfloat16": ([(256, 3, 128, 128)], torch.bfloat16),
}


def measure_host(device: torch.device, small: bool) -> list[dict[str, Any]]:
    """Return rows of `what`, `way`, `device` (idle or busy) and `us`, the median of several turns."""
    rows = []
    calls, turns = (2, 1) if small else (CALLS, TURNS)
    for what, (shapes, dtype) in SHAPES.items():
        on_cuda = device.type == "cuda"
        batch = tuple(torch.empty(shape, dtype=dtype, pin_memory=on_cuda).zero_() for shape in shapes)
        found: dict[tuple[str, bool], list[float]] = {}
        for turn in range(turns + 1):
            for way, start in ways(batch, device).items():
                for is_busy in (False, True):
                    each = seconds_of_host(start, calls, device, is_busy=is_busy)
                    if turn:  # the first one takes memory
                        found.setdefault((way, is_busy), []).append(each)
        rows += [
            {
                "what": what,
                "way": way,
                "device": "busy" if is_busy else "idle",
                "us": float(f"{1e6 * statistics.median(each):.4g}"),
            }
            for (way, is_busy), each in found.items()
        ]
    return rows


def ways(batch: tuple[Tensor, ...], device: torch.device) -> dict[str, Callable[[], Any]]:
    """Return ways to start the copies of a batch, by name."""
    on_cuda = device.type == "cuda"
    stream = torch.cuda.Stream(device) if on_cuda else None
    kept = tuple(torch.empty_like(tensor, device=device) for tensor in batch)

    def aside() -> Any:
        return torch.cuda.stream(stream) if on_cuda else contextlib.nullcontext()

    def bring() -> tuple[Tensor, ...]:
        return tuple(tensor.to(device, non_blocking=True, copy=True) for tensor in batch)

    def on_its_own_stream() -> tuple[Tensor, ...]:
        with aside():
            return bring()

    def as_the_loader() -> tuple[Tensor, ...]:
        with aside():
            moved = bring()
            if not on_cuda:
                return moved
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record(stream)
        current = torch.cuda.current_stream(device)
        current.wait_event(copied)
        for tensor in moved:
            tensor.record_stream(current)
        return moved

    def into_kept() -> None:
        with aside():
            for one, tensor in zip(kept, batch, strict=True):
                one.copy_(tensor, non_blocking=True)

    def take_memory() -> tuple[Tensor, ...]:
        return tuple(torch.empty_like(tensor, device=device) for tensor in batch)

    def take_memory_aside() -> tuple[Tensor, ...]:
        with aside():
            return take_memory()

    def change_streams() -> None:
        with aside():
            pass

    return {
        "in the loop": bring,
        "on a stream of its own": on_its_own_stream,
        "as the Loader does": as_the_loader,
        "into memory kept on the device": into_kept,
        "memory only": take_memory,
        "memory only, on a stream of its own": take_memory_aside,
        "change streams only": change_streams,
    }


def seconds_of_host(start: Callable[[], Any], calls: int, device: torch.device, *, is_busy: bool) -> float:
    """Return the seconds that one of so many calls takes the host; the device may be held up meanwhile."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        if is_busy:
            torch.cuda._sleep(_BUSY_CYCLES)
    began = time.perf_counter()
    for _ in range(calls):
        start()
    elapsed = time.perf_counter() - began
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return elapsed / calls
