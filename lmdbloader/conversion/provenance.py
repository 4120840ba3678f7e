"""The inputs and options that a dataset was made from: their record in the dataset, and whether it still holds."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lmdbloader import __version__
from lmdbloader.base import system
from lmdbloader.base.option_names import option
from lmdbloader.conversion.options import ConvertOptions
from lmdbloader.conversion.plan import Plan
from lmdbloader.conversion.pool import make_tasks
from lmdbloader.conversion.sources.listing import Listing, Sources, Span, is_url
from lmdbloader.conversion.sources.reading import read_ends, times_of
from lmdbloader.conversion.tasks import hash_files
from lmdbloader.errors import CorruptError, DestinationError, FormatError
from lmdbloader.format.digests import DEFAULT_DIGEST, DigestName, digest_of_text, new_text_digest
from lmdbloader.format.layout import SOURCES_FILE
from lmdbloader.format.manifest import Manifest
from lmdbloader.store import is_dataset, open_reader, read_manifest
from lmdbloader.store.writing.ownership import open_own_file

# Options that the record of the inputs covers, or that a dataset does not depend on.
_UNRECORDED = frozenset({"layout", "hr", "lr", "masks", "annotations", "subset", "classes", "workers"})

# In the record of a dataset that others were appended to: what was appended, as a merge records its inputs.
APPENDED = "appended"
# Functions that make datasets of others, as layouts.
_COMBINING = frozenset({"merge", "subset", "append"})

# Options of sets of parts.
_OF_SETS = ("parts", "part_size")


class ContentHash:
    """The digest of all input files, source by source."""

    def __init__(self, digest: DigestName = DEFAULT_DIGEST, *, keep: bool = False) -> None:
        """Start without files; `keep` their hashes for `hashes`."""
        self._digest = new_text_digest(digest)
        self._kept = bytearray() if keep else None

    def add(self, file_hashes: Iterable[int]) -> None:
        """Append the hashes of the next sources' files."""
        self.add_bytes(b"".join(h.to_bytes(8, "little") for h in file_hashes))

    def add_bytes(self, file_hashes: bytes) -> None:
        """Append hashes that are 8 bytes each, little-endian."""
        self._digest.update(file_hashes)
        if self._kept is not None:
            self._kept += file_hashes

    def hashes(self) -> npt.NDArray[np.uint64]:
        """Return (n,) uint64, the hashes that were kept."""
        return np.frombuffer(bytes(self._kept or b""), "<u8").astype(np.uint64, copy=False)

    def __str__(self) -> str:
        return str(self._digest)


def describe(plan: Plan) -> dict[str, Any]:
    """Return how a dataset is made, for its manifest.

    Nothing in it depends on the time, the machine, the paths of the folders or the number of workers. Options that are
    not listed here are recorded by their names if they differ from their defaults.
    """
    options, recipe, listing = plan.options, plan.recipe, plan.listing
    names = new_text_digest(options.digest)
    for s in listing.sources:
        names.update(f"{s.name}\0{os.path.basename(s.lr_name or b'')!r}\0{s.nbytes}\0".encode())
    record: dict[str, Any] = {
        "patch_size": options.patch_size,
        "stride": recipe.stride,
        "scale": options.scale,
        "bicubic": options.bicubic,
        "policy": asdict(recipe.policy),
        "min_pair_psnr": options.min_pair_psnr,
        "on_error": options.on_error,
        "storage": asdict(recipe.storage),
        "codec": plan.codec,
    }
    if options.classes is not None and listing.sources.annotations is None:
        record["classes"] = digest_of_text("\0".join(listing.classes).encode(), options.digest)
    record |= digest_option(options.digest)
    made_by: dict[str, Any] = {
        "lmdbloader": __version__,
        "layout": listing.layout,
        "options": record,
        "inputs": {"num_sources": len(listing.sources), "names_and_sizes": str(names)},
    }
    if listing.sources.annotations is not None:
        boxes = new_text_digest(options.digest)
        boxes.update("\0".join(listing.classes).encode())
        for part in listing.sources.annotations.parts():
            boxes.update(part)
        made_by["inputs"]["annotations"] = str(boxes)
    listed = _flat(made_by).keys() | _UNRECORDED
    record |= {
        f.name: value
        for f in fields(ConvertOptions)
        if f.name not in listed and (value := getattr(options, f.name)) != f.default
    }
    # A set has the samples of one dataset, in other files.
    record |= {name: value for name in _OF_SETS if (value := getattr(options, name, None)) is not None}
    return made_by


def digest_option(digest: DigestName) -> dict[str, str]:
    """Return the record of the digests in a manifest's options: empty for the default."""
    return {} if digest == DEFAULT_DIGEST else {"digest": digest}


