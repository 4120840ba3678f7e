"""README's first screen: its chart, badges and picture are those of stored results, and its figures are theirs."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import demos.superres
import pytest
from browser import Browser
from loading_scripts import load_script
from PIL import Image

import lmdbloader

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text("utf-8")
PICTURES = ROOT / "docs" / "pictures"
RUN = ROOT / "benchmarks" / "results" / "gpu" / "2026-11-22-h100-b"
TEMPLATES = ROOT / ".github" / "ISSUE_TEMPLATE"


@pytest.fixture
def draw() -> ModuleType:
    return load_script("draw_readme")


def texts(drawing: str) -> list[str]:
    return ["".join(element.itertext()) for element in ElementTree.fromstring(drawing).iter() if "text" in element.tag]


# The chart


def test_the_chart_and_the_badges_are_current(draw: ModuleType, tmp_path: Path) -> None:
    assert draw.main(["--out", str(tmp_path)]) == 0
    drawn = {path.name: path.read_text("utf-8") for path in tmp_path.iterdir()}
    stored = {path.name: path.read_text("utf-8") for path in PICTURES.glob("*.svg")}
    assert stored == drawn, "run `python scripts/draw_readme.py` and commit docs/pictures"


def test_the_chart_says_when_where_and_how(draw: ModuleType) -> None:
    told = " ".join(texts((PICTURES / draw.CHART).read_text("utf-8")))
    for part in ("2026-11-22", "16 cores", "NVIDIA H100", "python benchmarks/gpu/run.py", "FFCV", "DataLoader"):
        assert part in told


def test_the_fastest_is_first_whoever_it_is(draw: ModuleType) -> None:
    """As the results are: FFCV is ahead with pairs, the Loader with images."""
    chart = draw.gpu_chart(draw.GPU_RESULTS)
    fastest = [max(panel.bars, key=lambda bar: bar.median).name for panel in chart.panels]
    assert fastest == ["lmdbloader", "lmdbloader", "FFCV"]
    shown = texts(draw.draw_chart(chart))
    for panel in chart.panels:
        begin = shown.index(panel.title)
        names = [bar.name for bar in sorted(panel.bars, key=lambda bar: -bar.median)]
        assert shown[begin + 1 : begin + 2 * len(names) : 2] == names


def write_run(folder: Path, speed: float, *, small: bool = False) -> None:
    """Write a made-up run: all loaders have this speed with 4 threads, and a third of it with 1."""
    rows: dict[str, list[dict[str, Any]]] = {"images": [], "pairs": [], "dataloaders": []}
    loaders = (
        ("images", "Loader", "original"), ("images", "FFCV", "original"), ("images", "Loader", "raw256"),
        ("images", "FFCV", "raw256"), ("dataloaders", "DataLoader, folder, Pillow", "photos"),
        ("pairs", "Loader", "pairs_raw"), ("pairs", "FFCV", "pairs"),
        ("dataloaders", "DataLoader, PNG files, Pillow", "pairs_png"),
    )  # fmt: skip
    for figure, what, dataset in loaders:
        for threads, rate in ((1, speed / 3), (4, speed)):
            turns = [0.5 * rate, rate, 2 * rate]
            row = {"what": what, "dataset": dataset, "dtype": "float32", "batch_size": 128, "threads": threads}
            rows[figure].append({**row, "samples_per_s": statistics.median(turns), "turns": turns})
            rows[figure].append({**row, "dtype": "uint8", "samples_per_s": 9 * rate, "turns": [9 * rate]})
    folder.mkdir(parents=True)
    figures = {"cores": {"cores": 4}, **rows}
    (folder / "cores.json").write_text(json.dumps({"small": small, "figures": figures}))
    (folder / "photographs.json").write_text(json.dumps({"figures": {"environment": {"gpu": "Abacus 9"}}}))


def test_the_newest_run_counts_and_rehearsals_do_not(draw: ModuleType, tmp_path: Path) -> None:
    write_run(tmp_path / "2030-01-01-a", 1000.0)
    write_run(tmp_path / "2030-01-02-b", 2000.0)
    write_run(tmp_path / "2030-01-03-c", 3000.0, small=True)
    (tmp_path / "2030-01-04-d").mkdir()
    chart = draw.gpu_chart(tmp_path)
    assert {(bar.median, bar.turns) for panel in chart.panels for bar in panel.bars} == {
        (2000.0, (1000.0, 2000.0, 4000.0))
    }
    told = " ".join(chart.lines)
    assert "2030-01-02, 4 cores of an Abacus 9 machine" in told and "2030-01-02-b" in told
    assert draw.main(["--results", str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    assert "2,000" in texts((tmp_path / "out" / draw.CHART).read_text("utf-8"))


def test_a_missing_figure_is_an_error_and_no_empty_bar(draw: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"no run has a cores\.json"):
        draw.gpu_chart(tmp_path)
    write_run(tmp_path / "2030-01-01-a", 1000.0)
    stored = tmp_path / "2030-01-01-a" / "cores.json"
    stored.write_text(stored.read_text().replace("FFCV", "FCVF"))
    with pytest.raises(SystemExit, match="no speed of FFCV over original"):
        draw.gpu_chart(tmp_path)


def test_nothing_leaves_the_chart_and_no_texts_collide(browser: Browser, draw: ModuleType, tmp_path: Path) -> None:
    shutil.copyfile(PICTURES / draw.CHART, tmp_path / "chart.svg")
    for dark in (False, True):
        page = browser.open(tmp_path / "chart.svg", dark=dark)
        boxes = page.evaluate(
            "[...document.querySelectorAll('text')].map(t => { const b = t.getBoundingClientRect();"
            " return [t.textContent, b.left, b.top, b.right, b.bottom]; })"
        )
        card = page.evaluate(
            "[document.querySelector('.card').getBoundingClientRect()].map(b => [b.right, b.bottom])[0]"
        )
        colours = page.evaluate(
            "['.card', '.title', '.ours'].map(s => getComputedStyle(document.querySelector(s)).fill)"
        )
        page.close()
        assert all(right <= card[0] and bottom <= card[1] for _, _, _, right, bottom in boxes)
        for number, one in enumerate(boxes):
            for other in boxes[number + 1 :]:
                apart = one[3] <= other[1] or other[3] <= one[1] or one[4] <= other[2] + 3 or other[4] <= one[2] + 3
                assert apart, (one, other)
        bright = [sum(map(int, re.findall(r"\d+", colour)[:3])) > 380 for colour in colours]
        assert bright == ([False, True, True] if dark else [True, False, False])


# The picture


def test_the_picture_is_small_and_readable_on_any_page(draw: ModuleType) -> None:
    path = PICTURES / draw.PICTURE
    assert path.stat().st_size < 150_000
    with Image.open(path) as image:
        assert image.mode == "RGBA" and image.width == 3 * draw.CROP[1] * draw.ZOOM + 2 * draw.GAP
        assert image.getpixel((draw.CROP[1] * draw.ZOOM + 1, 5))[3] == 0  # the gaps take the page's colour


def test_the_picture_is_made_by_training_from_a_dataset(
    draw: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demos.superres, "TRAINING_PHOTOGRAPHS", ("coins.png",))
    draw.draw_picture(tmp_path / "a.png", steps=1)
    with Image.open(tmp_path / "a.png") as made, Image.open(PICTURES / draw.PICTURE) as stored:
        assert made.size == stored.size
        side = draw.CROP[1] * draw.ZOOM
        original = (2 * (side + draw.GAP), 0, made.width, made.height)
        assert made.crop(original).tobytes() == stored.crop(original).tobytes()


# The text


def test_chart_and_picture_are_above_the_fold(draw: ModuleType) -> None:
    lines = README.splitlines()
    assert len(lines) < 150
    for name in (draw.CHART, draw.PICTURE):
        (number,) = (number for number, line in enumerate(lines, 1) if f"docs/pictures/{name}" in line)
        assert number < 40 and lines[number - 2] == lines[number] == ""
        assert lines[number - 1].count("![") == 1


def test_the_figures_above_the_fold_are_those_of_the_results() -> None:
    figures = json.loads((RUN / "cores.json").read_text("utf-8"))["figures"]

    def speed(figure: str, what: str, dataset: str) -> float:
        rows = (row for row in figures[figure] if row["what"] == what and row["dataset"] == dataset)
        return max(row["samples_per_s"] for row in rows if row["dtype"] == "float32" and row["batch_size"] == 128)

    jpegs, pairs = speed("images", "Loader", "original"), speed("pairs", "Loader", "pairs_raw")
    folder = speed("dataloaders", "DataLoader, folder, Pillow", "photos")
    pngs = speed("dataloaders", "DataLoader, PNG files, Pillow", "pairs_png")
    fold = README.partition("\n## ")[0]
    said = re.findall(r"\*\*([\d.]+) x\*\*", fold)
    computed = (jpegs / folder, jpegs / speed("images", "FFCV", "original"), pairs / pngs)
    computed += (pairs / speed("pairs", "FFCV", "pairs"),)
    assert said[:4] == [f"{computed[0]:.1f}", f"{computed[1]:.1f}", f"{computed[2]:.0f}", f"{computed[3]:.2f}"]
    # The rest of that sentence is on the page of the results, of the same run.
    page = (ROOT / "docs/benchmarks/gpu-tables.md").read_text("utf-8")
    (row,) = re.findall(r"\| Loader, original files +\| +12 \| (\S+) ± (\S+) \|[^|]*\|[^|]*\| +(\S+) \|", page)
    (other,) = re.findall(r"\| folder, DataLoader +\| +11 \| (0\.\S+) ± (\S+) \|", page)
    assert said[4:] == [row[2]]
    assert f"{row[0]} ± {row[1]} and {other[0]} ± {other[1]}" in " ".join(fold.split())


def test_ten_lines_of_code() -> None:
    (code,) = re.findall(r"(?ms)^```python\n(.*?)^```$", README.partition("\n## ")[0])
    assert len([line for line in code.splitlines() if line]) <= 10


def test_it_shows_whole_images_with_a_crop_first() -> None:
    for text in (README, (ROOT / "docs" / "quickstart.md").read_text("utf-8")):
        first = re.search(r"(?m)^lmdbloader convert .*$", text)
        assert first and "--patch-size" not in first[0]
        assert "RandomCrop(" in text


# What stands around it


def metadata_with(url: str, tmp_path: Path) -> dict[str, Any]:
    """Return the metadata that setup.py passes on when setup.cfg names this URL."""
    shutil.copyfile(ROOT / "setup.py", tmp_path / "setup.py")
    shutil.copyfile(ROOT / "README.md", tmp_path / "README.md")
    text = (ROOT / "setup.cfg").read_text("utf-8")
    (tmp_path / "setup.cfg").write_text(re.sub(r"(?m)^url =.*$", f"url = {url}", text), "utf-8")
    code = "import json, setuptools; told = {}; setuptools.setup = told.update; import setup; "
    code += "print(json.dumps({k: v for k, v in told.items() if k not in ('cmdclass', 'distclass')}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def test_without_a_repository_nothing_is_invented(tmp_path: Path) -> None:
    assert metadata_with("", tmp_path) == {}
    assert not re.search(r"github\.com|pypi\.org|shields\.io", README)


def test_with_a_repository_every_link_of_the_long_description_is_absolute(tmp_path: Path) -> None:
    url = "https://git.example/who/lmdbloader"
    told = metadata_with(url + "/", tmp_path)
    assert told["url"] == url and told["project_urls"]["Issues"] == f"{url}/issues"
    was, now = (re.findall(r"\]\(([^)\s]+)\)", text) for text in (README, told["long_description"]))
    assert len(was) == len(now) > 40
    for old, new in zip(was, now, strict=True):
        way = "raw" if old.endswith((".svg", ".png")) else "blob"
        assert new == (old if old.startswith(("#", "https:")) else f"{url}/{way}/HEAD/{old}")


def test_the_citation_is_true() -> None:
    text = (ROOT / "CITATION.cff").read_text("utf-8")
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", "utf-8")
    told = dict(re.findall(r"(?m)^([\w-]+): (.*)$", text))
    assert told["cff-version"] == "1.2.0" and told["title"] == "lmdbloader"
    assert told["version"] == lmdbloader.__version__
    assert told["license"] == config["metadata"]["license_expression"].partition(" AND ")[0]
    assert f"  - name: {config['metadata']['author']}" in text
    assert told.get("repository-code", "") == config["repository"]["url"], "add or remove the line repository-code"


def test_the_badges_are_true(draw: ModuleType) -> None:
    shown = {name: texts(text) for name, text in draw.draw_badges().items()}
    assert shown == {
        "badge-version.svg": ["version", lmdbloader.__version__],
        "badge-licence.svg": ["licence", "Apache-2.0"],
        "badge-python.svg": ["python", "3.10+"],
    }
    assert f"[version {lmdbloader.__version__}]" in README


def test_issue_templates_ask_for_what_helps() -> None:
    yaml = pytest.importorskip("yaml")
    forms = {path.stem: yaml.safe_load(path.read_text("utf-8")) for path in TEMPLATES.glob("*.yml")}
    for name in ("bug", "question"):
        assert {"name", "description", "body"} <= forms[name].keys()
        ids = [field["id"] for field in forms[name]["body"]]
        assert len(ids) == len({*ids}) and all(field["attributes"]["label"] for field in forms[name]["body"])
    bug = (TEMPLATES / "bug.yml").read_text("utf-8")
    assert "lmdbloader doctor" in bug and "lmdbloader --version" in bug
