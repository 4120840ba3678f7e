"""The types of fields, for `lmdbloader.write(fields=...)`, and a table of how each of them is stored and read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from lmdbloader.errors import OptionError

__all__ = ["Array", "Boxes", "Bytes", "FieldType", "Float", "Image", "Int", "Json", "Labels", "Mask", "Points", "Text"]

# The label of pixels that have none, unless another is given.
IGNORED = 255
Kind = Literal["image", "mask", "boxes", "points", "labels", "array", "int", "float", "text", "bytes", "json"]


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
    """Pixels of uint8, uint16, float16 or float32, with 1 to 64 channels; read back as a (C, H, W) tensor.

    Arrays are (H, W) or (H, W, C), tensors are (C, H, W). Without a declaration, only uint8 and uint16 with 1 or 3
    channels are images, and other arrays and tensors are an `Array`. All images of a field have one dtype and one
    number of channels, except that gray can be mixed with RGB, and uint8 with uint16.
    """


@dataclass(frozen=True, slots=True)
class Mask(FieldType):
    """A label for each pixel of an image, (H, W); read back as a tensor (H, W) of uint8 or uint16.

    Transforms move masks with the images of their sample and never mix labels: a resize takes the nearest label.
    Changes of colors, erasing, ToDtype and Normalize do not change masks.

    Attributes:
        ignore_index: The label of pixels that have none, such as those that a crop with padding adds, from 0 to 65,535.
            Give the same number to the loss: torch.nn.CrossEntropyLoss(ignore_index=255).

    Raises:
        OptionError: ignore_index cannot be stored as a label.
    """

    ignore_index: int = IGNORED

    def __post_init__(self) -> None:
        """Check the number."""
        number = self.ignore_index
        if isinstance(number, bool) or not isinstance(number, int | np.integer) or not 0 <= number < 2**16:
            raise OptionError(
                f"Mask(ignore_index={number!r:.80}): expected a number from 0 to 65535, as labels are not negative. "
                "Write Mask(ignore_index=255), and give the loss the same: CrossEntropyLoss(ignore_index=255)."
            )
        object.__setattr__(self, "ignore_index", int(number))


@dataclass(frozen=True, slots=True)
class Boxes(FieldType):
    """Boxes around objects, (n, 4) float32: left, top, right, bottom (XYXY) in pixels of an image of the sample.

    n may differ, and may be 0. They are read back as a tensor; a batch has a list of tensors. Crops, flips, resizes
    and warps move boxes with their image and clip them, as in torchvision v2. A box outside a crop has no area but
    keeps its row: `lmdbloader.transforms.SanitizeBoxes` removes it.

    Attributes:
        image: The field of that image; needed only if a sample has several images.
    """

    image: str | None = None


@dataclass(frozen=True, slots=True)
class Points(FieldType):
    """Points in an image of the sample, (n, 2) or (n, k, 2) float32: x and y, counted in pixels from 0 on.

    n may differ, and may be 0. They are read back as a tensor; a batch has a list of tensors. Crops, flips, resizes
    and warps move points with their image, as torchvision v2 moves KeyPoints. A point outside a crop is not clipped.

    Attributes:
        image: The field of that image; needed only if a sample has several images.
    """

    image: str | None = None


@dataclass(frozen=True, slots=True)
class Labels(FieldType):
    """A whole number for each box or point of a sample, (n,) int64.

    n may differ, and may be 0. They are read back as a tensor; a batch has a list of tensors.
    """


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
        is_ragged: Whether its values are arrays of any length, which a batch has as a list of tensors.
        name: Its name in the manifest.
        is_payload: Whether its values are bytes in data.mdb.
        has_pixels: Whether its values are images or masks: planes of pixels, which transforms move.
    """

    type: type[FieldType]
    is_value: Callable[[Any], bool] | None
    column: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)
    encode: Callable[[Any], Any] | None = None
    decode: Callable[[Any], Any] | None = None
    is_ragged: bool = False
    name: str = field(init=False)
    is_payload: bool = field(init=False)
    has_pixels: bool = field(init=False)

    def __post_init__(self) -> None:
        """Set the attributes that every sample needs."""
        object.__setattr__(self, "name", self.type().kind)
        object.__setattr__(self, "is_payload", not self.column)
        object.__setattr__(self, "has_pixels", "height" in self.columns)


