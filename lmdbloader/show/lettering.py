"""The fonts of pictures, and the texts that they can draw."""

from __future__ import annotations

from typing import Any

from PIL import ImageFont

_MOST_CHARACTERS = 200


def font_of(size: int) -> Any:
    """Return Pillow's font in a size, in pixels."""
    try:
        return ImageFont.load_default(size)
    except (ImportError, TypeError):  # Pillow without FreeType, or before 10.1, has one small size
        return ImageFont.load_default()


def printable(text: str, font: Any) -> str:
    """Return a text as a font can draw it, in one line."""
    text = "".join(c if c.isprintable() else "?" for c in text[:_MOST_CHARACTERS])
    if not isinstance(font, getattr(ImageFont, "FreeTypeFont", ())):  # the small font knows Latin-1 only
        text = text.encode("latin-1", "replace").decode("latin-1")
    return text
