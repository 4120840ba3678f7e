"""`lmdbloader convert`: a folder of images to a dataset."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from lmdbloader.cli.text import mebibytes

_DESCRIPTION = """\
Convert a folder of images (or of pairs) into one dataset, OUT.

Layouts: "images" takes every image in SRC and below (field image; with --scale, lr and hr). "pairs" takes a folder of
high-resolution and one of low-resolution images, matched by name (0001.png with 0001.png or 0001x2.png; fields lr, hr).
"classes" takes one subfolder per class (fields image, label). "auto" takes pairs where SRC has a folder ending in HR and
one in LR, classes where all images lie in two or more subfolders and neither patches nor a scale are asked for, images
otherwise. Samples follow the byte order of the relative path; patches go from the top left, row by row.
"""

_EPILOG = """\
What happens to images that are not plain 8-bit grey or RGB:
  EXIF rotation is applied. Palette, CMYK and YCbCr become RGB, 1-bit becomes grey. 16 bits stay 16 bits (uint16).
  Transparency is refused unless --alpha drop or white. Files of several frames are refused. So are images of more than
  --max-pixels. A file that does not decode, or decodes only with warnings, stops the conversion, or is left out and listed
  in OUT/skipped.tsv with --on-error skip. Links to folders are not followed; what is no regular file is named and left out.

An OUT made from the same inputs with the same options is left as it is (exit status 0). Whatever fails, nothing
half-written stays behind. Exit status: 0 done, 1 refused, 2 wrong usage.

examples:
  lmdbloader convert photos/ train.lmdb --patch-size 96 --stride 48 --scale 2
  lmdbloader convert train.lmdb --hr DIV2K_train_HR --lr DIV2K_train_LR_bicubic/X2 --patch-size 96
  lmdbloader convert imagenet/train train.lmdb --layout classes
"""


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "convert",
        help="make a dataset from a folder of images",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="lmdbloader convert [SRC] OUT [options]",
    )
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="[SRC] OUT",
        help="folder of images (not with --hr and --lr), and the dataset to make",
    )
    what = parser.add_argument_group("what to take")
    what.add_argument(
        "--layout",
        default="auto",
        choices=("auto", "images", "pairs", "classes"),
        help="how SRC is laid out (default: auto)",
    )
    what.add_argument("--hr", metavar="DIR", help="folder of the high-resolution images of pairs")
    what.add_argument("--lr", metavar="DIR", help="folder of the low-resolution images of pairs")
    what.add_argument(
        "--min-pair-psnr",
        type=float,
        default=20.0,
        metavar="DB",
        help="refuse given pairs that agree less, HR downscaled against LR (default: 20)",
    )
    how = parser.add_argument_group("what to make of it")
    how.add_argument(
        "--patch-size",
        type=int,
        metavar="N",
        help="cut patches of N x N (high-resolution) pixels; default: whole images",
    )
    how.add_argument("--stride", type=int, metavar="M", help="distance between patches (default: the patch size)")
    how.add_argument(
        "--scale",
        type=int,
        metavar="S",
        help="make lr by bicubic downscaling, 2, 3 or 4; hr is cropped to a multiple first",
    )
    how.add_argument(
        "--bicubic",
        default="matlab",
        choices=("matlab", "pillow"),
        help="matlab: imresize as in the literature (default)",
    )
    how.add_argument(
        "--codec",
        default="auto",
        help="raw, lz4, or auto: lz4 where it saves 10 %% of a sample of the inputs (default)",
    )
    bad = parser.add_argument_group("unusual images")
    bad.add_argument(
        "--alpha",
        default="refuse",
        choices=("refuse", "drop", "white"),
        help="what to do with transparency (default: refuse)",
    )
    bad.add_argument(
        "--max-pixels", type=int, default=200_000_000, metavar="N", help="refuse larger images (default: 200 million)"
    )
    bad.add_argument(
        "--on-error", default="stop", choices=("stop", "skip"), help="at an image that cannot be used (default: stop)"
    )
    run = parser.add_argument_group("running")
    run.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="processes (default: the cores that this process may use); OUT does not depend on it",
    )
    run.add_argument("--overwrite", action="store_true", help="replace the dataset at OUT once the new one is complete")
    run.add_argument("--quiet", action="store_true", help="print nothing but errors")
    parser.set_defaults(run=_run, parser=parser)


def _run(options: argparse.Namespace) -> int:
    from lmdbloader.conversion import convert

    if len(options.paths) > 2 or (len(options.paths) == 1 and not options.hr):
        options.parser.error("expected SRC and OUT, or --hr, --lr and OUT")
    src, out = options.paths if len(options.paths) == 2 else (None, options.paths[0])
    report = convert(
        src,
        out,
        layout=options.layout,
        hr=options.hr,
        lr=options.lr,
        patch_size=options.patch_size,
        stride=options.stride,
        scale=options.scale,
        bicubic=options.bicubic,
        alpha=options.alpha,
        max_pixels=options.max_pixels,
        codec=options.codec,
        on_error=options.on_error,
        min_pair_psnr=options.min_pair_psnr,
        workers=options.workers,
        overwrite=options.overwrite,
        progress=not options.quiet,
        log=_ignore if options.quiet else print,
    )
    if not options.quiet:
        _show(report)
    for name, reason in report.ignored:
        print(f"left out: {name}: {reason}", file=sys.stderr)
    for name, reason in report.skipped:
        print(f"skipped: {name}: {reason}", file=sys.stderr)
    if report.skipped:
        print(
            f"{len(report.skipped)} of {report.num_sources} skipped; the list is in {report.path}/skipped.tsv",
            file=sys.stderr,
        )
    return 0


def _show(report: Any) -> None:
    if report.was_finished:
        print(
            f"{report.path}: made already from the same inputs with the same options ({report.num_samples} samples); nothing to do"
        )
        return
    sizes = report.sizes
    rate = report.num_sources / max(report.seconds, 1e-9)
    ratio = sizes["data_nbytes"] / max(sizes["payload_nbytes"], 1)
    grown = f"; the map was grown {report.map_growths} times" if report.map_growths else ""
    print(f"{report.path}: {report.num_samples} samples in {report.seconds:.1f} s ({rate:.1f} inputs/s){grown}")
    print(f"  pixels   {mebibytes(sizes['raw_nbytes'])}, stored as {mebibytes(sizes['payload_nbytes'])} of payload")
    print(
        f"  data.mdb {mebibytes(sizes['data_nbytes'])}, {ratio:.3f} x the payload; index.arrow {mebibytes(sizes['index_nbytes'])}"
    )


def _ignore(line: str) -> None:
    pass
