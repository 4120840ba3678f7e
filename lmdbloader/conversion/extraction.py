"""`lmdbloader.extract`: the samples of a dataset to a folder of files, complete or not at all."""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from lmdbloader.base import system
from lmdbloader.base.arguments import new_path
from lmdbloader.base.cores import count_cores
from lmdbloader.base.disk_errors import explain_full_disk, naming
from lmdbloader.base.limits import explain_limit
from lmdbloader.base.option_names import option
from lmdbloader.conversion.destination import refuse_inside
from lmdbloader.errors import DestinationError, FormatError, OptionError
from lmdbloader.fields import kind_named
from lmdbloader.format.codecs import codec_of
from lmdbloader.format.layout import PARTIAL_SUFFIX, Field
from lmdbloader.images.decode import IMAGE_SUFFIXES, RASTER_SUFFIXES
from lmdbloader.images.png import encode_png
from lmdbloader.images.rasters import DICOM_AT, DICOM_SIGNATURE
from lmdbloader.store import Reader, check_rows, open_reader

TABLE_FILE = "samples.jsonl"
_AT_ONCE = 64
IMAGE_FORMATS = ("stored", "png")
# Stored bytes that are a file of their own get its suffix.
_SIGNATURES = (
    *((b"\x89PNG\r\n\x1a\n", ".png"), (b"\xff\xd8\xff", ".jpg"), (b"GIF8", ".gif"), (b"BM", ".bmp")),
    *((b"II*\0", ".tif"), (b"MM\0*", ".tif"), (b"RIFF", ".webp"), (b"\x93NUMPY", ".npy"), (b"v/1\x01", ".exr")),
    *((b"P4", ".pbm"), (b"P5", ".pgm"), (b"P6", ".ppm")),
)
# For values of bytes fields, short signatures are too weak.
_SURE = _SIGNATURES[:4]


@dataclass(frozen=True, slots=True)
class Extracted:
    """The result of an extraction.

    Attributes:
        path: The folder.
        num_samples: Samples extracted.
        num_files: Files of images, arrays and bytes.
        nbytes: Total size of these files.
    """

    path: str
    num_samples: int
    num_files: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class _Plan:
    """The fields to extract, and the names of files.

    Attributes:
        fields: The fields, in the dataset's order.
        folders: The folder of each field that becomes files; "" for the destination itself, if there is only one.
        stems: File names without suffix, by source, or by sample where samples of one source are numbered.
        source_of: (samples,) the place of each sample in `stems`; None for a dataset without sources.
        positions: Whether names include the position of the patch.
        image_format: One of IMAGE_FORMATS.
    """

    fields: tuple[Field, ...]
    folders: dict[str, str]
    stems: list[str]
    source_of: npt.NDArray[Any] | None
    positions: bool
    image_format: str


