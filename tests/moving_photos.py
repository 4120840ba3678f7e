"""Clips for tests: a window that slides over photographs, a frame for each of its places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

HEIGHT, WIDTH = 48, 64


def frame_of(photo: Path, number: int) -> Any:
    """Return frame `number` of a clip (H, W, 3): each is moved by a pixel down and two to the right."""
    pixels = np.asarray(Image.open(photo).convert("RGB"))
    return np.ascontiguousarray(pixels[number : number + HEIGHT, 2 * number : 2 * number + WIDTH])


def save_clips(photos: Path, folder: Path, clips: Mapping[str, Sequence[int]], name: str = "{:08d}.png") -> Path:
    """Save frames with some numbers of each clip as files, clip by clip from one photograph after the other."""
    files = sorted(photos.glob("*.png"))
    for k, (clip, numbers) in enumerate(clips.items()):
        (folder / clip).mkdir(parents=True)
        for number in numbers:
            Image.fromarray(frame_of(files[k % len(files)], number)).save(folder / clip / name.format(number))
    return folder
