"""The values of samples, from Python or from files: the kind of field of each, and how each kind is encoded."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from lmdbloader.base.arguments import shown
from lmdbloader.base.option_names import option
from lmdbloader.conversion.image_file import ImageFile
from lmdbloader.conversion.sources.listing import Source
from lmdbloader.conversion.storage import PIXELS, Storage, encode_as_jpeg, fit_within, nearest, shrink
from lmdbloader.errors import ImageError, OptionError
from lmdbloader.fields import is_pil, is_pixels, is_tensor, kind_named
from lmdbloader.format.codecs import (
    Payloads,
    codec_for,
    encode_image,
    encode_many,
    holds_pixels,
    is_tiled,
    join,
    planes,
    refuse_floats,
    saves_enough,
)
from lmdbloader.format.labels import LabelWatch
from lmdbloader.format.layout import (
    ARRAY_DTYPES,
    MAX_CHANNELS,
    MAX_PAYLOAD_NBYTES,
    PIXEL_DTYPES,
    TILE_SIZE,
    TILED_ABOVE_NBYTES,
    Field,
    array_type,
    bits_of,
)
from lmdbloader.images.decode import decode_labels
from lmdbloader.kernels import entries

_INT64 = range(-(2**63), 2**63)
_GEOMETRY = ("height", "width", "channels", "bits")
# Modes of PIL images with one whole number for each pixel; P has a palette, and its indices are the labels.
_MASK_MODES = ("P", "L", "1", "I", "I;16")
# Arrays that are alike share one memory if there is room for this many at least, and it has room for this many at most.
_LEAST_ALIKE, _MOST_ALIKE = 4, 4096
_STAGED_NBYTES = 2**18
# A longer axis is not taken for the axis of channels.
_MOST_LIKELY_CHANNELS = 16
# The codec that stands for the smallest of raw, lz4 and delta; like auto, it is settled by the first values.
SMALLEST = "smallest"
_OPEN = ("auto", SMALLEST)
# As long as a path on Linux can be.
_MOST_SOURCE_NBYTES = 4096


def scalar(f: Field, value: Any, number: int) -> int | float | str:
    """Return the value of an int, float or text field in sample `number` as Python's own type.

    Raises:
        OptionError: The first sample has another kind of value, or the value does not fit.
    """
    if (encode := kind_named(f.kind).encode) is not None:
        return _encoded(encode, f, value, number)  # type: ignore[no-any-return]
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
        exact = int(value) if is_int else value  # NumPy would compare a large whole number as a float
        with contextlib.suppress(OverflowError):
            found = float(exact)
            if found != exact and exact == exact:
                raise OptionError(
                    f"sample {number}, field {f.name!r}: {shown(value)} would be rounded to {found!r}. Declare the "
                    f'field, fields={{"{f.name}": lmdbloader.fields.Int()}}, or write float(value).'
                )
            return found
    raise OptionError(
        f"sample {number}, field {f.name!r}: {shown(value)} where the first sample had {f.kind}"
        + (" of 64 bits" * is_int)
        + (_missing(f.kind) if value is None else "")
    )


def source_name(value: Any, number: int) -> str:
    """Return the name of what sample `number` was made from.

    Raises:
        OptionError: It is not text, or not such as the path of a file could be.
    """
    if not isinstance(value, str):
        line = "Write str(path)." if isinstance(value, os.PathLike) else "Rename the key if it is something else."
        raise OptionError(
            f"sample {number}: its source is {shown(value)}: expected str, the name of what it was made from. {line}"
        )
    try:
        nbytes = len(value.encode())
    except UnicodeEncodeError as error:
        raise OptionError(f"sample {number}: its source is text that is not valid Unicode ({error})") from error
    if not 0 < nbytes <= _MOST_SOURCE_NBYTES or "\0" in value:
        raise OptionError(
            f"sample {number}: its source is {shown(value)}: expected 1 to {_MOST_SOURCE_NBYTES:,} bytes of UTF-8 "
            "without NUL"
        )
    return str(value)


def _missing(kind: str) -> str:
    """Return what to write for a value that is missing."""
    if kind == "float":
        return ". Write float('nan') for a missing number."
    return ". Write float('nan') for a missing number, and declare the field as lmdbloader.fields.Float()." * (
        kind == "int"
    )


class PayloadColumn:
    """The values of one payload field. Each is copied or encoded when it is added, so its owner may reuse it."""

    def __init__(
        self, f: Field, codec: str, storage: Storage = PIXELS, watch: LabelWatch | None = None, room: int = 0
    ) -> None:
        """Start without values.

        Args:
            f: The field.
            codec: A codec's name, "auto" for lz4 if it saves enough of the values, or SMALLEST.
            storage: How images are stored.
            watch: Sees every image, and every array that could be a mask.
            room: Bytes for arrays of one shape and dtype that come one after the other: they are checked once.
        """
        self._room = room if storage == PIXELS and (f.kind == "array" or f.kind == "image") else 0
        self._most_alike = _MOST_ALIKE
        self._watch = watch
        self._field = f if codec in _OPEN else replace(f, codec=codec)
        self._codec = codec
        self._storage = storage
        # Bytes are encoded together, as a call for each small image would cost more than its pixels.
        self._values: list[bytes | Payloads | _Alike | npt.NDArray[Any]] = []
        self._shapes: list[tuple[int, ...]] = []
        self._types: list[str] = []

    def add(self, value: Any, number: int) -> int:
        """Add the value of a sample; return its size in bytes before it is shrunk or compressed.

        Args:
            value: Of the field's kind.
            number: The number of the sample, for messages and for "proportion".

        Raises:
            OptionError: The first sample has another kind of value, or the value does not fit.
        """
        if self._room and type(value) is np.ndarray:
            if self._values and type(last := self._values[-1]) is _Alike:
                if last.take(value):
                    (self._types if self._field.kind == "array" else self._shapes).append(last.like)
                    return value.nbytes
                # Arrays whose shapes change often would each get the room of many.
                self._most_alike = min(_MOST_ALIKE, 2 * len(last))
            if (alike := self._start_alike(value)) is not None:
                return alike
        f = self._field
        if f.has_pixels:
            is_mask, is_file, was_jpeg = f.kind == "mask", isinstance(value, ImageFile), False
            if isinstance(value, ImageFile):
                if (kept := value.kept(self._storage)) is not None:
                    self._watch_file(value)
                    self._values.append(kept[0])
                    self._shapes.append(kept[1])
                    return int(kept[0].stored_nbytes.sum())
                value, was_jpeg = value.decoded(self._storage), value.was_jpeg
            given = mask_labels(f, value, number) if is_mask else _pixels(f, value, number, is_file=is_file)
            refuse_floats(self._codec, bits_of(given.dtype), f"sample {number}, field {f.name!r}")
            if self._storage.mode == "original" and not is_file:
                raise OptionError(f"sample {number}, field {f.name!r}: {_no_file(value)}")
            if self._watch is not None:
                self._watch.add(given)
            size = fit_within(given.shape[0], given.shape[1], self._storage.max_resolution)
            image = nearest(given, *size) if is_mask else shrink(given, *size)
            self._shapes.append((*image.shape, bits_of(image.dtype)))
            self._values.append(self._copied_or_encoded(image, number, was_jpeg))
            return given.nbytes
        if f.kind == "array":
            array = _array(f, value, number)
            if self._watch is not None:
                self._watch.add(array)
            self._types.append(array_type(array.dtype.name, array.shape))
            data = array.tobytes()
        else:
            data = _bytes(f, value, number)
        self._values.append(data)
        return len(data)

    def _start_alike(self, value: npt.NDArray[Any]) -> int | None:
        """Take an array as the first of many alike; return its size, or None if it must be checked as any other."""
        is_watched = self._watch is not None and self._watch.values is not None
        most = min(self._room // max(1, value.nbytes) + 1, self._most_alike)
        if is_watched or most < _LEAST_ALIKE or value.dtype != value.dtype.newbyteorder("<"):
            return None
        like: Any
        if self._field.kind == "array":
            if value.dtype.name not in ARRAY_DTYPES:
                return None
            like = array_type(value.dtype.name, value.shape)
        else:
            if not is_pixels(value) or min(value.shape[:2]) < 1 or value.nbytes > TILED_ABOVE_NBYTES:
                return None
            like = (*value.shape, *(1,) * (3 - value.ndim), 8 * value.itemsize)
        alike = _Alike(value, most, like, is_image=self._field.kind == "image")
        self._values.append(alike)
        (self._types if self._field.kind == "array" else self._shapes).append(like)
        return value.nbytes

    def _watch_file(self, file: ImageFile) -> None:
        # A photograph in color ends the watch, so that few files are decoded for it.
        if self._watch is not None and self._watch.values is not None:
            self._watch.add(file.decoded(PIXELS))

    def _copied_or_encoded(
        self, image: npt.NDArray[Any], number: int, was_jpeg: bool
    ) -> bytes | Payloads | npt.NDArray[Any]:
        """Return an image as a JPEG or, if it is small, as bytes; a large one is copied while the codec is open."""
        is_auto = self._codec in _OPEN
        jpeg = encode_as_jpeg(self._storage, image, str(number), was_jpeg=was_jpeg)
        if jpeg is not None:
            return jpeg
        if not is_tiled(image, "lz4" if is_auto else self._codec):
            return planes(image).tobytes()
        return image.copy() if is_auto else self._in_tiles(image, self._codec)

    def encode(self) -> tuple[Payloads, dict[str, Any], str]:
        """Return the payloads, their columns in the index, and their codec."""
        payloads = self._encode("lz4" if self._codec in _OPEN else self._codec)
        codec = self._codec
        if codec in _OPEN:
            as_pixels = holds_pixels(payloads.codec)
            stored, raw = (int(nbytes[as_pixels].sum()) for nbytes in (payloads.stored_nbytes, payloads.raw_nbytes))
            codec = "lz4" if saves_enough(stored, raw) or not as_pixels.any() else "raw"
            if self._codec == SMALLEST and as_pixels.any():
                packing = codec_for(self._field.kind, "delta")
                packed = self._encode(packing).stored_nbytes[as_pixels]
                sizes = {"raw": raw, "lz4": stored, packing: int(packed.sum())}
                codec = min(sizes, key=sizes.__getitem__)
            payloads = payloads if codec == "lz4" else self._encode(codec)
        columns: dict[str, Any] = {}
        if self._field.has_pixels:
            columns = image_geometry(self._field.name, self._shapes)
        elif self._field.kind == "array":
            columns = {f"{self._field.name}.type": self._types}
        return payloads, columns, codec

    def _encode(self, codec: str) -> Payloads:
        parts: list[Payloads] = []
        at = 0
        for kind, group in groupby(self._values, type):
            if kind is bytes:
                values = cast("list[bytes]", list(group))
                lengths = np.array([len(value) for value in values], np.int64)
                shapes = self._shapes[at : at + len(values)] if self._field.has_pixels else None
                parts.append(encode_many(np.frombuffer(b"".join(values), np.uint8), lengths, codec, shapes))
                at += len(values)
            elif kind is _Alike:
                many = cast("list[_Alike]", list(group))
                parts += [alike.encode(codec) for alike in many]
                at += sum(map(len, many))
            else:
                others = cast("list[Payloads | npt.NDArray[Any]]", list(group))
                parts += [v if isinstance(v, Payloads) else self._in_tiles(v, codec) for v in others]
                at += len(others)
        return join(parts) if parts else encode_many(np.empty(0, np.uint8), np.empty(0, np.int64), codec)

    def _in_tiles(self, image: npt.NDArray[Any], codec: str) -> Payloads:
        return encode_image(image, codec, self._field.tile_size or TILE_SIZE)


class _Alike:
    """Arrays of one shape and dtype, copied one after the other into one memory; images (H, W, C) as (C, H, W).

    Attributes:
        like: What the index says of each of them.
    """

    __slots__ = ("_dtype", "_is_image", "_moved", "_num", "_rows", "_shape", "_staged", "like")

    def __init__(self, first: npt.NDArray[Any], most: int, like: Any, *, is_image: bool) -> None:
        """Take the first array, and make room for `most` of them."""
        self._rows = np.empty((most, *first.shape), first.dtype)
        self._num, self._shape, self._dtype = 0, first.shape, first.dtype
        self._staged: npt.NDArray[Any] | None = None
        if is_image and first.ndim == 3 and first.shape[2] > 1:
            # A few images at once, which stay in the processor's cache until a kernel moves their channels apart.
            self._staged = np.empty((max(1, min(most, _STAGED_NBYTES // first.nbytes)), *first.shape), first.dtype)
        self._moved, self._is_image = 0, is_image
        self.like = like
        self.take(first)

    def __len__(self) -> int:
        return self._num

    def take(self, value: npt.NDArray[Any]) -> bool:
        """Copy another array; False if it differs in shape or dtype, or there is no room."""
        if value.shape != self._shape or value.dtype != self._dtype or self._num == len(self._rows):
            return False
        if self._staged is None:
            self._rows[self._num] = value
        else:
            if self._num - self._moved == len(self._staged):
                self._move()
            self._staged[self._num - self._moved] = value
        self._num += 1
        return True

    def _move(self) -> None:
        """Move the channels of the staged images apart."""
        if self._staged is None or not (count := self._num - self._moved):
            return
        height, width, channels = self._shape
        tops = np.arange(count) * height
        rows = self._rows.reshape(len(self._rows), -1)[self._moved : self._num]
        staged = self._staged.reshape(-1, width, channels)
        entries.cut_many(staged, tops, np.zeros(count, np.int64), height, width, rows)
        self._moved = self._num

    def encode(self, codec: str) -> Payloads:
        """Return the arrays as payloads."""
        self._move()
        rows = self._rows[: self._num]
        lengths = np.full(self._num, rows[0].nbytes, np.int64)
        shapes = [self.like] * self._num if self._is_image else None
        return encode_many(rows.reshape(-1).view(np.uint8), lengths, codec, shapes)


def _no_file(value: Any) -> str:
    return (
        f"{option('write_mode', 'original')} keeps files, but this image was made in Python ({type(value).__name__}). "
        "Give the bytes or paths of files, in a field declared as lmdbloader.fields.Image(). Or use jpg or raw, or "
        "convert a folder with lmdbloader.convert."
    )


def image_geometry(name: str, shapes: Sequence[tuple[int, ...]]) -> dict[str, Any]:
    """Return the geometry columns of an image field, given (height, width, channels, bits) of each image."""
    columns = np.array(shapes, np.int64).reshape(-1, 4).T
    return {f"{name}.{part}": column for part, column in zip(_GEOMETRY, columns, strict=True)}


def _pixels(f: Field, value: Any, number: int, *, is_file: bool = False) -> npt.NDArray[Any]:
    """Return an image value as (H, W, C); for a decoded file, the order of the axes is known."""
    where = f"sample {number}, field {f.name!r}"
    if is_pil(value):
        if value.mode not in ("L", "RGB", "I;16", "F"):
            declare = f", or declare a mask: fields={_as_mask(f.name)}" if value.mode in "P1I" else ""
            raise OptionError(
                f"{where}: a PIL image of mode {value.mode}; expected L, RGB, I;16 or F. Convert it first{declare}."
            )
        value = _loaded(value, where)
    given, image = value, value
    if is_tensor(value) and value.ndim == 3:
        with contextlib.suppress(TypeError):  # a type that NumPy does not have
            image = np.moveaxis(value.detach().cpu().numpy(), 0, 2)
    elif isinstance(value, np.ndarray):
        image = _unmasked(value[:, :, None] if value.ndim == 2 else value, where)
    is_image = isinstance(image, np.ndarray) and image.ndim == 3 and min(image.shape) > 0
    if not is_image or image.dtype.newbyteorder("=") not in PIXEL_DTYPES.values() or image.shape[2] > MAX_CHANNELS:
        found = f"{tuple(given.shape)} {given.dtype}" if hasattr(given, "shape") else type(given).__name__
        raise OptionError(
            f"{where}: {found}; expected pixels of uint8, uint16, float16 or float32: an array (H, W) or (H, W, C), or "
            f"a tensor (C, H, W), with 1 to {MAX_CHANNELS} channels. {_advice(image)}".rstrip()
        )
    _check_axes(given, image, where, is_file=is_file)
    return np.ascontiguousarray(image, image.dtype.newbyteorder("="))


def _advice(value: Any) -> str:
    """Return what to write for an array that is not an image, if it is known."""
    if not isinstance(value, np.ndarray) or value.ndim != 3:
        return ""
    if value.shape[2] > MAX_CHANNELS:
        return "Are its axes in another order? For an array (C, H, W), write image.transpose(1, 2, 0)."
    return "Write image.astype('float32')." if value.dtype == np.float64 else ""


def _check_axes(given: Any, image: npt.NDArray[Any], where: str, *, is_file: bool) -> None:
    """Refuse pixels whose axes are probably in another order: the axis of channels should be the shortest.

    Raises:
        OptionError: By its shape, it is an array (C, H, W) or a tensor (H, W, C).
    """
    height, width, channels = image.shape
    is_array = isinstance(given, np.ndarray)
    others = (width, channels) if is_array else (height, channels)
    side = height if is_array else width
    if is_file or channels in (1, 3) or side >= min(others) or side > _MOST_LIKELY_CHANNELS:
        return
    order, other = ("(H, W, C)", "(C, H, W)") if is_array else ("(C, H, W)", "(H, W, C)")
    line, same = "transpose(1, 2, 0)", "torch.from_numpy(image).permute(2, 0, 1)"
    if not is_array:
        line, same = "permute(2, 0, 1)", "image.permute(1, 2, 0).numpy()"
    raise OptionError(
        f"{where}: {tuple(given.shape)}. The axes of {'an array' if is_array else 'a tensor'} are {order}, here "
        f"{height}x{width} pixels with {channels} channels, but the shape looks like {other}. If it is {other}, "
        f"write image.{line}; if it is {order}, write {same}."
    )


def _loaded(image: Any, where: str) -> npt.NDArray[Any]:
    """Return the pixels of a PIL image, a palette's numbers unchanged."""
    try:
        return np.asarray(image)
    except (OSError, SyntaxError, ValueError) as error:  # Pillow reads a file's pixels only now
        raise OptionError(f"{where}: the PIL image does not load ({error})") from error


