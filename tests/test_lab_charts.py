"""The charts of a study show every source, and are written as one file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from study_example import make_study

from lmdbloader.lab.charts import Curve, draw, draw_lines, write_charts


def test_each_section_with_a_chart_is_a_page(tmp_path: Path) -> None:
    assert set(draw(make_study())) == {"loading", "stages", "cold"}
    write_charts(make_study(), tmp_path / "charts.pdf")
    written = (tmp_path / "charts.pdf").read_bytes()
    assert written.startswith(b"%PDF") and b"/Count 3" in written


def test_charts_show_the_medians_of_every_source() -> None:
    study = make_study()
    figure = draw(study)["loading"]
    assert [axes.get_title("left") for axes in figure.axes] == [
        "16 x 16 crops, 1 at once",
        "16 x 16 crops, 2 at once",
        "whole images, 1 at once",
    ]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["Loader", "DataLoader (LMDB)", "DataLoader (files)"]
    drawn = [list(line.get_ydata()) for line in figure.axes[0].get_lines() if line.get_marker() == "o"]
    expected = [
        [
            row.samples_per_s
            for row in study.section("loading")
            if (row.source, row.crop, row.num_processes) == (source, 16, 1)
        ]
        for source in ("lmdbloader", "dataloader", "folder")
    ]
    assert drawn == expected


def test_a_line_goes_from_place_to_place_even_if_a_later_place_is_slower() -> None:
    study = make_study()
    rows = [replace(row, turns=tuple(turn / row.batch_size**2 for turn in row.turns)) for row in study.rows]
    for axes in draw(replace(study, rows=tuple(rows)))["loading"].axes:
        places = [list(line.get_xdata()) for line in axes.get_lines() if line.get_marker() == "o"]
        assert places == [[0, 1]] * 3
    (axes,) = draw_lines({"": [Curve("", "black", {3: [1.0], 1: [2.0], 2: [3.0]})]}, "", "").axes
    assert list(axes.get_lines()[0].get_ydata()) == [2.0, 3.0, 1.0]


def test_a_study_of_cold_reads_alone_has_a_chart(tmp_path: Path) -> None:
    study = make_study()
    cold = replace(study, rows=study.section("cold") + study.section("warm"))
    (figure,) = draw(cold).values()
    heights = [[bar.get_height() for bar in axes.patches] for axes in figure.axes]
    assert heights == [[row.samples_per_s for row in study.section(name)] for name in ("cold", "warm")]
    write_charts(cold, tmp_path / "cold.pdf")
    assert b"/Count 1" in (tmp_path / "cold.pdf").read_bytes()


def test_a_study_of_one_batch_size_and_number_of_workers_has_bars_instead_of_points() -> None:
    study = make_study()
    rows = tuple(row for row in study.section("loading") if row.batch_size == 8 and row.num_processes == 1)
    figure = draw(replace(study, rows=rows))["loading"]
    assert [len(axes.patches) for axes in figure.axes] == [3, 3] and not any(a.get_lines() for a in figure.axes)
    own = [row.samples_per_s for row in rows if row.crop == 16]
    assert [bar.get_height() for bar in figure.axes[0].patches] == own


def test_speeds_that_are_nearly_the_same_are_about_as_fast() -> None:
    study = make_study()
    rows = tuple(replace(row, turns=(100.0, 101.0, 99.0)) for row in study.section("loading"))
    text = " ".join(str(replace(study, rows=rows)).split())
    assert "The Loader is about as fast as the DataLoader (LMDB), about as fast as the DataLoader (files)." in text
