"""A report is one file with a chart and a table for each section, and nothing in it comes from elsewhere."""

from __future__ import annotations

import base64
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

from study_example import make_study

from lmdbloader.lab import Study
from lmdbloader.lab.reporting import draw, write_report

SECTIONS = (
    "loading", "training", "steps", "stages", "oversubscription", "isolation", "cold", "warm", "facts",
)  # fmt: skip


def written(study: Study, folder: Path) -> str:
    write_report(study, folder / "report.html")
    return (folder / "report.html").read_text("utf-8")


class Names(HTMLParser):
    """Collects the ids, the tags, and what is loaded."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.tags: list[str] = []
        self.loaded: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = dict(attributes)
        self.tags.append(tag)
        self.ids += [found["id"] or ""] if "id" in found else []
        self.loaded += [found[name] or "" for name in ("src", "href") if name in found]


def test_a_report_has_a_table_for_each_section_and_charts_in_it(tmp_path: Path) -> None:
    html = written(make_study(), tmp_path)
    names = Names(html)
    assert names.ids == list(SECTIONS)
    assert names.tags.count("pre") == len(SECTIONS) - 1 and "script" not in names.tags
    assert len(names.loaded) == len(draw(make_study())) == 6
    for address in names.loaded:
        assert address.startswith("data:image/svg+xml;base64,")
        ElementTree.fromstring(base64.b64decode(address.partition(",")[2]))
    assert "default-src 'none'" in html and "Crop 200: left out." in html and "NaN" not in html


def test_charts_show_the_medians_of_every_source() -> None:
    study = make_study()
    figure = draw(study)["loading"]
    assert [axes.get_title("left") for axes in figure.axes] == ["16 x 16 crops", "whole images"]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["Loader", "DataLoader (LMDB)", "DataLoader (files)"]
    drawn = [list(line.get_ydata()) for line in figure.axes[0].get_lines() if line.get_marker() == "o"]
    expected = [
        [row.samples_per_s for row in study.section("loading") if (row.source, row.crop) == (source, 16)]
        for source in ("lmdbloader", "dataloader", "folder")
    ]
    assert drawn == expected