def mask_labels(f: Field, value: Any, number: int) -> npt.NDArray[Any]:
    """Return a mask as (H, W, 1) of uint8 or uint16: its own dtype, or the smaller one that holds its labels.

    Raises:
        OptionError: It is not (H, W) whole numbers from 0 to 65,535.
    """
    where = f"sample {number}, field {f.name!r}"
    labels = value
    if is_pil(value):
        if value.mode not in _MASK_MODES:
            raise OptionError(
                f"{where}: a PIL image of mode {value.mode}; expected a mask with one number for each pixel, of mode "
                f"{', '.join(_MASK_MODES)}. Turn colors into class numbers first, or declare it as Image()."
            )
        labels = _loaded(value, where)
    elif is_tensor(value):
        labels = value.detach().cpu().numpy()
        labels = labels[0] if labels.ndim == 3 and len(labels) == 1 else labels
    elif isinstance(value, np.ndarray):
        labels = _unmasked(value, where)
        labels = labels[:, :, 0] if labels.ndim == 3 and labels.shape[2] == 1 else labels
    is_plane = isinstance(labels, np.ndarray) and labels.ndim == 2 and min(labels.shape) > 0
    if not is_plane or labels.dtype.kind not in "bui":
        found = f"{tuple(value.shape)} {value.dtype}" if hasattr(value, "shape") else type(value).__name__
        raise OptionError(f"{where}: {found}; expected a mask: whole numbers (H, W), (H, W, 1), or a tensor (1, H, W)")
    if labels.dtype not in (np.uint8, np.uint16):
        least, most = int(labels.min()), int(labels.max())
        if least < 0 or most >= 2**16:
            raise OptionError(
                f"{where}: labels from {least} to {most}; expected 0 to 65535. Give pixels without a label the number "
                f"{f.ignore_index}: mask[mask < 0] = {f.ignore_index}, and write Mask({f.ignore_index})."
            )
        labels = labels.astype(np.uint8 if most < 2**8 else np.uint16)
    if (f.ignore_index or 0) > np.iinfo(labels.dtype).max:
        raise OptionError(
            f"{where}: labels of {labels.dtype} cannot hold ignore_index={f.ignore_index}, which a crop with padding "
            "fills in. Write Mask(255), or give masks as uint16."
        )
    return np.ascontiguousarray(labels[:, :, None])


