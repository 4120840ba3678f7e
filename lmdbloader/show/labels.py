"""The colours in which masks are shown: one for each label, as in Pascal VOC."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

_IGNORED = (224, 224, 192)


def in_colors(mask: npt.NDArray[Any], ignore_index: int | None = None) -> npt.NDArray[np.uint8]:
    """Return a mask (H, W) or (1, H, W) as a picture (3, H, W).

    Label 0 is black, and small labels have very different colours: each bit of a label is a bit of red, green or blue,
    and its lowest three bits are the highest bits of the colours.

    Args:
        mask: Of whole numbers.
        ignore_index: The label shown as light grey.

    >>> in_colors(np.array([[0, 1, 2, 255]]), 255).reshape(3, -1).T.tolist()
    [[0, 0, 0], [128, 0, 0], [0, 128, 0], [224, 224, 192]]
    """
    labels = mask.reshape(mask.shape[-2:]).astype(np.int64)
    picture = np.zeros((3, *labels.shape), np.uint8)
    for bit in range(16):
        picture[bit % 3] |= ((labels >> bit & 1) << (7 - bit // 3)).astype(np.uint8)
    if ignore_index is not None:
        picture[:, labels == ignore_index] = np.array(_IGNORED, np.uint8)[:, None]
    return picture
