"""Saves and loads the plan of a set: what its parts share, the sources of each part, and the notes of finished parts.

All of it is in OUT.partial: `plan.json`, which is written last, and the folder `shares` with the sources of each part
and the notes that each finished part leaves for the join.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from lmdbloader.base import system
from lmdbloader.base.disk_errors import naming
from lmdbloader.base.option_names import option
from lmdbloader.conversion.journal import Begun, Progress, parse_plan, plan_text
from lmdbloader.conversion.plan import Plan
from lmdbloader.conversion.report import count_classes
from lmdbloader.conversion.sources.listing import Annotations, Listing, Names, Sources, Spans, is_url
from lmdbloader.conversion.storage import Storage
from lmdbloader.errors import DestinationError
from lmdbloader.format.layout import PLAN_FILE, SHARES_FOLDER, part_name
from lmdbloader.store.writing.publish import flush

_NO_SOURCES = Sources(Names.join(b"", []), np.zeros(0, np.int64))
_LISTED = ("layout", "classes", "fields", "ignored", "changed_ns", "in_process", "notes")
Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Shared:
    """What all parts of a set share.

    Attributes:
        begun: The decisions: fields, codecs, scale, sizes, and the record for the manifest.
        asked: The source and the options as given, by name, with values as in JSON.
        overwrite: Whether an existing dataset may be replaced.
        listing: The listing without its sources.
        storage, first_mask, codec: As in the plan.
        bounds: Part i has the sources bounds[i] : bounds[i + 1].
        nbytes: Bytes of the inputs of each part.
        class_counts: As `Report.classes`.
        holders: Size and timestamp of each local tar or LMDB that holds sources, by its path.
    """

    begun: Begun
    asked: Mapping[str, Any]
    overwrite: bool
    listing: Listing
    storage: Storage
    first_mask: tuple[str, int] | None
    codec: str
    bounds: tuple[int, ...]
    nbytes: tuple[int, ...]
    class_counts: Mapping[str, int]
    holders: Mapping[str, tuple[int, int]]

    @property
    def num_parts(self) -> int:
        """The number of parts."""
        return len(self.nbytes)

    @property
    def num_sources(self) -> int:
        """The number of sources."""
        return self.bounds[-1]


def choose_bounds(nbytes: npt.NDArray[np.int64], num_parts: int) -> npt.NDArray[np.int64]:
    """Return the bounds of parts with about the same bytes of inputs, each with at least one source.

    >>> choose_bounds(np.array([10, 10, 10, 30]), 2).tolist(), choose_bounds(np.array([90, 1, 1]), 3).tolist()
    ([0, 3, 4], [0, 1, 2, 3])
    """
    # Plus 1, because a source takes time even if its size is not known.
    ends = np.cumsum(nbytes + 1)
    wanted = ends[-1] * np.arange(1, num_parts) / num_parts
    numbers = np.arange(1, num_parts)
    # The nearer of the two bounds around the wanted size.
    after = np.searchsorted(ends, wanted)
    before = np.where(after > 0, ends[after - 1], 0)
    found = after + (ends[after] - wanted < wanted - before)
    found = np.maximum.accumulate(np.maximum(found, 1) - numbers) + numbers if num_parts > 1 else found
    found = np.minimum(found, len(nbytes) - num_parts + numbers)
    return np.concatenate([[0], found, [len(nbytes)]]).astype(np.int64)


def holds_shares(partial: Path) -> bool:
    """Return whether a folder holds the plan of a set."""
    return (partial / SHARES_FOLDER).is_dir() and (partial / PLAN_FILE).is_file()


def save(
    partial: Path, plan: Plan, begun: Begun, asked: Mapping[str, Any], overwrite: bool, bounds: npt.NDArray[np.int64]
) -> None:
    """Write the plan of a set durably: the sources of each part first, the plan itself last."""
    folder = partial / SHARES_FOLDER
    folder.mkdir()
    sources = plan.listing.sources
    nbytes = []
    for number in range(len(bounds) - 1):
        share = sources.take(np.arange(bounds[number], bounds[number + 1]))
        nbytes.append(int(share.nbytes.sum()))
        _save_arrays(folder / _sources_name(number), _pack(share))
    shared = {
        "asked": asked,
        "overwrite": overwrite,
        "listing": {name: getattr(plan.listing, name) for name in _LISTED},
        "storage": asdict(plan.recipe.storage),
        "first_mask": plan.recipe.first_mask,
        "codec": plan.codec,
        "bounds": bounds.tolist(),
        "nbytes": nbytes,
        "class_counts": list(count_classes(plan.listing).values()),
        "holders": {path: _look(path) for path in _holders(sources)},
    }
    path = folder / PLAN_FILE
    with naming(path):
        path.write_text(plan_text(begun, shared), "utf-8")
    for place in (path, folder):
        flush(place)
    system.replace_file(path, partial / PLAN_FILE)
    for place in (partial, partial / ".."):
        flush(place)


def load(partial: Path) -> Shared:
    """Load the plan of a set.

    Raises:
        DestinationError: It is damaged.
    """
    begun, shared = parse_plan(partial)
    with _explain(partial / PLAN_FILE):
        listed = shared["listing"]
        listing = Listing(
            listed["layout"],
            _NO_SOURCES,
            tuple(listed["classes"]),
            tuple((name, kind) for name, kind in listed["fields"]),
            tuple((name, reason) for name, reason in listed["ignored"]),
            listed["changed_ns"],
            listed["in_process"],
            tuple(listed["notes"]),
        )
        mask = shared["first_mask"]
        return Shared(
            begun,
            shared["asked"],
            shared["overwrite"],
            listing,
            Storage(**shared["storage"]),
            None if mask is None else (mask[0], mask[1]),
            shared["codec"],
            tuple(shared["bounds"]),
            tuple(shared["nbytes"]),
            dict(zip(listing.classes, shared["class_counts"], strict=False)),
            {path: (nbytes, changed_ns) for path, (nbytes, changed_ns) in shared["holders"].items()},
        )


def load_listing(partial: Path, shared: Shared, number: int) -> Listing:
    """Load the listing of one part.

    Raises:
        DestinationError: It is damaged.
    """
    path = partial / SHARES_FOLDER / _sources_name(number)
    with _explain(path):
        sources = _unpack(_load_arrays(path))
        if len(sources) != shared.bounds[number + 1] - shared.bounds[number]:
            raise ValueError(f"{len(sources)} sources")
        return replace(shared.listing, sources=sources)


@dataclass(frozen=True, slots=True)
class Notes:
    """What a finished part leaves for the join.

    Attributes:
        num_samples: Its samples; 0 if none of its inputs could be used, and there is no dataset.
        on_error: The option with which it was made.
        hashes: (n,) uint64, the hash of the files of each source.
        nbytes: (n,) int64, their sizes.
        seen: Times and ends as in `provenance.Seen`, each (n,); None if they are not known.
        skipped: (name, reason) of its sources that could not be used.
        doubts: As `Progress.doubts`.
    """

    num_samples: int
    on_error: str
    hashes: npt.NDArray[np.uint64]
    nbytes: npt.NDArray[np.int64]
    seen: tuple[npt.NDArray[Any], ...] | None
    skipped: tuple[tuple[str, str], ...]
    doubts: dict[str, tuple[int, str]]


def save_notes(partial: Path, number: int, plan: Plan, done: Progress, num_samples: int) -> None:
    """Write the notes of a part durably, in one step."""
    columns = done.seen.columns()
    seen = {} if columns is None else dict(zip(("mtime", "ctime", "ends"), columns, strict=True))
    facts = {
        "num_samples": num_samples,
        "on_error": plan.options.on_error,
        "skipped": done.skipped,
        "doubts": done.doubts,
    }
    arrays: Arrays = {
        "facts": _bytes(json.dumps(facts).encode()),
        "hashes": done.content.hashes(),
        "nbytes": plan.listing.sources.nbytes,
        **{name: np.ascontiguousarray(column) for name, column in seen.items()},
    }
    path = partial / SHARES_FOLDER / _notes_name(number)
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    _save_arrays(fresh, arrays)
    system.replace_file(fresh, path)
    flush(path.parent)


def load_notes(partial: Path, number: int) -> Notes | None:
    """Load the notes of a part; return None if there are none.

    Raises:
        DestinationError: They are damaged.
    """
    path = partial / SHARES_FOLDER / _notes_name(number)
    if not path.exists():
        return None
    advice = f". Remove it and the folder {partial / part_name(number)}, and convert part {number} again."
    with _explain(path, advice):
        arrays = _load_arrays(path)
        facts = json.loads(arrays["facts"].tobytes())
        seen = tuple(arrays[name] for name in ("mtime", "ctime", "ends")) if "ends" in arrays else None
        skipped = tuple((name, reason) for name, reason in facts["skipped"])
        doubts = {kind: (int(number), str(first)) for kind, (number, first) in facts.get("doubts", {}).items()}
        return Notes(
            int(facts["num_samples"]),
            str(facts["on_error"]),
            arrays["hashes"],
            arrays["nbytes"],
            seen,
            skipped,
            doubts,
        )


def changed_holders(shared: Shared, sources: Sources) -> list[str]:
    """Return the tars and LMDBs that hold some sources and have changed since they were listed."""
    return [path for path in _holders(sources) if shared.holders.get(path) != _look(path)]


def _holders(sources: Sources) -> list[str]:
    spans = [sources.spans, sources.lr_spans, *(x for x in sources.attached.values() if isinstance(x, Spans))]
    paths = dict.fromkeys(path for found in spans if found is not None for path in found.paths)
    return [os.fsdecode(path) for path in paths if not is_url(path)]


def _look(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


def _sources_name(number: int) -> str:
    return f"sources-{number:05d}.npz"


def _notes_name(number: int) -> str:
    return f"notes-{number:05d}.npz"


class _explain:
    """Turns the errors of a damaged file into DestinationError."""

    def __init__(self, path: Path, advice: str = "") -> None:
        self._path, self._advice = path, advice

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, (ValueError, KeyError, TypeError, IndexError, EOFError, BadZipFile, FileNotFoundError)):
            lost = f", so the plan is lost. Plan again with {option('restart', True)}, which discards all parts."
            raise DestinationError(f"{self._path}: does not decode ({error!r:.80}){self._advice or lost}") from error


def _save_arrays(path: Path, arrays: Arrays) -> None:
    with naming(path), open(path, "wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
        file.flush()
        system.flush(file.fileno())


def _load_arrays(path: Path) -> Arrays:
    # The error of a disk that cannot read must not look like a file that does not decode.
    with naming(path), open(path, "rb") as file:
        content = file.read()
    with np.load(BytesIO(content), allow_pickle=False) as found:
        return {name: found[name] for name in found.files}


def _pack(sources: Sources) -> Arrays:
    """Return sources as arrays, for `_unpack`."""
    arrays = {"nbytes": sources.nbytes, **_pack_names("names", sources.names)}
    if sources.lr_names is not None:
        arrays |= _pack_names("lr_names", sources.lr_names)
    if sources.labels is not None:
        arrays["labels"] = sources.labels
    for name, spans in (("spans", sources.spans), ("lr_spans", sources.lr_spans)):
        if spans is not None:
            arrays |= _pack_spans(name, spans)
    arrays["attached"] = _bytes(json.dumps([*sources.attached]).encode())
    for i, places in enumerate(sources.attached.values()):
        name = f"attached{i}"
        arrays |= _pack_spans(name, places) if isinstance(places, Spans) else _pack_names(name, places)
    if (boxes := sources.annotations) is not None:
        arrays |= {"boxes": boxes.boxes, "boxes.labels": boxes.labels, "boxes.bounds": boxes.bounds}
        arrays |= {} if boxes.sizes is None else {"boxes.sizes": boxes.sizes}
    return arrays


def _unpack(arrays: Arrays) -> Sources:
    boxes = None
    if "boxes" in arrays:
        sizes = arrays.get("boxes.sizes")
        boxes = Annotations(arrays["boxes"], arrays["boxes.labels"], arrays["boxes.bounds"], sizes)
    attached = json.loads(arrays["attached"].tobytes())
    return Sources(
        _unpack_names("names", arrays),
        arrays["nbytes"],
        _unpack_names("lr_names", arrays) if "lr_names" in arrays else None,
        arrays.get("labels"),
        _unpack_spans("spans", arrays) if "spans" in arrays else None,
        _unpack_spans("lr_spans", arrays) if "lr_spans" in arrays else None,
        {
            name: _unpack_spans(f"attached{i}", arrays)
            if f"attached{i}.which" in arrays
            else _unpack_names(f"attached{i}", arrays)
            for i, name in enumerate(attached)
        },
        boxes,
    )


def _pack_names(name: str, names: Names) -> Arrays:
    return {name: _bytes(names.text), f"{name}.bounds": names.bounds, f"{name}.folder": _bytes(names.folder)}


def _unpack_names(name: str, arrays: Arrays) -> Names:
    return Names(arrays[f"{name}.folder"].tobytes(), arrays[name].tobytes(), arrays[f"{name}.bounds"])


def _pack_spans(name: str, spans: Spans) -> Arrays:
    """Return spans as arrays, with the paths of only those files that hold them."""
    used, which = np.unique(spans.which, return_inverse=True)
    paths = Names.join(b"", [spans.paths[number] for number in used.tolist()])
    return {
        **_pack_names(name, paths),
        f"{name}.which": which.astype(np.int32).reshape(-1),
        f"{name}.start": spans.start,
        f"{name}.nbytes": spans.nbytes,
    }


def _unpack_spans(name: str, arrays: Arrays) -> Spans:
    columns = (arrays[f"{name}.{column}"] for column in ("which", "start", "nbytes"))
    return Spans(tuple(_unpack_names(name, arrays)), *columns)


def _bytes(data: bytes) -> npt.NDArray[np.uint8]:
    return np.frombuffer(data, np.uint8)
