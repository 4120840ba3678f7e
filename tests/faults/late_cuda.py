"""A stand-in for CUDA whose copies happen late, with a host allocator that waits for those it knows of, as torch's."""

from __future__ import annotations

import ctypes
import math
import random
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import numpy as np
import torch

_PAGE = 4096
# Streams wait for each other, and several threads use them.
_LOCK = threading.RLock()


class Stream:
    """Work in order; the oldest is done when so much came after it, or when somebody waits."""

    def __init__(self, lag: Callable[[], int]) -> None:
        self._lag = lag
        self._waiting: deque[Callable[[], Any]] = deque()
        self.num_enqueued = self.num_done = 0

    def enqueue(self, work: Callable[[], Any]) -> None:
        """Have something done later."""
        with _LOCK:
            self._waiting.append(work)
            self.num_enqueued += 1
            self.run_to(self.num_enqueued - self._lag())

    def run_to(self, number: int) -> None:
        """Run the operations up to a number."""
        with _LOCK:
            while self.num_done < number:
                self._waiting.popleft()()
                self.num_done += 1

    def wait_event(self, event: Event) -> None:
        """Have later operations wait for an event."""
        self.enqueue(event.synchronize)

    def wait_stream(self, other: Stream) -> None:
        """Have later operations wait for all that another stream has now."""
        event = Event()
        event.record(other)
        self.wait_event(event)

    def synchronize(self) -> None:
        """Do everything."""
        self.run_to(self.num_enqueued)


class Event:
    """A moment on a stream."""

    def __init__(self, blocking: bool = False) -> None:
        self._stream: Stream | None = None
        self._number = 0

    def record(self, stream: Stream) -> None:
        """Be the moment when all that the stream has now is done."""
        self._stream, self._number = stream, stream.num_enqueued

    def query(self) -> bool:
        """Return whether it has come."""
        return self._stream is None or self._stream.num_done >= self._number

    def synchronize(self) -> None:
        """Wait for it."""
        if self._stream is not None:
            self._stream.run_to(self._number)


class _Block:
    """Memory that is never returned to the system: a late read returns its content at that time."""

    def __init__(self, nbytes: int) -> None:
        room = np.empty(nbytes + _PAGE, np.uint8)
        start = -room.ctypes.data % _PAGE
        self.memory = room[start : start + nbytes]
        self.address: int = self.memory.ctypes.data
        self.streams: set[Stream] = set()
        self.events: list[Event] = []
        self.context = 0
        self.of: Any = None


class HostAllocator:
    """Pinned memory by sizes that are powers of two; a source of a copy waits for its events.

    A copy is known by the storage that it reads from, or else by an address that is that of a block. The memory of a
    device is of the stream that it was taken on, and waits for the other streams that it is known to be used on.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()  # memory may be given back while some is taken
        self._free: dict[Any, list[_Block]] = {}
        self._pending: list[_Block] = []
        self._blocks: dict[int, _Block] = {}
        self._contexts: dict[int, _Block] = {}
        self.num_taken = 0

    @property
    def num_blocks(self) -> int:
        """The number of blocks ever made."""
        return len(self._blocks)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype, of: Any = None) -> torch.Tensor:
        """Return a tensor of this memory; `of` is the stream of a device's."""
        nbytes = math.prod(shape) * dtype.itemsize
        size = 1 << max(nbytes - 1, 0).bit_length()
        with self.lock:
            ready = [block for block in self._pending if all(event.query() for event in block.events)]
            for block in ready:
                self._pending.remove(block)
                self._free[len(block.memory), block.of].append(block)
            free = self._free.setdefault((size, of), [])
            block = free.pop() if free else _Block(size)
            block.of = of
            self._blocks[block.address] = block
            self.num_taken += 1
            owned = block.memory[:nbytes]
            weakref.finalize(owned, self._released, block).atexit = False
            tensor = torch.from_numpy(owned).view(dtype).view(shape)
            block.context = tensor.untyped_storage()._cdata
            self._contexts[block.context] = block
        return tensor

    def _released(self, block: _Block) -> None:
        with self.lock:
            del self._contexts[block.context]
            block.events = []
            for stream in block.streams:
                block.events.append(Event())
                block.events[-1].record(stream)
            block.streams = set()
            self._pending.append(block)

    def has(self, address: int) -> bool:
        """Return whether an address is in pinned memory."""
        return any(0 <= address - block.address < len(block.memory) for block in list(self._blocks.values()))

    def record_event(self, source: torch.Tensor, stream: Stream) -> None:
        """Note a copy."""
        with self.lock:
            block = self._contexts.get(source.untyped_storage()._cdata) or self._blocks.get(source.data_ptr())
            if block is not None:
                block.streams.add(stream)


