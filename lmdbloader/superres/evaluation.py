"""Upscales a dataset's LR images with a model and with bicubic, and scores both against the originals."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, isfinite, isinf
from statistics import fmean
from typing import Any, Protocol

import torch
from torch import Tensor

from lmdbloader.base.arguments import flag, whole
from lmdbloader.base.text import plain
from lmdbloader.errors import OptionError
from lmdbloader.superres.metrics import psnr, ssim
from lmdbloader.superres.tensors import Model, model_inputs, to_bytes, unit_floats, upscale

__all__ = ["Evaluation", "PairDataset", "Scores", "bicubic", "evaluate", "pair_scale", "predict", "score"]

# Images of floats above it are hardly in 0..1; bicubic exceeds 1 by less.
_HIGHEST = 2.0


class PairDataset(Protocol):
    """A sized sequence of (lr, hr) pairs of (C, H, W) tensors."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


def pair_scale(dataset: PairDataset) -> int:
    """Return the scale of a dataset of (lr, hr) pairs, from the sizes of its first sample.

    Raises:
        OptionError: It is empty, its samples are not pairs of images, or hr is not a whole multiple of lr.
    """
    name = plain(str(getattr(dataset, "path", "the dataset")))
    if len(dataset) == 0:
        raise OptionError(f"{name}: is empty; training needs at least one pair.")
    sample = dataset[0]
    shapes = [tuple(image.shape) for image in sample if isinstance(image, Tensor)]
    if len(shapes) != 2 or len(sample) != 2 or any(len(shape) != 3 for shape in shapes):
        names = getattr(sample, "_fields", ())
        fields, remedy = ", ".join(names) or f"{len(sample)} values", "Convert with --scale, or from two folders."
        if several := [n for n in names if re.fullmatch("lr[2-8]", n)]:
            remedy = f"Open it with one scale: LMDBDataset(path, fields={[several[-1], 'hr']})."
        raise OptionError(f"{name}: a sample must be a pair (lr, hr) of images; found {fields}. {remedy}")
    (_, low_height, low_width), (_, height, width) = shapes
    scale = height // low_height
    if scale < 1 or (height, width) != (low_height * scale, low_width * scale):
        raise OptionError(
            f"{name}: hr must be a whole multiple of lr; found lr {low_height} x {low_width} and hr {height} x {width}."
        )
    return scale


