"""`lmdbloader convert`: a folder of images to a dataset."""

from __future__ import annotations

import argparse
import os
import re
import shlex
from collections.abc import Callable, Set
from pathlib import Path
from typing import Any

from lmdbloader.base.option_names import option
from lmdbloader.base.text import counted, plain
from lmdbloader.cli._options import add_flags, given, splits_of
from lmdbloader.cli._report import tell
from lmdbloader.cli._streams import say, say_nothing
from lmdbloader.conversion.options import RunOptions

ORDER = 30
HELP = "make a dataset from a folder of images"
USAGE = "lmdbloader convert SRC OUT [options]\n       lmdbloader convert --hr DIR --lr DIR OUT [options]"
# The flags in --help; all others are in --help-all.
COMMON = (
    *("help", "help_all", "layout", "hr", "lr", "masks", "annotations", "subset", "split", "patch_size", "scale"),
    *("codec", "write_mode", "max_resolution", "alpha", "on_error", "workers", "overwrite", "restart"),
)
EXAMPLES = """\
examples:
  lmdbloader convert photos train.lmdb --scale 2
  lmdbloader convert photos train.lmdb --scale 2,3,4
  lmdbloader convert --hr DIV2K_train_HR --lr DIV2K_train_LR_bicubic/X2 \\
      train.lmdb
  lmdbloader convert imagenet data --split --layout classes
"""
SHORT_DESCRIPTION = """\
Convert images, or image pairs, into one dataset: the folder OUT. Images are
stored whole: the Loader crops them.

layouts of SRC, detected unless --layout is given:
  images   every image in SRC and in the folders below it
  pairs    a folder of high-resolution and one of low-resolution images
  classes  one folder for each class
  tar      tars in the format of webdataset
  lmdb     an LMDB whose values are image files, such as BasicSR's
and never detected: clips, masks, coco, yolo.
SRC may be a URL (s3://bucket/folder, https:// ...) with lmdbloader[remote].
"""
SHORT_EPILOG = f"""\
The same command finishes an interrupted conversion in OUT.partial.
lmdbloader convert --help-all has all options, layouts and kinds of images.

{EXAMPLES}"""
DESCRIPTION = """\
Convert images, or image pairs, into one dataset: the folder OUT.

layouts of SRC, detected unless --layout is given:
  images   every image in SRC and in the folders below it
           (field image; fields lr and hr with --scale, or lr2, lr3, lr4 and hr
           with several scales)
  pairs    a folder of high-resolution and one of low-resolution images, matched
           by name: 0001.png with 0001.png or 0001x2.png (fields lr and hr).
           Found if SRC has one folder named like x_HR and one like x_LR.
           Both may have the same size: clean and noisy images. --layout pairs
           also finds sharp/ with blur/, or GT_1.png with NOISY_1.png.
  classes  one folder for each class (fields image and label). Found if all
           images are in two or more folders and neither --patch-size nor
           --scale is given. Folders such as train/ and val/ are refused:
           see --split.
  clips    for lmdbloader.Clips: a folder of numbered frames for each clip, such
           as 000/00000012.png, an LMDB with such keys, or video files, with
           lmdbloader[video] (fields image, or lr and hr; clip and frame). Never
           detected.
  masks    a folder of images and one of masks, matched by name: a.jpg with
           a.png or a_mask.png (fields image and mask). SRC holds images/ and
           masks/, or is the folder of images, with --masks DIR. Never detected.
  coco     a folder of images, and --annotations FILE: COCO's JSON with their
           boxes (fields image, boxes and labels). Without --annotations,
           annotations/instances_X.json next to X/ or images/X/. Never detected.
  yolo     images/ and labels/, where labels/a.txt has a line
           `class x y width height` for each box in images/a.jpg (fields image,
           boxes and labels); names in data.yaml or classes.txt. Never detected.
  lmdb     an LMDB whose values are image files, such as BasicSR's; of two of
           them, --hr and --lr make pairs by key
  tar      a tar, a folder of tars, or a quoted pattern like 'x-{000..146}.tar':
           webdataset's, where a.jpg, a.cls, a.json and a.txt are one sample
           (fields image, label, json, text)
SRC may be a URL (s3://bucket/folder, memory://, https:// ...) with the package
lmdbloader[remote], except for LMDBs.
Samples follow the byte order of the relative paths, the order in the tars, or
that of an LMDB's keys: by number if all are decimal numbers.
"""

