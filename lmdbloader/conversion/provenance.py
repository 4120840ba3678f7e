"""The inputs and options that a dataset was made from: their record in the dataset, and whether it still holds."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from lmdbloader import __version__
from lmdbloader.base.files import read_regular
from lmdbloader.base.option_names import option
from lmdbloader.conversion.notes import seen_digest
from lmdbloader.conversion.options import ConvertOptions
from lmdbloader.conversion.plan import Plan
from lmdbloader.conversion.pool import make_tasks
from lmdbloader.conversion.sources.listing import Listing
from lmdbloader.conversion.tasks import content_of
from lmdbloader.errors import CorruptError, DestinationError, FormatError, LmdbloaderError
from lmdbloader.format.digests import Digest, digest_of
from lmdbloader.format.layout import SOURCES_FILE
from lmdbloader.format.manifest import Manifest
from lmdbloader.store import is_dataset, open_reader, read_manifest
from lmdbloader.store.writing.work import remove_work, write_file

_MOST_NOTE_NBYTES = 4096
# Options that the record of the inputs covers, or that a dataset does not depend on.
_UNRECORDED = frozenset({"layout", "hr", "lr", "masks", "annotations", "subset", "classes", "workers"})

# In the record of a dataset that others were appended to: what was appended, as a merge records its inputs.
APPENDED = "appended"
# Options that divide the same samples into other files.
_OF_PARTS = ("parts", "part_size")


def describe(plan: Plan) -> dict[str, Any]:
    """Return how a dataset is made, for its manifest.

    Nothing in it depends on the time, the machine, the paths of the folders or the number of workers. Options that are
    not listed here are recorded by their names if they differ from their defaults.
    """
    options, recipe, listing = plan.options, plan.recipe, plan.listing
    names = Digest()
    for s in listing.sources:
        names.update(f"{s.name}\0{s.lr_name!r}\0{s.nbytes}\0".encode())
    record: dict[str, Any] = {
        "patch_size": options.patch_size,
        "stride": recipe.stride,
        "scale": options.scale,
        "bicubic": options.bicubic,
        "policy": asdict(recipe.policy),
        "on_error": options.on_error,
        "storage": asdict(recipe.storage),
        "codec": plan.codec,
    }
    if options.classes is not None and listing.sources.annotations is None:
        record["classes"] = digest_of("\0".join(listing.classes).encode())
    made_by: dict[str, Any] = {
        "lmdbloader": __version__,
        "layout": listing.layout,
        "options": record,
        "inputs": {"num_sources": len(listing.sources), "names_and_sizes": str(names)},
    }
    if listing.sources.annotations is not None:
        boxes = Digest()
        boxes.update("\0".join(listing.classes).encode())
        for part in listing.sources.annotations.parts():
            boxes.update(part)
        made_by["inputs"]["annotations"] = str(boxes)
    if options.degradation is not None:
        record["degradation_seed"] = options.seed or 0
    listed = {*record, *record["policy"], *record["storage"], "write_mode", *_UNRECORDED}
    record |= {
        f.name: value
        for f in fields(ConvertOptions)
        if f.name not in listed and (value := getattr(options, f.name)) != f.default
    }
    record |= {name: value for name in _OF_PARTS if (value := getattr(options, name, None)) is not None}
    return made_by


def refuse_others(target: Path) -> None:
    """Raise DestinationError if a dataset is at `target`, which another conversion has made."""
    if is_dataset(target):
        raise DestinationError(
            f"{target}: a dataset is there already, made from other inputs or with other options; `lmdbloader info` "
            f"shows them. Choose another destination, or overwrite it ({option('overwrite', True)})."
        )


def find_finished(target: Path, is_same: Callable[[Manifest], bool]) -> Manifest | None:
    """Return the manifest of a dataset that was made before, if it is the one that would be made.

    Raises:
        DestinationError: There is such a dataset, but it is damaged.
    """
    if not is_dataset(target):
        return None
    try:
        manifest = read_manifest(target)
    except FormatError:
        return None
    if not is_same(manifest):
        return None
    try:
        open_reader(target).index.check_file()
    except (CorruptError, FormatError) as error:
        raise DestinationError(
            f"{target}: was made from the same inputs with the same options, but is damaged. "
            f"Make it again with {option('overwrite', True)}. {error}"
        ) from error
    remove_work(target)
    return manifest


def is_made_as(manifest: Manifest, made_by: Mapping[str, Any]) -> bool:
    """Return whether a dataset was made from inputs of the same names and sizes, with the same options.

    The release may differ, and a dataset of which no input was left out is also the one that leaves some out.
    """
    old = manifest.made_by
    inputs = {name: value for name, value in old.get("inputs", {}).items() if name != "content"}
    options = {**made_by["options"]}
    if old.get("options", {}).get("on_error") == "stop":
        options["on_error"] = "stop"
    now = (made_by["layout"], options, made_by["inputs"])
    return (old.get("layout"), old.get("options"), inputs) == now and APPENDED not in old


def are_unchanged(target: Path, manifest: Manifest, listing: Listing, *, check_content: bool = False) -> bool:
    """Return whether inputs have the content that a dataset was made from; its note of them is renewed if need be.

    The content is read only to `check_content`, or if a time of the inputs is not the noted one.
    """
    seen = note_of(seen_digest(listing.sources), listing.changed_ns)
    if not check_content and seen is not None and _read_note(target) == seen:
        return True
    if content_of(make_tasks(listing.sources)) != manifest.made_by["inputs"].get("content"):
        return False
    if seen is not None:  # otherwise every later run would read the content
        with suppress(OSError, LmdbloaderError):  # a read-only folder is left alone
            write_file(target / SOURCES_FILE, seen)
    return True


def note_of(seen: str, changed_ns: int | None) -> bytes | None:
    """Return the content of the note of a dataset's inputs, which tells whether any has changed since.

    Args:
        seen: From `seen_digest`.
        changed_ns: As in the listing; None if a remote input has no time: then there is no note.
    """
    return None if changed_ns is None else json.dumps({"seen": seen, "remote_changed_ns": changed_ns}).encode()


def _read_note(folder: Path) -> bytes | None:
    try:
        return read_regular(folder / SOURCES_FILE, _MOST_NOTE_NBYTES)
    except OSError:
        return None
