"""What a field of a sample holds: give these types to `lmdbloader.write(fields=...)`, or let it guess them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Array", "Bytes", "FieldType", "Float", "Image", "Int", "Json", "Text"]

Kind = Literal["image", "array", "int", "float", "text", "bytes", "json"]
PAYLOAD_KINDS = ("image", "array", "bytes", "json")
KINDS = ("image", "array", "int", "float", "text", "bytes", "json")


@dataclass(frozen=True, slots=True)
class FieldType:
    """What a field holds; give one of the subclasses to `lmdbloader.write(fields=...)` where guessing is not wanted."""

    @property
    def kind(self) -> Kind:
        """The name that the manifest uses."""
        name = type(self).__name__.lower()
        return name  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class Image(FieldType):
    """uint8 or uint16 pixels with 1 or 3 channels; read back as a (C, H, W) tensor."""


@dataclass(frozen=True, slots=True)
class Array(FieldType):
    """An n-dimensional array of numbers; read back as a tensor of the same shape and dtype."""


@dataclass(frozen=True, slots=True)
class Int(FieldType):
    """A 64-bit signed integer; read back as an int."""


@dataclass(frozen=True, slots=True)
class Float(FieldType):
    """A 64-bit float; read back as a float."""


@dataclass(frozen=True, slots=True)
class Text(FieldType):
    """A str."""


@dataclass(frozen=True, slots=True)
class Bytes(FieldType):
    """A bytes object."""


@dataclass(frozen=True, slots=True)
class Json(FieldType):
    """Anything that JSON can hold: None, bool, numbers, str, and lists and dicts of them.

    JSON has no tuples: they are read back as lists. Keys of dicts must be str: JSON would make other keys of others.
    Text must be valid Unicode, without half of a surrogate pair, and integers have less than 4,300 digits: other
    readers of JSON refuse more.
    """
