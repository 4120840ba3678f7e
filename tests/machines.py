"""Machines that are not there: planted facts, and a description of a healthy one to change."""

from __future__ import annotations

from pathlib import Path

from lmdbloader.lab.machine import Libraries, Machine, Memory, Processor, ThreadPools

GIB = 2**30


def plant(root: Path, files: dict[str, str]) -> Path:
    """Write files below `root`, as `proc` and `sys` have them; return it."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return root


def healthy() -> Machine:
    """Return a machine with nothing to complain about: 8 cores, 64 GiB, no GPU."""
    return Machine(
        Processor("Model of a processor", 8, 8, None),
        Memory(64 * GIB, 50 * GIB, None, None, 32 * GIB, 32 * GIB),
        Libraries("pillow-simd", "12.1.1.post0", "3.1.0", "1.9.0", "2.8.0+cpu", None, False),
        ThreadPools(8, 8, None, {}),
        (),
        "Linux 6.8.0",
        "3.11.7",
    )
