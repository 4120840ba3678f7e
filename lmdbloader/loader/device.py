"""Copies batches to a CUDA device during the steps before, by a thread of its own."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch

from lmdbloader.base.arguments import shown
from lmdbloader.batch.shared_memory import is_plain
from lmdbloader.errors import OptionError
from lmdbloader.loader.threads import Threads

_logger = logging.getLogger("lmdbloader")
# Of the groups of batches that are copied ahead of the loop's.
_GROUPS_AHEAD = 2
_ALIGNMENT = 64
# The number of a group, its items, a batch and what goes with it, and the error that ended it.
Group = tuple[int, list[tuple[Any, Any]], "BaseException | None"]


def usable_device(device: str | int | torch.device | None) -> torch.device | None:
    """Return the device that batches are for; None if none is named, or this machine has no CUDA.

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
        return torch.device("cpu")
    if wanted.type != "cuda":
        raise OptionError(f"device={str(device)!r}: batches are copied to CUDA devices only; {expected}")
    if not torch.cuda.is_available():
        _logger.warning("lmdbloader: device=%r, but there is no CUDA device here: batches stay on the CPU", str(device))
        return None
    if (wanted.index or 0) >= (count := torch.cuda.device_count()):
        raise OptionError(f"device={str(device)!r}: the CUDA devices here are cuda:0 to cuda:{count - 1}; {expected}")
    return wanted


def copies_for(device: str | int | torch.device | None, on: Any, keep: Any) -> tuple[Copies | None, bool]:
    """Return a Loader's copies to its device, or None, and whether transforms are carried out there.

    Raises:
        OptionError: An argument is something else, or there is no device.
    """
    if not isinstance(on, str) or on not in ("cpu", "device"):
        raise OptionError(f"on={shown(on)}: expected 'cpu', or 'device' for transforms on the device")
    there = on == "device" or keep == "device"
    if there and device is None:
        what = "on" if on == "device" else "keep"
        raise OptionError(f"{what}='device': which one? Write Loader(..., device='cuda', {what}='device').")
    usable = usable_device(device)
    if usable is None or usable.type == "cpu":  # batches stay in the computer's memory
        return None, there and usable is not None
    return Copies(usable), there


