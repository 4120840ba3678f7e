"""Flags of the command made from the options of a conversion."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from dataclasses import Field, fields
from functools import cache
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


# Flags of other programs by ours, in addition to the names in `CONVERT`.
_FLAGS = {
    "--workers": "-j jobs n-jobs n-workers nworkers nproc num-processes num-threads processes threads",
    "--patch-size": "crop gt-size tile-size", "--scale": "downscale factor sr upscale", "--hr": "dataroot-gt gt high",
    "--lr": "dataroot-lq low lq", "--write-mode": "encode-format encoding store-as",
    "--jpeg-quality": "encode-quality jpg-quality", "--overwrite": "clobber replace",
    "--subset": "max-samples num-samples", "--parts": "n-shards num-parts num-shards shards",
    "--part-size": "chunk-size max-shard-size shard-size",
    "--annotations": "ann ann-file ann-path annFile annotation annotation-file annotations-file",
}  # fmt: skip
# Flags that are another word for one of `CONVERT`, or without a name in Python.
_SAME = {
    "resize": "height img-size imgsz shorter-side short-side size width",
    "transform": "augment mean normalize std transforms",
    "labels": "csv label label-file labels-file", "recursive": "recurse",
}  # fmt: skip
_SENTENCES = {
    "SRC and OUT have no flag: lmdbloader convert SRC OUT": "-i -o data-dir dest in input input-folder out output root "
    "save-folder src",
    "the same command resumes an interrupted conversion. Leave it out.": "resume",
    "give the images of each split a folder of their own, train/ and val/, and write --split.": "test-size val-split",
    "progress is always shown; --quiet switches it off. Leave it out.": "verbose",
}


@cache
def foreign_flags() -> Mapping[str, str]:
    """Return flags of other programs for what `convert` does, and ours or a sentence about what to write instead."""
    from lmdbloader.base.foreign_names import CONVERT

    found = {_hyphened(name): _in_flags(entry.advice(...)) for name, entry in CONVERT.items()}
    more = _FLAGS | {found[_hyphened(name)]: words for name, words in _SAME.items()} | _SENTENCES
    return found | {_hyphened(word): instead for instead, words in more.items() for word in words.split()}


def _hyphened(name: str) -> str:
    return name if name.startswith("-") else f"--{name.replace('_', '-')}"


def _in_flags(advice: str) -> str:
    """Return advice on an argument in Python as a flag, or as a sentence with flags.

    >>> _in_flags("write workers=Ellipsis."), _in_flags('write codec="lz4".')
    ('--workers', 'write --codec lz4.')
    """
    if option := re.match(r"write (\w+)=Ellipsis", advice):
        return _hyphened(option[1])
    names = "|".join(f.name for f in fields(ConvertOptions))
    flags = re.sub(rf'\b({names})="?(\w+)"?', lambda found: f"{_hyphened(found[1])} {found[2]}", advice)
    return flags.replace("Ellipsis", "N")


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
    if namespace.annotations is not None:
        namespace.parser.error("--split finds the file of each split: write --layout coco, and leave --annotations out")
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