def changed_options(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return the differences of two results of `describe` that do not follow from their inputs, as text."""
    if _maker(old) != _maker(new):
        return [f"it was begun by lmdbloader.{_maker(old)}"]
    # on_error may change after a bad image was found.
    before, now = ({**_flat(made), "lmdbloader": made["lmdbloader"]} for made in (old, new))
    return differences_of(before, now, {"on_error"})


def _maker(made: Mapping[str, Any]) -> str:
    """Return the function that makes a dataset with such a record."""
    return {"python": "write"}.get(made["layout"], made["layout"] if made["layout"] in _COMBINING else "convert")


def _flat(made: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recorded options and the layout by their names in `convert`."""
    flat: dict[str, Any] = {"digest": DEFAULT_DIGEST}
    for name, value in made["options"].items():
        flat |= value if name in ("policy", "storage") else {name: value}
    if "mode" in flat:
        flat["write_mode"] = flat.pop("mode")
    return {**flat, "layout": made["layout"]}


def differences_of(before: Mapping[str, Any], now: Mapping[str, Any], aside: Set[str] = frozenset()) -> list[str]:
    """Return the differences of options by name, as text; those in `aside` may differ."""
    return [
        f"{option(name)} {_short(before.get(name))}, now {_short(now.get(name))}"
        for name in sorted((before.keys() | now.keys()) - aside)
        if before.get(name) != now.get(name)
    ]


def refuse_others(target: Path, made_by: Mapping[str, Any]) -> None:
    """Refuse a dataset at `target` that another conversion made, and name the differences.

    Raises:
        DestinationError: A dataset is there, and its manifest decodes.
    """
    if not is_dataset(target):
        return
    try:
        old = read_manifest(target).made_by
        if (maker := _maker(old)) != "convert":
            made_from = "samples made in Python" if maker == "write" else "other datasets"
            differences = [f"it was made by lmdbloader.{maker}, from {made_from}"]
        else:
            before, now = _flat(old), _flat(made_by)
            differences = differences_of(before, now)
            differences += _input_differences(old["inputs"], made_by["inputs"], before["digest"] == now["digest"])
            differences += ["other samples were appended to it"] * (APPENDED in old)
    except (FormatError, KeyError, TypeError, AttributeError):  # of another release
        return
    found = "; ".join(differences) or "the content of the inputs has changed"
    raise DestinationError(
        f"{target}: a dataset is there already, made from other inputs or with other options ({found}). "
        f"Choose another destination, or overwrite it ({option('overwrite', True)})."
    )


def _input_differences(old: Mapping[str, Any], new: Mapping[str, Any], are_comparable: bool) -> list[str]:
    if old["num_sources"] != new["num_sources"]:
        return [f"inputs {_short(old['num_sources'])}, now {new['num_sources']}"]
    if are_comparable and old["names_and_sizes"] != new["names_and_sizes"]:
        return ["inputs of other names or sizes"]
    if are_comparable and old.get("annotations") != new.get("annotations"):
        return ["other boxes or classes"]
    return []


def _short(value: Any) -> str:
    return "none" if value is None else f"{value!s:.60}"


def find_finished(
    target: Path, made_by: Mapping[str, Any], listing: Listing, *, check_content: bool = False
) -> Manifest | None:
    """Return the manifest of a dataset that was made from the same inputs with the same options.

    The content of the inputs is read only to `check_content`, if the dataset's note is missing, or for an input that
    differs from the note.

    Raises:
        DestinationError: There is such a dataset, but it is damaged.
    """
    if not is_dataset(target):
        return None
    try:
        manifest = read_manifest(target)
    except FormatError:
        return None
    old = manifest.made_by
    inputs = old.get("inputs", {})
    same = {k: v for k, v in inputs.items() if k != "content"} == made_by["inputs"]
    # The release may differ: a dataset made by an older one counts as finished.
    same = same and all(old.get(key) == made_by[key] for key in ("layout", "options")) and APPENDED not in old
    if not same:
        return None
    if not are_unchanged(target, manifest, listing, check_content=check_content):
        return None
    try:
        open_reader(target).index.check_file()
    except (CorruptError, FormatError) as error:
        raise DestinationError(
            f"{target}: was made from the same inputs with the same options, but is damaged. "
            f"Make it again with {option('overwrite', True)}. {error}"
        ) from error
    return manifest


def are_unchanged(target: Path, manifest: Manifest, listing: Listing, *, check_content: bool = False) -> bool:
    """Return whether inputs have the content that a dataset was made from; its note of them is renewed if need be."""
    is_noted = is_as_noted(target, listing)
    if check_content or not is_noted:
        times = [times_of(source) for source in listing.sources]
        if _content(listing.sources, manifest.digest) != manifest.made_by["inputs"].get("content"):
            return False
        if not is_noted:  # otherwise every later run would read the content
            renew_note(target, listing, times)
    return True


def _content(sources: Sources, digest: DigestName) -> str:
    content = ContentHash(digest)
    for task in make_tasks(sources):
        content.add(hash_files(task))
    return str(content)


_SCHEMA = pa.schema([
    pa.field("nbytes", pa.int64(), False),
    pa.field("mtime_ns", pa.int64(), False),
    pa.field("ctime_ns", pa.int64(), False),
    pa.field("ends", pa.uint64(), False),
])  # fmt: skip
# The time of the newest remote file, as metadata: not every service reports the time of each file.
_REMOTE_CHANGED = b"remote_changed_ns"
_ROW_NBYTES = 32
_MOST_OTHER_NBYTES = 2**16


class Seen:
    """The times and ends of sources in order, in 24 bytes each, for `make_note`."""

    def __init__(self) -> None:
        self._times, self._ends = array("q"), array("Q")
        self._is_whole = True

    def add(self, sources: Iterable[Sequence[int]]) -> None:
        """Append (mtime in ns, ctime in ns, digest of the ends) of the next sources; fewer values spoil the note."""
        for seen in sources:
            if len(seen) != 3:
                self._is_whole = False
                return
            self._times.extend(seen[:2])
            self._ends.append(seen[2])

    def columns(self) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """Return mtime, ctime (n,) int64 and ends (n,) uint64; None if they are not known for every source."""
        if not self._is_whole:
            return None
        times = np.array(self._times, np.int64).reshape(-1, 2)
        return times[:, 0], times[:, 1], np.array(self._ends, np.uint64)


def make_note(seen: Seen, listing: Listing) -> bytes | None:
    """Return the content of the note; None if too little is known for it."""
    columns = seen.columns()
    return None if columns is None else note_of((listing.sources.nbytes, *columns), listing.changed_ns)


def note_of(columns: Sequence[npt.NDArray[Any]], changed_ns: int | None) -> bytes | None:
    """Return the content of the note, given sizes, mtime, ctime and ends, each (n,); None if a time is not known."""
    if changed_ns is None:
        return None
    arrays = [pa.array(np.ascontiguousarray(column)) for column in columns]
    schema = _SCHEMA.with_metadata({_REMOTE_CHANGED: str(changed_ns).encode()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return bytes(sink.getvalue())


def is_as_noted(folder: Path, listing: Listing) -> bool:
    """Return whether every source has the size, times, head and tail in the note of a dataset; False without a note."""
    note = _read(folder / SOURCES_FILE, len(listing.sources))
    if note is None or listing.changed_ns is None or not np.array_equal(note["nbytes"], listing.sources.nbytes):
        return False
    if (note.schema.metadata or {}).get(_REMOTE_CHANGED) != str(listing.changed_ns).encode():
        return False
    changed, status_changed, ends = (note[name].to_numpy() for name in ("mtime_ns", "ctime_ns", "ends"))
    for number, source in enumerate(listing.sources):
        if times_of(source) != (changed.item(number), status_changed.item(number)):
            return False
        is_remote = any(is_url(file.path if isinstance(file, Span) else file) for file in source.files)
        if not is_remote and read_ends(source) != ends.item(number):
            return False
    return True


def renew_note(folder: Path, listing: Listing, times: Sequence[tuple[int, int]]) -> None:
    """Note the times of sources after their content was found unchanged; a read-only folder is left alone.

    The times are from before the content was read, so that later changes are found.
    """
    paths = (file.path if isinstance(file, Span) else file for source in listing.sources for file in source.files)
    if any(map(is_url, paths)):
        return  # the service reports their changes itself
    seen = Seen()
    seen.add((*found, read_ends(source)) for found, source in zip(times, listing.sources, strict=True))
    note = make_note(seen, listing)
    # Next to the dataset: in it, a file left by a process that died would count as somebody else's.
    partial = folder.with_name(f"{folder.name}.{SOURCES_FILE}-{os.getpid()}")
    try:
        if note is not None:
            partial.write_bytes(note)
            system.replace_file(partial, folder / SOURCES_FILE)
    except OSError:
        return
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def _read(path: Path, num_sources: int) -> pa.Table | None:
    try:
        with open(open_own_file(path), "rb") as file:
            if os.fstat(file.fileno()).st_size > num_sources * _ROW_NBYTES + _MOST_OTHER_NBYTES:
                return None
            note = pa.ipc.open_file(file.read()).read_all()
        note.validate(full=True)
    except (OSError, pa.ArrowException):
        return None
    is_ours = note.schema.equals(_SCHEMA) and note.num_rows == num_sources
    return note if is_ours and not any(column.null_count for column in note.columns) else None
