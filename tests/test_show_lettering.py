"""Tests of the texts in pictures."""

from __future__ import annotations

import pytest
from PIL import ImageFont

from lmdbloader.show.lettering import font_of, printable


@pytest.mark.skipif(not hasattr(ImageFont, "FreeTypeFont"), reason="this Pillow has one small font")
def test_letters_that_the_font_lacks_lose_their_accents() -> None:
    font = font_of(13)
    assert printable("Übung Größe \u2013 café.png", font) == "Ubung Grosse - cafe.png"
    assert printable("U\u0308bung.png", font) == "Ubung.png"
    assert printable("\u6f22 1.png", font) == "? 1.png"
    assert printable("photo 1.png\n", font) == "photo 1.png?"