EPILOG = """\
images that are not plain 8-bit gray or RGB:
  EXIF rotation is applied. Palette, CMYK and YCbCr become RGB; 1 bit becomes
  8-bit gray; 16 bits stay 16 bits (uint16). Transparency is refused unless
  --alpha says what to do. Files with several frames are refused, as are
  images of more than --max-pixels, and files that do not decode.
  With lmdbloader[rasters], TIFFs of 1 to 64 channels of 8 or 16 bits, float16
  or float32 are stored as they are. So are .npy (H, W, C), .exr and .dcm, in
  folders without other images.
  A refused image stops the conversion or, with --on-error skip, is left out
  and listed at the end and in OUT/skipped.tsv.
  Files that are not images are left out and named.

parts:
  OUT has data files of about --part-size each. Several processes write, up to
  --workers. Equal inputs and options give equal files, whoever makes them. On
  several machines with a shared file system:
    lmdbloader convert SRC OUT --parts 16 --plan-only
    lmdbloader convert SRC OUT --part I/16     for each I from 0 to 15, anywhere
    lmdbloader join OUT
  all with the same options. A Ray cluster does all of it in one command:
    lmdbloader convert SRC OUT --parts 64 --engine ray --address HOST:PORT

numbers: 1_000, 1e6, 4k (4000); sizes: 512M, 2GB, 2GiB; shares: 0.5, 50%.
Sides in pixels cannot have a k.

An OUT that was made from the same inputs with the same options is left as it
is. The same command finishes an interrupted conversion in OUT.partial.
Exit status: 0 done, 1 refused or failed, 2 wrong usage, 130 interrupted.

"""
EPILOG += f"""\
{EXAMPLES}\
  lmdbloader convert photos train.lmdb --patch-size 96 --stride 48 --scale 2
  lmdbloader convert imagenet/train train.lmdb --write-mode proportion \\
      --compress-probability 0.5 --max-resolution 512 --jpeg-quality 90
  lmdbloader convert 's3://bucket/train-{{000..146}}.tar' train.lmdb
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="SRC OUT",
        help="the folder of images (or LMDB, tar, URL), and the dataset to make from it",
    )
    running = add_flags(parser, RunOptions)
    running.add_argument(
        "--plan-only",
        action="store_true",
        help="list the inputs and save the plan in OUT.partial, and convert nothing yet",
    )
    running.add_argument(
        "--part",
        metavar="I/N",
        help="make one part, number I of N, counted from 0. The first process makes the plan if there is none",
    )
    running.add_argument(
        "--engine",
        choices=("local", "ray"),
        default="local",
        help="what makes the parts: processes of this machine, or tasks of a Ray cluster, up to --workers at "
        "the same time, each with one CPU (pip install 'lmdbloader[ray]')",
    )
    running.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="with --engine ray: the cluster (default: that of RAY_ADDRESS, or else a new one on this machine). Its "
        "nodes have lmdbloader, and see SRC and OUT under the same absolute paths",
    )
    running.add_argument("--quiet", action="store_true", help="print nothing but errors")


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit status."""
    if len(options.paths) > 2 or (len(options.paths) == 1 and not options.hr):
        got = counted(len(options.paths), "path")
        options.parser.error(f"expected SRC and OUT, or --hr, --lr and OUT, but got {got}")
    src, out = options.paths if len(options.paths) == 2 else (None, options.paths[0])
    if options.address is not None and options.engine != "ray":
        options.parser.error(f"--address {options.address} has no effect without --engine ray")
    if options.engine == "ray" and (options.part is not None or options.plan_only):
        options.parser.error("--engine ray plans, makes and joins all parts: leave --part and --plan-only out")
    if options.part is not None or options.plan_only:
        if options.split:
            options.parser.error("--split makes several datasets: plan the parts of each on its own")
        _convert_part(options, src, out) if options.part is not None else _plan(options, src, out)
    elif options.split:
        _convert_splits(options, src, out)
    else:
        tell(_convert(options, src, out, None), quiet=options.quiet)
    return 0


def _convert_splits(options: argparse.Namespace, src: str | None, out: str) -> None:
    """Convert train/, val/ ... into a dataset each."""
    from lmdbloader.conversion.destination import named_folder, refuse_inside
    from lmdbloader.errors import DestinationError
    from lmdbloader.store import is_dataset

    splits = splits_of(options, src)
    for name, reason in _next_to_splits(Path(str(src)), {split.name for split in splits}, options.layout):
        say(f"left out: {name}: {reason}", error=True)
    target = named_folder(out)
    refuse_inside(target, Path(str(src)))
    if is_dataset(target):
        raise DestinationError(
            f"{target}: is a dataset. With --split, OUT is the folder that the datasets are put into."
        )
    target.mkdir(exist_ok=True)
    try:
        for split in splits:
            report = _convert(options, split.path, target / f"{split.name}.lmdb", split.classes)
            tell(report, quiet=options.quiet)
    finally:
        if not any(target.iterdir()):  # the first one failed
            target.rmdir()


