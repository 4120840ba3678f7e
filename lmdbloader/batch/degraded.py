"""The step of a Degradation in a Loader: a batch with one image field becomes one with `lr` and `hr`."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lmdbloader.batch.pipeline import Output, Pipeline
from lmdbloader.batch.sample import PARAMS, sample_type
from lmdbloader.errors import OptionError
from lmdbloader.kernels import assemble_columns as at
from lmdbloader.kernels.transform import opcodes
from lmdbloader.transforms.base import Geometry, Transform
from lmdbloader.transforms.degradation import Degradation
from lmdbloader.transforms.values import Chain, ImageField

I64 = npt.NDArray[np.int64]
LR, HR = "lr", "hr"


class DegradeStep:
    """A degradation for the images of a pipeline; safe from several threads.

    Attributes:
        kinds: The kind of each field after it, by name: the image's field becomes `lr` and `hr`.
        outputs: The images that it makes; without a size if the stored ones differ.
    """

    def __init__(
        self, degradation: Degradation, pipeline: Pipeline, kinds: Mapping[str, str], frames: int | None = None
    ) -> None:
        """Check that it suits the images, and make the tables that the kernel reads.

        Args:
            degradation: What is drawn, with the ToDtype and Normalize after it.
            pipeline: Makes the images as planes. Images that differ in size come one by one, as they are stored.
            kinds: The kind of each field of the dataset, by name.
            frames: The number of frames in a window, if the samples are windows of clips.

        Raises:
            OptionError: There is no such field, or its images do not suit.
        """
        if frames is None and any(degradation.walks):
            raise OptionError(f"{degradation}: samples are single images; expected Clips(...). Leave `.walking` out.")
        self._degradation, self._name, scale = degradation, _field_of(degradation, kinds), degradation.scale
        self._frames = frames or 1
        self._shape, self._dtype = _images_of(pipeline, self._name, degradation)
        channels, height, width = self._shape
        if channels not in (1, 3) or self._dtype.is_floating_point:
            raise OptionError(
                f"{degradation}: {self._name!r} holds {self._dtype} with {channels} channels; expected uint8 or uint16 "
                "with 1 or 3."
            )
        sets_size = any(isinstance(t, Geometry) and t.sets_size for t in pipeline.transforms)
        if (sets_size and (height % scale or width % scale)) or 0 < min(height, width) < scale:
            raise OptionError(
                f"{degradation}: images of {height}x{width} pixels; expected multiples of {scale}. Crop them to one."
            )
        self._is_last = pipeline.memory_format == torch.channels_last
        self._values = [_values(name, channels, self._dtype, degradation.after) for name in (LR, HR)]
        self._affine = np.array([v.affine for v in self._values], np.float32)
        self._made = self._make(channels, height - height % scale, width - width % scale)
        self.outputs = self._made[0]
        # Whether `hr` is the image that the pipeline gives.
        is_kept = self._values[1].kind == opcodes.COPY and not self._is_last
        self._keeps = degradation.sharpens != "both" and is_kept
        self._rooms = threading.local()
        others = {name: kind for name, kind in kinds.items() if name != self._name}
        if LR in others or HR in others:
            raise OptionError(
                f"{degradation}: it makes {LR!r} and {HR!r}, and the dataset has another field of this name. Leave it "
                f"out: LMDBDataset(path, fields=[{self._name!r}])."
            )
        self.kinds: dict[str, str] = {}
        for name, kind in kinds.items():
            self.kinds |= dict.fromkeys((LR, HR), kind) if name == self._name else {name: kind}

    def _make(self, channels: int, height: int, width: int) -> tuple[tuple[Output, Output], I64]:
        """Return `lr` and `hr` of images of one size, and the table of both that the kernel reads."""
        scale, shape = self._degradation.scale, (channels, height, width)
        low = Output(LR, (channels, height // scale, width // scale), self._values[0], self._is_last)
        outputs = low, Output(HR, shape, self._values[1], self._is_last)
        tables = np.zeros((2, at.NUM_DESCRIBED), np.int64)
        for output, described in zip(outputs, tables, strict=True):
            described[at.KIND], described[at.OUT_ITEMSIZE] = output.values.kind, output.values.carrier.itemsize
            described[at.CHANNELS_LAST] = output.channels_last
            described[[at.OUT_CHANNELS, at.OUT_HEIGHT, at.OUT_WIDTH]] = output.shape
            if (table := output.values.table) is not None:
                described[at.TABLE], described[at.TABLE_STEP] = table.ctypes.data, table.strides[0]
        return outputs, tables

    def run(self, batch: Any, draws: I64, *, seed: int, epoch: int, is_fresh: bool) -> Any:
        """Return a batch with `lr` and `hr`.

        Whole images are cropped at the right and bottom to multiples of the scale.

        Args:
            batch: A named tuple of fields.
            draws: (B,) numbers of its samples.
            seed: The Loader's.
            epoch: Its number.
            is_fresh: Without effect: the images of the batch do not change.
        """
        images, degradation = self._images(batch, len(draws)), self._degradation
        pinned, count = images.is_pinned(), len(images)
        height, width = (side - side % degradation.scale for side in images.shape[2:])
        images = images[..., :height, :width].contiguous()
        outputs, described = self._made
        if outputs[1].shape != images.shape[1:]:  # neighbors may have the same size by chance
            outputs, described = self._made = self._make(images.shape[1], height, width)
        memory = [
            torch.from_numpy(np.empty(0, o.values.carrier)).new_empty((count, *o.stored_shape), pin_memory=pinned)
            for o in outputs[: 1 if self._keeps else 2]
        ]
        addresses = np.array([*(m.data_ptr() for m in memory), 0][:2], np.int64)
        shape = outputs[1].shape
        degradation._run(
            images.data_ptr(), images.element_size(), shape, draws, addresses, described, self._affine,
            self._room(*shape), seed=seed, epoch=epoch, frames=self._frames,
        )  # fmt: skip
        lr, *kept = [o.images(m) for o, m in zip(outputs, memory, strict=False)]
        values = {**batch._asdict(), LR: lr, HR: kept[0] if kept else images}
        names = (*self.kinds, *(name for name in batch._fields if name == PARAMS))
        return sample_type(names, type(batch)._lists, type(batch)._json)(*map(values.get, names))

    def _images(self, batch: Any, count: int) -> torch.Tensor:
        """Return the images of a batch, which the dataset's own transform may have changed.

        Raises:
            OptionError: They are not those that the pipeline gives, or smaller than the scale.
        """
        found, dtype = getattr(batch, self._name, None), self._dtype
        shape: tuple[int, ...] = (count, *self._shape)
        if isinstance(found, torch.Tensor) and found.ndim == 4 and not shape[2]:
            shape = (*shape[:2], *(max(side, self._degradation.scale) for side in found.shape[2:]))
        if not isinstance(found, torch.Tensor) or found.shape != shape or found.dtype != dtype:
            kind = type(found).__name__
            shown = f"{tuple(found.shape)} of {found.dtype}" if isinstance(found, torch.Tensor) else f"a {kind}"
            raise OptionError(
                f"{self._degradation}: {self._name!r} is {shown}; expected {shape} of {dtype}. Change sizes and types "
                "with the Loader's transforms, not with the dataset's own."
            )
        return found

    def _room(self, channels: int, height: int, width: int) -> tuple[Any, ...]:
        """Return this thread's working memory for images of this size."""
        most_height, most_width, room = getattr(self._rooms, "kept", (0, 0, None))
        if room is None or height > most_height or width > most_width:
            height, width = max(height, most_height), max(width, most_width)
            room = self._degradation.room(channels, height, width)
            self._rooms.kept = height, width, room
        return room[0]