def _as_mask(name: str) -> str:
    """Return the argument of `write` that declares a field to be a mask."""
    return f'{{"{name}": lmdbloader.fields.Mask()}}'


def _array(f: Field, value: Any, number: int) -> npt.NDArray[Any]:
    where = f"sample {number}, field {f.name!r}"
    if not (is_tensor(value) or isinstance(value, np.ndarray | np.generic)):
        raise OptionError(f"{where}: {type(value).__name__} where the first sample had an array or a tensor")
    try:
        array = value.detach().cpu().numpy() if is_tensor(value) else _unmasked(np.asanyarray(value), where)
    except (TypeError, RuntimeError) as error:
        raise OptionError(f"{where}: a tensor of {value.dtype} that NumPy cannot hold ({error})") from error
    if array.dtype.name not in ARRAY_DTYPES or array.nbytes > MAX_PAYLOAD_NBYTES:
        raise OptionError(
            f"{where}: an array of {array.dtype} and {array.nbytes} bytes; "
            f"expected one of {', '.join(sorted(ARRAY_DTYPES))} and less than 2 GiB"
        )
    return np.asarray(array, array.dtype.newbyteorder("<"), order="C")


def _unmasked(array: npt.NDArray[Any], where: str) -> npt.NDArray[Any]:
    """Return an array of NumPy's own class.

    Raises:
        OptionError: Some of its values are masked, which a dataset cannot store.
    """
    if np.ma.is_masked(array):
        raise OptionError(f"{where}: an array with masked values. Fill them (array.filled(0)), or store the mask too.")
    return np.asarray(array)


