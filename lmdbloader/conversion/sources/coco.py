"""Images with boxes in COCO's format: a folder, and a JSON file with the boxes of its images."""

from __future__ import annotations

import json
import math
import os
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lmdbloader.base.files import open_regular
from lmdbloader.base.option_names import option, shown
from lmdbloader.base.text import counted, first_of
from lmdbloader.conversion.sources.folders import find_images
from lmdbloader.conversion.sources.listing import (
    I64,
    Annotations,
    Listing,
    Location,
    Names,
    as_text,
)
from lmdbloader.errors import SourceError, SourceNotFoundError
from lmdbloader.fields import Boxes, Labels, why_shares

FIELDS = (("boxes", Boxes().kind), ("labels", Labels().kind))
#: The folder of the JSON files, next to the folders of the images or above them.
ANNOTATIONS = "annotations"
_NAMES_SHOWN = 5
# The keys of an annotation that are read, or say nothing more. Others are counted, up to a number of them.
_READ = {"id", "image_id", "category_id", "bbox", "iscrowd", "area", "num_keypoints"}
_MOST_NOT_READ = 20
_ROBOFLOW = "_annotations.coco.json"
# Beyond the rounding of sums: boxes that reach farther out of their image are counted.
_BEYOND = 1e-3
# If there are as many boxes, and more than half of them reach farther out than a pixel, they are in another form.
_MANY = 10
_PIXEL = 1.0
_MOST_SIDE = 2**31


def list_coco(src: Location, annotations: Location | None, *, skip: bool = False) -> Listing:
    """Return the images of a folder with their boxes from a JSON file.

    Boxes are clipped to their image; those without area and those of crowds are left out, and counted in the notes.
    Labels number the categories in the order of their ids.

    Args:
        src: The folder of the images; without `annotations`, one next to annotations/, or that holds annotations/.
        annotations: The JSON file.
        skip: Leave annotated images that are missing out, rather than refuse them.

    Raises:
        SourceError: The file is not found, damaged, or does not belong to the images.
    """
    if annotations is None:
        src, annotations = _find(src)
    if isinstance(annotations, str):
        raise SourceError(f"{annotations}: annotations are read from local files. Copy it to this machine first.")
    if not annotations.is_file():
        why = "is a folder; name the JSON file in it" if annotations.is_dir() else "there is no such file"
        raise SourceNotFoundError(f"{annotations}: {why}")
    images = find_images(src)
    names = images.sources.names
    if not len(names):
        raise SourceError(f"{src}: no images in it")
    content = _read(annotations)
    kept, rows, missing = _match(src, names, annotations, content, skip)
    boxes, notes = _boxes_of(content, rows)
    others = [as_text(names[i]) for i in np.setdiff1d(np.arange(len(names)), kept).tolist()]
    return replace(
        images,
        layout="coco",
        sources=replace(images.sources.take(kept), annotations=boxes),
        classes=content.classes,
        fields=FIELDS,
        ignored=(
            *images.ignored,
            *few(others, f"{annotations.name} does not list it"),
            *few(missing, f"{annotations.name} lists it, but it is not in {src}"),
        ),
        notes=notes,
    )


def few(names: Sequence[str], reason: str) -> list[tuple[str, str]]:
    """Return (name, reason) for some names: all of them if they are few.

    >>> few(["a", "b"], "is not there"), few(["a"] * 100, "is not there")[-1]
    ([('a', 'is not there'), ('b', 'is not there')], ('95 more', 'is not there'))
    """
    found = [(name, reason) for name in names[:_NAMES_SHOWN]]
    if len(names) > _NAMES_SHOWN:
        found.append((f"{len(names) - _NAMES_SHOWN:,} more", reason))
    return found


# --- where the file is ---


def _find(src: Location) -> tuple[Path, Path]:
    """Return the folder of the images, and the file with their boxes."""
    if isinstance(src, str):
        raise SourceError(f"{src}: folders at URLs are not searched. Name the JSON file: {option('annotations')}.")
    if not src.is_dir():
        raise SourceNotFoundError(f"{src}: there is no such folder")
    found = [(src, path) for path in _candidates(src) if path.is_file()]
    inside = src / ANNOTATIONS
    for path in sorted(inside.glob("instances_*.json")) if inside.is_dir() else ():
        name = path.stem.removeprefix("instances_")
        found += [(folder, path) for folder in (src / name, src / "images" / name) if folder.is_dir()]
    if len(found) == 1:
        return found[0]
    if found:
        pairs = first_of([f"{folder} with {path}" for folder, path in found], _NAMES_SHOWN)
        raise SourceError(
            f"{src}: holds several sets of images with annotations: {pairs}. Convert one, with {option('annotations')}."
        )
    raise SourceError(
        f"{src}: no annotations found; looked for annotations/instances_X.json next to X/ or images/X/, and for "
        f"{_ROBOFLOW}. Convert the folder of the images, and name the file with {option('annotations')}."
    )


