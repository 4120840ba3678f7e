"""A report in a real browser: it opens from the disk, shows every chart in every form, and no text breaks it."""

from __future__ import annotations

import dataclasses
import html
import io
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from browser import Browser, Page
from PIL import Image
from study_example import make_study

from lmdbloader.lab import reporting
from lmdbloader.lab.reporting import charts
from lmdbloader.lab.study import conclusion, findings
from lmdbloader.lab.study.ranges import measured
from lmdbloader.lab.study.results import Study
from lmdbloader.lab.study.rows import StudiedField

WIDTHS = (1280, 800, 400)
# Text needs 4.5 to be read by everyone, lines and bars 3 (WCAG 2.2, 1.4.3 and 1.4.11).
TEXT_CONTRAST, GRAPHIC_CONTRAST = 4.5, 3.0
SMALLEST_TEXT = 10.0
HOSTILE = """</title></style><script>console.error("in")</script>"'><img src=x onerror=alert(1)> {{ 7 * 7 }} $\\frac{"""
INVISIBLE = "\u202egnp.txt\x00\x1b[2J\ud800\n<b>"

# Of every text that can be seen: itself, its colour, its size in pixels as shown, and its box.
TEXTS = """
(() => {
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode, parent = node.parentElement;
    if (!node.data.trim() || !parent.checkVisibility() || ['title', 'desc'].includes(parent.tagName)) continue;
    const svg = parent.closest('svg'), style = getComputedStyle(parent), range = document.createRange();
    range.selectNodeContents(node);
    const box = svg ? parent.getBoundingClientRect() : range.getBoundingClientRect();
    const scale = svg ? svg.getBoundingClientRect().width / svg.viewBox.baseVal.width : 1;
    found.push({
      text: node.data.trim(), colour: svg ? style.fill : style.color, size: parseFloat(style.fontSize) * scale,
      chart: svg ? svg.getAttribute('aria-labelledby') : '', box: [box.left, box.top, box.right, box.bottom],
      scrolls: !!parent.closest('.scroll'),
    });
  }
  return found;
})()
"""
# Of every chart that can be seen: its part, name and description, its box, its marks and their colours.
CHARTS = """
[...document.querySelectorAll('section svg')].filter(svg => svg.checkVisibility()).map(svg => {
  const box = svg.getBoundingClientRect();
  const label = name => document.getElementById(svg.getAttribute(name)).textContent;
  const marks = [...svg.querySelectorAll('path, use')].filter(mark => {
    const box = mark.getBoundingClientRect();
    return (box.width || box.height) && !mark.closest('defs');
  });
  const colours = marks.flatMap(mark => [getComputedStyle(mark).fill, getComputedStyle(mark).stroke]);
  return {
    part: svg.closest('section').id, role: svg.getAttribute('role'), title: label('aria-labelledby'),
    description: label('aria-describedby'), box: [box.left, box.top, box.right, box.bottom],
    marks: marks.length, colours: [...new Set(colours)].filter(colour => colour != 'none'),
  };
})
"""


def make_small_study() -> Study:
    """Return a study that is quickly drawn."""
    study = make_study()
    few = tuple(row for row in study.sweep if row.crop == 64 and row.batch_size in (8, 128))
    return dataclasses.replace(
        study, sweep=few, isolation=study.isolation[:2], oversubscription=(), threads=(), cold=()
    )


@pytest.fixture(scope="module")
def study() -> Study:
    return make_study(gpu=True)


