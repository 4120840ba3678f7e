"""`lmdbloader.write`: samples made in Python to one dataset."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from lmdbloader import __version__
from lmdbloader.base.arguments import flag, function, whole
from lmdbloader.base.option_names import option
from lmdbloader.base.progress import ProgressLine
from lmdbloader.conversion.destination import new_folder
from lmdbloader.conversion.foreign_datasets import adapt, names_of
from lmdbloader.conversion.options import check_value
from lmdbloader.conversion.parts import PART_NBYTES
from lmdbloader.conversion.sample_fields import (
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
from lmdbloader.conversion.sample_progress import check_stored, identity_of, is_indexed
from lmdbloader.conversion.sample_workers import cut_tasks, encode_all
from lmdbloader.conversion.samples import (
    GROUP_NBYTES,
    Group,
    SampleRecipe,
    add_note,
    check_looks,
    make_part,
)
from lmdbloader.conversion.shipping import check_pickles, refuse_in_import
from lmdbloader.conversion.storage import PIXELS, WriteMode
from lmdbloader.conversion.tasks import Part
from lmdbloader.conversion.values import SMALLEST
from lmdbloader.errors import DestinationError, LmdbloaderError, OptionError
from lmdbloader.fields import FieldType
from lmdbloader.format.codecs import check_prefer
from lmdbloader.format.layout import SOURCE
from lmdbloader.format.manifest import Description, field_json, parse_field
from lmdbloader.images.decode import AlphaPolicy, DecodePolicy
from lmdbloader.store import (
    Work,
    Written,
    check_destination,
    estimate_map_nbytes,
    join,
    read_manifest,
)

# The map grows if it is too small. A length may be any number, and a process has 128 TiB for all of its maps.
_MOST_MAP_NBYTES = 2**40
# The most samples of a transaction if they may be slow to read or prepare: those after the last transaction are lost if
# the process is killed. It does not depend on the time, as the files must not.
_SLOW_SAMPLES = 256
_NOTHING, _CALL = object(), "the call"


class Indexable(Protocol):
    """A sequence with a length and integer indices, as a torch Dataset."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


