"""FFCV for the benchmarks, with its best settings: writes its files, opens its loaders, and patches its defects.

FFCV 1.0.2 is the last release. `install.py` builds it; a regular installation does as well.
An epoch that is left early keeps its thread: call `close()` on the iterator.
Memory is allocated and pinned again in every epoch, so short epochs include that cost.
A batch is overwritten once `batches_ahead` (3) more were requested, so copy batches that you keep.
A loader sets the threads of Numba and of torch (`torch.set_num_threads`) to its workers whenever an epoch begins.
"""

from __future__ import annotations

import functools
import importlib
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
JPEG_QUALITY = 92
# FFCV's orders by the name that it gives them.
Order = Literal["sequential", "random", "quasi_random"]
# A writer that has made no progress for so long will make none.
_STALLED_SECONDS = 120.0


@functools.cache
def ffcv_available() -> str | None:
    """Return None where FFCV can be used, else the reason why not."""
    try:
        _ffcv()
    except Exception as error:
        # Whatever it is, the other figures go on without FFCV.
        return f"FFCV cannot be imported: {type(error).__name__}: {error}"
    return None


def threads() -> int:
    """Return the most workers that a loader can have here: FFCV's are Numba's threads."""
    import numba

    return int(numba.config.NUMBA_NUM_THREADS)


# --- writing -----------------------------------------------------------------------------------------------------


class _Photographs:
    """Class folders of images as (pixels, label)."""

    def __init__(self, folder: Path) -> None:
        names = sorted(path.name for path in folder.iterdir() if path.is_dir())
        self.samples = [(path, label) for label, name in enumerate(names) for path in sorted((folder / name).iterdir())]
        if not self.samples:
            raise FileNotFoundError(f"{folder}: found no images in class folders. Run photographs.py first.")

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        from PIL import Image

        path, label = self.samples[index]
        with Image.open(path) as image:
            return np.asarray(image.convert("RGB")), label


