"""The plan and the progress of a conversion in OUT.partial, from which an interrupted one continues."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lmdbloader.base import system
from lmdbloader.base.disk_errors import naming
from lmdbloader.base.files import read_regular
from lmdbloader.base.option_names import option
from lmdbloader.base.text import counted
from lmdbloader.conversion.mask_numbers import Colors
from lmdbloader.conversion.provenance import ContentHash, Seen, changed_options
from lmdbloader.conversion.sources.listing import Source
from lmdbloader.conversion.sources.reading import changed_at
from lmdbloader.conversion.tasks import Part, hash_files, read_files
from lmdbloader.errors import CorruptError, DestinationError, FormatError
from lmdbloader.format.codecs import checksum
from lmdbloader.format.layout import DATA_FILE, PLAN_FILE, Field
from lmdbloader.format.manifest import MAX_MANIFEST_NBYTES, field_json, parse_field
from lmdbloader.store import num_committed
from lmdbloader.store.records import chained
from lmdbloader.store.writing.publish import JOURNAL_FILE, empty, flush, is_begun

_PLAN_VERSION = 1
# A plan has the names of classes that a manifest has, in ASCII: a character takes up to three times its bytes in UTF-8.
_MAX_PLAN_NBYTES = 4 * MAX_MANIFEST_NBYTES
_SOURCES_AT_ONCE = 512
# A source in the journal: hash of its name, size, times, digest of its ends, digest of its content.
_SEEN = slice(2, -1)


@dataclass(frozen=True, slots=True)
class Begun:
    """The decisions at the start of a conversion.

    Attributes:
        fields: The fields of the dataset, with their codecs.
        scale: The scale of pairs.
        map_nbytes: Estimated size of LMDB's map.
        made_by: From `provenance.describe`.
        data_nbytes: Estimated size of data.mdb; None if it was not estimated.
        least_nbytes: The lower end of its interval; None likewise.
    """

    fields: tuple[Field, ...]
    scale: int | None
    map_nbytes: int
    made_by: Mapping[str, Any]
    data_nbytes: int | None = None
    least_nbytes: int | None = None


@dataclass(slots=True)
class Progress:
    """The progress of a conversion.

    Attributes:
        num_samples: Committed samples whose sources are complete.
        num_sources: Sources of these samples, including skipped ones.
        content: The digest of their files.
        skipped: (name, reason) of sources that could not be used.
        seen: Times and ends of their files.
        records: `chained` of the records that hold them.
        in_pixels: Fields of boxes with one that reaches beyond the first pixels, of samples from Python.
        doubts: By kind, how many images are in the `Part.doubts` of its parts, and the name of the first of them.
        colors: Of the palettes of the masks that were converted now.
    """

    num_samples: int = 0
    num_sources: int = 0
    content: ContentHash = field(default_factory=ContentHash)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    seen: Seen = field(default_factory=Seen)
    records: int = 0
    in_pixels: set[str] = field(default_factory=set)
    doubts: dict[str, tuple[int, str]] = field(default_factory=dict)
    colors: Colors = field(default_factory=dict)

    def add_doubts(self, found: Iterable[tuple[str, str]]) -> None:
        """Count the images in the `Part.doubts` of another part."""
        for kind, name in found:
            number, first = self.doubts.get(kind, (0, name))
            self.doubts[kind] = number + 1, first


def write_plan(partial: Path, begun: Begun) -> None:
    """Write the plan of a conversion, durably."""
    path = partial / PLAN_FILE
    with naming(path):
        path.write_text(plan_text(begun), "utf-8")
    for place in (path, partial, partial / ".."):
        flush(place)


def plan_text(begun: Begun, shared: Mapping[str, Any] | None = None) -> str:
    """Return the text of a plan; `shared` is what the parts of a set share, as in JSON."""
    body = {
        "version": _PLAN_VERSION,
        "made_by": begun.made_by,
        "fields": [field_json(f) for f in begun.fields],
        "scale": begun.scale,
        "map_nbytes": begun.map_nbytes,
        "data_nbytes": begun.data_nbytes,
        "least_nbytes": begun.least_nbytes,
    }
    return json.dumps(body if shared is None else {**body, "shared": shared}, indent=1)


def read_plan(partial: Path, made_by: Mapping[str, Any]) -> Begun | None:
    """Return the decisions of the unfinished conversion in a folder, None if there is none.

    The folder is emptied if it holds nothing useful.

    Raises:
        DestinationError: Another conversion is unfinished there, or its plan does not decode.
    """
    if not is_begun(partial):
        empty(partial)
        return None
    begun, _ = parse_plan(partial)
    try:
        differences = changed_options(begun.made_by, made_by)
    except (KeyError, TypeError, AttributeError) as error:
        raise _no_plan(partial, error) from error
    if differences:
        raise other_options(partial, differences)
    return begun


def parse_plan(partial: Path) -> tuple[Begun, dict[str, Any]]:
    """Return the decisions in a plan, and what the parts of a set share; the latter is empty for other datasets.

    Raises:
        DestinationError: It does not decode.
    """
    try:
        with naming(partial / PLAN_FILE):
            body = json.loads(read_regular(partial / PLAN_FILE, _MAX_PLAN_NBYTES))
        if body["version"] != _PLAN_VERSION:
            raise ValueError(f"version {body['version']!r:.20}")
        fields = tuple(parse_field(f) for f in body["fields"])
        scale, map_nbytes = body["scale"], int(body["map_nbytes"])
        data, least = (None if n is None else int(n) for n in (body["data_nbytes"], body["least_nbytes"]))
        begun = Begun(fields, None if scale is None else int(scale), map_nbytes, dict(body["made_by"]), data, least)
        return begun, dict(body.get("shared", {}))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, FormatError) as error:
        raise _no_plan(partial, error) from error


def _no_plan(partial: Path, error: Exception) -> DestinationError:
    return DestinationError(f"{partial / PLAN_FILE}: does not decode ({error!r:.80}). {_again()}")


def other_options(partial: Path, differences: Sequence[str]) -> DestinationError:
    """Return the error for a folder in which a conversion with other options is unfinished."""
    again = _again()
    return DestinationError(
        f"{partial}: a conversion with other options is unfinished there ({'; '.join(differences)}). Finish it "
        f"with its own options, or: {again[0].lower()}{again[1:]}"
    )


def _again() -> str:
    return f"Restart with {option('restart', True)}, which discards its progress."


class Journal:
    """The list of finished sources in OUT.partial, on the disk before the transaction with their samples."""

    def __init__(self, partial: Path, records: int | None) -> None:
        """Open the journal to append to it; `records` is that of its progress."""
        self._records = records
        self._path = partial / JOURNAL_FILE
        # Without a buffer, because data that a full disk has refused must not be written again by close().
        self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115 - closed by close()
        self._lines: list[bytes] = []
        self._waiting: deque[tuple[int, ...]] = deque()

    def add(self, part: Part, sources: Sequence[Source], num_samples: int) -> None:
        """Add a part.

        Args:
            part: The samples of some sources.
            sources: The sources that it completes, `part.num_sources` of them.
            num_samples: Samples of the dataset including this part.
        """
        # A source with several parts is read before the first and done with the last.
        if self._records is not None:
            for block in part.blocks:
                self._records = chained(self._records, block.checksum)
        self._waiting += ((*seen, digest) for seen, digest in zip(part.seen, part.file_hashes, strict=True))
        if not part.num_sources:
            return
        done = [[_name_hash(source), source.nbytes, *self._waiting.popleft()] for source in sources]
        note = {"num_samples": num_samples, "sources": done, "skipped": part.skipped, "records": self._records}
        if in_pixels := [name for name, why in part.box_scales.items() if not why]:
            note["in_pixels"] = in_pixels
        if part.doubts:
            note["doubts"] = part.doubts
        self._lines.append(_line(note))

    def flush(self) -> None:
        """Write the added parts to the disk."""
        left = memoryview(b"".join(self._lines))
        self._lines = []
        with naming(self._path):
            while left:
                left = left[self._file.write(left) :]
            system.flush(self._file.fileno())

    def discard(self) -> None:
        """Empty the journal, because none of its samples were committed."""
        os.ftruncate(self._file.fileno(), 0)

    def close(self) -> None:
        """Close the file; parts that were not flushed belong to no transaction and are dropped."""
        self._file.close()


def recover(partial: Path, sources: Sequence[Source], *, check_content: bool = False) -> Progress:
    """Return the progress of the conversion in a folder, and cut its journal there.

    Args:
        partial: The folder.
        sources: The sources of the conversion; none if it does not list them.
        check_content: Read all finished sources again and compare their content too.

    Raises:
        DestinationError: Finished sources have changed since.
        ImageError: A source whose content must be compared cannot be read.
        CorruptError: The data file is damaged.
    """
    path = partial / JOURNAL_FILE
    progress = Progress()
    if not path.exists():
        return progress
    committed = num_committed(partial)
    kept_nbytes = 0
    with naming(path), open(path, "rb") as file:
        system.drop_cache(file.fileno())
        for note, end in _notes(file):
            if note["num_samples"] > committed:
                break
            _compare(partial, note["sources"], sources, progress.num_sources, check_content)
            progress.num_samples = note["num_samples"]
            progress.num_sources += len(note["sources"])
            progress.content.add(row[-1] for row in note["sources"])
            progress.seen.add(row[_SEEN] for row in note["sources"])
            progress.skipped += [(name, reason) for name, reason in note["skipped"]]
            progress.records = note["records"]
            progress.in_pixels.update(note.get("in_pixels", ()))
            progress.add_doubts((kind, name) for kind, name in note.get("doubts", ()))
            kept_nbytes = end
    os.truncate(path, kept_nbytes)
    return progress


def check_kept(partial: Path, progress: Progress, kept_records: int) -> None:
    """Refuse a data file that does not hold the records of the journal.

    Args:
        partial: The folder of both.
        progress: From `recover`.
        kept_records: From the writer that has opened the data file.

    Raises:
        CorruptError: It does not.
    """
    if progress.records != kept_records:
        raise CorruptError(
            f"{partial / DATA_FILE}: does not hold the samples that {JOURNAL_FILE} lists: one of the two files "
            "belongs to another conversion. Put back the right one, or discard both with "
            f"{option('restart', True)}."
        )


def _line(note: Mapping[str, Any]) -> bytes:
    text = json.dumps(note, separators=(",", ":")).encode()
    return f"{checksum(text):016x} ".encode() + text + b"\n"


def _notes(file: Any) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield notes, and the end of each in the file, up to the first incomplete one."""
    end = 0
    for line in file:
        digest, _, text = line.rstrip(b"\n").partition(b" ")
        if not line.endswith(b"\n") or digest != f"{checksum(text):016x}".encode():
            return
        end += len(line)
        yield json.loads(text), end


