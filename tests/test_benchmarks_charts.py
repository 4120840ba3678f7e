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
FOLDER = ROOT / "benchmarks"


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


def test_the_bars_are_the_figures_of_the_results(charts: ModuleType) -> None:
    (photographs, pairs) = charts.loading().values()
    text = (FOLDER / "results" / "images.md").read_text("utf-8")
    assert f" {photographs['Loader, JPEG files']:,.0f} |" in text
    assert f" {photographs['DataLoader, files, Pillow']:,.0f} |" in text
    text = (FOLDER / "results" / "loader.md").read_text("utf-8")
    assert len(pairs) == 3 and all(f" {speed:,.0f} |" in text for speed in pairs.values())
