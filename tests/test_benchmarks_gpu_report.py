"""The page on GPUs follows from the stored results, and shows every figure of made-up ones."""

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
FOLDER, RESULTS, PAGE = (
    ROOT / "benchmarks" / "gpu",
    ROOT / "benchmarks" / "results" / "gpu",
    ROOT / "docs/benchmarks/gpu.md",
)
Row = dict[str, Any]
Build = Callable[..., tuple[str, dict[str, str]]]


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

    def run(results: Path, *options: str) -> tuple[str, dict[str, str]]:
        out = tmp_path / "page" / "gpu.md"
        assert module("report").main([str(results), "--out", str(out), *options]) == 0
        charts = {path.stem: path.read_text("utf-8") for path in out.parent.rglob("*.svg")}
        return "".join(path.read_text("utf-8") for path in (out, out.with_name("gpu-tables.md"))), charts

    return run


def cores(threads: tuple[int, ...] = (1, 4, 16)) -> Row:
    """Return made-up figures of all cores."""
    pairs: list[Row] = []
    images: list[Row] = []
    for n in threads:
        common = {"threads": n, "p50_ms": 1.5, "p99_ms": 4.25, "batch_size": 128, "efficiency": 0.875}
        pairs.append(
            {
                "what": "memory copy",
                "dtype": "float32",
                "threads": n,
                "samples_per_s": 30000.0 * n,
                "bytes_per_s": 30000 * n * 138240,
            }
        )
        for what, dataset, speed in (
            ("Loader", "pairs_raw", 24000.0),
            ("Loader", "pairs_lz4", 9000.0),
            ("FFCV", "pairs", 6000.0),
        ):
            row = {"what": what, "dataset": dataset, "kind": "pairs", "dtype": "float32", **common}
            pairs.append({**row, "samples_per_s": speed * n, "of_memory_copy": speed / 30000})
        for what, dataset, speed in (
            ("Loader", "raw256", 3000.0),
            ("FFCV", "raw256", 1500.0),
            ("Loader", "original", 500.0),
            ("FFCV", "original", 400.0),
        ):
            row = {"what": what, "dataset": dataset, "kind": "images", "dtype": "float32", **common}
            images.append({**row, "samples_per_s": speed * n, "of_memory_copy": 0.5})
    loaders = [
        {"what": what, "dataset": dataset, "kind": kind, "dtype": "float32", "threads": n, "samples_per_s": speed * n}
        for n in threads
        for what, dataset, kind, speed in (
            ("DataLoader, folder, Pillow", "photos", "images", 120.0),
            ("DataLoader, PNG files, Pillow", "pairs_png", "pairs", 400.0),
            ("DataLoader, hand-written LMDB", "pairs_hand", "pairs", 1000.0),
        )
    ]
    small = {"what": "Loader", "dataset": "pairs_raw", "dtype": "float32", "threads": 16, "batch_size": 8}
    return {
        "cores": {"cores": 16, "threads": list(threads)},
        "pairs": pairs,
        "images": images,
        "dataloaders": loaders,
        "small batches": [{**small, "samples_per_s": 192000.0}, {**small, "verify": False, "samples_per_s": 400000.0}],
        "processes": [
            {
                "what": "Loader",
                "dataset": "raw256",
                "processes": n,
                "threads_each": 2,
                "samples_per_s": 5000.0 * n,
                "each": [5000.0] * n,
            }
            for n in (8, 1)
        ],
        "conversion": [
            {
                "what": "JPEGs to JPEGs of at most 384",
                "workers": n,
                "images": 500 * n,
                "images_per_s": 150.0 * n,
                "efficiency": 1.0,
            }
            for n in (1, 16)
        ],
        "FFCV's writer": [{"what": "FFCV's writer, JPEGs", "workers": 16, "images": 2000, "images_per_s": 800.0}],
    }