def _compare(
    partial: Path, done: Sequence[Sequence[int]], sources: Sequence[Source], first: int, check_content: bool
) -> None:
    """Raise DestinationError if sources are not those that were converted."""
    now = sources[first : first + len(done)]
    for at in range(0, len(done), _SOURCES_AT_ONCE):
        few = now[at : at + _SOURCES_AT_ONCE]
        hashes = hash_files(few) if check_content else []
        for i, source in enumerate(few):
            name_hash, nbytes, changed_ns, *_, digest = done[at + i]
            changed = ""
            if _name_hash(source) != name_hash:
                changed = (
                    "replaces another input, or has another label or other boxes: inputs were added, removed or renamed"
                )
            elif source.nbytes != nbytes:
                changed = f"has {source.nbytes} bytes; it had {nbytes}"
            elif check_content or changed_at(source) != changed_ns:
                found = hashes[i] if check_content else hash_files([source])[0]
                if not found and digest:
                    read_files(source)  # raises why it cannot be read
                if found != digest:
                    changed = "has other content"
            if changed:
                raise _changed(partial, f"{source.name} {changed}")
    if len(now) < len(done):
        now_are = counted(first + len(now), "input is", "inputs are")
        raise _changed(partial, f"{now_are} there, fewer than were converted")


def _changed(partial: Path, change: str) -> DestinationError:
    return DestinationError(
        f"{partial}: inputs that were already converted have changed: {change}. Put them back as they were and convert "
        f"again, or discard the progress with {option('restart', True)}."
    )


def _name_hash(source: Source) -> int:
    # With the label, which depends on the order of all classes and changes with a new one.
    name = f"{source.name}\0{os.path.basename(source.lr_name or b'')!r}\0{source.label}"
    if source.annotation is not None:
        name += f"\0{source.annotation.digest()}"
    return checksum(name.encode("utf-8", "surrogatepass"))
