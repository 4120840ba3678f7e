"""Hostile datasets: files changed in critical places, with matching digests, and their outcomes."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from .forging import signed, with_digests

INTERESTING = (
    0,
    1,
    2,
    3,
    7,
    8,
    127,
    128,
    255,
    256,
    32767,
    65535,
    2**24,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**62,
    2**63 - 1,
)
_SAMPLES_READ = 40


def mutate(rng: random.Random, data: bytes, focus: Sequence[tuple[int, int]] = ()) -> bytes:
    """Return data with one to eight changes: bits, bytes, numbers of 2 to 8 bytes, pieces moved, left out or repeated.

    Args:
        rng: Decides.
        data: Of any length.
        focus: Ranges that most changes go into.
    """
    if not data:
        return rng.randbytes(rng.randrange(20))
    new = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        low, high = rng.choice(focus) if focus and rng.random() < 0.7 else (0, len(new))
        low = min(max(low, 0), len(new))
        at = rng.randrange(low, max(min(high, len(new)), low + 1))
        kind = rng.random()
        if kind < 0.35:
            new[at : at + 1] = bytes([byte ^ 1 << rng.randrange(8) for byte in new[at : at + 1]])
        elif kind < 0.5:
            new[at : at + 1] = bytes([rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))])
        elif kind < 0.85:
            nbytes = rng.choice((2, 4, 4, 8, 8))
            number = rng.choice((*INTERESTING, rng.getrandbits(64), len(data), len(data) - 1, at))
            order: Literal["little", "big"] = rng.choice(("little", "little", "big"))
            new[at : at + nbytes] = (number % 256**nbytes).to_bytes(nbytes, order)
        else:
            end = min(at + rng.choice((1, 2, 8, 64, 1000)), len(new))
            start = rng.randrange(len(new) + 1)
            new[at:end] = rng.choice((b"", new[start : start + end - at], new[at:end] * 2, bytes(end - at)))
    return bytes(new)


class Copy:
    """A copy of a dataset whose files are replaced, each time with digests and sizes that fit.

    Attributes:
        path: Of the copy.
        body: The content of the sound manifest.
        index, data: The sound files.
    """

    def __init__(self, source: Path, path: Path) -> None:
        path.mkdir(exist_ok=True)
        self.path = path
        self.body: dict[str, Any] = json.loads((source / "manifest.json").read_bytes())
        self.index, self.data = (source / "index.arrow").read_bytes(), (source / "data.mdb").read_bytes()
        self._on_disk: dict[str, bytes] = {}
        self.write()

    def write(
        self,
        *,
        index: bytes | None = None,
        data: bytes | None = None,
        manifest: bytes | None = None,
        body: dict[str, Any] | None = None,
    ) -> None:
        """Write the files that are given, the sound ones for the others; unless given, the manifest with their digests.

        Args:
            index, data, manifest: The files.
            body: What the manifest shall say otherwise; the sound content by default.
        """
        from lmdbloader.format.codecs import checksum

        index, data = self.index if index is None else index, self.data if data is None else data
        self._put("index.arrow", index)
        self._put("data.mdb", data)
        if manifest is None:
            body = self.body if body is None else body
            parts = [{**body["parts"][0], "data_nbytes": len(data)}, *body["parts"][1:]]
            own = {**body["index"], "nbytes": len(index)}
            body = with_digests({**body, "parts": parts, "index": own}, index)
            manifest = signed({**body, "data_digest": f"xxh3:{checksum(data):016x}"})
        self._put("manifest.json", manifest)

    def lose(self, *names: str) -> None:
        """Remove files."""
        for name in names:
            (self.path / name).unlink(missing_ok=True)
            self._on_disk.pop(name, None)

    def _put(self, name: str, content: bytes) -> None:
        if self._on_disk.get(name) != content:
            # Opened each time: an open dataset keeps its own files.
            (self.path / name).unlink(missing_ok=True)
            (self.path / name).write_bytes(content)
            self._on_disk[name] = content


def use(path: Path, *, batches: bool = False) -> str:
    """Open a dataset, use everything in it, and return the outcome; errors other than lmdbloader's are raised."""
    from lmdbloader import LMDBDataset, Loader
    from lmdbloader.errors import LmdbloaderError
    from lmdbloader.transforms import RandomResizedCrop

    try:
        ds = LMDBDataset(path, io="pread" if batches else "mmap")
    except LmdbloaderError:
        return "refused at open"
    refused = False
    rows = range(min(len(ds), _SAMPLES_READ))
    fields = [name for name, f in ds.fields.items() if f.kind == "image"]
    uses = [lambda: (repr(ds), ds.classes, ds.table.slice(0, _SAMPLES_READ).to_pylist())]
    uses += [lambda row=row: ds[row] for row in rows]  # type: ignore[misc]
    uses += [lambda name=name: ds.crop(0, top=1, left=2, height=5, width=7, field=name) for name in fields if rows]  # type: ignore[misc]
    if batches:
        uses.append(lambda: ds._many(rows))
        uses.append(lambda: list(Loader(ds, 3, order="sequential", num_threads=1)))  # type: ignore[arg-type,return-value]
        uses.append(lambda: list(Loader(ds, 3, order="random", transforms=[RandomResizedCrop(8)], num_threads=1)))  # type: ignore[arg-type,return-value]
    for one in uses:
        try:
            one()
        except LmdbloaderError:
            refused = True
    return "refused at reading" if refused else "read"
