"""What a dataset was made from and how: the description that its manifest keeps, and whether it still holds."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Set
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lmdbloader import __version__
from lmdbloader.conversion.pool import make_tasks
from lmdbloader.conversion.seen import is_as_noted, renew_note
from lmdbloader.conversion.sources import Listing, Sources, times_of
from lmdbloader.conversion.tasks import Recipe, hash_files
from lmdbloader.errors import CorruptError, DestinationError, FormatError
from lmdbloader.format.digests import DEFAULT_DIGEST, DigestName, digest_of_text, new_text_digest
from lmdbloader.format.manifest import Manifest
from lmdbloader.store import Reader, is_dataset, read_manifest


class ContentHash:
    """The digest of all input files, source by source."""

    def __init__(self, digest: DigestName = DEFAULT_DIGEST) -> None:
        """Begin with no files."""
        self._digest = new_text_digest(digest)

    def add(self, file_hashes: Iterable[int]) -> None:
        """Append the hashes of the next sources' files."""
        self._digest.update(b"".join(h.to_bytes(8, "little") for h in file_hashes))

    def __str__(self) -> str:
        return str(self._digest)


def describe(
    recipe: Recipe,
    listing: Listing,
    codec: str,
    *,
    digest: DigestName = DEFAULT_DIGEST,
    has_given_classes: bool = False,
) -> dict[str, Any]:
    """Return how the dataset is made: nothing in it depends on the time, the machine or where the folders lie.

    Args:
        recipe: How its samples are made.
        listing: What is converted.
        codec: As asked for.
        digest: The algorithm of the dataset's digests, and of those in here.
        has_given_classes: Whether the labels do not follow from the sources' names.
    """
    names = new_text_digest(digest)
    for s in listing.sources:
        names.update(f"{s.name}\0{os.path.basename(s.lr_name or b'')!r}\0{s.nbytes}\0".encode())
    options = {key: value for key, value in asdict(recipe).items() if key != "fields"}
    options["codec"] = codec
    if has_given_classes:
        options["classes"] = digest_of_text("\0".join(listing.classes).encode(), digest)
    options |= digest_option(digest)
    return {
        "lmdbloader": __version__,
        "layout": listing.layout,
        "options": options,
        "inputs": {"num_sources": len(listing.sources), "names_and_sizes": str(names)},
    }


def digest_option(digest: DigestName) -> dict[str, str]:
    """Return what the options in a manifest say of the digests: nothing where they are what they always were."""
    return {} if digest == DEFAULT_DIGEST else {"digest": digest}


def changed_options(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return in what two conversions differ that does not follow from their inputs, for people.

    Args:
        old, new: As `describe` returned them.
    """
    # What to do at a bad image may be decided anew once one was met.
    before, now = ({**_flat(made), "lmdbloader": made["lmdbloader"]} for made in (old, new))
    return _differences(before, now, {"on_error"})


def _flat(made: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options and the layout by the names that people give them, without options inside of options."""
    flat: dict[str, Any] = {"digest": DEFAULT_DIGEST}
    for name, value in made["options"].items():
        flat |= value if name in ("policy", "storage") else {name: value}
    if "mode" in flat:
        flat["write_mode"] = flat.pop("mode")
    return {**flat, "layout": made["layout"]}


def _differences(before: Mapping[str, Any], now: Mapping[str, Any], aside: Set[str] = frozenset()) -> list[str]:
    return [
        f"{name.replace('_', '-')} {_short(before.get(name))}, now {_short(now.get(name))}"
        for name in sorted((before.keys() | now.keys()) - aside)
        if before.get(name) != now.get(name)
    ]


def refuse_others(target: Path, made_by: Mapping[str, Any]) -> None:
    """Refuse a dataset that is at `target`, and say in what its conversion differs from the one at hand.

    Args:
        target: Where the one at hand is to be; it was not made by the same conversion, as `find_finished` found.
        made_by: What `describe` returned for the one at hand.

    Raises:
        DestinationError: A dataset is there, and its manifest decodes.
    """
    if not is_dataset(target):
        return
    try:
        old = read_manifest(target).made_by
        if old.get("layout") == "python":
            differences = ["it was made by lmdbloader.write, from samples made in Python"]
        else:
            before, now = _flat(old), _flat(made_by)
            differences = _differences(before, now)
            differences += _input_differences(old["inputs"], made_by["inputs"], before["digest"] == now["digest"])
    except (FormatError, KeyError, TypeError, AttributeError):  # of another release
        return
    found = "; ".join(differences) or "the content of the inputs has changed"
    raise DestinationError(
        f"{target}: a dataset is there already, made from other inputs or with other options ({found}). "
        "Choose another destination, or overwrite it (--overwrite)."
    )


def _input_differences(old: Mapping[str, Any], new: Mapping[str, Any], are_comparable: bool) -> list[str]:
    if old["num_sources"] != new["num_sources"]:
        return [f"inputs {_short(old['num_sources'])}, now {new['num_sources']}"]
    if are_comparable and old["names_and_sizes"] != new["names_and_sizes"]:
        return ["inputs of other names or sizes"]
    return []


def _short(value: Any) -> str:
    return "none" if value is None else f"{value!s:.60}"


def find_finished(
    target: Path, made_by: Mapping[str, Any], listing: Listing, *, check_content: bool = False
) -> Manifest | None:
    """Return the manifest of a dataset that was made from the same inputs with the same options.

    Args:
        target: Where it would be.
        made_by: What `describe` returned.
        listing: The inputs; their content is read only where one of them is not as the dataset's note says it was, or
            there is no such note.
        check_content: Read it in any case.

    Raises:
        DestinationError: It is such a dataset, but damaged.
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
    # The release may differ: a dataset made by an older one is still made.
    same = same and all(old.get(key) == made_by[key] for key in ("layout", "options"))
    if not same:
        return None
    is_noted = is_as_noted(target, listing)
    if check_content or not is_noted:
        times = [times_of(source) for source in listing.sources]
        if _content(listing.sources, manifest.digest) != inputs.get("content"):
            return None
        if not is_noted:  # or all of it would be read at every later run
            renew_note(target, listing, times)
    try:
        Reader(target)
    except (CorruptError, FormatError) as error:
        raise DestinationError(
            f"{target}: was made from the same inputs with the same options, but is damaged. "
            f"Make it anew with --overwrite. {error}"
        ) from error
    return manifest


def _content(sources: Sources, digest: DigestName) -> str:
    content = ContentHash(digest)
    for task in make_tasks(sources):
        content.add(hash_files(task))
    return str(content)
