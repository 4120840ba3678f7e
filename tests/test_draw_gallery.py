"""The transform gallery: every transform has a card, and each picture shows what the card's line does."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from loading_scripts import load_script
from PIL import Image

from lmdbloader import transforms as T

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs" / "reference"
PAGE = (REFERENCE / "transform-gallery.md").read_text("utf-8")
SECTIONS = {text.partition("\n")[0]: text for text in re.split(r"(?m)^### ", PAGE)[1:]}
# Bases that do nothing by themselves, a tuple of dtypes, and a mark of functions.
SHOWN = sorted({*T.__all__} - {"DTYPES", "Geometry", "Transform", "on_device", "thread_safe"})
# In levels: a codec or a resampler of another version may round otherwise.
NEAR = 1.0


@pytest.fixture(scope="module")
def gallery() -> ModuleType:
    return load_script("draw_gallery")


@pytest.fixture(scope="module")
def drawn(gallery: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    assert gallery.main(["--out", str(folder)]) == 0
    return folder


def distance(one: Image.Image, other: Image.Image) -> float:
    """Return the mean difference of two pictures, in levels of 8 bits."""
    if one.size != other.size:
        return 255.0
    return float(np.abs(np.asarray(one, np.float64) - np.asarray(other, np.float64)).mean())


def numbers_of(drawing: str) -> list[float]:
    found = re.findall(r"[-\N{MINUS SIGN}]?\d+(?:\.\d+)?", drawing)
    return [float(number.replace("\N{MINUS SIGN}", "-")) for number in found]


# The page


@pytest.mark.parametrize("name", SHOWN)
def test_every_transform_has_a_card(name: str) -> None:
    assert name in SECTIONS, f"add a card `### {name}` to docs/reference/transform-gallery.md"
    card = SECTIONS[name]
    assert re.search(rf"(?ms)^```python\n.*\bT\.{name}\b.*^```$", card)
    assert re.search(r"(?m)^torchvision: .", card)
    (arguments,) = re.findall(rf"\[(.*)\]\(transforms\.md#lmdbloadertransforms{name.lower()}\)", card)
    if name == "BatchFunction":
        _, *names = inspect.signature(T.BatchFunction.apply).parameters
        assert arguments == f"`apply({', '.join(names)})`"
        return
    written = "" if arguments == "no arguments" else arguments.strip("`")
    shown = inspect.signature(eval(f"lambda {written}: None")).parameters.values()
    real = [p for p in inspect.signature(getattr(T, name)).parameters.values() if p.name != "fields"]
    assert [(p.name, p.default) for p in shown] == [(p.name, p.default) for p in real]
    assert {p.name for p in shown if p.kind is p.KEYWORD_ONLY} <= {p.name for p in real if p.kind is p.KEYWORD_ONLY}


def test_pictures_are_those_of_the_page_and_small(gallery: ModuleType) -> None:
    cards = gallery.read_cards(PAGE)
    assert [card.name for card in cards] == [*SECTIONS]
    stored = {path.name: path.stat().st_size for path in gallery.PICTURES.iterdir()}
    assert sorted(stored) == sorted(card.picture for card in cards)
    assert sum(stored.values()) < 1_200_000


# The pictures


def test_the_stored_pictures_are_current(gallery: ModuleType, drawn: Path) -> None:
    stale = []
    for path in sorted(drawn.iterdir()):
        stored = gallery.PICTURES / path.name
        if not stored.exists():
            is_current = False
        elif path.suffix == ".svg":
            text, other = path.read_text("utf-8"), stored.read_text("utf-8")
            is_current = numbers_of(text) == pytest.approx(numbers_of(other), abs=0.5)
        else:
            with Image.open(path) as image, Image.open(stored) as other_image:
                is_current = distance(image, other_image) < NEAR
        if not is_current:
            stale.append(path.name)
    assert stale == [], "run `python scripts/draw_gallery.py` and commit docs/reference/pictures"