def _encoded(encode: Callable[[Any], Any], f: Field, value: Any, number: int) -> Any:
    try:
        return encode(value)
    except (TypeError, ValueError) as error:
        raise OptionError(f"sample {number}, field {f.name!r}: {shown(value)} is not {f.kind} ({error})") from error


def _bytes(f: Field, value: Any, number: int) -> bytes:
    if (encode := kind_named(f.kind).encode) is not None:
        return bytes(_encoded(encode, f, value, number))
    if f.kind == "bytes":
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        raise OptionError(f"sample {number}, field {f.name!r}: {type(value).__name__} where the first sample had bytes")
    try:
        return to_json(value.item() if isinstance(value, np.bool_) else value)
    except (TypeError, ValueError, RecursionError) as error:
        raise OptionError(f"sample {number}, field {f.name!r}: {shown(value)} cannot be stored ({error})") from error


def to_json(value: Any) -> bytes:
    """Return a value as JSON that every reader accepts.

    >>> to_json({"a": [1, "é"]})
    b'{"a": [1, "\\\\u00e9"]}'

    Raises:
        TypeError: JSON cannot hold it; or a key of a dict is not a str, and would be read back as one.
        ValueError: JSON cannot hold it; or it has half of a surrogate pair, or an integer of more than 4,300 digits.
        RecursionError: It is nested too deeply.
    """
    text = json.dumps(value, allow_nan=False)
    _check_keys(value)
    if "\\ud" in text:
        # UTF-8 has no half of a surrogate pair, and two halves next to each other would come back as a pair.
        json.dumps(value, ensure_ascii=False).encode()
    return text.encode()


