"""Reads images for transforms that are carried out on a device: the first of them on the way, the others there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lmdbloader.batch.pipeline import Pipeline
from lmdbloader.errors import OptionError
from lmdbloader.store import Reader
from lmdbloader.transforms.base import Geometry, Transform, leaves
from lmdbloader.transforms.compilation import is_random
from lmdbloader.transforms.device_program import DeviceProgram, is_missing
from lmdbloader.transforms.values import ToDtype

I64 = npt.NDArray[np.int64]


class DevicePipeline(Pipeline):
    """A pipeline whose `reading` reads pixels as stored, after the first transforms, for `carry_out` on a device.

    The processor carries out the leading transforms that move pixels, up to the last of them that sets a size or that
    the device lacks: what crosses the link is small then. Draws and boxes are those of all transforms together.

    Attributes:
        outputs: What `carry_out` makes.
        changes_pixels: Whether it does more than convert values.
        device_images: Kept on the device, or None; see the Loader's `DeviceImages`.
    """

    def __init__(
        self,
        reader: Reader,
        fields: Sequence[str],
        transforms: Sequence[Transform],
        *,
        views: Any = None,
        keeps: bool = False,
        channels_last: bool = False,
        **options: Any,
    ) -> None:
        """Check that the transforms suit every image, and compile them; the arguments are those of Pipeline.

        Args:
            keeps: Whether what is read must be the same in all epochs.

        Raises:
            OptionError: As from Pipeline; or a transform is not available on a device, or with `keeps` images would
                be read in different sizes.
        """
        super().__init__(reader, fields, transforms, views=views, channels_last=channels_last, **options)
        end, sized = _cut(transforms, is_sized=all(field.size for field in self._image_fields), keeps=keeps)
        first, lists = list(transforms[:end]), None
        halves = tuple(field.name for field in self._image_fields if field.dtype == torch.float16)
        # The device goes on with numbers of 32 bits, as the processor would.
        exact = [ToDtype(torch.float32, fields=halves)] if halves else []
        if views is not None and not keeps and end == len(transforms):
            ends = [_cut(view, is_sized=sized)[0] for view in views]
            lists = [[*view[:end], *exact] for view, end in zip(views, ends, strict=True)] if any(ends) else None
        if lists is not None:
            options["views"] = type(views)(*lists)
        elif end:
            first += exact
        try:
            self._reading = Pipeline(reader, fields, first, **options)
        except OptionError as error:
            if not keeps:
                raise
            raise OptionError(
                f"{error} keep='device': images must have one size before the first random transform. Put "
                "Resize((height, width)) first, or leave keep out."
            ) from error
        done = [end - begin for begin, end, _ in self._reading.program.views.tolist()]
        done = done if lists is not None else done * self.num_views
        read = zip(self._image_fields, self._reading.outputs, strict=False)
        images = [replace(field, size=output.shape[1:]) for field, output in read]
        advice = "Put it first, where the CPU carries it out, or leave on='device' out."
        advice = "Write on='device' in place of keep='device', and put it first; or leave it out." if keeps else advice
        self._program = DeviceProgram(
            self.program, images, seed=self.seed, done=done, channels_last=channels_last, advice=advice
        )
        self.changes_pixels = self._program.changes_pixels
        for f, name in enumerate(self.fields):
            if reader.jpeg_room(name) and (resize := self._program.resize_of(f)) is not None:
                raise OptionError(
                    f"{resize}: the device would resize the decoded pixels of {name!r}. The CPU resizes JPEGs while it "
                    "decodes them, and the results differ by some levels. Put it first, with on='device', or convert "
                    "the images with --codec lz4."
                )

    @property
    def reading(self) -> Pipeline:
        return self._reading

    def carry_out(self, batch: Any, samples: I64, epoch: int) -> Any:
        """Return a batch after the transforms that were not carried out when it was read.

        Args:
            batch: A named tuple whose fields of images are tensors (B, ...), or lists of them, on a device; or (B,) the
                places of images that are kept there.
            samples: (B,) numbers of the images that the random choices depend on.
            epoch: From 0 on.
        """
        several = self.views is not None
        columns = [getattr(batch, name) for name in self.fields]
        images = [view for column in zip(*columns, strict=True) for view in column] if several else columns
        if self.device_images is not None and images[0].ndim == 1:
            images = self.device_images.gathered(images)
        found = self._program.run(images, samples, epoch)
        count = len(self.fields)
        changed: dict[str, Any] = {name: found[f::count] if several else found[f] for f, name in enumerate(self.fields)}
        return batch._replace(**changed)


def _cut(transforms: Sequence[Any], *, is_sized: bool, keeps: bool = False) -> tuple[int, bool]:
    """Return how many transforms at the beginning of a list the processor carries out, and whether sizes are one then.

    Args:
        transforms: Of one view, or before the views.
        is_sized: Whether stored images have one size.
        keeps: Whether random transforms are not among them.
    """
    end, is_leading = 0, True
    for number, t in enumerate(transforms):
        inner = [leaf for leaf in leaves([t]) if isinstance(leaf, Geometry)]
        sets_size = any(leaf.sets_size or leaf.varies_size or any(leaf.padding_numbers) for leaf in inner)
        moves = bool(inner) and all(leaf.moves or is_missing(leaf.code) for leaf in inner)
        if keeps and is_random(t):
            break
        is_leading = is_leading and moves
        gives_one = any(leaf.sets_size and leaf.size_numbers[1] for leaf in inner)
        if (gives_one and not is_sized) or (is_leading and (sets_size or any(is_missing(leaf.code) for leaf in inner))):
            end = number + 1
        is_sized = gives_one or (is_sized and not any(leaf.varies_size for leaf in inner))
    return end, is_sized
