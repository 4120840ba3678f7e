"""The figures of README and the documentation are those of benchmarks/results, and none is without a result."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Import benchmarks/figures.py, and forget its short name afterwards."""
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module("figures")
    sys.modules.pop("figures", None)


def test_the_figures_of_the_pages_are_those_of_the_results(figures: ModuleType) -> None:
    texts = figures.pages()
    wrong = [found for figure in figures.FIGURES if (found := figures.differing(figure, texts[figure.page]))]
    assert not wrong, "\n".join(["run `python benchmarks/figures.py --write`:", *wrong])


def test_what_looks_measured_comes_from_a_result(figures: ModuleType) -> None:
    found = [
        line for page, text in figures.pages().items() if page not in figures.GENERATED
        for line in figures.unknown(page, text)
    ]  # fmt: skip
    assert not found, "\n".join(["register these in benchmarks/figures.py, or remove them:", *found])


def test_nothing_is_excused_that_no_page_says(figures: ModuleType) -> None:
    texts = figures.pages()
    for page, excused in figures.NOT_MEASURED.items():
        flat = " ".join(texts[page].split())
        assert [words for words in excused if " ".join(words.split()) not in flat] == []


def test_numbers_are_replaced_where_they_stand(figures: ModuleType) -> None:
    figure = figures.Figure("page.md", "reads {:,.0f} pairs per second, {:.1f} times", lambda: (12345.6, 3.21))
    page = "It reads 7 pairs\nper second, 1.0 times as many. `5 x` is code; 9 % is not.\n"
    assert figures.differing(figure, page) == "page.md: reads 7 pairs per second, 1.0 times -> 12,346, 3.2"
    after = figures.written(figure, page)
    assert after == "It reads 12,346 pairs\nper second, 3.2 times as many. `5 x` is code; 9 % is not.\n"
    assert figures.differing(figure, after) is None
    assert [line.partition(": ")[0] for line in figures.unknown("page.md", after)] == [
        "page.md:1",
        "page.md:2",
        "page.md:2",
    ]
