"""The charts of the page on two cores follow from the stored results, and its first sentences have their figures."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDER, PAGE = ROOT / "benchmarks", ROOT / "docs" / "benchmarks.md"


@pytest.fixture
def charts(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Import benchmarks/charts.py, and forget the short names of that folder afterwards."""
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module("charts")
    for path in FOLDER.glob("*.py"):
        sys.modules.pop(path.stem, None)


def labels(drawing: str) -> list[str]:
    """Return the texts in a drawing."""
    root = ElementTree.fromstring(drawing)
    return [
        "".join(element.itertext()) for element in root.iter() if element.tag.rpartition("}")[2] in ("text", "desc")
    ]


def test_the_charts_are_current(charts: ModuleType) -> None:
    drawn = {name: labels(text) for name, text in charts.draw().items()}
    # Other releases of matplotlib place things a little differently.
    stored = {name: labels((charts.PICTURES / name).read_text("utf-8")) for name in drawn}
    assert stored == drawn, "run `python benchmarks/charts.py` and commit docs/benchmarks/pictures"


def test_the_bars_are_the_figures_of_the_tables(charts: ModuleType) -> None:
    (photographs, pairs) = charts.loading(charts.TABLES.read_text("utf-8")).values()
    assert photographs["DataLoader, files, Pillow"] == 469 and photographs["Loader, JPEG files"] == 2621
    assert pairs == {"DataLoader, LMDB by hand": 8423, "Loader, lz4": 52624, "Loader, pixels": 70784}


def test_the_first_sentences_have_the_figures_of_the_charts(charts: ModuleType) -> None:
    photographs, pairs = charts.loading(charts.TABLES.read_text("utf-8")).values()
    folder, by_hand = photographs["DataLoader, files, Pillow"], pairs["DataLoader, LMDB by hand"]
    text = " ".join(PAGE.read_text("utf-8").split())
    assert f"loads {photographs['Loader, JPEG files'] / folder:.1f} times as many photographs" in text
    assert f"and {photographs['Loader, pixels'] / folder:.0f} times as many if they are stored as pixels" in text
    lz4, pixels = pairs["Loader, lz4"] / by_hand, pairs["Loader, pixels"] / by_hand
    assert f"{lz4:.1f} (lz4) to {pixels:.1f} times (pixels) as fast as a hand-written LMDB" in text
