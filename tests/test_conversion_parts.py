"""Conversions in parts: the same samples and files by every engine, interruptions, refusals, and the join."""

from __future__ import annotations

import errno
import io
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tars import png, save_tar

import lmdbloader
from lmdbloader.base import system
from lmdbloader.conversion import ConvertedPart, convert_part, join, part_writers, parts, plan_parts
from lmdbloader.conversion.shares import choose_bounds
from lmdbloader.errors import (
    CorruptError,
    DestinationError,
    DiskError,
    DiskFullError,
    ImageError,
    LockedError,
    NotFoundError,
    OptionError,
    SourceError,
    WorkerError,
)
from lmdbloader.store import Reader, partial_folder, read_manifest
from lmdbloader.store.writing import publish

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def src(tmp_path: Path) -> Path:
    return make_images(tmp_path / "src")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def small_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmdbloader.store.writing.writer.TRANSACTION_NBYTES", 1)
    monkeypatch.setattr("lmdbloader.conversion.pool.TASK_NBYTES", 1)


def save(path: Path, seed: int, side: int = 20) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (side, side, 3), np.uint8)).save(path)


def make_images(folder: Path, count: int = 8) -> Path:
    for i in range(count):
        save(folder / f"{i:02}.png", i)
    return folder


def damage(path: Path) -> bytes:
    """Cut a file in half; return what it was."""
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    return whole


def by_hand(src: Any, out: Path, count: int, **options: Any) -> lmdbloader.conversion.Report:
    """Make a set as an engine on several machines does: the last part first."""
    on_error = options.get("on_error")
    plan = plan_parts(src, out, **{"parts": count, **options})
    for number in reversed(range(plan.num_parts)):
        convert_part(out, number, on_error=on_error)
    return join(out)


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def digest(path: Path) -> str:
    return Reader(path).manifest.content_digest


# --- content ---


def make_classes(folder: Path) -> dict[str, Any]:
    for i in range(6):
        save(folder / "src" / ("cat" if i < 5 else "dog") / f"{i}.png", i)
    return {"src": folder / "src"}


def make_pairs(folder: Path) -> dict[str, Any]:
    for i in range(5):
        large = np.kron(np.random.default_rng(i).integers(0, 256, (8, 8, 3), np.uint8), np.ones((8, 8, 1), np.uint8))
        for name, image in (("HR", Image.fromarray(large)), ("LR", Image.fromarray(large).resize((32, 32), 3))):
            (folder / name).mkdir(parents=True, exist_ok=True)
            image.save(folder / name / f"{i}.png")
    return {"src": None, "hr": folder / "HR", "lr": folder / "LR", "patch_size": 32, "min_pair_psnr": 0}


def make_tars(folder: Path) -> dict[str, Any]:
    """Two tars; the texts of the second one alone are long."""
    for tar in range(2):
        members = []
        for i in range(3):
            text = "a long caption " * 20 if tar else "short"
            members += [(f"{tar}{i}.png", png(10 * tar + i)), (f"{tar}{i}.txt", text.encode()), (f"{tar}{i}.cls", b"1")]
        save_tar(folder / "src" / f"{tar}.tar", *members)
    return {"src": folder / "src"}


def make_masks(folder: Path) -> dict[str, Any]:
    for i in range(4):
        save(folder / "src" / "images" / f"{i}.png", i)
        (folder / "src" / "masks").mkdir(exist_ok=True)
        Image.fromarray(np.full((20, 20), i, np.uint8)).save(folder / "src" / "masks" / f"{i}.png")
    return {"src": folder / "src", "layout": "masks"}


def make_boxes(folder: Path) -> dict[str, Any]:
    make_images(folder / "src", 4)
    images = [{"id": i, "file_name": f"{i:02}.png", "height": 20, "width": 20} for i in range(4)]
    boxes = [
        {"id": number, "image_id": i, "category_id": 3 + i % 2, "bbox": [1, 2, 3 + i, 4]}
        for number, i in enumerate((0, 1, 1, 3))
    ]
    body = {
        "images": images,
        "annotations": boxes,
        "categories": [{"id": 3, "name": "cat"}, {"id": 4, "name": "dog"}],
    }
    (folder / "boxes.json").write_text(json.dumps(body))
    return {"src": folder / "src", "annotations": folder / "boxes.json"}


def make_names(folder: Path) -> dict[str, Any]:
    """Names that are not UTF-8, in a random order, some of them left out."""
    for i in range(6):
        save(folder / "src" / os.fsdecode(b"\xff%d.png" % i), i)
    return {"src": folder / "src", "shuffle": 3, "subset": 5}


