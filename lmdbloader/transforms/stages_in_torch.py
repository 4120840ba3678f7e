"""Carries batches through the stages of transforms with torch, on any device, to the bits of the compiled kernels.

Images of uint16 are int16 here, for which torch has all operations, and those of float16 are float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lmdbloader.kernels import entries
from lmdbloader.kernels.transform import opcodes as op
from lmdbloader.transforms.colors_in_torch import change_colors, to_device
from lmdbloader.transforms.values import Values

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]
# Images (B, C, H, W), and the arrays of the batch's Pack on the device, to other images.
Step = Callable[[Tensor, Sequence[Tensor]], Tensor]
# A place outside of an image: its sum with any other is negative.
_OUTSIDE = -(2**40)
_TAPS_AT_ONCE = 4
_BITS = {1: (torch.uint8, np.uint8), 2: (torch.int16, np.int16), 4: (torch.int32, np.int32)}


class Pack:
    """Small arrays, which go to a device in one copy."""

    def __init__(self) -> None:
        self._arrays: list[npt.NDArray[Any]] = []

    def add(self, array: Any) -> int:
        """Add an array; return its number."""
        self._arrays.append(np.ascontiguousarray(array))
        return len(self._arrays) - 1

    def send(self, device: torch.device) -> list[Tensor]:
        """Return the arrays on a device."""
        padded = [np.append(a.reshape(-1).view(np.uint8), np.zeros(-a.nbytes % 8, np.uint8)) for a in self._arrays]
        padded.append(np.zeros(8, np.uint8))  # there may be none
        sent = to_device(np.concatenate(padded), device)
        parts = zip(self._arrays, sent.split([len(p) for p in padded]), strict=False)  # type: ignore[no-untyped-call]
        return [part[: a.nbytes].view(torch.from_numpy(a[:0]).dtype).view(a.shape) for a, part in parts]


def carried(images: Tensor, steps: Sequence[Step], sent: Sequence[Tensor]) -> Tensor:
    """Return images after steps."""
    for step in steps:
        images = step(images, sent)
    return images


def plan_stages(geometry: I64, color: F64, size: tuple[int, ...], dtype: torch.dtype, pack: Pack) -> list[Step]:
    """Return the steps that carry images through their stages.

    Args:
        geometry, color: (B, stages, ...) as drawn for a field.
        size, dtype: (H, W) and the stored type of all images.
        pack: Gets the arrays that the steps need.
    """
    groups = _groups_of(geometry, dtype)
    if groups.any():
        picks = [np.flatnonzero(groups == k) for k in range(groups.max() + 1)]
        plans = [(pack.add(p), plan_stages(geometry[p], color[p], size, dtype, pack)) for p in picks]
        back = pack.add(np.argsort(np.concatenate(picks)))
        return [lambda i, sent: torch.cat([carried(i[sent[pick]], steps, sent) for pick, steps in plans])[sent[back]]]
    steps = list[Step]()
    for s in range(geometry.shape[1]):
        g = np.ascontiguousarray(geometry[:, s].T)
        closing = g[op.CLOSING, 0] if s < geometry.shape[1] - 1 else op.WRITE
        if closing == op.CARRY:
            continue
        placed, new = tuple(g[[op.HEIGHT, op.WIDTH], 0].tolist()), tuple(g[[op.NEW_HEIGHT, op.NEW_WIDTH], 0].tolist())
        if closing != op.THEN_RESIZE:
            steps += _placing(g, size, placed, pack)
            if (applied := g[op.CLOSING] == op.THEN_COLOR).any():
                steps.append(_coloring(np.ascontiguousarray(color[:, s]), applied, dtype))
        elif g[op.MASK, 0]:
            steps += _placing(g, size, new, pack)
        else:
            windows = _windows(g)
            if _is_filled(g).any():
                steps += _placing(g, size, placed, pack)
                size, windows = placed, np.array([[0, placed[0], 0, placed[1]]])
            resizing = _resizing if dtype == torch.uint8 else _resizing_words
            steps += resizing(windows, size, new, bool(g[op.CUBIC, 0]), pack)
        size = new if closing == op.THEN_RESIZE else placed
    return steps


def _groups_of(geometry: I64, dtype: torch.dtype) -> I64:
    """Return the number of a group (B,) for each sample: the images of a group have one size all the way."""
    g = np.moveaxis(geometry, 2, 0)
    resizes = g[op.CLOSING] == op.THEN_RESIZE
    mixes = resizes & (g[op.MASK] == 0)
    filled = mixes & _is_filled(g)
    ends = (g[op.CLOSING] != op.CARRY) * (1 + resizes)
    # A window of bytes, and one of labels, may have any size before it is resized.
    has_size = (ends == 1) | filled | (mixes & (dtype != torch.uint8))
    has_size[:, -1] = True
    wanted = [g[column] * resizes for column in (op.NEW_HEIGHT, op.NEW_WIDTH, op.CUBIC, op.TRANSPOSED)]
    keys = np.stack([ends, filled, g[op.HEIGHT] * has_size, g[op.WIDTH] * has_size, *wanted])
    if (keys == keys[:, :1]).all():
        return np.zeros(len(geometry), np.int64)
    found: I64 = np.unique(keys.swapaxes(0, 1).reshape(len(geometry), -1), axis=0, return_inverse=True)[1].reshape(-1)
    return found


def _coloring(drawn: F64, applied: npt.NDArray[np.bool_], dtype: torch.dtype) -> Step:
    return lambda images, _: change_colors(images.view(dtype), drawn, applied).view(images.dtype)


def _is_filled(g: I64) -> Any:
    """Return whether parts of results are outside of their images."""
    high, wide = g[op.BOTTOM] < g[op.HEIGHT], g[op.RIGHT] < g[op.WIDTH]
    return high | wide | (g[op.TOP] > 0) | (g[op.LEFT] > 0)


def _windows(g: I64) -> I64:
    """Return (B, 4) top, bottom, left and right in the images of whole results; one row if all are equal."""
    high, wide = np.where(g[op.TRANSPOSED], g[[op.WIDTH, op.HEIGHT]], g[[op.HEIGHT, op.WIDTH]])
    top = g[op.ROW] - np.where(g[op.DOWN] < 0, high - 1, 0)
    left = g[op.COLUMN] - np.where(g[op.ACROSS] < 0, wide - 1, 0)
    windows = np.stack([top, top + high, left, left + wide], 1)
    return windows[:1] if (windows == windows[0]).all() else windows


def _placing(g: I64, size: tuple[int, ...], new: tuple[int, ...], pack: Pack) -> list[Step]:
    """Return the steps that write results of geometries (NUM_GEOMETRY, B); in another size with the nearest pixels."""
    used = g[[*range(op.TRANSPOSED, op.CLOSING), *range(op.FILL, op.NUM_GEOMETRY)]]
    g = g[:, :1] if (used == used[:, :1]).all() else g
    is_filled, (row, column) = bool(_is_filled(g).any()), g[[op.ROW, op.COLUMN], 0].tolist()
    turns = g[[op.TRANSPOSED, op.DOWN, op.ACROSS, op.HEIGHT, op.WIDTH], 0].tolist() != [0, 1, 1, *new]
    if g.shape[1] == 1 and not (is_filled or turns):
        return [] if new == size else [lambda images, _: images[:, :, row : row + new[0], column : column + new[1]]]
    down, across = g[op.DOWN] * size[1], g[op.ACROSS]
    down, across = np.where(g[op.TRANSPOSED], (across, down), (down, across))
    y, x = _nearest(g[op.HEIGHT], new[0]), _nearest(g[op.WIDTH], new[1])
    rows, columns = (g[op.ROW] * size[1] + g[op.COLUMN])[:, None] + down[:, None] * y, across[:, None] * x
    rows[(y < g[op.TOP, :, None]) | (y >= g[op.BOTTOM, :, None])] = _OUTSIDE
    columns[(x < g[op.LEFT, :, None]) | (x >= g[op.RIGHT, :, None])] = _OUTSIDE
    numbers = pack.add(rows[:, None, :, None]), pack.add(columns[:, None, None, :])
    fill = pack.add(g[op.FILL : op.FILL + 3].T[:, :, None, None]) if is_filled else 0

    def place(images: Tensor, sent: Sequence[Tensor]) -> Tensor:
        n, channels = images.shape[:2]
        index = (sent[numbers[0]] + sent[numbers[1]]).expand(n, channels, *new)
        places = (index.clamp(min=0) if is_filled else index).reshape(n, channels, -1)
        found = images.flatten(2).gather(2, places).view(index.shape)
        if not is_filled:
            return found
        fills = sent[fill][:, : channels if channels <= 3 else 1]  # of floats the bits; more channels have one fill
        fills = fills.to(torch.int32).view(torch.float32) if found.is_floating_point() else fills.to(found.dtype)
        return torch.where(index < 0, fills, found)

    return [place]


def _nearest(sizes: I64, count: int) -> I64:
    """Return (B or 1, count) which of so many pixels torchvision's NEAREST takes: in float32, as in torch."""
    if (sizes == count).all():
        return np.arange(count)[None]
    scale = sizes.astype(np.float32) / np.float32(count)
    places = np.floor(np.arange(count, dtype=np.float32) * scale[:, None]).astype(np.int64)
    return np.minimum(places, sizes[:, None] - 1)