def copies() -> Row:
    """Return made-up figures of copies."""
    batch = {"what": "images of 224 px", "batch_size": 256, "dtype": "float32", "nbytes": 154140672}
    return {
        "link": {"nbytes": 2**28, "gb_per_s": 55.3, "to_host_gb_per_s": 54.1},
        "overlap": [
            {
                "work": "sleep",
                "copied": way,
                "compute_ms": 2.8,
                "copy_ms": 2.8,
                "step_ms": step,
                "of_the_longer": step / 2.8,
            }
            for way, step in (("ahead", 2.9), ("loop, pinned", 5.6), ("loop, paged", 14.0))
        ],
        "loops": [
            {
                "what": "pairs of 96 px",
                "batch_size": 64,
                "dtype": "uint8",
                "way": way,
                "reading_ms": 1.0,
                "compute_ms": 1.5,
                "step_ms": 1.5 / part,
                "share": part,
            }
            for way, part in (("loader, ahead", 0.99), ("loader, pinned", 0.9), ("loader, paged", 0.75))
        ],
        "batches": [
            {**batch, "memory": memory, "gb_per_s": rate, "share_of_link": rate / 55.3, "us": 100.0, "us_alone": 120.0}
            for memory, rate in (("pinned", 55.0), ("paged", 11.0))
        ],
        "host": [
            {"what": "pairs", "way": way, "device": device, "us": us}
            for way, device, us in (
                ("in the loop", "idle", 61.0),
                ("in the loop", "busy", 62.0),
                ("aside", "idle", 333.0),
            )
        ],
        "conversion": [{"sent": sent, "batch_size": 256, "ms": ms} for sent, ms in (("uint8", 1.0), ("float32", 3.5))],
    }


def training(model: str, pixels: int, batch_size: int, feed: str, kind: str, part: float, ceiling: float) -> Row:
    """Return the made-up figures of one training."""
    waited = round(1 - part, 3)
    return {
        "model": model,
        "pixels": pixels,
        "batch_size": batch_size,
        "feed": feed,
        "kind": kind,
        "samples_per_s": ceiling * part,
        "ceiling_per_s": ceiling,
        "share_of_ceiling": part,
        "cores": 6.5,
        "stall": waited,
        "wait_p99_ms": 3.1,
        "phases_ms": {"data": waited, "forward": 0.4, "backward": 0.8, "update": 0.2},
        "bottleneck": "model" if part > 0.9 else "storage",
        "gpu_percent": 98.0,
        "watts": 512.0,
        "gpu_mib": 9021.0,
    }


def fed() -> Row:
    """Return made-up figures of training."""
    images = (
        ("resident", "resident", 1.0),
        ("loader raw256", "loader", 0.98),
        ("loader jpg", "loader", 0.9),
        ("FFCV raw256", "ffcv", 0.8),
        ("folder", "folder", 0.25),
    )
    pairs = (("resident", "resident", 1.0), ("loader pairs_raw", "loader", 0.97), ("folder", "folder", 0.125))
    rows = [
        training(model, pixels, 256, feed, kind, part, ceiling * (224 / pixels) ** 2)
        for model, ceiling in (("resnet50", 2500.0), ("resnet18", 5000.0))
        for pixels in (224, 128)
        for feed, kind, part in images
    ]
    rows += [
        training(model, 96, size, feed, kind, part, 20000.0 * (1 if size > 8 else 0.5))
        for model in ("srcnn", "edsr")
        for size in (8, 128)
        for feed, kind, part in pairs
    ]
    rows += [
        training("srcnn", pixels, 8, feed, "loader", part, 30000.0)
        for pixels in (16, 64)
        for feed, part in (("loader, pinned", 0.9), ("loader, paged", 0.6))
    ]
    verdict = {
        "model": "resnet18",
        "pixels": 224,
        "batch_size": 256,
        "feed": "folder",
        "step_ms": 51.2,
        "needed_per_s": 5000.0,
        "alone_per_s": 1250.0,
        "doctor_verdict": "bad",
        "doctor": "waits 75% of the time | or more",
        "doctor_share": 0.24,
        "seen_share": 0.25,
        "seen_stall": 0.75,
        "seen_bottleneck": "storage",
    }
    return {
        "settings": {"device": "NVIDIA Made-up 100", "precision": "bfloat16 autocast, channels_last"},
        "training": rows,
        "alone": [
            {"pixels": 224, "batch_size": 256, "feed": feed, "samples_per_s": speed, "first_batch_s": 0.5}
            for feed, speed in (("loader raw256", 40000.0), ("folder", 1300.0))
        ],
        "verdicts": [verdict],
        "epochs": [
            {"model": "resnet18", "pixels": 224, "feed": feed, "samples": 19968, "epoch_s": took}
            for feed, took in (("loader raw256", [5.0, 4.0, 4.2]), ("folder", [17.0, 16.4]))
        ],
    }