def make_codecs(folder: Path) -> dict[str, Any]:
    """Images of which only the first ones can be compressed."""
    for i in range(4):
        path = folder / "src" / f"{i}.png"
        save(path, i)
        if i < 2:
            Image.fromarray(np.zeros((200, 200, 3), np.uint8)).save(path)
    return {"src": folder / "src"}


MAKERS = [make_classes, make_pairs, make_tars, make_masks, make_boxes, make_names, make_codecs]


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_a_set_has_the_samples_and_notes_of_one_file(make: Any, tmp_path: Path) -> None:
    options = make(tmp_path)
    given_src = options.pop("src")
    one, out = tmp_path / "one", tmp_path / "set"
    expected = lmdbloader.convert(given_src, one, workers=1, **options)
    report = by_hand(given_src, out, 2, **options)
    assert digest(out) == digest(one)
    assert all(lmdbloader.verify(out / f"part-0000{k}").is_sound for k in range(2))
    assert (out / "sources.arrow").read_bytes() == (one / "sources.arrow").read_bytes()
    whole, whole_made = read_manifest(one), dict(read_manifest(out).made_by)
    whole_made["options"] = {k: v for k, v in whole_made["options"].items() if k != "parts"}
    assert whole_made == whole.made_by
    assert [f.name for f in read_manifest(out).fields] == [f.name for f in whole.fields]
    assert read_manifest(out).classes == whole.classes
    for name in ("layout", "num_sources", "num_samples", "codecs", "stored_as", "longest_sides", "classes", "notes"):
        assert getattr(report, name) == getattr(expected, name), name
    names = lmdbloader.LMDBDataset(one).table["source"].to_pylist()
    halves = [lmdbloader.LMDBDataset(out / f"part-0000{k}").table["source"].to_pylist() for k in range(2)]
    assert halves[0] + halves[1] == names and all(halves)
    assert names == lmdbloader.LMDBDataset(out).table["source"].to_pylist()


def test_all_engines_write_the_same_bytes(src: Path, tmp_path: Path) -> None:
    whole = damage(src / "03.png")
    options: dict[str, Any] = {"on_error": "skip", "patch_size": 8}
    local = lmdbloader.convert(src, tmp_path / "local", parts=3, workers=2, **options)
    by_hand(src, tmp_path / "hand", 3, **options)
    lmdbloader.convert(src, tmp_path / "alone", parts=3, workers=1, **options)
    expected = files(tmp_path / "local")
    assert files(tmp_path / "hand") == expected == files(tmp_path / "alone")
    assert sorted(expected) == sorted(
        ["index-00003.arrow", "manifest.json", "skipped.tsv", "sources.arrow", "part-00001/skipped.tsv"]
        + [f"part-0000{k}/{name}" for k in range(3) for name in ("data.mdb", "index.arrow", "manifest.json")]
        + [f"part-0000{k}/sources.arrow" for k in range(3)]
    )
    assert [name for name, _ in local.skipped] == ["03.png"]
    assert names(tmp_path) == ["alone", "hand", "local", "src"]
    assert str(tmp_path).encode() not in b"".join(expected.values())
    (src / "03.png").write_bytes(whole)


@pytest.mark.parametrize(("given_parts", "made"), [({"parts": 1}, 1), ({"parts": 4}, 4), ({"part_size": "1KiB"}, 4)])
def test_from_one_part_to_as_many_as_there_are_inputs(
    src: Path, out: Path, tmp_path: Path, given_parts: dict[str, Any], made: int
) -> None:
    for number in range(4, 8):
        (src / f"0{number}.png").unlink()
    lmdbloader.convert(src, tmp_path / "one", workers=1)
    lmdbloader.convert(src, out, workers=1, **given_parts)
    assert len(read_manifest(out).parts) == made
    assert digest(out) == digest(tmp_path / "one")


def test_a_part_size_bounds_the_parts_about(tmp_path: Path) -> None:
    src = tmp_path / "src"
    for i in range(30):
        save(src / f"{i:02}.png", i, side=60)
    lmdbloader.convert(src, tmp_path / "out", workers=1, part_size="100KiB")
    sizes = [part.data_nbytes for part in read_manifest(tmp_path / "out").parts]
    assert len(sizes) >= 3 and max(sizes) < 150 * 1024 and min(sizes) > 60 * 1024


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"parts": 9}, r"parts=9 of 8 inputs: no part may be empty, so expected 1 to 8"),
        ({"parts": 0}, "parts=0"),
        ({"parts": 2, "part_size": "1GiB"}, "expected one of parts and part_size"),
        ({"part_size": "large"}, "part_size='large': expected"),
    ],
)
def test_numbers_of_parts_that_cannot_be(src: Path, out: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        lmdbloader.convert(src, out, **options)
    with pytest.raises(OptionError):
        plan_parts(src, out, **options)
    assert names(out.parent) == ["src"]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=40), st.data())
