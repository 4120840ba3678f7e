"""`lmdbloader.recode`: a dataset with its images stored in another way, without loss."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from lmdbloader.base.arguments import flag
from lmdbloader.base.cores import count_cores
from lmdbloader.base.option_names import option
from lmdbloader.conversion.combining import Combined, Part, Recipe, chosen_fields, combine, open_part
from lmdbloader.conversion.destination import new_folder
from lmdbloader.conversion.options import check_value
from lmdbloader.errors import OptionError
from lmdbloader.format.codecs import (
    Payloads,
    encode_image,
    holds_pixels,
    join,
    pack_file,
    pack_jpeg,
    refuse_floats,
    unpack_jpeg,
)
from lmdbloader.format.jpeg_payload import find_orientation
from lmdbloader.format.layout import CODEC_FILE, CODEC_JPEG, TILE_SIZE, undecided
from lmdbloader.images.decode import is_jpeg, read_header
from lmdbloader.store import Chunk

I64 = npt.NDArray[np.int64]


def recode(
    dataset: Any,
    out: str | os.PathLike[str],
    *,
    jpeg_code: Literal["fast", "file"] | None = None,
    codec: Literal["raw", "lz4", "delta"] | None = None,
    overwrite: bool = False,
    restart: bool = False,
    progress: bool = False,
    log: Callable[[str], None] = lambda line: None,
) -> Combined:
    """Copy a dataset with its images stored in another way, without loss.

    Every sample and every pixel stays the same. A call that was interrupted keeps its complete parts in OUT.partial for
    the next one.

    Args:
        dataset: A path, or an LMDBDataset.
        out: The new dataset. One that was made of the same samples by the same call is left as it is.
        jpeg_code: "fast" recodes JPEGs so that they decode faster, "file" restores their files; None leaves them.
            Progressive JPEGs are stored as plain files with "file".
        codec: The new codec of images that are stored as pixels: "raw", "lz4" or, for integers, "delta"; None keeps
            it. Files and masks keep theirs.
        overwrite: Replace an existing dataset, once the new one is complete.
        restart: Discard the progress of an interrupted call; by default it is continued.
        progress: Show the progress: a line on a terminal, in a log one every 30 seconds.
        log: Called with each message, a line of text.

    Returns:
        A summary of the new dataset.

    Raises:
        NotFoundError: The dataset does not exist.
        FormatError: It is not a finished dataset of this format version.
        CorruptError: It is damaged; nothing is put in place.
        OptionError: Neither `jpeg_code` nor `codec` is given, or one is unknown; or the dataset has no images.
        DestinationError: `out` is taken, the dataset or inside of it; or another call is unfinished there.
        DiskFullError: No room left.

    >>> import tempfile, numpy, lmdbloader
    >>> place = tempfile.mkdtemp()
    >>> written = lmdbloader.write([{"image": numpy.zeros((64, 64, 3), "uint8")}] * 9, f"{place}/raw", codec="raw")
    >>> lmdbloader.recode(f"{place}/raw", f"{place}/small", codec="delta").sizes["payload_nbytes"] < 1000
    True
    """
    overwrite, restart, progress = flag("overwrite", overwrite), flag("restart", restart), flag("progress", progress)
    target = new_folder(out)
    if jpeg_code is None and codec is None:
        raise OptionError(f"recode: give {option('jpeg_code')}, {option('codec')} or both")
    if jpeg_code is not None:
        check_value("jpeg_code", jpeg_code)
    if codec not in (None, "raw", "lz4", "delta"):
        raise OptionError(f"{option('codec', codec)}: expected 'raw', 'lz4' or 'delta'")
    part = open_part(dataset, "recode")
    if not len(part):
        raise OptionError(f"{part.title}: has no sample; a dataset has at least one")
    names = chosen_fields([part], None)
    images = [name for name in names if part.reader.fields[name].kind == "image"]
    if not images:
        raise OptionError(f"{part.title}: has no field of images, so there is nothing to recode")
    fields = [part.reader.fields[name] for name in names]
    for name in images:
        refuse_floats(codec, part.reader.extremes(name, "bits")[1], f"{part.title}, field {name!r}")
    if codec is not None:
        fields = [replace(f, codec=codec) if f.name in images else f for f in fields]
    choices = {"jpeg_code": jpeg_code, "codec": codec}
    manifest = part.reader.manifest
    classes = {name: names for name, names in manifest.classes.items() if name in part.names}
    with ThreadPoolExecutor(count_cores()) as pool:

        def change(chunk: Chunk, part: Part, rows: I64) -> Chunk:
            payloads = dict(chunk.payloads)
            for name in images:
                payloads[name] = _recoded(payloads[name], part, name, rows, jpeg_code, codec, pool)
            return replace(chunk, payloads=payloads)

        recipe = Recipe((part,), undecided(fields), classes, manifest.with_source, "recode", choices, change)
        return combine(recipe, target, (), overwrite=overwrite, restart=restart, progress=progress, log=log)


def _recoded(
    payloads: Payloads, part: Part, name: str, rows: I64, jpeg_code: str | None, codec: str | None, pool: Any
) -> Payloads:
    """Return the payloads of a field stored in another way."""
    ends = np.cumsum(payloads.stored_nbytes)
    is_pixels = holds_pixels(payloads.codec)
    tile_size = part.reader.fields[name].tile_size or TILE_SIZE

    def one(k: int) -> Payloads:
        stored = payloads.data[ends[k] - payloads.stored_nbytes[k] : ends[k]]
        found = None
        if codec is not None and is_pixels[k]:
            found = encode_image(part.reader.read_image(name, int(rows[k])).transpose(1, 2, 0), codec, tile_size)
        elif jpeg_code is not None:
            found = _recoded_jpeg(stored.data, int(payloads.codec[k]), int(payloads.raw_nbytes[k]), jpeg_code == "fast")
        return found or _of_one(payloads, k, stored)

    return join(list(pool.map(one, range(len(rows)))))


def _recoded_jpeg(stored: memoryview, codec: int, raw_nbytes: int, fast: bool) -> Payloads | None:
    """Return the payload of a JPEG with another code; None if it is no JPEG, or has no other one."""
    if codec == CODEC_JPEG:
        file = unpack_jpeg(stored)
        found = pack_jpeg(file, find_orientation(stored), raw_nbytes, fast=fast)
        return found or (None if fast else pack_file(file, raw_nbytes))  # a progressive one
    if codec == CODEC_FILE and fast and is_jpeg(stored):
        return pack_jpeg(bytes(stored), read_header(stored, "an image").orientation, raw_nbytes, fast=True)
    return None


def _of_one(payloads: Payloads, k: int, stored: npt.NDArray[np.uint8]) -> Payloads:
    rest = (getattr(payloads, name)[k : k + 1] for name in ("stored_nbytes", "raw_nbytes", "checksum", "codec"))
    return Payloads(stored, *rest)