def extract(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    fields: Sequence[str] | None = None,
    samples: Sequence[int] | None = None,
    image_format: Literal["stored", "png"] = "stored",
    workers: int | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> Extracted:
    """Write samples back to files: images as PNG or as their stored files, arrays as .npy, and bytes.

    Images of floats or of many bands become .npy files of (H, W, C), which `convert` reads.
    A file is named after its sample's source, with the position of the patch if sources gave several samples, or after
    the sample's number in a dataset without sources. Whole samples with equal sources are numbered. If more than one
    field becomes files, each field has a folder.
    samples.jsonl has a line for every sample with its number, source, files and all other values.

    Args:
        path: The dataset.
        out: The folder to make.
        fields: Names of fields; all by default.
        samples: Sample numbers, negative ones from the end; all by default.
        image_format: "stored" writes images that are stored as JPEG or another image file byte for byte, and the pixels
            of others as PNG; "png" writes the upright pixels of all images as PNG.
        workers: Threads that encode; by default the cores that this process may use. Files do not depend on it.
        progress: Called with the number of samples written since the last call.

    Returns:
        A summary.

    Raises:
        NotFoundError: There is nothing at `path`.
        OptionError: The dataset does not have a field or a sample, or nothing is to be extracted.
        DestinationError: `out` is taken, has no parent folder, or one of `path` and `out` is inside the other.
        CorruptError: A stored value is damaged. No error leaves a partial folder.
        DiskFullError: No room left.
        WorkerError: The system refuses a thread.
    """
    if image_format not in IMAGE_FORMATS:
        raise OptionError(f"{option('image_format', image_format)}: expected one of {', '.join(IMAGE_FORMATS)}")
    reader = open_reader(path)
    target = Path(os.path.abspath(new_path("out", out)))
    plan = _make_plan(reader, fields, image_format)
    rows = _rows(reader, samples)
    _check_destination(target, reader.path)
    num_files = nbytes = 0
    with explain_full_disk(target), _partial_folder(target) as partial:
        table_at = partial / TABLE_FILE
        with naming(table_at), open(table_at, "w", encoding="utf-8") as table, _pool(workers) as pool:
            made: set[str] = set()
            numbers = iter(rows)
            while chunk := list(islice(numbers, _AT_ONCE)):
                _make_folders(partial, plan, chunk, made)
                with explain_limit(
                    f"one of {workers or count_cores()} threads that extract", f"Use fewer: {option('workers', 1)}."
                ):
                    written = pool.map(lambda row: _write_sample(reader, plan, row, partial), chunk)
                for line, sizes in written:
                    table.write(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n")
                    num_files, nbytes = num_files + len(sizes), nbytes + sum(sizes)
                progress(len(chunk))
        _check_destination(target, reader.path)  # another process may have made it meanwhile
        os.rename(partial, target)
    return Extracted(os.fspath(out), len(rows), num_files, nbytes)


def _make_plan(reader: Reader, names: Sequence[str] | None, image_format: str) -> _Plan:
    for name in names or ():
        if name not in reader.fields:
            raise OptionError(f"{reader.place}: no field {name!r}; it has {', '.join(reader.fields)}")
    if names is not None and not names:
        raise OptionError(f"{reader.place}: no field to extract; it has {', '.join(reader.fields)}")
    fields = tuple(f for f in reader.manifest.fields if names is None or f.name in names)
    in_table = {f.name for f in fields if f.kind == "json" or f.holds_text or kind_named(f.kind).is_ragged}
    as_files = [f.name for f in fields if f.is_payload and f.name not in in_table]
    folders = {name: name if len(as_files) > 1 else "" for name in as_files}
    if not reader.manifest.with_source:
        return _Plan(fields, folders, [], None, False, image_format)
    sources = reader.index.names["source"]
    source_of, stems = sources.codes, unique_stems(sources.texts.to_list())
    arrays = reader.index.arrays
    has_places, repeats = arrays["top"].any() or arrays["left"].any(), np.bincount(source_of).max(initial=0) > 1
    if repeats and not has_places:  # whole samples with one source, as those of `write`: they are numbered
        texts = sources.texts.to_list()
        stems, source_of = (
            unique_stems([texts[code] for code in source_of.tolist()]),
            np.arange(len(source_of), dtype=np.int32),
        )
    positions = bool(has_places)
    return _Plan(fields, folders, stems, source_of, positions, image_format)


def _rows(reader: Reader, samples: Sequence[int] | None) -> list[int]:
    if samples is None:
        numbers = list(range(len(reader)))
    else:
        try:
            numbers = np.unique(check_rows(list(samples), len(reader))).tolist()
        except IndexError as error:
            raise OptionError(f"{reader.place}: {error}") from error
    if not numbers:
        raise OptionError(f"{reader.place}: no sample to extract; it has {len(reader)}")
    return numbers


def _pool(workers: int | None) -> ThreadPoolExecutor:
    if workers is not None and workers < 1:
        raise OptionError(f"{option('workers', workers)}: expected at least 1")
    return ThreadPoolExecutor(workers or count_cores(), thread_name_prefix="extract")


def _make_folders(partial: Path, plan: _Plan, rows: Sequence[int], made: set[str]) -> None:
    for row in rows:
        inner = os.path.dirname(_stem(plan, row))
        for folder in plan.folders.values():
            path = os.path.join(folder, inner)
            if path not in made:
                (partial / path).mkdir(parents=True, exist_ok=True)
                made.add(path)


def _stem(plan: _Plan, row: int, position: tuple[int, int] = (0, 0)) -> str:
    """Return the path of a sample's files without a suffix, below a field's folder."""
    if plan.source_of is None:
        return f"{row:06d}"
    stem = plan.stems[plan.source_of[row]]
    return with_position(stem, *position) if plan.positions else stem


def _write_sample(reader: Reader, plan: _Plan, row: int, partial: Path) -> tuple[dict[str, Any], list[int]]:
    """Write one sample's files; return its line of the table and the sizes of the files."""
    line: dict[str, Any] = {"sample": row}
    position = (0, 0)
    if plan.source_of is not None:
        position = (reader.index.value("top", row), reader.index.value("left", row))
        line.update(source=reader.source(row), top=position[0], left=position[1])
    stem = _stem(plan, row, position)
    sizes = []
    for f in plan.fields:
        if f.name not in plan.folders:
            line[f.name] = _value(reader, f, row)
            classes = reader.manifest.classes.get(f.name, ())
            if f.kind == "int" and 0 <= line[f.name] < len(classes):
                line[f"{f.name}.class"] = classes[line[f.name]]
            elif f.kind == "labels" and classes and all(0 <= label < len(classes) for label in line[f.name]):
                line[f"{f.name}.class"] = [classes[label] for label in line[f.name]]
            continue
        suffix, data = _file(reader, f, row, plan.image_format)
        name = os.path.join(plan.folders[f.name], stem + suffix)
        try:
            with naming(partial / name), open(partial / name, "xb") as file:
                file.write(data)
        except FileExistsError as error:
            raise DestinationError(
                f"{name}: two samples have this file name; the second one is {reader.where(f.name, row)}. "
                f"Extract them into two folders ({option('samples')})."
            ) from error
        line[f.name] = name
        sizes.append(len(data))
    return line, sizes


def _file(reader: Reader, f: Field, row: int, image_format: str) -> tuple[str, bytes]:
    """Return the suffix and the content of the file of a value."""
    if f.has_pixels:
        unpack = codec_of(reader.index.value(f"{f.name}.codec", row)).source_file
        if image_format == "stored" and unpack is not None:
            data = _unpack(reader, f, row, unpack)
            return _suffix(data, _SIGNATURES), data
        pixels = np.moveaxis(reader.read_image(f.name, row), 0, 2)
        if pixels.dtype.kind != "f" and pixels.shape[2] in (1, 3):
            return ".png", encode_png(pixels)
        if image_format == "png":
            raise OptionError(
                f"{reader.where(f.name, row)}: {pixels.shape} {pixels.dtype} cannot be a PNG file. Leave out "
                f"{option('image_format', 'png')}: it becomes .npy."
            )
        return ".npy", _npy(pixels)
    if f.kind == "array":
        return ".npy", _npy(reader.read_array(f.name, row))
    data = reader.read_bytes(f.name, row).tobytes()
    return _suffix(data, _SURE), data


def _npy(array: npt.NDArray[Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, np.ascontiguousarray(array), allow_pickle=False)
    return file.getvalue()


def _suffix(data: bytes, signatures: Sequence[tuple[bytes, str]]) -> str:
    rest = ".dcm" if data[DICOM_AT:].startswith(DICOM_SIGNATURE) else ".bin"
    return next((suffix for signature, suffix in signatures if data.startswith(signature)), rest)


def _unpack(reader: Reader, f: Field, row: int, unpack: Callable[[bytes], bytes]) -> bytes:
    payload = reader.stored_bytes(f.name, row)
    try:
        return unpack(payload)
    except FormatError as error:
        raise reader.corrupt(f.name, row, f"{error}. Restore the dataset from a copy.") from error


def _value(reader: Reader, f: Field, row: int) -> Any:
    """Return a value for JSON; floats that are not finite become "nan", "inf" and "-inf"."""
    if f.is_payload:
        found = reader.read_value(f.name, row)
        return found.tolist() if kind_named(f.kind).is_ragged else found
    if f.holds_text:
        return reader.index.text(f.name, row)
    value = reader.index.take(f.name, range(row, row + 1))[0].item()
    return value if isinstance(value, int) or math.isfinite(value) else str(value)


def _check_destination(target: Path, dataset: Path) -> None:
    """Refuse a destination that is taken, is inside the dataset, or contains it."""
    refuse_inside(target, dataset)
    if os.path.lexists(target):
        raise DestinationError(f"{target}: exists, and is not replaced. Remove it, or choose another destination.")


@contextmanager
def _partial_folder(target: Path) -> Iterator[Path]:
    """Yield the new folder DIR.partial; it is removed unless it was renamed.

    Raises:
        DestinationError: It exists already, or its parent does not.
    """
    partial = target.with_name(target.name + PARTIAL_SUFFIX)
    try:
        partial.mkdir()
    except FileNotFoundError as error:
        raise DestinationError(f"{target}: the folder {target.parent} does not exist. Create it first.") from error
    except FileExistsError as error:
        raise DestinationError(
            f"{partial}: exists. Another extraction is writing there, or one was killed: remove it if none is running."
        ) from error
    try:
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)


# Suffixes of extracted files. No folder name ends in one, so no folder has the name of a file.
_IMAGE_SUFFIXES = IMAGE_SUFFIXES | RASTER_SUFFIXES
FILE_SUFFIXES = (".bin", ".json", ".jsonl", *sorted(_IMAGE_SUFFIXES))

_NAME_NBYTES = 180
_MAX_DEPTH = 6
# Characters that a file name cannot hold, or that a terminal acts on.
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def safe_stem(source: str) -> str:
    """Return a relative path without an image's suffix for the files made from a source.

    It is the source's own, or a digest of it if that would be empty, long, deep, outside of the folder, or unsafe.

    >>> safe_stem("cats/0001.png"), safe_stem("../../etc/passwd")
    ('cats/0001', 'source-830a08e2')
    """
    root, suffix = os.path.splitext(source)
    stem = root if suffix.lower() in _IMAGE_SUFFIXES else source
    *folders, last = stem.split("/")
    is_plain = len(folders) < _MAX_DEPTH and not _UNSAFE.search(stem)
    if (
        is_plain
        and all(part not in ("", ".", "..") and len(part.encode()) <= _NAME_NBYTES for part in (*folders, last))
        and not any(folder.lower().endswith(FILE_SUFFIXES) for folder in folders)
    ):
        return stem
    return f"source-{hashlib.blake2b(source.encode('utf-8', 'surrogatepass'), digest_size=4).hexdigest()}"


def unique_stems(sources: Sequence[str]) -> list[str]:
    """Return a safe stem for each source; those that are taken get a number.

    >>> unique_stems(["a.jpg", "a.png", "b.tif", "a.jpg"])
    ['a', 'a~2', 'b', 'a~3']
    """
    stems: list[str] = []
    taken: set[str] = set()
    # Remembered, so that many equal names do not count from the start each time.
    next_number: dict[str, int] = {}
    for wanted in map(safe_stem, sources):
        stem, number = wanted, next_number.get(wanted, 2)
        while system.folded(stem) in taken:
            stem, number = f"{wanted}~{number}", number + 1
        next_number[wanted] = number
        taken.add(system.folded(stem))
        stems.append(stem)
    return stems


def with_position(stem: str, top: int, left: int) -> str:
    """Return the stem of one patch, unique for each (stem, top, left).

    >>> with_position("cats/0001", 96, 192)
    'cats/0001_r00096_c00192'
    """
    return f"{stem}_r{top:05d}_c{left:05d}"
