"""Batches on their way to an accelerator, copied while the step before runs."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

_logger = logging.getLogger("lmdbloader")


def usable_device(device: str | torch.device | None) -> torch.device | None:
    """Return the device that batches are copied to, None where they stay in the computer's memory."""
    if device is None or torch.device(device).type == "cpu":
        return None
    wanted = torch.device(device)
    if wanted.type == "cuda" and not torch.cuda.is_available():
        _logger.warning("device=%r: there is no CUDA device here, so batches stay on the CPU", str(device))
        return None
    return wanted


def on_device(batches: Iterator[Any], device: torch.device) -> Iterator[Any]:
    """Yield batches on a device; the next one is copied on a stream of its own while the loop works on this one."""
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    coming: deque[tuple[Any, Any, Any]] = deque()

    def start_next() -> None:
        batch = next(batches, None)
        if batch is None:
            return
        with torch.cuda.stream(stream):
            moved = type(batch)(*[_moved(value, device) for value in batch])
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record(stream)
        coming.append((batch, moved, copied))

    # Memory that a copy still reads from must not be used for another batch: it is held until its event has passed.
    held: deque[tuple[Any, Any]] = deque()
    start_next()
    while coming:
        batch, moved, copied = coming.popleft()
        start_next()
        held.append((batch, copied))
        del batch
        while held and held[0][1].query():
            held.popleft()
        current = torch.cuda.current_stream(device)
        current.wait_event(copied)
        for value in moved:
            if isinstance(value, torch.Tensor):
                value.record_stream(current)
        yield moved
        del moved
    for _, copied in held:
        copied.synchronize()


def _moved(value: Any, device: torch.device) -> Any:
    return value.to(device, non_blocking=True) if isinstance(value, torch.Tensor) else value
