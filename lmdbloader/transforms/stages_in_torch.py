"""Carries batches through the stages of transforms with torch, on any device, to the bits of the compiled kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lmdbloader.kernels import entries
from lmdbloader.kernels.transform import opcodes as op
from lmdbloader.transforms.values import Values

I64 = npt.NDArray[np.int64]
# Images (B, C, H, W), and the arrays of the batch's Pack on the device, to other images.
Step = Callable[[Tensor, Sequence[Tensor]], Tensor]
# A place outside of an image: its sum with any other is negative.
_OUTSIDE = -(2**40)
# Results begin at every 4th column and at every 2nd row of bytes, see `weigh`.
_UNIT_ACROSS, _UNIT_DOWN = 4, 2
_TAPS_AT_ONCE = 4
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
_WORDS = {1: np.dtype(np.uint8), 2: np.dtype(np.int16), 4: np.dtype(np.int32)}


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
        ends = np.cumsum([0, *(-(-array.nbytes // 8) * 8 for array in self._arrays)]).tolist()
        memory = np.empty(ends[-1], np.uint8)
        for array, begin in zip(self._arrays, ends, strict=False):
            memory[begin : begin + array.nbytes] = array.reshape(-1).view(np.uint8)
        sent = torch.from_numpy(memory).to(device, non_blocking=True)
        return [
            sent[begin : begin + array.nbytes].view(torch.from_numpy(array[:0]).dtype).view(array.shape)
            for array, begin in zip(self._arrays, ends, strict=False)
        ]


def groups_of(geometry: I64, dtype: torch.dtype) -> I64:
    """Return the number of a group (n,) for each sample: those of a group have images of one size all the way.

    Args:
        geometry: (n, stages, NUM_GEOMETRY).
        dtype: Of the images.
    """
    g = np.moveaxis(geometry, 2, 0)
    resizes = g[op.CLOSING] == op.THEN_RESIZE
    mixes = resizes & (g[op.MASK] == 0)
    filled = mixes & _is_filled(g)
    ends = (g[op.CLOSING] != op.CARRY) * (1 + resizes)
    # A window of bytes, and one of labels, may have any size before it is resized.
    has_size = (ends == 1) | filled | (mixes & (dtype != torch.uint8))
    has_size[:, -1] = True
    sizes = [g[op.HEIGHT] * has_size, g[op.WIDTH] * has_size]
    wanted = [g[column] * resizes for column in (op.NEW_HEIGHT, op.NEW_WIDTH, op.CUBIC, op.TRANSPOSED)]
    keys = np.stack([ends, filled, *sizes, *wanted]).transpose(1, 0, 2).reshape(len(geometry), -1)
    if (keys == keys[0]).all():
        return np.zeros(len(geometry), np.int64)
    found: I64 = np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1)
    return found


def plan_stages(geometry: I64, color: npt.NDArray[np.float64], images: Tensor, pack: Pack) -> list[Step]:
    """Return the steps of the samples of one group.

    Args:
        geometry, color: (n, stages, ...) of their images.
        images: (B, C, H, W), of whose size and type theirs are.
        pack: Gets the arrays that the steps need.
    """
    steps, size, dtype = list[Step](), tuple(images.shape[2:]), images.dtype
    for s in range(geometry.shape[1]):
        g = np.ascontiguousarray(geometry[:, s].T)
        is_last = s == geometry.shape[1] - 1
        if g[op.CLOSING, 0] == op.CARRY and not is_last:
            continue
        resizes, cubic = g[op.CLOSING, 0] == op.THEN_RESIZE and not is_last, bool(g[op.CUBIC, 0])
        placed, new = (int(g[op.HEIGHT, 0]), int(g[op.WIDTH, 0])), (int(g[op.NEW_HEIGHT, 0]), int(g[op.NEW_WIDTH, 0]))
        if resizes and g[op.MASK, 0]:
            steps += _placing(g, size, new, dtype, pack)
        elif resizes:
            if _is_filled(g).any():
                steps += _placing(g, size, placed, dtype, pack)
                windows = np.array([[0, placed[0], 0, placed[1]]])
            else:
                windows = _windows(g)
            if dtype == torch.uint8:
                steps.append(_resizing(windows, size, new, cubic, pack))
            else:
                steps += _resizing_words(windows, size, new, cubic, dtype, pack)
        else:
            steps += _placing(g, size, placed, dtype, pack)
            if (applied := g[op.CLOSING] == op.THEN_COLOR).any() and not is_last:
                steps.append(partial(_recolored, drawn=np.ascontiguousarray(color[:, s]), applied=applied))
        size = new if resizes else placed
    return steps


def _recolored(
    images: Tensor, _: Sequence[Tensor], drawn: npt.NDArray[np.float64], applied: npt.NDArray[Any]
) -> Tensor:
    from lmdbloader.transforms.colors_in_torch import change_colors

    found: Tensor = change_colors(images, drawn, applied)
    return found


def _is_filled(g: I64) -> npt.NDArray[np.bool_]:
    """Return for each sample whether a part of the result is outside of its image."""
    found: npt.NDArray[np.bool_] = (
        (g[op.TOP] > 0) | (g[op.LEFT] > 0) | (g[op.BOTTOM] < g[op.HEIGHT]) | (g[op.RIGHT] < g[op.WIDTH])
    )
    return found


def _windows(g: I64) -> I64:
    """Return (n, 4) top, bottom, left and right in the image of the whole result; one row if all are equal."""
    high, wide = (np.where(g[op.TRANSPOSED], g[b], g[a]) for a, b in ((op.HEIGHT, op.WIDTH), (op.WIDTH, op.HEIGHT)))
    top = g[op.ROW] - np.where(g[op.DOWN] < 0, high - 1, 0)
    left = g[op.COLUMN] - np.where(g[op.ACROSS] < 0, wide - 1, 0)
    windows = np.stack([top, top + high, left, left + wide], 1)
    return windows[:1] if (windows == windows[0]).all() else windows


def _bits(images: Tensor) -> Tensor:
    """Return uint16 as int16, for which torch has all operations."""
    return images.view(torch.int16) if images.dtype == torch.uint16 else images


def _placing(g: I64, size: tuple[int, ...], new: tuple[int, int], dtype: torch.dtype, pack: Pack) -> list[Step]:
    """Return the steps that write the results of geometries (NUM_GEOMETRY, n); in another size with the nearest pixels.

    Args:
        g: The geometries.
        size: (H, W) of the images; new: of the results.
        dtype: Of the images.
        pack: Gets the arrays.
    """
    used = g[[*range(op.TRANSPOSED, op.RIGHT + 1), *range(op.FILL, op.FILL + 3)]]
    if (used == used[:, :1]).all():
        g = g[:, :1]
    is_filled = bool(_is_filled(g).any())
    is_plain = (g[op.TRANSPOSED] == 0) & (g[op.DOWN] == 1) & (g[op.ACROSS] == 1) & (g[op.HEIGHT] == new[0])
    if g.shape[1] == 1 and not is_filled and is_plain[0] and g[op.WIDTH, 0] == new[1]:
        row, column = int(g[op.ROW, 0]), int(g[op.COLUMN, 0])
        return [] if new == size else [lambda images, _: images[:, :, row : row + new[0], column : column + new[1]]]
    down, across = g[op.DOWN] * size[1], g[op.ACROSS]
    down, across = np.where(g[op.TRANSPOSED], across, down), np.where(g[op.TRANSPOSED], down, across)
    y, x = _nearest(g[op.HEIGHT], new[0]), _nearest(g[op.WIDTH], new[1])
    rows, columns = (g[op.ROW] * size[1] + g[op.COLUMN])[:, None] + down[:, None] * y, across[:, None] * x
    fill = -1
    if is_filled:
        rows[(y < g[op.TOP, :, None]) | (y >= g[op.BOTTOM, :, None])] = _OUTSIDE
        columns[(x < g[op.LEFT, :, None]) | (x >= g[op.RIGHT, :, None])] = _OUTSIDE
        fills = np.ascontiguousarray(g[op.FILL : op.FILL + 3].T)
        # Of floats it is bits.
        words = fills.astype(np.uint32).view(np.float32) if dtype.is_floating_point else fills.astype(np.uint16)
        fill = pack.add(words.astype(np.uint8) if dtype == torch.uint8 else words.view(_bits_dtype(words)))
    return [partial(_placed, rows=pack.add(rows), columns=pack.add(columns), fill=fill)]


def _bits_dtype(words: npt.NDArray[Any]) -> Any:
    return np.int16 if words.dtype == np.uint16 else words.dtype


def _nearest(sizes: I64, count: int) -> I64:
    """Return (n, count) which of so many pixels torchvision's NEAREST takes: in float32, as in torch."""
    if (sizes == count).all():
        return np.arange(count)[None]
    scale = sizes.astype(np.float32) / np.float32(count)
    places = np.floor(np.arange(count, dtype=np.float32) * scale[:, None]).astype(np.int64)
    return np.minimum(places, sizes[:, None] - 1)


