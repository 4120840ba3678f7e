"""`lmdbloader info`: the content of a dataset and how it was made, on one screen."""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lmdbloader.base.text import counted, first_of, plain
from lmdbloader.base.units import show_nbytes
from lmdbloader.cli._streams import say_lines

if TYPE_CHECKING:
    from lmdbloader.show import Summary

ORDER = 50
HELP = "show what a dataset holds and how it was made"
DESCRIPTION = """\
Show what a dataset holds: its fields with shapes and codecs, its sizes,
classes and sources, and how it was made. Reads the manifest and the index, and
no pixels. Sizes of images are width x height.
"""
_WIDTH = 80
_CLASSES_SHOWN = 10
_ITEMS_SHOWN = 5
_NO_BREAK = "\N{NO-BREAK SPACE}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("dataset", metavar="DB", help="the dataset's folder")
    parser.add_argument("--json", action="store_true", help="print the summary as one JSON object")


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit status."""
    from lmdbloader.show import info

    summary = info(options.dataset)
    if options.json:
        print(json.dumps(summary.to_json(), indent=2, allow_nan=False))
    else:
        say_lines("\n".join(_screen(summary)))
    return 0


def _screen(summary: Summary) -> Iterator[str]:
    yield from _wrap(f"{plain(summary.path)}: {_headline(summary)}", "", "  ")
    yield ""
    yield "Fields"
    yield from _table([(f.name, f.kind, f.describe()) for f in summary.fields])
    yield ""
    yield "Size"
    yield from _table(list(_sizes(summary)), right=(1, 2))
    for field, classes in summary.classes.items():
        yield ""
        yield f"Classes ({field}): {len(classes):,}"
        yield from _classes(classes)
    yield ""
    yield "How it was made"
    yield from _table(list(_made_by(summary)))
    yield ""
    yield "Digests"
    yield from _table([(name, plain(digest)) for name, digest in summary.digests.items()])


def _headline(summary: Summary) -> str:
    text = counted(summary.num_samples, "sample")
    if summary.num_parts is not None:
        text += f" in {counted(summary.num_parts, 'part')}"
    if summary.num_sources is None or summary.samples_per_source is None:
        return text
    fewest, most = summary.samples_per_source
    text += f" from {counted(summary.num_sources, 'source')}"
    if most > 1:
        text += f", {fewest:,} to {most:,} of each" if fewest != most else f", {most:,} of each"
    return text


def _sizes(summary: Summary) -> Iterator[tuple[str, ...]]:
    yield "", "decoded", "stored", "", ""
    for f in summary.fields:
        if f.raw_nbytes is not None and f.stored_nbytes is not None:
            share = f"{f.stored_nbytes / f.raw_nbytes:.0%}" if f.raw_nbytes else ""
            yield f.name, show_nbytes(f.raw_nbytes), show_nbytes(f.stored_nbytes), share, _shares(f.codecs or {})
    sizes = summary.sizes
    yield (
        "all", show_nbytes(sizes["raw_nbytes"]), show_nbytes(sizes["payload_nbytes"]), "",
        f"compressed {summary.compression_ratio:.2f} : 1",
    )  # fmt: skip
    data = "data.mdb" if summary.num_parts is None else "data files"
    yield data, "", show_nbytes(sizes["data_nbytes"]), "", f"{summary.waste_ratio:.3f} x what is stored"
    each = sizes["index_nbytes"] / max(summary.num_samples, 1)
    yield (
        "index.arrow" if summary.num_parts is None else "index",
        "",
        show_nbytes(sizes["index_nbytes"]),
        "",
        f"{each:,.0f} bytes a sample",
    )


def _shares(codecs: Mapping[str, int]) -> str:
    total = sum(codecs.values())
    return ", ".join(
        f"{name} {count:,}" + ("" if count == total else f" ({count / total:.0%})") for name, count in codecs.items()
    )


def _classes(classes: Sequence[tuple[str, int | None]]) -> Iterator[str]:
    counts = [(name, count) for name, count in classes if count is not None]
    if len(counts) < len(classes):  # of boxes
        yield from _wrap(plain(first_of([name for name, _ in classes], _CLASSES_SHOWN)), "  ", "  ")
        return
    yield from _ranked(counts)


def _ranked(classes: Iterable[tuple[str, int]]) -> Iterator[str]:
    ranked = sorted(classes, key=lambda item: -item[1])
    shown = [(plain(name), f"{count:,}") for name, count in ranked[:_CLASSES_SHOWN]]
    yield from _table(shown, right=(1,))
    if len(ranked) > _CLASSES_SHOWN:
        rest = [count for _, count in ranked[_CLASSES_SHOWN:]]
        yield f"  and {len(rest):,} more with {rest[-1]:,} to {rest[0]:,} samples each"


def _made_by(summary: Summary) -> Iterator[tuple[str, str]]:
    made = dict(summary.made_by)
    yield "release", f"lmdbloader {_value(made.pop('lmdbloader', '?'))}"
    for name, value in made.items():
        yield plain(str(name)), ", ".join(_flatten(value)) if isinstance(value, Mapping | list) else _value(value)
    if summary.num_skipped:
        yield "skipped", f"{summary.num_skipped:,} (skipped.tsv)"


def _flatten(values: Mapping[str, Any] | list[Any]) -> Iterator[str]:
    """Yield the names and values in nested ones; of a list, such as merged datasets, the first five items."""
    if isinstance(values, list):
        for value in values[:_ITEMS_SHOWN]:
            yield from _flatten(value) if isinstance(value, Mapping) else [_value(value)]
        if len(values) > _ITEMS_SHOWN:
            yield f"and {len(values) - _ITEMS_SHOWN:,} more"
        return
    for key, value in values.items():
        if key == "stride" and not values.get("patch_size"):
            continue  # whole images have none
        if isinstance(value, list) and all(isinstance(each, int) for each in value):
            value = ", ".join(map(_value, value))  # the scales
        if isinstance(value, Mapping | list):
            yield from _flatten(value)
        elif value is not None:
            yield f"{plain(str(key))} {_value(value)}".replace(" ", _NO_BREAK)


def _table(rows: Sequence[tuple[str, ...]], right: tuple[int, ...] = ()) -> Iterator[str]:
    """Yield indented rows with aligned columns; the last column is wrapped."""
    if not rows:
        return
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    for row in rows:
        cells = [
            cell.rjust(w) if i in right else cell.ljust(w)
            for i, (cell, w) in enumerate(zip(row[:-1], widths, strict=True))
        ]
        start = "  " + "  ".join(cells) + "  "
        yield from _wrap(row[-1], start, " " * min(len(start), _WIDTH // 2))


def _wrap(text: str, first: str, other: str) -> list[str]:
    lines = textwrap.wrap(
        text, _WIDTH, initial_indent=first, subsequent_indent=other, break_long_words=False, break_on_hyphens=False
    )
    return [line.replace(_NO_BREAK, " ").rstrip() for line in lines] or [first.rstrip()]


def _value(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else plain(str(value))
