"""The machine's speed at the basic operations of a loader: copying, converting, decompressing and hashing.

Numba compiles them. Without it only copying is measured, which NumPy does at the same speed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import lz4.block
import numpy as np
from common import Pairs

try:
    import numba
except ModuleNotFoundError:
    numba = None
else:
    from lmdbloader.kernels.lz4 import lz4_decompress
    from lmdbloader.kernels.runtime.xxhash import xxh3

BATCH = 128
# Each thread writes into some buffers in turn, as a loader does.
BUFFERS = 3


def _compiled(function: Callable[..., None]) -> Callable[..., None]:
    return function if numba is None else numba.njit(nogil=True, error_model="numpy")(function)


@_compiled
def _convert(source, out):  # type: ignore[no-untyped-def]
    for i in range(source.shape[0]):
        out[i] = np.float32(source[i]) * np.float32(1 / 255)


@_compiled
def _decompress(data, start, nbytes, out):  # type: ignore[no-untyped-def]
    for i in range(start.shape[0]):
        lz4_decompress(data.ctypes.data + np.uint64(start[i]), out.ctypes.data, nbytes[i], out.shape[0])


@_compiled
def _hash(data, size, sums):  # type: ignore[no-untyped-def]
    for i in range(sums.shape[0]):
        sums[i] = xxh3(data.ctypes.data + np.uint64(i * size), np.uint64(size))


@dataclass(frozen=True, slots=True)
class Reference:
    """One operation that is measured alone: its name, and a function of BATCH pairs that a thread repeats."""

    name: str
    make: Callable[[Pairs, int], Callable[[int], None]]


def _batches(pairs: Pairs) -> np.ndarray:
    """Return the pairs as ready-made uint8 batches, (n, bytes of a batch)."""
    count = len(pairs) // BATCH
    both = [part[: count * BATCH].reshape(count, -1) for part in (pairs.lr, pairs.hr)]
    return np.concatenate(both, 1)


def copying(pairs: Pairs, seed: int) -> Callable[[int], None]:
    """Copy ready-made batches in random order: the bound for uint8."""
    batches = _batches(pairs)
    order = np.random.default_rng(seed).integers(0, len(batches), 1000)
    buffers = [np.empty_like(batches[0]) for _ in range(BUFFERS)]
    # One memcpy without the GIL.
    return lambda turn: np.copyto(buffers[turn % BUFFERS], batches[order[turn % 1000]])


def converting(pairs: Pairs, seed: int) -> Callable[[int], None]:
    """Convert one ready-made batch that stays in the cache to float32, as far as it does."""
    batches = _batches(pairs)
    buffers = [np.empty(batches.shape[1], np.float32) for _ in range(BUFFERS)]
    return lambda turn: _convert(batches[turn % len(batches)], buffers[turn % BUFFERS])


def decompressing(pairs: Pairs, seed: int) -> Callable[[int], None]:
    """Decompress the pairs' lz4 blocks into a buffer that stays in the cache."""
    order = np.random.default_rng(seed).permutation(len(pairs))
    blocks = [lz4.block.compress(part[i].tobytes(), store_size=False) for i in order for part in (pairs.lr, pairs.hr)]
    nbytes = np.array([len(block) for block in blocks])
    start, data = np.cumsum(nbytes) - nbytes, np.frombuffer(b"".join(blocks), np.uint8)
    out, turns = np.empty(pairs.hr[0].nbytes, np.uint8), len(blocks) // (2 * BATCH)

    def turn(number: int) -> None:
        here = slice(number % turns * 2 * BATCH, (number % turns + 1) * 2 * BATCH)
        _decompress(data, start[here], nbytes[here], out)

    return turn


def hashing(pairs: Pairs, seed: int) -> Callable[[int], None]:
    """Hash the pixels of ready-made batches."""
    batches = _batches(pairs)
    sums = np.empty(BATCH, np.uint64)
    size = batches.shape[1] // BATCH
    return lambda turn: _hash(batches[turn % len(batches)], size, sums)


_COMPILED = (
    Reference("uint8 to float32", converting),
    Reference("lz4 decompression", decompressing),
    Reference("XXH3", hashing),
)
REFERENCES = (Reference("copying uint8 batches", copying), *(_COMPILED if numba is not None else ()))


def pairs_per_s(reference: Reference, pairs: Pairs, num_threads: int) -> Callable[[float], float]:
    """Return a function that measures a reference for some seconds by some threads at once."""
    turns = [reference.make(pairs, seed) for seed in range(num_threads)]
    for turn in turns:
        turn(0)  # compiles

    def measure(seconds: float) -> float:
        counts: list[int] = [0] * num_threads
        until = time.perf_counter() + seconds

        def work(number: int) -> None:
            while not counts[number] or time.perf_counter() < until:  # once at least, however busy the machine is
                turns[number](counts[number])
                counts[number] += 1

        threads: list[Any] = [threading.Thread(target=work, args=(k,)) for k in range(num_threads)]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(counts) * BATCH / (time.perf_counter() - began)

    return measure