class Copies:
    """Copies of one Loader's batches to a device, by a thread and on a stream of their own.

    torch keeps a device's memory for the stream that used it, and hands it out again when the last tensor of a batch
    has died and the work that read it is done. With a new stream for every epoch the device would soon hold the batches
    of 32 streams, which is how many there are.

    Attributes:
        device: The device.
        threads: The thread.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.threads = Threads(1, "lmdbloader-copies")
        self._streams: dict[int, Any] = {}

    def begin(self) -> EpochCopies:
        """Return the copies of an epoch; a device without a number is the current one.

        Raises:
            WorkerError: The system refuses the thread.
        """
        self.threads.submit(lambda: None)
        number = torch.cuda.current_device() if self.device.index is None else self.device.index
        if number not in self._streams:
            self._streams[number] = torch.cuda.Stream(number)  # type: ignore[no-untyped-call]
        return EpochCopies(torch.device("cuda", number), self._streams[number], self.threads)


# Where a tensor is: the number of its block, the bytes before it, and its type, size and strides.
_Place = tuple[int, int, torch.dtype, torch.Size, tuple[int, ...]]


@dataclass(slots=True)
class Packed:
    """A batch in pinned memory.

    Attributes:
        batch: Tensors in tuples, lists and dicts.
        places: Of its tensors, in their order; None of those that are copied one by one.
        blocks: (bytes,) uint8, the parts of pinned memory to copy, and one at most for a batch of the Loader's own.
        finish: Makes of the batch on the device what the loop gets; None if that is the batch itself.
    """

    batch: Any
    places: list[_Place | None]
    blocks: list[torch.Tensor]
    finish: Callable[[Any], Any] | None = None


def _packed(batch: Any, memory: tuple[torch.Tensor, int] | None, finish: Callable[[Any], Any] | None = None) -> Packed:
    """Return a batch whose tensors are in pinned memory: some in a block (bytes,) uint8 if there is one.

    `memory` is the block and the place from which on it is free. What is before it may be in use, also where no
    tensor of the batch is.
    """
    block, free = memory or (None, 0)
    tensors: list[torch.Tensor] = []
    apply(batch, tensors.append)
    places: list[_Place | None] = [None] * len(tensors)
    home, end, others = 0 if block is None else block.data_ptr(), 0, list[tuple[int, tuple[int, ...]]]()
    for k, tensor in enumerate(tensors):
        if type(tensor) is not torch.Tensor or not is_plain(tensor):
            continue
        strides = tensor.stride() if tensor.is_contiguous() else torch.empty_like(tensor, device="meta").stride()
        if block is None or tensor.untyped_storage().data_ptr() != home or tensor.stride() != strides:
            others.append((k, strides))
            continue
        places[k] = (0, tensor.data_ptr() - home, tensor.dtype, tensor.size(), strides)
        end = max(end, tensor.data_ptr() - home + tensor.nbytes)
    rooms = [tensors[k].nbytes + -tensors[k].nbytes % _ALIGNMENT for k, _ in others]
    at, nbytes = free if others else end, sum(rooms)
    target, blocks = block, list[torch.Tensor]()
    if target is None or not end or at + nbytes > len(target):
        if block is not None and end:
            blocks.append(block[:end])
        target, at = torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True), 0
    for (k, strides), room in zip(others, rooms, strict=True):
        tensor = tensors[k]
        place = places[k] = (len(blocks), at, tensor.dtype, tensor.size(), strides)
        _view(target, place).copy_(tensor)
        at += room
    if at:
        blocks.append(target[:at])
    return Packed(batch, places, blocks, finish)


def _view(block: torch.Tensor, place: _Place) -> torch.Tensor:
    """Return the tensor at a place in a block."""
    _, offset, dtype, size, strides = place
    nbytes = len(block) // dtype.itemsize * dtype.itemsize
    return block[:nbytes].view(dtype).as_strided(size, strides, block.storage_offset() + offset // dtype.itemsize)


@dataclass(slots=True)
class _Copied:
    """A batch on the device.

    Attributes:
        batch: What the loop gets.
        owners: Tensors of all its memory on the device.
        arrival: The event after the work on its group.
    """

    batch: Any
    owners: list[torch.Tensor]
    arrival: Any


class EpochCopies:
    """The copies of an epoch.

    Reading threads hand over groups of packed batches, in any order. The thread copies them in their order, two groups
    ahead of the loop's at most, and not before the device has done the steps of the groups before the loop's. So the
    loop gets batches whose copies have been started, and the device holds few of them.

    Attributes:
        device: The device, with its number.
        ready: Groups that are copied.
        cancelled: Whether no more batches are copied.
    """

    packed = staticmethod(_packed)

    def __init__(self, device: torch.device, stream: Any, threads: Threads) -> None:
        self.device, self._stream, self._threads = device, stream, threads
        self.ready: SimpleQueue[Group] = SimpleQueue()
        # Of the thread: groups that were read, the next one to copy, the end of those that may be copied, and later
        # ends with the events that come before.
        self._read: dict[int, tuple[list[Any], BaseException | None]] = {}
        self._next = self._end = 0
        self._later: deque[tuple[int, Any]] = deque()
        self.cancelled = False
        # Of the loop: its last stream that has waited for a group, and for which.
        self._waited: tuple[Any, Any] | None = None

    def put(self, result: Group) -> None:
        """Hand over a group: its number, items (`Packed` or another object, anything), and the error that ended it."""
        self._threads.submit(partial(self._add, *result))

    def need(self, group: int) -> None:
        """Say that the loop waits for a group, whose items in `ready` are for `given`; called in the loop's thread."""
        before = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        before.record(torch.cuda.current_stream(self.device))
        self._threads.submit(partial(self._admit, group + _GROUPS_AHEAD + 1, before))

    def given(self, item: tuple[Any, Any]) -> tuple[Any, Any]:
        """Return an item with its batch for the loop's current stream, which waits for the copies."""
        copied, rest = item
        if not isinstance(copied, _Copied):
            return item
        current = torch.cuda.current_stream(self.device)
        if self._waited != (current, copied.arrival):
            current.wait_event(copied.arrival)
            self._waited = current, copied.arrival
        for owner in copied.owners:
            owner.record_stream(current)  # the memory is not used again before this stream's work is done
        return copied.batch, rest

    def _add(self, number: int, items: list[Any], error: BaseException | None) -> None:
        self._read[number] = items, error
        self._go_on()

    def _admit(self, end: int, before: Any) -> None:
        self._later.append((end, before))
        self._go_on()

    def _go_on(self) -> None:
        """Copy the groups whose turn it is."""
        while self._next in self._read and not self.cancelled:
            copied, arrival = list[tuple[Any, Any]](), torch.cuda.Event()  # type: ignore[no-untyped-call]
            error: BaseException | None
            try:
                while self._next >= self._end and self._later:
                    self._end, before = self._later.popleft()
                    before.synchronize()
                if self._next >= self._end:
                    return
                items, error = self._read.pop(self._next)
                for batch, rest in items:
                    copied.append((self._copied(batch, arrival) if isinstance(batch, Packed) else batch, rest))
            except BaseException as failure:  # such as too little memory, or of a function; batches before it are given
                error = failure
            try:
                arrival.record(self._stream)
            except Exception as failure:
                copied, error = [], failure
            self.ready.put((self._next, copied, error))
            self._next, error = self._next + 1, None  # its traceback refers to this frame, and so to the batches
        if self.cancelled:
            self._read.clear()

    def _copied(self, packed: Packed, arrival: Any) -> _Copied:
        with torch.cuda.stream(self._stream):
            blocks = [block.to(self.device, non_blocking=True) for block in packed.blocks]
            owners, places = list(blocks), iter(packed.places)

            def moved(tensor: torch.Tensor) -> torch.Tensor:
                if (place := next(places)) is not None:
                    return _view(blocks[place[0]], place)
                owners.append(tensor.to(self.device))
                return owners[-1]

            def held(tensor: torch.Tensor) -> torch.Tensor:
                owners.append(tensor.to(self.device))  # a function may have made it in the computer's memory
                return owners[-1]

            batch = apply(packed.batch, moved)
            if packed.finish is not None:
                batch = apply(packed.finish(batch), held, _check_plain)
        return _Copied(batch, owners, arrival)


def _check_plain(value: Any) -> None:
    """Raise OptionError if a value may have tensors that nobody knows of, whose memory would be used again too soon."""
    if not isinstance(value, str | bytes | int | float | complex | np.ndarray | np.generic | None):
        raise OptionError(
            f"on='device': a function returned a {type(value).__name__}; expected tensors, numbers and text in tuples, "
            "lists and dicts. Return dict(...) of it."
        )


def apply(
    value: Any, function: Callable[[torch.Tensor], Any], check: Callable[[Any], None] = lambda value: None
) -> Any:
    """Return a value with a function applied to every tensor in its tuples, lists and dicts; `check` gets the rest."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*[apply(item, function, check) for item in value])
    if isinstance(value, list | tuple):
        return type(value)([apply(item, function, check) for item in value])
    if isinstance(value, dict):
        return {key: apply(item, function, check) for key, item in value.items()}
    check(value)
    return value
