"""Warps in plain NumPy: torchvision's grids and torch's `grid_sample`, in float32, operation by operation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

f = np.float32


def affine_matrix(
    angle: float, shift: Any, scale: float, shear: Any, center: Any, height: int, width: int
) -> np.ndarray:
    """Return torchvision's inverse matrix (2, 3), for places in pixels from the middle."""
    turn, sx, sy = (math.radians(v) for v in (angle, *shear))
    a, c = math.cos(turn - sy) / math.cos(sy), math.sin(turn - sy) / math.cos(sy)
    b, d = -(a * math.tan(sx) + math.sin(turn)), math.cos(turn) - c * math.tan(sx)
    inverse = np.array([[d, -b], [-c, a]]) / scale
    middle = np.zeros(2) if center is None else np.array(center) - (width * 0.5, height * 0.5)
    return np.column_stack([inverse, middle - inverse @ (middle + shift)])


def affine_grid(matrix: np.ndarray, height: int, width: int, new_height: int, new_width: int) -> np.ndarray:
    """Return `_affine_grid` of torchvision, (H, W, 2)."""
    theta = matrix.astype(f) / np.array([[width * 0.5], [height * 0.5]], f)
    x = (np.arange(new_width) - (new_width - 1) * 0.5).astype(f)
    y = (np.arange(new_height) - (new_height - 1) * 0.5).astype(f)[:, None]
    return np.stack([(x * row[0] + y * row[1]) + row[2] for row in theta], -1)


def perspective_grid(coefficients: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return `_perspective_grid` of torchvision, (H, W, 2)."""
    c, half = coefficients.astype(f), (f(width * 0.5), f(height * 0.5))
    x, y = (np.arange(width) + 0.5).astype(f), (np.arange(height) + 0.5).astype(f)[:, None]
    depth = (x * c[6] + y * c[7]) + f(1)
    rows = [c[3 * k : 3 * k + 3] / half[k] for k in range(2)]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.stack([((x * row[0] + y * row[1]) + row[2]) / depth - f(1) for row in rows], -1)


def elastic_grid(displacement: np.ndarray) -> np.ndarray:
    """Return the grid of torchvision's `elastic_image` for a displacement (H, W, 2)."""

    def even(count: int) -> np.ndarray:
        first, last = f((1 - count) / count), f((count - 1) / count)
        step, i = float((last - first) / f(max(count - 1, 1))), np.arange(count)
        return np.where(i < count // 2, float(first) + step * i, float(last) - step * (count - 1 - i)).astype(f)

    height, width = displacement.shape[:2]
    x, y = np.meshgrid(even(width), even(height))
    return np.stack([x, y], -1) + displacement


def sample(image: np.ndarray, grid: np.ndarray, bilinear: bool, fill: Any) -> np.ndarray:
    """Return an image (C, H, W) at the places of a grid as float32, filled as torchvision does."""
    height, width = image.shape[1:]
    places = (grid + f(1)) * np.array([width / 2, height / 2], f) - f(0.5)
    x, y = places[..., 0], places[..., 1]
    around = np.array(fill, f).reshape(-1, 1, 1)
    padded = np.zeros((len(image) + 1, height + 3, width + 3), f)
    padded[:-1, 1:-2, 1:-2], padded[-1, 1:-2, 1:-2] = image, 1
    if not bilinear:
        x, y = np.rint(x), np.rint(y)
        inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
        x, y = (np.where(inside, v, -1).astype(int) + 1 for v in (x, y))
        found = padded[:, y, x]
        return np.where(found[-1:] < 0.5, around, found[:-1])
    x, y = np.clip(np.nan_to_num(x, nan=-1), -1, width), np.clip(np.nan_to_num(y, nan=-1), -1, height)
    left, top = np.floor(x), np.floor(y)
    right, under = (x - left).astype(f), (y - top).astype(f)
    i, j = left.astype(int) + 1, top.astype(int) + 1
    upper = padded[:, j, i] * ((1 - right) * (1 - under)) + padded[:, j, i + 1] * (right * (1 - under))
    lower = padded[:, j + 1, i] * ((1 - right) * under) + padded[:, j + 1, i + 1] * (right * under)
    found = upper + lower
    return (found[:-1] - around) * found[-1:] + around
