"""`lmdbloader.write`: samples made in Python to one dataset."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from lmdbloader import __version__
from lmdbloader.base.arguments import flag, function, whole
from lmdbloader.base.option_names import option
from lmdbloader.base.progress import ProgressLine
from lmdbloader.conversion.destination import new_folder
from lmdbloader.conversion.foreign_datasets import adapt, names_of
from lmdbloader.conversion.options import check_value
from lmdbloader.conversion.parts import PART_NBYTES
from lmdbloader.conversion.sample_fields import (
    Given,
    check_classes,
    check_given,
    codecs_by_field,
    declared_types,
    fields_of_labels,
    infer_fields,
    settle_masks,
    settle_places,
    settle_storages,
    warn_of_arrays,
    watch_labels,
)
from lmdbloader.conversion.sample_progress import check_same, check_stored, identity_of, is_indexed
from lmdbloader.conversion.sample_workers import cut_tasks, encode_all
from lmdbloader.conversion.samples import (
    GROUP_NBYTES,
    Group,
    Reading,
    SampleRecipe,
    add_note,
    make_part,
    mask_bits,
)
from lmdbloader.conversion.shipping import check_pickles, refuse_in_import
from lmdbloader.conversion.storage import PIXELS, WriteMode
from lmdbloader.conversion.tasks import Part
from lmdbloader.conversion.writing_thread import WritingThread
from lmdbloader.errors import DestinationError, LmdbloaderError, OptionError
from lmdbloader.fields import FieldType
from lmdbloader.format.manifest import Description, field_json, parse_field
from lmdbloader.images.decode import AlphaPolicy, DecodePolicy
from lmdbloader.store import (
    PartFacts,
    PartWriter,
    Work,
    Written,
    check_destination,
    estimate_map_nbytes,
    join,
    read_manifest,
)
from lmdbloader.store.writing.work import Rows, plan_left_in, remove_work, was_just_published

# The map grows if it is too small. A length may be any number, and a process has 128 TiB for all of its maps.
_MOST_MAP_NBYTES = 2**40
# The most samples of a transaction if they may be slow to read or prepare: those after the last transaction are lost if
# the process is killed. It does not depend on the time, as the files must not.
_SLOW_SAMPLES = 256
_NOTHING = object()


class Indexable(Protocol):
    """A sequence with a length and integer indices, as a torch Dataset."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


