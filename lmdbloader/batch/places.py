"""Boxes, points and arrays next to images: they move with the images, or transforms that move pixels are refused."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lmdbloader.batch.pipeline import Pipeline
from lmdbloader.errors import CorruptError, OptionError
from lmdbloader.fields import named_places
from lmdbloader.format.layout import Field, image_of
from lmdbloader.kernels import entries
from lmdbloader.kernels.transform import opcodes
from lmdbloader.transforms import Geometry

I64 = npt.NDArray[np.int64]


def refuse_to_leave(pipeline: Pipeline, fields: Sequence[Field]) -> None:
    """Refuse transforms that move pixels, and name no fields, if they would leave something behind.

    Args:
        pipeline: Reads the images.
        fields: All fields.

    Raises:
        OptionError: A field holds arrays of the images' size; or boxes or points that were not declared, by its name
            or, in JSON, by a key of its first value.
    """
    moving = next((t for t in pipeline.transforms if isinstance(t, Geometry) and t.moves and t.fields is None), None)
    if moving is None or not pipeline.fields or not len(pipeline.rows):
        return
    only = f"If it must not move, name the fields that do: {type(moving).__name__}(..., fields={pipeline.fields})."
    for f in fields:
        if f.kind == "array" and (image := image_of_size(pipeline, f.name)):
            raise OptionError(
                f"{pipeline.reader.place}: field {f.name!r} holds arrays of the size of {image!r}, which {moving} "
                f"would leave behind. If it holds pixels, write it as an image, fields={{{f.name!r}: "
                f"lmdbloader.fields.Image()}}; labels of pixels as lmdbloader.fields.Mask(). {only}"
            )
        for name in [f.name, *_keys(pipeline, f)] if f.kind in ("array", "json") else ():
            if kind := named_places(name):
                raise OptionError(
                    f"{pipeline.reader.place}: to judge by its name, {name} holds {kind.lower()}, which {moving} would "
                    f"not move. Write it as a field lmdbloader.fields.{kind}(), which moves with the images. {only}"
                )


def _keys(pipeline: Pipeline, f: Field) -> list[str]:
    """Return the lists and dicts in a JSON field's first value, or in its first item, such as objects['bbox']."""
    value: Any = None
    if f.kind == "json":
        with suppress(CorruptError):  # it is reported when its sample is read
            value = pipeline.reader.read_value(f.name, int(pipeline.rows[0]))
    first = value[0] if isinstance(value, list) and value else value
    items = first.items() if isinstance(first, dict) else ()
    return [f"{f.name}[{key!r}]" for key, item in items if isinstance(item, list | dict)]


def image_of_size(pipeline: Pipeline, name: str) -> str:
    """Return the image field that has the height and width of an array field, else "".

    The first, the middle and the last sample are compared.
    """
    if not len(pipeline.rows):
        return ""
    rows = [int(pipeline.rows[place]) for place in (0, len(pipeline.rows) // 2, -1)]
    shapes = [pipeline.reader.array_shape(name, row) for row in rows]
    for image in pipeline.fields:
        sizes = [pipeline.reader.image_shape(image, row)[1:] for row in rows]
        if all(len(s) in (2, 3) and size in (s[-2:], s[:2]) for s, size in zip(shapes, sizes, strict=True)):
            return image
    return ""


def image_of_places(pipeline: Pipeline, place: Field) -> int | None:
    """Return the number of the image field that boxes or points are in; None if nothing moves them.

    Raises:
        OptionError: It is not read, so that nothing says where they move; or it is mixed of moved images.
    """
    if not pipeline.fields or not len(pipeline.rows) or not pipeline.moves:
        return None
    image = image_of(place, pipeline.reader.fields.values())
    if image is None or image not in pipeline.fields:
        raise OptionError(
            f"{pipeline.reader.place}: the {place.kind} of field {place.name!r} are in {image!r}, which is not read, "
            f"and transforms would move them with it. Read it too, or leave {place.name!r} out: "
            "LMDBDataset(path, fields=[...])."
        )
    for t in pipeline.transforms:
        if isinstance(t, Geometry) and t.mixes and (t.fields is None or image in t.fields):
            raise OptionError(
                f"{pipeline.reader.place}: {t} mixes images that it has moved, and the {place.kind} of field "
                f"{place.name!r} cannot follow. Leave the field out, LMDBDataset(path, fields=[...]), or use "
                "RandAugment, which they follow."
            )
    return pipeline.fields.index(image)


def moved(
    pipeline: Pipeline,
    values: Sequence[torch.Tensor],
    kind: str,
    image: int,
    rows: I64,
    samples: I64,
    epoch: int,
    view: int = 0,
) -> list[torch.Tensor]:
    """Return boxes or points where the transforms of a view move them.

    Args:
        pipeline: Reads the images.
        values: (n, 4) or (..., 2) float32 of each sample.
        kind: "boxes" or "points".
        image: Of `image_of_places`.
        rows, samples, epoch: As for `Pipeline.read`.
        view: Its number.
    """
    sides = 4 if kind == "boxes" else 2
    flat = [value.numpy().reshape(-1, sides) for value in values]
    counts = np.array([len(each) for each in flat], np.int64)
    places = np.concatenate([*flat, np.empty((0, sides))], dtype=np.float64)
    pipeline.reader.index.check(rows)
    drawn = pipeline._drawn(pipeline._most.copy())
    drawn[0][..., opcodes.MASK] = 1
    line = np.empty(pipeline._resize_items()[2] if pipeline._elastic_side() else 0, np.float32)
    status = entries.trace(
        pipeline._addresses, pipeline._operations, view, pipeline._seed, epoch, rows, samples, drawn, image, counts,
        places, line,
    )  # fmt: skip
    if status:
        raise pipeline._error(status, int(rows[0]), 0)
    found = np.split(places.astype(np.float32), np.cumsum(counts)[:-1])
    return [
        torch.from_numpy(each).to(value.dtype).reshape(value.shape) for each, value in zip(found, values, strict=True)
    ]
