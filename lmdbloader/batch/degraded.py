"""The step of a Degradation in a Loader: a batch with one image field becomes one with `lr` and `hr`."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lmdbloader.batch.pipeline import Output, Pipeline
from lmdbloader.batch.sample import sample_type
from lmdbloader.errors import OptionError
from lmdbloader.kernels import assemble_columns as at
from lmdbloader.kernels import entries
from lmdbloader.kernels.degrade.steps import NUM_DRAWN
from lmdbloader.kernels.transform import opcodes
from lmdbloader.transforms.base import Transform
from lmdbloader.transforms.degradation import Degradation
from lmdbloader.transforms.values import Chain, ImageField

I64 = npt.NDArray[np.int64]
LR, HR = "lr", "hr"


class DegradeStep:
    """A degradation for the images of a pipeline; safe from several threads.

    Attributes:
        kinds: The kind of each field after it, by name: the image's field becomes `lr` and `hr`.
        outputs: The images that it makes.
    """

    def __init__(self, degradation: Degradation, pipeline: Pipeline, kinds: Mapping[str, str]) -> None:
        """Check that it suits the images, and make the tables that the kernel reads.

        Args:
            degradation: What is drawn, with the ToDtype and Normalize after it.
            pipeline: Gives the images as planes.
            kinds: The kind of each field of the dataset, by name.

        Raises:
            OptionError: There is no such field, or its images do not suit.
        """
        self._degradation, self._name = degradation, _field_of(degradation, kinds)
        found = [o for o in pipeline.outputs if o.name == self._name]
        if not found:
            raise OptionError(f"{degradation}: images of different sizes. Put RandomCrop(256) before it.")
        source, scale = found[0], degradation.scale
        channels, height, width = source.shape
        if source.values.kind != opcodes.COPY:
            raise OptionError(f"{degradation}: put ToDtype and Normalize after it; they then hold for both images.")
        if height % scale or width % scale:
            raise OptionError(
                f"{degradation}: images of {height}x{width} pixels; expected multiples of {scale}. Crop them to one."
            )
        is_last = pipeline.memory_format == torch.channels_last
        self.outputs = [
            Output(name, shape, _values(name, channels, source.values.dtype, degradation.after), is_last)
            for name, shape in ((LR, (channels, height // scale, width // scale)), (HR, source.shape))
        ]
        hr = self.outputs[1]
        # Whether `hr` is the image that the pipeline gives.
        self._keeps = degradation.sharpens != "both" and hr.values.kind == opcodes.COPY and not is_last
        self._source = source
        self._describe()
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

    def _describe(self) -> None:
        self._described = np.zeros((2, at.NUM_DESCRIBED), np.int64)
        for output, described in zip(self.outputs, self._described, strict=True):
            described[at.KIND], described[at.OUT_ITEMSIZE] = output.values.kind, output.values.carrier.itemsize
            described[at.CHANNELS_LAST] = output.channels_last
            described[[at.OUT_CHANNELS, at.OUT_HEIGHT, at.OUT_WIDTH]] = output.shape
            if (table := output.values.table) is not None:
                described[at.TABLE], described[at.TABLE_STEP] = table.ctypes.data, table.strides[0]
        self._affine = np.array([o.values.affine for o in self.outputs], np.float32)

    def run(self, batch: Any, draws: I64, *, seed: int, epoch: int, is_fresh: bool) -> Any:
        """Return a batch with `lr` and `hr`.

        Args:
            batch: A named tuple of fields.
            draws: (B,) numbers of its samples.
            seed: The Loader's.
            epoch: Its number.
            is_fresh: Without effect: the images of the batch do not change.
        """
        images = self._images(batch, len(draws))
        pinned, count = images.is_pinned(), len(images)
        memory = [
            torch.from_numpy(np.empty(0, o.values.carrier)).new_empty((count, *o.stored_shape), pin_memory=pinned)
            for o in self.outputs[: 1 if self._keeps else 2]
        ]
        addresses = np.array([*(m.data_ptr() for m in memory), 0][:2], np.int64)
        degradation = self._degradation
        images = images.contiguous()
        done = entries.degrade(
            images.data_ptr(), images.element_size(), self._source.shape, draws, degradation.tables,
            degradation.scale, ("", "lr", "both").index(degradation.sharpens), seed,
            0 if degradation.fixed else epoch, addresses, self._described, self._affine, *self._room(),
        )  # fmt: skip
        if not done:
            raise OptionError(f"{degradation}: its last resize does not give the size of {LR!r}")
        made = [o.images(m) for o, m in zip(self.outputs, memory, strict=False)]
        lr, hr = made if len(made) == 2 else (made[0], images)
        values = {**batch._asdict(), LR: lr, HR: hr}
        return sample_type(tuple(self.kinds), type(batch)._lists, type(batch)._json)(*map(values.get, self.kinds))

    def _images(self, batch: Any, count: int) -> torch.Tensor:
        """Return the images of a batch, which the dataset's own transform may have changed.

        Raises:
            OptionError: They are not those that the pipeline gives.
        """
        found = getattr(batch, self._name, None)
        shape, dtype = (count, *self._source.shape), self._source.values.dtype
        if not isinstance(found, torch.Tensor) or found.shape != shape or found.dtype != dtype:
            kind = type(found).__name__
            shown = f"{tuple(found.shape)} of {found.dtype}" if isinstance(found, torch.Tensor) else f"a {kind}"
            raise OptionError(
                f"{self._degradation}: {self._name!r} is {shown} after the dataset's own transform; expected {shape} "
                f"of {dtype}. Change sizes and types by the transforms of the Loader."
            )
        return found

    def _room(self) -> tuple[Any, ...]:
        """Return this thread's working memory."""
        found = getattr(self._rooms, "memory", None)
        if found is None:
            channels, height, width = self._source.shape
            growth, steps = self._degradation.growth, self._degradation.tables[1].shape[1]
            sides = (math.ceil(side * growth) + 1 for side in (height, width))
            sizes = np.array([0, *entries.degrade_rooms(channels, *sides)], np.int64)
            sizes = -(-sizes // 8) * 8  # cache lines
            memory = np.empty(int(sizes.sum()) + 8, np.uint64)
            rooms = np.zeros(len(sizes) + opcodes.NUM_GEOMETRY + 2, np.int64)
            rooms[: len(sizes)] = -(-memory.ctypes.data // 64) * 64 + 8 * np.cumsum(sizes)
            found = rooms, np.zeros((steps, NUM_DRAWN)), np.zeros(steps, np.int64)
            self._rooms.memory, self._rooms.kept = found, memory
        return found


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


def _values(name: str, channels: int, dtype: torch.dtype, after: tuple[Transform, ...]) -> Any:
    chain = Chain(ImageField(name, channels, dtype))
    for transform in after:
        if transform.fields is None or name in transform.fields:
            chain.meet(transform, 0)
    return chain.values(0)