def write(
    samples: Iterable[Any] | Indexable,
    path: str | os.PathLike[str],
    *,
    codec: str | Mapping[str, str] | None = None,
    fields: Mapping[str, FieldType | None] | Sequence[str] | None = None,
    classes: Mapping[str, Sequence[str]] | None = None,
    write_mode: WriteMode | Mapping[str, WriteMode] | None = None,
    max_resolution: int | None = None,
    jpeg_quality: int | None = None,
    compress_probability: float | None = None,
    smart_threshold: int | None = None,
    seed: int | None = None,
    alpha: AlphaPolicy = "refuse",
    max_pixels: int = 200_000_000,
    overwrite: bool = False,
    prepare: Callable[[Any], Any] | None = None,
    workers: int | None = None,
    threads: bool = False,
    restart: bool = False,
    progress: bool | Callable[[int], None] = False,
) -> Written:
    """Write samples made in Python into a dataset, in the order given.

    Samples with `len` and integer indices (a torch Dataset, a list) can be read by several workers, and a run that was
    interrupted, for any reason, continues after its last part (of slow samples: its last transaction) when it is called
    again with the same samples and options: its progress is in PATH.partial. An iterator, and an object with an
    `__iter__` of its own, is read and encoded in this thread, and a repeated call starts from the beginning. The files
    do not depend on the workers.

    Args:
        samples: An iterable, or an object with `len` and integer indices (a torch Dataset), of dicts, named tuples or
            tuples of NumPy arrays, torch tensors, PIL images, ints, floats, str, bytes or JSON values. PIL images and
            uint8 or uint16 arrays (H, W), (H, W, 1) or (H, W, 3) are images, as are uint8 or uint16 tensors (1, H, W)
            or (3, H, W); other arrays and tensors keep their shape, and masks are declared in `fields`. Each sample is
            copied or encoded before the next one is requested, so the same array, buffer or dict may be filled again.
            Encoded images: a dict {"bytes": ..., "path": ...} is an image, and so are bytes or a path in a field that
            `fields` declares as Image(). The class names of Hugging Face and torchvision datasets are stored.
        path: The new dataset.
        codec: "raw", "lz4" or "auto" (lz4 if it saves 10 % on the first samples), for all fields or by field. For
            images it is the codec of pixels. By default "auto", or "raw" for images with some write modes.
        fields: The names of all values, for tuples in their order; or a mapping from names to types (`Image()`,
            `Array()` ...), to set types that should not be guessed: {"mask": Mask()}. A field that is named like a mask
            (mask, label, seg ...) and has at most 64 values must be declared, as Mask() or Image().
        classes: By field of ints or Labels(), the names of its values from 0 on, in a list or tuple; by default those
            that a dataset of Hugging Face or torchvision has, in `features` or `classes`.
        write_mode: How images are stored, for all or by field: "raw", "jpg", "proportion", "smart" or "original",
            as in `convert`. The default, also for fields that are not named, is pixels. Masks are always stored without
            loss.
        max_resolution: Shrink images whose longer side has more pixels than this, in the fields that `write_mode` names
            or else in all. Masks are resized too: each pixel gets the label at its centre.
        jpeg_quality: The quality of JPEGs, 1 to 100; 90 by default.
        compress_probability: The share of images that "proportion" stores as JPEG, 0.5 by default.
        smart_threshold: Bytes of pixels above which "smart" stores a JPEG.
        seed: The seed of "proportion", 0 by default; the choice depends on it and the number of the sample.
        alpha: How to treat transparent images, encoded or of Pillow: "refuse", "drop" or "white", as in `convert`.
        max_pixels: Encoded images of more pixels are refused.
        overwrite: Replace an existing dataset, once the new one is complete.
        prepare: A function that the workers call once for each sample, as the dataset returns it; it returns the
            sample to store.
        workers: The number of worker processes that read, prepare and encode samples with indices; 0 or 1 for none (the
            default). The dataset and `prepare` must be picklable. Random numbers in the dataset or in `prepare` depend
            on it.
        threads: Use threads instead of processes; several threads then call the dataset at once.
        restart: Discard the progress of an interrupted run; by default it is continued.
        progress: True for a bar on a terminal, in a log a line every 30 seconds; or a function that is called with the
            number of samples written since the last call.

    Returns:
        A summary of the dataset.

    Raises:
        OptionError: A sample does not fit (the message names its number and field), or an option is out of range or
            contradicts another; or there are more names of classes than a dataset can have; or the dataset or `prepare`
            cannot be pickled for the workers.
        DestinationError: `path` is taken, has no parent folder, or has the name of an unfinished conversion; or
            an interrupted run with other samples or options is there.
        DiskFullError: No room left.
        WorkerError: A worker process died, or the dataset or `prepare` raised an exception in it; without processes
            that exception is raised unchanged, with a note that has the number of the sample (Python 3.11 or newer).
        CorruptError: The progress of an interrupted run is damaged.

    >>> import tempfile, numpy, lmdbloader
    >>> path = tempfile.mkdtemp() + "/numbers"
    >>> written = lmdbloader.write(({"image": numpy.full((8, 8), i, "uint8"), "label": i} for i in range(10)), path)
    >>> lmdbloader.LMDBDataset(path)[3].label
    3
    """
    refuse_in_import()
    out = new_folder(path)
    overwrite, restart = flag("overwrite", overwrite), flag("restart", restart)
    shows_bar = False if callable(progress) else flag("progress", progress)
    num_workers = _count_workers(workers, threads)
    if prepare is not None:
        function("prepare", prepare)
    if not was_just_published(out):
        check_destination(out, overwrite=overwrite)
    fields = check_given(fields)
    adapted = adapt(samples, fields, classes, prepare=prepare)
    source = _open(samples, adapted.samples)
    if num_workers > 1 and not source.is_indexed:
        raise OptionError(
            f"{option('workers', num_workers)}: expected samples with a length and integer indices; an iterator is "
            "read and encoded by this thread. Leave it out."
        )
    if num_workers > 1 and not threads:
        check_pickles("prepare", prepare)  # before anything is prepared
    policy = DecodePolicy(check_value("alpha", alpha), check_value("max_pixels", max_pixels))
    reading = Reading(replace(adapted, samples=None), declared_types(fields), policy, prepare)
    first = source.first()
    if first is _NOTHING:
        raise OptionError(f"{out}: there is nothing to write: `samples` is empty")
    first = reading.prepared(first, 0)
    if adapted.names is None and (found_names := names_of(first)) is not None:
        reading = replace(reading, adapted=replace(reading.adapted, names=found_names))
    values = reading.values(first, 0)
    schema = infer_fields(values, fields)
    if classes is None:
        have_labels = fields_of_labels(schema)
        classes = {field: names for field, names in adapted.classes.items() if field in have_labels}
    names = check_classes(schema, classes)
    storages, codecs = settle_storages(
        schema,
        write_mode,
        codec,
        {
            "max_resolution": max_resolution,
            "jpeg_quality": jpeg_quality,
            "compress_probability": compress_probability,
            "smart_threshold": smart_threshold,
            "seed": seed,
        },
    )
    settle_places(schema, values, fields)
    warn_of_arrays(schema, values, fields)
    asked = codecs_by_field(schema, codecs)
    options: dict[str, Any] = {"codec": codecs if isinstance(codecs, str) else dict(codecs)}
    if kept := {name: asdict(storage) for name, storage in storages.items() if storage != PIXELS}:
        options["storage"] = kept
    if prepare is not None:
        options["prepare"] = getattr(prepare, "__qualname__", type(prepare).__qualname__)
    made_by = {"lmdbloader": __version__, "layout": "python", "options": options}
    Description(tuple(schema), False, names, made_by).to_json()  # refuses very many names
    job = _Job(
        out,
        source,
        SampleRecipe(reading, tuple(schema), storages),
        asked,
        made_by,
        names,
        num_workers,
        threads,
        overwrite,
    )
    if source.is_indexed and not restart and (finished := _find_finished(job)) is not None:
        return finished
    check_destination(out, overwrite=overwrite)
    report = progress if callable(progress) else _no_progress
    work = Work(out)
    if restart:
        work.discard()
    try:
        begun = _resume(job, work, values)
        if begun is None:
            begun = _begin(job, work, values, fields)
        del first, values
        return _write(job, work, begun, report, shows_bar)
    finally:
        work.leave()