@pytest.fixture(scope="module")
def report(study: Study, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    reporting.write_report(study, path)
    return path


@pytest.fixture(scope="module", params=[(w, d) for w in WIDTHS for d in (False, True)], ids=str)
def page(request: pytest.FixtureRequest, browser: Browser, report: Path) -> Iterator[Page]:
    width, dark = request.param
    opened = browser.open(report, width=width, dark=dark)
    yield opened
    opened.close()


def luminance(colour: str) -> float:
    """Return the relative luminance of "rgb(...)" as WCAG 2.2 defines it."""
    values = [int(value) / 255 for value in re.findall(r"\d+", colour)[:3]]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values]
    return sum(w * v for w, v in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(a: str, b: str) -> float:
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def overlap(a: list[float], b: list[float]) -> float:
    """Return by how much two boxes (left, top, right, bottom) overlap, in pixels."""
    return min(a[2] - b[0], b[2] - a[0], a[3] - b[1], b[3] - a[1])


def test_it_opens_from_the_disk_and_asks_for_nothing(page: Page, report: Path) -> None:
    assert page.errors == []
    assert page.requests == [report.as_uri()]
    assert page.evaluate("[document.scripts.length, document.styleSheets.length]") == [0, 1]


def test_every_chart_is_there_and_none_is_empty(page: Page, study: Study) -> None:
    charts = page.evaluate(CHARTS)
    assert [chart["part"] for chart in charts] == [part.name for part in findings.sections(study)]
    assert len(charts) == 10
    for chart in charts:
        left, top, right, bottom = chart["box"]
        assert right - left > 300, chart
        assert bottom - top > 100, chart
        assert chart["marks"] > 8, chart
        assert len(chart["colours"]) >= 3, chart


def test_every_chart_has_a_description_for_screen_readers(page: Page) -> None:
    for chart in page.evaluate(CHARTS):
        assert chart["role"] == "img"
        assert len(chart["title"]) > 5
        assert len(chart["description"]) > 60
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map(element => element.id)")
    assert len(ids) == len(set(ids))
    assert page.evaluate(
        "[...document.querySelectorAll('section')].every(part => part.querySelector('table, dl, pre'))"
    )


def test_nothing_is_wider_than_the_screen(page: Page) -> None:
    page.evaluate("document.querySelectorAll('details').forEach(details => details.open = true)")
    width = page.evaluate("innerWidth")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    for text in page.evaluate(TEXTS):
        if not text["scrolls"]:
            assert text["box"][0] >= 0, text
            assert text["box"][2] <= width, text
    # Wider content is in a box of its own that scrolls.
    assert page.evaluate("[...document.querySelectorAll('.scroll')].every(box => box.clientWidth <= innerWidth)")
    page.evaluate("document.querySelectorAll('details').forEach(details => details.open = false)")


def test_every_text_can_be_read(page: Page) -> None:
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    texts = page.evaluate(TEXTS)
    assert len(texts) > 150
    for text in texts:
        assert contrast(text["colour"], paper) >= TEXT_CONTRAST, text
        assert text["size"] >= SMALLEST_TEXT, text


def check_that_texts_have_room(page: Page) -> None:
    """Fail if a text in a chart overlaps another or leaves the chart."""
    boxes = {chart["part"]: chart["box"] for chart in page.evaluate(CHARTS)}
    texts = [text for text in page.evaluate(TEXTS) if text["chart"]]
    assert texts
    for i, text in enumerate(texts):
        left, top, right, bottom = boxes[text["chart"].split("-")[0]]
        assert text["box"][0] >= left - 3, text
        assert text["box"][1] >= top - 3, text
        assert text["box"][2] <= right + 3, text
        assert text["box"][3] <= bottom + 3, text
        for other in texts[i + 1 :]:
            if other["chart"] == text["chart"]:
                # A box is higher than its letters.
                assert overlap(text["box"], other["box"]) < 3, (text, other)


def test_no_text_of_a_chart_overlaps_another_or_the_edge(page: Page) -> None:
    check_that_texts_have_room(page)


def test_lines_and_bars_stand_out_from_the_page(page: Page) -> None:
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    faint = page.evaluate(
        "['rule', 'paper'].map(name => getComputedStyle(document.documentElement).getPropertyValue(`--frame-${name}`))"
    )
    faint = [f"rgb{tuple(int(colour.strip()[i : i + 2], 16) for i in (1, 3, 5))}" for colour in faint]
    for chart in page.evaluate(CHARTS):
        for colour in chart["colours"]:
            if colour.startswith("rgb(") and colour not in faint:
                assert contrast(colour, paper) >= GRAPHIC_CONTRAST, (chart["part"], colour)


def test_much_of_everything_has_room_too(browser: Browser, tmp_path: Path) -> None:
    study = make_study()
    some = [row for row in study.sweep if row.crop == 64 and row.batch_size == 8 and row.source != "dataloader"]
    many = tuple(
        dataclasses.replace(row, crop=crop, batch_size=8 * scale, samples_per_s=row.samples_per_s * scale)
        for row in some
        for crop in (16, 256, None)
        for scale in (1, 2, 3, 4, 6, 64, 128, 256)
    )
    processes = tuple(dataclasses.replace(study.isolation[0], num_processes=k) for k in (1, 2, 4, 8, 16))
    path = tmp_path / "report.html"
    reporting.write_report(dataclasses.replace(study, sweep=many, isolation=processes), path)
    for width in (1280, 400):
        page = browser.open(path, width=width)
        check_that_texts_have_room(page)
        assert page.evaluate("document.documentElement.scrollWidth") == width
        page.screenshot(tmp_path / f"{width}.png")
        page.close()


def test_light_and_dark_are_as_the_person_prefers(browser: Browser, report: Path) -> None:
    shown = []
    for dark in (False, True):
        page = browser.open(report, dark=dark)
        shown.append(np.asarray(Image.open(io.BytesIO(page.screenshot())).convert("L")))
        colours = {tuple(chart["colours"]) for chart in page.evaluate(CHARTS)}
        assert colours
        page.close()
    light, dark_pixels = shown
    assert light.shape == dark_pixels.shape
    assert np.median(light) > 240
    assert np.median(dark_pixels) < 40


def test_a_text_that_is_cut_or_faint_would_be_found(browser: Browser, report: Path, tmp_path: Path) -> None:
    text = report.read_text("utf-8")
    faults = {
        "wide": ("</main>", "<p style='width: 3000px'>wide</p></main>"),
        "script": ("</main>", "<script>console.log('a script')</script></main>"),
        "network": ("</main>", "<img src='https://example.invalid/a.png' alt=''></main>"),
    }
    found = {}
    for name, (before, after) in faults.items():
        path = tmp_path / f"{name}.html"
        path.write_text(text.replace(before, after), "utf-8")
        page = browser.open(path, width=400)
        found[name] = [page.evaluate("document.documentElement.scrollWidth > innerWidth"), page.errors]
        page.close()
    assert found["wide"] == [True, []]
    # The page's own policy lets neither through, and the browser says so.
    assert "Content Security Policy" in str(found["script"])
    assert "Content Security Policy" in str(found["network"])


def test_no_text_in_a_study_gets_out_of_its_place(browser: Browser, tmp_path: Path) -> None:
    text = HOSTILE + INVISIBLE
    some = make_small_study()
    hostile = dataclasses.replace(
        some,
        release=text,
        created=text,
        machine=((text, text), (text, text, text), ()),
        dataset=dataclasses.replace(
            some.dataset, path=text, fields=(StudiedField(text, text, text),), fields_read=(text,), content_digest=text
        ),
        baseline=dataclasses.replace(some.baseline, path=text, formats=(text,)) if some.baseline else None,
        settings=dataclasses.replace(some.settings, model=text, device=text, command=text),
        notes=(text,),
        sweep=tuple(dataclasses.replace(row, stages={text: 1e-6} if row.stages else None) for row in some.sweep),
    )
    path = tmp_path / "report.html"
    reporting.write_report(hostile, path)
    page = browser.open(path, width=400)
    assert page.errors == []
    assert page.requests == [path.as_uri()]
    assert page.evaluate("document.querySelectorAll('script, img, b').length") == 0
    assert page.evaluate("document.documentElement.scrollWidth") == 400
    shown = page.evaluate("document.body.innerText + document.title")
    assert shown.count(HOSTILE + r"\u202egnp.txt\x00\x1b[2J\ud800\n<b>") > 10
    page.close()


def test_a_study_of_less_has_fewer_parts() -> None:
    def names(study: Study) -> set[str]:
        return {part.name for part in findings.sections(study)}

    everything = names(make_study(gpu=True))
    assert len(everything) == len(charts.CHARTS)
    assert names(make_study()) == everything - {"gpu", "memory"}
    assert names(make_study(model=None)) == everything - {"gpu", "memory", "split"}
    assert names(dataclasses.replace(make_study(), sweep=())) == {"threads", "isolation", "oversubscription", "cold"}
    assert names(dataclasses.replace(make_study(), threads=(), isolation=())) == everything - {
        "gpu", "memory", "threads", "isolation",
    }  # fmt: skip


def test_a_report_of_fewer_sections_shows_the_notes() -> None:
    study = dataclasses.replace(make_study(baseline=False, model=None), isolation=(), oversubscription=(), cold=())
    text = reporting.render(study)
    assert re.findall(r'<section id="(\w+)"', text) == [
        "throughput",
        "latency",
        "stages",
        "threads",
        "environment",
        "next",
    ]
    assert "DataLoader, files" not in text
    assert len(study.notes) == 2
    for note in study.notes:
        assert note in text


def test_a_study_without_figures_makes_a_report_with_its_environment() -> None:
    empty = dataclasses.replace(
        make_study(), sweep=(), threads=(), oversubscription=(), isolation=(), notes=("None.",), cold=()
    )
    text = reporting.render(empty)
    assert "div2k_x2.lmdb" in text
    assert "None." in text
    assert "<svg" not in text


def test_the_head_has_the_main_findings(study: Study, report: Path) -> None:
    head = report.read_text("utf-8").split("<header>")[1].split("</header>")[0]
    head = html.unescape(re.sub(r"<[^>]+>", "", head)).replace("\u00a0", " ")
    ours, theirs = (
        next(row for row in study.sweep if (row.source, row.batch_size, row.crop) == (source, 8, 64))
        for source in ("lmdbloader", "folder")
    )
    ratio = ours.samples_per_s / theirs.samples_per_s
    assert f"{measured(ours.samples_per_s, ours.turns)} samples a second" in head
    assert f"{ratio:.0f} times as many as torch's DataLoader over image files" in head
    assert "Loading is 32 times as fast as from image files; training " in head
    assert "the model is your limit" in head


@pytest.mark.parametrize("place", range(4))
def test_one_setting_in_which_the_model_waits_is_found(place: int) -> None:
    study = make_study()
    ours = [row for row in study.sweep if row.source == "lmdbloader"]
    assert len({row.crop for row in ours}) > 1
    slow = ours[place * (len(ours) - 1) // 3]
    assert slow.training is not None
    phases = dataclasses.replace(slow.training.phases, data=slow.training.phases.total)
    starved = dataclasses.replace(slow, training=dataclasses.replace(slow.training, phases=phases))
    rows = tuple(starved if row is slow else row for row in study.sweep)
    stall = 100 * phases.data / phases.total
    assert conclusion.headline(dataclasses.replace(study, sweep=rows)).endswith(
        f"waits for data up to {stall:.0f} % of the time"
    )


def test_the_title_is_the_question() -> None:
    assert "<title>div2k_x2.lmdb: how fast are batches loaded?</title>" in reporting.render(make_study(model=None))


def test_a_model_that_waits_is_not_called_fed() -> None:
    study = make_small_study()
    starved = []
    for row in study.sweep:
        assert row.training is not None
        phases = dataclasses.replace(row.training.phases, data=row.training.phases.total)
        starved.append(dataclasses.replace(row, training=dataclasses.replace(row.training, phases=phases)))
    told = conclusion.headline(dataclasses.replace(study, sweep=tuple(starved)))
    assert re.search(r"; training does not differ: the model waits for data up to \d\d % of the time$", told)


def test_every_figure_of_the_sweep_is_in_a_table(study: Study, report: Path) -> None:
    text = report.read_text("utf-8")
    for row in study.sweep:
        assert f"<td>{measured(row.samples_per_s, row.turns)}</td>" in text
        assert f"<td>{min(row.turns):,.0f}</td>" in text
        assert row.training is not None
        assert f"<td>{measured(row.training.samples_per_s, row.training.turns)}</td>" in text


def test_a_report_ends_with_what_to_do(report: Path) -> None:
    text = report.read_text("utf-8")
    end = text[text.index('<section id="next"') :]
    assert "<section" not in end[1:]
    assert "lmdbloader.Loader(&#39;div2k_x2.lmdb&#39;, batch_size=8)" in end
