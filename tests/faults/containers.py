"""Memory of every kind that a producer of samples may fill again and again."""

from __future__ import annotations

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


def _memory_map(folder: Path, height: int, width: int) -> Refill:
    return _fills(np.memmap(folder / "pixels", np.uint8, "w+", shape=(height, width, 3)))


def _turns(folder: Path, height: int, width: int) -> Refill:
    both = [_fills(np.empty((height, width, 3), np.uint8)) for _ in range(2)]
    return lambda number: both[number % 2](number)


def _tensor(folder: Path, height: int, width: int) -> Refill:
    tensor = torch.empty(3, height, width, dtype=torch.uint8)
    return lambda number: tensor.copy_(torch.from_numpy(pixels(number, height, width)).permute(2, 0, 1))


def _picture(folder: Path, height: int, width: int) -> Refill:
    picture = Image.new("RGB", (width, height))

    def refill(number: int) -> Image.Image:
        picture.paste(Image.fromarray(pixels(number, height, width)))
        return picture

    return refill


def _floats(folder: Path, height: int, width: int) -> Refill:
    memory = np.empty((width, height), ">f8").T

    def refill(number: int) -> Any:
        memory[...] = np.random.default_rng(number).standard_normal((height, width))
        return memory

    return refill


def _bytearray(folder: Path, height: int, width: int) -> Refill:
    memory = bytearray()

    def refill(number: int) -> bytearray:
        memory[:] = pixels(number, height, 1 + number % width).tobytes()
        return memory

    return refill


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
    "every other row, backwards": lambda _, h, w: _fills(np.empty((2 * h, w, 3), np.uint8)[::-2, ::-1]),
    "memory-mapped file": _memory_map,
    "frombuffer of a bytearray": lambda _, h, w: _over(bytearray(h * w * 3), h, w),
    "two arrays in turn": _turns,
    "tensor": _tensor,
    "PIL image": _picture,
}
#: Of everything else.
VALUES: dict[str, Container] = {
    "array of floats": _floats,
    "bytearray": _bytearray,
    "memoryview that is released": _released_memoryview,
    "nested dicts": _nested,
    "list of texts": _texts,
}
CONTAINERS = IMAGES | VALUES
