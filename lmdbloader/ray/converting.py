"""`lmdbloader.ray.convert`: a conversion in parts, each of which a task on a Ray cluster makes."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import partial

from lmdbloader.base.option_names import option
from lmdbloader.conversion.destination import new_folder
from lmdbloader.conversion.doubts import refuse_swapped
from lmdbloader.conversion.options import RUN, RunOptions, opt, with_options
from lmdbloader.conversion.part_writers import convert_parts
from lmdbloader.conversion.report import Report
from lmdbloader.errors import OptionError
from lmdbloader.ray.cluster import connected
from lmdbloader.ray.engine import make_parts
from lmdbloader.ray.needed import need_ray


@dataclass(frozen=True, slots=True, kw_only=True)
class RayOptions(RunOptions):
    """The options of `lmdbloader.ray.convert`."""

    address: str | None = opt(
        None,
        RUN,
        "address of the Ray cluster that makes the parts, such as 10.0.0.1:6379 (default: the cluster that this "
        "program is connected to, that of the variable RAY_ADDRESS, or else a new one on this machine)",
        metavar="HOST:PORT",
    )


@with_options(RayOptions)
def convert(src: str | os.PathLike[str] | None, out: str | os.PathLike[str], options: RayOptions) -> Report:
    """Convert a folder of images in parts, like `lmdbloader.convert`, with tasks on a Ray cluster.

    The set of parts is, byte for byte, the one that `lmdbloader.convert` makes with the same options. A part whose
    worker died is made again, on any node. The same call, with any engine, continues a conversion that was
    interrupted: parts that are complete are kept.

    Every node must have lmdbloader installed, and see the inputs and `out` under the same absolute paths.

    Args:
        src: As in `lmdbloader.convert`.
        out: The set to make. Either `parts` or `part_size` is required; choose several parts for each CPU, because a
            part is made on one CPU. `workers` is the most parts that are made at the same time, by default as many as
            the cluster has CPUs.

    Returns:
        A report of the conversion.

    Raises:
        SourceError, ImageError, DestinationError, DiskError, DiskFullError, CorruptError: As by `lmdbloader.convert`.
        OptionError: Ray is not installed, no cluster answers at `address`, or neither `parts` nor `part_size` is
            given; or an option is out of its range, or contradicts another.
        WorkerError: Several workers died while making the same part, or a node cannot run the tasks.
    """
    target = new_folder(out)
    refuse_swapped(src, target)
    if options.parts is None and options.part_size is None:
        raise OptionError(
            "Ray converts in parts, one task for each. Give their number, several for each CPU: "
            f"{option('parts', 64)}; or their size: {option('part_size', '4GiB')}."
        )
    ray = need_ray("converting with Ray")
    with connected(ray, options.address, options.workers) as is_local:
        # A new cluster has as many CPUs as workers were asked for, so Ray itself limits the tasks that run.
        engine = partial(make_parts, ray, at_once=None if is_local else options.workers, is_local=is_local)
        # The trial that estimates sizes runs on this machine, with as many processes as it has cores.
        return convert_parts(src, target, replace(options, workers=None), engine)
