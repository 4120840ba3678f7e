"""Samples made in Python: what their fields hold, how they are encoded, and `lmdbloader.write`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from lmdbloader import __version__
from lmdbloader.codecs import Payloads, check_codec, encode_image, encode_many, join, saves_enough
from lmdbloader.errors import DestinationError, OptionError
from lmdbloader.format import (
    ARRAY_DTYPES,
    MAX_PAYLOAD_NBYTES,
    TILE_SIZE,
    Codec,
    Field,
    FieldType,
    Kind,
    array_type,
    make_field,
)
from lmdbloader.store import Chunk, Written, check_destination, encode_blocks, estimate_map_nbytes, open_writer

_CHUNK_NBYTES = 8 * 2**20
_CHUNK_SAMPLES = 4096
_INT64 = range(-(2**63), 2**63)


def write(
    samples: Iterable[Any],
    path: str | os.PathLike[str],
    *,
    codec: str | Mapping[str, str] = "auto",
    fields: Mapping[str, FieldType | None] | Sequence[str] | None = None,
    overwrite: bool = False,
    progress: Callable[[int], None] = lambda done: None,
) -> Written:
    """Write samples made in Python into a dataset, in the order given.

    Args:
        samples: Any iterable, or anything with `len` and numbers as indices (a torch Dataset), of dicts, named tuples
            or tuples of NumPy arrays, torch tensors, PIL images, ints, floats, str, bytes or what JSON can hold.
            PIL images and uint8 or uint16 arrays (H, W), (H, W, 1) or (H, W, 3) are images, as are uint8 or uint16
            tensors (1, H, W) or (3, H, W); other arrays and tensors keep their shape.
        path: Of the new dataset.
        codec: "raw", "lz4" or "auto" (lz4 where it saves 10 % of the first samples), for all fields or field by field.
        fields: Names for tuples, in order; or a mapping from names to what they hold (`Image()`, `Array()` ...) where
            that should not be guessed.
        overwrite: Whether to replace a dataset that is there already, once the new one is complete.
        progress: Called with the number of samples written since the last call.

    Returns:
        What was written.

    Raises:
        OptionError: A sample does not fit; the message names its number and field. Nothing is left behind.
        DestinationError: `path` is taken, locked or has no parent folder.
        DiskFullError: No room left.

    >>> import tempfile, numpy, lmdbloader
    >>> path = tempfile.mkdtemp() + "/numbers"
    >>> written = lmdbloader.write(({"image": numpy.full((8, 8), i, "uint8"), "label": i} for i in range(10)), path)
    >>> lmdbloader.LMDBDataset(path)[3].label
    3
    """
    out = Path(path)
    check_destination(out, overwrite=overwrite)
    iterator = _iterate(samples)
    first = _take(iterator, 0)
    if not first:
        raise OptionError(f"{out}: there is nothing to write: `samples` is empty")
    schema = _infer_fields(first[0], fields)
    schema = _choose_codecs(schema, first, codec)
    nbytes = sum(int(p.stored_nbytes.sum()) for p in _encode(schema, first, 0).payloads.values())
    total = _length(samples) or 4 * len(first)
    made_by = {
        "lmdbloader": __version__,
        "layout": "python",
        "options": {"codec": codec if isinstance(codec, str) else dict(codec)},
    }
    map_nbytes = estimate_map_nbytes(nbytes / len(first) * max(total, len(first)), max(total, len(first)))
    with open_writer(out, schema, with_source=False, map_nbytes=map_nbytes) as writer:
        while first:
            chunk = _encode(schema, first, writer.num_samples)
            writer.add(chunk, encode_blocks(chunk, schema, with_source=False))
            progress(len(first))
            first = _take(iterator, writer.num_samples)
        # Somebody else may have made it meanwhile.
        check_destination(out, overwrite=overwrite)
        return writer.finish(classes={}, made_by=made_by)


def _iterate(samples: Iterable[Any]) -> Iterator[Any]:
    if hasattr(samples, "__getitem__") and hasattr(samples, "__len__") and not isinstance(samples, Mapping):
        indexable = cast(Sequence[Any], samples)
        return (indexable[i] for i in range(len(indexable)))
    if not isinstance(samples, Iterable):
        raise OptionError(f"samples of type {type(samples).__name__}: expected an iterable of dicts or tuples")
    return iter(samples)


def _length(samples: Any) -> int:
    return len(samples) if hasattr(samples, "__len__") else 0


def _take(iterator: Iterator[Any], number: int) -> list[Any]:
    """Return the next samples, about 8 MiB of them."""
    taken: list[Any] = []
    nbytes = 0
    for sample in iterator:
        taken.append(sample)
        values = sample.values() if isinstance(sample, Mapping) else sample if isinstance(sample, tuple | list) else ()
        nbytes += sum(_nbytes(v) for v in values)
        if nbytes >= _CHUNK_NBYTES or len(taken) >= _CHUNK_SAMPLES:
            break
    return taken


def _nbytes(value: Any) -> int:
    if hasattr(value, "nbytes"):
        return int(value.nbytes)
    if hasattr(value, "getbands"):
        return int(value.size[0] * value.size[1] * len(value.getbands()))
    return len(value) if isinstance(value, bytes | str) else 16


def _infer_fields(sample: Any, fields: Mapping[str, FieldType | None] | Sequence[str] | None) -> list[Field]:
    given: dict[str, FieldType | None] = {}
    if isinstance(fields, Mapping):
        given = dict(fields)
    elif fields is not None:
        given = dict.fromkeys(fields)
    for name, kind in given.items():
        if kind is not None and not isinstance(kind, FieldType):
            raise OptionError(
                f"fields[{name!r}] is {kind!r}: expected Image(), Array(), Int(), Float(), Text(), Bytes(), Json() or None"
            )
    values = _values(sample, tuple(given) or None, 0)
    unknown = set(given) - set(values)
    if unknown:
        raise OptionError(f"fields names {', '.join(sorted(unknown))}, but the first sample has {', '.join(values)}")
    return [
        make_field(name, kind.kind if (kind := given.get(name)) else guess_kind(value))
        for name, value in values.items()
    ]


def _values(sample: Any, names: tuple[str, ...] | None, number: int) -> dict[str, Any]:
    """Return a sample's values by field name."""
    if isinstance(sample, Mapping):
        return dict(sample)
    if isinstance(sample, tuple) and hasattr(sample, "_fields"):
        return dict(zip(sample._fields, sample, strict=True))
    if not isinstance(sample, tuple | list):
        raise OptionError(
            f"sample {number} is of type {type(sample).__name__}: expected a dict, a named tuple or a tuple"
        )
    if names is None:
        raise OptionError(
            f"sample {number} is a plain tuple of {len(sample)} values: name them, for example fields=('image', 'label')"
        )
    if len(names) != len(sample):
        raise OptionError(
            f"sample {number} has {len(sample)} values, but fields names {len(names)}: {', '.join(names)}"
        )
    return dict(zip(names, sample, strict=True))


