"""The conclusion says what holds for this dataset and model, and its last words are lines that run."""

from __future__ import annotations

import ast
import dataclasses
import shlex
from typing import Any

import pytest
from study_example import make_study

from lmdbloader.cli import main
from lmdbloader.lab.study.conclusion import Step, headline, next_steps, question, scope
from lmdbloader.lab.study.results import Study


def with_turns(study: Study, source: str, *, loads: tuple[float, ...] = (), trains: tuple[float, ...] = ()) -> Study:
    """Return a study in which a loader has these turns in every setting."""

    def changed(row: Any, turns: tuple[float, ...]) -> Any:
        return dataclasses.replace(row, samples_per_s=sorted(turns)[len(turns) // 2], turns=turns)

    rows = []
    for row in study.sweep:
        if row.source == source and loads:
            row = changed(row, loads)
        if row.source == source and trains and row.training:
            row = dataclasses.replace(row, training=changed(row.training, trains))
        rows.append(row)
    return dataclasses.replace(study, sweep=tuple(rows))


def waiting(study: Study, seconds: float) -> Study:
    """Return a study in which the Loader's model waits so long for each batch."""
    rows = [
        dataclasses.replace(
            row,
            training=dataclasses.replace(row.training, phases=dataclasses.replace(row.training.phases, data=seconds)),
        )
        if row.source == "lmdbloader" and row.training
        else row
        for row in study.sweep
    ]
    return dataclasses.replace(study, sweep=tuple(rows))


LOADS = {"lmdbloader": (4300.0, 4400.0, 4500.0), "folder": (99.0, 100.0, 101.0)}


def compared(trains: tuple[float, ...], **options: Any) -> Study:
    study = make_study(**options)
    for source, loads in LOADS.items():
        study = with_turns(study, source, loads=loads, trains=(99.0, 100.0, 101.0) if source == "folder" else trains)
    return study


def test_the_conclusion_is_for_this_user() -> None:
    study = compared((109.0, 110.0, 111.0))
    expected = "Loading is 44 times as fast as from image files; training 1.1 times: the model is your limit"
    assert headline(study) == expected
    assert " ".join(str(study).split()).startswith(f"{expected}. This holds in batches of 8 (64 x 64 crops), ")
    assert headline(waiting(study, 10.0)).endswith(
        "; training 1.1 times: the model waits for data up to 99.9 % of the time"
    )
    slow = with_turns(study, "lmdbloader", loads=(49.0, 50.0, 51.0))
    assert headline(slow).startswith("Loading is 0.5 times as fast as from image files;")


def test_overlapping_turns_are_no_difference() -> None:
    study = compared((90.0, 110.0, 111.0))
    assert headline(study).endswith("from image files; training does not differ: the model is your limit")
    study = with_turns(study, "folder", loads=(100.0, 110.0, 4301.0))
    assert headline(study).startswith("Loading is not measurably faster or slower than from image files; ")
    # One turn has no range.
    study = with_turns(with_turns(study, "folder", loads=(4000.0,)), "lmdbloader", loads=(4600.0,))
    assert headline(study).startswith("Loading is not measurably faster")
    assert "each setting had one turn, so differences below about 20 % are not called differences." in scope(study)


def test_it_compares_with_what_there_is() -> None:
    assert headline(make_study(baseline=False)).startswith("Loading is 8.5 times as fast as with torch's DataLoader; ")
    assert headline(make_study(model=None)) == "Loading is 32 times as fast as from image files"
    study = make_study()
    assert study.baseline is not None
    others = dataclasses.replace(study, baseline=dataclasses.replace(study.baseline, path="photos", num_samples=13))
    assert "image files" not in headline(others)
    only = dataclasses.replace(study, sweep=tuple(row for row in study.sweep if row.source == "lmdbloader"))
    assert headline(only) == "The model is your limit" and scope(only) == ""
    assert (
        headline(dataclasses.replace(study, sweep=()))
        == "4 threads load 3.6 times as much as 1 thread, on 4 cores (batches of 32)"
    )


def steps_of(study: Study) -> list[tuple[str, str]]:
    return [(step.why, step.line) for step in next_steps(study)]


def test_it_ends_with_what_to_do() -> None:
    study = compared((109.0, 110.0, 111.0))
    assert steps_of(study) == [
        (
            "Loading is not the limit; use the Loader in your training loop:",
            "lmdbloader.Loader('div2k_x2.lmdb', batch_size=8)",
        )
    ]
    assert str(study).endswith("training loop:\n    lmdbloader.Loader('div2k_x2.lmdb', batch_size=8)")
    (tuned,) = steps_of(waiting(study, 10.0))
    assert tuned == (
        "Find the number of threads with which the model does not wait:",
        "lmdbloader tune div2k_x2.lmdb --batch-size 8 --step-seconds 0.0068 --crop 16",
    )
    overlapping = steps_of(waiting(compared((90.0, 110.0, 111.0)), 10.0))
    assert overlapping[1][1] == "lmdbloader bench div2k_x2.lmdb --baseline auto --seconds 2 --repeats 5"
    assert [why for why, _ in steps_of(make_study(baseline=False, model=None))] == [
        "Use the Loader in your training loop:", "Compare with image files:", "See whether a model is fed:",
    ]  # fmt: skip


def test_a_dataset_without_images_has_no_files_to_compare_with() -> None:
    study = make_study(baseline=False, model=None)
    fields = tuple(dataclasses.replace(field, kind="array") for field in study.dataset.fields)
    signals = dataclasses.replace(study, dataset=dataclasses.replace(study.dataset, fields=fields))
    assert [why for why, _ in steps_of(signals)] == ["Use the Loader in your training loop:"]


def test_given_options_are_replaced() -> None:
    study = waiting(compared((90.0, 110.0, 111.0)), 10.0)
    command = "lmdbloader bench 'my set.lmdb' --seconds 0.1 --batch-sizes 4 8 --repeats 3"
    longer = dataclasses.replace(study, settings=dataclasses.replace(study.settings, command=command))
    assert next_steps(longer)[1].line == "lmdbloader bench 'my set.lmdb' --batch-sizes 4 8 --seconds 2 --repeats 5"


@pytest.mark.parametrize("options", [{}, {"gpu": True}, {"baseline": False}, {"model": None}])
def test_every_line_is_accepted(options: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    study = make_study(**options)
    path = "no such/it's.lmdb"
    command = shlex.join(["lmdbloader", "bench", path])
    for changed in (study, waiting(study, 10.0), dataclasses.replace(study, sweep=())):
        named = dataclasses.replace(
            changed,
            dataset=dataclasses.replace(changed.dataset, path=path),
            settings=dataclasses.replace(changed.settings, command=command),
        )
        found: tuple[Step, ...] = next_steps(named)
        assert 1 <= len(found) <= 3
        for step in found:
            assert step.why.endswith(":")
            program, *words = shlex.split(step.line) if step.line.startswith("lmdbloader ") else [""]
            if program:
                # It fails at the dataset, which is not there, not at an option.
                assert main(words) == 1 and path in capsys.readouterr().err
            else:
                call = ast.parse(step.line, mode="eval").body
                assert isinstance(call, ast.Call) and ast.literal_eval(call.args[0]) == path


def test_the_title_asks_of_a_gpu_only_where_there_was_one() -> None:
    questions = [question(s) for s in (make_study(gpu=True), make_study(), make_study(model=None))]
    assert questions == ["is the GPU fed?", "is the model fed?", "how fast are batches loaded?"]
