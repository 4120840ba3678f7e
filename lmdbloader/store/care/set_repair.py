"""Repairs a set: the files of its parts, then its own index and manifest; or saves the sound samples of all parts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from lmdbloader.base.disk_errors import explain_full_disk
from lmdbloader.base.text import counted, plain
from lmdbloader.errors import CorruptError, FormatError, NotFoundError
from lmdbloader.format.layout import DATA_FILE, INDEX_FILE, MANIFEST_FILE
from lmdbloader.format.manifest import Description, Manifest
from lmdbloader.store.care.findings import Verification
from lmdbloader.store.care.pages import find_description
from lmdbloader.store.care.rebuild import rebuild, what_is_known, work_folder
from lmdbloader.store.care.salvage import LOST, RecordSalvage
from lmdbloader.store.care.saving import Repair, num_samples_of, report, sound_samples, write_samples
from lmdbloader.store.care.set_check import parts_there
from lmdbloader.store.damage import ALL_FIELDS, Damage
from lmdbloader.store.opening import DataFile, read_manifest
from lmdbloader.store.records import Chunk
from lmdbloader.store.writing.sets import write_set

_NO_DATA = "the data file of its part is missing"


def is_set(folder: Path) -> bool:
    """Return whether a folder holds a set, in any state."""
    manifest = _manifest_of(folder)
    return bool(manifest.parts if manifest else parts_there(folder))


def repair_set(folder: Path, found: Verification, out: Path | None, log: Callable[[str], None]) -> Repair:
    """Repair a set that is not sound; see `repair`.

    Args:
        folder: The set.
        found: Its faults.
        out: The new dataset; None if none may be written.
        log: Called with each message, a line of text.

    Raises:
        CorruptError: It cannot be repaired, or not without `out`.
    """
    manifest = _manifest_of(folder)
    names = [part.name for part in manifest.parts] if manifest else parts_there(folder)
    broken = [name for name in names if f"{name}/{DATA_FILE}" in found.files]
    if broken and out is None:
        raise CorruptError(
            f"{folder}: {broken[0]}/{DATA_FILE} is damaged or missing, and is never changed. {found.advice}",
            path=str(folder),
        )
    rebuilt = _rebuild_parts(folder, [name for name in names if name not in broken], found, log)
    if broken:
        assert out is not None
        _refuse_others(folder, manifest, rebuilt, found)
        return _save(folder, names, broken, manifest, found, out, log)
    return _rebuild_own(folder, names, manifest, rebuilt, found, log)


def _manifest_of(folder: Path) -> Manifest | None:
    with suppress(FormatError, CorruptError, NotFoundError):
        return read_manifest(folder)
    return None


def _rebuild_parts(
    folder: Path, names: Sequence[str], found: Verification, log: Callable[[str], None]
) -> dict[str, tuple[str, ...]]:
    """Rebuild damaged indices and manifests of parts whose data is sound; return the replaced files, by part."""
    rebuilt = {}
    for name in names:
        damaged = [file for file in (INDEX_FILE, MANIFEST_FILE) if f"{name}/{file}" in found.files]
        if damaged:
            part = folder / name
            description, manifest = what_is_known(part, damaged, found.advice)
            rebuilt[name] = rebuild(part, description, manifest, damaged)
            log(plain(f"{part}: {' and '.join(rebuilt[name])} rebuilt from {DATA_FILE}"))
    return rebuilt


def _refuse_others(
    folder: Path, manifest: Manifest | None, rebuilt: Mapping[str, tuple[str, ...]], found: Verification
) -> None:
    """Raise CorruptError if a part is not the dataset that the set's manifest states."""
    if manifest is None or MANIFEST_FILE in found.files:
        return
    for part in manifest.parts:
        theirs = _manifest_of(folder / part.name)
        if theirs is not None and part.name not in rebuilt and theirs.manifest_digest != part.manifest_digest:
            raise CorruptError(
                f"{folder}: cannot be repaired: {part.name} is not the dataset that belongs to the set. Put back the "
                "right one, or move it away to save the samples of the other parts.",
                path=str(folder),
            )


def _rebuild_own(
    folder: Path,
    names: Sequence[str],
    manifest: Manifest | None,
    rebuilt: Mapping[str, tuple[str, ...]],
    found: Verification,
    log: Callable[[str], None],
) -> Repair:
    """Write the index and manifest of a set whose parts are sound, if they are damaged or do not match the parts."""
    replaced = [f"{name}/{file}" for name, files in rebuilt.items() for file in files]
    stated = [part.manifest_digest for part in manifest.parts] if manifest else None
    own = [file for file in found.files if "/" not in file and (folder / file).suffix]
    if own or [read_manifest(folder / name).manifest_digest for name in names] != stated:
        description = manifest.description if manifest else _description_of_parts(folder, names, log)
        expected = manifest.content_digest if manifest else None
        try:
            with work_folder(folder), explain_full_disk(folder):
                classes, made_by = description.classes, description.made_by
                write_set(folder, names, classes=classes, made_by=made_by, expected=expected)
        except (CorruptError, FormatError) as error:
            raise CorruptError(f"{folder}: cannot be repaired: {error} {found.advice}", path=str(folder)) from error
        own = [read_manifest(folder).index_file, MANIFEST_FILE]
        log(plain(f"{folder}: {' and '.join(own)} rebuilt from its {counted(len(names), 'part')}"))
    if not replaced and not own:
        raise CorruptError(f"{folder}: cannot be repaired. {found.advice}", path=str(folder))
    return Repair(found, (*replaced, *own), None, read_manifest(folder).num_samples, ())