def _field_of(degradation: Degradation, kinds: Mapping[str, str]) -> str:
    """Return the name of the image field that is degraded."""
    images = [name for name, kind in kinds.items() if kind == "image"]
    if degradation.field is not None:
        if degradation.field not in images:
            raise OptionError(
                f"{degradation}: no field {degradation.field!r} of images; there are {', '.join(images) or 'none'}"
            )
        return degradation.field
    if len(images) != 1:
        raise OptionError(
            f"{degradation}: {len(images)} image fields, {', '.join(images) or 'none'}. Name the one to degrade, "
            f"{degradation.name}(field={(images or ['hr'])[-1]!r}), and leave others out with "
            "LMDBDataset(path, fields=[...])."
        )
    return images[0]


def _images_of(pipeline: Pipeline, name: str, degradation: Degradation) -> tuple[tuple[int, int, int], torch.dtype]:
    """Return (C, H, W) and the type of the images that come; H and W are 0 if they differ.

    Raises:
        OptionError: Their values are converted already.
    """
    for output in pipeline.outputs:
        if output.name == name:
            if output.values.kind != opcodes.COPY:
                raise OptionError(f"{degradation}: put ToDtype and Normalize after it; there they act on both images.")
            return output.shape, output.values.dtype
    reader, rows = pipeline.reader, pipeline.rows
    first = torch.from_numpy(np.empty(0, reader.image_dtype(name, int(rows[0]))))
    return (reader.extremes(name, "channels", rows)[1], 0, 0), first.dtype


def _values(name: str, channels: int, dtype: torch.dtype, after: tuple[Transform, ...]) -> Any:
    chain = Chain(ImageField(name, channels, dtype))
    for transform in after:
        if transform.fields is None or name in transform.fields:
            chain.meet(transform, 0)
    return chain.values(0)
