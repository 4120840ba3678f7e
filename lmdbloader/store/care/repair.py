"""Repairs a dataset: rebuilds a lost index or manifest in place, or writes its intact samples to a new dataset."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from lmdbloader.base.arguments import local_path, new_path
from lmdbloader.base.text import plain
from lmdbloader.errors import CorruptError, DestinationError
from lmdbloader.format.layout import DATA_FILE, INDEX_FILE, MANIFEST_FILE
from lmdbloader.format.manifest import Description, Manifest
from lmdbloader.store.care.findings import Verification
from lmdbloader.store.care.rebuild import rebuild, what_is_known
from lmdbloader.store.care.salvage import LOST, RecordSalvage
from lmdbloader.store.care.saving import Repair, num_samples_of, report, sound_samples, write_samples
from lmdbloader.store.care.set_repair import is_set, repair_set
from lmdbloader.store.care.verify import verify
from lmdbloader.store.damage import ALL_FIELDS, Damage
from lmdbloader.store.opening import read_manifest


def repair(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    progress: Callable[[int], None] = lambda done: None,
    log: Callable[[str], None] = lambda line: None,
) -> Repair:
    """Repair a dataset.

    A lost or damaged index or manifest is rebuilt from data.mdb and replaced in one step. If data.mdb itself is
    damaged, it stays unchanged, and its sound samples are copied to a new dataset without being encoded again. A sound
    dataset is left alone. The same holds for a set: files of its parts are rebuilt first, its own from the parts, and
    the sound samples of all parts go to one new dataset.

    Args:
        path: The dataset's.
        out: The new dataset's, needed if data.mdb, or that of a part, is damaged; nothing is written there otherwise.
        progress: Called with the number of samples checked since the last call.
        log: Called with each message, a line of text: all faults, and the repairs.

    Returns:
        The repaired files, and the samples that had to be left out.

    Raises:
        NotFoundError: There is nothing at `path`.
        FormatError: It is not a finished dataset of this format version, or a newer release made it and this one
            cannot check all of it.
        CorruptError: It cannot be repaired, or not without `out`; the message gives the reason.
        DestinationError: `out` exists already, or cannot be written.
        DiskFullError: No room left.
    """
    folder = local_path("path", path).absolute()
    target = None if out is None else _check_out(new_path("out", out), folder)
    found = verify(path, progress=progress)
    for line in (*(f"{folder}: {problem}" for problem in found.problems), *map(str, found.damaged)):
        log(line)
    if found.is_sound:
        log(plain(f"{folder}: is sound, nothing was done"))
        return Repair(found, (), None, found.num_samples, ())
    if is_set(folder):
        return repair_set(folder, found, target, log)
    description, manifest = what_is_known(folder, found.files, found.advice)
    if DATA_FILE not in found.files and {INDEX_FILE, MANIFEST_FILE} & set(found.files):
        replaced = rebuild(folder, description, manifest, found.files)
        log(plain(f"{folder}: {' and '.join(replaced)} rebuilt from {DATA_FILE}"))
        return Repair(found, replaced, None, read_manifest(folder).num_samples, ())
    if DATA_FILE not in found.files or not (folder / DATA_FILE).is_file():
        raise CorruptError(f"{folder}: cannot be repaired. {found.advice}", path=str(folder))
    if target is None:
        raise CorruptError(f"{folder}: {DATA_FILE} is damaged, and is never changed. {found.advice}", path=str(folder))
    if manifest and INDEX_FILE not in found.files:
        return _write_sound(folder, manifest, found, target, log)
    return _write_salvaged(folder, description, manifest, found, target, log)


def _check_out(out: Path, folder: Path) -> Path:
    if out.exists() or out.is_symlink():
        raise DestinationError(f"{out}: is there already. Choose another name for the new dataset.")
    if Path(os.path.realpath(folder)) in Path(os.path.realpath(out)).parents:
        raise DestinationError(f"{out}: is inside {folder}. Choose a folder outside of it.")
    return out


def _write_sound(
    folder: Path, manifest: Manifest, found: Verification, out: Path, log: Callable[[str], None]
) -> Repair:
    """Write the samples of the index that can be read."""
    chunks = sound_samples(folder, manifest, {damage.sample for damage in found.damaged})
    hint = (
        f" If {INDEX_FILE} and {MANIFEST_FILE} came from another dataset than {DATA_FILE}: remove {MANIFEST_FILE} and "
        f"{INDEX_FILE}, and repair it again to save the samples in {DATA_FILE}."
    )
    num_samples = write_samples(folder, manifest.description, chunks, lambda: found.damaged, out, hint=hint)
    return report(folder, Repair(found, (), out, num_samples, found.damaged), log)


def _write_salvaged(
    folder: Path,
    description: Description,
    manifest: Manifest | None,
    found: Verification,
    out: Path,
    log: Callable[[str], None],
) -> Repair:
    """Write the samples of all records on the pages of data.mdb."""
    salvage = RecordSalvage(folder, description, num_samples_of(folder, description, manifest))

    def left_out() -> tuple[Damage, ...]:
        return tuple(Damage(sample, ALL_FIELDS, None, LOST) for lost in salvage.lost for sample in lost)

    num_samples = write_samples(folder, description, salvage.chunks(), left_out, out, lambda: salvage.may_lack_more)
    if manifest and not left_out() and read_manifest(out).content_digest != manifest.content_digest:
        shutil.rmtree(out)
        raise CorruptError(
            f"{folder}: cannot be repaired: the records in {DATA_FILE} are intact, but not those of the dataset in "
            f"{MANIFEST_FILE}. Put back the right {DATA_FILE}; or remove {MANIFEST_FILE} to repair the dataset that "
            f"{DATA_FILE} holds.",
            path=str(folder),
        )
    for lost in salvage.lost:
        log(f"samples {lost.start} to {lost.stop - 1}: {LOST}")
    return report(folder, Repair(found, (), out, num_samples, left_out(), salvage.may_lack_more), log)
