"""The page on GPUs follows from the stored results, and says what is missing."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
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
        out, tables = tmp_path / "page" / "gpu.md", tmp_path / "tables.md"
        assert module("report").main([str(results), "--out", str(out), "--tables", str(tables)]) == 0
        charts = {path.stem: path.read_text("utf-8") for path in out.parent.rglob("*.svg")}
        return "".join(path.read_text("utf-8") for path in (out, tables)), charts

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

    committed = "".join(path.read_text("utf-8") for path in (PAGE, RESULTS / "tables.md"))
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


def rehearsed(tmp_path: Path, *stages: str) -> Path:
    """Rehearse stages of the device side on this machine; return the folder of all runs."""
    out = tmp_path / "all" / "2031-05-06-a"
    paths = os.pathsep.join(map(str, (FOLDER, FOLDER.parent, ROOT, ROOT / "scripts")))
    for stage in ("device_data", *stages):
        command = [sys.executable, str(FOLDER / f"{stage}.py"), "--data", str(tmp_path / "data"), "--small"]
        command += ["--out", str(out / f"{stage}.json"), "--seconds", "100"]
        subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, check=True, capture_output=True, timeout=100)
    return out.parent


def test_a_rehearsal_of_the_device_side_makes_its_section(module: Callable[[str], Any], tmp_path: Path) -> None:
    stages = ("host", "device", "keep", "jpeg")
    results = module("report_results").read_results(rehearsed(tmp_path, *stages), small=True)
    section = module("report_device").device_side(results)
    ours, kept = (lines_of(section, name)[0] for name in ('| Loader, `device="cuda"`', '`keep="memory"`'))
    assert re.search(r"\d+ +\| +\d", ours) and re.search(r"\| yes +\|$", kept)
    assert lines_of(section, "| Loader ", "| ")


def test_the_answers_on_the_device_side_follow_from_its_figures(build: Build, tmp_path: Path) -> None:
    training = {"model": "srcnn", "pixels": 96, "batch_size": 8, "share_of_ceiling": 0.97, "samples_per_s": 3000.0}
    calls = {"calls_of_torch": {"aten::empty": 1.0}, "calls_of_cuda": {"cudaEventRecord": 2.0}}
    pairs = {"data": "large", "batch_size": 256, "way": "kept", "first_per_s": 1e5, "is_equal": True, "mib": 9.0}
    figures = {
        "host": {"batches": [{"way": "Loader, kept", "us_thread": 12.5, "us": 13.0, "us_p95": 20.0, **calls}]},
        "device": {
            "equality": {
                "geometry lists": 500, "geometry equal": 500, "colors lists": 480, "colors within one level": 479,
                "worst": {"ColorJitter": 2.0}, "apart": ["2: [ColorJitter()]"], "refused": {"AugMix: OptionError": 3},
            },
            "memory": [{"way": "kept", "epochs": 200, "mib_after_2": 5.0, "mib_most": 6.0, "is_kept_unchanged": False}],
        },
        "keep": {
            "epochs": [{**pairs, "later_per_s": speed} for speed in (310_000.0, 290_000.0)],
            "refused": {"is_refused": True, "message": "OptionError: 9 GiB are needed"},
        },
        "fed_device": {"training": [{**training, "feed": feed} for feed in ("resident", "on device")]},
        "ranks": {"ranks": [{"backend": "nccl", "way": "copied", "ended": "refused", "message": "Duplicate GPU"}]},
        "jpeg": {
            "decoders": [
                {"decoder": name, "batch_size": 64, "images_per_s": speed, "busy": 2.0}
                for name, speed in (("Loader", 20_000.0), ("torchvision", 5_000.0))
            ]
        },
    }  # fmt: skip
    page, _ = build(write_run(tmp_path / "all" / "2031-05-06-a", figures))

    for words in (
        ("How long is the loop", 'Loader, `keep="device"`: 12.5 us'),
        ("give the values of the CPU", "500 of 500 random lists", "479 of 480 with colors within one level"),
        ("How fast is training with transforms", 'SRCNN, 8, `on="device"`: 97 %'),
        ("pairs of 96 px a second", '`keep="device"`: 310,000'),
        ("Is decoding JPEG on the GPU", "Loader: 20,000; torchvision: 5,000"),
        ("| ColorJitter", "2 |"),
        ('| `keep="device"`', "| **no**"),
        ("| torchvision", "0.25"),
        ("| nccl", "Duplicate GPU"),
        ("A dataset that does not fit: OptionError: 9 GiB are needed",),
    ):
        assert lines_of(page, *words), words


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
