"""Reads images of files that Python decodes, which kernels then use in place of payloads."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from lmdbloader.base.stage_times import Clock
from lmdbloader.base.system import clock_ns

I64 = npt.NDArray[np.int64]
# So many bytes of pixels are held at a time.
_GIVEN_NBYTES = 4 * 2**20


def read_decoded(pipeline: Any, kept: I64 | None, arguments: tuple[Any, ...]) -> None:
    """Do as `run` of a Pipeline with these arguments; kept: `given`, (n, fields, 2), of what is decoded, or None.

    A few are read at a time, so that what Python decodes takes little memory, and stays in the processor's caches.
    """
    rows, samples, epoch, out, batch_size, scratch, clock = arguments
    places = np.arange(len(rows))
    sizes = np.array([o.nbytes for o in pipeline.outputs])
    each = out[places // batch_size] + (places % batch_size)[:, None] * sizes
    nbytes = sum(pipeline.reader.index.columns[f"{name}.raw_nbytes"][rows].astype(np.int64) for name in pipeline.fields)
    bounds = np.flatnonzero(np.diff(np.cumsum(nbytes) // _GIVEN_NBYTES, prepend=-1)).tolist()
    for first, end in pairwise([*bounds, len(rows)]):
        began = clock_ns()
        given, _alive = _given(pipeline, rows[first:end], None if kept is None else kept[first:end], clock)
        scratch.set_given(given)
        given_ns = clock_ns() - began
        pipeline.run(rows[first:end], samples[first:end], epoch, each[first:end], 1, scratch, clock)
        pipeline.reader.took(end - first, given_ns, clock_ns() - began)


def _given(pipeline: Any, rows: I64, kept: I64 | None, clock: Clock) -> tuple[I64, list[npt.NDArray[Any]]]:
    """Return `given` of `assemble`, (n, fields, 2) int64, and the memory that it points to but for what is kept."""
    pixels: list[npt.NDArray[Any]] = []
    given = np.zeros((len(rows), len(pipeline.fields), 2), np.int64) if kept is None else kept.copy()
    for f, name in enumerate(pipeline.fields):
        codecs = pipeline.reader.index.columns[f"{name}.codec"][rows]
        for j in np.flatnonzero(pipeline.reader.decodes_in_python(codecs) & (given[:, f, 1] == 0)).tolist():
            found = pipeline.reader.read_given(name, int(rows[j]), verify=pipeline.verify, clock=clock)
            pixels.append(found)
            given[j, f] = found.ctypes.data, found.nbytes if found.ndim == 3 else -found.nbytes
    return given, pixels
