"""Images that come to `write` encoded: the bytes of an image file, or its path."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from lmdbloader.base.option_names import option
from lmdbloader.conversion.sources.reading import read
from lmdbloader.conversion.storage import Pixels, Storage, decode_to_size, keep_file
from lmdbloader.errors import ImageError, OptionError
from lmdbloader.fields import FieldType, Image, is_pil, likeness
from lmdbloader.format.codecs import Payloads
from lmdbloader.images.decode import IMAGE_SUFFIXES, DecodePolicy, decode_labels, is_jpeg, over_white, read_header


class ImageFile:
    """An image file's bytes, with the attributes by which a PIL image is recognized.

    Attributes:
        height: Rows, after the rotation.
        width: Columns, after the rotation.
        mode: "L" or "RGB"; "" with other channels.
        was_jpeg: Whether the file is a JPEG.
    """

    def __init__(self, data: bytes, policy: DecodePolicy, where: str) -> None:
        """Take the bytes.

        Args:
            data: The whole file.
            policy: How to treat transparency and very large images.
            where: The sample and field, for messages.

        Raises:
            OptionError: They are not an image of a supported kind.
        """
        self._data, self._policy, self._where = data, policy, where
        with _refusing():
            header = read_header(data, where)
        self.height, self.width = header.upright
        self.mode = {1: "L", 3: "RGB"}.get(header.channels, "")
        self.was_jpeg = is_jpeg(data)

    def getbands(self) -> tuple[str, ...]:
        """Return the names of the channels."""
        return tuple(self.mode)

    def kept(self, storage: Storage) -> tuple[Payloads, tuple[int, ...]] | None:
        """Return the file itself as a payload, and (height, width, channels, bits); None if its pixels are stored.

        Raises:
            OptionError: The file is damaged, or the policy refuses it.
        """
        with _refusing():
            return keep_file(storage, self._data, self._policy, self._where)

    def decoded(self, storage: Storage) -> Pixels:
        """Return its pixels (H, W, C), shrunk to the maximal resolution.

        Raises:
            OptionError: The file is damaged, or the policy refuses it.
        """
        with _refusing():
            return decode_to_size(storage, self._data, self._policy, self._where)


@contextmanager
def _refusing() -> Iterator[None]:
    """Raise an ImageError as an OptionError: the file is a part of the caller's sample."""
    try:
        yield
    except ImageError as error:
        raise OptionError(str(error)) from error


def is_encoded(value: Any) -> bool:
    """Return whether a value is the bytes and path of an image file, as Hugging Face's Image(decode=False) gives it.

    >>> is_encoded({"bytes": b"", "path": None}), is_encoded({"bytes": None, "path": "a.png"})
    (True, True)
    >>> is_encoded({"path": "a.png"}), is_encoded({"bytes": None, "path": "a.txt"})
    (False, False)
    """
    if not isinstance(value, Mapping) or value.keys() != {"bytes", "path"}:
        return False
    data, path = value["bytes"], value["path"]
    return isinstance(data, bytes) or (data is None and isinstance(path, str) and _has_image_suffix(path))


def names_image(value: Any) -> bool:
    """Return whether a value is a path (os.PathLike) with the suffix of an image file."""
    return isinstance(value, os.PathLike) and _has_image_suffix(os.fspath(value))


def opened(value: Any, kind: FieldType | None, policy: DecodePolicy, name: str, number: int) -> Any:
    """Return an encoded image as an ImageFile, as the labels of a mask, or as a PIL image if it may be one.

    Other values are returned unchanged.

    A transparent PIL image loses its transparency in the way that the policy says.

    Args:
        value: Bytes and path in a dict, or the path of an image file; in a declared field, bytes or a path as text too.
        kind: What the field was declared as, Image or a mask; None if it was not declared.
        policy: How to treat transparency and very large images.
        name: The field's.
        number: The sample's, for messages.

    Raises:
        OptionError: A file cannot be read, or is not an image, or a mask has no labels.
    """
    where = f"sample {number}, field {name!r}"
    path = value["path"] if is_encoded(value) else value
    if isinstance(path, os.PathLike | str) and os.fspath(path):
        where += f", {os.fsdecode(path)}"
    if is_pil(value):
        return _opaque(value, policy, where) if kind is None or isinstance(kind, Image) else value
    data = _content(value, kind is not None, where)
    if data is None:
        return value
    is_image = isinstance(kind, Image) or (kind is None and (likeness(name) == "image" or is_jpeg(data)))
    image = None if is_image else _in_pillow(data)
    if is_image or (kind is None and (image is None or image.mode not in ("P", "1", "I"))):
        return ImageFile(data, policy, where)
    if image is not None and (kind is None or image.mode == "I"):
        return image  # a palette's indices may be labels; its colors are not
    with _refusing():
        return decode_labels(data, policy, name=where)


def _in_pillow(data: bytes) -> Any:
    from PIL import Image as Pillow

    try:
        return Pillow.open(io.BytesIO(data))
    except OSError:
        return None


def _content(value: Any, is_declared: bool, where: str) -> bytes | None:
    """Return the content of a file that is given as bytes or a path; None for other values."""
    if is_encoded(value):
        return value["bytes"] if value["bytes"] is not None else _read(value["path"], where)
    if isinstance(value, os.PathLike) and (is_declared or names_image(value)):
        return _read(os.fspath(value), where)
    if is_declared and isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    return _read(value, where) if is_declared and isinstance(value, str) else None


def _opaque(image: Any, policy: DecodePolicy, where: str) -> Any:
    if image.mode not in ("RGBA", "LA"):
        return image
    if policy.alpha == "refuse":
        raise OptionError(
            f"{where}: a PIL image of mode {image.mode}; expected L, RGB or I;16. Convert it first, or give "
            f"{option('alpha', 'drop')} or {option('alpha', 'white')}."
        )
    pixels = np.asarray(image)
    colors, alpha = pixels[:, :, :-1], pixels[:, :, -1:]
    return over_white(colors, alpha) if policy.alpha == "white" else colors


def _has_image_suffix(path: str | bytes) -> bool:
    return Path(os.fsdecode(path)).suffix.lower() in IMAGE_SUFFIXES


def _read(path: str | bytes, where: str) -> bytes:
    try:
        return read(os.fsencode(path))
    except OSError as error:
        raise OptionError(f"{where}: it cannot be read ({error.strerror or error})") from error
