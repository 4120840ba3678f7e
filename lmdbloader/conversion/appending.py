"""`lmdbloader.append`: adds the samples of other datasets to a dataset, as further parts."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmdbloader import __version__
from lmdbloader.base.arguments import flag, shown
from lmdbloader.base.option_names import option
from lmdbloader.conversion.combining import (
    Part,
    Recipe,
    chosen_fields,
    combine,
    common_options,
    flattened,
    open_parts,
)
from lmdbloader.conversion.destination import named_folder
from lmdbloader.conversion.merging import common_classes, compare_fields, differences, prefixed, titled
from lmdbloader.conversion.provenance import APPENDED
from lmdbloader.errors import OptionError
from lmdbloader.format.layout import undecided
from lmdbloader.format.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Appended:
    """The result of `append`.

    Attributes:
        path: The dataset.
        num_appended: The number of new samples.
        num_samples: The number of samples in the dataset now.
        appended_nbytes: Bytes of the new payloads, as stored.
        sizes: Bytes of the whole dataset: payload_nbytes (stored), raw_nbytes (decoded), data_nbytes, index_nbytes.
        content_digest: The digest of all samples in order.
        notes: Sentences about what the datasets do not have in common, and about what repeats.
        seconds: The time of the call.
    """

    path: str
    num_appended: int
    num_samples: int
    appended_nbytes: int
    sizes: Mapping[str, int]
    content_digest: str
    notes: tuple[str, ...] = ()
    seconds: float = 0.0


def append(
    db: str | os.PathLike[str],
    datasets: Sequence[Any],
    *,
    fields: Sequence[str] | None = None,
    add_classes: bool = False,
    prefix_sources: bool = False,
    drop_sources: bool = False,
    restart: bool = False,
    progress: bool = False,
    log: Callable[[str], None] = lambda line: None,
) -> Appended:
    """Add the samples of other datasets to a dataset, after its own.

    They become further parts. The existing parts are not changed: the grown dataset, with a new index and manifest, has
    the same files by hard links, or copies of them where there are no links. It has the samples of `merge([db,
    *datasets], out)`, and its content digest unless one of them alone has long texts.

    The dataset changes in one step: until then, and after a crash, it is the old one. Processes that have it open keep
    the old one. A Loader refuses a state that was saved with the old one. After an interruption the same call keeps the
    parts that are complete. If a call has completed, the same call appends the same samples again, and notes that
    they repeat.

    Args:
        db: The path of the dataset that grows.
        datasets: Paths, or LMDBDatasets, which may be views of some samples or fields; or torch's ConcatDataset of
            them. One may be the dataset itself, with its samples from before the call.
        fields: The fields of `db`, if the others have more (default: refuse such datasets).
        add_classes: Add classes that `db` lacks, after its own (default: refuse them).
        prefix_sources: Put the name of each appended dataset's folder, without .lmdb, in front of the names of its
            sources: a/0001.png. The names that `db` has stay as they are.
        drop_sources: Leave the names of sources out, if `db` has none (default: refuse datasets that have them).
        restart: Discard the progress of an interrupted call; by default it is continued.
        progress: Show a progress bar on a terminal, in a log a line every 30 seconds.
        log: Called with each message, a line of text: renumbered labels, options that differ, images that repeat.

    Returns:
        A summary of the grown dataset, with the notes that were logged.

    Raises:
        NotFoundError: One of the datasets does not exist.
        FormatError: One is not a finished dataset of this format version.
        CorruptError: One is damaged; `db` stays as it was.
        OptionError: The datasets do not fit together; the message names the difference and the line to write.
        DestinationError: Another process has changed `db` meanwhile, or a call with other samples is unfinished there.
        DiskFullError: No room left.

    >>> import tempfile, numpy, lmdbloader
    >>> place = tempfile.mkdtemp()
    >>> for i in range(2):
    ...     samples = [{"image": numpy.full((8, 8), 10 * i + j, "uint8")} for j in range(3)]
    ...     written = lmdbloader.write(samples, f"{place}/{i}")
    >>> lmdbloader.append(f"{place}/0", [f"{place}/1"]).num_samples
    6
    """
    began = time.monotonic()
    add_classes, restart, progress = (
        flag("add_classes", add_classes),
        flag("restart", restart),
        flag("progress", progress),
    )
    prefix_sources, drop_sources = flag("prefix_sources", prefix_sources), flag("drop_sources", drop_sources)

    others = flattened(datasets, "append", "append(db, [...])")
    if not others:
        raise OptionError("append(db, []): expected at least one dataset")
    folder = _folder_of(db)
    parts = titled(open_parts([folder, *others], "append"))
    call = _Call(parts, fields, add_classes, prefix_sources, drop_sources)
    recipe, notes = call.recipe()
    before = parts[0].reader
    made = combine(
        recipe, folder, notes, overwrite=True, restart=restart, progress=progress, log=log, before=before,
        made_by=_made_by(call.manifest, recipe),
    )  # fmt: skip
    return Appended(
        os.fspath(named_folder(db)), recipe.num_samples, made.num_samples, recipe.payload_nbytes, made.sizes,
        made.content_digest, tuple(notes), time.monotonic() - began,
    )  # fmt: skip


def _folder_of(db: Any) -> Path:
    """Return the folder of a dataset that can grow, with symbolic links resolved.

    Raises:
        OptionError: It is not a path.
        NotFoundError, FormatError: It is not a dataset.
    """
    if hasattr(db, "reader"):
        raise OptionError(
            f"append({shown(db)}, ...): expected the path of a dataset, whose open readers stay as they are. Write "
            f"append({str(getattr(db, 'path', 'path'))!r}, [...]), and open it again."
        )
    return Path(os.path.realpath(named_folder(db)))


def _made_by(manifest: Manifest, recipe: Recipe) -> dict[str, Any]:
    """Return how the grown dataset was made: as before, and what was appended.

    It states only the options that all samples have in common.
    """
    before = manifest.made_by.get(APPENDED)
    added = recipe.made_by()["inputs"]["datasets"]
    options = common_options([manifest, *(part.reader.manifest for part in recipe.parts)])
    made = {**manifest.made_by, "lmdbloader": __version__, "options": options}
    return {**made, APPENDED: [*(before if isinstance(before, list) else []), *added]}


def _merge_instead(paths: Sequence[str], *more: str) -> str:
    """Return the command that writes a new dataset instead."""
    return f"{shlex.join(['lmdbloader', 'merge', *paths])} -o OUT {shlex.join(more)}".rstrip()


def _fields_flag(names: Sequence[str]) -> list[str]:
    return ["--fields", ",".join(names)] if names else []


@dataclass(frozen=True, slots=True)
class _Call:
    """The arguments of a call; the first of the parts is the dataset that grows."""

    parts: tuple[Part, ...]
    fields: Sequence[str] | None
    add_classes: bool
    prefix_sources: bool
    drop_sources: bool

    @property
    def manifest(self) -> Manifest:
        """The manifest of the dataset that grows."""
        return self.parts[0].reader.manifest

    def recipe(self) -> tuple[Recipe, list[str]]:
        """Return the part that is to be made, and notes.

        Raises:
            OptionError: The datasets do not fit together.
        """
        own = self.parts[0]
        if not len(own):
            raise OptionError(f"{own.reader.path}: has no samples, so there is nothing to append to. Write a new one.")
        if not any(map(len, self.parts[1:])):
            raise OptionError(f"{own.reader.path}: nothing to append: the datasets have no samples")
        chosen = None if self.fields is None else chosen_fields(self.parts, self.fields)
        for part in self.parts[1:]:
            self._check_fields(part, chosen)
        self._check_sources()
        parts = self.parts
        if self.prefix_sources:
            parts = (own, *prefixed(parts[1:], self.manifest.with_source))
        classes, parts, notes = common_classes(parts, own.names, self.add_classes, self._without)
        own_fields = undecided(self.manifest.fields)
        notes += differences(parts, own_fields)
        choices = {"add_classes": True} if self.add_classes and any(part.numbers for part in parts) else {}
        all_classes = {**self.manifest.classes, **classes}
        with_source = self.manifest.with_source
        return Recipe(parts[1:], own_fields, all_classes, with_source, "append", choices), notes

    def _without(self, name: str) -> str:
        """Return what to do instead without a field, for messages."""
        left = [other for other in self.parts[0].names if other != name]
        line = self._merge_instead(left) if left else "choose other datasets"
        return f"merge them without the field ({line})" if left else line

    def _merge_instead(self, names: Sequence[str] = (), *more: str) -> str:
        """Return the command that writes a new dataset of some fields instead."""
        return _merge_instead([part.reader.place for part in self.parts], *_fields_flag(names), *more)

    def _check_fields(self, part: Part, chosen: Sequence[str] | None) -> None:
        """Raise OptionError unless a dataset has the fields of the one that grows, with the same meaning."""
        own = self.parts[0]
        if chosen is not None and {*chosen} != {*own.names}:
            raise OptionError(
                f"{option('fields')}: {own.title} has {', '.join(own.names)}, and each of its parts has all of them. "
                f"For {', '.join(chosen)} alone write a new dataset: {self._merge_instead(chosen)}"
            )
        if not {*own.names} <= {*part.names}:
            common = [name for name in own.names if name in part.names]
            line = f"Write a new dataset: {self._merge_instead(common)}" if common else "They have no field in common."
            raise OptionError(
                f"{part.title} has the fields {', '.join(part.names)}; {own.title} has {', '.join(own.names)}, and "
                f"each of its parts has all of them. {line}"
            )
        if chosen is None and {*part.names} != {*own.names}:
            value = ",".join(own.names) if option("fields").startswith("-") else list(own.names)
            raise OptionError(
                f"{part.title} has the fields {', '.join(part.names)}; {own.title} has {', '.join(own.names)}. Take "
                f"only those: {option('fields', value)}."
            )
        for name in own.names:
            compare_fields(own, part, name, self._without)

    def _check_sources(self) -> None:
        """Raise OptionError unless all datasets have names of sources, or none of the new samples needs them."""
        own, others = self.parts[0], self.parts[1:]
        if self.prefix_sources and self.drop_sources:
            raise OptionError(
                f"{option('prefix_sources', True)} has no effect with {option('drop_sources', True)}. Leave one out."
            )
        if self.manifest.with_source:
            lacking = next((part for part in others if not part.reader.manifest.with_source), None)
            if lacking is None and not self.drop_sources:
                return
            which = (
                f"{lacking.title} has none (it was written from Python)" if lacking else "and so has each of its parts"
            )
            raise OptionError(
                f"{own.title} has the name of each sample's source, {which}. Write a new dataset without them: "
                f"{self._merge_instead((), '--drop-sources')}"
            )
        having = next((part for part in others if part.reader.manifest.with_source), None)
        if having is not None and not self.drop_sources:
            raise OptionError(
                f"{having.title} has the name of each sample's source, {own.title} has none (it was written from "
                f"Python). Leave the names out: {option('drop_sources', True)}."
            )
