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


def test_values_that_differ_by_more_than_20_have_a_logarithmic_axis() -> None:
    for name in ("throughput", "isolation", "cold"):
        chart = charts.CHARTS[name](make_study())
        assert {axes.get_yscale() for axes in chart.axes} == {"log"}
        (subtitle,) = [text.get_text() for text in chart.texts if "Samples per second" in text.get_text()]
        assert subtitle.endswith("logarithmic axis")
        for axes in chart.axes:
            values = [float(value) for line in axes.lines for value in line.get_ydata()]
            assert axes.get_ylim()[0] < min(values) and max(values) < axes.get_ylim()[1]
        # Without files nothing differs by more than 20.
        chart = charts.CHARTS[name](make_study(baseline=False))
        assert {axes.get_yscale() for axes in chart.axes} == {"linear"}
        assert not any("logarithmic" in text.get_text() for text in chart.texts)
    still = make_study()
    rows = tuple(dataclasses.replace(row, samples_per_s=0.0, turns=(0.0, 0.0)) for row in still.isolation[:1])
    nothing = charts.isolation(dataclasses.replace(still, isolation=(*rows, *still.isolation[1:])))
    assert {axes.get_yscale() for axes in nothing.axes} == {"linear"}


def test_whiskers_are_the_turns_and_ends_have_their_digits() -> None:
    study = make_study()
    chart = charts.throughput(study)
    for axes, crop in zip(chart.axes, (16, 64), strict=True):
        found = sorted(
            (float(path.vertices[0, 1]), float(path.vertices[1, 1]))
            for collection in axes.collections
            for path in collection.get_paths()
        )
        rows = [row for row in study.sweep if row.crop == crop]
        assert found == sorted((min(row.turns), max(row.turns)) for row in rows)
        expected = {16: ["86,000", "20,000", "3,060"], 64: ["52,000", "12,700", "1,860"]}
        assert [text.get_text() for text in axes.texts] == expected[crop]
    one_turn = dataclasses.replace(
        study, sweep=tuple(dataclasses.replace(row, turns=row.turns[:1]) for row in study.sweep)
    )
    assert not any(axes.collections for axes in charts.throughput(one_turn).axes)


def test_workers_beyond_the_cores_are_marked() -> None:
    study = make_study()
    (axes,) = charts.oversubscription(study).axes
    (mark,) = axes.patches
    # One, two, three and four for each core: all but the first are more than the cores.
    assert (mark.get_x(), mark.get_x() + mark.get_width()) == pytest.approx((0.5, 3.35))
    assert "more than the 4 cores" in [text.get_text() for text in axes.texts]
    (section,) = [part for part in findings.sections(study) if part.name == "oversubscription"]
    counts = [row[1] for row in section.table.cells()]
    assert counts[:4] == ["4", "8 (of 4 cores)", "12 (of 4 cores)", "16 (of 4 cores)"]
    lines = str(study).splitlines()
    place = next(i for i, line in enumerate(lines) if line.startswith("Threads or workers on 4 cores"))
    assert lines[place + 1].split() == ["4", "8*", "12*", "16*"]
    assert lines[place + 5] == "  * more than the 4 cores"
    assert "more than the 4 cores" not in "\n".join(lines[:place])
    settings = dataclasses.replace(study.settings, num_workers=8)
    text = " ".join(str(dataclasses.replace(study, settings=settings)).split())
    assert "8 workers of torch's, more than the 4 cores;" in text
    titles = [axes.get_title(loc="left") for axes in charts.isolation(dataclasses.replace(study, cores=2)).axes]
    assert titles == ["1 process", "2 processes", "4 processes, more than cores"]


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