def kind_names() -> tuple[str, ...]:
    """Return the names of all kinds, in the order in which a value is asked for its kind."""
    return tuple(TABLE)


def kind_named(name: str) -> FieldKind:
    """Return a kind.

    Raises:
        KeyError: There is none of this name.
    """
    return TABLE[name]


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
    """Return whether a value is a tensor of PyTorch, or one of torchvision's tensors."""
    return type(value).__module__.partition(".")[0] in ("torch", "torchvision") and hasattr(value, "numpy")


def is_whole_number(value: Any) -> bool:
    """Return whether a value is a whole number, also as an array or tensor without dimensions.

    >>> is_whole_number(3), is_whole_number(np.array(3)), is_whole_number(np.array([3])), is_whole_number(True)
    (True, True, False, False)
    """
    if isinstance(value, int | np.integer):
        return not isinstance(value, bool)
    return (isinstance(value, np.ndarray) or is_tensor(value)) and value.ndim == 0 and _kind_of_numbers(value) == "int"


def _kind_of_numbers(value: Any) -> str:
    """Return "int", "bool", "float" or the like, of an array or tensor."""
    name = value.dtype.name if isinstance(value, np.ndarray) else str(value.dtype).removeprefix("torch.")
    return str(name).rstrip("0123456789").removeprefix("u")


# Words in the names of fields that hold labels, and in those of fields that hold photographs.
_MASK_WORDS = frozenset(
    {"anno", "annotation", "annotations", "gt", "groundtruth", "instance", "instances", "label", "labelmap", "labels"}
    | {"mask", "masks", "panoptic", "seg", "segm", "segmap", "segmask", "segmentation", "segmentations", "semantic"}
    | {"trimap", "truth"}
)
_IMAGE_WORDS = frozenset(
    {"gray", "grey", "hq", "hr", "image", "images", "img", "imgs", "input", "lq", "lr", "photo", "photos", "picture"}
    | {"pictures", "x"}
)
_BOX_WORDS = frozenset({"bbox", "bboxes", "box", "boxes", "xyxy", "xywh"})
_POINT_WORDS = frozenset(
    {"joints", "keypoint", "keypoints", "kpt", "kpts", "landmark", "landmarks", "points", "polygon", "polygons"}
)
_A_WORD = re.compile("[A-Z]?[a-z]+|[A-Z]+")


def _words(name: str) -> set[str]:
    """Return the words of a name in lower case."""
    return {word.lower() for word in _A_WORD.findall(name)}


def likeness(name: str) -> Literal["mask", "image", ""]:
    """Return what a field is named like: a mask, an image, or neither.

    >>> likeness("seg_map"), likeness("trainMask"), likeness("image"), likeness("target")
    ('mask', 'mask', 'image', '')
    """
    words = _words(name)
    return "mask" if words & _MASK_WORDS else "image" if words & _IMAGE_WORDS else ""


def named_places(name: str) -> Literal["Boxes", "Points", ""]:
    """Return what places in an image a field's values are by its name: boxes, points, or neither.

    >>> named_places("gt_bboxes"), named_places("keypoints"), named_places("label"), named_places("inbox")
    ('Boxes', 'Points', '', '')
    """
    words = _words(name)
    return "Boxes" if words & _BOX_WORDS else "Points" if words & _POINT_WORDS else ""


def likeness_of_places(name: str, value: Any) -> Literal["Boxes", "Points", ""]:
    """Return what places in an image a value probably holds, by its field's name and its shape; empty ones count.

    >>> likeness_of_places("gt_bboxes", [[4, 3, 28, 30]]), likeness_of_places("keypoints", np.zeros((17, 3)))
    ('Boxes', 'Points')
    >>> likeness_of_places("boxes", {"a": 1}), likeness_of_places("notes", [[4, 3, 28, 30]])
    ('', '')
    """
    kind = named_places(name)
    if not kind or not (isinstance(value, list | tuple | np.ndarray) or is_tensor(value)):
        return ""
    try:
        numbers = np.asarray(value)
    except ValueError:  # lists of several lengths
        return ""
    if not numbers.size:
        return kind
    lengths = (4,) if kind == "Boxes" else (2, 3)
    is_placed = numbers.dtype.kind in "iuf" and numbers.ndim in (1, 2, 3) and numbers.shape[-1] in lengths
    return kind if is_placed else ""