class _PairsOf:
    """An lmdbloader dataset as (lr, hr) of NumPy arrays."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        sample = self.dataset[int(index)]
        lr, hr = (sample["lr"], sample["hr"]) if isinstance(sample, dict) else (sample[0], sample[1])
        return np.ascontiguousarray(lr), np.ascontiguousarray(hr)


def write_images(folder: Path, path: Path, *, mode: str, max_resolution: int | None, workers: int) -> None:
    """Write class folders of images as FFCV's file.

    Args:
        folder: One folder a class; labels count the classes in the order of their names.
        path: The new file, with the fields `image` and `label`.
        mode: "jpg": encoded again by FFCV with quality 92; "raw": pixels.
        max_resolution: Shrink images whose longer side has more pixels; None keeps every size.
        workers: Processes.

    Raises:
        RuntimeError: A writing process has died, or none makes progress.
    """
    _ffcv()
    from ffcv.fields import IntField, RGBImageField

    image = RGBImageField(write_mode=mode, max_resolution=max_resolution, jpeg_quality=JPEG_QUALITY)
    _write(path, {"image": image, "label": IntField()}, _Photographs(folder), workers)


def write_pairs(dataset: Any, path: Path, *, workers: int) -> None:
    """Write a dataset of pairs of equal size as FFCV's file, with the fields `lr` and `hr`, each (3, H, W) uint8.

    Raises:
        RuntimeError: A writing process has died, or none makes progress.
    """
    _ffcv()
    from ffcv.fields import NDArrayField

    pairs = _PairsOf(dataset)
    shapes = dict(zip(("lr", "hr"), (half.shape for half in pairs[0]), strict=True))
    _write(path, {name: NDArrayField(np.dtype("u1"), shape) for name, shape in shapes.items()}, pairs, workers)


def _write(path: Path, fields: dict[str, Any], samples: Any, workers: int) -> None:
    """Write into a temporary file: one that is there is whole."""
    import ffcv.writer

    temporary = path.with_name(path.name + ".tmp")
    started: list[Any] = []
    process = ffcv.writer.Process
    progress = ffcv.writer.tqdm
    last = [time.monotonic(), -1]

    class Recorded(process):  # type: ignore[misc, valid-type]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            started.append(self)

    def wait(seconds: float) -> None:
        # FFCV waits for ever for a process that has died.
        time.sleep(seconds)
        written = temporary.stat().st_size
        if written != last[1]:
            last[:] = time.monotonic(), written
        died = [child.exitcode for child in started if child.exitcode not in (None, 0)]
        if died or time.monotonic() - last[0] > _STALLED_SECONDS:
            why = f"a process died with exit status {died[0]}" if died else f"no progress for {_STALLED_SECONDS:.0f} s"
            raise RuntimeError(f"{path}: FFCV could not write it: {why}.")

    ffcv.writer.Process, ffcv.writer.sleep = Recorded, wait
    ffcv.writer.tqdm = functools.partial(progress, disable=True)
    writer = ffcv.writer.DatasetWriter(str(temporary), fields, num_workers=workers)
    try:
        writer.from_indexed_dataset(samples)
        for child in started:
            child.join()
        os.replace(temporary, path)
    except BaseException:
        if hasattr(writer, "metadata_sm"):
            writer.metadata_sm.unlink()
        raise
    finally:
        ffcv.writer.Process, ffcv.writer.sleep, ffcv.writer.tqdm = process, time.sleep, progress
        for child in started:
            child.kill()
        temporary.unlink(missing_ok=True)


# --- loading -----------------------------------------------------------------------------------------------------


def image_loader(
    path: Path | str,
    *,
    batch_size: int,
    size: int,
    workers: int,
    device: str,
    dtype: torch.dtype,
    order: Order = "random",
    channels_last: bool = False,
    seed: int = 0,
) -> Any:
    """Return FFCV's loader with RandomResizedCrop, a horizontal flip, and ImageNet's mean and deviation.

    On a CUDA device it is the pipeline of FFCV's own ImageNet example: uint8 pixels are copied there from pinned
    memory, and its NormalizeImage makes floats of them there. On the CPU NormalizeImage is one of its compiled steps.
    Incomplete batches are dropped.

    Args:
        path: Written by `write_images`.
        size: Height and width of the crops.
        workers: Threads; more than `threads()` are taken as that many.
        device: "cpu", "cuda" or "cuda:1".
        dtype: Of the images: float32, float16 or bfloat16 (made of float16), or uint8: not normalized.
        order: "quasi_random" shuffles within some pages at a time, which is for data that memory does not hold.
        channels_last: False: in torch's usual order, which takes FFCV one more copy.
        seed: Of the order; crops and flips differ from run to run.

    Returns:
        Yields (images (N, 3, size, size), labels (N,) int64) on `device`.
    """
    _ffcv()
    from ffcv.fields.decoders import IntDecoder, RandomResizedCropRGBImageDecoder
    from ffcv.transforms import (
        NormalizeImage,
        RandomHorizontalFlip,
        Squeeze,
        ToDevice,
        ToTensor,
        ToTorchImage,
    )

    where = torch.device(device)
    images = [RandomResizedCropRGBImageDecoder((size, size)), RandomHorizontalFlip()]
    labels = [IntDecoder(), ToTensor(), Squeeze(1)]
    mean, std = (np.array(values) * 255 for values in (MEAN, STD))
    # NormalizeImage looks its values up in a table of a NumPy type.
    table = np.float32 if dtype == torch.float32 else np.float16
    is_normalized, into = dtype != torch.uint8, functools.partial(_operations().Into, dtype)
    if where.type == "cuda":
        labels.append(ToDevice(where, non_blocking=True))
        images += [ToTensor(), ToDevice(where, non_blocking=True), ToTorchImage()]
        if is_normalized and cuda_normalization(device) != "cupy":
            images.append(_operations().Normalize(mean, std, dtype, channels_last=channels_last))
        else:
            images += [NormalizeImage(mean, std, table)] if is_normalized else []
            if dtype == torch.bfloat16 or not channels_last:
                images.append(into(channels_last=channels_last))
    else:
        images += [NormalizeImage(mean, std, table)] if is_normalized else []
        images += [ToTensor(), ToTorchImage(channels_last=channels_last)]
        if dtype == torch.bfloat16:
            images.append(into(channels_last=channels_last))
    return _loader(path, batch_size, workers, order, seed, {"image": images, "label": labels})


def pair_loader(
    path: Path | str,
    *,
    batch_size: int,
    workers: int,
    device: str,
    dtype: torch.dtype,
    crop: int | None = None,
    ways: Literal[2, 8] = 2,
    order: Order = "random",
    seed: int = 0,
) -> Any:
    """Return FFCV's loader of pairs whose halves are cropped, and mirrored or turned, in step.

    One compiled step of ours reads, crops, turns and converts, in parallel, instead of FFCV's NDArrayDecoder, which
    copies on one thread: nothing that is written with FFCV's means does less. FFCV stores no checksums, so none is
    verified. Incomplete batches are dropped.

    Args:
        path: Written by `write_pairs`.
        workers: Threads; more than `threads()` are taken as that many.
        device: "cpu", "cuda" or "cuda:1"; there uint8 pixels are copied from pinned memory, and converted.
        dtype: uint8, or a floating type in 0..1 (on the CPU float32 only).
        crop: Height and width of the HR crop, a multiple of the scale; None: all of it.
        ways: 2: mirrored left and right, or not. 8: also turned by 90 degrees: whole squares of a multiple of 8.
        order: As in `image_loader`.
        seed: Of the order, the crops and the turns.

    Returns:
        Yields (lr, hr), each (N, 3, H, W), on `device`.
    """
    _ffcv()
    from ffcv.reader import Reader
    from ffcv.transforms import ToDevice, ToTensor

    where = torch.device(device)
    if where.type == "cpu" and dtype not in (torch.uint8, torch.float32):
        raise ValueError(f"dtype is {dtype}: on the CPU the pairs are uint8 or float32.")
    fields = Reader(str(path)).handlers
    (height, width), scale = fields["lr"].shape[1:], fields["hr"].shape[1] // fields["lr"].shape[1]
    if crop is not None and (crop % scale or crop > scale * min(height, width)):
        raise ValueError(f"crop is {crop}: a multiple of {scale} up to {scale * min(height, width)} was expected.")
    window = (height, width) if crop is None else (crop // scale, crop // scale)
    if ways == 8 and (crop is not None or height != width or height % 8):
        raise ValueError(f"ways is 8 of {height} x {width}, crop {crop}: whole squares of a multiple of 8 are turned.")
    in_floats = where.type == "cpu" and dtype == torch.float32
    operations = _operations()
    read = operations.ReadPatch if ways == 2 else operations.TurnPatch
    pipelines = {}
    for name, factor in (("lr", 1), ("hr", scale)):
        steps = [read(window, factor, np.float32 if in_floats else np.uint8, seed), ToTensor()]
        if where.type == "cuda":
            steps.append(ToDevice(where, non_blocking=True))
            if dtype != torch.uint8:
                steps.append(operations.Scale(dtype))
        pipelines[name] = steps
    return _loader(path, batch_size, workers, order, seed, pipelines)


def lengthen(loader: Any, length: int) -> None:
    """Give a loader epochs of at least so many samples, which come again and again."""
    loader.indices = np.resize(loader.indices, max(length, len(loader.indices)))
    loader.traversal_order.indices = loader.indices
    loader.first_traversal_order = loader.next_traversal_order()


@functools.cache
def cuda_normalization(device: str) -> str:
    """Return "cupy" where FFCV's NormalizeImage works on a CUDA device, else "torch" and why: then we normalize there.

    Its kernel is CuPy's, called on torch's stream by pytorch_pfn_extras; neither is needed for anything else.
    """
    try:
        from ffcv.pipeline.state import State
        from ffcv.transforms import NormalizeImage

        step = NormalizeImage(np.zeros(3), np.full(3, 2.0), np.float16)
        state = State(jit_mode=False, device=torch.device(device), dtype=torch.uint8, shape=(3, 2, 2))
        step.declare_state_and_memory(state)
        pixels = torch.arange(24, dtype=torch.uint8, device=device).reshape(2, 2, 2, 3).permute(0, 3, 1, 2)
        out = torch.empty((2, 3, 2, 2), dtype=torch.int16, device=device)
        found = step.generate_code()(pixels, out)
        torch.cuda.synchronize(device)
        if not torch.equal(found.float(), pixels.float() / 2):
            return "torch: FFCV's NormalizeImage computes something else"
    except Exception as error:
        # CuPy may be missing, older than the driver, or no longer take torch's tensors.
        return f"torch: {type(error).__name__}: {error}"
    return "cupy"


def _loader(path: Path | str, batch_size: int, workers: int, order: Order, seed: int, pipelines: dict[str, Any]) -> Any:
    from ffcv.loader import Loader, OrderOption

    return Loader(
        str(path), batch_size=batch_size, num_workers=min(workers, threads()), order=OrderOption[order.upper()],
        os_cache=True, drop_last=True, seed=seed, pipelines=pipelines,
    )  # fmt: skip


@functools.cache
def _ffcv() -> Any:
    """Return FFCV's package, with its loader patched: an error in its thread would leave the consumer waiting."""
    package = importlib.import_module("ffcv")
    for name in ("fields.decoders", "transforms", "writer"):
        importlib.import_module(f"ffcv.{name}")
    loader = importlib.import_module("ffcv.loader.loader")

    class Epoch(loader.EpochIterator):  # type: ignore[misc, name-defined]
        error: Exception | None = None

        def run(self) -> None:
            try:
                super().run()
            except Exception as error:
                self.error = error
                self.output_queue.put(None)

        def __next__(self) -> Any:
            try:
                return super().__next__()
            except StopIteration:
                if self.error is not None:
                    raise RuntimeError(f"FFCV: {type(self.error).__name__}: {self.error}") from self.error
                raise

        def close(self) -> None:
            super().close()
            self.closed = True

        def __del__(self) -> None:
            # One whose making failed has nothing to close.
            if hasattr(self, "memory_context"):
                self.close()

    loader.EpochIterator = Epoch
    return package


