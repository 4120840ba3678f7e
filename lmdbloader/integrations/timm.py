"""A Loader in place of timm's create_loader, with the same arguments."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import timm.data
import torch

from lmdbloader.batch.dataset import LMDBDataset
from lmdbloader.errors import OptionError
from lmdbloader.loader.loader import Loader
from lmdbloader.transforms import (
    CenterCrop,
    ColorJitter,
    GaussianBlur,
    Normalize,
    RandomErasing,
    RandomGrayscale,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
    ToDtype,
    Transform,
)

__all__ = ["create_loader"]

# Of worker processes and copies, which change no value here.
_NO_EFFECT = {"num_workers", "pin_memory", "persistent_workers", "use_multi_epochs_loader", "worker_seeding"}
_DONE = {
    *("dataset", "input_size", "batch_size", "is_training", "no_aug", "re_prob", "re_mode", "scale", "ratio", "hflip"),
    *("vflip", "color_jitter", "color_jitter_prob", "grayscale_prob", "interpolation", "mean", "std", "distributed"),
    *("crop_pct", "img_dtype", "device", "use_prefetcher", "gaussian_blur_prob"),
}
# Near to timm's "rand-m9": its magnitudes end at 10, not at 30, and it does half of what it draws.
_NEAREST = "*2 * [RandomApply([RandAugment(1, 27)])]"


class _Loader(Loader):
    """A Loader that takes its epoch from the dataset, on which timm's train.py sets it, also when a run resumes."""

    _followed: tuple[int, int] | None = None

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        last = self.dataset._last_set
        if last is not None and last != self._followed:
            self._followed = last
            self.set_epoch(last[0])
        return super().__iter__()


def create_loader(dataset: Any, input_size: Any, batch_size: int, *args: Any, **others: Any) -> Loader:
    """Return a Loader whose transforms, order and batches are those of timm's `create_loader`.

    Batches are tuples of normalized images (B, C, H, W) and labels (B,), on the device of timm's prefetcher. In timm's
    train.py, replace the import: `from lmdbloader.integrations.timm import create_loader`.

    Args:
        dataset: An LMDBDataset with the fields `image` and `label`, or its path.
        input_size: Side, (height, width), or (channels, height, width).
        batch_size: Samples in a batch of each process.
        *args: timm's other arguments, with timm's defaults.
        **others: The same by name. Those about worker processes have no effect.

    Raises:
        OptionError: Compiled transforms cannot do what an argument says.
    """
    a = _arguments(dataset, input_size, batch_size, *args, **others)
    device = torch.device(a.device) if a.use_prefetcher else torch.device("cpu")
    return _Loader(
        dataset if isinstance(dataset, LMDBDataset) else LMDBDataset(dataset, fields=("image", "label")),
        batch_size,
        order="random" if a.is_training else "sequential",
        drop_last=a.is_training,
        pad=a.distributed and not a.is_training,
        transforms=_transforms(a),
        shard="auto" if a.distributed else None,
        device=device if device.type == "cuda" else None,
        as_="tuple",
    )


def _arguments(*args: Any, **others: Any) -> SimpleNamespace:
    """Return all arguments of timm's function by name, checked."""
    signature = inspect.signature(timm.data.create_loader)
    try:
        bound = signature.bind(*args, **others)
    except TypeError as error:
        raise OptionError(f"create_loader: not the arguments of timm's create_loader: {error}") from None
    bound.apply_defaults()
    a = SimpleNamespace(**bound.arguments)
    for name, value in bound.arguments.items():
        if name not in _DONE | _NO_EFFECT and value != signature.parameters[name].default:
            raise _refusal(name, value)
    if a.interpolation not in ("bilinear", "bicubic"):
        raise _refusal("interpolation", a.interpolation)
    if a.re_prob and a.is_training and not a.no_aug and a.re_mode != "const":
        raise _refusal("re_mode", a.re_mode)
    return a


def _transforms(a: SimpleNamespace) -> list[Transform]:
    size = (a.input_size, a.input_size) if isinstance(a.input_size, int) else tuple(a.input_size)[-2:]
    end: list[Transform] = [ToDtype(a.img_dtype, scale=True), Normalize(a.mean, a.std)]
    if not a.is_training or a.no_aug:
        share = 1.0 if a.is_training else a.crop_pct or timm.data.DEFAULT_CROP_PCT
        height, width = (math.floor(side / share) for side in size)
        if height != width:
            raise OptionError(f"create_loader(input_size={a.input_size}): whole images are cut to squares")
        return [Resize(height, a.interpolation), CenterCrop(size), *end]
    steps: list[Transform] = [
        RandomResizedCrop(size, a.scale or (0.08, 1.0), a.ratio or (3 / 4, 4 / 3), a.interpolation)
    ]
    steps += [RandomHorizontalFlip(a.hflip)] if a.hflip else []
    steps += [RandomVerticalFlip(a.vflip)] if a.vflip else []
    if a.color_jitter is not None:
        factors = a.color_jitter if isinstance(a.color_jitter, list | tuple) else [a.color_jitter] * 3
        steps.append(ColorJitter(*factors, p=1.0 if a.color_jitter_prob is None else a.color_jitter_prob))
    steps += [RandomGrayscale(a.grayscale_prob)] if a.grayscale_prob else []
    blurred = getattr(a, "gaussian_blur_prob", 0)
    steps += [GaussianBlur(23, p=blurred)] if blurred else []
    erasing = RandomErasing(a.re_prob, scale=(0.02, 1 / 3), ratio=(0.3, 1 / 0.3), value=0)
    return [*steps, *end, *([erasing] if a.re_prob else [])]


def _refusal(name: str, value: object) -> OptionError:
    way = "Leave it out, or use timm's loader."
    if name == "auto_augment":
        way = f"Use timm's loader, or one of torchvision's policies: Loader(..., transforms=[..., {_NEAREST}, ...])."
    return OptionError(f"create_loader({name}={value!r}): compiled transforms cannot do this. {way}")
