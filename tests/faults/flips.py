"""Flipped bits, one or several, and cuts, anywhere in a dataset: an error that names the sample, or the right bytes."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .cases import Case, Wrong, run_cases
from .datasets import FILES, make_datasets
from .outcome import Outcome

_PAGE = 4096
_VERIFY_EACH = 10
_CUT_SHARE = 0.2


def run(count: int, seed: int, folder: Path) -> Outcome:
    """Flip bits or cut `count` times, each time in one file of one of the datasets, and read everything."""
    paths = {name: str(path) for name, path in make_datasets(folder).items()}
    counts, failures = run_cases(_prepare, (paths, seed), count, folder)
    counts = {"flips": count, **dict(sorted(counts.items()))}
    return Outcome(counts, failures)


def _prepare(paths: dict[str, str], seed: int) -> Case:
    subjects = [Subject(path) for path in paths.values()]

    def case(number: int) -> str:
        rng = random.Random(f"{seed} {number}")
        subject = rng.choice(subjects)
        name = rng.choices(FILES, (6, 3, 1))[0]
        if rng.random() < _CUT_SHARE:
            return _cut(rng, subject, name)
        changes = _flips(rng, subject.sound[name], subject.places if name == "data.mdb" else ())
        # A dataset opened before reads the damaged data.mdb through its existing map.
        opened = subject.open() if name == "data.mdb" and rng.random() < 0.3 else None
        what = f"{Path(subject.path).name}/{name}, bits {changes}"
        try:
            _write(subject.path, name, {at: subject.sound[name][at] ^ mask for at, mask in changes.items()})
            try:
                found = subject.read(opened)
            except Wrong as error:
                raise Wrong(f"{what}: {error}") from error
            if number % _VERIFY_EACH == 0 and not subject.verify_finds(name, found):
                raise Wrong(f"{what}: verify found nothing")
        finally:
            _write(subject.path, name, {at: subject.sound[name][at] for at in changes})
        return found

    return case


def _cut(rng: random.Random, subject: Subject, name: str) -> str:
    """Cut a file, at or next to a page boundary or anywhere: it must not open."""
    sound, path = subject.sound[name], Path(subject.path, name)
    size = rng.randrange(len(sound))
    if rng.random() < 0.6:
        size = min(max(0, size // _PAGE * _PAGE + rng.choice((-1, 0, 1))), len(sound) - 1)
    os.truncate(path, size)
    try:
        if subject.read(None) != "refused at open":
            raise Wrong(f"{path} of {size} bytes, {len(sound)} expected: it opens")
    finally:
        path.write_bytes(sound)
    return "cut, refused at open"


def _flips(rng: random.Random, sound: bytes, places: Any) -> dict[int, int]:
    """Return which bits to flip: a mask for each byte's place."""
    # A page's header, a meta page, a key: they are a small part of the file.
    at = rng.choice(places) if len(places) and rng.random() < 0.5 else rng.randrange(len(sound))
    kind = rng.random()
    if kind < 0.6:
        return {at: 1 << rng.randrange(8)}
    if kind < 0.8:
        return {rng.randrange(len(sound)): 1 << rng.randrange(8) for _ in range(rng.randint(2, 8))} | {at: 1}
    return {i: rng.randrange(1, 256) for i in range(at, min(at + rng.randint(2, 64), len(sound)))}


def _write(path: str, name: str, values: dict[int, int]) -> None:
    descriptor = os.open(Path(path, name), os.O_WRONLY)
    try:
        for at, value in values.items():
            os.pwrite(descriptor, bytes([value]), at)
    finally:
        os.close(descriptor)