def write(
    samples: Iterable[Any] | Indexable,
    path: str | os.PathLike[str],
    *,
    codec: str | Mapping[str, str] | None = None,
    prefer: Literal["speed", "size"] = "speed",
    fields: Mapping[str, FieldType | None] | Sequence[str] | None = None,
    classes: Mapping[str, Sequence[str]] | None = None,
    write_mode: WriteMode | Mapping[str, WriteMode] | None = None,
    max_resolution: int | None = None,
    jpeg_quality: int | None = None,
    jpeg_code: Literal["fast", "file"] | None = None,
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
            `fields` declares as Image(). The class names of Hugging Face and torchvision datasets are stored. The key
            `source`, a str in every sample or in none, is the name of what the sample was made from, such as the path
            of its file: `extract` names files after it, and `split` keeps samples with equal sources together.
        path: The new dataset.
        codec: "raw", "lz4", "delta" or "auto", for all fields or by field. For images it is the codec of pixels; delta
            is for them, and other fields get lz4 instead. By default "auto", or "raw" for images with some write modes.
        prefer: What "auto" chooses by, on the first samples: "speed" takes lz4 if it saves 10 %, else raw; "size" the
            smallest of raw, lz4 and delta.
        fields: The names of all values, for tuples in their order; or a mapping from names to types (`Image()`,
            `Array()` ...), to set types that should not be guessed: {"mask": Mask()}. A field that is named like a mask
            (mask, label, seg ...) and has at most 64 values must be declared, as Mask() or Image().
        classes: By field of ints or Labels(), the names of its values from 0 on, in a list or tuple; by default those
            that a dataset of Hugging Face or torchvision has, in `features` or `classes`. Numbers below 0 stand for no
            class.
        write_mode: How images are stored, for all or by field: "raw", "jpg", "proportion", "smart" or "original",
            as in `convert`. The default, also for fields that are not named, is pixels. Masks are always stored without
            loss.
        max_resolution: Shrink images whose longer side has more pixels than this, in the fields that `write_mode` names
            or else in all. Masks are resized too: each pixel gets the label at its center.
        jpeg_quality: The quality of JPEGs, 1 to 100; 90 by default.
        jpeg_code: "fast", the default, recodes JPEGs so that they decode faster, "file" stores them as they are; as in
            `convert`.
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
    work = Work(out)
    if overwrite or restart or not work.is_published():
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
    recipe = SampleRecipe(replace(adapted, samples=None), declared_types(fields), policy, prepare)
    if (first := next(source.in_order, _NOTHING)) is _NOTHING:
        raise OptionError(f"{out}: there is nothing to write: `samples` is empty")
    first = recipe.prepared(first, 0)
    if adapted.names is None and (found_names := names_of(first)) is not None:
        recipe = replace(recipe, adapted=replace(recipe.adapted, names=found_names))
    values = recipe.named(first, 0)
    recipe = replace(recipe, with_source=SOURCE in values)
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
            "jpeg_code": jpeg_code,
            "compress_probability": compress_probability,
            "smart_threshold": smart_threshold,
            "seed": seed,
        },
    )
    settle_places(schema, values, recipe.declared)
    warn_of_arrays(schema, values, recipe.declared)
    asked = codecs_by_field(schema, codecs)
    check_prefer(prefer, asked.values() or ["auto"])  # numbers have no codec
    options: dict[str, Any] = {"codec": codecs if isinstance(codecs, str) else dict(codecs)}
    if prefer == "size":
        asked = {name: SMALLEST if value == "auto" else value for name, value in asked.items()}
        options["prefer"] = prefer
    if kept := {name: asdict(storage) for name, storage in storages.items() if storage != PIXELS}:
        options["storage"] = kept
    if prepare is not None:
        options["prepare"] = getattr(prepare, "__qualname__", type(prepare).__qualname__)
    made_by = {"lmdbloader": __version__, "layout": "python", "options": options}
    description = Description(tuple(schema), recipe.with_source, names, made_by)
    description.to_json()  # refuses very many names
    num_classes = {name: len(of_field) for name, of_field in names.items()}
    recipe = replace(recipe, fields=description.fields, storages=storages, num_classes=num_classes)
    job = _Job(out, source, recipe, asked, description, num_workers, threads, overwrite)
    if source.is_indexed and not restart and (finished := _find_finished(job, work, source.num_samples)) is not None:
        return finished
    check_destination(out, overwrite=overwrite)
    if restart:
        work.discard()
    try:
        part = None if _continues(job, work) else _begin(job, work, values)
        del first, values
        return _write(job, work, part, progress if callable(progress) else _no_progress, shows_bar)
    except BaseException as error:
        if isinstance(error, FileNotFoundError) and str(work.folder) in str(error):
            check_destination(out, overwrite=overwrite)  # another process that writes there is done, or has begun
            reason = "another process, which writes there too, has removed it. Run it again."
            raise DestinationError(f"{work.folder}: {reason}") from error
        work.leave()
        raise


def _count_workers(workers: int | None, threads: bool) -> int:
    if flag("threads", threads) and workers is None:
        raise OptionError(f"{option('threads', True)} has no effect without {option('workers')}: give their number")
    return 1 if workers is None else max(1, whole("workers", workers, 0))


def _no_progress(done: int) -> None:
    pass


@dataclass(slots=True)
class _Source:
    """Samples, and how they are read.

    Attributes:
        samples: With integer indices; None if they have none.
        in_order: All that have not been read yet.
        num_samples: Their number; without indices an estimate, or 0.
        identity: What distinguishes them from others, if they have indices.
    """

    samples: Any
    in_order: Iterator[Any]
    num_samples: int
    identity: Mapping[str, Any]

    @property
    def is_indexed(self) -> bool:
        """Whether they have integer indices."""
        return self.samples is not None


