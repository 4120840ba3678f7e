"""`lmdbloader info`: the content of a dataset and how it was made, on one screen."""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
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
_DATASETS_SHOWN = 5
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
    if place := _place_in_set(summary.path):
        yield from _wrap(place, "", "  ")
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


def _place_in_set(path: str) -> str:
    """Return which part of which set a dataset is; "" for a dataset that is not one."""
    from lmdbloader.base.arguments import is_url
    from lmdbloader.errors import LmdbloaderError
    from lmdbloader.store import read_manifest

    folder = Path(path).absolute()
    if is_url(path) or not folder.name.startswith("part-"):
        return ""
    try:
        whole = read_manifest(folder.parent)
    except (LmdbloaderError, OSError):
        return ""
    if folder.name not in [part.name for part in whole.parts]:
        return ""
    samples = f"{counted(whole.num_samples, 'sample')} in {counted(len(whole.parts), 'part')}"
    return f"one part of the set {plain(str(folder.parent))}, which has {samples}"


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
    made = summary.made_by
    yield "release", f"lmdbloader {_value(made.get('lmdbloader', '?'))}, format version {summary.format_version}"
    yield "layout", _value(made.get("layout", "?"))
    options = made.get("options")
    yield "options", ", ".join(_flatten(options)) if isinstance(options, Mapping) else _value(options)
    inputs = made.get("inputs")
    if isinstance(inputs, Mapping):
        datasets = inputs.get("datasets")
        if isinstance(datasets, list):  # of a merged dataset or a subset
            yield from _datasets("inputs", datasets)
            yield from _choices(made)
        else:
            yield from _files(inputs, summary)
    if isinstance(appended := made.get("appended"), list):
        yield from _datasets("appended", appended)


def _files(inputs: Mapping[str, Any], summary: Summary) -> Iterator[tuple[str, str]]:
    """Yield the inputs of a dataset that was made from files."""
    text = _value(inputs.get("num_sources"))
    yield "inputs", text + (f", {summary.num_skipped:,} of them skipped (skipped.tsv)" if summary.num_skipped else "")
    for key in ("names_and_sizes", "content"):
        if key in inputs:
            yield "", f"{key.replace('_', ' ')} {_value(inputs[key])}"


def _datasets(title: str, datasets: Sequence[Any]) -> Iterator[tuple[str, str]]:
    """Yield the datasets that a dataset was made of, or that were appended to it."""
    known = [d for d in datasets if isinstance(d, Mapping)]
    for number, d in enumerate(known[:_DATASETS_SHOWN]):
        taken, of = d.get("num_samples"), d.get("of_samples")
        samples = f"{_value(taken)} {'sample' if taken == 1 and of is None else 'samples'}"
        if of is not None:
            samples = f"{_value(taken)} of {_value(of)} {'sample' if of == 1 else 'samples'}"
        yield title if not number else "", f"{samples} of {_value(d.get('content_digest'))}"
    if len(known) > _DATASETS_SHOWN:
        yield "", f"and of {len(known) - _DATASETS_SHOWN:,} more datasets"


def _choices(made: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield how the samples of a dataset were chosen."""
    choices = made.get("choices")
    if isinstance(choices, Mapping) and choices:
        yield "chosen by", ", ".join(f"{plain(str(name))} {_value(value)}" for name, value in choices.items())


def _flatten(options: Mapping[str, Any]) -> Iterator[str]:
    for key, value in options.items():
        if key == "stride" and not options.get("patch_size"):
            continue  # whole images have none
        if isinstance(value, Mapping):
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
