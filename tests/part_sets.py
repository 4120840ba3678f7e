"""Makes sets of parts for tests: the parts one by one, and the set's own files from them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lmdbloader
from lmdbloader.format.layout import MANIFEST_FILE, part_name
from lmdbloader.store import read_manifest
from lmdbloader.store.writing.sets import write_set


def make_set(folder: Path, samples: Sequence[Sequence[Any]], options: Sequence[dict[str, Any]] = ()) -> Path:
    """Write a part of each list of samples, with options of `lmdbloader.write` for each, and the set of them."""
    folder.mkdir()
    names = [part_name(number) for number in range(len(samples))]
    for number, name in enumerate(names):
        lmdbloader.write(samples[number], folder / name, **(options[number] if options else {}))
    join(folder, len(names))
    return folder


def join(folder: Path, num_parts: int) -> None:
    """Make the set's own files from the parts that are there."""
    first = read_manifest(folder / part_name(0))
    write_set(folder, [part_name(k) for k in range(num_parts)], classes=first.classes, made_by=first.made_by)


def forge(folder: Path, **changes: Any) -> None:
    """Change what the manifest of a set states, with a digest that fits."""
    manifest = dataclasses.replace(read_manifest(folder), **changes)
    (folder / MANIFEST_FILE).write_bytes(manifest.to_json())


def tree(folder: Path) -> dict[str, bytes]:
    """Return the content of every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