def _open(samples: Any, adapted: Any) -> _Source:
    """Return the samples, given as the caller has them and as `adapt` returned them.

    Raises:
        OptionError: They can be neither iterated nor indexed.
    """
    if is_indexed(samples) and hasattr(adapted, "__getitem__"):
        num_samples = len(adapted)
        in_order = (adapted[i] for i in range(num_samples))
        return _Source(adapted, in_order, num_samples, identity_of(samples, num_samples))
    # A torch Dataset has no __iter__; an IterableDataset has all three methods, but only __iter__ works.
    if not isinstance(adapted, Iterable):
        raise OptionError(
            f"samples of type {type(adapted).__name__}: expected an iterable, or an object with a length and integer "
            "indices, of dicts or tuples"
        )
    return _Source(None, iter(adapted), _length(samples), {})


@dataclass(frozen=True, slots=True)
class _Job:
    """What is to be written.

    Attributes:
        out: The new dataset.
        source: The samples.
        recipe: The settings; its fields have no codecs yet.
        codecs: By payload field, as asked for.
        description: Of the dataset, whose fields have no codecs yet either.
        num_workers, threads: As for `encode_all`.
        overwrite: Whether a dataset is replaced.
    """

    out: Path
    source: _Source
    recipe: SampleRecipe
    codecs: Mapping[str, str]
    description: Description
    num_workers: int
    threads: bool
    overwrite: bool

    @property
    def asked(self) -> dict[str, Any]:
        """What an interrupted call must have in common with the one that continues it, with values as in JSON."""
        about, indexed = self.description, self.source.is_indexed
        asked: dict[str, Any] = {
            _CALL: "write" if indexed else "write of an iterator",
            "the release of lmdbloader": __version__,
            "the options": {**about.made_by["options"], "policy": asdict(self.recipe.policy)},
            **self.source.identity,
            "fields": [[f.name, f.kind, f.ignore_index, *([f.image] if f.image else [])] for f in about.fields]
            + [[SOURCE]] * about.with_source,
            "the names of classes": dict(about.classes),
        }
        as_read: dict[str, Any] = json.loads(json.dumps(asked))
        return as_read


def _find_finished(job: _Job, work: Work, num_samples: int) -> Written | None:
    """Return the dataset of the same call if a process has put it in place, None for any other."""
    try:
        work.compare(job.asked)
    except DestinationError:
        return None
    # A dataset of the first samples alone may have the parts that are complete.
    if job.overwrite or not work.is_published() or (manifest := read_manifest(job.out)).num_samples != num_samples:
        return None
    work.discard()
    return Written(manifest.num_samples, manifest.sizes, manifest.content_digest)


def _continues(job: _Job, work: Work) -> bool:
    """Return whether this call continues an interrupted one.

    Raises:
        DestinationError: That is another call, or another process writes samples of an iterator there.
    """
    asked = job.asked
    if job.source.is_indexed:
        return work.continues(asked) and work.has_parts()
    work.continues({_CALL: asked[_CALL]})
    if work.is_busy():
        raise DestinationError(
            f"{work.folder}: another process writes there. Wait for it, or discard what it does with "
            f"{option('restart', True)}."
        )
    return False


def _begin(job: _Job, work: Work, first: dict[str, Any]) -> Part:
    """Settle the codecs and the map's size with the first group of samples, note them, and return the group."""
    source, recipe = job.source, job.recipe
    watches = watch_labels(recipe.fields, first, recipe.declared)
    # The workers wait for this group, whose preparation may be slow.
    is_slow = recipe.prepare is not None
    group = Group(
        recipe.fields,
        job.codecs,
        recipe.storages,
        0,
        watches,
        num_classes=recipe.num_classes,
        with_source=recipe.with_source,
        is_small=is_slow,
    )
    group.add(first)
    first.clear()
    rest = recipe.values(source.in_order, group.end)
    while not group.is_full and (values := next(rest, None)) is not None:
        group.add(values)
        del values
    chunk, schema = group.encode()
    settle_masks(watches, schema)
    part = make_part(chunk, schema)
    num_samples = chunk.num_samples
    total = max(source.num_samples or 4 * num_samples, num_samples)
    if not source.is_indexed:  # what is there is of other samples, for all that is known
        work.discard()
    work.begin({
        "asked": job.asked,
        "fields": [field_json(f) for f in schema],
        "map_nbytes": min(estimate_map_nbytes(part.nbytes / num_samples * total, total), _MOST_MAP_NBYTES),
        "first": num_samples,
        "looks": check_looks(chunk, schema, 0, {}),
    })  # fmt: skip
    return part


