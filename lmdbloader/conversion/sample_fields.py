"""The fields of `write`, from the first sample and what was declared: their kinds, storage, codecs and class names."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lmdbloader.base.arguments import ordered_texts, shown
from lmdbloader.base.option_names import option
from lmdbloader.conversion.options import check_value
from lmdbloader.conversion.storage import PIXELS, Storage, WriteMode, choose_storages
from lmdbloader.errors import OptionError
from lmdbloader.fields import (
    IGNORED,
    Boxes,
    FieldType,
    Mask,
    Points,
    image_size,
    is_plane_of,
    kind_of,
    likeness,
    likeness_of_places,
)
from lmdbloader.format.codecs import check_codec, codec_for
from lmdbloader.format.labels import LabelWatch
from lmdbloader.format.layout import MAX_CHANNELS, SOURCE, Field, make_field

# What `write` takes as `fields`.
Given = Mapping[str, FieldType | None] | Sequence[str] | None


def declared_types(given: Given) -> dict[str, FieldType]:
    """Return the fields whose types were given, with them."""
    given = given if isinstance(given, Mapping) else {}
    return {name: kind for name, kind in given.items() if isinstance(kind, FieldType)}


def check_given(given: Any) -> Given:
    """Return `fields` of `write`.

    Raises:
        OptionError: It is neither a list of names nor a dict from names to types.
    """
    if given is None or isinstance(given, Mapping):
        names = [] if given is None else list(given)
        if wrong := [name for name in names if not isinstance(name, str)]:
            raise OptionError(f"fields={shown(given)}: expected names as keys; found {shown(wrong[0])}")
        return given
    if isinstance(given, str | FieldType):
        line = "fields={NAME: fields.Int()}" if isinstance(given, FieldType) else f"fields=[{given!r}]"
        raise OptionError(f"fields={shown(given)}: expected a list of names, or a dict with their types. Write {line}.")
    return ordered_texts("fields", given)


def settle_storages(
    schema: Sequence[Field],
    write_mode: WriteMode | Mapping[str, WriteMode] | None,
    codec: str | Mapping[str, str] | None,
    options: Mapping[str, Any],
) -> tuple[dict[str, Storage], str | Mapping[str, str]]:
    """Return how images and masks are stored, by field, and the codecs; see `choose_storages`.

    Raises:
        OptionError: The options do not suit the fields or each other.
    """
    storages, codecs = choose_storages([f.name for f in schema if f.kind == "image"], write_mode, codec, options)
    most = options["max_resolution"]
    if most is not None and not isinstance(write_mode, Mapping):  # masks stay in step with their images
        shrunk = replace(PIXELS, max_resolution=check_value("max_resolution", most))
        storages |= {f.name: shrunk for f in schema if f.kind == "mask"}
    placed = [f.name for f in schema if f.kind in ("boxes", "points")]
    if most is not None and placed:
        raise OptionError(
            f"{option('max_resolution', most)} with {', '.join(placed)}: only the images would shrink. "
            "Resize both before you write them, or when they are loaded."
        )
    return storages, codecs


def infer_fields(values: Mapping[str, Any], fields: Given) -> list[Field]:
    """Return the fields of the first sample, without codecs.

    Args:
        values: Of the sample.
        fields: As `write` got them.

    Raises:
        OptionError: They do not suit the sample.
    """
    given: dict[str, FieldType | None] = {}
    if isinstance(fields, Mapping):
        given = dict(fields)
    elif fields is not None:
        given = dict.fromkeys(fields)
    if given.get(SOURCE) is not None:
        raise OptionError(
            f"fields[{SOURCE!r}] is {given[SOURCE]!r}: the source of a sample is always text. Leave it out of fields, "
            "or rename the field."
        )
    for name, kind in given.items():
        if kind is not None and not isinstance(kind, FieldType):
            raise OptionError(
                f"fields[{name!r}] is {kind!r}: expected Image(), Mask(), Boxes(), Points(), Labels(), Array(), Int(), "
                "Float(), Text(), Bytes(), Json() or None"
            )
    if not values:
        raise OptionError("sample 0 has no fields: there is nothing to write")
    unknown = set(given) - set(values)
    if unknown:
        raise OptionError(f"fields names {', '.join(sorted(unknown))}, but the first sample has {', '.join(values)}")
    if fields is not None and not isinstance(fields, Mapping) and len(given) < len(values):
        raise OptionError(
            f"fields names {', '.join(given)}, but the first sample has {', '.join(values)}. Name all of them, or "
            "leave the others out of the samples."
        )
    values = {name: value for name, value in values.items() if name != SOURCE}
    if not values:
        raise OptionError("sample 0 has only a source, and no fields: there is nothing to write")
    found = [
        make_field(
            name,
            kind.kind if (kind := given.get(name)) else kind_of(value),
            ignore_index=kind.ignore_index if isinstance(kind, Mask) else None,
        )
        for name, value in values.items()
    ]
    images = [f.name for f in found if f.kind == "image"]
    return [_in_image(f, given.get(f.name), images) if f.kind in ("boxes", "points") else f for f in found]


def _in_image(place: Field, kind: FieldType | None, images: Sequence[str]) -> Field:
    """Return a field of boxes or points with the name of their image, if there are several.

    Raises:
        OptionError: There are several and none is named, or the named one is not an image.
    """
    image = kind.image if isinstance(kind, Boxes | Points) else None
    if (len(images) < 2) if image is None else (image in images):
        return replace(place, image=image if len(images) > 1 else None)
    what = place.kind.capitalize()
    raise OptionError(
        f"field {place.name!r}: {what}({'' if image is None else f'image={image!r}'}); expected the image that the "
        f"{place.kind} are in, one of {', '.join(images) or '(there are none)'}. Write "
        f'fields={{..., "{place.name}": fields.{what}(image={(images or ["image"])[-1]!r})}}.'
    )


def watch_labels(
    fields: Sequence[Field], values: Mapping[str, Any], declared: Mapping[str, FieldType]
) -> dict[str, LabelWatch]:
    """Return a watch for each field of masks, and for each that may hold some: images, and arrays of their size."""
    sizes = {image_size(values[f.name]) for f in fields if f.kind == "image"}
    return {
        f.name: LabelWatch(f.name)
        for f in fields
        if (f.kind == "mask" and f.ignore_index == IGNORED)
        or (f.name not in declared and f.kind == "image")
        or (f.name not in declared and f.kind == "array" and _is_mask_array(f.name, values[f.name], sizes))
    }


def _is_mask_array(name: str, value: Any, sizes: set[Any]) -> bool:
    return likeness(name) == "mask" and is_plane_of(value, sizes)


def settle_places(schema: Sequence[Field], values: Mapping[str, Any], declared: Mapping[str, FieldType]) -> None:
    """Refuse boxes and points next to an image that were not declared, and would stay where they are.

    Raises:
        OptionError: A field of arrays or JSON has the name and the shape of boxes or points.
    """
    kinds = {f.name: f.kind for f in schema}
    others = [name for name, kind in kinds.items() if name not in declared and kind in ("array", "json")]
    found = {name: kind for name in others if (kind := likeness_of_places(name, values[name]))}
    if not found or "image" not in kinds.values():
        return
    name, kind = next(iter(found.items()))
    raise OptionError(
        f"field {name!r} looks like {kind.lower()} by its name and shape, and as {kinds[name]} crops and flips would "
        f"not move it. Declare it in `fields`, as fields.{kind}() in pixels, or as "
        f"fields.{kinds[name].capitalize()}() if nothing should move it."
    )


def warn_of_arrays(schema: Sequence[Field], values: Mapping[str, Any], declared: Mapping[str, FieldType]) -> None:
    """Warn about arrays that are named like images and have the pixels of one, but in another shape or type."""
    for f in schema:
        if f.kind != "array" or f.name in declared or likeness(f.name) != "image":
            continue
        value = values[f.name]
        shape, dtype = tuple(value.shape), str(value.dtype).removeprefix("torch.")
        is_pixels = dtype in ("uint8", "uint16", "float16", "float32")
        if len(shape) == 3 and is_pixels and min(shape[0], shape[2]) <= MAX_CHANNELS:
            warnings.warn(
                f"field {f.name!r}: {dtype} {shape} is stored as an array, which crops and flips do not move. If it is "
                f'an image, declare it: fields={{"{f.name}": lmdbloader.fields.Image()}}, for an array (H, W, C) or a '
                "tensor (C, H, W); else as fields.Array().",
                stacklevel=3,
            )


def settle_masks(watches: Mapping[str, LabelWatch], schema: Sequence[Field]) -> None:
    """Refuse undeclared fields that look like masks; warn about those that may be masks.

    Raises:
        OptionError: A field has few values, and the name of a mask.
    """
    kinds = {f.name: f.kind for f in schema}
    for name, watch in watches.items():
        if kinds[name] == "mask":
            if watch.values is not None and watch.values.tolist() == [0, IGNORED]:
                warnings.warn(
                    f"field {name!r}: masks of 0 and {IGNORED} only, and {IGNORED} is their ignore_index, the label of "
                    f"pixels that have none, which losses leave out. For labels 0 and 1 write mask > 0.",
                    stacklevel=4,
                )
            continue
        if not (watch.looks_like_labels or watch.may_be_labels):
            continue
        kind, why = "Image", "a resize of images mixes labels"
        if kinds[name] == "array":
            kind, why = "Array", "crops and flips do not move arrays"
        looks = "looks like a mask by its name and values" if watch.looks_like_labels else "may be a mask"
        message = (
            f"field {name!r} {looks} ({watch.describe()}), and {why}. Declare it in `fields`, as fields.Mask(), or as "
            f"fields.{kind}() if it is not a mask."
        )
        if watch.looks_like_labels:
            raise OptionError(message)
        warnings.warn(message, stacklevel=4)


def fields_of_labels(fields: Sequence[Field]) -> list[str]:
    """Return the fields whose values can have the names of classes."""
    return [f.name for f in fields if f.kind in ("int", "labels")]


def check_classes(fields: Sequence[Field], classes: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """Return names of classes by field.

    Raises:
        OptionError: They are not text, or of a field that has no labels.
    """
    labels = fields_of_labels(fields)
    if not isinstance(classes, Mapping):
        raise OptionError(
            f"classes={shown(classes)}: expected the names by field, as {{{labels[0] if labels else 'label'!r}: "
            "['cat', 'dog']}"
        )
    given: dict[str, tuple[str, ...]] = {}
    for name, names in classes.items():
        if name not in labels:
            raise OptionError(
                f"classes of {name!r}: expected one of the fields of ints or Labels(): {', '.join(labels) or 'none'}"
            )
        given[name] = ordered_texts(f"classes[{name!r}]", names)
        try:
            "".join(given[name]).encode()
        except UnicodeEncodeError as error:
            raise OptionError(f"classes of {name!r}: a name that is not valid Unicode ({error})") from error
    return given


def codecs_by_field(fields: Sequence[Field], codec: str | Mapping[str, str]) -> dict[str, str]:
    """Return the requested codec of each field that has one, "auto" by default.

    Raises:
        OptionError: There is no such codec, or no such field.
    """
    names = [f.name for f in fields if f.is_payload]
    if isinstance(codec, str):
        check_codec(codec)
    asked = dict.fromkeys(names, codec) if isinstance(codec, str) else dict.fromkeys(names, "auto") | dict(codec)
    for name, value in asked.items():
        if name not in names:
            found = next((f"; it is a field of kind {f.kind}, which has none" for f in fields if f.name == name), "")
            raise OptionError(
                f"codec for {name!r}: expected one of the fields with a codec: {', '.join(names) or 'none'}{found}"
            )
        check_codec(value)
    kinds = {f.name: f.kind for f in fields}
    return {name: codec_for(kinds[name], value) for name, value in asked.items()}
