"""Tars for tests: members in the order given, as webdataset's writer makes them."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def tar_bytes(members: Iterable[tuple[str, bytes]], **options: Any) -> bytes:
    """Return a tar of members (name, content)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", **options) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def save_tar(path: Path, *members: tuple[str, bytes], **options: Any) -> Path:
    """Write a tar of members (name, content)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(tar_bytes(members, **options))
    return path


def png(value: int, side: int = 6) -> bytes:
    """Return a PNG file of noise that differs from one value to the next."""
    pixels = np.random.default_rng(value).integers(0, 256, (side, side, 3)).astype(np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()
