"""Makes a dataset of other datasets' samples, copied in stored form: what merge, append, subset and recode share."""

from __future__ import annotations

import copy
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lmdbloader import __version__
from lmdbloader.base.arguments import field_names, shown
from lmdbloader.base.free_space import free_nbytes
from lmdbloader.base.option_names import option
from lmdbloader.base.progress import ProgressLine
from lmdbloader.base.text import counted, plain
from lmdbloader.base.units import show_nbytes
from lmdbloader.conversion.destination import refuse_inside
from lmdbloader.conversion.parts import PART_NBYTES
from lmdbloader.conversion.provenance import find_finished
from lmdbloader.errors import DestinationError, DiskFullError, OptionError
from lmdbloader.format.codecs import Payloads, encode_many
from lmdbloader.format.digests import digest_of
from lmdbloader.format.layout import CLIP, LEFT_OUT_FILE, SKIPPED_FILE, Field, holds_clips, image_of, undecided
from lmdbloader.format.manifest import Description, Manifest, field_json
from lmdbloader.store import (
    IO,
    Chunk,
    PartFacts,
    Reader,
    Work,
    check_destination,
    check_rows,
    encode_blocks,
    estimate_map_nbytes,
    join,
    open_reader,
    read_manifest,
)
from lmdbloader.store.copying import copied_samples, some_rows

I64 = npt.NDArray[np.int64]
# What is recorded of how an input was made; its own inputs are not.
_OF_INPUTS = ("lmdbloader", "layout", "options", "choices")
# Datasets of one merge whose files are mapped.
_MOST_MAPPED = 64


@dataclass(frozen=True, slots=True)
class Combined:
    """The result of `merge`, `append`, `subset` and `recode`.

    Attributes:
        path: The dataset.
        num_samples: Samples in it.
        num_copied: Samples that this call has copied; 0 if the dataset was there already.
        copied_nbytes: Bytes of their payloads, as stored.
        sizes: Bytes: payload_nbytes (stored), raw_nbytes (decoded), data_nbytes, index_nbytes.
        content_digest: Of its samples in order.
        notes: Sentences about what the inputs do not have in common.
        was_finished: Whether the dataset was there already, made of the same samples, and nothing was done.
        seconds: The time that it took.
    """

    path: str
    num_samples: int
    num_copied: int
    copied_nbytes: int
    sizes: Mapping[str, int]
    content_digest: str
    notes: tuple[str, ...] = ()
    was_finished: bool = False
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Part:
    """The samples that are taken from one dataset.

    Attributes:
        reader: Of the dataset.
        rows: (n,) of its index, in order; None means all.
        names: Of the fields that may be taken.
        title: The dataset in messages.
        numbers: By field of labels that are renumbered: the new number of each class.
        prefix: Put in front of the names of its sources and clips.
    """

    reader: Reader
    rows: I64 | None
    names: tuple[str, ...]
    title: str
    numbers: Mapping[str, I64] = field(default_factory=dict)
    prefix: str = ""

    def __len__(self) -> int:
        return len(self.reader) if self.rows is None else len(self.rows)

    def column(self, name: str) -> npt.NDArray[Any]:
        """Return a column of numbers (n,) of the index, of these samples."""
        values = self.reader.index.arrays[name]
        return values if self.rows is None else values[self.rows]

    def selected(self, positions: I64) -> Part:
        """Return the samples at some positions (m,)."""
        return replace(self, rows=positions if self.rows is None else self.rows[positions])