def is_pixels(value: Any) -> bool:
    """Return whether a value is an array (H, W) or (H, W, 1 or 3), or a tensor (1 or 3, H, W), of uint8 or uint16."""
    if isinstance(value, np.ndarray):
        is_image = value.ndim == 2 or (value.ndim == 3 and value.shape[2] in (1, 3))
        return is_image and value.dtype.newbyteorder("=") in (np.uint8, np.uint16)
    if is_tensor(value):
        return value.ndim == 3 and value.shape[0] in (1, 3) and str(value.dtype) in ("torch.uint8", "torch.uint16")
    return False


def _numbers(value: Any, dtype: str, what: str) -> npt.NDArray[Any]:
    """Return numbers given as an array, a tensor or lists.

    Raises:
        ValueError: They are not numbers, or do not fit the dtype.
    """
    found = np.asarray(value.detach().cpu().numpy() if is_tensor(value) else value)
    if found.dtype.kind not in ("iu" if dtype == "<i8" else "iuf") and found.size:
        raise ValueError(f"{what} of {found.dtype}")
    if found.dtype == np.uint64 and found.size and int(found.max()) >= 2**63:
        raise ValueError(f"{what} beyond 64 bits")
    numbers = found.astype(dtype)
    if not np.isfinite(numbers).all():
        raise ValueError(f"{what} that are not finite")
    with np.errstate(invalid="ignore"):  # the largest int64 as float32 is one more
        # Of floats, those that may be meant as whole numbers.
        is_whole = found.dtype.kind in "iu" or (found % 1 == 0) & (abs(found) <= 2**53)
        is_rounded = (numbers.astype(found.dtype) != found) & is_whole
    if is_rounded.any():
        raise ValueError(f"{what} with the whole number {found[is_rounded][0]}, which float32 would round")
    return numbers


def as_boxes(value: Any) -> npt.NDArray[np.float32]:
    """Return boxes given as an array, a tensor or lists, (n, 4) float32.

    Raises:
        ValueError: They are not numbers, or not four for each box.
    """
    form = str(value.format).rpartition(".")[2] if _is_a(value, "BoundingBoxes") else "XYXY"
    if form != "XYXY":
        raise ValueError(f'a {form}; convert them first: v2.ConvertBoundingBoxFormat("XYXY")')
    boxes = _numbers(value, "<f4", "boxes")
    boxes = boxes.reshape(0, 4) if boxes.size == 0 and boxes.ndim < 2 else boxes
    if boxes.ndim != 2 or boxes.shape[1] != 4:
        raise ValueError(f"{boxes.shape}; expected (n, 4)")
    return boxes


def why_shares(boxes: npt.NDArray[Any], sides: str) -> str:
    """Return why boxes (n, 4) are probably shares of their image's sides, not `sides` in pixels; "" if they are not.

    >>> why_shares(np.array([[20, 10, 80, 50]]), ""), why_shares(np.array([[0.2, 0, 0.5, 1]]), "")[:49]
    ('', 'its boxes, such as [0.2, 0.0, 0.5, 1.0], are with')
    """
    # Boxes that were drawn by hand reach a little out of their image.
    if not boxes.size or boxes.min() < -0.1 or boxes.max() > 1.1 or not (boxes % 1).any():
        return ""
    return (
        f"its boxes, such as {boxes[0].tolist()}, are within one pixel; expected {sides} in pixels. Multiply "
        "normalized ones by (width, height, width, height)."
    )


def _encode_boxes(value: Any) -> bytes:
    boxes = as_boxes(value)
    if (wrong := (boxes[:, 2:] < boxes[:, :2]).any(1)).any():
        first = boxes[wrong][0].tolist()
        raise ValueError(
            f"{first} has its right before its left, or its bottom before its top. If it is (x, y, width, height), "
            "write (x, y, x + width, y + height)"
        )
    return boxes.tobytes()


