"""Memory of every kind that a producer of samples may fill again and again."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

#: Fills its memory with the value of a number, and returns it in the form that `write` gets.
Refill = Callable[[int], Any]
U8 = npt.NDArray[np.uint8]


def pixels(number: int, height: int, width: int) -> U8:
    """Return the image (height, width, 3) of a number."""
    return np.random.default_rng(number).integers(0, 256, (height, width, 3), np.uint8)


def _fills(memory: Any, given: Any = None) -> Refill:
    """Return a function that fills the pixels in `memory` (H, W, 3), and returns them or an object that shares them."""

    def refill(number: int) -> Any:
        memory[...] = pixels(number, *memory.shape[:2])
        return memory if given is None else given

    return refill


def _over(memory: Any, height: int, width: int) -> Refill:
    return _fills(np.frombuffer(memory, np.uint8).reshape(height, width, 3))


class _Tagged(np.ndarray[Any, Any]):
    """An array of a class of the user's."""


def _memory_map(folder: Path, height: int, width: int) -> Refill:
    return _fills(np.memmap(folder / "pixels", np.uint8, "w+", shape=(height, width, 3)))


def _sixteen_bits(folder: Path, height: int, width: int) -> Refill:
    memory = np.empty((height, width * 3, 2), np.uint8)  # 16-bit grey, seen byte by byte
    refill = _fills(memory.reshape(height, -1, 3))
    grey = memory.view(np.uint16)[:, :, 0]

    def give(number: int) -> Any:
        refill(number)
        return grey

    return give


def _turns(folder: Path, height: int, width: int) -> Refill:
    both = [_fills(np.empty((height, width, 3), np.uint8)) for _ in range(2)]
    return lambda number: both[number % 2](number)


def _tensor(folder: Path, height: int, width: int) -> Refill:
    tensor = torch.empty(3, height, width, dtype=torch.uint8)
    return lambda number: tensor.copy_(torch.from_numpy(pixels(number, height, width)).permute(2, 0, 1))


def _tensor_view(folder: Path, height: int, width: int) -> Refill:
    memory = torch.empty(height + 2, width + 1, 3, dtype=torch.uint8)[1:-1, 1:]
    return _fills(memory.numpy(), memory.permute(2, 0, 1))


def _tensor_over_array(folder: Path, height: int, width: int) -> Refill:
    memory = np.empty((3, height, width), np.uint8)
    return _fills(np.moveaxis(memory, 0, 2), torch.from_numpy(memory))


def _picture(folder: Path, height: int, width: int) -> Refill:
    picture = Image.new("RGB", (width, height))

    def refill(number: int) -> Image.Image:
        picture.paste(Image.fromarray(pixels(number, height, width)))
        return picture

    return refill


def _picture_over_array(folder: Path, height: int, width: int) -> Refill:
    memory = bytearray(height * width * 3)
    picture = Image.frombuffer("L", (width * 3, height), memory, "raw", "L", 0, 1)
    return _fills(np.frombuffer(memory, np.uint8).reshape(height, width, 3), picture)


def _floats(folder: Path, height: int, width: int) -> Refill:
    memory = np.empty((width, height), ">f8").T

    def refill(number: int) -> Any:
        memory[...] = np.random.default_rng(number).standard_normal((height, width))
        return memory

    return refill


def _float_tensor(folder: Path, height: int, width: int) -> Refill:
    weights = torch.zeros(height, width, requires_grad=True)

    def refill(number: int) -> torch.Tensor:
        with torch.no_grad():
            return weights.fill_(number).detach()

    return refill


def _bytearray(folder: Path, height: int, width: int) -> Refill:
    memory = bytearray()

    def refill(number: int) -> bytearray:
        memory[:] = pixels(number, height, 1 + number % width).tobytes()
        return memory

    return refill


def _memoryview(folder: Path, height: int, width: int) -> Refill:
    memory = bytearray(height * width * 3)
    return _fills(np.frombuffer(memory, np.uint8).reshape(height, width, 3), memoryview(memory)[::2])


def _released_memoryview(folder: Path, height: int, width: int) -> Refill:
    memory = bytearray()
    lent: list[memoryview] = []

    def refill(number: int) -> memoryview:
        for view in lent:
            view.release()
        memory.clear()  # a BufferError where somebody still looks into it
        memory.extend(pixels(number, height, width).tobytes())
        lent[:] = [memoryview(memory)]
        return lent[0]

    return refill


def _nested(folder: Path, height: int, width: int) -> Refill:
    inner: list[Any] = []
    outer = {"name": "", "at": {"depth": inner}}

    def refill(number: int) -> Any:
        inner[:] = [{"number": number}, *range(number % 4)]
        outer["name"] = f"name {number}"
        return outer

    return refill


def _texts(folder: Path, height: int, width: int) -> Refill:
    texts: list[str] = []

    def refill(number: int) -> list[str]:
        texts[:] = [f"{number}-{i}" for i in range(1 + number % 3)]
        return texts

    return refill


Container = Callable[[Path, int, int], Refill]
#: Of images, by name; each is given a folder, a height and a width.
IMAGES: dict[str, Container] = {
    "array": lambda _, h, w: _fills(np.empty((h, w, 3), np.uint8)),
    "view of a larger array": lambda _, h, w: _fills(np.empty((h + 3, w + 5, 3), np.uint8)[2 : h + 2, 4 : w + 4]),
    "every other row, backwards": lambda _, h, w: _fills(np.empty((2 * h, w, 3), np.uint8)[::-2, ::-1]),
    "array in Fortran's order": lambda _, h, w: _fills(np.empty((h, w, 3), np.uint8, "F")),
    "channels moved behind": lambda _, h, w: _fills(np.moveaxis(np.empty((3, h, w), np.uint8), 0, 2)),
    "array of a class of its own": lambda _, h, w: _fills(np.empty((h, w, 3), np.uint8).view(_Tagged)),
    "field of records": lambda _, h, w: _fills(np.empty((h, w), [("id", "u4"), ("rgb", "u1", 3)])["rgb"]),
    "memory-mapped file": _memory_map,
    "grey of 16 bits": _sixteen_bits,
    "frombuffer of a bytearray": lambda _, h, w: _over(bytearray(h * w * 3), h, w),
    "frombuffer of an mmap": lambda _, h, w: _over(mmap.mmap(-1, h * w * 3), h, w),
    "frombuffer of a ctypes array": lambda _, h, w: _over((ctypes.c_ubyte * (h * w * 3))(), h, w),
    "two arrays in turn": _turns,
    "tensor": _tensor,
    "view of a larger tensor": _tensor_view,
    "tensor over an array": _tensor_over_array,
    "PIL image": _picture,
    "PIL image over a bytearray": _picture_over_array,
}
#: Of everything else.
VALUES: dict[str, Container] = {
    "array of floats": _floats,
    "tensor of floats": _float_tensor,
    "bytearray": _bytearray,
    "memoryview with gaps": _memoryview,
    "memoryview that is released": _released_memoryview,
    "nested dicts": _nested,
    "list of texts": _texts,
}
CONTAINERS = IMAGES | VALUES
