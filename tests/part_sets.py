"""Makes datasets of several parts for tests."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lmdbloader
from lmdbloader.store import Work, join, open_reader


def make_set(folder: Path, samples: Sequence[Sequence[Any]], options: Sequence[dict[str, Any]] = ()) -> Path:
    """Write a dataset with a part of each list of samples, with options of `lmdbloader.write` for each."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as made:
        parts = [Path(made, str(number)) for number in range(len(samples))]
        for number, part in enumerate(parts):
            lmdbloader.write(samples[number], part, **(options[number] if options else {}))
        return join_datasets(folder, parts)


def join_datasets(folder: Path, parts: Sequence[Path]) -> Path:
    """Make a dataset of the parts of others, described as the first of these."""
    readers = [open_reader(part) for part in parts]
    work = Work(folder)
    work.begin({})
    join(work, [], readers[0].manifest.description, before=readers)
    return folder


def tree(folder: Path) -> dict[str, bytes]:
    """Return the content of every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
