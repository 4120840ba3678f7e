"""Passes what is large between two processes through memory that both can map; a socket carries only its handle."""

from __future__ import annotations

import mmap
import os
import socket
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lmdbloader.conversion.tasks import Part


def send_object(item: object, connection: Connection) -> None:
    """Send an object of any size by a message of a few bytes: sending never waits for the other side to read."""
    # As Connection.send pickles: between a process and the workers that it started, never for a file.
    _send_memory([ForkingPickler.dumps(item)], connection)


def receive_object(connection: Connection) -> Any:
    """Return what `send_object` sent."""
    return ForkingPickler.loads(_receive_memory(connection))


def send_part(part: Part, connection: Connection) -> None:
    """Send a part: its values through memory, the rest as a message."""
    lengths = [block.value.size for block in part.blocks]
    blocks = tuple(replace(b, value=n) for b, n in zip(part.blocks, lengths, strict=True))
    chunk = part.chunk
    if chunk is not None:
        # The parent needs the rows of the index, not a second copy of the pixels.
        nothing = np.empty(0, np.uint8)
        chunk = replace(chunk, payloads={name: replace(p, data=nothing) for name, p in chunk.payloads.items()})
    connection.send(replace(part, blocks=blocks, chunk=chunk))
    _send_memory([block.value for block in part.blocks], connection)


def complete_part(part: Part, connection: Connection) -> Part:
    """Return a received part with its values, which are views of the shared memory."""
    whole = pa.py_buffer(_receive_memory(connection))
    blocks, at = [], 0
    for block in part.blocks:
        length: Any = block.value
        blocks.append(replace(block, value=whole.slice(at, length)))
        at += length
    return replace(part, blocks=tuple(blocks))


def make_number() -> tuple[int, npt.NDArray[np.int64]]:
    """Return the handle of a number that two processes share, and the number itself, (1,) int64, 0 at first.

    What one process stores outlives it, however it ends.
    """
    handle = _memory_file()
    os.ftruncate(handle, np.dtype(np.int64).itemsize)
    return handle, map_number(handle)


def map_number(handle: int) -> npt.NDArray[np.int64]:
    """Return the number, (1,) int64, that `make_number` made."""
    return np.frombuffer(mmap.mmap(handle, np.dtype(np.int64).itemsize), np.int64)


def _send_memory(pieces: Iterable[Any], connection: Connection) -> None:
    handle = _memory_file()
    try:
        for piece in pieces:
            _write_all(handle, piece)
        with socket.socket(fileno=os.dup(connection.fileno())) as channel:
            socket.send_fds(channel, [b"m"], [handle])
    finally:
        os.close(handle)


def _receive_memory(connection: Connection) -> mmap.mmap | bytes:
    with socket.socket(fileno=os.dup(connection.fileno())) as channel:
        _, handles, _, _ = socket.recv_fds(channel, 1, 1)
    if len(handles) != 1:
        raise EOFError
    try:
        nbytes = os.fstat(handles[0]).st_size
        if not nbytes:
            return b""
        populate = getattr(mmap, "MAP_POPULATE", 0)
        return mmap.mmap(handles[0], nbytes, flags=mmap.MAP_SHARED | populate, prot=mmap.PROT_READ)
    finally:
        os.close(handles[0])


def _memory_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("lmdbloader", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _write_all(handle: int, data: Any) -> None:
    view = memoryview(data).cast("B")
    while view.nbytes:
        view = view[os.write(handle, view) :]