def accuracy() -> Row:
    """Return made-up figures of trained networks."""
    feeds = (
        ("folder, DataLoader", False, 0.91, 16.0),
        ("Loader, original files", False, 0.912, 4.0),
        ("planted: red and blue swapped", True, 0.6, 4.0),
    )
    rows = [
        {
            "feed": feed,
            "planted": planted,
            "runs": 5,
            "top1": top1,
            "top1 +-": 0.011,
            "loss": 1 - top1,
            "loss +-": 0.02,
            "seconds": took,
            "seconds +-": 0.1,
            "samples_per_s": 24000 / took,
        }
        for feed, planted, top1, took in feeds
    ]
    compared = [
        {
            "feed": feed,
            "planted": planted,
            "measure": "top1",
            "difference": top1 - 0.91,
            "low": top1 - 0.93,
            "high": top1 - 0.9,
            "contains_0": not planted,
        }
        for feed, planted, top1, _ in feeds[1:]
    ]
    runs = [{"feed": feeds[1][0], "seed": 0, "top1": 0.912, "top1 by Loader": 0.9125}]
    psnr = [
        {
            "feed": feed,
            "planted": False,
            "runs": 3,
            "psnr": value,
            "psnr +-": 0.03,
            "seconds": took,
            "seconds +-": 0.1,
            "samples_per_s": 9.0,
        }
        for feed, value, took in (("folder, DataLoader", 33.01, 8.0), ("Loader, raw pairs", 33.02, 2.0))
    ]
    return {
        "settings": {"images": 6000, "size": 128, "epochs": 4, "pairs": 8000, "sr_epochs": 8},
        "bicubic": {"psnr": 31.5},
        "classifier": rows,
        "classifier compared": compared,
        "classifier runs": runs,
        "srcnn": psnr,
        "srcnn compared": [
            {
                "feed": "Loader, raw pairs",
                "planted": False,
                "measure": "psnr",
                "difference": 0.01,
                "low": None,
                "high": None,
                "contains_0": None,
            }
        ],
    }


def correct() -> Row:
    """Return made-up outcomes of tests."""
    counts = {"collected": 4, "ended": 4, "passed": 2, "failed": 1, "skipped": 1, "not collected": 0}
    failed = {
        "test": "tests/test_cuda_streams.py::test_two",
        "outcome": "failed",
        "seconds": 1.0,
        "text": "E   assert 1 == 2\nmore",
    }
    together = {
        "counts": counts,
        "not_collected": [],
        "failed": [failed],
        "skipped": {"needs two devices": ["tests/test_cuda_x.py::test_ddp"]},
        "passed": {
            "tests/test_cuda_loader.py::test_batches[uint8]": 0.5,
            "tests/test_cuda_loader.py::test_pinned": 0.7,
        },
    }
    return {
        "device": {"name": "NVIDIA Made-up 100", "driver": "580.1", "cores": 16},
        "together": together,
        "counts": counts,
    }