def _next_to_splits(src: Path, splits: Set[str], layout: str) -> list[tuple[str, str]]:
    """Return (name, reason) of what is in a folder next to its splits."""
    from lmdbloader.conversion.sources import coco, yolo
    from lmdbloader.conversion.sources.folders import is_circular
    from lmdbloader.conversion.sources.listing import Others, is_litter

    others, folders = Others(), []
    read = {"coco": (coco.ANNOTATIONS,), "yolo": yolo.NAMES_YAML}.get(layout, ())
    for path in sorted(src.iterdir()):
        if path.name in splits or path.name in read or path.name.startswith("."):
            continue
        if is_litter(os.fsencode(path.name)):
            others.add_litter(os.fsencode(path.name))
        elif is_circular(path):
            others.add_link(os.fsencode(path.name))
        elif path.is_dir():
            folders.append((f"{path.name}/", "a folder without images"))
        else:
            others.add(os.fsencode(path.name))
    return [*folders, *others.ignored()]


def _plan(options: argparse.Namespace, src: str | None, out: str) -> None:
    """Plan the parts, and say what to run."""
    from lmdbloader.conversion import plan_parts

    plan = plan_parts(src, out, **given(options, RunOptions), log=_log(options))
    if options.quiet:
        return
    if plan.is_finished:
        say(f"{plan.path}: already made from the same inputs with the same options; nothing to do")
        return
    last = plan.num_parts - 1
    numbers = f"0/{plan.num_parts} to {last}/{plan.num_parts}" if last else "0/1"
    say(
        f"{plan.path}: planned {counted(plan.num_parts, 'part')}. Convert each with the same options, with --part "
        f"{numbers} in place of --plan-only. Then: lmdbloader join {shlex.quote(plan.path)}"
    )


def _convert_part(options: argparse.Namespace, src: str | None, out: str) -> None:
    """Make one part."""
    from lmdbloader.conversion.parts import convert_part, saved_plan
    from lmdbloader.errors import OptionError

    number, count = _numbers(options)
    keywords = given(options, RunOptions)
    if options.part_size is None:
        keywords["parts"] = count
    plan = saved_plan(src, out, **keywords, log=_log(options))
    if plan.is_finished:
        if not options.quiet:
            say(f"{plan.path}: the dataset is complete, with this part; nothing to do")
        return
    if plan.num_parts != count:
        raise OptionError(
            f"{option('part', options.part)}: {plan.path} has {counted(plan.num_parts, 'part')}, not {count}"
        )
    part = convert_part(
        out,
        number,
        workers=options.workers,
        on_error=options.on_error,
        check_content=options.check_content,
        progress=not options.quiet,
        log=_log(options),
    )
    if not options.quiet:
        of = f"{plan.path}: part {number} of {count}, counted from 0"
        if part.was_finished:
            say(f"{of}: complete already ({counted(part.num_samples, 'sample')}); nothing to do")
        else:
            rate = part.num_sources / max(part.seconds, 1e-9)
            say(f"{of}: {counted(part.num_samples, 'sample')} in {part.seconds:.1f} s ({rate:.1f} inputs/s)")
    for name, reason in part.skipped:
        say(plain(f"skipped: {name}: {reason}"), error=True)


def _numbers(options: argparse.Namespace) -> tuple[int, int]:
    """Return the number of a part, and how many there are, of --part."""
    if re.fullmatch(r"[0-9]+/[1-9][0-9]*", options.part) is None:
        options.parser.error(f"--part {options.part}: expected I/N, such as 0/16: number I of N parts, counted from 0")
    number, count = map(int, options.part.split("/"))
    if number >= count:
        last = f"{count - 1}/{count}"
        options.parser.error(f"--part {options.part}: parts are counted from 0: expected 0/{count} to {last}")
    if options.parts not in (None, count):
        options.parser.error(f"--part {options.part} with --parts {options.parts}: leave --parts out")
    if options.plan_only:
        options.parser.error("--part with --plan-only: leave one out")
    return number, count


def _log(options: argparse.Namespace) -> Callable[[str], None]:
    return say_nothing if options.quiet else say


def _convert(options: argparse.Namespace, src: Any, out: Any, classes: Any) -> Any:
    address: dict[str, Any] = {}
    if options.engine == "ray":
        from lmdbloader.ray import convert

        address["address"] = options.address
    else:
        from lmdbloader.conversion import convert  # type: ignore[assignment]

    return convert(
        src,
        out,
        classes=classes,
        **given(options, RunOptions),
        **address,
        progress=not options.quiet,
        log=_log(options),
    )