def _count_workers(workers: int | None, threads: bool) -> int:
    if isinstance(threads, int) and not isinstance(threads, bool):
        line = f"{option('workers', threads)} and {option('threads', True)}"
        raise OptionError(f"{option('threads', threads)}: expected True or False. For {threads} threads write {line}.")
    if flag("threads", threads) and workers is None:
        raise OptionError(f"{option('threads', True)} has no effect without {option('workers')}: give their number")
    return 1 if workers is None else max(1, whole("workers", workers, 0))


def _no_progress(done: int) -> None:
    pass


@dataclass(slots=True)
class _Source:
    """Samples, and how they are read.

    Attributes:
        samples: Themselves; an iterator if they have no indices.
        is_indexed: Whether they have integer indices.
        num_samples: Their number; for an iterator an estimate, or 0.
        identity: What distinguishes them from others, if they have indices.
    """

    samples: Any
    is_indexed: bool
    num_samples: int
    identity: Mapping[str, Any]

    def first(self) -> Any:
        """Return the first sample; `_NOTHING` if there is none."""
        if self.is_indexed:
            return self.samples[0] if self.num_samples else _NOTHING
        return next(self.samples, _NOTHING)

    def rest(self) -> Iterator[Any]:
        """Return an iterator over the other samples."""
        if self.is_indexed:
            return (self.samples[i] for i in range(1, self.num_samples))
        rest: Iterator[Any] = self.samples
        return rest


def _open(samples: Any, adapted: Any) -> _Source:
    """Return the samples, given as the caller has them and as `adapt` returned them.

    Raises:
        OptionError: They can be neither iterated nor indexed.
    """
    if is_indexed(samples) and hasattr(adapted, "__getitem__"):
        num_samples = len(adapted)
        return _Source(adapted, True, num_samples, identity_of(samples, num_samples))
    # A torch Dataset has no __iter__; an IterableDataset has all three methods, but only __iter__ works.
    if not isinstance(adapted, Iterable):
        raise OptionError(
            f"samples of type {type(adapted).__name__}: expected an iterable, or an object with a length and integer "
            "indices, of dicts or tuples"
        )
    return _Source(iter(adapted), False, _length(samples), {})


