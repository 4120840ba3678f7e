"""The fonts of pictures, and the texts that they can draw."""

from __future__ import annotations

import unicodedata
from typing import Any

from PIL import ImageFont

_MOST_CHARACTERS = 200
# No font has a glyph for it: it shows what a font draws for a character that it lacks.
_MISSING = "\U0010fffe"
# What Unicode does not take apart into a letter and its accent.
_PLAIN_LETTERS = {"ß": "ss", "æ": "ae", "Æ": "AE", "ø": "o", "Ø": "O", "ł": "l", "Ł": "L", "\u2013": "-", "\u2014": "-"}


def font_of(size: int) -> Any:
    """Return Pillow's font in a size, in pixels."""
    try:
        return ImageFont.load_default(size)
    except (ImportError, TypeError):  # Pillow without FreeType, or before 10.1, has one small size
        return ImageFont.load_default()


def printable(text: str, font: Any) -> str:
    """Return a text as a font can draw it, in one line: accents and characters that it lacks are left out or ?."""
    text = "".join(c if c.isprintable() else "?" for c in text[:_MOST_CHARACTERS])
    if not isinstance(font, getattr(ImageFont, "FreeTypeFont", ())):  # the small font knows Latin-1 only
        return text.encode("latin-1", "replace").decode("latin-1")
    if text.isascii():
        return text
    missing = _drawn(_MISSING, font)
    return "".join(
        c if c.isascii() or _drawn(c, font) != missing else _unaccented(c)
        for c in unicodedata.normalize("NFC", text)  # macOS stores an accent as a character of its own
    )


def _drawn(character: str, font: Any) -> tuple[Any, bytes]:
    mask = font.getmask(character)
    return mask.size, bytes(mask)


def _unaccented(character: str) -> str:
    letters = _PLAIN_LETTERS.get(character) or unicodedata.normalize("NFKD", character)
    letters = "".join(c for c in letters if not unicodedata.combining(c))
    return letters if letters.isascii() and letters else "?"