def test_every_part_has_an_input_and_about_its_share(nbytes: list[int], data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(nbytes)))
    bounds = choose_bounds(np.array(nbytes, np.int64), count)
    assert (bounds[0], bounds[-1], len(bounds)) == (0, len(nbytes), count + 1)
    assert (np.diff(bounds) >= 1).all()
    if count == 2 and 0 < bounds[1] < len(nbytes):
        halves = [sum(nbytes[: bounds[1]]), sum(nbytes[bounds[1] :])]
        assert abs(halves[0] - halves[1]) <= 2 * max(nbytes) + len(nbytes)


# --- inputs that cannot be used ---


def test_a_part_of_which_no_input_can_be_used_leaves_no_gap(src: Path, out: Path, tmp_path: Path) -> None:
    for number in (2, 3):
        damage(src / f"0{number}.png")
    lmdbloader.convert(src, tmp_path / "one", on_error="skip", workers=1)
    report = by_hand(src, out, 8, on_error="skip")
    assert [part.name for part in read_manifest(out).parts] == [f"part-0000{k}" for k in range(6)]
    assert digest(out) == digest(tmp_path / "one")
    assert (out / "skipped.tsv").read_bytes() == (tmp_path / "one" / "skipped.tsv").read_bytes()
    assert [name for name, _ in report.skipped] == ["02.png", "03.png"]
    assert lmdbloader.convert(src, out, parts=8, on_error="skip").was_finished