@dataclass(frozen=True, slots=True)
class _Job:
    """What is to be written.

    Attributes:
        out: The new dataset.
        source: The samples.
        recipe: The settings; its fields have no codecs yet.
        codecs: By payload field, as asked for.
        made_by: For the manifest.
        classes: Names by field.
        num_workers, threads: As for `encode_all`.
        overwrite: Whether a dataset is replaced.
    """

    out: Path
    source: _Source
    recipe: SampleRecipe
    codecs: Mapping[str, str]
    made_by: dict[str, Any]
    classes: Mapping[str, tuple[str, ...]]
    num_workers: int
    threads: bool
    overwrite: bool

    def plan(self, first: int) -> dict[str, Any]:
        """Return what an interrupted run must have in common with the one that continues it, and its first task."""
        options = {**self.made_by["options"], "policy": asdict(self.recipe.reading.policy)}
        kinds = [[f.name, f.kind, f.ignore_index, *([f.image] if f.image else [])] for f in self.recipe.fields]
        classes = {name: list(names) for name, names in self.classes.items()}
        inputs = {**self.source.identity, "kinds": kinds, "classes": classes} if self.source.is_indexed else {}
        return {"made_by": {**self.made_by, "options": options}, "inputs": inputs, "first": first}


@dataclass(slots=True)
class _State:
    """A run that has begun.

    Attributes:
        recipe: The settings, with the codecs.
        first_task: The samples of the first task.
        map_nbytes: Estimated size of LMDB's maps, all parts together.
        bits: Of the labels of each mask field.
        part: The first samples, encoded; None if they are read again.
        facts: Of the parts that are complete.
        first: The first sample that is not in one of them.
    """

    recipe: SampleRecipe
    first_task: int
    map_nbytes: int
    bits: dict[str, int]
    part: Part | None
    facts: list[PartFacts] = field(default_factory=list)
    first: int = 0


def _find_finished(job: _Job) -> Written | None:
    """Return the dataset of the same call if a run was killed after putting it in place, None for any other."""
    if not was_just_published(job.out):
        return None
    try:
        check_same(job.out, plan_left_in(job.out), job.plan(0))
    except DestinationError:
        return None
    manifest = read_manifest(job.out)
    remove_work(job.out)
    return Written(manifest.num_samples, manifest.sizes, manifest.content_digest)


def _resume(job: _Job, work: Work, first: Mapping[str, Any]) -> _State | None:
    """Return the state of an interrupted run, None if there is none.

    Raises:
        DestinationError: It is the run of another call, or another process writes samples of an iterator there.
        CorruptError: A complete part is damaged.
    """
    plan = work.plan()
    if plan is None or not work.has_parts():
        return None
    if not job.source.is_indexed:
        if plan.get("inputs") != {} or work.is_busy():
            raise DestinationError(
                f"{work.folder}: another dataset is unfinished there. Finish it with the call that began it, or drop "
                f"it with {option('restart', True)}."
            )
        return None
    check_same(work.folder, plan, job.plan(0))
    fields = tuple(parse_field(f) for f in plan["fields"])
    group = Group(fields, {f.name: f.codec for f in fields}, job.recipe.storages, 0)
    group.add(first)
    facts: list[PartFacts] = []
    while (found := work.facts(len(facts))) is not None:
        facts.append(found)
    recipe = replace(job.recipe, fields=fields)
    bits = mask_bits(group.encode()[0], fields, 0, {})
    done = sum(found.num_samples for found in facts)
    return _State(recipe, plan["first"], plan["map_nbytes"], bits, None, facts, done)


