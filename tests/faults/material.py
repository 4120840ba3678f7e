"""Real photographs, cut small, from those that scikit-image carries."""

from __future__ import annotations

from pathlib import Path

NAMES = ("astronaut", "cat", "coffee", "rocket", "retina", "hubble_deep_field", "immunohistochemistry", "camera")


def photographs(folder: Path, count: int, height: int, width: int, *, suffix: str = "png") -> Path:
    """Make a folder of `count` RGB photographs of at most eight, cut from their middles; return it."""
    import skimage.data
    from PIL import Image

    folder.mkdir(parents=True)
    for name in NAMES[:count]:
        photograph = Image.fromarray(getattr(skimage.data, name)()).convert("RGB")
        left, top = (photograph.width - width) // 2, (photograph.height - height) // 2
        photograph.crop((left, top, left + width, top + height)).save(folder / f"{name}.{suffix}")
    return folder
