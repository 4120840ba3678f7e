"""The font of pictures, and the texts that it can draw."""

from __future__ import annotations

import unicodedata
from typing import Any

from PIL import ImageFont

_MOST_CHARACTERS = 200


def font_of(size: int) -> Any:
    """Return Pillow's font in a size, in pixels."""
    return ImageFont.load_default(size)


def printable(text: str) -> str:
    """Return a text as the font can draw it, in one line: without accents, and with ? for other characters.

    >>> printable("\u00dcbung caf\u00e9 \u6f22.png")
    'Ubung cafe ?.png'
    """
    letters = (c for c in unicodedata.normalize("NFKD", text[:_MOST_CHARACTERS]) if not unicodedata.combining(c))
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in letters)
