"""`lmdbloader bench`: the speed of batches on this machine, compared with other ways to load them."""

from __future__ import annotations

import argparse
import json
import os
import shlex
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
                    training SRCNN: samples/s, latency, processor time, where a
                    step's time goes, what the GPU does, pinned or paged memory
  threads           the Loader with one thread, up to one for each core
  oversubscription  one to four threads or workers for each core
  isolation         several processes at the same time, each with a loader
  cold              the first epoch from storage: the page cache is dropped for
                    these files alone, which slows down whoever else reads them,
                    so it is measured only with --only cold (Linux)

The settings take turns, and medians are shown, because other programs disturb
the measurement. The first sentence is the conclusion. Sentences below the
tables state the findings, and what was left out and why; settings whose turns
overlap are not called different. The last lines are what to do now. Two stored
studies are compared: of two machines, or before and after a change. Progress
goes to stderr, with the time that is left. By default it takes two to three
minutes on 2 cores. A study that was interrupted (Ctrl-C) goes on with the same
command; only "cold" is measured again.
"""
EPILOG = """\
examples:
  lmdbloader bench train.lmdb --baseline auto
  lmdbloader bench train.lmdb --only sweep --model none --batch-sizes 16 256
  lmdbloader bench train.lmdb --baseline photos --only cold
  lmdbloader bench train.lmdb --baseline photos --seconds 2 --json study.json
  lmdbloader bench study.json --report report.html
  lmdbloader bench before.json after.json --report change.html
"""
_SECTIONS = ("sweep", "threads", "oversubscription", "isolation", "cold")
# Options of measuring, and their defaults.
_MEASURING: dict[str, Any] = {
    "baseline": None, "only": None, "batch_sizes": None, "crops": None, "model": "srcnn915", "seconds": 0.2,
    "repeats": 3, "processes": None, "num_workers": None, "device": None,
    "restart": False,
}  # fmt: skip
_MODELS = ("srcnn915", "srcnn955", "none")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("dataset", metavar="DB", help="the dataset's folder, or a study.json to show")
    parser.add_argument("other", metavar="JSON", nargs="?", help="a second study.json: the two are compared")
    parser.add_argument(
        "--baseline",
        metavar="DIR",
        help="compare with torch's DataLoader over this folder of the same images as files; for several image fields "
        "it has a folder for each; 'auto' writes PNG files of up to 4,000 samples into a temporary folder",
    )
    parser.add_argument("--only", metavar="SECTION", nargs="+", choices=_SECTIONS, help="measure only these sections")
    parser.add_argument(
        "--batch-sizes", metavar="N", type=number(WHOLE), nargs="+", help="samples in a batch (default: 8 16 32 64 128)"
    )
    parser.add_argument(
        "--crops",
        metavar="N",
        type=_crop,
        nargs="+",
        help="sides of random windows in pixels of the largest image, or 'whole' (default: 16 64)",
    )
    parser.add_argument(
        "--model",
        metavar="NAME",
        choices=_MODELS,
        default=_MEASURING["model"],
        help="network to train: %(choices)s; none only loads (default: %(default)s)",
    )
    parser.add_argument(
        "--seconds",
        metavar="S",
        type=number(REAL),
        default=_MEASURING["seconds"],
        help="seconds of one turn of a setting (default: %(default)s)",
    )
    parser.add_argument(
        "--repeats",
        metavar="N",
        type=number(WHOLE),
        default=_MEASURING["repeats"],
        help="turns of each setting (default: %(default)s)",
    )
    parser.add_argument(
        "--processes",
        metavar="K",
        type=number(WHOLE),
        nargs="+",
        help="processes of the isolation test (default: 1, and one for each core, 2 to 8)",
    )
    parser.add_argument(
        "--num-workers",
        metavar="N",
        type=number(WHOLE),
        help="worker processes of torch's DataLoader (default: one for each core, 16 at most)",
    )
    parser.add_argument(
        "--device", metavar="NAME", help="where to train: cpu, cuda, cuda:1 (default: cuda if available)"
    )
    _add_outputs(parser)


def _add_outputs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--restart",
        action="store_true",
        help="measure everything, and discard what interrupted studies of this dataset have kept (default: the same "
        "command goes on from there, within a day)",
    )
    parser.add_argument(
        "--json", metavar="FILE", help="write every figure as JSON; '-' writes to stdout, in place of tables"
    )
    parser.add_argument(
        "--report", metavar="FILE", help="write a report with charts, one HTML file (needs lmdbloader[report])"
    )
    parser.add_argument(
        "--charts", metavar="DIR", help="write the charts as PNG and SVG files (needs lmdbloader[report])"
    )


def _crop(text: str) -> int | None:
    return None if text == "whole" else int(number(PIXELS)(text))


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit status."""
    _check_outputs(options)
    if options.other is not None:
        return _compare(options)
    study = _stored(options.dataset, options) if _is_stored(options.dataset) else _measured(options)
    text = json.dumps(study.as_json(), indent=1, allow_nan=False)
    if options.json not in (None, "-"):
        with open(options.json, "w", encoding="utf-8") as file:
            file.write(text + "\n")
    print(text if options.json == "-" else study)
    if options.report is not None:
        from lmdbloader.lab.reporting import write_report

        write_report(study, options.report)
        say(f"report: {options.report}", error=True)
    if options.charts is not None:
        from lmdbloader.lab.reporting import write_charts

        say(f"charts: {len(write_charts(study, options.charts))} files in {options.charts}", error=True)
    return 0


