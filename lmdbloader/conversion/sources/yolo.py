"""Images with boxes as YOLO reads them: images/ and labels/ trees, with a text file for each image."""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from lmdbloader.base.arguments import ordered_texts
from lmdbloader.base.files import open_regular
from lmdbloader.base.option_names import option, shown
from lmdbloader.conversion.sources.coco import FIELDS, few, gather, note, refuse_outside
from lmdbloader.conversion.sources.folders import find_images, same_stem
from lmdbloader.conversion.sources.listing import (
    Listing,
    Location,
    Others,
    as_text,
    is_litter,
    stem_of,
)
from lmdbloader.errors import SourceError, SourceNotFoundError

_IMAGES, _LABELS = "images", "labels"
_NAMES_TXT = "classes.txt"
#: Files with the names of the classes; the first that is there is read.
NAMES_YAML = ("data.yaml", "data.yml", "dataset.yaml")
_OF_NAMES = re.compile(r"classes\.txt|.*\.(ya?ml|names)", re.IGNORECASE)
_MOST_NBYTES = 16 * 2**20
# Numbers have six digits or fewer in most files, so that boxes at an edge reach out by their rounding.
_BEYOND = 1e-5
# Boxes of numbers with two digits reach out by less.
_ROUNDED = 0.01
_PLACES = f"{_LABELS}/a.txt for {_IMAGES}/a.jpg, or a.txt next to a.jpg"
_FORM = "x, y, width, height, with x and y of the center. If they are left and top, add half of the width and height"
_MOST_CLASS = 2**31


def list_yolo(src: Location, classes: Sequence[str] | None = None) -> Listing:
    """Return the images of a folder with the boxes of their text files.

    A line of a text file is a class number and the center, width and height of a box as shares of the image's sides; or
    a class number and the corners of a polygon, which becomes the box around it. Boxes are clipped to the image.

    Args:
        src: A folder with images/ and labels/; or images/ or a folder in it; or one with the images and text files.
        classes: Names of the classes by number; by default those of classes.txt or data.yaml, if there is one.

    Raises:
        SourceError: No images, a line of a text file is damaged, or the names cannot be read.
        OptionError: `classes` are not texts, or two of them are equal.
    """
    if isinstance(src, str):
        raise SourceError(f"{src}: {option('layout', 'yolo')} reads local folders only. Copy it to this machine first.")
    if not src.is_dir():
        raise SourceNotFoundError(f"{src}: there is no such folder")
    tree = _find_tree(src)
    images = find_images(tree.images)
    image_names = images.sources.names
    if not len(image_names):
        raise SourceError(f"{tree.images}: no images in it")
    names, file = (ordered_texts("classes", classes), None) if classes is not None else _find_names(tree)
    content = _Content(len(names) if names else None, file, _has_keypoints(tree))
    texts, others = _list_texts(tree)
    read: set[bytes] = set()
    for number, name in enumerate(image_names):
        stem = stem_of(name)
        if stem in read:
            raise SourceError(
                f"{tree.images}: two images have the name {as_text(stem)}: which of them has the boxes is ambiguous"
            )
        read.add(stem)
        content.add(tree.labels / os.fsdecode(texts.pop(stem, stem + b".txt")), number)
    if content.num_files == 0:
        raise SourceError(f"{tree.labels}: no text file belongs to an image of {tree.images}; expected {_PLACES}")
    boxes = np.array(content.boxes).reshape(-1, 4)
    labels, image = np.array(content.labels, np.int64), np.array(content.image, np.int64)
    refuse_outside(tree.labels, boxes, 1, _ROUNDED, _FORM)
    found, on_boxes = gather(image, len(image_names), boxes, labels, None, _BEYOND)
    notes = (
        *on_boxes,
        *note("turned into the box around it", content.num_polygons, "polygon", "polygons"),
        *note("without boxes", len(image_names) - content.num_files, "image", "images", " without a text file"),
    )
    if not names:
        notes += (f"the classes have no names: there is no {_NAMES_TXT} or {NAMES_YAML[0]} in {tree.root}",)
    others += _other_names(tree, file, are_known=bool(names))
    known = {"*.yaml", "*.yml", "*.cache"} | ({"*.txt"} if tree.labels == tree.images else set())
    ignored = [(name, reason) for name, reason in images.ignored if name not in known]
    return replace(
        images,
        layout="yolo",
        sources=replace(images.sources, annotations=found),
        classes=names,
        fields=FIELDS,
        ignored=(*ignored, *others, *few(sorted(map(as_text, texts.values())), "belongs to no image")),
        notes=notes,
    )


