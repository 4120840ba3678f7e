"""`params`: what was drawn for each sample of a batch, as a dict of tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import permutations
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lmdbloader.base.stage_times import NO_CLOCK, Clock
from lmdbloader.batch.batcher import Batcher
from lmdbloader.batch.dataset import LMDBDataset
from lmdbloader.batch.pipeline import Pipeline
from lmdbloader.batch.sample import PARAMS
from lmdbloader.errors import OptionError
from lmdbloader.kernels import assemble_columns as at
from lmdbloader.kernels import entries
from lmdbloader.kernels.transform import opcodes

I64 = npt.NDArray[np.int64]
# The numbers of a transform by name: the first of its columns among those drawn, and the value if it changes nothing.
_NUMBERS: Mapping[str, Mapping[str, tuple[int, float]]] = {
    "ColorJitter": {
        "brightness": (opcodes.COLOR_FACTORS, 1.0),
        "contrast": (opcodes.COLOR_FACTORS + 1, 1.0),
        "saturation": (opcodes.COLOR_FACTORS + 2, 1.0),
        "hue": (opcodes.COLOR_HUE, 0.0),
    },
    "GaussianBlur": {"sigma": (opcodes.COLOR_SIGMA, 0.0)},
}


# The 24 orders of ColorJitter's changes, (24, 4): 0 is brightness, then contrast, saturation and hue.
_ORDERS = np.array([(*order[:k], 3, *order[k:]) for order in permutations(range(3)) for k in range(4)], np.int64)


def check_params(pipeline: Pipeline, dataset: LMDBDataset) -> None:
    """Raise OptionError if batches of a dataset, whose images a pipeline reads, cannot have `params`."""
    if PARAMS in dataset.fields:
        rest = [name for name in dataset.fields if name != PARAMS]
        raise OptionError(
            f"return_params=True: the dataset has a field {PARAMS!r}. Leave it out: LMDBDataset(path, fields={rest})."
        )
    if dataset.has_own_transform:
        raise OptionError(
            "return_params=True: the dataset's own transform draws in Python, sample by sample. Write "
            "Loader(..., transforms=[...]) with compiled transforms in its place."
        )
    if not pipeline.fields:
        raise OptionError("return_params=True: no images, or images of different sizes, which no transform changes")


def with_params(batcher_of: Callable[..., Batcher], dataset: LMDBDataset, pipeline: Pipeline, **given: Any) -> Batcher:
    """Return a batcher of a pipeline whose batches have `params`; raise OptionError as `check_params` does."""
    check_params(pipeline, dataset)
    batcher = batcher_of(pipeline, **given)
    batcher.add(PARAMS, partial(params_of, pipeline))
    return batcher


def params_of(pipeline: Pipeline, rows: I64, samples: I64, epoch: int, clock: Clock = NO_CLOCK) -> Any:
    """Return what the transforms of a pipeline draw for samples; of several views a list.

    Args:
        pipeline: Reads the images.
        rows, samples, epoch: As for `Pipeline.read`.
        clock: Without effect.

    Returns:
        By the name of each field of images and masks, and of each transform of values, dicts of tensors.
    """
    found = [_params_of(pipeline, rows, samples, epoch, view) for view in range(pipeline.num_views)]
    return found[0] if pipeline.views is None else found


def _params_of(pipeline: Pipeline, rows: I64, samples: I64, epoch: int, view: int) -> dict[str, Any]:
    inverses, flips, applied, numbers, boxes = _redraw(pipeline, rows, samples, epoch, view)
    begin, end, _ = pipeline.program.views[view].tolist()
    found: dict[str, Any] = {}
    num_fields = len(pipeline.fields)
    for f, output in enumerate(pipeline.outputs[view * num_fields : (view + 1) * num_fields]):
        found[output.name] = _places(inverses[:, f], flips[:, f], boxes[:, f], output.shape[1:])
    for transform, operations in pipeline.program.sources:
        if not begin <= operations[0] < end or transform.code < opcodes.AFFINE or transform.erases:
            continue
        # At most one of its operations was not skipped, as in RandomOrder.
        which = np.array(operations) - begin
        each = applied[:, which] != 0
        kind = type(transform).__name__
        name = next(n for k in range(1, len(found) + 2) if (n := f"{kind}_{k}" if k > 1 else kind) not in found)
        found[name] = _values(kind, each.any(1), numbers[np.arange(len(rows)), which[each.argmax(1)]])
    return found


def _redraw(pipeline: Pipeline, rows: I64, samples: I64, epoch: int, view: int) -> tuple[npt.NDArray[Any], ...]:
    """Return what the transforms draw: inverses, flips, applied and numbers of the kernel `redraw`, and boxes.

    Args:
        rows, samples, epoch: As for `Pipeline.read`.
        view: The number of the view.
    """
    pipeline.reader.index.check(rows)
    begin, end, _ = pipeline.program.views[view].tolist()
    n, fields, operations = len(rows), len(pipeline.fields), end - begin
    geometry, color, boxes = (np.repeat(part[None, view], n, 0) for part in pipeline._drawn(pipeline._most)[:3])
    sides = [[columns[at.IMAGE_HEIGHT][rows], columns[at.IMAGE_WIDTH][rows]] for columns in pipeline._columns]
    geometry[:, :, 0, [opcodes.HEIGHT, opcodes.WIDTH]] = np.moveaxis(np.array(sides, np.int64), 2, 0)
    found = (
        np.empty((n, fields, 3, 3)), np.empty((n, fields, 2), np.uint8), np.empty((n, operations), np.uint8),
        np.zeros((n, operations, opcodes.NUM_COLOR)),
    )  # fmt: skip
    status = entries.draw_many(
        pipeline._operations, view, pipeline._seed, epoch, samples, pipeline._most.copy(), geometry, color, boxes
    )
    if status:
        raise pipeline._error(status, int(rows[0]), 0)
    entries.redraw(pipeline._operations, view, geometry, color, *found)
    return *found, boxes


def _places(
    inverses: npt.NDArray[np.float64], flips: npt.NDArray[np.uint8], boxes: I64, size: tuple[int, ...]
) -> dict[str, torch.Tensor]:
    """Return where the pixels of one field come from; `inverses` (n, 3, 3) carry places of the result to the image."""
    height, width = size
    corners = np.array([[0, width, 0, width], [0, 0, height, height], [1, 1, 1, 1]], np.float64)
    x, y, scale = np.moveaxis(inverses @ corners, 1, 0)
    x, y = x / scale, y / scale
    window = np.stack([x.min(1), y.min(1), x.max(1), y.max(1)], 1)
    found = {"matrix": np.linalg.inv(inverses), "window": window}
    tensors = {name: torch.from_numpy(value.astype(np.float32)) for name, value in found.items()}
    tensors["flipped"] = torch.from_numpy(flips != 0)
    if boxes.shape[1]:
        top, left, tall, wide = np.moveaxis(boxes, 2, 0)
        tensors["erased"] = torch.from_numpy(np.stack([left, top, left + wide, top + tall], 2).astype(np.float32))
    return tensors


def _values(kind: str, applied: npt.NDArray[np.bool_], numbers: npt.NDArray[np.float64]) -> dict[str, torch.Tensor]:
    """Return whether a transform changed each sample, (n,), and what it drew, from (n, NUM_COLOR) numbers."""
    found = {"applied": torch.from_numpy(applied)}
    for name, (column, neutral) in _NUMBERS.get(kind, {}).items():
        found[name] = torch.from_numpy(np.where(applied, numbers[:, column], neutral).astype(np.float32))
    if kind == "ColorJitter":
        found["order"] = torch.from_numpy(
            _ORDERS[np.where(applied, numbers[:, opcodes.COLOR_ORDER], 3).astype(np.int64)]
        )
    if kind == "RandomChannelPermutation":
        sources = numbers[:, opcodes.COLOR_SOURCES :][:, :3].astype(np.int64)
        found["permutation"] = torch.from_numpy(np.where(applied[:, None], sources, np.arange(3)))
    return found
