"""The types of fields, for `lmdbloader.write(fields=...)`, and a table of how each of them is stored and read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

__all__ = ["Array", "Bytes", "FieldType", "Float", "Image", "Int", "Json", "Text"]

Kind = Literal["image", "array", "int", "float", "text", "bytes", "json"]
# The kinds of the first releases, which every reader knows; a manifest names all others in "requires".
_FIRST_KINDS = frozenset({"image", "array", "int", "float", "text", "bytes", "json"})


@dataclass(frozen=True, slots=True)
class FieldType:
    """The type of a field; give one of the subclasses to `lmdbloader.write(fields=...)` instead of letting it guess."""

    @property
    def kind(self) -> Kind:
        """Its name in the manifest."""
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

    JSON has no tuples: they are read back as lists. Keys of dicts must be str: JSON would turn other keys into str.
    Text must be valid Unicode, without half of a surrogate pair, and integers have less than 4,300 digits: other
    readers of JSON refuse more.
    """


@dataclass(frozen=True, slots=True)
class FieldKind:
    """A row of the table of kinds: how the values of one field type are stored and read.

    A kind is either a payload, bytes in data.mdb, or a column of the index.

    Attributes:
        type: The class of its fields.
        is_value: Whether a value belongs to it, for fields whose type was not given; asked in the table's order. None:
            for JSON, to which every other value belongs.
        column: Arrow type of its column of index and records: "int64", "float64", or "text" for str; "": a payload.
        columns: Of a payload: the names and Arrow types of further columns; "names" is for texts that repeat.
        encode: Returns a value as bytes, or as a value of its column; raises TypeError or ValueError. None for kinds
            that `lmdbloader.conversion.values` encodes.
        decode: Returns the value of such bytes, or of a value of its column; raises ValueError. None: they are the
            value. Images and arrays are decoded elsewhere.
        in_batch: Type of a value in the list that a batch has; "" if it has a tensor.
        name: Its name in the manifest.
        is_payload: Whether its values are bytes in data.mdb.
    """

    type: type[FieldType]
    is_value: Callable[[Any], bool] | None
    column: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)
    encode: Callable[[Any], Any] | None = None
    decode: Callable[[Any], Any] | None = None
    in_batch: str = ""
    name: str = field(init=False)
    is_payload: bool = field(init=False)

    def __post_init__(self) -> None:
        """Set the name and `is_payload`, which every sample needs."""
        object.__setattr__(self, "name", self.type().kind)
        object.__setattr__(self, "is_payload", not self.column)


def kind_names() -> tuple[str, ...]:
    """Return the names of all kinds, in the order in which a value is asked for its kind."""
    return tuple(TABLE)


def kind_named(name: str) -> FieldKind:
    """Return a kind.

    Raises:
        KeyError: There is none of this name.
    """
    return TABLE[name]


def required_features(kinds: Iterable[str]) -> tuple[str, ...]:
    """Return what a reader of fields of these kinds needs beyond the first releases, sorted: the newer kinds.

    >>> required_features(["image", "int"])
    ()
    """
    return tuple(sorted(set(kinds) - _FIRST_KINDS))


def kind_of(value: Any) -> Kind:
    """Return the name of the kind that a value belongs to.

    >>> kind_of("a cat"), kind_of(3), kind_of([1, None])
    ('text', 'int', 'json')
    """
    return next((kind.type().kind for kind in TABLE.values() if kind.is_value and kind.is_value(value)), "json")


def is_pil(value: Any) -> bool:
    """Return whether a value is an image of Pillow."""
    return hasattr(value, "getbands") and hasattr(value, "mode")


def is_tensor(value: Any) -> bool:
    """Return whether a value is a tensor of PyTorch."""
    return type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "numpy")


def is_pixels(value: Any) -> bool:
    """Return whether a value is an array (H, W) or (H, W, 1 or 3), or a tensor (1 or 3, H, W), of uint8 or uint16."""
    if isinstance(value, np.ndarray):
        is_image = value.ndim == 2 or (value.ndim == 3 and value.shape[2] in (1, 3))
        return is_image and value.dtype in (np.uint8, np.uint16)
    if is_tensor(value):
        return value.ndim == 3 and value.shape[0] in (1, 3) and str(value.dtype) in ("torch.uint8", "torch.uint16")
    return False


def _is_int(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


#: Every kind of field by name. A new one gets its class above, and its row here.
TABLE: Mapping[str, FieldKind] = {
    kind.name: kind
    for kind in (
        FieldKind(
            Image,
            lambda value: is_pil(value) or is_pixels(value),
            columns={"height": "uint32", "width": "uint32", "channels": "uint8", "bits": "uint8"},
        ),
        FieldKind(Array, lambda value: isinstance(value, np.ndarray) or is_tensor(value), columns={"type": "names"}),
        FieldKind(Int, _is_int, "int64"),
        FieldKind(Float, lambda value: isinstance(value, float | np.floating), "float64"),
        FieldKind(Text, lambda value: isinstance(value, str), "text", in_batch="str"),
        FieldKind(Bytes, lambda value: isinstance(value, bytes | bytearray | memoryview), in_batch="bytes"),
        FieldKind(Json, None, decode=lambda data: json.loads(data), in_batch="what JSON holds"),
    )
}
