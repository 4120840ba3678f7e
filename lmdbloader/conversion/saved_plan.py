"""Saves and loads the plan of a conversion in OUT.partial: what its parts share, and the sources of each part."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from lmdbloader.base.disk_errors import explain_full_disk, naming
from lmdbloader.base.option_names import option
from lmdbloader.conversion.plan import Plan, Trial
from lmdbloader.conversion.report import count_classes
from lmdbloader.conversion.sources.listing import Annotations, Listing, Names, Sources, Spans, is_url
from lmdbloader.conversion.storage import Storage
from lmdbloader.errors import DestinationError, FormatError
from lmdbloader.format.layout import PLAN_FILE
from lmdbloader.format.manifest import field_json, parse_field
from lmdbloader.store import Work

_NO_SOURCES = Sources(Names.join(b"", []), np.zeros(0, np.int64))
_LISTED = ("layout", "classes", "fields", "ignored", "changed_ns", "in_process")


@dataclass(frozen=True, slots=True)
class SavedPlan:
    """What all parts of a conversion share.

    Attributes:
        made_by: How the dataset is made, for the manifest.
        decisions: The choices that were made from a few inputs.
        asked: The source and the options as given, by name, with values as in JSON.
        overwrite: Whether an existing dataset may be replaced.
        listing: The listing without its sources.
        storage: As in the plan.
        bounds: Part i has the sources bounds[i] : bounds[i + 1].
        nbytes: Bytes of the inputs of each part.
        class_counts: As `Report.classes`.
        holders: Size and timestamp of each local tar or LMDB that holds sources, by its path.
    """

    made_by: Mapping[str, Any]
    decisions: Trial
    asked: Mapping[str, Any]
    overwrite: bool
    listing: Listing
    storage: Storage
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


def save(
    work: Work,
    plan: Plan,
    made_by: Mapping[str, Any],
    decisions: Trial,
    asked: Mapping[str, Any],
    overwrite: bool,
    bounds: npt.NDArray[np.int64],
) -> None:
    """Write the plan durably: the plan itself first, and then the sources of each part."""
    sources = plan.listing.sources
    shares = [sources.take(np.arange(first, last)) for first, last in itertools.pairwise(bounds)]
    work.begin({
        "made_by": made_by,
        "fields": [field_json(f) for f in decisions.fields],
        "scale": decisions.scale,
        "map_nbytes": decisions.map_nbytes,
        "data_nbytes": decisions.data_nbytes,
        "least_nbytes": decisions.least_nbytes,
        "asked": asked,
        "overwrite": overwrite,
        "listing": {**{name: getattr(plan.listing, name) for name in _LISTED}, "notes": plan.notes},
        "storage": asdict(plan.recipe.storage),
        "bounds": bounds.tolist(),
        "nbytes": [int(share.nbytes.sum()) for share in shares],
        "class_counts": list(count_classes(plan.listing).values()),
        "holders": {path: _look(path) for path in _holders(sources)},
    })  # fmt: skip
    for number, share in enumerate(shares):
        file, arrays = BytesIO(), list[npt.NDArray[Any]]()
        form = np.frombuffer(json.dumps(_pack(share, arrays)).encode(), np.uint8)
        np.savez(file, form=form, **{str(place): array for place, array in enumerate(arrays)})  # type: ignore[arg-type]
        work.write(_sources_name(number), file.getvalue())


def is_saved(work: Work) -> bool:
    """Return whether the plan of a conversion is there, with the sources of every part."""
    plan = work.plan()
    return plan is not None and "bounds" in plan and (work.folder / _sources_name(len(plan["bounds"]) - 2)).exists()


def load(work: Work) -> SavedPlan:
    """Load the plan of a conversion.

    Raises:
        DestinationError: It is damaged.
    """
    with _explain(work.folder / PLAN_FILE):
        body = work.plan()
        if body is None:
            raise ValueError("it is missing")
        sizes = (body[name] for name in ("data_nbytes", "least_nbytes"))
        decisions = Trial(tuple(parse_field(f) for f in body["fields"]), body["scale"], int(body["map_nbytes"]), *sizes)
        listed = body["listing"]
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
        return SavedPlan(
            body["made_by"],
            decisions,
            body["asked"],
            body["overwrite"],
            listing,
            Storage(**body["storage"]),
            tuple(body["bounds"]),
            tuple(body["nbytes"]),
            dict(zip(listing.classes, body["class_counts"], strict=False)),
            {path: (nbytes, changed_ns) for path, (nbytes, changed_ns) in body["holders"].items()},
        )


def load_listing(work: Work, saved: SavedPlan, number: int) -> Listing:
    """Load the listing of one part.

    Raises:
        DestinationError: It is damaged.
    """
    path = work.folder / _sources_name(number)
    with _explain(path):
        # The error of a disk that cannot read must not look like a file that does not decode.
        with explain_full_disk(path), naming(path), open(path, "rb") as file:
            content = file.read()
        with np.load(BytesIO(content), allow_pickle=False) as found:
            sources: Sources = _unpack(json.loads(found["form"].tobytes()), found)
        if len(sources) != saved.bounds[number + 1] - saved.bounds[number]:
            raise ValueError(f"{len(sources)} sources")
        return replace(saved.listing, sources=sources)


def changed_holders(saved: SavedPlan, sources: Sources) -> list[str]:
    """Return the tars and LMDBs that hold some sources and have changed since they were listed."""
    return [path for path in _holders(sources) if saved.holders.get(path) != _look(path)]


def _holders(sources: Sources) -> list[str]:
    spans = [sources.spans, *(x for x in sources.attached.values() if isinstance(x, Spans))]
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


@contextmanager
def _explain(path: Path) -> Iterator[None]:
    """Turn the errors of a damaged file into DestinationError."""
    try:
        yield
    except (ValueError, KeyError, TypeError, IndexError, EOFError, BadZipFile, FileNotFoundError, FormatError) as error:
        raise DestinationError(
            f"{path}: does not decode ({error!r:.80}), so the plan of the conversion is lost. Convert again with "
            f"{option('restart', True)}, which discards all parts."
        ) from error


def _pack(value: Any, arrays: list[npt.NDArray[Any]]) -> Any:
    """Return sources, or what they are made of, as JSON with the numbers of arrays, which are added to a list."""
    if value is None:
        return None
    if isinstance(value, Mapping):
        return {name: _pack(inner, arrays) for name, inner in value.items()}
    if isinstance(value, Spans):  # with the paths of only those files that hold them
        used, which = np.unique(value.which, return_inverse=True)
        paths = Names.join(b"", [value.paths[number] for number in used.tolist()])
        inner = [paths, which.astype(np.int32).reshape(-1), value.start, value.nbytes]
    elif isinstance(value, Sources | Names | Annotations):
        inner = [getattr(value, f.name) for f in fields(value)]
    else:
        arrays.append(np.frombuffer(value, np.uint8) if isinstance(value, bytes) else value)
        return len(arrays) - 1
    return [type(value).__name__, *(_pack(each, arrays) for each in inner)]


def _unpack(packed: Any, arrays: Mapping[str, npt.NDArray[Any]]) -> Any:
    """Return what `_pack` was given, from its arrays by number."""
    if packed is None:
        return None
    if isinstance(packed, dict):
        return {name: _unpack(inner, arrays) for name, inner in packed.items()}
    if not isinstance(packed, list):
        return arrays[str(packed)]
    kind, *inner = packed
    values = [_unpack(each, arrays) for each in inner]
    if kind == "Spans":
        return Spans(tuple(values[0]), *values[1:])
    if kind == "Names":
        return Names(values[0].tobytes(), values[1].tobytes(), values[2])
    return {"Sources": Sources, "Annotations": Annotations}[kind](*values)