def test_a_join_that_was_killed_between_two_names_goes_on(
    src: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage(src / "01.png")
    for number in (5, 6, 7):
        (src / f"0{number}.png").unlink()
    plan_parts(src, out, parts=5, on_error="skip")
    for number in range(5):
        convert_part(out, number)
    real, calls = os.rename, []

    def rename(a: Any, b: Any) -> None:
        calls.append(a)
        if len(calls) == 3:
            raise KeyboardInterrupt
        real(a, b)

    monkeypatch.setattr(system, "move_folder", rename)
    with pytest.raises(KeyboardInterrupt):
        join(out)
    monkeypatch.setattr(system, "move_folder", real)
    assert join(out).num_samples == 4
    assert lmdbloader.LMDBDataset(out).table["source"].to_pylist() == [f"0{k}.png" for k in (0, 2, 3, 4)]


def test_the_conversion_resumes_after_a_join_that_was_killed_behind_the_new_names(
    src: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage(src / "00.png")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(parts, "put_in_place", lambda *arguments: (_ for _ in ()).throw(KeyboardInterrupt))
        lmdbloader.convert(src, out, parts=8, on_error="skip", workers=1)
    done = convert_part(out, 3)
    assert (done.was_finished, done.num_samples, convert_part(out, 0).skipped[0][0]) == (True, 1, "00.png")
    assert lmdbloader.convert(src, out, parts=8, on_error="skip", workers=1).num_samples == 7
    assert lmdbloader.LMDBDataset(out).table["source"].to_pylist() == [f"0{k}.png" for k in range(1, 8)]


def test_nothing_but_unusable_inputs_is_refused(src: Path, out: Path) -> None:
    for path in src.iterdir():
        damage(path)
    with pytest.raises(SourceError, match=r"none of the 8 inputs could be used; the first: 00\.png"):
        lmdbloader.convert(src, out, parts=2, on_error="skip", workers=1)


def test_an_input_that_stops_a_part_can_be_left_out_afterwards(src: Path, out: Path, tmp_path: Path) -> None:
    damage(src / "05.png")
    with pytest.raises(ImageError, match=r"05\.png"):
        lmdbloader.convert(src, out, parts=4, workers=1)
    report = lmdbloader.convert(src, out, parts=4, workers=1, on_error="skip")
    assert report.num_samples == 7
    assert read_manifest(out).made_by["options"]["on_error"] == "skip"
    assert lmdbloader.convert(src, out, parts=4, on_error="skip").was_finished


# --- interruptions ---

SMALL = """
from lmdbloader.conversion import pool
import lmdbloader.store.writing.writer as writer
pool.TASK_NBYTES = writer.TRANSACTION_NBYTES = 1
"""
KILLED = """
import os, signal
from lmdbloader.conversion import tasks
real = tasks.read_files
def read_files(source, *arguments):
    if source.name == {name!r} and not os.path.exists({sign!r}):
        open({sign!r}, "x").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return real(source, *arguments)
tasks.read_files = read_files
"""


def test_a_part_that_was_killed_begins_again_and_has_the_same_bytes(
    src: Path, out: Path, tmp_path: Path, small_transactions: None
) -> None:
    by_hand(src, tmp_path / "undisturbed", 2)
    plan_parts(src, out, parts=2)
    code = (
        SMALL
        + KILLED.format(name="06.png", sign=str(tmp_path / "sign"))
        + f"from lmdbloader.conversion import convert_part; convert_part({str(out)!r}, 1)"
    )
    child = subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=120)
    assert child.returncode == -signal.SIGKILL
    partial = out.with_name("out.partial")
    assert names(partial) == ["part-00001.partial", "plan.json", "shares"]
    convert_part(out, 0)
    moved: list[int] = []
    found = convert_part(out, 1, advance=lambda num_sources, nbytes: moved.append(num_sources))
    assert (found.num_samples, found.num_sources, moved) == (4, 4, [1, 1, 1, 1])
    join(out)
    assert files(out) == files(tmp_path / "undisturbed")


def test_a_writer_that_was_killed_is_named_and_the_call_resumed(
    src: Path, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_hand(src, tmp_path / "undisturbed", 2)
    start = (
        "import sys; sys.path[:] = {path!r}; "
        + f"exec({KILLED.format(name='06.png', sign=str(tmp_path / 'sign'))!r}); "
    )
    monkeypatch.setattr(part_writers, "_START", start.replace("\\\\", "\\") + part_writers._START)
    with pytest.raises(
        WorkerError, match=r"writer process \d+ was killed by SIGKILL while making part-00001\..*are kept"
    ):
        lmdbloader.convert(src, out, parts=2, workers=2)
    monkeypatch.undo()
    lines: list[str] = []
    report = lmdbloader.convert(src, out, parts=2, workers=1, log=lines.append)
    assert any("of 2 parts are complete" in line for line in lines)
    assert report.num_samples == 8
    assert files(out) == files(tmp_path / "undisturbed")


def test_an_error_of_the_progress_stops_a_part_and_leaves_nothing_of_it(
    src: Path, out: Path, small_transactions: None
) -> None:
    plan_parts(src, out, parts=1)

    def advance(num_sources: int, nbytes: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert_part(out, 0, advance=advance)
    assert names(out.with_name("out.partial")) == ["plan.json", "shares"]
    assert convert_part(out, 0).num_samples == 8


def test_a_join_that_was_interrupted_is_repeated(src: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan_parts(src, out, parts=2)
    for number in range(2):
        convert_part(out, number)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(parts, "put_in_place", lambda *arguments: (_ for _ in ()).throw(KeyboardInterrupt))
        join(out)
    assert not out.exists()
    assert join(out).num_samples == 8
    assert names(out.parent) == ["out", "src"]
    again = join(out)
    assert (again.was_finished, again.num_samples, again.num_sources, again.layout) == (True, 8, 8, "images")


def test_what_a_process_leaves_that_is_killed_after_the_rename_is_removed(
    src: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan_parts(src, out, parts=2)
    real = publish._remove_leftovers
    with monkeypatch.context() as patch:
        patch.setattr(publish, "_remove_leftovers", lambda path: None)
        for number in range(2):
            convert_part(out, number)
        assert "owner.json" in names(out.with_name("out.partial") / "part-00000")
        patch.setattr(publish, "_remove_leftovers", lambda path: None if path == out else real(path))
        join(out)
    assert {"owner.json", "plan.json", "shares"} <= {*names(out)}
    assert join(out).was_finished
    assert names(out) == ["index-00002.arrow", "manifest.json", "part-00000", "part-00001", "sources.arrow"]
    assert names(out / "part-00000") == ["data.mdb", "index.arrow", "manifest.json", "sources.arrow"]


def test_a_join_takes_over_from_another_host_and_keeps_the_parts(src: Path, out: Path) -> None:
    plan_parts(src, out, parts=2)
    convert_part(out, 0)
    owner = {"pid": 1, "host": "elsewhere", "boot": "another", "started": 1, "machine": "other"}
    (out.with_name("out.partial") / "owner.json").write_text(json.dumps(owner))
    convert_part(out, 1)
    lines: list[str] = []
    assert join(out, take_over=True, log=lines.append).num_samples == 8
    assert "taken over from process 1 on host elsewhere" in lines[0]
    assert names(out.parent) == ["out", "src"]


# --- several processes ---


def test_the_same_part_in_two_processes_is_refused(src: Path, out: Path) -> None:
    plan_parts(src, out, parts=2)
    with (
        partial_folder(out.with_name("out.partial") / "part-00001", resumable=True),
        pytest.raises(LockedError, match=r"part-00001\.partial: process \d+ on host .* is writing there"),
    ):
        convert_part(out, 1)
    assert convert_part(out, 1).num_samples == 4


def test_parts_are_not_discarded_while_one_is_written(src: Path, out: Path) -> None:
    plan_parts(src, out, parts=2)
    convert_part(out, 0)
    with partial_folder(out.with_name("out.partial") / "part-00001", resumable=True):
        with pytest.raises(LockedError, match=r"part-00001\.partial"):
            plan_parts(src, out, parts=2, restart=True)
        with pytest.raises(LockedError, match=r"part-00001\.partial"):
            lmdbloader.convert(src, out, restart=True, workers=1)
    with pytest.raises(SourceError):
        plan_parts(src.parent / "a typing error", out, parts=2, restart=True)
    assert names(out.with_name("out.partial")) == ["part-00000", "plan.json", "shares"]
    assert plan_parts(src, out, parts=3, restart=True).num_parts == 3
    assert names(out.with_name("out.partial")) == ["plan.json", "shares"]


def test_processes_that_start_at_once_make_one_plan(src: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "_LOOK_SECONDS", 0.01)
    other = ExitStack()
    other.enter_context(partial_folder(out, resumable=True))
    lines: list[str] = []

    def log(line: str) -> None:
        lines.append(line)
        other.close()

    assert parts.saved_plan(src, out, parts=2, log=log).num_parts == 2
    assert lines[0].startswith("waiting for the plan: ")
    with monkeypatch.context() as patch:
        patch.setattr(parts, "make_plan", None)  # the inputs are not listed again
        assert parts.saved_plan(src, out, parts=2).num_parts == 2


def test_plans_and_parts_can_be_sent_to_other_processes(src: Path, out: Path) -> None:
    plan = plan_parts(src, out, parts=3)
    assert (plan.num_parts, plan.num_sources, plan.bounds[-1], len(plan.nbytes), plan.is_finished) == (
        3,
        8,
        8,
        3,
        False,
    )
    assert pickle.loads(pickle.dumps(plan)) == plan
    made = pickle.loads(pickle.dumps(convert_part))(out, 2)
    assert isinstance(made, ConvertedPart) and pickle.loads(pickle.dumps(made)) == made


# --- what is there already ---


def test_what_is_finished_is_left_as_it_is(src: Path, out: Path) -> None:
    plan_parts(src, out, parts=2)
    assert not convert_part(out, 0).was_finished
    before = files(out.with_name("out.partial") / "part-00000")
    found = convert_part(out, 0)
    assert found.was_finished and (found.num_sources, found.num_samples) == (4, 4)
    assert files(out.with_name("out.partial") / "part-00000") == before
    convert_part(out, 1)
    join(out)
    before = files(out)
    assert convert_part(out, 1).was_finished
    assert lmdbloader.convert(src, out, parts=2).was_finished
    plan = plan_parts(src, out, parts=2)
    assert (plan.is_finished, plan.num_parts) == (True, 2)
    assert files(out) == before
    for options in ({"parts": 3}, {}, {"part_size": 100}):
        with pytest.raises(DestinationError, match=r"made .* with other options \(.*parts 2, now"):
            lmdbloader.convert(src, out, **options)
    save(src / "99.png", 99)
    with pytest.raises(DestinationError, match="inputs 8, now 9"):
        lmdbloader.convert(src, out, parts=2)


def test_a_part_that_is_made_again_after_the_join_is_complete(src: Path, out: Path) -> None:
    for name in ("02.png", "03.png"):
        damage(src / name)
    by_hand(src, out, 4, on_error="skip")
    before = files(out)
    assert len(read_manifest(out).parts) == 3
    for options in ({}, {"overwrite": True}, {"on_error": "skip", "overwrite": True}):
        plan = parts.saved_plan(src, out, parts=4, **options)
        assert (plan.is_finished, plan.num_parts) == (True, 4)
    with pytest.raises(DestinationError, match="parts 4, now 5"):
        parts.saved_plan(src, out, parts=5, on_error="skip")
    # Which of the parts that are left was this one is not known.
    assert convert_part(out, 3) == ConvertedPart(3, 0, 0, was_finished=True)
    with pytest.raises(OptionError, match=r"number=4: .* has 4 parts, numbered from 0: expected 0 to 3"):
        convert_part(out, 4)
    save(src / "99.png", 99)
    with pytest.raises(DestinationError, match="inputs 8, now 9"):
        parts.saved_plan(src, out, parts=4, on_error="skip")
    assert files(out) == before and names(out.parent) == ["out", "src"]


def test_a_set_is_replaced_once_the_new_one_is_complete(
    src: Path, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lmdbloader.convert(src, out, parts=2, workers=1)
    reader = lmdbloader.LMDBDataset(out)
    save(src / "99.png", 99)
    plan_parts(src, out, parts=3, overwrite=True)
    for number in range(3):
        with monkeypatch.context() as patch:
            patch.setattr(parts, "make_plan", None)  # the inputs are not listed again
            parts.saved_plan(src, out, parts=3, overwrite=True)
        convert_part(out, number)
    assert len(lmdbloader.LMDBDataset(out)) == 8
    assert join(out).num_samples == 9
    assert len(lmdbloader.LMDBDataset(out)) == 9 and reader[7][0].shape == (3, 20, 20)
    assert lmdbloader.convert(src, out, overwrite=True, workers=1).num_samples == 9
    assert names(tmp_path) == ["out", "src"]
    assert not read_manifest(out).parts


def test_one_file_and_a_set_do_not_mix(src: Path, out: Path, small_transactions: None) -> None:
    whole = damage(src / "05.png")
    with pytest.raises(ImageError):
        lmdbloader.convert(src, out, workers=1)
    with pytest.raises(DestinationError, match=r"other options is unfinished there \(parts none, now 2\)"):
        lmdbloader.convert(src, out, parts=2, workers=1)
    (src / "05.png").write_bytes(whole)
    plan_parts(src, out, parts=2, restart=True)
    convert_part(out, 0)
    with pytest.raises(DestinationError, match=r"other options is unfinished there \(parts 2, now none\)"):
        lmdbloader.convert(src, out, workers=1)
    with pytest.raises(DestinationError, match=r"it was begun by lmdbloader\.convert"):
        lmdbloader.write([{"x": 1}], out)
    assert names(out.with_name("out.partial")) == ["part-00000", "plan.json", "shares"]


# --- refusals ---


def test_parts_that_are_missing_are_named(src: Path, out: Path) -> None:
    plan_parts(src, out, parts=4)
    for number in (0, 2):
        convert_part(out, number)
    with pytest.raises(DestinationError, match=r"2 parts are not complete: number 1, 3 of 4.* --part 1/4"):
        join(out)
    convert_part(out, 3)
    with pytest.raises(DestinationError, match=r"1 part is not complete: number 1 of 4"):
        join(out)
    shutil.rmtree(out.with_name("out.partial") / "part-00003")
    with pytest.raises(DestinationError, match=r"2 parts are not complete"):
        join(out)
    with pytest.raises(OptionError, match=r"number=4: .* has 4 parts, numbered from 0: expected 0 to 3"):
        convert_part(out, 4)
    with pytest.raises(NotFoundError, match=r"no conversion in parts is planned there"):
        convert_part(out.with_name("other"), 0)
    with pytest.raises(OptionError, match=r"on_error='never': expected stop or skip"):
        convert_part(out, 1, on_error="never")
    with pytest.raises(NotFoundError, match="no conversion in parts is planned there"):
        join(out.with_name("other"))
    assert names(out.parent) == ["out.partial", "src"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"parts": 3}, "parts 2, now 3"),
        ({"parts": 2, "codec": "raw"}, "codec none, now raw"),
        ({"parts": 2, "shuffle": 1}, "shuffle none, now 1"),
        ({"parts": 2, "subset": 3}, "subset none, now 3"),
        ({"part_size": 5}, "part_size none, now 5; parts 2, now none"),
    ],
)
def test_other_options_than_those_of_the_plan_are_refused(
    src: Path, out: Path, options: dict[str, Any], message: str
) -> None:
    plan_parts(src, out, parts=2)
    for plan in (plan_parts, parts.saved_plan):
        with pytest.raises(DestinationError, match=r"other options is unfinished there \(") as raised:
            plan(src, out, **options)
        assert all(part in str(raised.value) for part in message.split("; "))
    other = make_images(src.parent / "other")
    with pytest.raises(DestinationError, match=r"src .*src, now .*other"):
        parts.saved_plan(other, out, parts=2)
    with pytest.raises(OptionError, match="restart=True discards all parts"):
        parts.saved_plan(src, out, parts=2, restart=True)


def test_another_release_does_not_go_on(src: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan_parts(src, out, parts=2)
    monkeypatch.setattr(parts, "__version__", "9.9")
    for call in (lambda: convert_part(out, 0), lambda: join(out), lambda: parts.saved_plan(src, out, parts=2)):
        with pytest.raises(DestinationError, match=r"planned by lmdbloader .*, and this is 9\.9"):
            call()


def test_inputs_that_change_between_parts_are_refused(src: Path, out: Path) -> None:
    plan_parts(src, out, parts=2)
    convert_part(out, 0)
    whole = damage(src / "06.png")
    with pytest.raises(DestinationError, match=r"inputs have changed since the parts were planned: 06\.png\."):
        convert_part(out, 1)
    (src / "06.png").write_bytes(whole)
    save(src / "08.png", 8)
    with pytest.raises(DestinationError, match=r"the inputs have changed since the parts were planned: 8 then, 9 now"):
        lmdbloader.convert(src, out, parts=2, workers=1)
    (src / "08.png").unlink()
    save(src / "01.png", 50)  # of a part that is complete
    with pytest.raises(DestinationError, match=r"part-00000: inputs of this part have changed since it was converted"):
        convert_part(out, 0)


def test_inputs_that_are_gone_are_refused_and_new_ones_are_not_converted(src: Path, out: Path) -> None:
    plan_parts(src, out, parts=2, on_error="skip")
    save(src / "06b.png", 60)
    os.rename(src / "05.png", src.parent / "05.png")
    os.rename(src / "06.png", src.parent / "06.png")
    with pytest.raises(
        DestinationError, match=r"since the parts were planned: 05\.png, 06\.png are gone\. Put them back"
    ):
        convert_part(out, 1)
    os.rename(src.parent / "05.png", src / "05.png")
    damage(src / "05.png")
    with pytest.raises(DestinationError, match=r"planned: 05\.png; 06\.png is gone\. Put them back"):
        convert_part(out, 1)
    save(src / "05.png", 5)
    os.rename(src.parent / "06.png", src / "06.png")
    for number in range(2):
        convert_part(out, number)
    assert join(out).num_samples == 8
    assert "06b.png" not in lmdbloader.LMDBDataset(out).table["source"].to_pylist()


def test_a_tar_that_changes_between_parts_is_refused(out: Path, tmp_path: Path) -> None:
    options = make_tars(tmp_path)
    plan_parts(options["src"], out, parts=2)
    convert_part(out, 0)
    save_tar(tmp_path / "src" / "1.tar", *[(f"1{i}.png", png(90 + i)) for i in range(3)])
    with pytest.raises(DestinationError, match=r"inputs have changed since the parts were planned: .*1\.tar"):
        convert_part(out, 1)


def test_a_damaged_plan_and_a_damaged_part_have_a_way_out(src: Path, out: Path) -> None:
    plan_parts(src, out, parts=2)
    convert_part(out, 0)
    partial = out.with_name("out.partial")
    with open(partial / "part-00000" / "data.mdb", "r+b") as file:
        file.truncate(100)
    with pytest.raises(DestinationError, match=r"is complete, but damaged\. Remove this folder"):
        convert_part(out, 0)
    shutil.rmtree(partial / "part-00000")
    assert convert_part(out, 0).num_samples == 4
    (partial / "shares" / "sources-00001.npz").write_bytes(b"PK\x03\x04")
    with pytest.raises(DestinationError, match=r"sources-00001\.npz: does not decode .*restart=True"):
        convert_part(out, 1)
    (partial / "plan.json").write_text("{}")
    with pytest.raises(DestinationError, match=r"plan\.json: does not decode"):
        join(out)


def test_notes_of_a_part_that_are_damaged_cost_that_part_only(src: Path, out: Path) -> None:
    plan_parts(src, out, parts=2)
    for number in range(2):
        convert_part(out, number)
    partial = out.with_name("out.partial")
    notes = partial / "shares" / "notes-00001.npz"
    notes.write_bytes(b"PK\x03\x04")
    advice = (
        rf"notes-00001\.npz: does not decode .*Remove it and the folder {partial}/part-00001, and convert part 1 again"
    )
    with pytest.raises(DestinationError, match=advice):
        join(out)
    notes.unlink()
    with pytest.raises(DestinationError, match=r"part-00001: .* notes for the join are lost\. Remove this folder"):
        convert_part(out, 1)
    shutil.rmtree(partial / "part-00001")
    convert_part(out, 1)
    assert join(out).num_samples == 8


def test_a_disk_that_cannot_read_a_part_is_not_a_part_that_is_missing(
    src: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan_parts(src, out, parts=2)
    for number in range(2):
        convert_part(out, number)

    class Failing(io.FileIO):
        """A file on a disk that fails."""

        def read(self, *size: Any) -> Any:
            raise OSError(errno.EIO, "Input/output error")

    real = open
    for name, error in (("notes-00001.npz", DiskError), ("manifest.json", CorruptError)):
        with monkeypatch.context() as patch, pytest.raises(error, match=rf"{name}: the disk (failed|cannot read it)"):

            def opened(path: Any, *rest: Any, name: str = name, **more: Any) -> Any:
                is_there = isinstance(path, int | str | Path) and str(_path_of(path)).endswith(name)
                return Failing(path) if is_there else real(path, *rest, **more)

            patch.setattr("builtins.open", opened)
            join(out)
    assert join(out).num_samples == 8


def _path_of(file: Any) -> Any:
    return os.readlink(f"/proc/self/fd/{file}") if isinstance(file, int) else file


def test_files_that_are_in_the_way_are_never_replaced(src: Path, out: Path) -> None:
    plan_parts(src, out, parts=2)
    for number in range(2):
        convert_part(out, number)
    (out.with_name("out.partial") / "mine.txt").write_text("mine")
    with pytest.raises(DestinationError, match=r"did not write 'mine\.txt'"):
        join(out)
    (out.with_name("out.partial") / "mine.txt").unlink()
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    with pytest.raises(DestinationError, match="folder with other things in it"):
        join(out)
    with pytest.raises(DestinationError, match="folder with other things in it"):
        lmdbloader.convert(src, out, parts=2)


# --- sources that only this process sees, and places ---


@pytest.fixture
def memory() -> Iterator[Any]:
    fsspec = pytest.importorskip("fsspec")
    filesystem = fsspec.filesystem("memory")
    yield filesystem
    filesystem.store.clear()


def test_inputs_in_memory_are_converted_by_this_process(memory: Any, out: Path) -> None:
    for i in range(4):
        memory.pipe(f"/photos/{i}.png", png(i))
    assert plan_parts("memory://photos", out, parts=2).in_process
    report = lmdbloader.convert("memory://photos", out, parts=2, workers=4)
    assert report.num_samples == 4


def test_parts_may_be_made_in_other_folders(src: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(src.parent)
    plan_parts("src", "out", parts=2)
    monkeypatch.chdir(src)
    for number in range(2):
        convert_part("../out", number)
    assert parts.saved_plan(".", "../out", parts=2).num_parts == 2
    assert join(out).num_samples == 8


def test_a_part_may_have_workers_and_shows_no_bar_without_a_terminal(
    src: Path, out: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmdbloader.conversion.pool.TASK_NBYTES", 1)
    plan_parts(src, out, parts=1)
    began = time.monotonic()
    found = convert_part(out, 0, workers=2, progress=True)
    assert 0 < found.seconds <= time.monotonic() - began
    assert capsys.readouterr() == ("", "")


def test_the_progress_of_a_resumed_set_counts_parts_without_samples(
    src: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for name in ("02.png", "03.png"):
        damage(src / name)
    plan_parts(src, out, parts=4, on_error="skip")
    for number in (0, 1):
        convert_part(out, number, on_error="skip")
    assert not (out.with_name("out.partial") / "part-00001").exists()
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert lmdbloader.convert(src, out, parts=4, on_error="skip", workers=1, progress=True).num_samples == 6
    assert "converting: 4 of 8 images" in terminal.getvalue()


def test_a_resumed_set_needs_neither_what_is_complete_nor_what_begins_again(
    tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first part has few bytes of the inputs, and half of those of the dataset."""
    src = tmp_path / "mixed"
    for i in range(12):
        save(src / f"b{i:02}.png", i, side=64)
        Image.fromarray(np.full((64, 64, 3), i, np.uint8)).save(src / f"a{i:02}.jpg")
    options: dict[str, Any] = {"parts": 4, "workers": 1, "patch_size": 64, "codec": "raw"}
    whole = lmdbloader.convert(src, tmp_path / "whole", **options)
    plan_parts(src, out, **{**options, "workers": None})
    convert_part(out, 0)
    partial, half = out.with_name("out.partial"), (tmp_path / "whole" / "part-00001" / "data.mdb").read_bytes()
    left = whole.sizes["data_nbytes"] - (partial / "part-00000" / "data.mdb").stat().st_size
    usage = shutil.disk_usage(src)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=left - len(half)))
    with pytest.raises(DiskFullError, match=r"at least .* are missing"):
        lmdbloader.convert(src, out, **options)
    (partial / "part-00001.partial").mkdir()
    (partial / "part-00001.partial" / "data.mdb").write_bytes(half)  # as a process that was killed leaves it
    assert lmdbloader.convert(src, out, **options).sizes == whole.sizes


@pytest.mark.parametrize("options", [{"parts": 3}, {}])
def test_a_disk_that_is_too_small_is_refused_before_anything_is_written(
    src: Path, out: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    usage = shutil.disk_usage(src)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=2000))
        with pytest.raises(
            DiskFullError, match=r"still to be written, estimated .* 1\.95 KiB are free: at least .* missing"
        ):
            lmdbloader.convert(src, out, workers=1, **options)
    partial = out.with_name("out.partial")
    assert not list(partial.glob("part-*")) and not (partial / "data.mdb").exists()
    lmdbloader.convert(src, out, workers=1, **options)
    assert len(Reader(out)) == 8
