"""Flags of the command made from the options of a conversion."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import Field, fields
from typing import TYPE_CHECKING, Any, get_type_hints

from lmdbloader.base.option_names import naming_flags
from lmdbloader.cli._numbers import number
from lmdbloader.conversion.options import GROUPS, RUN, TAKE, ConvertOptions, choices_of, explain, grammar_of

if TYPE_CHECKING:
    from lmdbloader.conversion import Split

_SPLIT = (
    "convert train/, val/ and any other folder of images in SRC to one dataset each: OUT/train.lmdb, OUT/val.lmdb, "
    "... Class folders of the same name have the same label in all of them"
)


_NO_FLAG = "SRC and OUT have no flag: lmdbloader convert SRC OUT"
_LABELS = (
    "labels come from class folders, and from .cls, .json and .txt files in tars; other labels are written with "
    "lmdbloader.write(samples, OUT) in Python"
)
_WHEN_LOADED = "transforms are applied when samples are loaded: Loader(dataset, batch_size, transforms=[...])"
_SIZE = (
    "--max-resolution N limits the longer side of the images that are stored. For one size, or for the shorter side, "
    "resize when loading: Loader(dataset, batch_size, transforms=[RandomResizedCrop(N)]) or Resize(N)"
)
_ALL_FOLDERS = "the folders below SRC are always read. Leave it out"
_ONE_FILE = "a dataset is one file, which grows by itself. Leave it out"
#: Flags that other programs have for what `convert` does, and what to write instead.
FOREIGN = {
    **{f"--{name}": "--workers" for name in (
        "num-workers", "nworkers", "n-workers", "num-proc", "nproc", "num-processes", "processes", "jobs", "n-jobs",
        "threads", "num-threads", "n-thread",
    )},
    **{f"--{name}": _NO_FLAG for name in ("src", "input", "in", "root", "data-dir", "out", "output", "dest")},
    **{f"--{name}": _SIZE for name in (
        "resize", "size", "image-size", "img-size", "imgsz", "width", "height", "short-side", "shorter-side",
    )},
    **{f"--{name}": _LABELS for name in ("labels", "label", "label-file", "labels-file", "csv", "annotations", "ann")},
    **{f"--{name}": _WHEN_LOADED for name in ("transform", "transforms", "augment", "normalize", "mean", "std")},
    **{f"--{name}": _ONE_FILE for name in ("map-size", "shards", "num-shards", "chunk-size", "page-size", "maxcount")},
    **{f"--{name}": _ALL_FOLDERS for name in ("recursive", "recurse")},
    **{f"--{name}": "--patch-size" for name in ("crop-size", "crop", "gt-size", "tile-size")},
    **{f"--{name}": "--scale" for name in ("downscale", "upscale", "factor", "sr")},
    **{f"--{name}": "--hr" for name in ("gt", "dataroot-gt", "high")},
    **{f"--{name}": "--lr" for name in ("lq", "dataroot-lq", "low")},
    **{f"--{name}": "--write-mode" for name in ("format", "encode-format", "encoding", "store-as")},
    **{f"--{name}": "--codec" for name in ("compression", "compress")},
    **{f"--{name}": "--jpeg-quality" for name in ("quality", "jpg-quality", "encode-quality")},
    **{f"--{name}": "--overwrite" for name in ("force", "replace", "clobber")},
    **{f"--{name}": "--subset" for name in ("limit", "max-samples", "num-samples")},
    "--step": "--stride",
    "-j": "--workers",
    "-i": _NO_FLAG,
    "-o": _NO_FLAG,
    "--compression-level": "--codec lz4 compresses pixels, --write-mode original keeps files. Neither has a level",
    "--batch-size": "batches are made when samples are loaded: Loader(dataset, batch_size=N)",
    "--shuffle": "samples keep the order of their names, and the Loader draws a new order for each epoch. Leave it out",
    "--resume": "the same command resumes an interrupted conversion. Leave it out",
    "--val-split": "give the images of each split a folder of their own, train/ and val/, and use --split",
    "--test-size": "give the images of each split a folder of their own, train/ and val/, and use --split",
    "--verbose": "progress is always shown; --quiet switches it off. Leave it out",
}  # fmt: skip


def add_flags(parser: argparse.ArgumentParser, options: type[ConvertOptions]) -> argparse._ArgumentGroup:
    """Add a flag for every option that has one, and --split; return the group of the flags about running."""
    groups = {title: parser.add_argument_group(title, description) for title, description in GROUPS.items()}
    hints = get_type_hints(options)
    with naming_flags(_flags(options)):
        for f in fields(options):
            if flag := _flag(f):
                groups[f.metadata["group"]].add_argument(flag, **_keywords(f, hints[f.name]))
    groups[TAKE].add_argument("--split", action="store_true", help=_SPLIT)
    return groups[RUN]


def given(namespace: argparse.Namespace, options: type[ConvertOptions]) -> dict[str, Any]:
    """Return the values of the flags that `add_flags` added, as keyword arguments; those of --split are left out."""
    return {f.name: getattr(namespace, f.name) for f in fields(options) if _flag(f)}


def splits_of(namespace: argparse.Namespace, src: str | None) -> list[Split]:
    """Return the splits in SRC, for --split."""
    from lmdbloader.conversion import find_splits

    if src is None:
        namespace.parser.error("--split takes SRC, not --hr and --lr")
    if namespace.masks is not None:
        namespace.parser.error("--split takes images/ and masks/ in the folder of each split: leave --masks out")
    prefer_images = namespace.patch_size is not None or namespace.scale is not None
    return find_splits(str(src), layout=namespace.layout, prefer_images=prefer_images)


def _flags(options: type[ConvertOptions]) -> Mapping[str, str]:
    return {"src": "SRC", "out": "OUT", **{f.name: flag for f in fields(options) if (flag := _flag(f))}}


def _flag(f: Field[Any]) -> str | None:
    flag: str | None = f.metadata["flag"]
    return f"--{f.name.replace('_', '-')}" if flag == "" else flag


def _keywords(f: Field[Any], hint: Any) -> dict[str, Any]:
    """Return the arguments of `add_argument` for an option."""
    text = explain(f.metadata["text"]).replace("%", "%%")
    if hint is bool:
        return {"dest": f.name, "action": "store_true", "help": text}
    found = {"dest": f.name, "default": f.default, "metavar": f.metadata["metavar"], "help": text}
    if choices := choices_of(f, hint):
        found["choices"] = choices
    elif grammar := grammar_of(f, hint):
        found["type"] = number(grammar)
    return found
