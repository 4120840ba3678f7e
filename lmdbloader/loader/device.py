"""Copies batches to a CUDA device during the step before."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from lmdbloader.errors import OptionError

_logger = logging.getLogger("lmdbloader")


def usable_device(device: str | int | torch.device | None) -> torch.device | None:
    """Return the device that batches are copied to; None if they stay in the computer's memory.

    Raises:
        OptionError: It is not a CUDA device or the CPU, or this machine does not have it.
    """
    expected = "expected 'cpu', 'cuda' or 'cuda:N'"
    if device is None:
        return None
    if isinstance(device, int):  # as elsewhere in torch, a number means a GPU
        device = f"cuda:{device}"
    try:
        wanted = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise OptionError(f"device={str(device)!r} is not a device; {expected}") from error
    if wanted.type == "cpu":
        return None
    if wanted.type != "cuda":
        raise OptionError(f"device={str(device)!r}: batches are copied to CUDA devices only; {expected}")
    if not torch.cuda.is_available():
        _logger.warning("lmdbloader: device=%r, but there is no CUDA device here: batches stay on the CPU", str(device))
        return None
    if (wanted.index or 0) >= (count := torch.cuda.device_count()):
        raise OptionError(f"device={str(device)!r}: the CUDA devices here are cuda:0 to cuda:{count - 1}; {expected}")
    return wanted


class Copies:
    """Copies of one loader's batches to a device, on a stream for each GPU that it means.

    torch keeps a device's memory for the stream that used it. With a new stream for every epoch the device would soon
    hold the batches of 32 streams, which is how many there are.

    Attributes:
        device: The device.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._streams: dict[int, Any] = {}

    def of(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Return batches on the device; one without a number is the current device."""
        number = torch.cuda.current_device() if self.device.index is None else self.device.index
        if number not in self._streams:
            self._streams[number] = torch.cuda.Stream(number)  # type: ignore[no-untyped-call]
        return on_device(batches, self.device, self._streams[number])


def on_device(batches: Iterator[Any], device: torch.device, stream: Any) -> Iterator[Any]:
    """Yield batches on a CUDA device; the next one is copied on another stream while the loop works on this one.

    Args:
        batches: Tensors in pinned memory, in tuples, lists and dicts; other values stay as they are.
        device: The CUDA device.
        stream: Of this device, for the copies.
    """
    coming: deque[tuple[Any, Any]] = deque()
    failures: list[Exception] = []
    # torch keeps the memory of its own pinned tensors until copies from them are done. It cannot do so for tensors that
    # a function made through NumPy, or pinned by other means: so every source is held until its copy is done.
    sources: deque[tuple[Any, Any]] = deque()

    def start_next() -> None:
        try:
            batch = next(batches)
        except StopIteration:
            return
        except Exception as error:  # raised after the batch that is being copied
            failures.append(error)
            return
        with torch.cuda.stream(stream):
            moved = apply(batch, lambda tensor: tensor.to(device, non_blocking=True))
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record(stream)
        sources.append((batch, copied))
        coming.append((moved, copied))

    try:
        start_next()
        while coming:
            moved, copied = coming.popleft()
            start_next()
            while sources and sources[0][1].query():
                sources.popleft()
            current = torch.cuda.current_stream(device)
            current.wait_event(copied)
            # The stream's next copy must not use this memory on the device while the step reads it.
            apply(moved, partial(torch.Tensor.record_stream, s=current))
            yield moved
            del moved
        if failures:
            raise failures[0]
    finally:
        for _, copied in sources:
            copied.synchronize()


def apply(value: Any, function: Callable[[torch.Tensor], Any]) -> Any:
    """Return a value with a function applied to every tensor in its tuples, lists and dicts."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*[apply(item, function) for item in value])
    if isinstance(value, list | tuple):
        return type(value)([apply(item, function) for item in value])
    if isinstance(value, dict):
        return {key: apply(item, function) for key, item in value.items()}
    return value