@dataclass(frozen=True, slots=True)
class Recipe:
    """What is to be made.

    Attributes:
        parts: The samples, in order.
        fields: Of the new dataset.
        classes: Names by field of labels.
        with_source: Whether the samples keep the names of their sources.
        layout: The call that makes it, in the manifest.
        choices: What the caller chose, for the manifest.
        change: Called with samples, their part and their rows (n,); returns the samples to store. None copies them.
    """

    parts: tuple[Part, ...]
    fields: tuple[Field, ...]
    classes: Mapping[str, Sequence[str]]
    with_source: bool
    layout: str
    choices: Mapping[str, Any]
    change: Callable[[Chunk, Part, I64], Chunk] | None = None

    @property
    def num_samples(self) -> int:
        """Samples of the new dataset."""
        return sum(map(len, self.parts))

    @property
    def named_classes(self) -> dict[str, tuple[str, ...]]:
        """The names of classes as a manifest has them."""
        return {name: tuple(names) for name, names in self.classes.items()}

    @property
    def payload_nbytes(self) -> int:
        """Bytes of all payloads in stored form."""
        return int(self._sample_nbytes().sum())

    def bounds(self) -> list[int]:
        """Return where the parts of the new dataset end, after a first 0, for parts of about PART_NBYTES."""
        ends = np.cumsum(self._sample_nbytes())
        cuts = np.searchsorted(ends, np.arange(PART_NBYTES, ends[-1], PART_NBYTES)) + 1
        return [0, *np.unique(cuts[cuts < len(ends)]).tolist(), len(ends)]

    def _sample_nbytes(self) -> I64:
        """Return the bytes (n,) of the payloads of each sample."""
        names = [f"{f.name}.stored_nbytes" for f in self.fields if f.is_payload]
        columns = [np.concatenate([part.column(name) for part in self.parts]).astype(np.int64) for name in names]
        return np.sum(columns, axis=0) if names else np.zeros(self.num_samples, np.int64)

    def made_by(self) -> dict[str, Any]:
        """Return how the dataset is made, for its manifest; without paths.

        Options that all inputs have in common are those of the new dataset, but for what the call has chosen. Each
        input's are recorded with it.
        """
        options = common_options([part.reader.manifest for part in self.parts])
        chosen = {name: value for name, value in self.choices.items() if value is not None}
        for record in (options, options.get("storage")):
            if isinstance(record, dict):  # JPEGs of a dataset that has none have no code
                record.update({name: chosen[name] for name in chosen if record.get(name) is not None})
        made: dict[str, Any] = {
            "lmdbloader": __version__,
            "layout": self.layout,
            "options": options,
            **({"choices": dict(self.choices)} if self.choices else {}),
            "inputs": {"datasets": [self._input(part) for part in self.parts]},
        }
        found: dict[str, Any] = json.loads(json.dumps(made))  # as it is read back
        return found

    def _input(self, part: Part) -> dict[str, Any]:
        manifest = part.reader.manifest
        record: dict[str, Any] = {"num_samples": len(part), "content_digest": manifest.content_digest}
        if part.rows is not None:
            rows = np.ascontiguousarray(part.rows, "<i8").tobytes()
            record |= {"of_samples": len(part.reader), "samples": digest_of(rows)}
        if part.prefix:
            record["prefix"] = part.prefix
        if part.numbers:
            record["renumbered"] = {name: numbers.tolist() for name, numbers in part.numbers.items()}
        made_by = {name: manifest.made_by[name] for name in _OF_INPUTS if name in manifest.made_by}
        return {**record, "made_by": made_by}


def common_options(manifests: Sequence[Manifest]) -> dict[str, Any]:
    """Return the recorded options that all datasets have, with equal values."""
    found = [manifest.made_by.get("options") for manifest in manifests]
    recorded = [options if isinstance(options, Mapping) else {} for options in found]
    return {
        name: copy.deepcopy(value)
        for name, value in recorded[0].items()
        if all(name in other and other[name] == value for other in recorded[1:])
    }


def open_parts(datasets: Sequence[Any], call: str) -> list[Part]:
    """Return the samples of several arguments; see `open_part`."""
    # A map keeps a descriptor of its own, and a process is often limited to 1,024.
    io: IO = "mmap" if len(datasets) <= _MOST_MAPPED else "pread"
    return [open_part(dataset, call, io) for dataset in datasets]