class LateCuda:
    """One device.

    Attributes:
        host: Its pinned memory.
        memory: Its own.
        num_late: How many copies were started that read later.
    """

    def __init__(self, seed: int = 0, most_lag: int = 12) -> None:
        """Start with one stream; a copy is done when 0 to `most_lag` others came after it on its stream."""
        self._random = random.Random(seed)
        self._most_lag = most_lag
        self.host, self.memory = HostAllocator(), HostAllocator()
        self.streams: list[Stream] = []
        self._default, self._here = self.new_stream(), threading.local()
        self.num_late = 0

    @property
    def current(self) -> Stream:
        """The stream of this thread."""
        return getattr(self._here, "stream", self._default)

    def new_stream(self, device: Any = None) -> Stream:
        """Return one more stream."""
        self.streams.append(Stream(lambda: self._random.randint(0, self._most_lag)))
        return self.streams[-1]

    @contextmanager
    def on_stream(self, stream: Stream) -> Iterator[None]:
        """Copy on a stream."""
        before, self._here.stream = self.current, stream
        try:
            yield
        finally:
            self._here.stream = before

    def copy(self, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        """Return a tensor with the content of the source: now, or later if the source is pinned."""
        dense = torch.empty_like(source, device="meta")
        result = self.memory.empty((source.numel(),), source.dtype, self.current).as_strided(
            source.shape, dense.stride()
        )
        is_dense = source.is_contiguous() or source.is_contiguous(memory_format=torch.channels_last)
        if not (non_blocking and is_dense and self.host.has(source.data_ptr())):
            return result.copy_(source)  # by way of other memory, before the call returns
        address, nbytes = source.data_ptr(), source.numel() * source.itemsize
        target = result.data_ptr()  # the copy does not keep the memory
        self.current.enqueue(lambda: ctypes.memmove(target, address, nbytes))
        self.host.record_event(source, self.current)
        self.num_late += 1
        return result

    def synchronize(self, device: Any = None) -> None:
        """Do everything."""
        for stream in self.streams:
            stream.synchronize()


@contextmanager
def late_cuda(seed: int = 0, most_lag: int = 12) -> Iterator[LateCuda]:
    """Have torch find a device, and copy to it late; tensors "on" it are such of the processor's."""
    cuda = LateCuda(seed, most_lag)
    plain_empty, plain_to = torch.empty, torch.Tensor.to

    def empty(*shape: Any, pin_memory: bool = False, dtype: torch.dtype | None = None, **options: Any) -> torch.Tensor:
        if not pin_memory:
            options = {} if "cuda" in str(options.get("device")) else options
            return plain_empty(*shape, dtype=dtype, **options)
        sizes = shape if isinstance(shape[0], int) else tuple(shape[0])
        return cuda.host.empty(sizes, dtype or torch.get_default_dtype())

    def to(tensor: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        device = args[0] if args else options.get("device")
        if isinstance(device, str | torch.device) and torch.device(device).type == "cuda":
            return cuda.copy(tensor, options.get("non_blocking", False))
        return plain_to(tensor, *args, **options)

    def record_stream(tensor: torch.Tensor, stream: Stream) -> None:
        cuda.memory.record_event(tensor, stream)

    instead = {
        "is_available": lambda: True, "device_count": lambda: 2, "current_device": lambda: 0,
        "Stream": cuda.new_stream, "Event": Event, "stream": cuda.on_stream,
        "current_stream": lambda device=None: cuda.current, "synchronize": cuda.synchronize,
        "mem_get_info": lambda device=None: (2**30, 2**31),
    }  # fmt: skip
    with ExitStack() as patches:
        for name, value in instead.items():
            patches.enter_context(mock.patch.object(torch.cuda, name, value))
        patches.enter_context(mock.patch.object(torch, "empty", empty))
        patches.enter_context(mock.patch.object(torch.Tensor, "to", to))
        patches.enter_context(mock.patch.object(torch.Tensor, "record_stream", record_stream))
        yield cuda
