"""Image files as a conversion meets them, changed anywhere."""

from __future__ import annotations

import io
import random
from pathlib import Path

from .cases import Case
from .hostile import mutate
from .material import NAMES


def prepare_images(paths: dict[str, str], folder: Path, seed: int) -> Case:
    """Return the case of one image file of any kind."""
    import skimage.data
    from PIL import Image, features

    from lmdbloader.errors import ImageError
    from lmdbloader.images.decode import DecodePolicy, decode_image, read_header

    photograph = Image.fromarray(getattr(skimage.data, NAMES[0])()).resize((61, 47))
    kinds = [("PNG", {}), ("JPEG", {}), ("JPEG", {"progressive": True}), ("BMP", {}), ("PPM", {}), ("GIF", {})]
    kinds += [("TIFF", {}), ("PNG", {"optimize": True})] + [("WEBP", {})] * bool(features.check("webp"))
    files = [_encoded(photograph, kind, options) for kind, options in kinds]
    files += [_encoded(photograph.convert(mode), "PNG", {}) for mode in ("L", "P", "1", "RGBA", "LA", "I;16")]
    files += [_encoded(photograph.convert("CMYK"), "JPEG", {}), _encoded(photograph.convert("L"), "TIFF", {})]
    policies = [DecodePolicy(max_pixels=10**6, alpha=alpha) for alpha in ("refuse", "drop", "white")]

    def case(number: int) -> str:
        rng = random.Random(f"{seed} image {number}")
        data = rng.choice(files)
        data = mutate(rng, data, [(0, 64), (0, 400), (len(data) - 64, len(data))])
        words = []
        for attempt in (read_header, lambda data: decode_image(data, rng.choice(policies))):
            try:
                attempt(data)
                words.append("read")
            except ImageError:
                words.append("refused")
        return words[-1]

    return case


def _encoded(image: object, kind: str, options: dict[str, object]) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)  # type: ignore[attr-defined]
    return file.getvalue()