@dataclass(frozen=True, slots=True)
class _Tree:
    """The folders of the images, of the text files, and above both; the last two may be the first."""

    images: Path
    labels: Path
    root: Path


def _find_tree(src: Path) -> _Tree:
    if (src / _IMAGES).is_dir() and (src / _LABELS).is_dir():
        return _Tree(src / _IMAGES, src / _LABELS, src)
    path = Path(os.path.abspath(src))
    # As YOLO finds them: the last folder "images" of the path becomes "labels".
    for images in (path, *path.parents):
        if images.name == _IMAGES:
            labels = images.with_name(_LABELS) / path.relative_to(images)
            if labels.is_dir():
                return _Tree(src, labels, images.parent)
            break
    return _Tree(src, src, src)


def _list_texts(tree: _Tree) -> tuple[dict[bytes, bytes], list[tuple[str, str]]]:
    """Return the text files of boxes by their path without suffix, and (kind, reason) of other files next to them.

    Raises:
        SourceError: Two of them belong to the same image.
    """
    top, found, others = os.fsencode(tree.labels), dict[bytes, bytes](), Others()
    for folder, _, names in os.walk(top):
        for name in names:
            path = os.path.relpath(os.path.join(folder, name), top)
            stem, suffix = os.path.splitext(path)
            if is_litter(name) or suffix == b".cache" or _OF_NAMES.fullmatch(as_text(name)):
                continue
            if suffix.lower() == b".txt":
                if (other := found.setdefault(stem, path)) != path:
                    raise same_stem(tree.labels, other, path)
            elif tree.labels != tree.images:
                others.add(path)
    return found, list(others.ignored())


# --- boxes ---


@dataclass(slots=True)
class _Content:
    """The boxes of text files, in order, in shares of the image's sides."""

    num_classes: int | None
    names_file: Path | None
    has_keypoints: bool
    image: array[int] = field(default_factory=lambda: array("q"))
    labels: array[int] = field(default_factory=lambda: array("q"))
    boxes: array[float] = field(default_factory=lambda: array("d"))
    num_polygons: int = 0
    num_files: int = 0

    def add(self, path: Path, number: int) -> None:
        """Add the boxes of an image's text file, if there is one."""
        text = _text(path)
        if text is None:
            return
        self.num_files += 1
        for line, words in enumerate(map(str.split, text.splitlines()), 1):
            if words:
                self._add_line(f"{path}, line {line}", words, number)

    def _add_line(self, where: str, words: list[str], number: int) -> None:
        try:
            label, *numbers = (float(word) for word in words)
        except ValueError:
            raise SourceError(f"{where}: {_quoted(words)}; {_EXPECTED}") from None
        if not (label.is_integer() and 0 <= label < _MOST_CLASS):
            raise SourceError(f"{where}: the class is {words[0]:.40}; expected a whole number from 0 on")
        if self.num_classes is not None and label >= self.num_classes:
            names = self.names_file or option("classes")
            raise SourceError(
                f"{where}: class {int(label)}, but {names} has {self.num_classes} names, from 0 to "
                f"{self.num_classes - 1}"
            )
        is_polygon = len(numbers) >= 6 and len(numbers) % 2 == 0 and not self.has_keypoints
        if len(numbers) != 4 and not is_polygon:
            hint = (
                "; leave the confidence out" if len(numbers) == 5 else "; keypoints are not read" * (len(numbers) > 5)
            )
            raise SourceError(f"{where}: {len(words)} numbers ({_quoted(words)}); {_EXPECTED}{hint}")
        if wrong := [word for word, value in zip(words[1:], numbers, strict=True) if not 0 <= value <= 1]:
            raise SourceError(
                f"{where}: {wrong[0]:.40} is not from 0 to 1; expected shares of the image's width and height. Divide "
                "pixels by them."
            )
        if is_polygon:
            self.num_polygons += 1
            xs, ys = numbers[::2], numbers[1::2]
            box = [min(xs), min(ys), max(xs), max(ys)]
        else:
            x, y, width, height = numbers
            box = [x - width / 2, y - height / 2, x + width / 2, y + height / 2]
        self.image.append(number)
        self.labels.append(int(label))
        self.boxes.extend(box)


_EXPECTED = "expected `class x y width height`: five numbers, of which the last four are from 0 to 1"