def _write(job: _Job, work: Work, part: Part | None, report: Callable[[int], None], shows_bar: bool) -> Written:
    """Write the samples that are not stored yet, and put the dataset in place.

    Args:
        job: What is to be written.
        work: With its plan.
        part: The first samples, encoded; None if they are stored, or read again.
        report: Called with the number of samples of each part.
        shows_bar: Whether a bar is shown.
    """
    source, plan, facts = job.source, work.plan(), work.first_facts()
    if plan is None:
        raise FileNotFoundError(work.folder)
    recipe = replace(job.recipe, fields=tuple(map(parse_field, plan["fields"])))
    description = replace(job.description, fields=recipe.fields)
    is_slow = source.is_indexed and (recipe.prepare is not None or not isinstance(source.samples, list | tuple))
    map_nbytes = min(plan["map_nbytes"], estimate_map_nbytes(PART_NBYTES + GROUP_NBYTES, 0))
    most = _SLOW_SAMPLES if is_slow else None
    parts: Generator[Part, None, None] | None = None
    number, is_last = 0, False
    try:
        while not is_last:
            with work.part(len(facts), description, map_nbytes=map_nbytes, transaction_samples=most) as writer:
                if parts is None:
                    pieces = [*map(work.rows, range(len(facts))), writer.rows()]
                    check_stored(work.folder, pieces, recipe, source.samples)
                    number = sum(piece.num_rows for piece in pieces)
                    del pieces
                    parts = _show(_parts(job, recipe, plan["first"], part, number), source, number, shows_bar)
                    part = None
                while not is_last and writer.payload_nbytes < PART_NBYTES:
                    found = next(parts, None)
                    is_last = found is None
                    if found is not None and found.chunk is not None:
                        check_looks(found.chunk, recipe.fields, number, plan["looks"])
                        writer.add(found.chunk, found.blocks)
                        number += found.num_sources
                        report(found.num_sources)
                if writer.num_samples:
                    facts.append(work.complete(len(facts), writer, {}))
        # Another process may have made it meanwhile.
        num_samples = sum(part.num_samples for part in facts)
        if (finished := _find_finished(job, work, num_samples)) is not None:
            return finished
        check_destination(job.out, overwrite=job.overwrite)
        return join(work, facts, description, overwrite=job.overwrite)
    except BaseException as error:
        if source.is_indexed and work.has_parts() and not isinstance(error, LmdbloaderError):
            add_note(error, f"lmdbloader.write: what is stored is kept in {work.folder}. The same call continues.")
        # With restart=True, another process may have begun there.
        if not source.is_indexed and not isinstance(error, FileNotFoundError) and not work.is_busy():
            work.discard()
        raise
    finally:
        if parts is not None:
            parts.close()


def _parts(job: _Job, recipe: SampleRecipe, of_task: int, part: Part | None, first: int) -> Generator[Part, None, None]:
    """Yield the samples from one on, encoded, in order.

    Args:
        job: What is written.
        recipe: The settings, with the codecs.
        of_task: The samples of the first task.
        part: Its samples, encoded, if they are to be yielded first.
        first: The first sample that is not stored.
    """
    source = job.source
    if part is not None:
        first = part.num_sources
        yield part
        del part
    if source.is_indexed:
        tasks = cut_tasks(of_task, first, source.num_samples)
        yield from encode_all(recipe, source.samples, tasks, job.num_workers, threads=job.threads)
    else:
        yield from recipe.encode(source.in_order, first)


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