def _decode_boxes(data: bytes) -> npt.NDArray[Any]:
    if len(data) % 16:
        raise ValueError(f"{len(data)} bytes, expected a multiple of 16")
    return np.frombuffer(data, "<f4").reshape(-1, 4).copy()


def _encode_points(value: Any) -> bytes:
    points = _numbers(value, "<f4", "points")
    points = points.reshape(0, 2) if points.size == 0 and points.ndim < 2 else points
    if points.ndim not in (2, 3) or points.shape[-1] != 2 or points.shape[1] == 0:
        raise ValueError(f"{points.shape}; expected (n, 2) or (n, k, 2)")
    return (points.shape[1] if points.ndim == 3 else 0).to_bytes(4, "little") + points.tobytes()


def _decode_points(data: bytes) -> npt.NDArray[Any]:
    each = int.from_bytes(data[:4], "little")
    if len(data) < 4 or (len(data) - 4) % (8 * max(each, 1)):
        raise ValueError(f"{len(data)} bytes of points, {each} each")
    return np.frombuffer(data, "<f4", offset=4).reshape((-1, each, 2) if each else (-1, 2)).copy()


def _encode_labels(value: Any) -> bytes:
    labels = _numbers(value, "<i8", "labels")
    if labels.ndim != 1:
        raise ValueError(f"{labels.shape}; expected (n,)")
    return labels.tobytes()


def _decode_labels(data: bytes) -> npt.NDArray[Any]:
    if len(data) % 8:
        raise ValueError(f"{len(data)} bytes, expected a multiple of 8")
    return np.frombuffer(data, "<i8").copy()


def _is_a(value: Any, name: str) -> bool:
    """Return whether a value is torchvision's tensor of this name."""
    return is_tensor(value) and any(c.__name__ == name for c in type(value).__mro__)


_PIXEL_COLUMNS = {"height": "uint32", "width": "uint32", "channels": "uint8", "bits": "uint8"}


def image_size(value: Any) -> tuple[int, int] | None:
    """Return (height, width) of a value of an image field; None if it is not an image.

    >>> image_size(np.zeros((6, 8, 3), np.uint8)), image_size(5)
    ((6, 8), None)
    """
    if is_pil(value):
        return int(value.height), int(value.width)
    shape = tuple(getattr(value, "shape", ()))
    sides = shape[:2] if isinstance(value, np.ndarray) else shape[-2:]
    return (int(sides[0]), int(sides[1])) if len(sides) == 2 else None


def is_plane_of(value: Any, sizes: Container[tuple[int, int] | None]) -> bool:
    """Return whether an array or tensor holds whole numbers (H, W), and (H, W) is one of `sizes`."""
    shape = tuple(value.shape)
    return len(shape) == 2 and _kind_of_numbers(value) in ("int", "bool") and shape in sizes


def _is_int(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


#: Every kind of field by name. A new one gets its class above, and its row here.
TABLE: Mapping[str, FieldKind] = {
    kind.name: kind
    for kind in (
        FieldKind(Mask, partial(_is_a, name="Mask"), columns=_PIXEL_COLUMNS),
        FieldKind(Image, lambda value: is_pil(value) or is_pixels(value), columns=_PIXEL_COLUMNS),
        FieldKind(
            Boxes, partial(_is_a, name="BoundingBoxes"), encode=_encode_boxes, decode=_decode_boxes, is_ragged=True
        ),
        FieldKind(
            Points, partial(_is_a, name="KeyPoints"), encode=_encode_points, decode=_decode_points, is_ragged=True
        ),
        FieldKind(Labels, None, encode=_encode_labels, decode=_decode_labels, is_ragged=True),
        FieldKind(Array, lambda value: isinstance(value, np.ndarray) or is_tensor(value), columns={"type": "names"}),
        FieldKind(Int, _is_int, "int64"),
        FieldKind(Float, lambda value: isinstance(value, float | np.floating), "float64"),
        FieldKind(Text, lambda value: isinstance(value, str), "text"),
        FieldKind(Bytes, lambda value: isinstance(value, bytes | bytearray | memoryview)),
        FieldKind(Json, None, decode=lambda data: json.loads(data)),
    )
}