def _weigh(sizes: I64, out_size: int, cubic: bool, unit: int) -> tuple[I64, npt.NDArray[np.float32], I64]:
    """Return starts (n, out_size), weights (n, taps, out_size) and counts (n, 2), see `weigh_many`."""
    reach = int(np.ceil(2 * (2 if cubic else 1) * max(float(sizes.max()) / out_size, 1.0))) + unit - 1
    n, most = len(sizes), reach + -reach % _TAPS_AT_ONCE
    starts, counts = np.empty((n, out_size), np.int64), np.empty((n, 2), np.int64)
    weights, bounds = np.zeros((n, most, out_size), np.float32), np.empty(out_size, np.int32)
    room = np.empty(out_size * (most + most // 2 + 2), np.float32)
    entries.weigh_many(np.ascontiguousarray(sizes), out_size, cubic, unit, starts, weights, counts, bounds, room)
    return starts, weights[:, : counts[:, 0].max()], counts


def _resizing(windows: I64, size: tuple[int, ...], new: tuple[int, ...], cubic: bool, pack: Pack) -> list[Step]:
    """Return the step that resizes windows of bytes, by products of matrices.

    Their numbers are whole, of at most 8 bits, as pixels are less 128: all products and sums are exact, in any order
    and with TensorFloat-32.
    """
    numbers = list[tuple[int, int]]()
    for k, unit in enumerate((2, 4)):  # as in `resize_bytes`
        begins, ends = windows[:, 2 * k], windows[:, 2 * k + 1]
        starts, weights, counts = _weigh(ends - begins, new[k], cubic, unit)
        high = np.rint(weights / 256) * 256
        both = np.stack([weights - high, high], 1).swapaxes(2, 3) * 2.0 ** -counts[:, 1, None, None, None]
        numbers.append((pack.add((starts + begins[:, None])[:, None, :, None]), pack.add(both.astype(np.float16))))

    def matrices(sent: Sequence[Tensor], k: int) -> Tensor:
        starts, weights = sent[numbers[k][0]], sent[numbers[k][1]].float()
        n, _, _, taps = weights.shape
        places = (starts + torch.arange(taps, device=starts.device)).expand_as(weights)
        # The last weights are zeros, of values that are not there.
        found = weights.new_zeros(n, 2, new[k], size[k] + taps).scatter_(3, places, weights)
        return found[..., : size[k]].reshape(n, 2 * new[k], size[k])

    def rounded(values: Tensor, dim: int) -> Tensor:
        low, high = values.chunk(2, dim)
        return (low + high).add_(0.5).floor_().clamp_(-128, 127)

    def resize(images: Tensor, sent: Sequence[Tensor]) -> Tensor:
        (n, channels), (height, width) = images.shape[:2], size
        values = images.float().reshape(n, channels * height, width) - 128
        values = rounded(values @ matrices(sent, 1).mT, 2).view(n, channels, height, new[1])
        values = values.transpose(1, 2).reshape(n, height, channels * new[1])
        values = rounded(matrices(sent, 0) @ values, 1).view(n, new[0], channels, new[1])
        return (values + 128).to(torch.uint8).transpose(1, 2).contiguous()

    return [resize]


def _resizing_words(windows: I64, size: tuple[int, ...], new: tuple[int, ...], cubic: bool, pack: Pack) -> list[Step]:
    """Return the steps that resize windows of one size of uint16 or float32, sum for sum as `resize_window` does."""
    height, width = (int(windows[0, k + 1] - windows[0, k]) for k in (0, 2))
    g = np.zeros((op.NUM_GEOMETRY, len(windows)), np.int64)
    g[[op.DOWN, op.ACROSS]], g[op.ROW], g[op.COLUMN] = 1, windows[:, 0], windows[:, 2]
    g[[op.HEIGHT, op.BOTTOM]], g[[op.WIDTH, op.RIGHT]] = height, width
    steps = _placing(g, size, (height, width), pack)
    for dim, length, out_size in ((3, width, new[1]), (2, height, new[0])):
        starts, weights, _ = _weigh(np.array([length]), out_size, cubic, 1)
        places = starts + np.arange(weights.shape[1])[:, None]
        steps.append(_summing(dim, pack.add(places), pack.add(weights[0] if dim == 3 else weights[0, :, :, None])))
    return steps


def _summing(dim: int, places: int, weights: int) -> Step:
    def resize(images: Tensor, sent: Sequence[Tensor]) -> Tensor:
        is_float, k, taps = images.is_floating_point(), 0, list(zip(sent[places], sent[weights], strict=True))
        values = (images if is_float else images.view(torch.uint16)).float()
        total = values.new_full((), 0.0 if is_float else 0.5)
        while k < len(taps):
            end = k + _TAPS_AT_ONCE if len(taps) - k >= _TAPS_AT_ONCE else k + 1
            parts = [values.index_select(dim, place) * weight for place, weight in taps[k:end]]
            total, k = sum(parts[1:], parts[0]) + total, end
        return total if is_float else total.clamp(0, 65535.25).to(torch.int32).to(torch.int16)

    return resize


def plan_values(values: Values, boxes: I64, size: tuple[int, ...], pack: Pack) -> list[Step]:
    """Return the steps that make the values of a batch from stored ones, and fill erased rectangles.

    Args:
        values: How they are made.
        boxes: (B, erasings, 4) as drawn for a field.
        size: (H, W) of the images.
        pack: Gets the arrays that the steps need.
    """
    steps = list[Step]()
    if values.table is not None:
        words = values.table.view(_BITS[values.table.itemsize][1])
        numbers = pack.add(words), pack.add(np.arange(len(words))[:, None, None] * words.shape[1])
        mask = words.shape[1] - 1
        steps.append(lambda i, sent: sent[numbers[0]].take((i.long() & mask) + sent[numbers[1]]).view(values.dtype))
    elif values.kind != op.COPY:
        numbers = pack.add(values.affine[:, 0, None, None]), pack.add(values.affine[:, 1, None, None])

        def scale(images: Tensor, sent: Sequence[Tensor]) -> Tensor:
            floats = (images.view(torch.uint16) if images.dtype == torch.int16 else images).float()
            return (floats * sent[numbers[0]]).add_(sent[numbers[1]]).to(values.dtype)

        steps.append(scale)
    else:  # float16 came as float32
        steps.append(lambda i, _: i.half() if values.dtype == torch.float16 else i.view(values.dtype))
    for k in range(boxes.shape[1]):
        top, left, high, wide = boxes[:, k].T[:, :, None]
        if high.any():
            steps.append(_erasing((top, top + high), (left, left + wide), values, k, size, pack))
    return steps


def _erasing(rows: Any, columns: Any, values: Values, k: int, size: tuple[int, ...], pack: Pack) -> Step:
    dtype, word = _BITS[values.carrier.itemsize]
    y, x = ((begin <= p) & (p < end) for p, (begin, end) in zip(map(np.arange, size), (rows, columns), strict=True))
    fill = values.erased[k, :, None, None].astype(f"u{values.carrier.itemsize}").view(word)
    numbers = pack.add(y[:, None, :, None]), pack.add(x[:, None, None, :]), pack.add(fill)

    def erase(images: Tensor, sent: Sequence[Tensor]) -> Tensor:
        y, x, fill = (sent[number] for number in numbers)
        return torch.where(y & x, fill, images.view(dtype)).view(values.dtype)

    return erase