@dataclass(frozen=True, slots=True)
class Scores:
    """PSNR and SSIM of one method.

    Attributes:
        psnrs: In dB, one per image, in the dataset's order.
        ssims: One per image, in the same order.
    """

    psnrs: tuple[float, ...]
    ssims: tuple[float, ...]

    @property
    def psnr(self) -> float:
        """The mean in dB, without images that equal the original: theirs is infinite. inf if all do."""
        return _finite_mean(self.psnrs)

    @property
    def num_exact(self) -> int:
        """Number of images that equal the original, as bicubic gives for a single color."""
        return sum(map(isinf, self.psnrs))

    @property
    def ssim(self) -> float:
        """The mean over the images."""
        return fmean(self.ssims)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A model's scores, and bicubic's on the same images."""

    model: Scores
    bicubic: Scores

    @property
    def psnrs(self) -> tuple[float, float]:
        """The mean PSNR of the model and of bicubic, in dB, over the images for which both are finite."""
        both = [pair for pair in zip(self.model.psnrs, self.bicubic.psnrs, strict=True) if isfinite(sum(pair))]
        return _finite_mean([model for model, _ in both]), _finite_mean([bicubic for _, bicubic in both])

    @property
    def gain(self) -> float:
        """How much better the model's mean PSNR is than bicubic's, in dB; 0 if no image is left to compare."""
        model, bicubic = self.psnrs
        return 0.0 if isinf(model) else model - bicubic


def _finite_mean(psnrs: Sequence[float]) -> float:
    finite = [value for value in psnrs if isfinite(value)]
    return fmean(finite) if finite else inf


@torch.inference_mode()
def bicubic(lr: Tensor, scale: int) -> Tensor:
    """Return `lr` upscaled by bicubic: (C, h, w) uint8, uint16 or float in 0..1 to (C, h * scale, w * scale) uint8."""
    return to_bytes(upscale(_unit_floats(lr)[None], scale)[0])


def _unit_floats(lr: Tensor) -> Tensor:
    if lr.is_floating_point() and lr.numel() and lr.max() > _HIGHEST:
        raise OptionError(f"an image of floats has values up to {lr.max():.4g}; expected 0..1: divide it by 255?")
    return unit_floats(lr)


@torch.inference_mode()
def predict(
    model: Model, lr: Tensor, *, tile: int | None = None, overlap: int = 16, self_ensemble: bool = False
) -> Tensor:
    """Return `lr` upscaled by a model: (C, h, w) uint8, uint16 or float in 0..1 to (C, h * scale, w * scale) uint8.

    A luma model returns luma only, (1, H, W), which `psnr` and `ssim` accept; `merge_luma` restores the colors. With
    every model, gray stays gray. The model returns to the mode that it was in.

    Args:
        model: On any device, with the attributes of `Model`. It gets and returns floats (B, channels, H, W) in 0..1.
        lr: The image.
        tile: Side of the tiles, in LR pixels, that are upscaled one after the other, for images that do not fit into
            memory at once. None: no tiles.
        overlap: LR pixels around a tile that the model also sees. If its receptive field is not larger, the result is
            the same as without tiles.
        self_ensemble: Return the mean over the 8 flips and turns of the image, each transformed back (EDSR+). It takes
            eight times as long.

    Raises:
        OptionError: `lr` is not one image with the model's channels, `tile` is below 1, `overlap` is below 0, the model
            lacks one of the attributes or returns NaN, or an image of floats is not in 0..1.
    """
    _check(model)
    _check_image(lr, (1, 3) if model.channels in (1, 3) else (model.channels,))
    side = max(1, *lr.shape[1:]) if tile is None else whole("tile", tile, least=1)
    overlap = whole("overlap", overlap, least=0)
    self_ensemble = flag("self_ensemble", self_ensemble)
    was_training = model.training
    model.train(False)
    try:
        rows = []
        for top, above, below in _tiles(lr.shape[1], side, overlap):
            row = []
            for left, before, after in _tiles(lr.shape[2], side, overlap):
                large = _enlarged(model, lr[:, above:below, before:after], self_ensemble=self_ensemble)
                y, x = (top - above) * model.scale, (left - before) * model.scale
                row.append(large[:, y : y + side * model.scale, x : x + side * model.scale])
            rows.append(torch.cat(row, dim=2))
        return torch.cat(rows, dim=1)
    finally:
        model.train(was_training)


def _check(model: Model) -> None:
    if missing := [name for name in ("channels", "scale", "upscales") if not hasattr(model, name)]:
        raise OptionError(
            f"{type(model).__name__} has no attribute {', '.join(missing)}. Set model.scale (such as 4), "
            "model.channels (3, or 1 for luma) and model.upscales (True if it gets the small image)."
        )


def _check_image(lr: Any, channels: tuple[int, ...]) -> None:
    if not isinstance(lr, Tensor) or lr.ndim != 3 or len(lr) not in channels:
        expected = f"({' or '.join(map(str, channels))}, h, w)"
        raise OptionError(
            f"expected one image, a tensor of shape {expected}; found {type(lr).__name__} "
            f"{tuple(getattr(lr, 'shape', ()))}. Take one image of a batch: batch[k]. Turn an array (h, w, C) into a "
            "tensor: torch.from_numpy(image).permute(2, 0, 1)."
        )


def _tiles(length: int, tile: int, overlap: int) -> list[tuple[int, int, int]]:
    """Return the first pixel of each tile of a side, and first and end of what the model sees of it."""
    return [(first, max(first - overlap, 0), min(first + tile + overlap, length)) for first in range(0, length, tile)]


def _enlarged(model: Model, lr: Tensor, *, self_ensemble: bool) -> Tensor:
    weight = next(iter(model.parameters()), lr)
    images = _unit_floats(lr).to(weight.device)[None]
    views = [(flip, turns) for flip in (False, True) for turns in range(4)] if self_ensemble else [(False, 0)]
    found = []
    for flip, turns in views:
        seen = (images.flip(-1) if flip else images).rot90(turns, (-2, -1))
        large = model(model_inputs(model, seen)).rot90(-turns, (-2, -1))
        found.append(large.flip(-1) if flip else large)
    output = torch.cat(found).mean(dim=0) if self_ensemble else found[0][0]
    if not output.isfinite().all():
        raise OptionError(
            f"{type(model).__name__} returned NaN or infinity: its training diverged, or it needs float32"
        )
    return to_bytes(output.mean(dim=0, keepdim=True) if len(lr) == 1 else output).cpu()


def score(
    method: Callable[[Tensor], Tensor], dataset: PairDataset, scale: int, *, data_range: float | None = None
) -> Scores:
    """Return the scores of a method's upscaled images, on luma and with `scale` pixels shaved off each side.

    Args:
        method: Takes an image of the dataset, (C, h, w) in its dtype, and returns (C or 1, h * scale, w * scale). For
            a network there is `evaluate`.
        dataset: Pairs of (C, H, W) tensors; sizes may differ from pair to pair.
        scale: The upscaling factor.
        data_range: The value of white in images of floats, such as 1.0; uint8 and uint16 have their own.

    Raises:
        OptionError: The dataset is empty, its samples are not pairs, or floats have no data_range.
    """
    if len(dataset) == 0:
        raise OptionError("the validation dataset is empty; evaluation needs at least one pair.")
    pair_scale(dataset)
    psnrs, ssims = [], []
    for index in range(len(dataset)):
        lr, hr = dataset[index]
        enlarged = method(lr)
        peak = data_range if enlarged.is_floating_point() or hr.is_floating_point() else None
        psnrs.append(psnr(enlarged, hr, scale=scale, data_range=peak))
        ssims.append(ssim(enlarged, hr, scale=scale, data_range=peak))
    return Scores(psnrs=tuple(psnrs), ssims=tuple(ssims))


def evaluate(model: Model, dataset: PairDataset, scale: int, *, baseline: Scores | None = None) -> Evaluation:
    """Return the scores of a model, and of bicubic on the same images.

    Args:
        model: On any device, with the attributes of `Model`. It gets and returns floats (B, channels, H, W) in 0..1.
        dataset: Pairs of (C, H, W) tensors, uint8, uint16 or floats in 0..1; sizes may differ from pair to pair.
        scale: The upscaling factor.
        baseline: Bicubic's scores on this dataset from an earlier call; None computes them.

    Raises:
        OptionError: The dataset is empty, its scale is not the model's, or the model lacks one of the attributes.
    """
    _check(model)

    if scale != model.scale:
        raise OptionError(f"the model upscales by {model.scale}, the validation dataset's scale is {scale}.")
    scores = score(lambda lr: predict(model, lr), dataset, scale, data_range=1.0)
    if baseline is None:
        baseline = score(lambda lr: bicubic(lr, scale), dataset, scale, data_range=1.0)
    return Evaluation(model=scores, bicubic=baseline)
