"""LR images by a degradation of `lmdbloader.superres`, drawn once for each image by its name."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from lmdbloader.base.option_names import option
from lmdbloader.conversion.options import Options
from lmdbloader.errors import ImageError, OptionError
from lmdbloader.format.codecs import checksum

Pixels = npt.NDArray[Any]


def settled(options: Options) -> Options:
    """Return options with the degradation as its full text, including what its option file says.

    Raises:
        OptionError: There is no such degradation, or another option excludes it.
    """
    given, scale = options.degradation, options.scale
    if given is None:
        return options
    if not isinstance(scale, int):
        raise OptionError(f"{option('degradation', given)} needs one scale: {option('scale', 4)} between hr and lr")
    if options.bicubic != "matlab":
        raise OptionError(f"{option('bicubic', options.bicubic)} has no effect with {option('degradation', given)}")
    text = os.fspath(given) if isinstance(given, str | os.PathLike) else repr(given)
    return replace(options, degradation=repr(_named.__wrapped__(text, scale)))  # a file may change


@lru_cache(maxsize=1)
def _named(text: str, scale: int) -> Any:
    from lmdbloader.superres.degradations import named  # torch, which no other conversion needs

    return named(text, scale)


def degrade(text: str, scale: int, image: Pixels, name: str, seed: int) -> dict[str, Pixels]:
    """Return `lr` and `hr` of an image (H, W, C) by a `settled` degradation; draws depend on the seed and the name.

    Raises:
        ImageError: There is not enough memory.
    """
    sample = int(np.array(checksum(name.encode("utf-8", "surrogatepass")), np.uint64).astype(np.int64))
    try:
        lr, hr = _named(text, scale).degraded(image, sample, seed=seed)
    except MemoryError as error:
        reason = f"not enough memory to degrade {image.shape[1]}x{image.shape[0]} pixels; use fewer workers"
        raise ImageError(name, reason) from error
    return {"lr": lr, "hr": hr}
