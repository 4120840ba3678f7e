"""Carries transforms out on a device: what is drawn is drawn by compiled code, and torch changes the pixels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lmdbloader.base.arguments import shown, whole
from lmdbloader.errors import OptionError
from lmdbloader.kernels import entries
from lmdbloader.kernels.transform import opcodes as op
from lmdbloader.transforms.base import SeveralViews, Transform
from lmdbloader.transforms.compilation import UNSUITED, Program, compile_program
from lmdbloader.transforms.functions import BatchFunction, described, sample_numbers
from lmdbloader.transforms.stages_in_torch import Pack, Step, groups_of, plan_stages, plan_values
from lmdbloader.transforms.values import ImageField

I64 = npt.NDArray[np.int64]
MISSING = (op.AFFINE, op.PERSPECTIVE, op.ELASTIC, op.POLICY, op.AUGMIX)
# The label around masks, which `fields.Mask` has by default.
_IGNORED = 255
_DTYPES = (torch.uint8, torch.uint16, torch.float16, torch.float32)


class DeviceProgram:
    """The transforms of image fields, for batches on any device."""

    def __init__(
        self,
        program: Program,
        fields: Sequence[ImageField],
        *,
        seed: int,
        done: Sequence[int] = (),
        ignored: Sequence[int | None] = (),
        channels_last: bool = False,
    ) -> None:
        """Check that all operations are available.

        Args:
            program: The transforms, compiled for these fields.
            fields: Of images and masks.
            seed: Of the random choices.
            done: Of each view, how many operations at its beginning are done already; none by default.
            ignored: Of each field, the label around masks; None for images.
            channels_last: Whether images of the results are (H, W, C) in memory.

        Raises:
            OptionError: A transform is not available on a device; it is named.
        """
        self._program, self._fields = program, tuple(fields)
        self._seed, self._channels_last = np.uint64(seed), channels_last
        operations, real = program.whole.copy(), program.real.copy()
        # A branch that is not taken: the numbers of later operations stay.
        for (begin, _, _), count in zip(program.views.tolist(), done, strict=False):
            operations[begin : begin + count], real[begin : begin + count] = 0, 0
            operations[begin : begin + count, op.OP_CODE] = op.BRANCH
        self._operations = operations, real, program.views
        for transform, numbers in program.sources:
            if np.isin(operations[list(numbers), op.OP_CODE], MISSING).any():
                raise OptionError(
                    f"{transform}: is not available on a device. Put it in front of all other transforms, where the "
                    "processor carries it out, or leave on='device' out."
                )
        self._template = np.zeros((len(fields), program.num_stages, op.NUM_GEOMETRY), np.int64)
        is_late = (operations[:, op.OP_CODE] == op.RESIZE) | (operations[:, op.OP_CODE] == op.RANDOM_RESIZED_CROP)
        # A window is resized as it is stored, and turned later: only before that must geometries be carried on.
        self._template[..., op.WRITES] = not (is_late & (operations[:, op.OP_STAGE] > 0)).any()
        for f, field in enumerate(fields):
            self._template[f, :, op.OWN_FILL] = 3 * field.dtype.is_floating_point
            if (label := ignored[f] if ignored else None) is not None:
                self._template[f, :, op.MASK], self._template[f, :, op.FILL] = 1, label
        self._num_erasings = max((len(values.erased) for values in program.values), default=0)

    @torch.no_grad()
    def run(self, images: Sequence[Tensor], samples: I64, epoch: int) -> list[Tensor]:
        """Carry the transforms out.

        Args:
            images: (B, C, H, W) of each field, masks (B, H, W), of its type, all on one device; of each view, all
                fields of the first view first, or the same for all views.
            samples: (B,) numbers that the random choices depend on.
            epoch: From 0 on.

        Returns:
            New tensors of each view and field, with the values that a Loader gives; or those given, if no sample is
            changed.
        """
        num_fields, num_views = len(self._fields), len(self._program.views)
        given = [image[:, None] if image.ndim == 3 else image for image in images]
        given = [image.float() if image.dtype == torch.float16 else image for image in given]
        given = given * (num_fields * num_views // len(given))
        pack, plans = Pack(), list[_Plan]()
        for view in range(num_views):
            own = given[view * num_fields : (view + 1) * num_fields]
            geometry, color, boxes = self._draw(view, own, samples, epoch)
            for f, image in enumerate(own):
                values = self._program.values[view * num_fields + f]
                plan = _Plan(geometry[:, f], color[:, f], image, pack)
                plan.last = plan_values(values, boxes[:, f], plan.size, pack)
                plans.append(plan)
        device = images[0].device
        tables = pack.send(device)
        with torch.autocast(device.type, enabled=False):
            found = [plan.run(image, tables) for plan, image in zip(plans, given, strict=True)]
        found = [image[:, 0] if images[k % len(images)].ndim == 3 else image for k, image in enumerate(found)]
        layouts = torch.contiguous_format, torch.channels_last
        return [image.contiguous(memory_format=layouts[self._channels_last and image.ndim == 4]) for image in found]

    def _draw(
        self, view: int, images: Sequence[Tensor], samples: I64, epoch: int
    ) -> tuple[I64, npt.NDArray[np.float64], I64]:
        """Return geometry, color and boxes (n, fields, ...) of a view."""
        n, (fields, stages, _) = len(samples), self._template.shape
        geometry = np.repeat(self._template[None], n, 0)
        geometry[:, :, 0, [op.HEIGHT, op.WIDTH]] = [image.shape[2:] for image in images]
        color = np.zeros((n, fields, stages, op.NUM_COLOR))
        boxes, most = np.zeros((n, fields, self._num_erasings, 4), np.int64), np.zeros(4, np.int64)
        status = entries.draw_many(self._operations, view, self._seed, epoch, samples, most, geometry, color, boxes)
        if status:
            names, sizes = zip(
                *((f.name, tuple(i.shape[2:])) for f, i in zip(self._fields, images, strict=True)), strict=True
            )
            listed = ", ".join(f"{name} {h}x{w}" for name, (h, w) in zip(names, sizes, strict=True))
            raise OptionError(f"{listed}: {UNSUITED[status].format(field=names[sizes.index(max(sizes))])}")
        return geometry, color, boxes


class _Plan:
    """What is done to the images of one view and field."""

    def __init__(self, geometry: I64, color: npt.NDArray[np.float64], image: Tensor, pack: Pack) -> None:
        self.last: list[Step] = []
        self.size: tuple[int, ...] = tuple(geometry[0, -1, [op.HEIGHT, op.WIDTH]].tolist())
        self._groups: list[tuple[int, list[Step]]] = []
        groups = groups_of(geometry, image.dtype)
        picks = [np.flatnonzero(groups == k) for k in range(groups.max() + 1)]
        for pick in picks:
            self._groups.append((pack.add(pick), plan_stages(geometry[pick], color[pick], image, pack)))
        self._back = pack.add(np.argsort(np.concatenate(picks)))

    def run(self, image: Tensor, tables: Sequence[Tensor]) -> Tensor:
        """Return the finished images."""
        if len(self._groups) == 1:
            image = _carried(image, self._groups[0][1], tables)
        else:
            bits = image.view(torch.int16) if image.dtype == torch.uint16 else image
            parts = [
                _carried(bits.index_select(0, tables[pick]).view(image.dtype), steps, tables)
                for pick, steps in self._groups
            ]
            joined = torch.cat([part.view(bits.dtype) for part in parts])
            image = joined.index_select(0, tables[self._back]).view(image.dtype)
        return _carried(image, self.last, tables)


def _carried(image: Tensor, steps: Sequence[Step], tables: Sequence[Tensor]) -> Tensor:
    for step in steps:
        image = step(image, tables)
    return image


def on_device(
    transforms: Sequence[Any], images: Tensor | Mapping[str, Tensor], samples: Any, *, seed: int, epoch: int
) -> Any:
    """Carry transforms out on a batch from anywhere, with torch, on the device of its images.

    What is drawn for a sample depends on the seed, the epoch, its number and the transforms alone: with the same seed,
    `Loader(dataset, seed=seed, transforms=transforms)` makes the same choices in that epoch, and crops, flips, turns,
    resizes of decoded pixels, erasings and values are equal bit for bit.

    Args:
        transforms: As for a Loader, compiled ones only; warps such as RandomRotation, and policies such as RandAugment,
            are not available.
        images: (B, C, H, W) uint8, uint16, float16 or float32; or several fields by name, in the order of the dataset:
            such images, and masks (B, H, W) uint8 or uint16, around which a crop pads with 255.
        samples: (B,) whole numbers of the samples, such as a dataset's field with their numbers has.
        seed: Of the random choices, from 0 to 2**64 - 1.
        epoch: From 0 on.

    Returns:
        The changed images on their device: a tensor, or a dict of them.

    Raises:
        OptionError: The images or the numbers have a wrong type, shape or range; or a transform does not suit them, or
            is not available.

    >>> import torch
    >>> from lmdbloader.transforms import RandomCrop, on_device
    >>> on_device([RandomCrop(24)], torch.zeros(8, 3, 32, 32, dtype=torch.uint8), range(8), seed=0, epoch=0).shape
    torch.Size([8, 3, 24, 24])
    """
    tensors = dict(images) if isinstance(images, Mapping) else {"image": images}
    if not isinstance(transforms, list | tuple) or isinstance(transforms, SeveralViews):
        raise OptionError(f"on_device(transforms={shown(transforms)}): expected a list of transforms, for one view.")
    for t in transforms:
        if isinstance(t, BatchFunction):
            raise OptionError(
                f"on_device: {t} changes whole batches. Leave it out, and call it afterwards: {_line(t)}."
            )
        if not isinstance(t, Transform):
            raise OptionError(f"on_device: {described(t)} is not compiled. Leave it out, and call it afterwards.")
    _check(tensors)
    first = next(iter(tensors.values()))
    numbers = sample_numbers(samples, len(first), "on_device")
    fields = tuple(
        ImageField(name, 1 if t.ndim == 3 else t.shape[1], t.dtype, t.ndim == 3, tuple(t.shape[-2:]))
        for name, t in tensors.items()
    )
    program = _compiled(tuple(transforms), fields, whole("seed", seed, 0, 2**64 - 1))
    found = program.run(list(tensors.values()), numbers, whole("epoch", epoch, 0, 2**63 - 1))
    return dict(zip(tensors, found, strict=True)) if isinstance(images, Mapping) else found[0]


@lru_cache(maxsize=16)
def _compiled(transforms: tuple[Transform, ...], fields: tuple[ImageField, ...], seed: int) -> DeviceProgram:
    ignored = [_IGNORED if field.is_mask else None for field in fields]
    return DeviceProgram(compile_program(transforms, fields), fields, seed=seed, ignored=ignored)


def _line(function: BatchFunction) -> str:
    if function.makes_pairs:
        return "lr, hr = degradation.on_device(hr, samples, seed=seed, epoch=epoch)"
    return f"batch = {function}(batch)"


def _check(tensors: Mapping[str, Any]) -> None:
    """Raise OptionError if images are not batches of equal length on one device."""
    first = next(iter(tensors.values()), None)
    for name, t in tensors.items():
        if (
            not isinstance(t, Tensor) or t.ndim not in (3, 4) or t.dtype not in _DTYPES[: 2 if t.ndim == 3 else 4]
            or not t.numel() or len(t) != len(first) or t.device != first.device
        ):  # fmt: skip
            found = f"{tuple(t.shape)} of {t.dtype} on {t.device}" if isinstance(t, Tensor) else f"a {type(t).__name__}"
            raise OptionError(
                f"on_device: {name!r} is {found}; expected images (B, C, H, W) of uint8, uint16, float16 or float32, or "
                "masks (B, H, W) of uint8 or uint16, of as many samples as the others, on one device"
            )
    if first is None:
        raise OptionError("on_device: no images")