def _begin(job: _Job, work: Work, first: dict[str, Any], given: Given) -> _State:
    """Settle the codecs and the map's size with the first group of samples, and note them."""
    source, recipe = job.source, job.recipe
    watches = watch_labels(recipe.fields, first, given)
    # The workers wait for this group, whose preparation may be slow.
    is_slow = recipe.reading.prepare is not None
    group = Group(recipe.fields, job.codecs, recipe.storages, 0, watches, is_small=is_slow)
    group.add(first)
    first.clear()
    rest = recipe.values(source.rest(), group.end)
    while not group.is_full and (values := next(rest, None)) is not None:
        group.add(values)
        del values
    chunk, schema = group.encode()
    settle_masks(watches, schema)
    recipe = replace(recipe, fields=tuple(schema))
    part = make_part(chunk, recipe.fields)
    num_samples = chunk.num_samples
    total = max(source.num_samples or 4 * num_samples, num_samples)
    map_nbytes = min(estimate_map_nbytes(part.nbytes / num_samples * total, total), _MOST_MAP_NBYTES)
    work.discard()
    settled = {"fields": [field_json(f) for f in schema], "map_nbytes": map_nbytes}
    work.begin({**job.plan(num_samples), **settled})
    return _State(recipe, num_samples, map_nbytes, mask_bits(chunk, recipe.fields, 0, {}), part)


def _write(job: _Job, work: Work, state: _State, report: Callable[[int], None], shows_bar: bool) -> Written:
    """Write the samples that are not stored yet, and put the dataset in place."""
    source, recipe, facts = job.source, state.recipe, state.facts
    description = Description(recipe.fields, False, job.classes, job.made_by)
    is_slow = source.is_indexed and (recipe.reading.prepare is not None or not isinstance(source.samples, list | tuple))
    parts: Generator[Part, None, None] | None = None
    try:
        is_last = False
        while not is_last:
            with work.part(
                len(facts),
                description,
                map_nbytes=min(state.map_nbytes, estimate_map_nbytes(PART_NBYTES + GROUP_NBYTES, 0)),
                transaction_samples=_SLOW_SAMPLES if is_slow else None,
            ) as writer:
                if parts is None:
                    first = state.first + writer.num_samples
                    pieces: list[Rows | PartWriter] = [*map(work.rows, range(len(facts))), writer]
                    check_stored(work.folder, pieces, recipe, source.samples)
                    parts = _show(_parts(job, state, first), source, first, shows_bar)
                is_last = _fill(writer, parts, state, report)
                if writer.num_samples or not facts:
                    facts.append(work.complete(len(facts), writer, {}))
        # Another process may have made it meanwhile.
        check_destination(job.out, overwrite=job.overwrite)
        return join(work, facts, description, overwrite=job.overwrite)
    except BaseException as error:
        if source.is_indexed and work.has_parts() and not isinstance(error, LmdbloaderError):
            add_note(error, f"lmdbloader.write: what is stored is kept in {work.folder}. The same call continues.")
        raise
    finally:
        if parts is not None:
            parts.close()


def _fill(writer: PartWriter, parts: Iterator[Part], state: _State, report: Callable[[int], None]) -> bool:
    """Fill a part with samples; return whether they were the last ones."""
    with WritingThread(writer) as sink:
        while sink.payload_nbytes < PART_NBYTES:
            if (part := next(parts, None)) is None:
                return True
            if part.chunk is not None:
                mask_bits(part.chunk, state.recipe.fields, state.first + sink.num_samples, state.bits)
            sink.add(part)
            report(part.num_sources)
    state.first += writer.num_samples
    return False


def _parts(job: _Job, state: _State, first: int) -> Generator[Part, None, None]:
    """Yield the samples from one on, encoded, in order."""
    source = job.source
    if state.part is not None:
        part, state.part = state.part, None
        first = part.num_sources
        yield part
        del part
    if source.is_indexed:
        tasks = cut_tasks(state.first_task, first, source.num_samples)
        yield from encode_all(state.recipe, source.samples, tasks, job.num_workers, threads=job.threads)
    else:
        yield from state.recipe.encode(source.samples, first)


def _show(
    parts: Generator[Part, None, None], source: _Source, first: int, shows_bar: bool
) -> Generator[Part, None, None]:
    """Yield parts, and show how many samples are written, and the remaining time."""
    total = source.num_samples if source.is_indexed else None  # the length of an iterable may be wrong
    with closing(parts), ProgressLine("writing", total, shown=shows_bar, first=first) as line:
        for part in parts:
            yield part
            line.update(part.num_sources)


def _length(samples: Any) -> int:
    """Return the length of the samples, 0 if it is unknown. It is a hint for the size of the map, which can grow."""
    try:
        return len(samples)
    except Exception:  # a DataLoader has a __len__ that fails for an IterableDataset without one
        return 0
