"""Chains of degradations in float64, from the papers' formulas: what drawn numbers make of an image."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage
from scipy.special import j1
from torch.nn import functional

from lmdbloader.kernels.degrade import blur, modes, steps

F64 = NDArray[np.float64]
LUMA = np.array(
    [
        [16, 11, 10, 16, 24, 40, 51, 61], [12, 12, 14, 19, 26, 58, 60, 55], [14, 13, 16, 24, 40, 57, 69, 56],
        [14, 17, 22, 29, 51, 87, 80, 62], [18, 22, 37, 56, 68, 109, 103, 77], [24, 35, 55, 64, 81, 104, 113, 92],
        [49, 64, 78, 87, 103, 121, 120, 101], [72, 92, 95, 98, 112, 100, 103, 99],
    ]
)  # fmt: skip
COLOR = np.full((8, 8), 99)
COLOR[:4, :4] = [[17, 18, 24, 47], [18, 21, 26, 66], [24, 26, 56, 99], [47, 66, 99, 99]]
_K = np.arange(8)
DCT = np.cos((2 * _K + 1) * _K[:, None] * math.pi / 16) / 2
DCT[0] /= math.sqrt(2)
TO_YCC = np.array([[0.299, 0.587, 0.114], [-0.168736, -0.331264, 0.5], [0.5, -0.418688, -0.081312]])
TO_RGB = np.array([[1, 0, 1.402], [1, -0.344136, -0.714136], [1, 1.772, 0]])


def make_kernel(shape: int, size: int, first: float, second: float, angle: float, beta: float) -> F64:
    """Return a normalized blur kernel."""
    place = np.arange(size) - size // 2
    down, across = np.meshgrid(place, place, indexing="ij")
    if shape == blur.SINC:
        r = np.hypot(down, across)
        found = first * j1(first * r) / (2 * math.pi * np.where(r, r, 1))
        found[r == 0] = first**2 / (4 * math.pi)
        return found / found.sum()
    turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    inverse = turn @ np.diag([max(first, 1e-3) ** -2.0, max(second, 1e-3) ** -2.0]) @ turn.T
    at = np.stack([across, down], -1)
    q = np.einsum("...i,ij,...j", at, inverse, at)
    with np.errstate(over="ignore"):
        found = 1 / (1 + q**beta) if shape == blur.PLATEAU else np.exp(-(q**beta) / 2)
    return found / found.sum()


def filtered(image: F64, kernel: F64) -> F64:
    """Correlate planes with a kernel; the border is mirrored as OpenCV's BORDER_REFLECT_101."""
    return np.asarray(ndimage.correlate(image, kernel[None], mode="mirror"))


def sharpened(image: F64) -> F64:
    """Sharpen as `usm_sharp` with OpenCV's Gaussian of 51 pixels."""
    row = make_kernel(blur.GAUSSIAN, 51, 8.0, 8.0, 0.0, 1.0).sum(0)

    def smooth(values: F64) -> F64:
        return np.asarray(ndimage.correlate1d(ndimage.correlate1d(values, row, 1, mode="mirror"), row, mode="mirror"))

    residual = image - smooth(image)
    mask = smooth((np.abs(residual) * 255 > 10).astype(float))
    return mask * np.clip(image + 0.5 * residual, 0, 1) + (1 - mask) * image


def cubic(a: float) -> Callable[[F64], F64]:
    """Return Keys' cubic."""

    def value(x: F64) -> F64:
        x = np.abs(x)
        far = np.where(x < 2, a * (x**3 - 5 * x**2 + 8 * x - 4), 0)
        return np.where(x < 1, (a + 2) * x**3 - (a + 3) * x**2 + 1, far)

    return value


def along(image: F64, matrices: Sequence[F64]) -> F64:
    """Apply a matrix along the height, and one along the width."""
    return np.asarray(matrices[0] @ image @ matrices[1].T)


def matlab(count: int, new: int) -> F64:
    """Return MATLAB's antialiased imresize as a matrix."""
    ratio, pad = count / new, 4 * count
    places = np.arange(-pad, count + pad)
    weights = cubic(-0.5)((places + 0.5 - (np.arange(new)[:, None] + 0.5) * ratio) / max(ratio, 1))
    weights /= weights.sum(1, keepdims=True)
    return np.asarray(weights @ np.pad(np.eye(count), ((pad, pad), (0, 0)), mode="symmetric"))


def parts(count: int, new: int) -> F64:
    """Return means of parts of pixels, OpenCV's INTER_AREA where it shrinks, as a matrix."""
    edges = np.arange(new + 1)[:, None] * (count / new)
    found = np.minimum(edges[1:], np.arange(count) + 1) - np.maximum(edges[:-1], np.arange(count))
    found = np.where(found > 1e-3, found, 0)
    return found / found.sum(1, keepdims=True)


def blends(count: int, new: int) -> F64:
    """Return OpenCV's INTER_AREA where it enlarges, as a matrix."""
    i, found = np.arange(new), np.zeros((new, count))
    first = np.floor(i * (count / new)).astype(int)
    # OpenCV's float32 decides whether a share of nearly 1 is 0.
    share = np.clip(i + 1 - (first + 1) * (new / count), 0, None).astype(np.float32)
    share = np.where(first >= count - 1, 0, share - np.floor(share))
    found[i, np.minimum(first, count - 1)] += 1 - share
    found[i, np.minimum(first + 1, count - 1)] += share
    return found


