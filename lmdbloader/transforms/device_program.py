"""Carries transforms out on a device: compiled code draws, and torch changes the pixels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lmdbloader.base.arguments import whole
from lmdbloader.errors import OptionError
from lmdbloader.kernels import entries
from lmdbloader.kernels.transform import opcodes as op
from lmdbloader.transforms.base import SeveralViews, Transform
from lmdbloader.transforms.colors_in_torch import CHANGES
from lmdbloader.transforms.compilation import UNSUITED, Program, compile_program, undrawn
from lmdbloader.transforms.degradation_in_torch import sample_numbers
from lmdbloader.transforms.functions import BatchFunction, described
from lmdbloader.transforms.stages_in_torch import Pack, Step, carried, plan_stages, plan_values
from lmdbloader.transforms.values import ImageField

_WARPS = (op.AFFINE, op.PERSPECTIVE, op.ELASTIC, op.POLICY)
_DTYPES = (torch.uint8, torch.uint16, torch.float16, torch.float32)


def is_missing(code: int) -> bool:
    """Return whether an operation is not available on a device."""
    return code in _WARPS or (code >= op.JITTER and code not in CHANGES)


class DeviceProgram:
    """The transforms of image fields, for batches on any device.

    Attributes:
        changes_pixels: Whether it does more than convert values.
    """

    def __init__(
        self,
        program: Program,
        fields: Sequence[ImageField],
        *,
        seed: int,
        done: Sequence[int] = (),
        channels_last: bool = False,
        advice: str = "Leave it out.",
    ) -> None:
        """Check that all operations are available.

        Args:
            program: The transforms, compiled for these fields.
            fields: Of images and masks.
            seed: Of the random choices.
            done: Of each view, how many operations at its beginning are done already; none by default.
            channels_last: Whether images of the results are (H, W, C) in memory.
            advice: For a transform that is not available.

        Raises:
            OptionError: A transform is not available on a device; it is named.
        """
        self._program, self._fields, self._seed = program, tuple(fields), np.uint64(seed)
        self._layout = torch.channels_last if channels_last else torch.contiguous_format
        operations, real = program.whole.copy(), program.real.copy()
        # A branch that is not taken: the numbers of later operations stay.
        for (begin, _, _), count in zip(program.views.tolist(), done, strict=False):
            operations[begin : begin + count], real[begin : begin + count] = 0, 0
            operations[begin : begin + count, op.OP_CODE] = op.BRANCH
        self._operations = operations, real, program.views
        self.changes_pixels = bool((operations[:, op.OP_CODE] != op.BRANCH).any())
        codes = operations[:, op.OP_CODE]
        for transform, numbers in program.sources:
            if any(map(is_missing, codes[list(numbers)].tolist())):
                raise OptionError(f"{transform}: is not available on a device. {advice}")
        # A window is resized as it is stored, and turned afterwards: until then a geometry must be carried on.
        resizes = np.isin(codes, (op.RESIZE, op.RANDOM_RESIZED_CROP))
        self._template = undrawn(fields, program.num_stages)
        self._template[..., op.WRITES] = not operations[resizes, op.OP_STAGE].any()
        self._num_erasings = max((len(values.erased) for values in program.values), default=0)

    def resize_of(self, f: int) -> Transform | None:
        """Return a transform that resizes images of a field on the device."""
        fields = self._operations[0][:, op.OP_FIELDS]  # 0 of what is done already
        found = (t for t, numbers in self._program.sources if t.resizes and (fields[list(numbers)] >> f & 1).any())
        return next(found, None)

    @torch.no_grad()
    def run(self, images: Sequence[Tensor], samples: npt.NDArray[np.int64], epoch: int) -> list[Tensor]:
        """Carry the transforms out.

        Args:
            images: (B, C, H, W) of each field, masks (B, H, W), as stored, all on one device; of each view, all fields
                of the first view first, or the same for all views.
            samples: (B,) numbers that the random choices depend on.
            epoch: From 0 on.

        Returns:
            Of each view and field a tensor with the values that a Loader gives; those given, if nothing changes them.
        """
        given = [_opened(image) for image in images] * (len(self._program.values) // len(images))
        pack, plans, count = Pack(), list[list[Step]](), len(self._fields)
        for view in range(len(self._program.views)):
            sizes = [tuple(image.shape[2:]) for image in given[view * count : (view + 1) * count]]
            geometry, color, boxes = self._draw(view, sizes, samples, epoch)
            for f, field in enumerate(self._fields):
                size = tuple(geometry[0, f, -1, [op.HEIGHT, op.WIDTH]].tolist())
                values = self._program.values[view * count + f]
                steps = plan_stages(geometry[:, f], color[:, f], sizes[f], field.dtype, pack)
                plans.append(steps + plan_values(values, boxes[:, f], size, pack))
        device = images[0].device
        sent = pack.send(device)
        with torch.autocast(device.type, enabled=False):
            found = [carried(image, steps, sent) for image, steps in zip(given, plans, strict=True)]
        for k, image in enumerate(found):  # what changes one view must not change another
            is_shared = any(image.data_ptr() == other.data_ptr() for other in found[:k])
            found[k] = image.clone() if is_shared else image
        return [
            image[:, 0].contiguous()
            if self._fields[k % count].is_mask
            else image.contiguous(memory_format=self._layout)
            for k, image in enumerate(found)
        ]

    def _draw(
        self, view: int, sizes: Sequence[tuple[int, ...]], samples: npt.NDArray[np.int64], epoch: int
    ) -> tuple[npt.NDArray[Any], ...]:
        """Return geometry, color and boxes (B, fields, ...) of a view, for images of these sizes (H, W)."""
        n, (fields, stages, _) = len(samples), self._template.shape
        geometry, color = np.repeat(self._template[None], n, 0), np.zeros((n, fields, stages, op.NUM_COLOR))
        geometry[:, :, 0, [op.HEIGHT, op.WIDTH]] = sizes
        boxes, most = np.zeros((n, fields, self._num_erasings, 4), np.int64), np.zeros(4, np.int64)
        status = entries.draw_many(self._operations, view, self._seed, epoch, samples, most, geometry, color, boxes)
        if status:
            of = dict(zip((field.name for field in self._fields), sizes, strict=True))
            listed = ", ".join(f"{name} {h}x{w}" for name, (h, w) in of.items())
            raise OptionError(f"{listed}: {UNSUITED[status].format(field=max(of, key=lambda name: of[name]))}")
        return geometry, color, boxes


def _opened(images: Tensor) -> Tensor:
    """Return images or masks as `stages_in_torch` takes them."""
    images = images[:, None] if images.ndim == 3 else images
    if images.dtype == torch.uint16:
        return images.view(torch.int16)
    return images.float() if images.dtype == torch.float16 else images


def on_device(
    transforms: Sequence[Any], images: Tensor | Mapping[str, Tensor], samples: Any, *, seed: int, epoch: int
) -> Any:
    """Carry transforms out with torch, on the device of a batch from anywhere.

    What is drawn depends on the seed, the epoch, the numbers of the samples and the transforms alone: in that epoch,
    `Loader(dataset, seed=seed, transforms=transforms)` makes the same choices. Crops, flips, turns, erasings, values
    and resizes of pixels are equal bit for bit; a Loader resizes JPEGs before their pixels are complete.

    Args:
        transforms: As for a Loader; compiled ones, without warps, such as RandomRotation, and policies, such as
            RandAugment.
        images: (B, C, H, W) uint8, uint16, float16 or float32; or several fields by name, in the order of the dataset:
            such images, and masks (B, H, W) uint8 or uint16, around which a crop pads with 255.
        samples: (B,) whole numbers, those of the samples in the dataset.
        seed: Of the random choices, from 0 to 2**64 - 1.
        epoch: From 0 on.

    Returns:
        The images on their device, (B, C, H, W): a tensor, or a dict of them.

    Raises:
        OptionError: The images or the numbers have a wrong type, shape or range; or a transform does not suit them, or
            is not available.

    >>> from lmdbloader.transforms import RandomCrop
    >>> images = torch.zeros(8, 3, 32, 32, dtype=torch.uint8)
    >>> on_device([RandomCrop(24)], images, range(8), seed=0, epoch=0).shape
    torch.Size([8, 3, 24, 24])
    """
    tensors = dict(images) if isinstance(images, Mapping) else {"image": images}
    if not isinstance(transforms, list | tuple) or isinstance(transforms, SeveralViews):
        raise OptionError(f"on_device: the transforms are a {type(transforms).__name__}; expected a list, of one view")
    for t in transforms:
        if isinstance(t, BatchFunction):
            line = "lr, hr = degradation.on_device(...)" if t.makes_pairs else f"batch = {t}(batch)"
            raise OptionError(f"on_device: {t} is for whole batches. Leave it out, and write afterwards: {line}")
        if not isinstance(t, Transform):
            raise OptionError(f"on_device: {described(t)} is not compiled. Leave it out, and call it afterwards.")
    first: Any = next(iter(tensors.values()), ())
    for name, t in tensors.items():
        is_batch = isinstance(t, Tensor) and t.ndim in (3, 4) and t.dtype in _DTYPES[: 2 * t.ndim - 4] and t.numel()
        if not is_batch or (len(t), t.device) != (len(first), first.device):
            found = f"{tuple(t.shape)} of {t.dtype} on {t.device}" if isinstance(t, Tensor) else f"a {type(t).__name__}"
            raise OptionError(
                f"on_device: {name!r} is {found}; expected images (B, C, H, W) of uint8, uint16, float16 or float32, "
                "or masks (B, H, W) of uint8 or uint16, all of as many samples and on one device"
            )
    numbers = sample_numbers(samples, len(first), "on_device")
    fields = tuple(
        ImageField(name, 1 if t.ndim == 3 else t.shape[1], t.dtype, t.ndim == 3, tuple(t.shape[-2:]))
        for name, t in tensors.items()
    )
    program = _compiled(tuple(transforms), fields, whole("seed", seed, 0, 2**64 - 1))
    changed = program.run(list(tensors.values()), numbers, whole("epoch", epoch, 0, 2**63 - 1))
    return dict(zip(tensors, changed, strict=True)) if isinstance(images, Mapping) else changed[0]


@lru_cache(maxsize=16)
def _compiled(transforms: tuple[Transform, ...], fields: tuple[ImageField, ...], seed: int) -> DeviceProgram:
    return DeviceProgram(compile_program(transforms, fields), fields, seed=seed)
