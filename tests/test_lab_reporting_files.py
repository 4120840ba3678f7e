"""Charts and reports as files: they show the study's figures, are the same each time, and whole or not there."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import pytest
from PIL import Image
from study_example import make_study

from lmdbloader.errors import DestinationError, DiskFullError, OptionError
from lmdbloader.lab import reporting
from lmdbloader.lab.reporting import charts, style
from lmdbloader.lab.study import findings
from lmdbloader.lab.study.results import Study
from lmdbloader.lab.study.rows import SOURCES

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def study() -> Study:
    return make_study(gpu=True)


@pytest.mark.parametrize("narrow", [False, True])
def test_the_lines_of_throughput_are_the_figures_of_the_study(study: Study, narrow: bool) -> None:
    chart = charts.throughput(study, narrow=narrow)
    assert [axes.get_title(loc="left") for axes in chart.axes] == ["16 x 16 crops", "64 x 64 crops"]
    for axes, crop in zip(chart.axes, (16, 64), strict=True):
        assert len(axes.lines) == len(SOURCES)
        for line, source in zip(axes.lines, SOURCES, strict=True):
            rows = [r for r in study.sweep if (r.source, r.crop, r.is_pinned) == (source, crop, True)]
            assert list(line.get_ydata()) == pytest.approx([row.samples_per_s for row in rows])


def test_the_bars_of_an_epoch_add_up_to_the_epoch(study: Study) -> None:
    chart = charts.split(study)
    heights = [sum(bar.get_height() for bar in axes.patches) for axes in chart.axes]
    expected = [
        sum(
            row.training.epoch_seconds
            for row in study.sweep
            if row.training and (row.crop, row.source, row.is_pinned) == (crop, source, True)
        )
        for crop in (16, 64)
        for source in SOURCES
    ]
    assert heights == pytest.approx(expected)


def test_a_chart_refuses_a_study_that_has_no_figures_for_it() -> None:
    nothing = make_study(model=None)
    measured = {section.name for section in findings.sections(nothing)}
    missing = [name for name in charts.CHARTS if name not in measured]
    assert missing == ["split", "memory", "gpu"]
    for name in missing:
        with pytest.raises(OptionError, match=f"'{name}': the study has no figures"):
            charts.CHARTS[name](nothing)


@pytest.mark.parametrize("group", [style.SOURCES, style.PHASES, style.STAGES])
@pytest.mark.parametrize("dark", [False, True])
def test_meanings_are_distinguishable_without_colour(group: dict[str, style.Look], dark: bool) -> None:
    def grey(look: style.Look) -> float:
        colour = look.dark if dark else look.light
        return sum(w * int(colour[i : i + 2], 16) for w, i in ((0.2126, 1), (0.7152, 3), (0.0722, 5)))

    for a, b in combinations(group.values(), 2):
        assert (a.marker, a.hatch) != (b.marker, b.hatch) or abs(grey(a) - grey(b)) > 20, (a, b)


def test_no_two_meanings_share_a_colour() -> None:
    lights = [look.light for look in style.colours().values()]
    assert len(lights) == len(set(lights))


def test_the_same_study_makes_the_same_bytes_whatever_the_user_has_set(study: Study) -> None:
    study = dataclasses.replace(study, sweep=study.sweep[:3], isolation=(), oversubscription=())
    before = reporting.render(study), charts.split(study).png()
    with matplotlib.rc_context({"lines.linewidth": 9, "svg.hashsalt": None, "text.usetex": True, "font.size": 3}):
        assert reporting.render(study) == before[0]
        assert charts.split(study).png() == before[1]
        assert matplotlib.rcParams["lines.linewidth"] == 9


def test_charts_are_files_that_others_can_read(study: Study, tmp_path: Path) -> None:
    few = tuple(row for row in study.sweep if row.crop == 64 and row.batch_size in (8, 128))
    written = reporting.write_charts(dataclasses.replace(study, sweep=few), tmp_path / "made" / "charts")
    assert sorted(written) == sorted((tmp_path / "made" / "charts").iterdir())
    titles = {section.name: section.title for section in findings.sections(study)}
    assert {path.stem for path in written} == set(charts.CHARTS)
    for path in written:
        if path.suffix == ".png":
            with Image.open(path) as image:
                assert image.width > 1400
        else:
            root = ElementTree.parse(path).getroot()
            texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
            assert titles[path.stem] in texts
            assert not list(root.iter("{http://purl.org/dc/elements/1.1/}date"))


def test_a_chart_shows_itself_in_a_notebook(study: Study) -> None:
    assert charts.threads(study)._repr_png_().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("name", "error", "told"),
    [("report.pdf", OptionError, "ends in .html"), ("no/report.html", DestinationError, "does not exist"),
     ("folder.html", DestinationError, "is a folder")],
)  # fmt: skip
def test_a_place_that_cannot_be_is_refused(
    study: Study, tmp_path: Path, name: str, error: type[Exception], told: str
) -> None:
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(error, match=told):
        reporting.write_report(study, tmp_path / name)


def test_charts_need_a_folder(study: Study, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(DestinationError, match="is a file"):
            reporting.write_charts(study, folder)


def test_a_report_that_cannot_be_finished_leaves_the_old_one(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = dataclasses.replace(study, sweep=(), isolation=(), oversubscription=())
    path = tmp_path / "report.html"
    path.write_text("the old one")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(DiskFullError):
            reporting.write_report(study, path)
    assert path.read_text() == "the old one"
    assert list(tmp_path.iterdir()) == [path]


def test_without_matplotlib_the_error_names_the_extra() -> None:
    code = "import sys; sys.modules['matplotlib'] = None\nfrom lmdbloader.lab import reporting"
    child = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert child.returncode == 1
    assert 'pip install "lmdbloader[report]"' in child.stderr.splitlines()[-1]