def _description_of_parts(folder: Path, names: Sequence[str], log: Callable[[str], None]) -> Description:
    """Return the description of a set whose manifest is lost: that of its first part, with the classes of all parts."""
    known = [found for name in names if (found := _description_of(folder / name)) is not None]
    if not known:
        raise CorruptError(
            f"{folder}: cannot be repaired: neither it nor one of its {counted(len(names), 'part')} has a description. "
            "Restore it from a copy, or convert again.",
            path=str(folder),
        )
    classes = {name: max((d.classes.get(name, ()) for d in known), key=len) for name in known[0].classes}
    log(
        plain(
            f"{folder}: {MANIFEST_FILE} is lost: how the set was made, and the names of its classes, are taken from "
            f"{len(known)} of its parts. What only the set's own manifest stated is lost."
        )
    )
    first = known[0]
    return Description(first.fields, first.with_source, classes, first.made_by)


def _description_of(part: Path) -> Description | None:
    """Return the description of a part, from its manifest or from its data.mdb; None if both are lost."""
    if manifest := _manifest_of(part):
        return manifest.description
    with suppress(FormatError, OSError):
        data = DataFile(part / DATA_FILE, "pread")  # which closes its descriptor when it is freed
        return find_description(data.descriptor, str(part))
    return None


def _save(
    folder: Path,
    names: Sequence[str],
    broken: Collection[str],
    manifest: Manifest | None,
    found: Verification,
    out: Path,
    log: Callable[[str], None],
) -> Repair:
    """Write the sound samples of all parts."""
    description = manifest.description if manifest else _description_of_parts(folder, names, log)
    stated = {part.name: part.num_samples for part in manifest.parts} if manifest else {}
    saved = _Saved(folder, names, broken, stated, description, found)
    data_files = [file for name in names if (folder / (file := f"{name}/{DATA_FILE}")).is_file()]
    num_samples = write_samples(
        folder,
        description,
        saved.chunks(),
        lambda: saved.left_out,
        out,
        lambda: saved.may_lack_more,
        data_files=data_files,
    )
    for line in saved.lines:
        log(line)
    return report(folder, Repair(found, (), out, num_samples, tuple(saved.left_out), saved.may_lack_more), log)


class _Saved:
    """The sound samples of a set, part by part. The attributes are complete once all chunks were taken.

    Attributes:
        left_out: The damaged values that are left out.
        may_lack_more: Whether other samples may be missing too, because their number is unknown.
        lines: Messages about ranges of samples that are lost.
    """

    def __init__(
        self,
        folder: Path,
        names: Sequence[str],
        broken: Collection[str],
        stated: Mapping[str, int],
        description: Description,
        found: Verification,
    ) -> None:
        """Set up; nothing is read yet.

        Args:
            folder: The set.
            names: The names of its parts.
            broken: The names of the parts whose data file is damaged or missing.
            stated: The number of samples of each part, if the set's manifest is readable.
            description: The description to use for parts that have lost their own.
            found: The faults of the set.
        """
        self.left_out: list[Damage] = []
        self.may_lack_more = False
        self.lines: list[str] = []
        self._folder, self._names, self._broken, self._stated = folder, names, broken, stated
        self._description, self._found = description, found
        self._first = 0

    def chunks(self) -> Iterator[Chunk]:
        """Yield the samples, from all parts in order."""
        for name in self._names:
            part = self._folder / name
            manifest = _manifest_of(part)
            num_samples = self._stated.get(name, manifest.num_samples if manifest else None)
            is_whole = name not in self._broken or not any(
                f"{name}/{file}" in self._found.files for file in (INDEX_FILE, MANIFEST_FILE)
            )
            if not (part / DATA_FILE).is_file():
                self._lose(range(self._first, self._first + (num_samples or 0)), _NO_DATA)
                self.may_lack_more |= num_samples is None
            elif manifest and is_whole:
                num_samples = manifest.num_samples
                yield from self._of_index(part, manifest)
            else:
                num_samples = yield from self._of_records(part, manifest, num_samples)
            self._first += num_samples or 0

    def _of_index(self, part: Path, manifest: Manifest) -> Iterator[Chunk]:
        """Yield the samples of a part with an intact index."""
        stop = self._first + manifest.num_samples
        damaged = [damage for damage in self._found.damaged if self._first <= damage.sample < stop]
        self.left_out += damaged
        yield from sound_samples(part, manifest, {damage.sample - self._first for damage in damaged})

    def _of_records(self, part: Path, manifest: Manifest | None, stated: int | None) -> Generator[Chunk, None, int]:
        """Yield the samples of a part without an intact index; return how many there were, as far as is known."""
        description = _description_of(part) or self._description
        known = num_samples_of(part, description, manifest) if stated is None else stated
        salvage, num_samples = RecordSalvage(part, description, known), 0
        for chunk in salvage.chunks():
            num_samples += chunk.num_samples
            yield chunk
        for lost in salvage.lost:
            num_samples += len(lost)
            self._lose(range(self._first + lost.start, self._first + lost.stop), LOST)
        self.may_lack_more |= salvage.may_lack_more
        return num_samples

    def _lose(self, samples: range, reason: str) -> None:
        """Note a range of samples that is lost."""
        if samples:
            self.left_out += [Damage(sample, ALL_FIELDS, None, reason) for sample in samples]
            self.lines.append(f"samples {samples.start} to {samples.stop - 1}: {reason}")
