"""Ratios and fits are those of the figures; the text fits a terminal and has all findings."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from study_example import make_study

from lmdbloader.lab.study.findings import batch_cost, conclusions, fit_batch_cost, small_to_large, summary
from lmdbloader.lab.study.results import Study
from lmdbloader.lab.study.rows import loading, training

EXAMPLES: list[dict[str, Any]] = [
    {}, {"gpu": True}, {"baseline": False}, {"model": None}, {"gpu": True, "model": None},
]  # fmt: skip


@given(st.floats(0, 0.1), st.floats(1e-6, 0.01), st.lists(st.integers(1, 512), min_size=2, max_size=6, unique=True))
def test_a_fit_finds_the_line_that_is_there(fixed: float, each: float, sizes: list[int]) -> None:
    found = fit_batch_cost(sizes, [fixed + each * size for size in sizes])
    assert found is not None
    assert found.fixed_seconds == pytest.approx(fixed, rel=1e-4, abs=1e-7)
    assert found.sample_seconds == pytest.approx(each, rel=1e-4)
    assert -1e-6 <= found.exponent <= 1 + 1e-6


def test_a_fit_needs_two_sizes() -> None:
    assert fit_batch_cost([8], [0.1]) is None
    assert fit_batch_cost([8, 8], [0.1, 0.2]) is None


def test_the_exponent_is_that_of_a_power() -> None:
    found = fit_batch_cost([8, 32, 128], [0.001 * size**0.5 for size in (8, 32, 128)])
    assert found is not None and found.exponent == pytest.approx(0.5)


def test_small_batches_are_compared_with_large_ones() -> None:
    study = make_study(model=None)
    speeds = {r.batch_size: r.samples_per_s for r in study.sweep if r.source == "folder" and r.crop == 64}
    found = small_to_large(loading(study), "folder", 64)
    assert found is not None and found.value == pytest.approx(speeds[128] / speeds[8])
    assert small_to_large(training(study), "folder", 64) is None
    study = make_study()
    rows = [row for row in study.sweep if row.source == "folder" and row.crop == 64]
    epochs = {row.batch_size: row.training.epoch_seconds for row in rows if row.training}
    found = small_to_large(training(study), "folder", 64)
    assert found is not None and found.value == pytest.approx(epochs[8] / epochs[128])
    text = " ".join(str(study).split())
    assert f"{speeds[128] / speeds[8]:.1f} times with the DataLoader (files)." in text
    assert small_to_large(loading(make_study(baseline=False)), "folder", 64) is None
    assert batch_cost(make_study(baseline=False), "folder", 64) is None


def test_pinned_rows_are_preferred() -> None:
    sweep = loading(make_study(gpu=True))
    assert all(row.is_pinned for row in sweep.curve("folder", 16))
    assert not any(row.is_pinned for row in sweep.curve("folder", 16, pinned=False))
    assert [row.batch_size for row in sweep.curve("folder", 16)] == [8, 16, 32, 64, 128]


def test_a_negative_fixed_cost_is_not_reported() -> None:
    study = make_study(baseline=False)
    rows = tuple(
        dataclasses.replace(row, samples_per_s=row.batch_size / (1e-5 * row.batch_size**1.2), turns=())
        for row in study.sweep
    )
    found = batch_cost(dataclasses.replace(study, sweep=rows), "lmdbloader", 64)
    assert found is not None and found.fixed_seconds < 0
    told = "\n".join(conclusions(dataclasses.replace(study, sweep=rows)))
    assert (
        "as its size to the power of 1.20 with the Loader (64 x 64 crops)." in told
        and "-" not in told.split("power")[1]
    )
    assert "a line fits 20 µs and 19 µs for each sample" in "\n".join(conclusions(make_study()))


def test_batches_that_cost_less_the_larger_they_are_have_no_growth() -> None:
    study = make_study(baseline=False)
    rows = tuple(dataclasses.replace(row, samples_per_s=100.0 * row.batch_size**1.5, turns=()) for row in study.sweep)
    assert "grows as" not in " ".join(conclusions(dataclasses.replace(study, sweep=rows)))


def slower(study: Study, share: float, loaders: float = 1.0) -> Study:
    """Return a study whose settings with more workers than cores have a share of the others' speed."""
    rows = []
    for row in study.oversubscription:
        found = 1.0 if row.per_core == 1 else loaders if row.source == "lmdbloader" else share
        turns = tuple(1000.0 * found * turn for turn in (0.99, 1.0, 1.01))
        rows.append(dataclasses.replace(row, of_one_per_core=found, samples_per_s=turns[1], turns=turns))
    return dataclasses.replace(study, oversubscription=tuple(rows))