def guess_kind(value: Any) -> Kind:
    """Return the kind of field that a value belongs to.

    >>> guess_kind("a cat"), guess_kind(3), guess_kind([1, None])
    ('text', 'int', 'json')
    """
    if _is_pil(value) or _is_pixels(value):
        return "image"
    if isinstance(value, np.ndarray) or _is_tensor(value):
        return "array"
    if isinstance(value, bool | np.bool_):
        return "json"
    if isinstance(value, int | np.integer):
        return "int"
    if isinstance(value, float | np.floating):
        return "float"
    if isinstance(value, str):
        return "text"
    return "bytes" if isinstance(value, bytes | bytearray | memoryview) else "json"


def _is_pil(value: Any) -> bool:
    return hasattr(value, "getbands") and hasattr(value, "mode")


def _is_tensor(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "numpy")


def _is_pixels(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        plain = value.ndim == 2 or (value.ndim == 3 and value.shape[2] in (1, 3))
        return plain and value.dtype in (np.uint8, np.uint16)
    if _is_tensor(value):
        return value.ndim == 3 and value.shape[0] in (1, 3) and str(value.dtype) in ("torch.uint8", "torch.uint16")
    return False


def _choose_codecs(fields: Sequence[Field], samples: Sequence[Any], codec: str | Mapping[str, str]) -> list[Field]:
    payload_names = [f.name for f in fields if f.is_payload]
    asked = dict.fromkeys(payload_names, codec) if isinstance(codec, str) else dict(codec)
    for name, value in asked.items():
        if name not in payload_names:
            raise OptionError(
                f"codec for {name!r}: expected one of the fields with a codec: {', '.join(payload_names)}"
            )
        check_codec(value)
    chosen = []
    for f in fields:
        wanted = asked.get(f.name, "auto")
        if f.is_payload and wanted == "auto":
            trial = replace(f, codec="lz4")
            column = [_values(s, tuple(x.name for x in fields), i).get(f.name) for i, s in enumerate(samples)]
            wanted = "lz4" if saves_enough(_encode_payloads(trial, column, 0)[0]) else "raw"
        chosen.append(replace(f, codec=cast(Codec, wanted)) if f.is_payload else f)
    return chosen


def _encode(fields: Sequence[Field], samples: Sequence[Any], first: int) -> Chunk:
    """Return encoded samples; `first` is the number of the first one."""
    names = tuple(f.name for f in fields)
    columns: dict[str, list[Any]] = {name: [] for name in names}
    for i, sample in enumerate(samples):
        values = _values(sample, names, first + i)
        if values.keys() != columns.keys():
            raise OptionError(
                f"sample {first + i} has the fields {', '.join(values)}; the first one had {', '.join(names)}"
            )
        for name, value in values.items():
            columns[name].append(value)
    payloads: dict[str, Payloads] = {}
    plain: dict[str, Any] = {}
    for f in fields:
        if f.is_payload:
            payloads[f.name], extra = _encode_payloads(f, columns[f.name], first)
            plain.update(extra)
        else:
            plain[f.name] = [_scalar(f, value, first + i) for i, value in enumerate(columns[f.name])]
            if f.kind != "text":
                plain[f.name] = np.array(plain[f.name], np.int64 if f.kind == "int" else np.float64)
    return Chunk(len(samples), payloads, plain)


def _scalar(f: Field, value: Any, number: int) -> int | float | str:
    if f.kind == "text" and isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise OptionError(f"sample {number}, field {f.name!r}: text that is not valid Unicode ({error})") from error
        return value
    is_int = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if f.kind == "int" and is_int and int(value) in _INT64:
        return int(value)
    if f.kind == "float" and (is_int or isinstance(value, float | np.floating)):
        return float(value)
    raise OptionError(
        f"sample {number}, field {f.name!r}: {value!r:.80} where the first sample had {f.kind}"
        + (" of 64 bits" * is_int)
    )


def _encode_payloads(f: Field, values: Sequence[Any], first: int) -> tuple[Payloads, dict[str, Any]]:
    """Return one field's payloads and the columns that describe them."""
    codec: Codec = f.codec or "raw"
    if f.kind == "image":
        images = [_pixels(f, value, first + i) for i, value in enumerate(values)]
        return join([encode_image(image, codec, f.tile_size or TILE_SIZE) for image in images]), image_geometry(
            f.name, images
        )
    if f.kind == "array":
        arrays = [_array(f, value, first + i) for i, value in enumerate(values)]
        types = [array_type(a.dtype.name, a.shape) for a in arrays]
        return _encode_flat([a.tobytes() for a in arrays], codec), {f"{f.name}.type": types}
    texts = [_bytes(f, value, first + i) for i, value in enumerate(values)]
    return _encode_flat(texts, codec), {}


def image_geometry(name: str, images: Sequence[npt.NDArray[Any]]) -> dict[str, Any]:
    """Return the geometry columns of an image field for images (H, W, C)."""
    shapes = np.array([i.shape for i in images], np.int64).reshape(-1, 3)
    bits = np.array([8 * i.itemsize for i in images], np.int64)
    return {
        f"{name}.height": shapes[:, 0],
        f"{name}.width": shapes[:, 1],
        f"{name}.channels": shapes[:, 2],
        f"{name}.bits": bits,
    }


def _encode_flat(values: Sequence[bytes], codec: Codec) -> Payloads:
    return encode_many(np.frombuffer(b"".join(values), np.uint8), np.array([len(v) for v in values], np.int64), codec)


def _pixels(f: Field, value: Any, number: int) -> npt.NDArray[Any]:
    """Return an image value as (H, W, C)."""
    where = f"sample {number}, field {f.name!r}"
    if _is_pil(value):
        if value.mode not in ("L", "RGB", "I;16"):
            raise OptionError(f"{where}: a PIL image of mode {value.mode}; expected L, RGB or I;16. Convert it first.")
        value = np.asarray(value)
    elif _is_tensor(value) and _is_pixels(value):
        value = np.moveaxis(value.detach().cpu().numpy(), 0, 2)
    if not _is_pixels(value) or min(value.shape[:2]) < 1:
        found = f"{tuple(value.shape)} {value.dtype}" if hasattr(value, "shape") else type(value).__name__
        raise OptionError(
            f"{where}: {found}; expected uint8 or uint16 pixels (H, W), (H, W, 1 or 3), or a tensor (1 or 3, H, W)"
        )
    image = value[:, :, None] if value.ndim == 2 else value
    return np.ascontiguousarray(image)


def _array(f: Field, value: Any, number: int) -> npt.NDArray[Any]:
    array = value.detach().cpu().numpy() if _is_tensor(value) else np.asarray(value)
    if array.dtype.name not in ARRAY_DTYPES or array.nbytes > MAX_PAYLOAD_NBYTES:
        raise OptionError(
            f"sample {number}, field {f.name!r}: an array of {array.dtype} and {array.nbytes} bytes; "
            f"expected one of {', '.join(sorted(ARRAY_DTYPES))} and less than 2 GiB"
        )
    return np.asarray(array, array.dtype.newbyteorder("<"), order="C")


def _bytes(f: Field, value: Any, number: int) -> bytes:
    if f.kind == "bytes":
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        raise OptionError(f"sample {number}, field {f.name!r}: {type(value).__name__} where the first sample had bytes")
    try:
        return json.dumps(value.item() if isinstance(value, np.bool_) else value, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise OptionError(f"sample {number}, field {f.name!r}: {value!r:.80} cannot be stored ({error})") from error


def refuse_inside(out: Path, source: Path) -> None:
    """Raise DestinationError where one of two folders lies in the other."""
    a, b = Path(os.path.realpath(out)), Path(os.path.realpath(source))
    if a == b or b in a.parents or a in b.parents:
        raise DestinationError(
            f"{out}: lies inside {source} or the other way round. Choose a destination outside of the source."
        )
