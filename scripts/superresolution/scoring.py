"""Scores of upscaled images: PSNR and SSIM on luma and RGB, and perceptual metrics if installed."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from lmdbloader.errors import OptionError
from lmdbloader.superres import bicubic, merge_luma, psnr, ssim
from lmdbloader.superres.evaluation import PairDataset
from lmdbloader.superres.tensors import unit_floats

__all__ = ["perceptual_metrics", "score_table", "score_with"]

Metric = Callable[[Tensor, Tensor], float]


def perceptual_metrics(device: torch.device) -> dict[str, Metric]:
    """Return LPIPS (AlexNet's) and DISTS if `lpips` and `piq` are installed, by name; lower is better.

    The packages download weights when they are used for the first time.

    Raises:
        OptionError: None is installed.
    """
    found: dict[str, Metric] = {}

    def add(name: str, network: Any, black: float) -> None:
        network = network.to(device).eval()

        @torch.inference_mode()
        def metric(image: Tensor, reference: Tensor) -> float:
            return float(network(*(unit_floats(i)[None].to(device) * (1 - black) + black for i in (image, reference))))

        found[name] = metric

    with suppress(ImportError):
        add("LPIPS", importlib.import_module("lpips").LPIPS(net="alex", verbose=False), -1.0)
    with suppress(ImportError):
        add("DISTS", importlib.import_module("piq").DISTS(), 0.0)
    if not found:
        raise OptionError("--perceptual: neither lpips nor piq is installed: pip install lpips piq")
    return found


def score_with(
    enlarge: Callable[[Tensor], Tensor], dataset: PairDataset, scale: int, perceptual: Mapping[str, Metric]
) -> dict[str, float]:
    """Return the mean scores of a method, by name: PSNR and SSIM on luma and on RGB, and perceptual ones.

    An output that is only luma gets the colors of bicubic. Gray images have no scores on RGB.
    """
    found: dict[str, list[float]] = {}
    for index in range(len(dataset)):
        lr, hr = dataset[index]
        large = enlarge(lr)
        scores = {"PSNR Y": psnr(large, hr, scale=scale), "SSIM Y": ssim(large, hr, scale=scale)}
        if len(hr) == 3:
            colors = large if len(large) == 3 else merge_luma(bicubic(lr, scale), large)
            scores["PSNR RGB"] = psnr(colors, hr, scale=scale, rgb=True)
            scores["SSIM RGB"] = ssim(colors, hr, scale=scale, rgb=True)
            scores |= {name: metric(colors, hr) for name, metric in perceptual.items()}
        for name, value in scores.items():
            found.setdefault(name, []).append(value)
    return {name: fmean(values) for name, values in found.items()}


def score_table(rows: Mapping[str, Mapping[str, float]]) -> str:
    """Return a table of methods and their scores as text."""
    names: Sequence[str] = list(next(iter(rows.values())))
    width = max(map(len, rows))
    lines = ["  ".join([" " * width, *(f"{name:>8}" for name in names)])]
    for method, scores in rows.items():
        cells = (f"{scores[name]:8.{2 if name.startswith('PSNR') else 4}f}" for name in names)
        lines.append("  ".join([f"{method:{width}}", *cells]))
    return "\n".join(lines)