def open_part(dataset: Any, call: str, io: IO = "mmap") -> Part:
    """Return the samples of an argument.

    Args:
        dataset: The path of a dataset, an LMDBDataset, or torch's Subset of one.
        call: The function, for messages.
        io: How the dataset at a path is read.

    Raises:
        OptionError: It is something else, or a view with transforms, which stored bytes do not have.
    """
    if isinstance(dataset, str | bytes | os.PathLike):
        reader = open_reader(os.fsdecode(dataset), io)
        return Part(reader, None, tuple(reader.fields), reader.place)
    if _is_torchs(dataset, "Subset"):
        inner = open_part(dataset.dataset, call, io)
        try:
            return inner.selected(check_rows(np.asarray(dataset.indices), len(inner)))
        except (IndexError, TypeError) as error:
            raise OptionError(f"{call}(Subset): {error}") from error
    view = dataset
    # A wrapper that passes on the attributes of a view may make other samples of it.
    if not isinstance(vars(view).get("reader") if hasattr(view, "__dict__") else None, Reader):
        raise OptionError(
            f"{call}({shown(dataset)}): expected the path of a dataset of lmdbloader, or an LMDBDataset. For samples "
            f"of other libraries write lmdbloader.write(samples, out) first."
        )
    if view.has_own_transform or view.all_transforms:
        raise OptionError(
            f"{call}({view.path}): it is a view with transforms, and stored bytes are copied as they are. Give it "
            "without them, or store the transformed samples: lmdbloader.write(dataset, out)."
        )
    rows = view.rows_of(np.arange(len(view), dtype=np.int64))
    is_all = len(rows) == len(view.reader) and bool((rows == np.arange(len(rows))).all())
    return Part(view.reader, None if is_all else rows, tuple(view.fields), view.reader.place)


def flattened(datasets: Any, call: str, line: str = "merge([...], out)") -> list[Any]:
    """Return the arguments of a merge one by one: torch's ConcatDataset stands for its datasets.

    Args:
        datasets: The list.
        call, line: The function, and how it is called, for messages.

    Raises:
        OptionError: It is a single dataset or path, not a list.
    """
    if _is_torchs(datasets, "ConcatDataset"):
        return [inner for part in datasets.datasets for inner in flattened([part], call)]
    if isinstance(datasets, str | bytes | os.PathLike | Mapping) or hasattr(datasets, "reader"):
        raise OptionError(f"{call}({shown(datasets)}): expected a list of datasets. Write {line}.")
    try:
        several = list(datasets)
    except TypeError as error:
        raise OptionError(f"{call}({shown(datasets)}): expected a list of paths or LMDBDatasets.") from error
    return [
        inner for part in several for inner in (flattened(part, call) if _is_torchs(part, "ConcatDataset") else [part])
    ]


def _is_torchs(value: Any, name: str) -> bool:
    """Return whether a value is torch's own dataset of this name; torch is not imported."""
    return type(value).__name__ == name and type(value).__module__.startswith("torch.utils.data")


