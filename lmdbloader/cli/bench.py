"""`lmdbloader bench`: the speed of batches on this machine, compared with other ways to load them."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmdbloader.base.units import PIXELS, REAL, WHOLE
from lmdbloader.cli._numbers import number
from lmdbloader.cli._streams import say
from lmdbloader.errors import FormatError, OptionError

if TYPE_CHECKING:
    from lmdbloader.lab.study import Study

ORDER = 120
HELP = "measure how fast batches are loaded, compared with other ways to load them"
DESCRIPTION = """\
Measure how fast batches of a dataset are loaded on this machine: by the Loader
of lmdbloader, by torch's DataLoader over the same dataset and, with --baseline,
by torch's DataLoader over the same images as files. The sections:

  sweep             batch sizes 8 to 128 and crops 16 and 64, loading alone and
                    training SRCNN: samples/s, waits, processor time, where a
                    step's time goes, what the GPU does
  threads           the Loader with one thread, up to one for each core
  oversubscription  one to four threads or workers for each core
  isolation         several processes at the same time, each with a loader
  cold              the first epoch from storage: the page cache is dropped for
                    these files alone, which slows down whoever else reads them,
                    so it is measured only with --only cold (Linux)

The settings take turns, because other programs disturb the measurement: speeds
are medians, and loaders are compared by turns that are neighbours in time. By
default it takes two to three minutes on 2 cores. Two stored studies, of two
machines or before and after a change, are compared.
"""
EPILOG = """\
examples:
  lmdbloader bench train.lmdb --baseline auto
  lmdbloader bench train.lmdb --only sweep --model none --batch-sizes 16 256
  lmdbloader bench train.lmdb --baseline photos --only cold
  lmdbloader bench train.lmdb --baseline photos --seconds 2 --json study.json
  lmdbloader bench study.json --report report.html
  lmdbloader bench before.json after.json
"""
_SECTIONS = ("sweep", "threads", "oversubscription", "isolation", "cold")
_MODELS = ("srcnn915", "srcnn955", "none")
# What is given is passed on to `bench`, which has the defaults.
_MEASURING = (
    "baseline", "only", "batch_sizes", "crops", "model", "seconds", "repeats", "processes", "num_workers", "device",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add = parser.add_argument
    add("dataset", metavar="DB", help="the dataset's folder, or a study.json to show")
    add("other", metavar="JSON", nargs="?", help="a second study.json: the two are compared")
    add(
        "--baseline",
        metavar="DIR",
        help="compare with torch's DataLoader over this folder of the same images as files; for several image fields "
        "it has a folder for each; 'auto' writes PNG files of up to 4,000 samples into a temporary folder",
    )
    add("--only", metavar="SECTION", nargs="+", choices=_SECTIONS, help="measure only these sections")
    add(
        "--batch-sizes", metavar="N", type=number(WHOLE), nargs="+", help="samples in a batch (default: 8 16 32 64 128)"
    )
    add(
        "--crops",
        metavar="N",
        type=_crop,
        nargs="+",
        help="sides of random windows in pixels of the largest image, or 'whole' (default: 16 64)",
    )
    add(
        "--model",
        metavar="NAME",
        choices=_MODELS,
        help="network to train: %(choices)s; none only loads (default: srcnn915)",
    )
    add("--seconds", metavar="S", type=number(REAL), help="seconds of one turn of a setting (default: 0.2)")
    add("--repeats", metavar="N", type=number(WHOLE), help="turns of each setting (default: 3)")
    add(
        "--processes",
        metavar="K",
        type=number(WHOLE),
        nargs="+",
        help="processes of the isolation test (default: 1, and one for each core, 2 to 8)",
    )
    add(
        "--num-workers",
        metavar="N",
        type=number(WHOLE),
        help="worker processes of torch's DataLoader (default: one for each core, 16 at most)",
    )
    add("--device", metavar="NAME", help="where to train: cpu, cuda, cuda:1 (default: cuda if available)")
    add("--json", metavar="FILE", help="write every figure as JSON; '-' writes to stdout, in place of tables")
    add("--report", metavar="FILE", help="write a report with charts, one HTML file (needs lmdbloader[report])")


def _crop(text: str) -> int | None:
    return None if text == "whole" else int(number(PIXELS)(text))


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit status."""
    given = {name: value for name in _MEASURING if (value := getattr(options, name)) is not None}
    stored = [name for name in (options.dataset, options.other) if name and _is_stored(name)]
    if stored and given:
        named = ", ".join("--" + name.replace("_", "-") for name in given)
        raise OptionError(f"{stored[0]}: is a finished study; {named} would need a new measurement of a dataset.")
    if options.other is not None:
        return _compare(options)
    _check_outputs(options)
    study = _read(options.dataset) if stored else _measure(options.dataset, given)
    text = json.dumps(study.as_json(), indent=1, allow_nan=False)
    if options.json not in (None, "-"):
        Path(options.json).write_text(text + "\n", "utf-8")
    print(text if options.json == "-" else study)
    if options.report is not None:
        from lmdbloader.lab.reporting import write_report

        write_report(study, options.report)
        say(f"report: {options.report}", error=True)
    return 0


def _compare(options: argparse.Namespace) -> int:
    """Compare two stored studies."""
    from lmdbloader.lab.study import compare_studies

    for name in (options.dataset, options.other):
        if not _is_stored(name):
            raise OptionError(
                f"{name}: two studies are compared, and each is a file that ends in .json, which `lmdbloader bench DB "
                "--json FILE` writes. A folder of images to compare a dataset with is given as --baseline."
            )
    if options.json is not None or options.report is not None:
        raise OptionError("--json and --report show one study; two are compared in a table only.")
    print(compare_studies(_read(options.dataset), _read(options.other)))
    return 0


def _check_outputs(options: argparse.Namespace) -> None:
    """Raise an error for files that cannot be written, before minutes are spent on measuring."""
    if options.json not in (None, "-"):
        is_new = not os.path.lexists(options.json)
        open(options.json, "a").close()  # an existing file stays until there is new content
        if is_new:
            os.unlink(options.json)
    if options.report is not None:
        from lmdbloader.lab.reporting import check_report_path

        check_report_path(Path(options.report))


def _is_stored(name: str) -> bool:
    """Return whether the name is that of a file, not of a dataset's folder."""
    return name.endswith(".json") and not os.path.isdir(name)


def _read(name: str) -> Study:
    from lmdbloader.lab.study import Study

    try:
        value = json.loads(Path(name).read_bytes())
    except ValueError as error:
        raise FormatError(
            f"{name}: is not JSON ({error}); expected output of `lmdbloader bench --json FILE`"
        ) from error
    return Study.from_json(value)


def _measure(dataset: str, given: dict[str, Any]) -> Study:
    began = time.monotonic()

    def progress(line: str) -> None:
        print(f"[{time.monotonic() - began:4.0f} s] {line}", file=sys.stderr, flush=True)

    progress("loading torch")
    from lmdbloader.lab.study import bench

    if given.get("model") == "none":
        given["model"] = None
    return bench(dataset, **given, progress=progress)