class Subject:
    """A dataset, the contents of its files, and the result of reading it while it is sound."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.sound = {name: Path(path, name).read_bytes() for name in FILES}
        ds = self.open()
        self.images = [name for name, f in ds.fields.items() if f.kind == "image"]
        self.places = _structure(ds, len(self.sound["data.mdb"]))
        self.manifest = ds.reader.manifest
        self.expected = {name: [read(ds, i) for i in range(len(ds))] for name, read in self.one_by_one().items()}
        self.batches = {name: read(ds) for name, read in self.together().items()}

    def open(self) -> Any:
        from lmdbloader import LMDBDataset

        return LMDBDataset(self.path)

    def one_by_one(self) -> dict[str, Callable[[Any, int], Any]]:
        """Return the ways of reading one sample."""
        field = self.images[0]
        return {
            "ds[i]": lambda ds, i: _plain(ds[i]),
            "crop": lambda ds, i: _plain([ds.crop(i, top=3, left=5, height=9, width=11, field=field)]),
        }

    def together(self) -> dict[str, Callable[[Any], Any]]:
        """Return the ways of reading all samples."""
        from lmdbloader import Loader
        from lmdbloader.transforms import RandomHorizontalFlip, RandomResizedCrop

        random_crops = [RandomResizedCrop(16), RandomHorizontalFlip()]
        options: dict[str, Any] = {"order": "sequential", "seed": 0, "num_threads": 1}
        return {
            "__getitems__": lambda ds: [_plain(sample) for sample in ds._many(range(len(ds)))],
            "Loader": lambda ds: [_plain(batch) for batch in Loader(ds, 3, **options)],
            "Loader, cropped, pread": lambda ds: [
                _plain(batch) for batch in Loader(ds, 3, transforms=random_crops, io="pread", **options)
            ],
        }

    def read(self, opened: Any) -> str:
        """Read everything, and return the outcome: refused, damaged or the same.

        Raises:
            Wrong: Something else than the sound dataset's bytes came, or an error that does not name the sample.
        """
        from lmdbloader.errors import CorruptError, LmdbloaderError

        try:
            ds = opened or self.open()
        except LmdbloaderError as error:
            if self.path not in str(error):
                raise Wrong(f"{error} does not say where") from error
            return "refused at open"
        if ds.reader.manifest != self.manifest:
            raise Wrong("the manifest says something else")
        damaged = set()
        for name, read in self.one_by_one().items():
            for i in range(len(ds)):
                try:
                    if read(ds, i) != self.expected[name][i]:
                        raise Wrong(f"{name} of sample {i} differs")
                except CorruptError as error:
                    names_rows = error.sample is None and f"{self.path}/index.arrow: " in str(error)
                    is_named = names_rows or (error.sample == i and error.field in ds.fields)
                    if not is_named or error.path != self.path:
                        raise Wrong(f"{name} of sample {i}: {error!r} does not name it") from error
                    if name == "ds[i]":
                        damaged.add(i)
                    elif i not in damaged:
                        raise Wrong(f"{name} of sample {i}: {error!r}, ds[i] is sound") from error
        for name, read_all in self.together().items():
            try:
                if read_all(ds) != self.batches[name]:
                    raise Wrong(f"{name} differs")
                found = None
            except CorruptError as error:
                found = error
                names_rows = error.sample is None and f"{self.path}/index.arrow: " in str(error)
                if not damaged or not (names_rows or error.sample in damaged) or error.path != self.path:
                    raise Wrong(f"{name}: {error!r}, damaged are {damaged}") from error
            # Only a crop may miss the damage: it reads and checks no more than the tiles that it touches.
            if damaged and not found and "cropped" not in name:
                raise Wrong(f"{name} reads damaged samples {damaged}")
        return "an error that names the sample or its rows" if damaged else "the same bytes"

    def verify_finds(self, name: str, found: str) -> bool:
        """Return whether `lmdbloader.verify` finds a flip that is there, as far as it promises to."""
        import lmdbloader
        from lmdbloader.errors import LmdbloaderError

        try:
            is_sound = lmdbloader.verify(self.path).is_sound
        except LmdbloaderError:
            return True
        promised = found != "the same bytes" or (name == "data.mdb" and getattr(self.manifest, "data_digest", None))
        return not (is_sound and promised)


def _plain(values: Any) -> list[Any]:
    """Return a sample's or a batch's values as things that `==` compares byte by byte."""
    import torch

    plain: list[Any] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            plain.append((str(value.dtype), tuple(value.shape), value.contiguous().numpy().tobytes()))
        elif isinstance(value, list):
            plain.append(_plain(value))
        else:
            plain.append(value)
    return plain


def _structure(ds: Any, nbytes: int) -> list[int]:
    """Return the places of data.mdb that hold no payload: meta pages, trees, records' headers, and gaps."""
    import numpy as np

    free = np.ones(nbytes, bool)
    arrays = ds.reader.index.arrays
    for f in ds.reader.manifest.fields:
        if f.is_payload:
            columns = (arrays[f"{f.name}.{part}"].tolist() for part in ("offset", "stored_nbytes"))
            for at, length in zip(*columns, strict=True):
                free[at : at + length] = False
    return np.flatnonzero(free).tolist()