def _candidates(src: Path) -> list[Path]:
    """Return where the file of a folder of images may be."""
    name = f"instances_{src.resolve().name}.json"
    return [src / _ROBOFLOW, *(place / ANNOTATIONS / name for place in (src / "..", src / ".." / ".."))]


# --- the content of the file ---


@dataclass(slots=True)
class _Content:
    """The images, boxes and categories of a JSON file, in its order."""

    path: Path
    classes: tuple[str, ...] = ()
    # Of images.
    names: list[str] = field(default_factory=list)
    row_of: dict[int, int] = field(default_factory=dict)
    sizes: array[int] = field(default_factory=lambda: array("q"))
    # Of annotations; crowds are left out.
    image: array[int] = field(default_factory=lambda: array("q"))
    category: array[int] = field(default_factory=lambda: array("q"))
    boxes: array[float] = field(default_factory=lambda: array("d"))
    labels: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    num_crowds: int = 0
    not_read: Counter[str] = field(default_factory=Counter)


def _read(path: Path) -> _Content:
    """Return the content of a file, checked.

    Raises:
        SourceError: With the element, what was found, and what was expected.
    """
    content = _Content(path)
    categories: dict[int, str] = {}
    whole = _load(path)
    for key in ("images", "annotations", "categories"):
        if not isinstance(elements := whole.get(key), list):
            there = ", ".join(map(repr, list(whole)[:10])) or "nothing"
            raise SourceError(f"{path}: has no list {key!r}; it has {there}")
        for number, element in enumerate(elements):
            where = f"{path}: {key}[{number}]"
            if not isinstance(element, dict):
                raise SourceError(f"{where}: {shown(element)}; expected an object")
            if element.get("id") is not None:
                where += f" (id {shown(element['id'])})"
            if key == "images":
                _add_image(content, element, where)
            elif key == "annotations":
                _add_annotation(content, element, where)
            else:
                _add_category(categories, element, where)
    if not content.names:
        raise SourceError(f"{path}: lists no images")
    if why := why_shares(np.array(content.boxes).reshape(-1, 4), "left, top, width, height"):
        raise SourceError(f"{path}: {why}")
    _set_labels(content, categories)
    return content


def _load(path: Path) -> dict[str, Any]:
    """Return the object of a JSON file, without the outlines and keypoints of its annotations.

    With them, COCO's instances_train2017.json takes 2.7 GB of memory, and without them 1.1 GB.
    """
    try:
        with open(open_regular(path), encoding="utf-8-sig") as file:
            whole = json.load(file, object_hook=_without_outlines)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error.strerror or error})") from error
    except RecursionError as error:
        raise SourceError(f"{path}: is not JSON as expected: nested too deeply") from error
    except ValueError as error:
        raise SourceError(f"{path}: is not JSON ({error})") from error
    if not isinstance(whole, dict):
        raise SourceError(f"{path}: {shown(whole)}; expected an object with images, annotations and categories")
    return whole


def _without_outlines(element: dict[str, Any]) -> dict[str, Any]:
    for name in ("segmentation", "keypoints"):
        if element.get(name):
            element[name] = True
    return element


def _add_image(content: _Content, element: dict[str, Any], where: str) -> None:
    number = _whole(element, "id", where)
    if number in content.row_of:
        raise SourceError(f"{where}: another image has this id: {content.names[content.row_of[number]]}")
    name = element.get("file_name")
    if not isinstance(name, str) or not name:
        raise SourceError(f"{where}: file_name is {shown(name)}; expected the path of an image below the folder")
    size = [_whole(element, side, where) for side in ("height", "width")]
    if not all(0 < side < _MOST_SIDE for side in size):
        raise SourceError(f"{where}: {size[1]}x{size[0]} pixels; expected the width and height of the image")
    content.row_of[number] = len(content.names)
    content.names.append(name)
    content.sizes.extend(size)


def _add_annotation(content: _Content, element: dict[str, Any], where: str) -> None:
    for name in element.keys() - _READ:
        if element[name] and (name in content.not_read or len(content.not_read) < _MOST_NOT_READ):
            content.not_read[name] += 1
    if "bbox" not in element:
        have = "captions" if "caption" in element else ", ".join(map(repr, list(element)[:10]))
        raise SourceError(
            f"{where}: has no bbox, but {have}. Boxes are in the files called instances_X.json; for other annotations, "
            "write samples: lmdbloader.write(samples, out)"
        )
    box = element["bbox"]
    numbers = [_number(value) for value in box] if isinstance(box, list) else []
    if len(numbers) != 4 or not all(map(math.isfinite, numbers)):
        raise SourceError(f"{where}: bbox is {shown(box)}; expected four finite numbers [x, y, width, height]")
    image, category = _whole(element, "image_id", where), _whole(element, "category_id", where)
    is_crowd = element.get("iscrowd", 0)
    if is_crowd not in (0, 1):
        raise SourceError(f"{where}: iscrowd is {shown(is_crowd)}; expected 0 or 1")
    if is_crowd:
        content.num_crowds += 1
        return
    content.image.append(image)
    content.category.append(category)
    content.boxes.extend(numbers)


