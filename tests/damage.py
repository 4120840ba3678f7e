"""Damage done to a dataset on purpose."""

from __future__ import annotations

from pathlib import Path

import lmdbloader


def flip(dataset: Path, at: int, name: str = "data.mdb", *, bit: int = 4) -> None:
    """Flip bits (a mask) of the byte at an offset of one of a dataset's files; a second time mends it."""
    with open(dataset / name, "r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ bit]))


def flip_payload(dataset: Path, field: str, sample: int) -> str:
    """Flip one bit in a sample's stored payload; return the file that the sample came from."""
    reader = lmdbloader.LMDBDataset(dataset).reader
    flip(dataset, int(reader.index.arrays[f"{field}.offset"][sample]) + 5)
    return str(reader.source(sample))
