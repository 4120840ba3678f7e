"""The page on GPUs follows from the stored results, and says what is missing."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import scipy.stats
from comparison_example import made_up, used
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parent.parent
FOLDER, RESULTS = ROOT / "benchmarks" / "gpu", ROOT / "benchmarks" / "results" / "gpu"
PAGE = ROOT / "docs" / "benchmarks" / "gpu.md"
STORED = RESULTS / "2026-11-22-h100-b"
Build = Callable[[Path], tuple[str, dict[str, str]]]


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Import modules of the benchmarks' folders, and forget their short names afterwards."""
    for folder in (FOLDER.parent, FOLDER):
        monkeypatch.syspath_prepend(str(folder))
    yield importlib.import_module
    for path in [*FOLDER.glob("*.py"), *FOLDER.parent.glob("*.py")]:
        sys.modules.pop(path.stem, None)


@pytest.fixture
def build(module: Callable[[str], Any], tmp_path: Path) -> Build:
    """Return a function that builds the pages of a folder of results: both texts, and the charts by name."""

    def run(results: Path) -> tuple[str, dict[str, str]]:
        out = tmp_path / "page" / "gpu.md"
        assert module("report").main([str(results), "--out", str(out)]) == 0
        charts = {path.stem: path.read_text("utf-8") for path in out.parent.rglob("*.svg")}
        return "".join(path.read_text("utf-8") for path in (out, out.with_name("gpu-tables.md"))), charts

    return run


def stored(stage: str) -> dict[str, Any]:
    """Return the stored figures of a stage."""
    figures: dict[str, Any] = json.loads((STORED / f"{stage}.json").read_text("utf-8"))["figures"]
    return figures


def write_run(folder: Path, figures: dict[str, dict[str, Any]], *, small: bool = False) -> Path:
    """Write a run as run.py leaves it; return the folder of all runs."""
    folder.mkdir(parents=True)
    for stage, found in figures.items():
        document = {"stage": stage, "small": small, "seconds": 12.5, "figures": found}
        (folder / f"{stage}.json").write_text(json.dumps(document))
    stages = {stage: {"status": "done", "seconds": 13.0} for stage in figures}
    stages["betons"] = {"status": "failed", "seconds": 2.0, "reason": "exit status 1"}
    (folder / "run-material.json").write_text(json.dumps({"command": [], "small": small, "stages": stages}))
    return folder.parent


def lines_of(page: str, *words: str) -> list[str]:
    """Return the lines of a page that hold all these words."""
    return [line for line in page.splitlines() if all(word in line for word in words)]


def labels(chart: str) -> list[str]:
    """Return the texts in a drawing."""
    return [
        "".join(element.itertext()) for element in ElementTree.fromstring(chart).iter() if element.tag.endswith("text")
    ]


def test_the_committed_page_follows_from_the_stored_results(build: Build) -> None:
    page, charts = build(RESULTS)

    committed = "".join(path.read_text("utf-8") for path in (PAGE, PAGE.with_name("gpu-tables.md")))
    assert committed == page, "run `python benchmarks/gpu/report.py benchmarks/results/gpu`"
    drawn = {path.stem: path.read_text("utf-8") for path in (PAGE.parent / "pictures").glob("gpu-*.svg")}
    # Other releases of matplotlib place things a little differently.
    assert {name: labels(chart) for name, chart in drawn.items()} == {
        name: labels(chart) for name, chart in charts.items()
    }
    for chart in charts.values():
        assert 'data-md-color-scheme="slate"' in chart and not re.findall(r"<text[^>]*fill: #", chart)


def test_rehearsals_do_not_count_as_results(build: Build, tmp_path: Path) -> None:
    runs = write_run(tmp_path / "all" / "2031-05-06-a", {"cores": stored("cores")}, small=True)

    assert "There are no figures" in build(runs)[0]


def test_the_last_run_that_has_a_stage_counts(build: Build, tmp_path: Path) -> None:
    faster = stored("cores")
    for row in faster["pairs"]:
        row["samples_per_s"] *= 1000
    write_run(tmp_path / "all" / "2031-05-06-a", {"cores": faster, "copies": stored("copies")})
    write_run(tmp_path / "all" / "2031-05-07-a", {"cores": stored("cores")})
    page, _ = build(tmp_path / "all")

    fastest = max(row["samples_per_s"] for row in faster["pairs"] if row["what"] == "Loader")
    assert f"{fastest / 1000:,.0f}" in page and f"{fastest:,.0f}" not in page
    assert f"{stored('copies')['link']['gb_per_s']:.1f} GB/s" in page
    assert lines_of(page, "2031-05-07-a", "betons", "failed", "exit status 1")


def test_a_comparison_has_its_conclusion_and_its_tables(build: Build, tmp_path: Path) -> None:
    results = made_up(sweeps=("batch-size",))
    results.device = "cuda"
    for key, turn in results.turns.items():
        results.turns[key] = replace(turn, gpu=used(40.0))
    results.save(tmp_path / "comparison.json")
    figures = {"resnet18": json.loads((tmp_path / "comparison.json").read_text("utf-8"))}
    page, _ = build(write_run(tmp_path / "all" / "2031-05-06-a", {"compare": figures}))

    section = page.partition("\n## Image files, LMDB and Loader")[2].partition("\n## ")[0]
    assert "**Loader trains SRCNN 4.0 times as fast and a small ResNet 4.0 times as fast as image files do; " in section
    (row, *_) = lines_of(section, "| 128", "Loader ", "P2")
    assert [cell.strip() for cell in row.split("|")][-6:-1] == ["40", "150", "4,000", "60", "P2"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    # Steps of 1/1024: SciPy warns of values that differ by a rounding error.
    first=st.lists(st.integers(512, 1024).map(lambda n: n / 1024), min_size=2, max_size=6, unique=True),
    second=st.lists(st.integers(512, 1024).map(lambda n: n / 1024), min_size=2, max_size=6, unique=True),
)
def test_differences_have_the_interval_of_welchs_test(
    module: Callable[[str], Any], first: list[float], second: list[float]
) -> None:
    found = module("accuracy").difference(first, second)
    wanted = scipy.stats.ttest_ind(first, second, equal_var=False).confidence_interval(0.95)

    assert (found["low"], found["high"]) == pytest.approx((wanted.low, wanted.high), abs=1e-9)
    assert found["contains_0"] == (found["low"] <= 0 <= found["high"])