@functools.cache
def _operations() -> Any:
    """Return extra operations for FFCV's pipelines: their base class exists only if FFCV is installed."""
    import numba
    from ffcv.fields.ndarray import NDArrayDecoder
    from ffcv.pipeline.allocation_query import AllocationQuery
    from ffcv.pipeline.compiler import Compiler
    from ffcv.pipeline.operation import Operation

    @numba.njit(nogil=True)
    def draw(index, batch, seed):  # type: ignore[no-untyped-def]
        """Return 64 bits that depend on the sample, on the batch that it is in, and so on the epoch (splitmix64)."""
        z = np.uint64(index) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(batch) * np.uint64(0xD1342543DE82EF95)
        z += np.uint64(seed)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))

    @numba.njit(inline="always")
    def as_it_is(value):  # type: ignore[no-untyped-def]
        return value

    @numba.njit(inline="always")
    def to_unit(value):  # type: ignore[no-untyped-def]
        return np.float32(value) * np.float32(1 / 255)

    class ReadPatch(NDArrayDecoder):  # type: ignore[misc]
        """Reads a window of a (3, H, W) uint8 array, mirrored or not, as uint8 or as float32 in 0..1.

        Its random choices depend only on the sample and its batch, so both images of a pair get the same ones, whose
        pipelines share no state.
        """

        def __init__(self, window: tuple[int, int], factor: int, dtype: Any, seed: int) -> None:
            super().__init__()
            # The window in pixels of LR, and how many pixels of this half one of them is.
            self.window, self.factor, self.dtype, self.seed = window, factor, np.dtype(dtype), seed

        def declare_state_and_memory(self, previous_state: Any) -> Any:
            shape = (3, self.window[0] * self.factor, self.window[1] * self.factor)
            return replace(previous_state, jit_mode=True, shape=shape, dtype=self.dtype), AllocationQuery(
                shape, self.dtype
            )

        def generate_code(self) -> Callable[..., Any]:
            each, read = Compiler.get_iterator(), self.memory_read
            high, wide = self.field.shape[1:]
            factor, seed = self.factor, self.seed
            rows, columns = self.window
            spare_rows, spare_columns = high // factor - rows + 1, wide // factor - columns + 1
            h, w = rows * factor, columns * factor
            convert = to_unit if self.dtype == np.float32 else as_it_is

            def decode(indices, out, metadata, storage_state):  # type: ignore[no-untyped-def]
                batch = np.uint64(indices[0]) * np.uint64(1000003) + np.uint64(indices[len(indices) - 1])
                for i in each(len(indices)):
                    sample = indices[i]
                    pixels = read(metadata[sample], storage_state).reshape(3, high, wide)
                    drawn = draw(sample, batch, seed)
                    top = np.int64((drawn >> np.uint64(1)) % np.uint64(spare_rows)) * factor
                    left = np.int64((drawn >> np.uint64(24)) % np.uint64(spare_columns)) * factor
                    is_mirrored = drawn >> np.uint64(63) == np.uint64(1)
                    for c in range(3):
                        for y in range(h):
                            row, to = pixels[c, top + y, left : left + w], out[i, c, y]
                            if is_mirrored:
                                for x in range(w):
                                    to[x] = convert(row[w - 1 - x])
                            else:
                                for x in range(w):
                                    to[x] = convert(row[x])
                return out[: len(indices)]

            decode.is_parallel = True  # type: ignore[attr-defined]
            return decode

    @numba.njit(inline="always")
    def exchange(a, b, bits, mask):  # type: ignore[no-untyped-def]
        """Return two words after exchanging the bytes of a that the mask, moved up, selects with those of b."""
        different = ((a >> bits) ^ b) & mask
        return a ^ (different << bits), b ^ different

    @numba.njit(inline="always")
    def transpose(source, target, start, step, begin, stride):  # type: ignore[no-untyped-def]
        """Transpose 8 x 8 bytes: words of the source from `start` on into those of the target from `begin` on."""
        a = source[start]
        b = source[start + step]
        c = source[start + np.uint64(2) * step]
        d = source[start + np.uint64(3) * step]
        e = source[start + np.uint64(4) * step]
        f = source[start + np.uint64(5) * step]
        g = source[start + np.uint64(6) * step]
        h = source[start + np.uint64(7) * step]
        bits, mask = np.uint64(32), np.uint64(0x00000000FFFFFFFF)
        a, e = exchange(a, e, bits, mask)
        b, f = exchange(b, f, bits, mask)
        c, g = exchange(c, g, bits, mask)
        d, h = exchange(d, h, bits, mask)
        bits, mask = np.uint64(16), np.uint64(0x0000FFFF0000FFFF)
        a, c = exchange(a, c, bits, mask)
        b, d = exchange(b, d, bits, mask)
        e, g = exchange(e, g, bits, mask)
        f, h = exchange(f, h, bits, mask)
        bits, mask = np.uint64(8), np.uint64(0x00FF00FF00FF00FF)
        a, b = exchange(a, b, bits, mask)
        c, d = exchange(c, d, bits, mask)
        e, f = exchange(e, f, bits, mask)
        g, h = exchange(g, h, bits, mask)
        target[begin] = a
        target[begin + stride] = b
        target[begin + np.uint64(2) * stride] = c
        target[begin + np.uint64(3) * stride] = d
        target[begin + np.uint64(4) * stride] = e
        target[begin + np.uint64(5) * stride] = f
        target[begin + np.uint64(6) * stride] = g
        target[begin + np.uint64(7) * stride] = h

    class TurnPatch(ReadPatch):
        """Reads a whole (3, H, W) uint8 array of a square whose side is a multiple of 8, turned in one of eight ways.

        Otherwise it is as ReadPatch. Eight rows of eight bytes are transposed at once, as words in registers: 0.6 to
        0.8 of the processor time of a loop over bytes by blocks.
        """

        def generate_code(self) -> Callable[..., Any]:
            each, read = Compiler.get_iterator(), self.memory_read
            side, seed = self.window[0] * self.factor, self.seed
            blocks = side // 8
            as_floats = self.dtype == np.float32
            convert = to_unit if as_floats else as_it_is

            def decode(indices, out, metadata, storage_state):  # type: ignore[no-untyped-def]
                batch = np.uint64(indices[0]) * np.uint64(1000003) + np.uint64(indices[len(indices) - 1])
                for i in each(len(indices)):
                    sample = indices[i]
                    pixels = read(metadata[sample], storage_state).reshape(3, side, side)
                    way = draw(sample, batch, seed) >> np.uint64(61)
                    is_swapped = way & np.uint64(4) != np.uint64(0)
                    is_upside_down = way & np.uint64(2) != np.uint64(0)
                    is_mirrored = way & np.uint64(1) != np.uint64(0)
                    turned = np.empty((side, side), np.uint8)
                    for c in range(3):
                        plane, whole = pixels[c], out[i, c]
                        if is_swapped:
                            # Of an array of floats the bytes are transposed first; they stay in the nearest cache.
                            bytes_of = turned if as_floats else whole
                            source, target = plane.reshape(-1).view(np.uint64), bytes_of.reshape(-1).view(np.uint64)
                            step = np.uint64(-blocks if is_mirrored else blocks)
                            stride = np.uint64(-blocks if is_upside_down else blocks)
                            for x in range(blocks):
                                for y in range(blocks):
                                    start = (side - 1 - x * 8 if is_mirrored else x * 8) * blocks + y
                                    begin = (side - 1 - y * 8 if is_upside_down else y * 8) * blocks + x
                                    transpose(source, target, np.uint64(start), step, np.uint64(begin), stride)
                            if as_floats:
                                for y in range(side):
                                    row, to = turned[y], whole[y]
                                    for x in range(side):
                                        to[x] = convert(row[x])
                        else:
                            first, down = (side - 1, -1) if is_upside_down else (0, 1)
                            for y in range(side):
                                row, to = plane[first + down * y], whole[y]
                                if is_mirrored:
                                    for x in range(side):
                                        to[x] = convert(row[side - 1 - x])
                                else:
                                    for x in range(side):
                                        to[x] = convert(row[x])
                return out[: len(indices)]

            decode.is_parallel = True  # type: ignore[attr-defined]
            return decode

    class Into(Operation):  # type: ignore[misc]
        """Converts images to another dtype or order, in FFCV's memory, which it guards until the consumer is done."""

        def __init__(self, dtype: torch.dtype, *, channels_last: bool = False) -> None:
            super().__init__()
            self.dtype, self.channels_last = dtype, channels_last

        def declare_state_and_memory(self, previous_state: Any) -> Any:
            c, h, w = previous_state.shape
            shape = (h, w, c) if self.channels_last else (c, h, w)
            state = replace(previous_state, jit_mode=False, dtype=self.dtype)
            return state, AllocationQuery(shape, self.dtype, previous_state.device)

        def generate_code(self) -> Callable[..., Any]:
            def into(images: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
                out = memory[: len(images)]
                return self.fill(images, out.permute(0, 3, 1, 2) if self.channels_last else out)

            return into

        def fill(self, images: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
            return out.copy_(images)

    class Scale(Into):
        """Makes 0..1 of uint8."""

        def fill(self, images: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
            return torch.mul(images, 1 / 255, out=out)

    class Normalize(Into):
        """Replaces NormalizeImage if its kernel is missing."""

        def __init__(self, mean: np.ndarray, std: np.ndarray, dtype: torch.dtype, *, channels_last: bool) -> None:
            super().__init__(dtype, channels_last=channels_last)
            self.by, self.less = (
                torch.tensor(values, dtype=torch.float32).reshape(1, 3, 1, 1) for values in (1 / std, mean / std)
            )

        def fill(self, images: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
            if self.by.device != images.device:
                self.by, self.less = self.by.to(images.device), self.less.to(images.device)
            return torch.mul(images, self.by, out=out).sub_(self.less)

    class Operations:
        pass

    found = Operations()
    for operation in (ReadPatch, TurnPatch, Into, Scale, Normalize):
        setattr(found, operation.__name__, operation)
    return found