def _compare(options: argparse.Namespace) -> int:
    """Compare two stored studies."""
    from lmdbloader.lab.study import compare_studies

    names = (options.dataset, options.other)
    for name in names:
        if not _is_stored(name):
            raise OptionError(_line_for_two(*names, name))
    if options.charts is not None:
        raise OptionError("--charts: draws one study. Give --report FILE.html for charts of a comparison.")
    studies = [_stored(name, options) for name in names]
    found = compare_studies(studies[0], studies[1], names=names)
    text = json.dumps(found.as_json(), indent=1, allow_nan=False)
    if options.json not in (None, "-"):
        with open(options.json, "w", encoding="utf-8") as file:
            file.write(text + "\n")
    print(text if options.json == "-" else found)
    if options.report is not None:
        from lmdbloader.lab.reporting import write_comparison

        write_comparison(found, studies[1], options.report)
        say(f"report: {options.report}", error=True)
    return 0


def _line_for_two(first: str, second: str, found: str) -> str:
    """Return the error about two arguments of which one, `found`, is not a stored study."""
    from lmdbloader.store import is_dataset

    for dataset, images in ((first, second), (second, first)):
        if is_dataset(Path(dataset)) and os.path.isdir(images) and not is_dataset(Path(images)):
            return (
                f"{images}: is not a dataset. To compare with the same images as files, write: "
                f"lmdbloader bench {shlex.quote(dataset)} --baseline {shlex.quote(images)}"
            )
    return (
        f"{found}: two studies are compared, and each is a file that ends in .json. Write it first: "
        f"lmdbloader bench {shlex.quote(found)} --json study.json"
    )


def _check_outputs(options: argparse.Namespace) -> None:
    """Raise an error for files that cannot be written, before minutes are spent on measuring."""
    if options.json not in (None, "-"):
        is_new = not os.path.lexists(options.json)
        open(options.json, "a").close()  # an existing file stays until there is new content
        if is_new:
            os.unlink(options.json)
    if options.report is not None or options.charts is not None:
        from lmdbloader.lab.reporting import check_charts_folder, check_report_path

        if options.report is not None:
            check_report_path(Path(options.report))
        if options.charts is not None:
            check_charts_folder(Path(options.charts))


def _is_stored(name: str) -> bool:
    """Return whether the name is that of a file, not of a dataset's folder."""
    return name.endswith(".json") and not os.path.isdir(name)


def _stored(name: str, options: argparse.Namespace) -> Study:
    from lmdbloader.lab.study import Study

    path = Path(name)
    asked = [name for name, default in _MEASURING.items() if getattr(options, name) != default]
    if asked:
        given = ", ".join("--" + name.replace("_", "-") for name in asked)
        raise OptionError(
            f"{path}: is a finished study, which is only shown; {given} would need a new measurement. Give the "
            "dataset's folder for that."
        )
    if not path.exists():
        raise FormatError(
            f"{path}: there is no such file; expected output of `lmdbloader bench --json FILE`, or a dataset's folder"
        )
    try:
        value = json.loads(path.read_bytes())
    except ValueError as error:
        raise FormatError(
            f"{path}: is not JSON ({error}); expected output of `lmdbloader bench --json FILE`"
        ) from error
    return Study.from_json(value)


def _measured(options: argparse.Namespace) -> Study:
    progress = _Progress()
    progress("loading torch")
    import lmdbloader.lab.study as studies

    if options.restart:
        studies.forget_turns(options.dataset)
    return studies.bench(
        options.dataset,
        baseline=options.baseline,
        batch_sizes=options.batch_sizes or studies.BATCH_SIZES,
        crops=options.crops or studies.CROPS,
        model=None if options.model == "none" else options.model,
        only=options.only or studies.SECTIONS,
        seconds=options.seconds,
        repeats=options.repeats,
        processes=options.processes,
        num_workers=options.num_workers,
        device=options.device,
        progress=progress,
    )


class _Progress:
    """Shows lines on stderr, each with the seconds since the first."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def __call__(self, line: str) -> None:
        print(f"[{time.monotonic() - self._began:4.0f} s] {line}", file=sys.stderr, flush=True)