def chosen_fields(parts: Sequence[Part], fields: Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of the fields to take, in order; by default those of the first part.

    Raises:
        OptionError: A dataset does not have one of them, or a name is given twice; or boxes would lose their image.
    """
    names = parts[0].names if fields is None else field_names(fields, [(part.title, part.names) for part in parts])
    known = parts[0].reader.fields
    for f in (known[name] for name in names if known[name].kind in ("boxes", "points")):
        image = image_of(f, known.values())
        if image is not None and image not in names and (f.image or any(known[name].has_pixels for name in names)):
            raise OptionError(
                f"{parts[0].title}: the {f.kind} of field {f.name!r} are in {image!r}, which is left out. Take it too, "
                f"or leave {f.name!r} out as well: {option('fields')}."
            )
    return names


def combine(
    recipe: Recipe,
    out: Path,
    notes: Sequence[str],
    *,
    overwrite: bool,
    restart: bool,
    progress: bool,
    log: Callable[[str], None],
    before: Reader | None = None,
    made_by: Mapping[str, Any] | None = None,
) -> Combined:
    """Make a dataset; an interrupted call keeps its complete parts, and the next one makes the others.

    Args:
        recipe: What is to be made.
        out: Where, from `new_folder`.
        notes: For the result and the log.
        overwrite, restart, progress, log: As for `merge`.
        before: The dataset at `out`, whose samples come first: it grows.
        made_by: How the dataset was made, for its manifest; by default as the recipe says.

    Raises:
        DestinationError: `out` is taken, one of the inputs, or inside of one; or another call is unfinished there.
        DiskFullError: No room left.
        CorruptError: A sample is damaged.
    """
    began = time.monotonic()
    for part in recipe.parts if before is None else ():
        if os.path.realpath(out) == os.path.realpath(part.reader.path):
            raise DestinationError(f"{out}: is one of the inputs, which are never changed. Choose another destination.")
        refuse_inside(out, part.reader.path)
    of_recipe = recipe.made_by()
    for note in notes:
        log(plain(f"note: {note}."))
    if before is None and not overwrite and (finished := _find_finished(out, recipe, of_recipe, notes)) is not None:
        return finished
    overwrite = overwrite or before is not None
    check_destination(out, overwrite=overwrite)
    work = Work(out)
    if restart:
        work.discard()
    description = Description(recipe.fields, recipe.with_source, recipe.named_classes, of_recipe)
    try:
        if _begin(recipe, work, of_recipe, before) and before is not None:
            work.discard()
            return _finished(out, before.manifest, notes)
        facts = _make_parts(recipe, work, description, progress=progress, log=log)
        # A dataset that has changed meanwhile is not the one that would be replaced.
        if before is not None and read_manifest(out).manifest_digest != before.manifest.manifest_digest:
            raise DestinationError(f"{out}: was changed by another process meanwhile. Run it again.")
        whole = description if made_by is None else replace(description, made_by=made_by)
        old = [] if before is None else [before]
        written = join(work, facts, whole, overwrite=overwrite, before=old, notes=_notes_of(recipe, old))
    finally:
        work.leave()
    copied = recipe.num_samples, recipe.payload_nbytes
    made = Combined(str(out), written.num_samples, *copied, written.sizes, written.content_digest, tuple(notes))
    return replace(made, seconds=time.monotonic() - began)


def _notes_of(recipe: Recipe, old: Sequence[Reader]) -> dict[str, bytes]:
    """Return the notes for people that a dataset that grows or is recoded has."""
    readers = [part.reader for part in recipe.parts] if recipe.layout == "recode" else old
    files = (reader.path / name for reader in readers for name in (SKIPPED_FILE, LEFT_OUT_FILE))
    return {file.name: file.read_bytes() for file in files if file.is_file()}


def _find_finished(out: Path, recipe: Recipe, made_by: Mapping[str, Any], notes: Sequence[str]) -> Combined | None:
    """Return the result of a call that made a dataset of the same samples before; None if there is none."""

    def is_same(manifest: Manifest) -> bool:
        old = {**manifest.made_by, "lmdbloader": made_by["lmdbloader"]}  # the release may differ
        found = (old, undecided(manifest.fields), manifest.with_source, dict(manifest.classes))
        return found == (made_by, recipe.fields, recipe.with_source, recipe.named_classes)

    return None if (manifest := find_finished(out, is_same)) is None else _finished(out, manifest, notes)


def _finished(out: Path, manifest: Manifest, notes: Sequence[str]) -> Combined:
    """Return the result of a call whose dataset was there already."""
    numbers = manifest.num_samples, 0, 0
    return Combined(str(out), *numbers, manifest.sizes, manifest.content_digest, tuple(notes), was_finished=True)


def _begin(recipe: Recipe, work: Work, made_by: Mapping[str, Any], before: Reader | None) -> bool:
    """Note what is made in OUT.partial, or find that an interrupted call has noted the same.

    Returns:
        Whether that call has put the grown dataset in place and was killed before it could remove OUT.partial.

    Raises:
        DestinationError: The call was another one.
        DiskFullError: The payloads do not fit on the disk.
    """
    inputs = made_by["inputs"]["datasets"]
    grows = None if before is None else before.manifest.manifest_digest
    own_path = None if before is None else os.path.realpath(before.path)
    is_own = [os.path.realpath(part.reader.path) == own_path for part in recipe.parts]
    # The digest of a dataset that is appended to itself is another one once the call has put it in place.
    noted = [
        {"rows": record.get("samples"), "prefix": record.get("prefix")} if own else record
        for record, own in zip(inputs, is_own, strict=True)
    ]
    about = {"classes": recipe.named_classes, "with_source": recipe.with_source, "inputs": {"datasets": noted}}
    asked = {
        "the call": recipe.layout,
        "the release of lmdbloader": __version__,
        "fields": [field_json(f) for f in recipe.fields],
        "the samples": digest_of(json.dumps(about).encode()),
        **recipe.choices,
    }
    if work.continues(asked):
        has_changed = (work.plan() or {}).get("grows") != grows
        if has_changed and work.is_published():
            return True
        if not (has_changed and any(is_own)):
            return False
    needed, free = recipe.payload_nbytes, free_nbytes(work.folder.absolute().parent)
    if free is not None and needed > free:
        raise DiskFullError(
            f"{work.folder}: the samples take {show_nbytes(needed)}, and {show_nbytes(free)} are free: "
            f"{show_nbytes(needed - free)} are missing. Free some space, or choose another disk."
        )
    work.begin({"asked": asked, "grows": grows})
    return False


def _make_parts(
    recipe: Recipe, work: Work, description: Description, *, progress: bool, log: Callable[[str], None]
) -> list[PartFacts]:
    """Make the parts that are not complete, and return the facts of all."""
    bounds = recipe.bounds()
    found = [work.facts(number) for number in range(len(bounds) - 1)]
    done = sum(facts.num_samples for facts in found if facts is not None)
    if done:
        log(plain(f"{work.folder}: resuming after {done:,} of {counted(recipe.num_samples, 'sample')}"))
    made = []
    with ProgressLine("copying", recipe.num_samples, shown=progress, first=done) as line:
        for number, facts in enumerate(found):
            first, stop = bounds[number : number + 2]
            if facts is None:
                nbytes = recipe.payload_nbytes * (stop - first) / recipe.num_samples
                map_nbytes = estimate_map_nbytes(nbytes, stop - first)
                with work.part(number, description, map_nbytes=map_nbytes) as writer:
                    for chunk in _chunks(recipe, first, stop):
                        writer.add(chunk, encode_blocks(chunk, recipe.fields, with_source=recipe.with_source))
                        line.update(chunk.num_samples)
                    facts = work.complete(number, writer, {})
            made.append(facts)
    return made


def _chunks(recipe: Recipe, first: int, stop: int) -> Iterator[Chunk]:
    """Yield the samples from one on to before another, in stored form."""
    for part in recipe.parts:
        rows = (range(len(part)) if part.rows is None else part.rows)[max(first, 0) : max(stop, 0)]
        first, stop, at = first - len(part), stop - len(part), 0
        decodes = recipe.change is not None
        for chunk in copied_samples(
            part.reader, rows, recipe.fields, with_source=recipe.with_source, counts_pixels=decodes
        ):
            here = some_rows(rows, at, at + chunk.num_samples)
            at += chunk.num_samples
            adapted = _adapted(chunk, part, here)
            yield adapted if recipe.change is None else recipe.change(adapted, part, here)


def _adapted(chunk: Chunk, part: Part, rows: I64) -> Chunk:
    """Return samples with the labels and the names of sources and clips of the new dataset."""
    columns, payloads = dict(chunk.columns), dict(chunk.payloads)
    named = ("source", CLIP) if holds_clips(part.reader.fields) else ("source",)
    for name in named if part.prefix else ():
        if name in columns:
            columns[name] = [f"{part.prefix}/{text}" for text in columns[name]]
    for name, numbers in part.numbers.items():
        if name in payloads:
            payloads[name] = _relabeled(part, name, rows, numbers)
        else:
            columns[name] = _renumbered(np.asarray(columns[name]), numbers)
    return Chunk(chunk.num_samples, payloads, columns)


def _relabeled(part: Part, name: str, rows: I64, numbers: I64) -> Payloads:
    """Return the labels of boxes or points with new numbers; they are encoded again."""
    nbytes = part.reader.raw_nbytes(name, rows)
    data, starts = np.empty(int(nbytes.sum()), np.uint8), np.cumsum(nbytes) - nbytes
    part.reader.read_into(name, rows, data, starts, nbytes)
    changed = _renumbered(data.view("<i8"), numbers)
    return encode_many(changed.astype("<i8").view(np.uint8), nbytes, part.reader.fields[name].codec or "raw")


def _renumbered(labels: npt.NDArray[Any], numbers: I64) -> I64:
    """Return labels (n,) with new numbers; negative ones, which name no class, stay."""
    return np.where(labels < 0, labels, numbers[np.maximum(labels, 0)])
