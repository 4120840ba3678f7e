"""The images of a dataset in a device's memory: copied once, in the background, and gathered from then on."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lmdbloader.base import system
from lmdbloader.base.text import plain
from lmdbloader.base.units import show_nbytes
from lmdbloader.batch.dataset import LMDBDataset
from lmdbloader.batch.device_pipeline import DevicePipeline
from lmdbloader.batch.pipeline import Pipeline
from lmdbloader.errors import OptionError
from lmdbloader.loader.threads import Threads
from lmdbloader.store.rows import Rows, as_array
from lmdbloader.transforms.functions import is_compiled

I64 = npt.NDArray[np.int64]
_logger = logging.getLogger("lmdbloader")
# Of images that are read and copied at a time.
_CHUNK_NBYTES = 16 * 2**20
# torch gathers no uint16.
_GATHERED = {torch.uint16: torch.int16}


def check_on_device(
    options: Mapping[str, Any], dataset: LMDBDataset, functions: Sequence[Any], *, has_buckets: bool
) -> Callable[..., Pipeline]:
    """Return what makes the pipeline of a Loader whose transforms are carried out on the device.

    Raises:
        OptionError: It has something that cannot be there.
    """
    keeps = options["keep"] == "device"
    call = "keep='device'" if keeps else "on='device'"
    if dataset.has_own_transform:
        raise OptionError(
            f"{call}: the dataset's own transform gets samples in the computer's memory, one by one. Write a function "
            "of the batch: Loader(..., transforms=[..., function])."
        )
    for function in filter(is_compiled, functions):
        line = "its on_device(hr, samples, seed=0, epoch=epoch) in the loop" if function.makes_pairs else "on='cpu'"
        raise OptionError(f"{call}: {function} is carried out by compiled code, on the CPU. Use {line}.")
    if keeps and has_buckets:
        raise OptionError("keep='device', buckets: images are kept that have one size. Leave one of them out.")
    return partial(DevicePipeline, keeps=keeps)


def device_images_of(pipeline: Pipeline, rows: Rows, options: Mapping[str, Any], images: DeviceImages | None) -> None:
    """Give a pipeline the images that its Loader keeps on the device: those of before, if it reads the same, or none.

    Raises:
        OptionError: There are no images.
    """
    if not pipeline.fields:
        raise OptionError("on='device': no images, or images of different sizes. Add a crop, or a Resize to one size.")
    if options["keep"] == "device":
        is_same = images is not None and images.pipeline.transforms == pipeline.reading.transforms
        pipeline.device_images = images if is_same else DeviceImages(pipeline.reading, rows, options["keep_fraction"])


def free_on(device: torch.device) -> int:
    """Return the bytes that are free on a CUDA device, with those that torch keeps for itself."""
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + kept


class DeviceImages:
    """The images of the rows of one pipeline, on a device.

    Attributes:
        pipeline: Reads the images.
        is_complete: Whether all of them are there.
        has_failed: Whether one of them cannot be read.
        threads: The thread that brings them.
    """

    def __init__(self, pipeline: Pipeline, rows: Rows, fraction: float) -> None:
        """Prepare, for rows of the index and a fraction of the device's free memory; nothing is read or allocated."""
        self.pipeline, self._fraction = pipeline, fraction
        self._rows = np.unique(as_array(rows))
        self.is_complete = self.has_failed = False
        self.threads = Threads(1, "lmdbloader-keep")
        self._images: list[torch.Tensor] = []
        self._stream: Any = None
        self._next, self._each_nbytes = 0, sum(output.nbytes for output in pipeline.outputs)

    def places(self, rows: I64) -> I64:
        """Return where the images of rows (n,) are."""
        return np.searchsorted(self._rows, rows)

    def begin(self, device: torch.device) -> None:
        """Allocate memory on a device, and begin or continue to copy; called when an epoch begins.

        Raises:
            OptionError: There is too little memory.
        """
        if self.has_failed:
            return
        if not self._images or self._images[0].device != device:
            self.is_complete, self._next = False, 0
            with torch.inference_mode(False):  # the thread writes to them later
                self._allocate(device)
        if not self.is_complete:
            self.threads.submit(partial(_copy_next, weakref.ref(self), self.threads.num_closed))

    def gathered(self, places: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the images of each field at places (n,) on the device; the work is the current stream's."""
        if self._stream is not None:
            for images in self._images:  # allocated for the loop's
                images.record_stream(torch.cuda.current_stream(images.device))
        return [
            images.index_select(0, each).view(output.values.dtype)
            for each, images, output in zip(places, self._images, self.pipeline.outputs, strict=True)
        ]

    def _allocate(self, device: torch.device) -> None:
        is_cuda = device.type == "cuda"
        free = free_on(device) if is_cuda else system.free_memory()
        nbytes = len(self._rows) * self._each_nbytes
        if free is not None and nbytes > self._fraction * free:
            where = f"of {device}" if is_cuda else "of the computer"
            raise OptionError(
                f"keep='device': the images take {show_nbytes(nbytes)}, and of the {show_nbytes(free)} that are "
                f"free in the memory {where} keep_fraction={self._fraction:g} allows "
                f"{show_nbytes(int(self._fraction * free))}. The model needs the rest. Raise keep_fraction, choose "
                "fewer samples or smaller images, or leave keep out."
            )
        if is_cuda:
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            # The memory may have been that of tensors whose last work is not done.
            self._stream.wait_stream(torch.cuda.current_stream(device))
        self._images = [
            torch.empty(
                (len(self._rows), *output.stored_shape),
                dtype=_GATHERED.get(output.values.dtype, output.values.dtype), device=device,
            )
            for output in self.pipeline.outputs
        ]  # fmt: skip

    def give_up(self) -> None:
        """Free the memory: not all images can be read."""
        self.has_failed, self._images = True, []

    def copy_next(self) -> bool:
        """Copy the next images; return whether there are more."""
        begin = self._next
        end = min(begin + max(_CHUNK_NBYTES // max(self._each_nbytes, 1), 1), len(self._rows))
        is_cuda, rows = self._stream is not None, self._rows[begin:end]
        read = [
            torch.empty((end - begin, *images.shape[1:]), dtype=images.dtype, device="cpu", pin_memory=is_cuda)
            for images in self._images
        ]
        addresses = np.array([[images.data_ptr() for images in read]], np.int64)
        self.pipeline.read(rows, rows, 0, addresses, end - begin, self.pipeline.scratch())
        with torch.cuda.stream(self._stream):  # None without CUDA
            for images, own in zip(self._images, read, strict=True):
                images[begin:end].copy_(own, non_blocking=True)
        if is_cuda:
            self._stream.synchronize()
        self._next, self.is_complete = end, end == len(self._rows)
        return not self.is_complete


def _copy_next(of: weakref.ref[DeviceImages], num_closed: int) -> None:
    """Copy the next images, if their Loader is still there and open, and have the thread go on."""
    images = of()
    try:
        if images is None or images.threads.num_closed != num_closed or not images.copy_next():
            return
    except Exception as error:  # the loop reads what is damaged itself, and says so
        if images is not None:
            images.give_up()
        _logger.warning(
            "lmdbloader: keep='device': images are read from the dataset in every epoch: %s", plain(str(error))
        )
        return
    images.threads.submit(partial(_copy_next, of, num_closed))