def lanczos(count: int, new: int) -> F64:
    """Return the filter before traiNNer-redux's "lanczos" as a matrix."""
    ratio = count / new
    if new >= count:
        return np.eye(count)
    side = math.ceil(3 * ratio + 1) - 2
    x = np.arange(-side, side + 1) / ratio
    weights = np.where(np.abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0)
    rows = np.pad(np.eye(count), ((side, side), (0, 0)), mode="reflect")
    return np.asarray(np.lib.stride_tricks.sliding_window_view(rows, 2 * side + 1, axis=0) @ (weights / weights.sum()))


def resized(image: F64, drawn: F64) -> F64:
    """Resize planes as a drawn step says."""
    mode, size = int(drawn[steps.MODE]), (int(drawn[steps.HEIGHT]), int(drawn[steps.WIDTH]))
    sides = list(zip(image.shape[1:], size, strict=True))
    if mode == steps.EVERY_NTH:
        every = int(drawn[steps.FACTOR])
        row = np.exp(-0.5 * ((np.arange(25) - 12) / drawn[steps.SPREAD]) ** 2)
        row = np.interp(np.arange(25) + (every - 1) / 2, np.arange(25), row)[::-1]
        return filtered(image, np.outer(row, row) / row.sum() ** 2)[:, ::every, ::every]
    if mode == modes.MATLAB:
        return along(image, [matlab(*side) for side in sides])
    if mode == modes.AREA_OF_PARTS:
        shrinks = all(new <= old for old, new in sides)
        return along(image, [(parts if shrinks else blends)(*side) for side in sides])
    if mode == modes.REDUX:
        image, mode = along(image, [lanczos(*side) for side in sides]), modes.BICUBIC
        drawn = np.where(np.arange(len(drawn)) == steps.IS_ANTIALIASED, 0, drawn)
    names = {
        modes.AREA: "area", modes.BILINEAR: "bilinear", modes.BICUBIC: "bicubic", modes.NEAREST_EXACT: "nearest-exact"
    }  # fmt: skip
    options: dict[str, Any] = {"mode": names[mode]}
    if drawn[steps.IS_ANTIALIASED] and mode in (modes.BILINEAR, modes.BICUBIC):
        options["antialias"] = True
    factor = drawn[steps.FACTOR]
    options |= {"scale_factor": float(factor)} if factor else {"size": size}
    result = functional.interpolate(torch.from_numpy(np.ascontiguousarray(image))[None], **options)[0].numpy()
    assert result.shape[1:] == size
    return result


def diffjpeg(image: F64, quality: float) -> F64:
    """Compress as DiffJPEG: tables neither rounded nor clipped, that of brightness transposed."""
    channels, height, width = image.shape
    factor = 50 / quality if quality < 50 else 2 - quality / 50
    padded = np.zeros((3, -(-height // 16) * 16, -(-width // 16) * 16))
    padded[:, :height, :width] = image * 255
    ycc = np.tensordot(TO_YCC, padded, 1)
    planes = [ycc[0] - 128, *(c.reshape(c.shape[0] // 2, 2, -1, 2).mean((1, 3)) for c in ycc[1:])]
    for k, table in enumerate((LUMA.T, COLOR.T, COLOR.T)):
        h, w = planes[k].shape
        blocks = DCT @ planes[k].reshape(h // 8, 8, w // 8, 8).swapaxes(1, 2) @ DCT.T
        blocks = np.round(blocks / (table * factor)) * table * factor
        planes[k] = (DCT.T @ blocks @ DCT).swapaxes(1, 2).reshape(h, w)
    ycc = np.stack([planes[0] + 128, *(c.repeat(2, 0).repeat(2, 1) for c in planes[1:])])
    return np.asarray(np.clip(np.tensordot(TO_RGB, ycc, 1), 0, 255)[:channels, :height, :width] / 255)


def libjpeg(image: F64, quality: int) -> F64:
    """Compress with Pillow, which saves 4:2:0."""
    pixels = np.round(image * 255).astype(np.uint8)
    saved = io.BytesIO()
    Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)).save(saved, "JPEG", quality=quality)
    opened = np.asarray(Image.open(saved))
    return np.atleast_3d(opened).transpose(2, 0, 1) / 255


def degraded(
    image: F64, degradation: Any, sample: int, *, seed: int = 0, epoch: int = 0, frame: int = 0
) -> tuple[F64, F64]:
    """Return `lr` and `hr` of an image (C, H, W), values 0 to 1, or of a frame of a window; noise must be off."""
    draws, shape = np.full(frame + 1, sample), image.shape[1:]
    chains, orders, variants = degradation.draw(draws, *shape, seed=seed, epoch=epoch, frames=frame + 1)
    chain, order, variant = chains[-1], orders[-1], degradation.variants[variants[-1]].steps
    low = sharpened(image) if degradation.sharpens else image
    high = low if degradation.sharpens == "both" else image
    for number in order:
        drawn, step = chain[number], variant[number] if number < len(variant) else {}
        if not drawn[steps.DONE]:
            continue
        code = step[steps.CODE]
        if code == steps.BLUR:
            shape, size = int(drawn[steps.SHAPE]), int(drawn[steps.SIZE])
            low = filtered(low, make_kernel(shape, size, *drawn[steps.FIRST : steps.BETA + 1]))
        elif code == steps.RESIZE:
            low = resized(low, drawn)
            low = np.clip(low, 0, 1) if step.get(steps.CLIPS) else low
        elif code == steps.NOISE:
            assert drawn[steps.SIGMA] == 0
            low = np.clip(low, 0, 1)
        else:
            low, quality = np.clip(low, 0, 1), drawn[steps.QUALITY]
            is_own = drawn[steps.ARITHMETIC_OF] == steps.LIBJPEG
            low = libjpeg(low, int(quality)) if is_own else diffjpeg(low, quality)
    return np.clip(low, 0, 1), high
