"""Flags of the command made from the options of a conversion."""

from __future__ import annotations

import argparse
from dataclasses import Field, fields
from typing import TYPE_CHECKING, Any, get_type_hints

from lmdbloader.cli._numbers import number
from lmdbloader.conversion.options import (
    GROUPS,
    RUN,
    TAKE,
    ConvertOptions,
    choices_of,
    explain,
    grammar_of,
    kind_of,
    takes_several,
)

if TYPE_CHECKING:
    from lmdbloader.conversion import Split

_SPLIT = (
    "convert train/, val/ and any other folder of images in SRC to one dataset each: OUT/train.lmdb, OUT/val.lmdb, "
    "... Class folders of the same name have the same label in all of them"
)


def add_flags(parser: argparse.ArgumentParser, options: type[ConvertOptions]) -> argparse._ArgumentGroup:
    """Add a flag for every option that has one, and --split; return the group of the flags about running."""
    groups = {title: parser.add_argument_group(title, description) for title, description in GROUPS.items()}
    hints = get_type_hints(options)
    flags = {"src": "SRC", "out": "OUT", **{f.name: flag for f in fields(options) if (flag := _flag(f))}}
    for f in fields(options):
        if flag := _flag(f):
            text = explain(f.metadata["text"], lambda name, *value: " ".join([flags.get(name, name), *value]))
            groups[f.metadata["group"]].add_argument(flag, help=text.replace("%", "%%"), **_keywords(f, hints[f.name]))
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


def _flag(f: Field[Any]) -> str | None:
    flag: str | None = f.metadata["flag"]
    return f"--{f.name.replace('_', '-')}" if flag == "" else flag


def _keywords(f: Field[Any], hint: Any) -> dict[str, Any]:
    """Return the arguments of `add_argument` for an option, without its help."""
    if hint is bool:
        return {"dest": f.name, "action": "store_true"}
    found = {"dest": f.name, "default": f.default, "metavar": f.metadata["metavar"]}
    if choices := choices_of(f, hint):
        found["choices"] = choices
    elif takes_several(hint):
        found |= {} if kind_of(hint) else {"action": "append"}  # numbers have commas between
    elif grammar := grammar_of(f, hint):
        found["type"] = number(grammar)
    return found
