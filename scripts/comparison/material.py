"""The data of a comparison: the same samples as image files and as a dataset, cut or taken from the user's folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from demos.class_folders import make_class_folders
from PIL import Image, UnidentifiedImageError

import lmdbloader
from comparison.settings import SCALE
from lmdbloader.base.files import replacing
from lmdbloader.base.text import counted
from lmdbloader.errors import SourceError
from lmdbloader.images.decode import IMAGE_SUFFIXES

# Patches of pairs: large enough for random crops of the largest patch that is trained on.
PATCH = 96
LEAST_SIDE = 128
# Pieces of photographs, which stand in for classes where a source has none.
PIECES, HELD_OUT_PIECES = 60, 20
_VALIDATION_FOLDERS = ("val", "valid", "validation", "test")


@dataclass(frozen=True, slots=True)
class Pairs:
    """Patch pairs for super-resolution.

    Attributes:
        files: (lr, hr) PNG files of each pair.
        dataset: The same pairs in the same order: fields lr and hr.
        validation: Dataset of the photographs that are held out, whole.
    """

    files: tuple[tuple[Path, Path], ...]
    dataset: Path
    validation: Path


@dataclass(frozen=True, slots=True)
class Photos:
    """Labeled photographs.

    Attributes:
        files: JPEG or other image files.
        labels: Number of the class of each.
        classes: Names of the classes.
        dataset: The same files in the same order, stored as they are: fields image and label.
        validation: Dataset of those that are held out.
        is_cut: Whether they are pieces of photographs, each of which is a class.
    """

    files: tuple[Path, ...]
    labels: tuple[int, ...]
    classes: tuple[str, ...]
    dataset: Path
    validation: Path
    is_cut: bool


def images_below(folder: Path) -> list[Path]:
    """Return the image files below a folder, sorted."""
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES and path.is_file())


def training_folder(source: Path) -> Path:
    """Return the folder of the training images: `train` where there is one, else the source."""
    return source / "train" if (source / "train").is_dir() else source


def has_classes(source: Path) -> bool:
    """Return whether a folder has class folders: at least two folders with images, and no image next to them.

    Raises:
        SourceError: The folder does not exist.
    """
    if not source.is_dir():
        raise SourceError(f"{source}: there is no such folder. Name one with photographs, or with class folders.")
    training = training_folder(source)
    folders = [path for path in training.iterdir() if path.is_dir() and not path.name.startswith(".")]
    loose = any(path.suffix.lower() in IMAGE_SUFFIXES for path in training.iterdir() if path.is_file())
    return not loose and sum(bool(images_below(path)) for path in folders) >= 2


def photographs_of(source: Path) -> tuple[list[Path], list[Path]]:
    """Return a folder's photographs to train on, and those to hold out: every eighth, at least one.

    Raises:
        SourceError: There are fewer than two.
    """
    found = [path for path in images_below(training_folder(source)) if _is_photograph(path)]
    if len(found) < 2:
        raise SourceError(
            f"{source}: found {counted(len(found), 'photograph')}, expected at least 2 of {LEAST_SIDE} x {LEAST_SIDE} "
            "pixels or more, 8-bit RGB or gray."
        )
    step = min(8, len(found))
    return [path for n, path in enumerate(found) if n % step != step - 1], found[step - 1 :: step]


def _is_photograph(path: Path) -> bool:
    try:
        with Image.open(path) as image:
            return image.mode in ("RGB", "L") and min(image.size) >= LEAST_SIDE
    except (UnidentifiedImageError, OSError, ValueError, Image.DecompressionBombError):
        return False


def make_pairs(source: Path, folder: Path, *, limit: int, say: Callable[[str], None]) -> Pairs:
    """Cut patch pairs from a folder's photographs, as PNG files and as a dataset with the same pixels.

    Args:
        source: Photographs; class folders are as good.
        folder: Of the material; what an earlier call has made there is used.
        limit: Most pairs, evenly spread.
        say: Gets a line about what takes time.

    Raises:
        SourceError: There are too few photographs.
    """
    training, held_out = photographs_of(source)
    _copy_as_rgb(training, folder / "photographs")
    _copy_as_rgb(held_out, folder / "held-out")
    dataset, validation, files = (folder / name for name in ("pairs.lmdb", "held-out.lmdb", "pairs"))
    stride = PATCH // 2 if _num_patches(training, PATCH) < limit else PATCH
    say(
        f"cutting patch pairs from {counted(len(training), 'photograph')}; "
        f"{len(held_out)} held out, to score the models on"
    )
    lmdbloader.convert(
        folder / "photographs", folder / "all-pairs.lmdb", layout="images", patch_size=PATCH, stride=stride,
        scale=SCALE,
    )  # fmt: skip
    lmdbloader.convert(folder / "held-out", validation, layout="images", scale=SCALE)
    whole = lmdbloader.LMDBDataset(folder / "all-pairs.lmdb")
    chosen = np.unique(np.linspace(0, len(whole) - 1, min(limit, len(whole))).round().astype(int)).tolist()
    if not dataset.exists():
        lmdbloader.write((whole[index] for index in chosen), dataset)
    if not (files / "done").exists():
        shutil.rmtree(files, ignore_errors=True)
        lmdbloader.extract(dataset, files, image_format="png")
        (files / "done").touch()
    return Pairs(tuple(_extracted(files)), dataset, validation)


def make_photos(source: Path, folder: Path, *, say: Callable[[str], None]) -> Photos:
    """Take labeled photographs from class folders, or cut pieces from photographs, each of which is then a class.

    Args:
        source: Class folders, alone or in `train` next to `val`; or photographs.
        folder: Of the material; what an earlier call has made there is used.
        say: Gets a line about what takes time.

    Raises:
        SourceError: There are too few photographs.
    """
    folder.mkdir(parents=True, exist_ok=True)
    is_cut = not has_classes(source)
    if is_cut:
        source = _pieces(source, folder / "pieces", say)
    training = training_folder(source)
    held_out = next((source / name for name in _VALIDATION_FOLDERS if (source / name).is_dir()), None)
    if held_out is None or training == source:
        training, held_out = _held_out_links(training, folder / "split")
    dataset, validation = folder / "photos.lmdb", folder / "photos-held-out.lmdb"
    say(f"converting {counted(len(images_below(training)), 'labeled image')}")
    lmdbloader.convert(training, dataset, layout="classes", write_mode="original")
    opened = lmdbloader.LMDBDataset(dataset)
    lmdbloader.convert(
        held_out, validation, layout="classes", write_mode="original", classes=list(opened.classes)
    )  # fmt: skip
    table = opened.table
    files = tuple(training / name for name in table.column("source").to_pylist())
    return Photos(files, tuple(table.column("label").to_pylist()), tuple(opened.classes), dataset, validation, is_cut)


def _copy_as_rgb(files: Sequence[Path], folder: Path) -> None:
    """Copy photographs into a folder, once, with three channels of 8 bits, so that all samples are alike."""
    listing = folder / "listing.json"
    wanted = [[str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns] for path in files]
    if listing.exists() and json.loads(listing.read_text("utf-8")) == wanted:
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for number, path in enumerate(files):
        with Image.open(path) as image:
            if image.mode == "RGB" and _has_bytes(path, image.format):
                shutil.copyfile(path, folder / f"{number:04}_{path.name}")
            else:
                image.convert("RGB").save(folder / f"{number:04}_{path.stem}.png")
    with replacing(listing) as hidden:
        hidden.write_text(json.dumps(wanted), "utf-8")


def _has_bytes(path: Path, kind: str | None) -> bool:
    """Return whether an RGB image surely has 8 bits for each value: Pillow shows deeper PNG files in RGB, too."""
    if kind != "PNG":
        return kind == "JPEG"
    with path.open("rb") as file:
        return file.read(25)[24] == 8  # the bit depth, after the signature, width and height


def _num_patches(files: Sequence[Path], side: int) -> int:
    count = 0
    for path in files:
        with Image.open(path) as image:
            count += (image.width // side) * (image.height // side)
    return count


def _extracted(folder: Path) -> list[tuple[Path, Path]]:
    from lmdbloader.conversion.extraction import TABLE_FILE

    entries = (json.loads(line) for line in (folder / TABLE_FILE).read_text("utf-8").splitlines())
    return [(folder / entry["lr"], folder / entry["hr"]) for entry in entries]


def _pieces(source: Path, folder: Path, say: Callable[[str], None]) -> Path:
    if not (folder / "done").exists():
        training, held_out = photographs_of(source)
        photographs = sorted(training + held_out)[:20]
        say(f"cutting pieces from {counted(len(photographs), 'photograph')}, each of which is a class")
        shutil.rmtree(folder, ignore_errors=True)
        make_class_folders(folder, num_train=PIECES, num_val=HELD_OUT_PIECES, photographs=photographs)
        (folder / "done").touch()
    return folder


def _held_out_links(source: Path, folder: Path) -> tuple[Path, Path]:
    """Divide class folders: every fifth file of a class is held out; symbolic links stand for the files."""
    shutil.rmtree(folder, ignore_errors=True)
    for name in sorted(path for path in source.iterdir() if path.is_dir()):
        for number, path in enumerate(images_below(name)):
            target = folder / ("val" if number % 5 == 4 else "train") / path.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(path.resolve())
    return folder / "train", folder / "val"
