"""The charts of a study show every source, and are written as one file."""

from __future__ import annotations

from pathlib import Path

from study_example import make_study

from lmdbloader.lab.charts import draw, write_charts


def test_each_section_with_a_chart_is_a_page(tmp_path: Path) -> None:
    assert set(draw(make_study())) == {"loading", "stages"}
    write_charts(make_study(), tmp_path / "charts.pdf")
    written = (tmp_path / "charts.pdf").read_bytes()
    assert written.startswith(b"%PDF") and b"/Count 2" in written


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