def _add_category(categories: dict[int, str], element: dict[str, Any], where: str) -> None:
    number, name = _whole(element, "id", where), element.get("name")
    if number in categories:
        raise SourceError(f"{where}: another category has this id: {categories[number]!r}")
    try:
        is_text = isinstance(name, str) and bool(name.encode())
    except UnicodeEncodeError:  # half of a surrogate pair
        is_text = False
    if not isinstance(name, str) or not is_text:
        raise SourceError(f"{where}: name is {shown(name)}; expected the name of a class")
    categories[number] = name


def _whole(element: dict[str, Any], key: str, where: str) -> int:
    """Return a whole number of 64 bits; 3.0 is one too."""
    value = element.get(key)
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not -(2**63) <= value < 2**63:
        found = f"{key} is {shown(value)}" if key in element else f"has no {key}"
        raise SourceError(f"{where}: {found}; expected a whole number")
    return value


def _number(value: Any) -> float:
    """Return a number as a float, NaN for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.nan


def _set_labels(content: _Content, categories: dict[int, str]) -> None:
    numbers = sorted(categories)
    if not numbers:
        raise SourceError(f"{content.path}: lists no categories")
    content.classes = tuple(categories[number] for number in numbers)
    by_name = {categories[number]: number for number in reversed(numbers)}
    for number in numbers:
        if (other := by_name[categories[number]]) != number:
            raise SourceError(
                f"{content.path}: the categories {other} and {number} are both called {categories[number]!r}; expected "
                "names that differ. Rename one of them in the file."
            )
    known, category = np.array(numbers, np.int64), np.array(content.category, np.int64)
    labels = np.minimum(np.searchsorted(known, category), len(known) - 1)
    if (wrong := known[labels] != category).any():
        raise SourceError(
            f"{content.path}: {counted(int(wrong.sum()), 'annotation')} with a category_id that the file does not "
            f"list, such as {category[wrong][0]}; its categories are {', '.join(map(str, numbers[:10]))} ..."
        )
    content.labels = labels


# --- images and boxes together ---


def _match(src: Location, names: Names, path: Path, content: _Content, skip: bool) -> tuple[I64, I64, list[str]]:
    """Return the numbers of the listed images in order, their rows in the file, and the names of missing images."""
    number_of = {name: i for i, name in enumerate(names)}
    row_of: dict[int, int] = {}
    missing: list[str] = []
    for row, name in enumerate(content.names):
        number = _find_name(name, number_of)
        if number is None:
            missing.append(name)
        elif number in row_of:
            raise SourceError(f"{path}: images[{row_of[number]}] and images[{row}] have the same file_name {name!r}")
        else:
            row_of[number] = row
    if missing and (not skip or not row_of):
        raise SourceError(
            f"{src}: {path.name} lists {first_of(missing)}, not found there. " + _advice(names, bool(row_of))
        )
    kept = sorted(row_of)
    return np.array(kept, np.int64), np.array([row_of[number] for number in kept], np.int64), missing


def _find_name(name: str, number_of: dict[bytes, int]) -> int | None:
    try:
        found = number_of.get(os.fsencode(name))
    except UnicodeEncodeError:  # half of a surrogate pair
        return None
    if found is not None:
        return found
    parts = [part for part in name.replace("\\", "/").split("/") if part != "."]
    return number_of.get(os.fsencode("/".join(parts)))


def _advice(names: Names, are_some_found: bool) -> str:
    if are_some_found:
        return f"{option('on_error', 'skip')} leaves such images out."
    return f"None of its images is there, but {as_text(names[0])} is: expected the folder that file_name starts from."


def _boxes_of(content: _Content, rows: I64) -> tuple[Annotations, tuple[str, ...]]:
    """Return the boxes of images, given their rows in the file, and notes on what was left out or changed."""
    ids = np.array(list(content.row_of), np.int64)
    order = np.argsort(ids)
    image = np.array(content.image, np.int64)
    at = order[np.minimum(np.searchsorted(ids, image, sorter=order), len(ids) - 1)]
    is_listed = ids[at] == image
    if len(image) and not is_listed.any():
        raise SourceError(f"{content.path}: no annotation has the id of an image as its image_id, such as {image[0]}")
    sample_of = np.full(len(ids), -1, np.int64)
    sample_of[rows] = np.arange(len(rows))
    sample = np.where(is_listed, sample_of[at], -1)
    sizes = np.array(content.sizes, np.int64).reshape(-1, 2)[rows]
    here = sample >= 0
    boxes, labels, sample = np.array(content.boxes).reshape(-1, 4)[here], content.labels[here], sample[here]
    with np.errstate(over="ignore"):
        boxes[:, 2:] += boxes[:, :2]
    form = "left, top, width, height. If the last two are right and bottom, subtract left and top from them. If EXIF "
    form += "data turns the images, their width and height in the file must be those of the upright image"
    refuse_outside(content.path, boxes, np.tile(sizes[sample][:, ::-1], 2), _PIXEL, form)
    found, on_boxes = gather(sample, len(rows), boxes, labels, sizes, _BEYOND)
    num_unlisted = int((~is_listed).sum())
    notes = (
        *note("left out", content.num_crowds, "box of a crowd (iscrowd)", "boxes of crowds (iscrowd)"),
        *note("left out", num_unlisted, "box of an image", "boxes of images", " that the file does not list"),
        *on_boxes,
        *(f"not read, only boxes are: {count:,} {name}" for name, count in sorted(content.not_read.items())),
    )
    return found, notes


def note(what: str, number: int, one: str, many: str, more: str = "") -> tuple[str, ...]:
    """Return a sentence on some things, nothing on none.

    >>> note("left out", 2, "box", "boxes", " of crowds"), note("clipped", 0, "box", "boxes")
    (('left out: 2 boxes of crowds',), ())
    """
    return (f"{what}: {counted(number, one, many)}{more}",) if number else ()


def refuse_outside(place: Path, boxes: npt.NDArray[np.float64], sides: Any, beyond: float, form: str) -> None:
    """Refuse many boxes (n, 4) XYXY if more than half of them reach beyond their image: they are in another form.

    Args:
        place: The file or folder of the boxes.
        boxes: All that it has.
        sides: The most that their numbers can be, (n, 4), or one number.
        beyond: How far right ones may reach out.
        form: What is expected, and what to do about another form.

    Raises:
        SourceError: They do.
    """
    outside = np.flatnonzero(((boxes < -beyond) | (boxes > sides + beyond)).any(1))
    if len(boxes) < _MANY or 2 * len(outside) <= len(boxes):
        return
    left, top, right, bottom = boxes[outside[0]]
    width, height = np.broadcast_to(sides, boxes.shape)[outside[0], :2]
    raise SourceError(
        f"{place}: {len(outside):,} of {len(boxes):,} boxes reach beyond their image, such as one from ({left:g}, "
        f"{top:g}) to ({right:g}, {bottom:g}) in {width:g}x{height:g}; expected {form}. Boxes "
        "that are right otherwise must be clipped to their image in the file."
    )


def gather(
    image: I64, num_images: int, boxes: npt.NDArray[np.float64], labels: I64, sizes: I64 | None, beyond: float
) -> tuple[Annotations, tuple[str, ...]]:
    """Return boxes (n, 4) XYXY by their image, clipped to it, and notes on those that are not as in their file.

    Those without area are left out. Boxes that reach out by at most `beyond` do not count as clipped. Sizes are as in
    `Annotations`.

    >>> boxes = np.array([[-5.0, 0, 10, 10], [20, 20, 30, 30]])
    >>> found, notes = gather(np.array([0, 0]), 1, boxes, np.array([3, 4]), np.array([[15, 15]]), 0)
    >>> found.boxes.tolist(), notes[0]
    ([[0.0, 0.0, 10.0, 10.0]], 'clipped to the image: 1 box')
    """
    most: Any = 1.0 if sizes is None else sizes[image][:, ::-1]
    inside = np.concatenate([np.clip(boxes[:, :2], 0, most), np.clip(boxes[:, 2:], 0, most)], axis=1)
    stored = inside.astype(np.float32)
    keep = np.all(stored[:, 2:] > stored[:, :2], axis=1)
    num_clipped = int((keep & (np.abs(inside - boxes) > beyond).any(1)).sum())
    notes = (
        *note("clipped to the image", num_clipped, "box", "boxes"),
        *note("left out", int((~keep).sum()), "box", "boxes", " without area in the image"),
    )
    order = np.flatnonzero(keep)[np.argsort(image[keep], kind="stable")]
    bounds = np.zeros(num_images + 1, np.int64)
    np.cumsum(np.bincount(image[keep], minlength=num_images), out=bounds[1:])
    return Annotations(inside[order], labels[order], bounds, sizes), notes
