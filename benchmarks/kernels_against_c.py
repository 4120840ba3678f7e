"""Times kernels against the C functions that they replace: LZ4, exp and log.

Each is called from one compiled loop over many payloads; the turns of the two alternate in one process. The figures
are medians of the thread's own time: the speed of the C function, and that of the kernel as a multiple of it. LZ4 is
that of the lz4 package.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import lz4.block
import numba
import numpy as np
from common import U8, photographs, print_sections, table
from lz4.block import _block
from numba import types

from lmdbloader.kernels.lz4 import lz4_decompress
from lmdbloader.kernels.runtime.exponential import exp, log

_SIDES = (32, 64, 128, 256)
# Of all payloads of a case: more than a branch predictor learns, and no more than a second-level cache holds.
_NBYTES = 1 << 20
_LEAST_SECONDS = 0.003
_NUMBERS = 20_000


def _bind(library: str, symbol: str, signature: types.Type) -> types.ExternalFunction:
    function = ctypes.cast(getattr(ctypes.CDLL(library), symbol), ctypes.c_void_p)
    llvm.add_symbol(f"against_{symbol}", function.value)
    return types.ExternalFunction(f"against_{symbol}", signature)


_address, _int = types.uintp, types.int32
_c_decompress = _bind(_block.__file__, "LZ4_decompress_safe", _int(_address, _address, _int, _int))


def _compiled(function: Callable[..., None]) -> Any:
    return numba.njit(nogil=True, error_model="numpy")(function)


def _of_blocks(function: Any) -> Any:
    @_compiled
    def run(data, start, nbytes, out, found):  # type: ignore[no-untyped-def]
        for i in range(start.shape[0]):
            source = data.ctypes.data + np.uint64(start[i])
            found[i] = function(source, out.ctypes.data, np.int32(nbytes[i]), np.int32(out.shape[0]))

    return run


def _of_numbers(function: Any) -> Any:
    @_compiled
    def run(values, out):  # type: ignore[no-untyped-def]
        for i in range(values.shape[0]):
            out[i] = function(values[i])

    return run


@dataclass(frozen=True, slots=True)
class Case:
    """Some calls of both functions: what they work on, how much of it (in `unit`), and the calls."""

    name: str
    amount: float
    unit: str
    in_c: Callable[[], Any]
    ours: Callable[[], Any]


def payloads() -> Iterator[tuple[str, list[bytes]]]:
    """Yield names and payloads of one size each: patches of photographs as they are stored, and extremes."""
    rng, sources = np.random.default_rng(0), photographs()
    for side in _SIDES:
        patches = []
        for i in range(max(9, _NBYTES // (3 * side * side))):
            source: U8 = sources[i % len(sources)]
            y, x = (int(rng.integers(size - side + 1)) for size in source.shape[:2])
            patches.append(source[y : y + side, x : x + side].transpose(2, 0, 1).tobytes())
        yield f"photographs, {side} px", patches
        if side == _SIDES[0]:
            for nbytes in (16, 100, 300):
                yield f"{nbytes} bytes of them", [patch[:nbytes] for patch in patches]
    yield "one color, 64 px", [bytes(3 * 64 * 64)] * 80
    yield "noise, 64 px", [rng.bytes(3 * 64 * 64) for _ in range(80)]
    yield "a ramp, 64 px", [bytes(range(64)) * (3 * 64)] * 80


def of_payloads(name: str, parts: Sequence[bytes], in_c: Any, ours: Any, *, nbytes: float, room: int) -> Case:
    """Return the case of two functions of payloads; each is called once, and they must agree."""
    lengths = np.array([len(part) for part in parts])
    start, data = np.cumsum(lengths) - lengths, np.frombuffer(b"".join(parts), np.uint8)
    outs, found = np.zeros((2, room), np.uint8), np.zeros((2, len(parts)), np.uint64)
    for k, function in enumerate((in_c, ours)):
        function(data, start, lengths, outs[k], found[k])
    if (found[0] != found[1]).any() or (outs[0] != outs[1]).any():
        raise RuntimeError(f"{name}: the two functions differ")
    return Case(
        name, nbytes / 1e9, "GB/s",
        lambda: in_c(data, start, lengths, outs[0], found[0]), lambda: ours(data, start, lengths, outs[0], found[0]),
    )  # fmt: skip


def cases() -> Iterator[tuple[str, list[Case]]]:
    """Yield the sections and their cases."""
    parts = dict(payloads())
    sizes = {name: sum(map(len, raw)) for name, raw in parts.items()}
    in_c, ours = _of_blocks(_c_decompress), _of_blocks(lz4_decompress)
    yield "LZ4, decompression", [
        of_payloads(
            name, [lz4.block.compress(part, store_size=False) for part in raw], in_c, ours, nbytes=sizes[name],
            room=len(raw[0]),
        )
        for name, raw in parts.items()
    ]  # fmt: skip
    values, out = np.random.default_rng(0).uniform(0.05, 3, _NUMBERS), np.empty(_NUMBERS)
    yield "exp and log", [of_numbers(name, values, out) for name in ("exp", "log")]


def of_numbers(name: str, values: Any, out: Any) -> Case:
    """Return the case of exp or log."""
    in_c, ours = (_of_numbers(function) for function in {"exp": (math.exp, exp), "log": (math.log, log)}[name])
    return Case(name, _NUMBERS / 1e6, "M/s", lambda: in_c(values, out), lambda: ours(values, out))


def measure(case: Case, seconds: float) -> dict[str, float]:
    """Return the speed of the C function, and the kernel's as a multiple of it; medians of turns."""
    repeats, took = 1, 0.0
    while took < _LEAST_SECONDS:
        repeats *= 2
        took = _seconds(case.in_c, repeats)
    turns = [(_seconds(case.in_c, repeats), _seconds(case.ours, repeats))]
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        turns.append((_seconds(case.in_c, repeats), _seconds(case.ours, repeats)))
    speed = statistics.median(case.amount * repeats / turn[0] for turn in turns)
    return {"c": speed, "ratio": statistics.median(turn[0] / turn[1] for turn in turns)}


def _seconds(function: Callable[[], Any], repeats: int) -> float:
    began = time.thread_time()
    for _ in range(repeats):
        function()
    return time.thread_time() - began


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print a table for each function."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each case (default 2)")
    parser.add_argument("--folder", type=Path, help="its disk is described (default: a temporary folder)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to a file")
    parser.add_argument("--markdown", action="store_true", help="print tables in Markdown")
    parser.add_argument("--quick", action="store_true", help="a few seconds: does it still run?")
    options = parser.parse_args(arguments)
    seconds = 0.01 if options.quick else options.seconds
    gc.disable()  # no search for garbage in what Numba makes: it takes a third of compiling, or falls into a turn

    def run(folder: Path) -> Iterator[tuple[str, Any, str]]:
        for section, found in cases():
            figures = {case.name: measure(case, seconds) for case in found}
            rows = [
                [case.name, f"{figures[case.name]['c']:.2f} {case.unit}", f"{figures[case.name]['ratio']:.2f}"]
                for case in found
            ]
            yield section, figures, table(["", "C", "kernel / C"], rows, markdown=options.markdown)

    print_sections(run, "Kernels and the C functions that they replace, medians", options)


if __name__ == "__main__":
    sys.exit(main())
