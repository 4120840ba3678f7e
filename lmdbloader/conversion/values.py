"""The values of samples made in Python: which kind of field they belong to, and how each kind is encoded."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lmdbloader.codecs import Payloads, encode_many, join
from lmdbloader.conversion.storage import PIXELS, Storage, encode_one, fit_within, shrink
from lmdbloader.errors import OptionError
from lmdbloader.format import ARRAY_DTYPES, MAX_PAYLOAD_NBYTES, Codec, Field, Kind, array_type

_INT64 = range(-(2**63), 2**63)


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


def scalar(f: Field, value: Any, number: int) -> int | float | str:
    """Return a value of an int, float or text field as Python's own type.

    Args:
        number: Of the sample, for messages.

    Raises:
        OptionError: It is of another kind than the first sample's, or does not fit.
    """
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
        f"sample {number}, field {f.name!r}: {reprlib.repr(value)} where the first sample had {f.kind}"
        + (" of 64 bits" * is_int)
    )


def encode_payloads(
    f: Field, values: Sequence[Any], first: int, storage: Storage = PIXELS
) -> tuple[Payloads, dict[str, Any]]:
    """Return one field's payloads and the columns that describe them.

    Args:
        f: The field.
        values: Of consecutive samples.
        first: The number of the first one.
        storage: What becomes of images.
    """
    codec: Codec = f.codec or "raw"
    if f.kind == "image":
        images = [_pixels(f, value, first + i) for i, value in enumerate(values)]
        images = [shrink(i, *fit_within(i.shape[0], i.shape[1], storage.max_resolution)) for i in images]
        payloads = [encode_one(storage, f, image, str(first + i)) for i, image in enumerate(images)]
        return join(payloads), image_geometry(f.name, images)
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
        try:
            value = np.asarray(value)
        except (OSError, SyntaxError, ValueError) as error:  # Pillow reads a file's pixels only now
            raise OptionError(f"{where}: the PIL image does not load ({error})") from error
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
    where = f"sample {number}, field {f.name!r}"
    if not (_is_tensor(value) or isinstance(value, np.ndarray | np.generic)):
        raise OptionError(f"{where}: {type(value).__name__} where the first sample had an array or a tensor")
    try:
        array = value.detach().cpu().numpy() if _is_tensor(value) else np.asarray(value)
    except (TypeError, RuntimeError) as error:
        raise OptionError(f"{where}: a tensor of {value.dtype} that NumPy cannot hold ({error})") from error
    if array.dtype.name not in ARRAY_DTYPES or array.nbytes > MAX_PAYLOAD_NBYTES:
        raise OptionError(
            f"{where}: an array of {array.dtype} and {array.nbytes} bytes; "
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
    except (TypeError, ValueError, RecursionError) as error:
        raise OptionError(
            f"sample {number}, field {f.name!r}: {reprlib.repr(value)} cannot be stored ({error})"
        ) from error