def write_run(folder: Path, figures: dict[str, Row], *, small: bool = False, **outcomes: Row) -> Path:
    """Write a run as run.py leaves it; return the folder of all runs."""
    folder.mkdir(parents=True)
    for stage, found in figures.items():
        document = {"stage": stage, "small": small, "seconds": 12.5, "figures": found}
        if stage == "cores":
            document["left_out"] = {"FFCV by 2": "not compiled in time", "FFCV by 4": "not compiled in time"}
        (folder / f"{stage}.json").write_text(json.dumps(document))
    stages = {stage: {"status": "done", "seconds": 13.0} for stage in figures} | outcomes
    (folder / "run-material.json").write_text(json.dumps({"command": [], "small": small, "stages": stages}))
    return folder.parent


def comparison(tmp_path: Path) -> Row:
    """Return made-up results of compare_training.py, as the stage keeps them."""
    results = made_up(sweeps=("batch-size",))
    results.device = "cuda"
    for key, turn in results.turns.items():
        results.turns[key] = replace(turn, gpu=used(40.0))
    results.save(tmp_path / "comparison.json")
    return {"resnet18": json.loads((tmp_path / "comparison.json").read_text("utf-8"))}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Return a folder with one run that has everything."""
    environment = {
        "processor": "Made-up CPU",
        "cores": "16 usable",
        "torch": "2.11.0",
        "cuda": "13.0",
        "lmdbloader": "9.8.7",
        "gpu_memory_gib": 79.1,
    }
    figures = {
        "material": {"environment": environment},
        "correct": correct(),
        "cores": cores(),
        "copies": copies(),
        "fed": fed(),
        "accuracy": accuracy(),
        "compare": comparison(tmp_path),
    }
    return write_run(
        tmp_path / "all" / "2031-05-06-a",
        figures,
        betons={"status": "failed", "seconds": 2.0, "reason": "exit status 1"},
    )


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


def test_without_results_nothing_is_claimed(build: Build, tmp_path: Path) -> None:
    page, charts = build(tmp_path / "nothing")

    assert "There are no figures from a GPU yet." in page
    assert "](../benchmarks.md)" in page
    asked = [line for line in page.splitlines() if line.startswith("| ") and "?" in line]
    assert len(asked) > 15
    assert all("not measured yet" in line for line in asked)
    assert charts == {}


def test_rehearsals_do_not_count_as_results(build: Build, tmp_path: Path) -> None:
    runs = write_run(tmp_path / "all" / "2031-05-06-a", {"cores": cores()}, small=True)

    assert "There are no figures" in build(runs)[0]
    assert "240" not in build(runs)[0]
    assert "384,000" in build(runs, "--small")[0]


def test_further_training_runs_are_shown(build: Build, results: Path) -> None:
    (run,) = [path for path in results.iterdir() if (path / "accuracy.json").exists()]
    row = {"trained": "4 epochs", "feed": "Loader", "runs": 28, "difference": 0.0038, "low": -0.0076, "high": 0.0151}
    figures = {"told": "Why.", "rows": [row]}
    (run / "closer.json").write_text(json.dumps({"stage": "closer", "small": False, "figures": figures}))
    page, _ = build(results)

    assert "Why." in page
    assert lines_of(page, "4 epochs", "28", "+0.004 (-0.008 to +0.015)")


def test_repeated_tests_are_shown_with_repeated_failures(build: Build, results: Path, tmp_path: Path) -> None:
    again = {
        "what": "two tests",
        "passed": 1,
        "failed": ["a.py::test_b"],
        "why": "Because.",
        "not_ended": ["a.py::test_c"],
    }
    (run,) = [path for path in results.iterdir() if (path / "correct.json").exists()]
    (run / "repeated.json").write_text(json.dumps({"stage": "repeated", "small": False, "figures": again}))
    page, _ = build(results)

    assert "Run again (two tests): **1 passed, 1 failed**." in page
    assert "Failed again: `a.py::test_b`. Because." in page
    assert "Not finished when the time was over: `a.py::test_c`." in page
    assert "run again after the fixes: 1 passed, 1 failed" in page


def test_repeated_tests_are_left_out_after_a_new_full_run(build: Build, results: Path) -> None:
    (run,) = [path for path in results.iterdir() if (path / "correct.json").exists()]
    again = {"what": "two tests", "passed": 1, "failed": [], "not_ended": []}
    (run / "repeated.json").write_text(json.dumps({"stage": "repeated", "small": False, "figures": again}))
    assert "run again after the fixes" in build(results)[0]
    write_run(results / "2031-05-07-b", {"correct": correct()})
    page, _ = build(results)

    assert "Run again" not in page
    assert "run again after the fixes" not in page


def test_rows_missing_in_the_last_run_come_from_the_run_before_and_are_marked(build: Build, results: Path) -> None:
    assert "the last one had no time" not in build(results)[0]
    later = cores()
    later["images"] = [row for row in later["images"] if row["threads"] > 1]
    write_run(results / "2031-05-07-b", {"cores": later})
    page, _ = build(results)

    (line,) = lines_of(page.partition("### Photographs")[2].partition("###")[0], "| Loader", "raw256")
    assert " * |" in line
    assert line.count("*") == 1
    assert "\\* from the run 2031-05-06-a: the last run had no time left for it." in page


def test_claims_of_all_runs_are_in_one_table(build: Build, results: Path) -> None:
    assert "## Answers by run" not in build(results)[0]
    other = fed()
    for row in other["training"]:
        row["samples_per_s"] *= 0.5
    write_run(results / "2031-05-07-b", {"fed": other})
    page, _ = build(results)

    assert "## Answers by run" in page
    assert lines_of(page, "| question", "| 2031-05-06-a", "| 2031-05-07-b")
    (line,) = lines_of(page.partition("## Answers by run")[2].partition("\n## ")[0], "ResNet-50 train on")
    assert "2,450 at 224 px" in line
    assert "1,225 at 224 px" in line


def test_every_stage_has_its_figures_on_the_page(build: Build, results: Path) -> None:
    page, charts = build(results)

    assert "- GPU: NVIDIA Made-up 100, 79.1 GiB" in page
    assert "- lmdbloader: 9.8.7" in page
    assert lines_of(page, "2031-05-06-a", "betons", "failed", "exit status 1")
    # (a)
    assert "4 collected, 2 passed, 1 failed, 1 skipped" in page
    assert lines_of(page, "`tests/test_cuda_streams.py::test_two`", " assert 1 == 2 ")
    assert "more" not in lines_of(page, "`tests/test_cuda_streams.py::test_two`")[0]
    assert lines_of(page, "`tests/test_cuda_loader.py`", "`test_batches[uint8]`", "`test_pinned`")
    # (b): samples a second and the share of copying memory; multiples of FFCV, of the folder, of the hand-written LMDB
    assert lines_of(page, "memory copy", "4.15 GB/s", "66.4 GB/s")
    assert lines_of(page, "Loader", "pairs_raw", "24,000 (80 %)", "384,000 (80 %)")
    assert lines_of(page, "pairs_raw", "384,000", " 4.0 |", " 60 |", " 24 |")
    assert lines_of(page, "raw256", "48,000", " 2.0 |", " 25 |")
    assert lines_of(page, "pairs_raw", " 8 |", "192,000", "0.50")
    assert lines_of(page, "JPEGs to JPEGs of at most 384", "150 (100 %)", "2,400 (100 %)")
    # (c)
    assert "55.3 GB/s to the device" in page
    assert lines_of(page, "sleep", "2.9 (1.0)", "14 (5.0)")
    assert lines_of(page, "| in the loop", " 61 |", " 62 |")
    assert lines_of(page, "| aside", " 333 |")
    assert lines_of(page, "images of 224 px", "55 (99 %)", "11 (20 %)", " 5.0 |")
    # (d)
    assert lines_of(page, "ResNet-50", "224", "2,500", "2,450 (98 %)", "625 (25 %)")
    assert lines_of(page, "SRCNN, 96 px, 8", "Loader, raw", "97 %", " 7.8 |", " 2.0 |", " 512 |", "9,021")
    assert lines_of(page, "ResNet-18, 224 px", "1,250 (0.25)", r"bad: waits 75% of the time \| or more", "24 %", "25 %")
    # (e)
    assert lines_of(page, "Loader, original files", "0.9120 ± 0.0110", " 4.0 |")
    assert lines_of(page, "planted: red and blue swapped", "detected")
    assert lines_of(page, "Loader, raw pairs", "unknown: too few runs")
    # what is missing
    assert lines_of(page, "cores", "FFCV by 2; FFCV by 4", "not compiled in time")
    assert lines_of(page, "betons", "everything")
    assert set(charts) == {"gpu-cores", "gpu-fed"}
    assert {f"pictures/{name}.svg" for name in charts} == set(re.findall(r"\]\((pictures/[^)]+)\)", page))


def test_the_page_begins_with_three_sentences_and_the_charts(build: Build, results: Path) -> None:
    page, _ = build(results)
    text = page.partition("-->")[2].strip()
    first, _, rest = text.partition("\n\n")
    loading, trained, slower = re.split(r"(?<=\.) (?=[A-Z])", first)
    assert loading == (
        "With as many threads as cores, the Loader loads 1.2 times as many JPEG files, 2.0 times as many images stored"
        " as pixels and 4.0 times as many pairs of patches per second as FFCV, and 4.2 times as many JPEG files as"
        " torch's `DataLoader`."
    )
    assert trained.startswith("ResNet-50 trains on images of 224 pixels at 98 % of the rate")
    assert slower == "It slows training down most with SRCNN in batches of 8, to 60 % of that rate."
    assert rest.startswith("2031-05-06, NVIDIA Made-up 100, 16 cores.")
    assert rest.index("gpu-cores.svg") < rest.index("gpu-fed.svg") < rest.index("\n| ")


def test_where_the_loader_is_slower_is_in_the_first_paragraph(build: Build, results: Path) -> None:
    behind = cores()
    for row in behind["pairs"]:
        row["samples_per_s"] *= 0.2 if row["what"] == "Loader" else 1.0
    write_run(results / "2031-05-07-b", {"cores": behind})
    first = build(results)[0].partition("-->")[2].strip().partition("\n\n")[0]
    assert "is slower than FFCV with pairs of patches (0.80 times)" in first


def test_a_comparison_has_its_conclusion_and_its_tables(build: Build, results: Path) -> None:
    page, _ = build(results)
    section = page.partition("\n## Image files, LMDB and Loader")[2].partition("\n## ")[0]
    assert "**Loader trains SRCNN 4.0 times as fast and a small ResNet 4.0 times as fast as image files do; " in section
    (row, *_) = lines_of(section, "| 128", "Loader ", "P2")
    assert [cell.strip() for cell in row.split("|")][-6:-1] == ["40", "150", "4,000", "60", "P2"]
    assert all(line.startswith("    ") for line in lines_of(section, "P2")), "inside of its note"


def test_every_question_is_answered_where_there_are_all_figures(build: Build, results: Path) -> None:
    page, _ = build(results)

    assert "not measured yet" not in page
    places = {
        re.sub(r"[^a-z -]", "", line.lstrip("# ").lower()).replace(" ", "-")
        for line in page.splitlines()
        if line.startswith("##")
    }
    assert set(re.findall(r"\]\(gpu-tables\.md#([^)]+)\)", page)) <= places
    assert lines_of(page, "FFCV", "4.0 x (pairs_raw), 2.0 x (raw256), 1.2 x (original); 16 threads")
    assert lines_of(page, "pinned memory worth it", "Loader, 16 px, 8: 1.5 x; Loader, 64 px, 8: 1.5 x")
    assert lines_of(
        page,
        "the same accuracy as from the folder",
        "classifier: 1 of 1 comparisons agree; 1 of 1 with a planted mistake differ",
    )


def test_a_missing_figure_does_not_affect_others(build: Build, tmp_path: Path) -> None:
    figures = {"fed": {"training": [training("resnet18", 224, 256, "resident", "resident", 1.0, 5000.0)]}}
    page, charts = build(write_run(tmp_path / "all" / "2031-05-06-a", figures))

    assert lines_of(page, "ResNet-18", "5,000")
    assert "## Copies" not in page
    assert lines_of(page, "| copies", "everything")
    assert lines_of(page, "How many images a second does ResNet-50 train on?", "not measured yet")
    assert charts == {}


@pytest.mark.parametrize("stage", ["correct", "cores", "copies", "fed", "accuracy"])
def test_rows_may_lack_any_figure_except_their_keys(build: Build, tmp_path: Path, stage: str) -> None:
    figures = {"correct": correct, "cores": cores, "copies": copies, "fed": fed, "accuracy": accuracy}[stage]()
    of = {
        "what",
        "dataset",
        "threads",
        "workers",
        "model",
        "pixels",
        "batch_size",
        "feed",
        "kind",
        "copied",
        "way",
        "dtype",
        "sent",
        "measure",
        "processes",
        "memory",
    }
    bare = {
        name: [{key: value for key, value in row.items() if key in of} for row in rows]
        if isinstance(rows, list)
        else rows
        for name, rows in figures.items()
    }
    page, _ = build(write_run(tmp_path / "all" / "2031-05-06-a", {stage: bare}))

    assert "## Not measured" in page


def test_the_last_run_that_has_a_stage_counts(build: Build, tmp_path: Path) -> None:
    faster = cores()
    for row in faster["pairs"]:
        row["samples_per_s"] *= 10
    write_run(tmp_path / "all" / "2031-05-06-a", {"cores": faster, "copies": copies()})
    write_run(
        tmp_path / "all" / "2031-05-07-a",
        {"cores": cores()},
        copies={"status": "failed", "seconds": 1.0, "reason": "why"},
    )
    page, _ = build(tmp_path / "all")

    assert "384,000" in page
    assert "3,840,000" not in page
    assert "55.3 GB/s" in page
    assert [line.split("|")[5].strip() for line in lines_of(page, "| 2031", "cores:")] == ["no", "yes"]
    assert lines_of(page, "2031-05-07-a", "copies", "failed", "no", "why")


def test_charts_take_the_colours_of_the_page_and_have_descriptions(build: Build, results: Path) -> None:
    _, charts = build(results)

    for chart in charts.values():
        root = ElementTree.fromstring(chart)
        assert root.get("class") == "drawing"
        assert any(element.tag.endswith("title") and element.text for element in root)
        assert "prefers-color-scheme: dark" in chart
        assert 'data-md-color-scheme="slate"' in chart
        # Text has no colour of its own.
        assert not re.findall(r"<text[^>]*fill: #", chart)
    assert {"FFCV", "copying memory", "1", "4", "16"} <= set(labels(charts["gpu-cores"]))
    assert {"ResNet-50, 224 px", "SRCNN, batches of 8", "Loader, JPEG files", "100 %"} <= set(labels(charts["gpu-fed"]))


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


def test_single_runs_have_no_interval_and_equal_ones_one_without_width(module: Callable[[str], Any]) -> None:
    accuracy = module("accuracy")

    assert accuracy.mean_and_half([0.5]) == (0.5, None)
    assert accuracy.difference([0.5], [0.6, 0.7])["contains_0"] is None
    assert accuracy.difference([1.0, 1.0], [1.0, 1.0])["contains_0"]
    assert not accuracy.difference([1.0, 1.0], [0.9, 0.9])["contains_0"]
