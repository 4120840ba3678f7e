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
# Arguments that are working memory.
SCRATCH = {"acc", "bounds", "line", "phases", "room", "row", "scratch", "tile_room", "weights", "work"}
_WORDS = (np.dtype(np.int64), np.dtype(np.uint64))


@dataclass(frozen=True, slots=True)
class Call:
    """One call: positions in its own memory are from 0 on.

    Attributes:
        name: The function's, in the library.
        before: The memory, with positions in the place of addresses.
        after: The memory when the function has returned.
        is_result: (bytes,) Whether a byte may be compared; others are working memory, which may hold addresses.
        addresses: The positions of words that are addresses before the call.
        descriptors: The positions of words that are a file's descriptor.
        block: The position of the words that the function receives.
    """

    name: str
    before: bytes
    after: bytes
    is_result: np.ndarray
    addresses: tuple[int, ...]
    descriptors: tuple[int, ...]
    block: int


@dataclass(slots=True)
class Recorder:
    """Stands in for the library of kernels; calls it and records the calls.

    Attributes:
        library: The real one.
        calls: In order.
        known: Arrays that kernels reach through addresses in other arrays.
        scratch: Those of them that are working memory.
    """

    library: ctypes.CDLL
    calls: list[Call] = field(default_factory=list)
    known: list[np.ndarray] = field(default_factory=list)
    scratch: list[np.ndarray] = field(default_factory=list)

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
        working = [(array.ctypes.data, array.nbytes) for array in self.scratch]
        arrays = [(array.ctypes.data, array.nbytes, array.dtype) for array in (*self.known, *self.scratch)]
        for argument, *array in _arrays(signature, block):
            arrays.append(tuple(array))
            if argument in SCRATCH:
                working.append(tuple(array[:2]))
        regions = _merged([(address, 8 * num_words), *((at, nbytes) for at, nbytes, _ in arrays)])
        # Other arrays may hold old addresses, as memory that nobody has written to does, but no kernel reads them.
        with_addresses = _merged([(address, 8 * num_words), *((at, n) for at, n, dtype in arrays if dtype in _WORDS)])
        places = np.cumsum([0] + [-(-nbytes // ALIGNMENT) * ALIGNMENT for _, nbytes in regions])
        before = _copy(regions, places)
        positions = _addresses_in(before, regions)
        positions = positions[_is_inside(_to_address(8 * positions, regions, places), with_addresses)]
        function = self.library[name]
        function.argtypes, function.restype = (ctypes.c_void_p,), None
        function(address)
        after = _copy(regions, places)
        # Where a kernel writes, no address is left.
        _to_positions(after, positions[(before.view(np.int64) == after.view(np.int64))[positions]], regions, places)
        _to_positions(before, positions, regions, places)
        where = [int(_to_position(np.array([d]), regions, places)[0]) for d in descriptors]
        for memory in (before, after):
            memory.view(np.int64)[np.array(where, np.int64) // 8] = -1
        at = int(_to_position(np.array([address]), regions, places)[0])
        is_result = np.ones(len(after), bool)
        for start, nbytes in working:
            if nbytes:
                position = int(_to_position(np.array([start]), regions, places)[0])
                is_result[position : position + nbytes] = False
        memory = (before.tobytes(), after.tobytes())
        self.calls.append(Call(name, *memory, is_result, tuple((8 * positions).tolist()), tuple(where), at))


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
        numbers, words = np.array(call.addresses, np.int64) // 8, result[start:].view(np.int64)
        positions = np.frombuffer(call.before, np.int64)[numbers]
        words[numbers] = np.where(words[numbers] == positions + start, positions, words[numbers])
    return [result[a:b].tobytes() for a, b in itertools.pairwise(starts)]


def _signatures() -> dict[str, Signature]:
    return {name: signature for entry in all_entries() for name, signature in entry.variants.items()}


def _arrays(signature: Signature, block: Any) -> Iterator[tuple[str, int, int, np.dtype[Any]]]:
    """Yield argument, address, bytes and type of every array among a call's arguments."""
    at = NUM_RESULTS
    waiting = list(signature.arguments)
    while waiting:
        name, kind = waiting.pop(0)
        if isinstance(kind, Group):
            waiting[:0] = [(name, item) for item in kind.items]
            continue
        if isinstance(kind, Array):
            count = int(np.prod(block[at + 1 : at + 1 + kind.ndim]))
            yield name, block[at], count * _DTYPES[kind.code].itemsize, _DTYPES[kind.code]
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
    return np.flatnonzero(_is_inside(memory.view(np.int64), regions))


def _is_inside(addresses: np.ndarray, regions: Sequence[tuple[int, int]]) -> np.ndarray:
    starts, stops = (np.array(values, np.int64) for values in zip(*((a, a + n) for a, n in regions), strict=True))
    region = np.searchsorted(starts, addresses, "right") - 1
    return (region >= 0) & (addresses < stops[region])


def _to_address(positions: np.ndarray, regions: Sequence[tuple[int, int]], places: np.ndarray) -> np.ndarray:
    region = np.searchsorted(places, positions, "right") - 1
    return positions - places[region] + np.array([start for start, _ in regions], np.int64)[region]


def _to_position(addresses: np.ndarray, regions: Sequence[tuple[int, int]], places: np.ndarray) -> np.ndarray:
    starts = np.array([start for start, _ in regions], np.int64)
    region = np.searchsorted(starts, addresses, "right") - 1
    return addresses - starts[region] + places[region]


def _to_positions(
    memory: np.ndarray, words: np.ndarray, regions: Sequence[tuple[int, int]], places: np.ndarray
) -> None:
    memory.view(np.int64)[words] = _to_position(memory.view(np.int64)[words], regions, places)
