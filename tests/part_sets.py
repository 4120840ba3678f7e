"""Makes datasets of several parts for tests."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lmdbloader
from lmdbloader.store import Reader, Work, join


def make_set(folder: Path, samples: Sequence[Sequence[Any]], options: Sequence[dict[str, Any]] = ()) -> Path:
    """Write a dataset with a part of each list of samples, with options of `lmdbloader.write` for each."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as made:
        readers = []
        for number, part in enumerate(samples):
            lmdbloader.write(part, Path(made) / str(number), **(options[number] if options else {}))
            readers.append(Reader(Path(made) / str(number)))
        work = Work(folder)
        work.begin({})
        join(work, [], readers[0].manifest.description, before=readers)
    return folder


def tree(folder: Path) -> dict[str, bytes]:
    """Return the content of every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