def _quoted(words: list[str]) -> str:
    return shown(" ".join(words[:8]))


def _text(path: Path) -> str | None:
    """Return the content of a small text file, None if there is none."""
    try:
        with open(open_regular(path), "rb") as file:
            data = file.read(_MOST_NBYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error.strerror or error})") from error
    if len(data) > _MOST_NBYTES:
        raise SourceError(f"{path}: has more than {_MOST_NBYTES >> 20} MiB; expected a line for each box")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SourceError(f"{path}: is not UTF-8 ({error})") from error


# --- names ---


def _places(tree: _Tree) -> list[Path]:
    # Exports in train/images and train/labels have one file for all of their splits, next to train/.
    return list(dict.fromkeys([tree.root, tree.labels, tree.root / ".."]))


def _yaml(tree: _Tree) -> tuple[Path, str] | None:
    for place in _places(tree):
        for name in NAMES_YAML:
            if (text := _text(place / name)) is not None:
                return place / name, text
    return None


def _has_keypoints(tree: _Tree) -> bool:
    found = _yaml(tree)
    return found is not None and re.search(r"^kpt_shape\s*:", found[1], re.MULTILINE) is not None


def _find_names(tree: _Tree) -> tuple[tuple[str, ...], Path | None]:
    """Return the names of the classes by number, and their file; no names without a file.

    classes.txt goes before data.yaml, so that it can be written where data.yaml cannot be read.
    """
    for place in _places(tree)[:2]:
        path = place / _NAMES_TXT
        if (text := _text(path)) is not None:
            names = [line.strip() for line in text.splitlines()]
            while names and not names[-1]:
                names.pop()
            return _checked(path, names), path
    if (found := _yaml(tree)) is None:
        return (), None
    path, text = found
    try:
        names = parse_names(text)
    except ValueError as error:
        raise SourceError(
            f"{path}: the names of the classes cannot be read ({error}). Expected names: [a, b]; or write them into "
            f"{tree.root / _NAMES_TXT}, one a line."
        ) from error
    return _checked(path, names), path


def _other_names(tree: _Tree, file: Path | None, *, are_known: bool) -> list[tuple[str, str]]:
    """Return (name, reason) of files that may have names of the classes, except the one whose names are taken."""
    there = {path.name for place in _places(tree)[:2] for path in place.iterdir() if _OF_NAMES.fullmatch(path.name)}
    names = f"those of {file.name}" if file else "given" if are_known else "not known"
    return [(name, f"not read: the names of the classes are {names}") for name in sorted(there - {file and file.name})]


def _checked(path: Path, names: list[str]) -> tuple[str, ...]:
    if not names or not all(names) or len(set(names)) != len(names):
        twice = next((name for name in names if names.count(name) > 1), "")
        raise SourceError(f"{path}: {f'two classes are called {twice!r}' if twice else 'a class has no name'}")
    return tuple(names)


def parse_names(text: str) -> list[str]:
    """Return the names of the classes in a data.yaml.

    Raises:
        ValueError: It is not YAML, or has no list or mapping of names by number.

    >>> parse_names("nc: 2\\nnames: ['a', b c]  # two"), parse_names("names:\\n  1: dog\\n  0: no")
    (['a', 'b c'], ['no', 'dog'])
    """
    import yaml  # type: ignore[import-untyped]

    try:
        # The nodes: all texts as they are (`no` and `1` are names), and both of two values that have the same key.
        content = yaml.compose(text, yaml.BaseLoader)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError("it is not YAML") from error
    values = [value for name, value in content.value if name.value == "names"] if _is(content, "mapping") else []
    if len(values) != 1:
        raise ValueError(f"it has {len(values)} lists of names")
    nodes = values[0].value
    if _is(values[0], "mapping"):
        by_number = {name.value: node for name, node in nodes if _is(name, "scalar")}
        if len(by_number) < len(nodes) or not all(str(number) in by_number for number in range(len(nodes))):
            raise ValueError("the numbers of the names are not 0, 1, 2 ...")
        nodes = [by_number[str(number)] for number in range(len(nodes))]
    if not nodes or _is(values[0], "scalar") or not all(_is(node, "scalar") for node in nodes):
        raise ValueError("it has no list of names")
    return [node.value for node in nodes]


def _is(node: Any, kind: str) -> bool:
    """Return whether a node of YAML, None without any, is a scalar, a sequence or a mapping."""
    return node is not None and node.id == kind