def test_costly_oversubscription_is_warned_of() -> None:
    def text(share: float, loaders: float = 1.0) -> str:
        return "\n".join(conclusions(slower(make_study(), share, loaders)))

    assert "Warning: give torch's DataLoader no more workers than cores" in text(0.8)
    assert "up to 4 give at worst 80 % of the speed with the DataLoader (LMDB)" in text(0.8)
    assert "Warning" not in text(0.99) and "up to 4 make no difference as far as the turns tell." in text(0.99)
    # All rows of the Loader are the same setting.
    assert "Warning" not in text(0.99, loaders=0.5)


@pytest.mark.parametrize("options", EXAMPLES)
def test_a_study_as_text_fits_100_columns_and_ends_in_sentences(options: dict[str, Any]) -> None:
    study = make_study(**options)
    lines = str(study).splitlines()
    assert max(map(len, lines)) <= 100
    assert all(line == line.rstrip() for line in lines)
    last = lines[lines.index("What this says") + 1 : lines.index("What to do now")]
    told = " ".join(" ".join(last).split())
    for sentence in conclusions(study):
        assert " ".join(sentence.split()) in told
        assert sentence.endswith(".")
    assert set(study.notes) <= set(conclusions(study))


@pytest.mark.parametrize("options", EXAMPLES)
def test_sections_that_were_not_measured_are_not_mentioned(options: dict[str, Any]) -> None:
    text = str(make_study(**options))
    assert ("use of the GPU" in text) == (bool(options.get("gpu")) and "model" not in options)
    assert ("pinned memory changes" in " ".join(text.split())) == (bool(options.get("gpu")) and "model" not in options)
    assert ("Training srcnn915" in text) == ("model" not in options)
    assert ("DataLoader (files)" in text) == options.get("baseline", True)


def test_empty_sections_leave_no_trace() -> None:
    study = dataclasses.replace(
        make_study(), sweep=(), threads=(), oversubscription=(), isolation=(), baseline=None, cold=()
    )
    text = str(study)
    assert "Loading alone" not in text and "Threads" not in text and "Processes" not in text
    assert text.startswith("Nothing was measured.\n\ndataset ") and text.count("\n\n") == 3


def test_the_table_has_the_figures() -> None:
    study = make_study()
    row = next(row for row in study.sweep if row.source == "lmdbloader" and row.crop == 16 and row.batch_size == 8)
    line = next(line for line in str(study).splitlines() if line.split()[:2] == ["16", "8"])
    # The turns differ by 6 %: the third digit was not measured.
    assert line.split()[2] == f"{float(f'{row.samples_per_s:.2g}'):,.0f}"


def test_control_characters_in_a_path_are_escaped() -> None:
    study = make_study()
    facts = dataclasses.replace(study.dataset, path="evil\x1b[2J.lmdb")
    assert "\x1b" not in str(dataclasses.replace(study, dataset=facts))


def test_memory_of_the_gpu_is_the_most_that_was_in_use() -> None:
    from lmdbloader.lab.study import tables

    study = make_study(gpu=True)
    assert "power in W, most memory in MiB" in str(study)
    assert "most memory" in tables.gpu(study).header


def test_files_that_make_other_samples_are_not_compared() -> None:
    study = make_study()
    assert study.baseline is not None
    others = dataclasses.replace(study, baseline=dataclasses.replace(study.baseline, path="photos", num_samples=13))
    first, *rest = conclusions(others)
    assert first.startswith("The files make 13 samples, the dataset ") and summary(others)[0] == first
    for text in (*rest, *summary(others)[1:]):
        assert "over image files" not in text and "From cold storage" not in text
    for text in (" ".join(conclusions(study)), " ".join(summary(study))):
        assert "times as many as torch's DataLoader over image files" in text or "over image files, by batch" in text
        assert "other images" not in text


