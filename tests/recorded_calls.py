"""Records the calls of compiled kernels with all memory that they use, and makes them again in tests/native."""

from __future__ import annotations

import ctypes
import itertools
import os
import struct
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmdbloader.kernels.calls import libraries
from lmdbloader.kernels.calls.signatures import _DTYPES, NUM_RESULTS, Array, Group, Signature
from lmdbloader.kernels.entries import all_entries

ALIGNMENT = 64
PREFIX = "lmdbloader_"


@dataclass(frozen=True, slots=True)
class Call:
    """One call: positions in its own memory are from 0 on.

    Attributes:
        name: The function's, in the library.
        before: The memory, with positions in the place of addresses.
        after: The same when the function had returned.
        addresses: The positions of words that are addresses.
        descriptors: The positions of words that are a file's descriptor.
        block: The position of the words that the function is given.
    """

    name: str
    before: bytes
    after: bytes
    addresses: tuple[int, ...]
    descriptors: tuple[int, ...]
    block: int


@dataclass(slots=True)
class Recorder:
    """Stands in for the library of kernels; calls it and keeps what was called.

    Attributes:
        library: The real one.
        calls: In order.
        known: Arrays that kernels reach through addresses in other arrays.
    """

    library: ctypes.CDLL
    calls: list[Call] = field(default_factory=list)
    known: list[np.ndarray] = field(default_factory=list)

    def __getitem__(self, name: str) -> _Function:
        return _Function(self, name)

    def call(self, name: str, address: int) -> None:
        signature = _signatures()[name.removeprefix(PREFIX)]
        num_words = NUM_RESULTS + sum(kind.num_words for _, kind in signature.arguments)
        block = (ctypes.c_int64 * num_words).from_address(address)
        words = {argument: signature.place(argument) for argument, _ in signature.arguments}
        descriptors = []
        if "file" in words:  # (address, bytes, descriptor, guard, clock): this machine's guard and clock stay here
            block[words["file"] + 3] = block[words["file"] + 4] = 0
            if block[words["file"] + 2] >= 0:
                descriptors.append(address + 8 * (words["file"] + 2))
        regions = _merged([(address, 8 * num_words), *_regions(signature, block), *map(_region, self.known)])
        places = np.cumsum([0] + [-(-nbytes // ALIGNMENT) * ALIGNMENT for _, nbytes in regions])
        before = _copy(regions, places)
        positions = _addresses_in(before, regions)
        function = self.library[name]
        function.argtypes, function.restype = (ctypes.c_void_p,), None
        function(address)
        after = _copy(regions, places)
        for memory in (before, after):
            _to_positions(memory, positions, regions, places)
        where = [int(_to_position(np.array([d]), regions, places)[0]) for d in descriptors]
        for memory in (before, after):
            memory.view(np.int64)[np.array(where, np.int64) // 8] = -1
        at = int(_to_position(np.array([address]), regions, places)[0])
        self.calls.append(Call(name, before.tobytes(), after.tobytes(), tuple(8 * positions), tuple(where), at))


@dataclass(slots=True)
class _Function:
    recorder: Recorder
    name: str
    argtypes: Any = None
    restype: Any = None

    def __call__(self, address: int) -> None:
        self.recorder.call(self.name, address)


def record(patch: pytest.MonkeyPatch) -> Recorder:
    """Return a recorder of every call from now on, until the patch is undone."""
    recorder = Recorder(libraries.load())
    for entry in all_entries():
        patch.delitem(entry.__dict__, "_functions", raising=False)
        patch.setitem(entry.__dict__, "_functions", {name: recorder[PREFIX + name] for name in entry.variants})
    return recorder


def make_calls(
    program: Sequence[str | Path], calls: Sequence[Call], folder: Path, file: str, environment: Mapping[str, str]
) -> list[bytes]:
    """Have the native program make calls, and return the memory of each when all have returned.

    Args:
        program: The command that starts it, and the library.
        calls: To make.
        folder: For the program's files; it runs there.
        file: What the calls read by a descriptor, in the folder; empty if they do not.
        environment: Variables for the program, besides those of this process.
    """
    starts = np.cumsum([0] + [len(call.before) for call in calls])
    memory = bytearray(b"".join(call.before for call in calls))
    words = np.frombuffer(memory, np.int64)
    addresses = np.concatenate([np.array(c.addresses, np.int64) + s for c, s in zip(calls, starts[:-1], strict=True)])
    for call, start in zip(calls, starts[:-1], strict=True):
        words[(np.array(call.addresses, np.int64) + start) // 8] += start
    descriptors = [d + int(s) for c, s in zip(calls, starts[:-1], strict=True) for d in c.descriptors]
    head = struct.pack("<8s5q", b"LMDBCALL", len(memory), len(addresses), len(descriptors), len(calls), 0)
    listed = b"".join(struct.pack("<120sq", c.name.encode(), c.block + s) for c, s in zip(calls, starts, strict=False))
    texts = [head, addresses.astype(np.int64).tobytes(), np.array(descriptors, np.int64).tobytes(), listed, memory]
    (folder / "calls").write_bytes(b"".join(texts))
    command = [*program, "calls", "result", *([file] if file else [])]
    subprocess.run(command, cwd=folder, env=os.environ | dict(environment), check=True, timeout=300)
    result = np.fromfile(folder / "result", np.uint8)
    for call, start in zip(calls, starts[:-1], strict=True):
        result.view(np.int64)[(np.array(call.addresses, np.int64) + start) // 8] -= start
    return [result[a:b].tobytes() for a, b in itertools.pairwise(starts)]


def _signatures() -> dict[str, Signature]:
    return {name: signature for entry in all_entries() for name, signature in entry.variants.items()}


def _region(array: np.ndarray) -> tuple[int, int]:
    return array.ctypes.data, array.nbytes


def _regions(signature: Signature, block: Any) -> Iterator[tuple[int, int]]:
    """Yield address and bytes of every array among a call's arguments."""
    at = NUM_RESULTS
    waiting = [kind for _, kind in signature.arguments]
    while waiting:
        kind = waiting.pop(0)
        if isinstance(kind, Group):
            waiting[:0] = kind.items
            continue
        if isinstance(kind, Array):
            count = int(np.prod(block[at + 1 : at + 1 + kind.ndim]))
            yield block[at], count * _DTYPES[kind.code].itemsize
        at += kind.num_words


def _merged(regions: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return regions of whole words, those that overlap or touch as one, in order."""
    spans = sorted((at // 8 * 8, -(-(at + nbytes) // 8) * 8) for at, nbytes in regions if nbytes)
    merged: list[list[int]] = []
    for start, stop in spans:
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], stop)
        else:
            merged.append([start, stop])
    return [(start, stop - start) for start, stop in merged]


def _copy(regions: Sequence[tuple[int, int]], places: np.ndarray) -> np.ndarray:
    memory = np.zeros(int(places[-1]), np.uint8)
    for (address, nbytes), place in zip(regions, places, strict=False):
        memory[place : place + nbytes] = np.frombuffer(ctypes.string_at(address, nbytes), np.uint8)
    return memory


def _addresses_in(memory: np.ndarray, regions: Sequence[tuple[int, int]]) -> np.ndarray:
    """Return the numbers of words that lie in one of the regions; another number so large does not happen by chance."""
    words = memory.view(np.int64)
    starts, stops = (np.array(values, np.int64) for values in zip(*((a, a + n) for a, n in regions), strict=True))
    region = np.searchsorted(starts, words, "right") - 1
    return np.flatnonzero((region >= 0) & (words < stops[region]))


def _to_position(addresses: np.ndarray, regions: Sequence[tuple[int, int]], places: np.ndarray) -> np.ndarray:
    starts = np.array([start for start, _ in regions], np.int64)
    region = np.searchsorted(starts, addresses, "right") - 1
    return addresses - starts[region] + places[region]


def _to_positions(
    memory: np.ndarray, words: np.ndarray, regions: Sequence[tuple[int, int]], places: np.ndarray
) -> None:
    memory.view(np.int64)[words] = _to_position(memory.view(np.int64)[words], regions, places)
