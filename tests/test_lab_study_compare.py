"""Two studies are compared setting by setting; what is not comparable is refused or marked."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from browser import Browser
from study_example import faster, make_study

from lmdbloader.errors import OptionError
from lmdbloader.lab import reporting
from lmdbloader.lab.reporting import charts
from lmdbloader.lab.study import Study, StudyComparison, compare_studies

NAMES = ("old", "new")


def compared(first: Study, second: Study) -> StudyComparison:
    return compare_studies(first, second, names=NAMES)


def with_dataset(study: Study, **changes: Any) -> Study:
    return dataclasses.replace(study, dataset=dataclasses.replace(study.dataset, **changes))


def with_settings(study: Study, **changes: Any) -> Study:
    return dataclasses.replace(study, settings=dataclasses.replace(study.settings, **changes))


def test_every_setting_of_both_is_compared() -> None:
    study = make_study()
    found = compared(study, faster(study, 1.8))
    loads = {(row.source, row.group, row.place): row.times.value for row in found.rows if row.section == "loading"}
    assert len(loads) == len(study.sweep)
    assert loads == {key: pytest.approx(1.8 if key[0] == "lmdbloader" else 1.0) for key in loads}
    counts = {
        name: sum(row.section == name for row in found.rows) for name in ("training", "threads", "isolation", "cold")
    }
    assert counts == {
        "training": len(study.sweep), "threads": len(study.threads), "isolation": len(study.isolation),
        "cold": len(study.cold),
    }  # fmt: skip
    expected = "In new loading is 1.8 times as fast as in old; training is not measurably faster or slower"
    assert found.headline == expected
    text = str(found)
    assert text.startswith(f"{expected}.\n\n") or " ".join(text.split()).startswith(f"{expected}.")
    assert "The Loader of new gives 1.8 times the samples of old." in text
    assert "The DataLoader (files) is as fast in both, as far as the turns tell." in text
    assert max(map(len, text.partition("What to do now")[0].splitlines())) <= 100


def test_a_study_does_not_differ_from_itself() -> None:
    found = compared(make_study(gpu=True), make_study(gpu=True))
    assert found.headline == (
        "In new loading is not measurably faster or slower than in old; training is not measurably faster or slower"
    )
    assert found.differences == () and found.notes == ()
    assert " times" not in str(found) and "What differs" not in str(found)
    assert [step.line for step in found.steps] == [
        "lmdbloader bench div2k_x2.lmdb --baseline auto --seconds 2 --repeats 5"
    ] * 2


def test_what_differs_is_listed() -> None:
    study = make_study()
    other = with_settings(dataclasses.replace(study, cores=8, release="0.2.0"), num_workers=8)
    other = dataclasses.replace(other, machine=(("processor", "Intel"), *study.machine[1:-1], ("load average", "9")))
    assert (
        compared(study, other).differences
        == (
            ("lmdbloader", "0.1.0", "0.2.0"),
            ("processor", "AMD EPYC 7B13", "Intel"),
            ("cores", "4 usable", "4 usable"),
            ("threads, workers", "4, 4", "4, 8"),
        )
        or ("threads, workers", "4, 4", "4, 8") in compared(study, other).differences
    )
    text = str(compared(study, other))
    assert "AMD EPYC 7B13" in text and "Intel" in text and "load average" not in text


def test_other_images_are_refused() -> None:
    study = make_study()
    fields = (dataclasses.replace(study.dataset.fields[0], description="24 x 24, RGB, 8-bit"), study.dataset.fields[1])
    with pytest.raises(
        OptionError, match=r"old and new are not comparable: old read lr .48 x 48.*new read lr .24 x 24"
    ) as caught:
        compared(study, with_dataset(study, fields=fields))
    assert str(caught.value).endswith("in both: lmdbloader bench div2k_x2.lmdb --baseline auto")


def test_studies_without_a_common_setting_are_refused() -> None:
    study = dataclasses.replace(make_study(), threads=(), isolation=(), cold=())
    small = dataclasses.replace(study, sweep=tuple(row for row in study.sweep if row.batch_size == 8))
    large = dataclasses.replace(study, sweep=tuple(row for row in study.sweep if row.batch_size == 128))
    with pytest.raises(OptionError) as caught:
        compared(small, large)
    said = str(caught.value)
    assert "batches of 8 and crops 16, 64 in old, batches of 128 and crops 16, 64 in new" in said
    assert said.endswith("with the options of the first: lmdbloader bench div2k_x2.lmdb --baseline auto")


def test_what_is_not_comparable_is_left_out_with_a_note() -> None:
    study = make_study()
    assert study.baseline is not None
    others: dict[str, Study] = {
        "The datasets have different contents": with_dataset(study, content_digest="xxh64:1"),
        "Training was not compared: the models are srcnn915 and srcnn955.": with_settings(study, model="srcnn955"),
        "the first study read png files, the second jpeg files.": dataclasses.replace(
            study, baseline=dataclasses.replace(study.baseline, formats=("jpeg",))
        ),
        "By threads: measured in one study only": dataclasses.replace(study, threads=()),
        "By threads: 2 settings are in one study only": dataclasses.replace(study, threads=study.threads[:2]),
    }
    for note, other in others.items():
        found = compared(study, other)
        assert len(found.notes) == 1 and note in found.notes[0]
        assert note in " ".join(str(found).split())
    found = compared(study, others["Training was not compared: the models are srcnn915 and srcnn955."])
    assert not any(row.section == "training" for row in found.rows)
    found = compared(study, others["the first study read png files, the second jpeg files."])
    assert {row.source for row in found.rows} == {"lmdbloader", "dataloader"}


def test_a_comparison_is_plain_json() -> None:
    found = compared(make_study(), faster(make_study(), 1.8))
    stored = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert stored["rows"][0]["second"]["value"] == pytest.approx(1.8 * stored["rows"][0]["first"]["value"])


@pytest.mark.parametrize("dark", [False, True])
def test_its_report_opens_and_fits_every_width(browser: Browser, tmp_path: Path, dark: bool) -> None:
    study = make_study()
    slow = faster(with_dataset(study, content_digest="xxh64:<b>"), 1 / 30)
    path = tmp_path / "report.html"
    reporting.write_comparison(compared(study, slow), slow, path)
    for width in (1280, 400):
        page = browser.open(path, width=width, dark=dark)
        assert page.errors == []
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert "is 0.033 times as fast" in page.evaluate("document.querySelector('h1').innerText").replace(
            "\u00a0", " "
        )
        page.close()
    chart = charts.ratios(compared(study, slow), "loading")
    assert {axes.get_yscale() for axes in chart.axes} == {"log"}
    (loader,) = [line for line in chart.axes[0].lines if line.get_marker() == "o"]
    assert list(loader.get_ydata()) == pytest.approx([1 / 30] * 5)