def widened(study: Study, share: float) -> Study:
    """Return a study whose turns lie between a share of the median and its inverse."""

    def wide(row: Any) -> Any:
        return dataclasses.replace(row, turns=(row.samples_per_s * share, row.samples_per_s, row.samples_per_s / share))

    sweep = tuple(
        dataclasses.replace(wide(row), training=wide(row.training) if row.training else None) for row in study.sweep
    )
    rows = {name: tuple(map(wide, getattr(study, name))) for name in ("threads", "oversubscription", "isolation")}
    cold = tuple(
        dataclasses.replace(
            row,
            cold_turns=(row.cold_samples_per_s * share, row.cold_samples_per_s / share),
            warm_turns=(row.warm_samples_per_s * share, row.warm_samples_per_s / share),
        )
        for row in study.cold
    )
    return dataclasses.replace(study, sweep=sweep, cold=cold, **rows)


@pytest.mark.parametrize("options", EXAMPLES)
def test_no_sentence_states_a_difference_where_turns_overlap(options: dict[str, Any]) -> None:
    # Every turn of every setting is between a hundredth and a hundred times the median.
    text = " ".join(conclusions(widened(make_study(**options), 0.01)))
    text = text.replace("; files cost 31 times as much as the Loader", "")  # processor time has no turns
    assert not re.search(r"\d times|changes the speed|Warning|, up to 4 give|grows as its size", text)
    assert "the Loader and torch's DataLoader over the same dataset do not differ as far as the turns tell" in text
    assert "4 threads and 1 thread do not differ as far as the turns tell" in text
    assert re.search(r"\d times", " ".join(conclusions(make_study(**options))))


def test_settings_without_a_difference_are_counted() -> None:
    study = make_study()
    rows = tuple(
        dataclasses.replace(row, turns=(row.samples_per_s * 0.01, row.samples_per_s * 100))
        if (row.source, row.batch_size, row.crop) == ("folder", 16, 64)
        else row
        for row in study.sweep
    )
    text = " ".join(conclusions(dataclasses.replace(study, sweep=rows)))
    assert "over image files, by batch size and crop; in 1 of 10 settings they do not differ." in text
    assert text.count("settings they do not differ") == 1


def test_the_longest_part_of_the_bars_is_named() -> None:
    study = make_study()
    ours = [row for row in study.sweep if row.source == "lmdbloader"]
    # Four bars: the smallest and the largest batches of two crops. One of them decodes longest, and so does every
    # setting that is not drawn.
    drawn = [row for row in ours if row.batch_size in (8, 128)]
    rows = []
    for row in study.sweep:
        reads = row in drawn[:3]
        stages = {"read": 6e-6 if reads else 1e-6, "decode": 3e-6, "verify": 1e-6}
        rows.append(dataclasses.replace(row, stages=stages) if row.stages else row)
    text = " ".join(conclusions(dataclasses.replace(study, sweep=tuple(rows))))
    assert "The longest part of 3 of 4 bars is read (reading stored bytes): 60 % of a thread's time." in text
    assert "The longest part of 1 of 4 bars is decode (decoding): 60 % of a thread's time." in text


def test_a_cold_start_is_compared_with_files() -> None:
    words = " ".join(conclusions(make_study()))
    assert "Samples read a second with nothing in the page cache: the Loader " in words
    assert "(40 % of its speed from memory), the DataLoader (LMDB) " in words
    assert (
        words.split(" and the DataLoader (files) ")[1].split(" ", 1)[1].startswith("(30 % of its speed from memory).")
    )
    assert "From cold storage the Loader is " in words and "each of which is a look-up and a read of its own" in words
    assert 'With order="quasi_random", which reads blocks of 2 MiB, the cold Loader is 2.2 times as fast.' in words
    assert "From cold storage" not in " ".join(conclusions(make_study(baseline=False)))