def _placed(images: Tensor, tables: Sequence[Tensor], rows: int, columns: int, fill: int) -> Tensor:
    n, channels = images.shape[:2]
    index = (tables[rows][:, None, :, None] + tables[columns][:, None, None, :]).expand(n, channels, -1, -1)
    planes = _bits(images).flatten(2)
    taken = planes.gather(2, (index.clamp(min=0) if fill >= 0 else index).reshape(n, channels, -1)).view(index.shape)
    if fill >= 0:
        taken = torch.where(index < 0, tables[fill][:, :channels, None, None], taken)
    return taken.view(images.dtype)


def _weigh(sizes: I64, out_size: int, cubic: bool, unit: int) -> tuple[I64, npt.NDArray[np.float32], I64]:
    """Return starts (n, out_size), weights (n, taps, out_size) and counts (n, 2), see `weigh_many`."""
    reach = int(np.ceil(2 * (2 if cubic else 1) * max(float(sizes.max()) / out_size, 1.0))) + unit - 1
    most = -(-reach // _TAPS_AT_ONCE) * _TAPS_AT_ONCE
    n = len(sizes)
    starts, counts = np.empty((n, out_size), np.int64), np.empty((n, 2), np.int64)
    weights, bounds = np.zeros((n, most, out_size), np.float32), np.empty(out_size, np.int32)
    room = np.empty(out_size * (most + most // 2 + 2), np.float32)
    entries.weigh_many(np.ascontiguousarray(sizes), out_size, cubic, unit, starts, weights, counts, bounds, room)
    return starts, weights[:, : counts[:, 0].max()], counts


def _resizing(windows: I64, size: tuple[int, ...], new: tuple[int, int], cubic: bool, pack: Pack) -> Step:
    """Return the step that resizes windows of bytes.

    Its sums are those of matrices. They have whole numbers, of at most 8 bits, as pixels have less 128: every product
    and sum is exact, in any order and with TensorFloat-32.
    """
    ends = slice(0, size[0]), slice(0, size[1])
    if len(windows) == 1:
        top, bottom, left, right = windows[0].tolist()
        ends, windows = (slice(top, bottom), slice(left, right)), windows - windows[:, [0, 0, 2, 2]]
    tables = []
    for k, unit in ((2, _UNIT_ACROSS), (0, _UNIT_DOWN)):
        starts, weights, counts = _weigh(windows[:, k + 1] - windows[:, k], new[k // 2], cubic, unit)
        high = np.rint(weights / 256) * 256
        both = np.stack([weights - high, high], 1).transpose(0, 1, 3, 2) * 2.0 ** -counts[:, 1, None, None, None]
        tables += [pack.add(starts + windows[:, k, None]), pack.add(both.astype(np.float16))]
    return partial(_resized, ends=ends, new=new, tables_of=tuple(tables))


def _resized(
    images: Tensor,
    tables: Sequence[Tensor],
    ends: tuple[slice, slice],
    new: tuple[int, int],
    tables_of: tuple[int, ...],
) -> Tensor:
    values = images[:, :, ends[0], ends[1]].float() - 128
    n, channels, height, width = values.shape
    across, down = (
        _matrices(tables[starts], tables[weights], length)
        for starts, weights, length in zip(tables_of[::2], tables_of[1::2], (width, height), strict=True)
    )
    values = _rounded(*(values.view(n, channels * height, width) @ across.transpose(1, 2)).split(new[1], 2))
    values = values.view(n, channels, height, new[1]).transpose(1, 2).reshape(n, height, channels * new[1])
    values = _rounded(*(down @ values).split(new[0], 1))
    return (values + 128).to(torch.uint8).view(n, new[0], channels, new[1]).transpose(1, 2).contiguous()


def _matrices(starts: Tensor, weights: Tensor, length: int) -> Tensor:
    """Return matrices (n, 2 * out_size, length) of weights (n, 2, out_size, taps), of which each row begins at a place."""
    n, _, out_size, taps = weights.shape
    places = (starts[:, None, :, None] + torch.arange(taps, device=starts.device)).expand(n, 2, -1, -1)
    # The last weights are zeros for values that are not there.
    dense = torch.zeros(n, 2, out_size, length + taps, device=starts.device).scatter_(3, places, weights.float())
    return dense[..., :length].reshape(n, 2 * out_size, length)


def _rounded(low: Tensor, high: Tensor) -> Tensor:
    return (low + high).add_(0.5).floor_().clamp_(-128, 127)


def _resizing_words(
    windows: I64, size: tuple[int, ...], new: tuple[int, int], cubic: bool, dtype: torch.dtype, pack: Pack
) -> list[Step]:
    """Return the steps that resize windows of one size of uint16 or float32, sum for sum as `resize_window` does."""
    height, width = (int(windows[0, k + 1] - windows[0, k]) for k in (0, 2))
    g = np.zeros((op.NUM_GEOMETRY, len(windows)), np.int64)
    g[[op.DOWN, op.ACROSS]] = 1
    g[op.ROW], g[op.COLUMN] = windows[:, 0], windows[:, 2]
    g[[op.HEIGHT, op.BOTTOM]], g[[op.WIDTH, op.RIGHT]] = height, width
    steps = _placing(g, size, (height, width), dtype, pack)
    for dim, length, out_size in ((3, width, new[1]), (2, height, new[0])):
        starts, weights, _ = _weigh(np.array([length]), out_size, cubic, 1)
        places = starts + np.arange(weights.shape[1])[:, None]
        steps.append(partial(_summed, dim=dim, places=pack.add(places), weights=pack.add(weights[0])))
    return steps


def _summed(images: Tensor, tables: Sequence[Tensor], dim: int, places: int, weights: int) -> Tensor:
    values, is_float = images.float(), images.dtype.is_floating_point

    def product(k: int) -> Tensor:
        weight = tables[weights][k]
        return values.index_select(dim, tables[places][k]) * (weight if dim == 3 else weight[:, None])

    count, k = len(tables[places]), 0
    total: Any = 0.0 if is_float else 0.5
    while k < count:
        end = k + _TAPS_AT_ONCE if count - k >= _TAPS_AT_ONCE else k + 1
        part = product(k)
        for j in range(k + 1, end):
            part += product(j)
        total, k = part + total, end
    return total if is_float else total.clamp(0, 65535.25).to(torch.int32).to(images.dtype)


def plan_values(values: Values, boxes: I64, size: tuple[int, ...], pack: Pack) -> list[Step]:
    """Return the steps that make the values of a batch from stored ones and fill erased rectangles.

    Args:
        values: How they are made.
        boxes: (n, erasings, 4) of `draw`.
        size: (H, W) of the images.
        pack: Gets the arrays.
    """
    steps = list[Step]()
    if values.table is not None:
        words = values.table.view(_WORDS[values.table.itemsize])
        firsts = np.arange(len(words))[:, None, None] * words.shape[1]
        steps.append(partial(_looked_up, words=pack.add(words), firsts=pack.add(firsts), dtype=values.dtype))
    elif values.kind != op.COPY:
        factor, term = (pack.add(values.affine[:, k, None, None]) for k in range(2))
        steps.append(partial(_scaled, factor=factor, term=term, dtype=values.dtype))
    elif values.dtype == torch.float16:  # came as float32
        steps.append(lambda images, _: images.half())
    for k in range(boxes.shape[1]):
        top, left, h, w = boxes[:, k].T[:, :, None]
        if h.any():
            inside = [(p >= a) & (p < a + b) for p, a, b in zip(map(np.arange, size), (top, left), (h, w), strict=True)]
            fill = values.erased[k, :, None, None].astype(f"u{values.carrier.itemsize}")
            numbers = [pack.add(part) for part in (*inside, fill.view(_WORDS[fill.itemsize]))]
            steps.append(partial(_erased, numbers=numbers))
    return steps


def _scaled(images: Tensor, tables: Sequence[Tensor], factor: int, term: int, dtype: torch.dtype) -> Tensor:
    return (images.float() * tables[factor]).add_(tables[term]).to(dtype)


def _looked_up(images: Tensor, tables: Sequence[Tensor], words: int, firsts: int, dtype: torch.dtype) -> Tensor:
    places = images.to(torch.int32).to(torch.int64) + tables[firsts]
    return tables[words].take(places).view(dtype)


def _erased(images: Tensor, tables: Sequence[Tensor], numbers: list[int]) -> Tensor:
    rows, columns, fill = (tables[number] for number in numbers)
    is_inside = rows[:, None, :, None] & columns[:, None, None, :]
    return torch.where(is_inside, fill, images.view(_BITS[images.itemsize])).view(images.dtype)