def _check_keys(value: Any) -> None:
    """Raise TypeError if a key of a dict, at any depth, is not a str; JSON can hold the rest of the value."""
    left: list[Any] = [value]
    while left:
        container = left.pop()
        if isinstance(container, dict):
            for key, inner in container.items():
                if not isinstance(key, str):
                    raise TypeError(f"the key {key!r} is of type {type(key).__name__}, and in JSON every key is a str")
                left.append(inner)
        elif isinstance(container, list | tuple):
            left += container


_INTEGER = re.compile(rb"[+-]?\d{1,19}")


def parse_attached(source: Source, files: Sequence[bytes]) -> dict[str, Any]:
    """Return the values of a source's fields other than images, from the content of its attached files.

    Raises:
        ImageError: A file that other sources have is missing, or its content does not fit the field.
    """
    values: dict[str, Any] = {} if source.label is None else {"label": source.label}
    rest = iter(files)
    for name, file in source.attached[source.num_images - 1 :]:
        if file is None:
            raise ImageError(source.name, f"has no {name}, which other samples have")
        data = next(rest)
        try:
            values[name] = _PARSERS[name](data)
        except (ValueError, RecursionError) as error:
            raise ImageError(source.name, f"its {name}: {error}") from error
    return values


def add_values(f: Field, value: Any, num_samples: int, payloads: dict[str, Payloads], columns: dict[str, Any]) -> None:
    """Add one value, which all samples of a source share, to their payloads or columns."""
    if f.is_payload:
        column = PayloadColumn(f, f.codec or "raw")
        for _ in range(num_samples):
            column.add(value, 0)
        payloads[f.name], more, _ = column.encode()
        columns.update(more)
    else:
        columns[f.name] = np.full(num_samples, value, np.int64) if f.kind == "int" else [value] * num_samples


def _integer(data: bytes) -> int:
    text = data.strip()
    if _INTEGER.fullmatch(text) is None or not -(2**63) <= int(text) < 2**63:
        raise ValueError(f"{data[:40]!r} is not a whole number of 64 bits")
    return int(text)


def _json(data: bytes) -> Any:
    value = json.loads(data, parse_constant=_refuse_constant)
    to_json(value)  # 1e999 is read as infinity, which JSON cannot hold
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8 ({error})") from error


def _labels(data: bytes) -> Any:
    try:
        return decode_labels(data)
    except ImageError as error:
        raise ValueError(error.reason) from error


_PARSERS: dict[str, Callable[[bytes], Any]] = {"label": _integer, "json": _json, "text": _text, "mask": _labels}
