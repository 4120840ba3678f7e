"""`lmdbloader convert`: a folder of images to a dataset."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from lmdbloader.base.text import mebibytes
from lmdbloader.cli.saying import say

_DESCRIPTION = """\
Convert images, or image pairs, into one dataset: the folder OUT.

layouts of SRC, found by looking unless --layout says which:
  images   every image in SRC and in the folders below it
           (field image; fields lr and hr with --scale)
  pairs    a folder of high-resolution and one of low-resolution images, matched
           by name: 0001.png with 0001.png or 0001x2.png (fields lr and hr).
           Found where SRC has one folder named like x_HR and one like x_LR.
  classes  one folder for each class (fields image and label). Found where all
           images lie in two or more folders and neither --patch-size nor
           --scale is given.
  lmdb     an LMDB whose values are image files, such as BasicSR's; of two of
           them, --hr and --lr make pairs by key
  tar      a tar, a folder of tars, or a quoted pattern like 'x-{000..146}.tar':
           webdataset's, where a.jpg, a.cls, a.json and a.txt are one sample
           (fields image, label, json, text)
SRC may be a URL (s3://bucket/folder, memory://, https:// ...) with the package
lmdbloader[remote], except for LMDBs.
Samples follow the byte order of the relative paths, the order in the tars, or
that of an LMDB's keys: by number where all are decimal numbers. Patches start
at the top left of an image and go row by row; what is left at its right and
bottom edges is not used.
"""

_EPILOG = """\
images that are not plain 8-bit grey or RGB:
  EXIF rotation is applied. Palette, CMYK and YCbCr become RGB; 1 bit becomes
  8-bit grey; 16 bits stay 16 bits (uint16). Transparency is refused unless
  --alpha says what to do. Files of several frames are refused, and so are
  images of more than --max-pixels, and files that do not decode.
  What is refused stops the conversion or, with --on-error skip, is left out
  and listed at the end and in OUT/skipped.tsv.
  Links to folders are not followed. Broken links and whatever else is no
  regular file are named and left out.

An OUT that was made from the same inputs with the same options is left as it
is. A conversion that was interrupted, by whatever, is kept in OUT.partial: the
same command goes on with it, if its options are the same (--workers and
--on-error may change) and the inputs that are done have not changed.
Exit status: 0 done, 1 refused or failed, 2 wrong usage, 130 interrupted.

examples:
  lmdbloader convert photos train.lmdb --patch-size 96 --stride 48 --scale 2
  lmdbloader convert --hr DIV2K_train_HR --lr DIV2K_train_LR_bicubic/X2 \\
      train.lmdb --patch-size 96
  lmdbloader convert imagenet data --split --layout classes
  lmdbloader convert imagenet/train train.lmdb --write-mode proportion \\
      --compress-probability 0.5 --max-resolution 512 --jpeg-quality 90
  lmdbloader convert 's3://bucket/train-{000..146}.tar' train.lmdb
"""


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "convert",
        help="make a dataset from a folder of images",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="lmdbloader convert SRC OUT [options]\n       lmdbloader convert --hr DIR --lr DIR OUT [options]",
    )
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="SRC OUT",
        help="the folder of images (or LMDB, tar, URL), and the dataset to make from it",
    )
    run = add_options(parser)
    run.add_argument(
        "--overwrite",
        action="store_true",
        help="convert again, and replace the dataset at OUT once the new one is complete",
    )
    run.add_argument(
        "--restart",
        action="store_true",
        help="discard what is done of a conversion that was interrupted (default: go on with it)",
    )
    run.add_argument(
        "--take-over",
        action="store_true",
        help="continue a conversion that a process on another host began, even if it seems to be running: its "
        "committed data is kept, the rest is lost, and it ends with an error (default: refused while it gives "
        "signs of life)",
    )
    run.add_argument(
        "--hash",
        action="store_true",
        help="find inputs that changed since they were converted by reading all of them again (default: compare size, "
        "head and tail, and read the content only if the timestamp has changed)",
    )
    run.add_argument("--quiet", action="store_true", help="print nothing but errors")
    parser.set_defaults(run=_run, parser=parser)


def add_options(parser: Any) -> Any:
    """Add the options that say what becomes of which inputs; return the group of those about running."""
    what = parser.add_argument_group("what to take")
    what.add_argument(
        "--layout",
        default="auto",
        choices=("auto", "images", "pairs", "classes", "lmdb", "tar"),
        help="how SRC is laid out (default: auto)",
    )
    what.add_argument("--hr", metavar="DIR", help="folder or LMDB of pairs' high-resolution images, instead of SRC")
    what.add_argument("--lr", metavar="DIR", help="folder or LMDB of pairs' low-resolution images")
    what.add_argument(
        "--min-pair-psnr",
        type=float,
        default=20.0,
        metavar="DB",
        help="refuse a given pair when its downscaled HR image and its LR image agree less than this, PSNR in dB "
        "(default: 20), or agree better when one is moved; 0 accepts every pair",
    )
    what.add_argument(
        "--split",
        action="store_true",
        help="convert train/, val/, ... in SRC into a dataset each: OUT/train.lmdb, OUT/val.lmdb, ... Other folders in "
        "SRC too, if they hold images. Class folders of the same name have the same label in all of them",
    )
    what.add_argument("--subset", type=int, metavar="N", help="take only N of the images, chosen at random")
    what.add_argument("--seed", type=int, metavar="S", help="of --subset and of --write-mode proportion (default: 0)")
    how = parser.add_argument_group("what to make of it")
    how.add_argument(
        "--patch-size",
        type=int,
        metavar="N",
        help="cut patches of N x N pixels, of hr where there are pairs (default: store whole images)",
    )
    how.add_argument("--stride", type=int, metavar="M", help="distance between patches (default: the patch size)")
    how.add_argument(
        "--scale",
        type=int,
        metavar="S",
        help="make lr from hr, S times smaller (2 to 8), by bicubic downscaling; hr is first cropped at the right "
        "and bottom to a multiple of S. Of given pairs: the factor that they must have",
    )
    how.add_argument(
        "--bicubic",
        default="matlab",
        choices=("matlab", "pillow"),
        help="which bicubic: MATLAB's imresize, as the literature uses it (default), or Pillow's",
    )
    how.add_argument(
        "--codec",
        metavar="{auto,raw,lz4}",
        help="how pixels are stored (default: auto, which takes lz4 where it saves 10 %% of a few of the inputs). "
        "Given without --write-mode, all images are stored as pixels",
    )
    how.add_argument(
        "--digest",
        default="xxh64",
        choices=("xxh64", "sha256", "blake3"),
        help="algorithm of the dataset's digests: XXH64, with BLAKE2b for descriptions, which finds damage (default); "
        "SHA-256 or BLAKE3, which also let others check that a dataset is the one you published",
    )
    stored = parser.add_argument_group(
        "how images are stored",
        "By default whole JPEG files are kept as they are; of all other images, and\nof patches, pixels are stored.",
    )
    stored.add_argument(
        "--write-mode",
        metavar="MODE",
        choices=("raw", "jpg", "proportion", "smart", "original"),
        help="raw: pixels, not compressed (see --codec). jpg: as JPEG. proportion: some of them as JPEG, the others as "
        "pixels. smart: large ones as JPEG, the others as pixels. original: the files' own bytes",
    )
    stored.add_argument(
        "--max-resolution", type=int, metavar="N", help="shrink images whose longer side has more than N pixels to N"
    )
    stored.add_argument(
        "--jpeg-quality", type=int, metavar="Q", help="of the JPEGs that are made, 1 to 100 (default: 90)"
    )
    stored.add_argument(
        "--compress-probability", type=float, metavar="P", help="share of JPEGs with proportion, 0 to 1 (default: 0.5)"
    )
    stored.add_argument(
        "--smart-threshold",
        type=int,
        metavar="BYTES",
        help="with smart, images of more bytes of pixels (height x width x channels) than this become JPEG",
    )
    bad = parser.add_argument_group("unusual images")
    bad.add_argument(
        "--alpha",
        default="refuse",
        choices=("refuse", "drop", "white"),
        help="transparent images: refuse them (default), drop the transparency, or lay them over white",
    )
    bad.add_argument(
        "--max-pixels", type=int, default=200_000_000, metavar="N", help="refuse larger images (default: 200 million)"
    )
    bad.add_argument(
        "--on-error",
        default="stop",
        choices=("stop", "skip"),
        help="what to do at an image that cannot be used (default: stop)",
    )
    run = parser.add_argument_group("running")
    run.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="worker processes (default: the cores that this process may use, fewer for small inputs); OUT does not "
        "depend on it",
    )
    return run


def plain_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return what `add_options` parsed as keyword arguments of `convert` and `estimate`, --split left out."""
    return {
        name: getattr(options, name)
        for name in (
            "hr", "lr", "layout", "patch_size", "stride", "scale", "bicubic", "alpha", "max_pixels", "codec",
            "write_mode", "max_resolution", "jpeg_quality", "compress_probability", "smart_threshold", "digest",
            "subset", "seed", "on_error", "min_pair_psnr", "workers",
        )
    }  # fmt: skip


def _run(options: argparse.Namespace) -> int:
    from lmdbloader.conversion import find_splits
    from lmdbloader.conversion.destination import named_folder, refuse_inside
    from lmdbloader.errors import DestinationError
    from lmdbloader.store import is_dataset

    if len(options.paths) > 2 or (len(options.paths) == 1 and not options.hr):
        options.parser.error("expected SRC and OUT, or --hr, --lr and OUT")
    src, out = options.paths if len(options.paths) == 2 else (None, options.paths[0])
    if not options.split:
        _tell(_convert(options, src, out, None), quiet=options.quiet)
        return 0
    if src is None:
        options.parser.error("--split takes SRC, not --hr and --lr")
    src = str(src)
    target = named_folder(out)
    refuse_inside(target, Path(src))
    prefer_images = options.patch_size is not None or options.scale is not None
    splits = find_splits(src, layout=options.layout, prefer_images=prefer_images)
    if is_dataset(target):
        raise DestinationError(
            f"{target}: is a dataset. With --split, OUT is the folder that the datasets are put into."
        )
    target.mkdir(exist_ok=True)
    try:
        for split in splits:
            report = _convert(options, split.path, target / f"{split.name}.lmdb", split.classes)
            _tell(report, quiet=options.quiet)
    finally:
        if not any(target.iterdir()):  # the first one failed
            target.rmdir()
    return 0


def _convert(options: argparse.Namespace, src: Any, out: Any, classes: Any) -> Any:
    from lmdbloader.conversion import convert
    from lmdbloader.errors import CorruptError, DestinationError, LmdbloaderError

    try:
        return convert(
            src,
            out,
            classes=classes,
            **plain_options(options),
            overwrite=options.overwrite,
            restart=options.restart,
            take_over=options.take_over,
            check_content=options.hash,
            progress=not options.quiet,
            log=_ignore if options.quiet else say,
        )
    except DestinationError:
        raise  # says itself what to do with what is there
    except CorruptError:
        _tell_kept(out, "--restart discards it and begins anew.")
        raise
    except (LmdbloaderError, OSError, MemoryError, KeyboardInterrupt):
        _tell_kept(out, "The same command goes on with it; --restart begins anew.")
        raise


def _tell_kept(out: Any, advice: str) -> None:
    """Say what is left of a conversion that did not come to its end."""
    from lmdbloader.conversion.destination import named_folder
    from lmdbloader.store.writing.publish import begun_partial

    partial = begun_partial(named_folder(out))
    if partial is not None:
        say(f"{partial}: what is done is kept here. {advice}", error=True)


def _tell(report: Any, *, quiet: bool) -> None:
    if not quiet:
        _show(report)
    for name, reason in report.ignored:
        say(f"left out: {name}: {reason}", error=True)
    for name, reason in report.skipped:
        say(f"skipped: {name}: {reason}", error=True)
    if report.skipped:
        say(
            f"{len(report.skipped)} of {report.num_sources} skipped; the list is in {report.path}/skipped.tsv",
            error=True,
        )


def _show(report: Any) -> None:
    if report.was_finished:
        say(
            f"{report.path}: made already from the same inputs with the same options "
            f"({report.num_samples} samples); nothing to do"
        )
        return
    sizes = report.sizes
    rate = report.num_sources / max(report.seconds, 1e-9)
    stored_as = ", ".join(f"{count} {name}" for name, count in report.stored_as.items())
    ratio = sizes["data_nbytes"] / max(sizes["payload_nbytes"], 1)
    grown = f"; the map was grown {report.map_growths} times" if report.map_growths else ""
    say(f"{report.path}: {report.num_samples} samples in {report.seconds:.1f} s ({rate:.1f} inputs/s){grown}")
    print(f"  pixels   {mebibytes(sizes['raw_nbytes'])}, stored as {mebibytes(sizes['payload_nbytes'])} ({stored_as})")
    print(
        f"  data.mdb {mebibytes(sizes['data_nbytes'])}, {ratio:.3f} x the payload; "
        f"index.arrow {mebibytes(sizes['index_nbytes'])}"
    )
    sides = ", ".join(f"to {most}: {count}" for most, count in report.longest_sides.items())
    print(f"  longer side in pixels, and how many: {sides}")


def _ignore(line: str) -> None:
    pass
