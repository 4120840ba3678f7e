"""Conversions in parts: equal files by every engine, after kills and changes, and by several processes at once."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damage import flip
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tars import png, save_tar

import lmdbloader
from lmdbloader import cli
from lmdbloader.conversion import ConvertedPart, convert_part, join, part_writers, parts, plan_parts
from lmdbloader.conversion.saved_plan import choose_bounds
from lmdbloader.errors import (
    CorruptError,
    DestinationError,
    DiskFullError,
    ImageError,
    NotFoundError,
    OptionError,
    SourceError,
    WorkerError,
)
from lmdbloader.store import Reader, read_manifest

TESTS = Path(__file__).resolve().parent


@pytest.fixture
def src(tmp_path: Path) -> Path:
    return make_images(tmp_path / "src")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


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
    """Make a dataset as an engine on several machines does: the last part first."""
    on_error = options.get("on_error")
    plan = plan_parts(src, out, **{"parts": count, **options})
    for number in reversed(range(plan.num_parts)):
        convert_part(out, number, on_error=on_error)
    return join(out)


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def parts_in(out: Path) -> list[str]:
    """Return the folders of parts in OUT.partial, complete or not."""
    return [name for name in names(out.with_name("out.partial")) if name.startswith("part-")]


def sources(out: Path) -> list[str]:
    found: list[str] = lmdbloader.LMDBDataset(out).table["source"].to_pylist()
    return found


def run(code: str, *words: Any) -> subprocess.CompletedProcess[str]:
    """Run a program in another process."""
    path = os.pathsep.join([str(TESTS), *(p for p in sys.path if p)])
    command = [sys.executable, "-c", code, *map(str, words)]
    return subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=300)


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
def test_the_number_of_parts_changes_neither_samples_nor_notes(make: Any, tmp_path: Path) -> None:
    options = make(tmp_path)
    given_src = options.pop("src")
    one, out = tmp_path / "one", tmp_path / "several"
    expected = lmdbloader.convert(given_src, one, workers=1, **options)
    report = by_hand(given_src, out, 2, **options)
    assert lmdbloader.verify(out).is_sound
    whole, several = read_manifest(one), read_manifest(out)
    assert (len(whole.parts), len(several.parts)) == (1, 2)
    assert several.content_digest == whole.content_digest
    assert (out / "sources.json").read_bytes() == (one / "sources.json").read_bytes()
    made = dict(several.made_by)
    made["options"] = {k: v for k, v in made["options"].items() if k != "parts"}
    assert made == whole.made_by
    assert ([f.name for f in several.fields], several.classes) == ([f.name for f in whole.fields], whole.classes)
    for name in ("layout", "num_sources", "num_samples", "codecs", "stored_as", "classes", "notes"):
        assert getattr(report, name) == getattr(expected, name), name
    assert sources(out) == sources(one)


def test_equal_inputs_give_equal_files_whoever_makes_them(src: Path, tmp_path: Path) -> None:
    damage(src / "03.png")
    options: dict[str, Any] = {"on_error": "skip", "patch_size": 8}
    local = lmdbloader.convert(src, tmp_path / "two", parts=3, workers=2, **options)
    lmdbloader.convert(src, tmp_path / "one", parts=3, workers=1, **options)
    by_hand(src, tmp_path / "hand", 3, **options)
    elsewhere = tmp_path / "elsewhere"
    plan_parts(src, elsewhere, parts=3, **options)
    code = "import sys; from lmdbloader.conversion import convert_part; [convert_part(sys.argv[1], n) for n in (1, 0)]"
    assert run(code, elsewhere).returncode == 0
    words = ["convert", str(src), str(elsewhere), "--part", "2/3", "--patch-size", "8", "--on-error", "skip"]
    assert cli.main(words) == 0 and cli.main(["join", str(elsewhere)]) == 0
    expected = files(tmp_path / "two")
    assert all(files(tmp_path / name) == expected for name in ("one", "hand", "elsewhere"))
    data = ["data-00001.mdb", "data-00002.mdb", "data.mdb"]
    assert sorted(expected) == [*data, "index.arrow", "manifest.json", "skipped.tsv", "sources.json"]
    assert [name for name, _ in local.skipped] == ["03.png"]
    assert names(tmp_path) == ["elsewhere", "hand", "one", "src", "two"]
    assert str(tmp_path).encode() not in b"".join(expected.values())


@pytest.mark.parametrize(("options", "made"), [({"parts": 1}, 1), ({"parts": 8}, 8), ({"part_size": "1KiB"}, 8)])
def test_from_one_part_to_as_many_as_there_are_inputs(src: Path, out: Path, options: dict[str, Any], made: int) -> None:
    lmdbloader.convert(src, out, workers=1, **options)
    assert len(read_manifest(out).parts) == made
    assert sources(out) == names(src)


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
    data = [f"data-0000{k}.mdb" for k in range(1, 6)]
    assert names(out) == [*data, "data.mdb", "index.arrow", "manifest.json", "skipped.tsv", "sources.json"]
    assert read_manifest(out).content_digest == read_manifest(tmp_path / "one").content_digest
    assert (out / "skipped.tsv").read_bytes() == (tmp_path / "one" / "skipped.tsv").read_bytes()
    assert [name for name, _ in report.skipped] == ["02.png", "03.png"]
    assert lmdbloader.convert(src, out, parts=8, on_error="skip").was_finished
    assert lmdbloader.verify(out).is_sound
    plan = parts.saved_plan(src, out, parts=8, on_error="skip")
    assert (plan.is_finished, plan.num_parts) == (True, 8)
    # Which of the parts that are left was this one is not known.
    assert convert_part(out, 7) == ConvertedPart(7, 0, 0, was_finished=True)


def test_an_input_that_stops_a_part_can_be_left_out_afterwards(src: Path, out: Path) -> None:
    damage(src / "05.png")
    with pytest.raises(ImageError, match=r"05\.png"):
        lmdbloader.convert(src, out, parts=4, workers=1)
    assert lmdbloader.convert(src, out, parts=4, workers=1, on_error="skip").num_samples == 7
    assert read_manifest(out).made_by["options"]["on_error"] == "skip"
    assert lmdbloader.convert(src, out, parts=4, on_error="skip").was_finished


def test_palettes_that_differ_between_parts_are_refused(out: Path, tmp_path: Path) -> None:
    def save_mask(number: int, shift: int) -> None:
        image = Image.fromarray(np.full((20, 20), 1 + number % 2, np.uint8), "P")
        image.putpalette([(shift + 11 * i) % 256 for i in range(768)])
        image.save(tmp_path / "src" / "masks" / f"{number}.png")

    options = make_masks(tmp_path)
    for number in range(4):
        save_mask(number, 0)
    plan_parts(options["src"], out, layout="masks", parts=2)
    convert_part(out, 0)
    before = (tmp_path / "src" / "masks" / "3.png").stat().st_size
    for number in (2, 3):  # not seen when the inputs were planned
        save_mask(number, 5)
    assert (tmp_path / "src" / "masks" / "3.png").stat().st_size == before
    convert_part(out, 1)
    with pytest.raises(SourceError, match="the palettes of the masks differ"):
        join(out)
    assert not out.exists()


# --- kills, and several processes ---

# Forks a process for each of some conversions, each of which is killed at one of its changes of a file.
KILLS = """
import os, signal, sys
from pathlib import Path
import numpy as np
import lmdbloader
from lmdbloader.conversion import pool
from test_conversion_parts import count_steps, files, forked

src, out, number = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
pool.TASK_NBYTES = 1
lmdbloader.convert(src, out, parts=3, workers=1, patch_size=8)
expected = files(out)
os.rename(out, out.with_name("whole"))
work = lambda: lmdbloader.convert(src, out, parts=3, workers=1, patch_size=8)
total = count_steps(work)
assert total > 60, total
for step in sorted({*np.random.default_rng(0).integers(0, total, number).tolist(), total - 2}):
    for name in (out, out.with_name("out.partial")):
        os.system(f"rm -rf '{name}'")
    status = forked(lambda: count_steps(work, kill_at=step))
    assert os.WIFSIGNALED(status), (step, status)
    assert forked(work) == 0, step
    assert files(out) == expected, step
    assert not [name for name in os.listdir(out.parent) if name.startswith("out.")], os.listdir(out.parent)
print("done", total)
"""
AT_ONCE = """
import os, sys
from pathlib import Path
import lmdbloader
from lmdbloader.conversion import pool
from test_conversion_parts import files, start

src, out = Path(sys.argv[1]), Path(sys.argv[2])
pool.TASK_NBYTES = 1
lmdbloader.convert(src, out, parts=3, workers=1, patch_size=8)
expected = files(out)
for turn, count in enumerate([2, 4] * int(sys.argv[3])):
    os.system(f"rm -rf '{out}'")
    overwrite = turn % 4 == 3
    if overwrite:
        lmdbloader.write([{"x": 1}], out)
    options = {"parts": 3, "patch_size": 8, "overwrite": overwrite}
    ids = [start(lambda: lmdbloader.convert(src, out, workers=1, **options)) for _ in range(count)]
    statuses = [os.waitpid(number, 0)[1] for number in ids]
    assert statuses == [0] * count, (turn, count, statuses)
    assert files(out) == expected, (turn, count, sorted(files(out)))
    left = [name for name in os.listdir(out.parent) if name.startswith("out.")]
    assert overwrite or not left, left
print("done")
"""


def start(work: Any) -> int:
    """Do something in a fork of this process, whose number is returned."""
    number = os.fork()
    if number:
        return number
    try:
        work()
        os._exit(0)
    except BaseException as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        os._exit(1)


def forked(work: Any) -> int:
    """Do something in a fork of this process, and return how it ended."""
    return os.waitpid(start(work), 0)[1]


def count_steps(work: Any, kill_at: int = -1) -> int:
    """Count the changes of files that a call makes; at one of them, the process is killed."""
    count = 0

    def step(event: str, args: tuple[Any, ...]) -> None:
        nonlocal count
        is_open = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if event in ("os.link", "os.mkdir", "os.rename", "os.remove", "os.rmdir") or is_open:
            if count == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            count += 1

    sys.addaudithook(step)
    work()
    return count


def test_the_same_call_continues_after_a_kill_at_any_moment(src: Path, out: Path) -> None:
    done = run(KILLS, src, out, 8)
    assert done.stdout.startswith("done"), done.stderr


def test_several_conversions_at_once_make_one_dataset(src: Path, out: Path) -> None:
    done = run(AT_ONCE, src, out, 2)
    assert done.stdout == "done\n", done.stderr


def test_a_dataset_that_another_process_puts_in_place_meanwhile_is_taken(
    src: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lmdbloader.write([{"x": 1}], out)
    save_plan = parts.save

    def and_convert(*args: Any) -> None:
        save_plan(*args)
        with monkeypatch.context() as patch:
            patch.setattr(parts, "save", save_plan)
            assert not lmdbloader.convert(src, out, workers=1, overwrite=True).was_finished

    monkeypatch.setattr(parts, "save", and_convert)
    report = lmdbloader.convert(src, out, workers=1, overwrite=True)
    assert report.was_finished and report.num_samples == 8
    assert sources(out) == names(src) and names(out.parent) == ["out", "src"]


def test_a_writer_that_was_killed_is_named_and_the_call_resumed(
    src: Path, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lmdbloader.convert(src, tmp_path / "undisturbed", parts=2, workers=1)
    killed = (
        "from lmdbloader.conversion import tasks\nimport os, signal\nreal = tasks.read_files\n"
        "def read_files(source, *rest):\n"
        "    if source.name == '06.png':\n        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return real(source, *rest)\ntasks.read_files = read_files"
    )
    with monkeypatch.context() as patch, pytest.raises(WorkerError, match=r"was killed by SIGKILL while making part 1"):
        patch.setattr(part_writers, "_START", f"exec({killed!r}); {part_writers._START}")
        lmdbloader.convert(src, out, parts=2, workers=2)
    lines: list[str] = []
    assert lmdbloader.convert(src, out, parts=2, workers=1, log=lines.append).num_samples == 8
    assert files(out) == files(tmp_path / "undisturbed")


# --- what is there already ---


def test_what_is_finished_is_left_as_it_is(src: Path, out: Path) -> None:
    plan_parts(src, out, parts=2)
    assert not convert_part(out, 0).was_finished
    before = files(out.with_name("out.partial"))
    found = convert_part(out, 0)
    assert found.was_finished and (found.num_sources, found.num_samples) == (4, 4)
    assert files(out.with_name("out.partial")) == before
    convert_part(out, 1)
    join(out)
    before = files(out)
    again = join(out)
    assert (again.was_finished, again.num_samples, again.num_sources, again.layout) == (True, 8, 8, "images")
    assert convert_part(out, 1).was_finished
    assert lmdbloader.convert(src, out, parts=2).was_finished
    plan = plan_parts(src, out, parts=2)
    assert (plan.is_finished, plan.num_parts) == (True, 2)
    with pytest.raises(OptionError, match=r"number=2: .* has 2 parts, numbered from 0: expected 0 to 1"):
        convert_part(out, 2)
    for options in ({"parts": 3}, {"codec": "raw"}):
        with pytest.raises(DestinationError, match=r"made .* with other options"):
            lmdbloader.convert(src, out, **options)
    save(src / "99.png", 99)
    with pytest.raises(DestinationError, match=r"made .* with other options"):
        lmdbloader.convert(src, out, parts=2)
    assert files(out) == before and names(out.parent) == ["out", "src"]


def test_a_dataset_is_replaced_once_the_new_one_is_complete(
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
    assert names(tmp_path) == ["out", "src"] and len(read_manifest(out).parts) == 1


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
    for call in (lambda: convert_part(out.with_name("other"), 0), lambda: join(out.with_name("other"))):
        with pytest.raises(NotFoundError):
            call()
    assert names(out.parent) == ["out.partial", "src"]


@pytest.mark.parametrize("options", [{"parts": 3}, {"parts": 2, "codec": "raw", "shuffle": 1}])
def test_other_options_than_those_of_the_plan_are_refused(src: Path, out: Path, options: dict[str, Any]) -> None:
    plan_parts(src, out, parts=2)
    convert_part(out, 0)
    for plan in (plan_parts, parts.saved_plan, lmdbloader.convert):
        with pytest.raises(DestinationError, match="is unfinished there") as raised:
            plan(src, out, **options)
        assert all(name in str(raised.value) for name in options if name != "parts" or len(options) == 1)
    other = make_images(src.parent / "other")
    with pytest.raises(DestinationError, match=r"src .*src, now .*other"):
        parts.saved_plan(other, out, parts=2)
    with pytest.raises(OptionError, match="restart=True discards all parts"):
        parts.saved_plan(src, out, parts=2, restart=True)
    for call in (lambda: lmdbloader.write([{"x": 1}], out), lambda: lmdbloader.write(iter([{"x": 1}]), out)):
        with pytest.raises(DestinationError, match=r"unfinished|interrupted"):
            call()
    assert parts_in(out) == ["part-00000"]
    assert plan_parts(src, out, parts=3, restart=True).num_parts == 3
    assert parts_in(out) == []


def test_a_part_shows_how_far_it_is(src: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan_parts(src, out, parts=2)
    done: list[float] = []
    monkeypatch.setattr(parts.ProgressLine, "update", lambda line, number=1: done.append(number))
    advanced: list[int] = []
    convert_part(out, 1, progress=True, advance=lambda num_sources, nbytes: advanced.append(num_sources))
    assert sum(done) == sum(advanced) == 4


def test_another_release_does_not_go_on(src: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan_parts(src, out, parts=2)
    monkeypatch.setattr(parts, "_RELEASE", {"the release of lmdbloader": "9.9"})
    for call in (lambda: convert_part(out, 0), lambda: join(out), lambda: parts.saved_plan(src, out, parts=2)):
        with pytest.raises(DestinationError, match=r"the release of lmdbloader .*, now 9\.9"):
            call()


def test_inputs_of_other_sizes_or_that_are_gone_or_new_are_refused(src: Path, out: Path) -> None:
    plan_parts(src, out, parts=2, on_error="skip")
    convert_part(out, 0)
    whole = damage(src / "06.png")
    with pytest.raises(DestinationError, match=r"changed or are gone .*: 06\.png\."):
        convert_part(out, 1)
    (src / "06.png").write_bytes(whole)
    save(src / "06b.png", 8)
    with pytest.raises(DestinationError, match=r"the inputs have changed since the parts were planned .8 then, 9 now."):
        lmdbloader.convert(src, out, parts=2, workers=1, on_error="skip")
    os.rename(src / "05.png", src.parent / "05.png")
    os.rename(src / "06.png", src.parent / "06.png")
    with pytest.raises(DestinationError, match=r"changed or are gone .*: 05\.png, 06\.png\."):
        convert_part(out, 1)
    for name in ("05.png", "06.png"):
        os.rename(src.parent / name, src / name)
    convert_part(out, 1)
    assert join(out).num_samples == 8 and "06b.png" not in sources(out)


def test_a_part_whose_inputs_changed_is_made_again(src: Path, out: Path, tmp_path: Path) -> None:
    for number in range(8):
        (src / f"0{number}.pgm").write_bytes(b"P5 20 20 255 " + bytes([number]) * 400)
        (src / f"0{number}.png").unlink()
    plan_parts(src, out, parts=2)
    for number in range(2):
        convert_part(out, number)
    before = (src / "01.pgm").stat()
    (src / "01.pgm").write_bytes(b"P5 20 20 255 " + bytes([77]) * 400)
    os.utime(src / "01.pgm", ns=(before.st_atime_ns, before.st_mtime_ns))
    os.utime(src / "06.pgm")  # has its content still
    lines: list[str] = []
    assert convert_part(out, 1).was_finished
    lmdbloader.convert(src, out, parts=2, workers=1, log=lines.append)
    assert sum("inputs of part 0 have changed" in line for line in lines) == 1
    lmdbloader.convert(src, tmp_path / "fresh", parts=2, workers=1)
    assert read_manifest(out).content_digest == read_manifest(tmp_path / "fresh").content_digest
    assert lmdbloader.LMDBDataset(out)[1].image.unique().tolist() == [77]


def test_a_tar_that_changes_between_parts_is_refused(out: Path, tmp_path: Path) -> None:
    options = make_tars(tmp_path)
    plan_parts(options["src"], out, parts=2)
    convert_part(out, 0)
    save_tar(tmp_path / "src" / "1.tar", *[(f"1{i}.png", png(90 + i)) for i in range(3)])
    with pytest.raises(DestinationError, match=r"changed or are gone .*: .*1\.tar"):
        convert_part(out, 1)


@pytest.mark.parametrize("name", ["data.mdb", "rows.arrow", "facts.json"])
def test_a_part_that_was_damaged_is_found(src: Path, out: Path, name: str) -> None:
    plan_parts(src, out, parts=2)
    for number in range(2):
        convert_part(out, number)
    place = out.with_name("out.partial") / "part-00001"
    flip(place, (place / name).stat().st_size // 2, name)
    try:
        join(out)
    except (CorruptError, DestinationError):  # the part is damaged, or not complete
        assert not out.exists()
        shutil.rmtree(place)
        convert_part(out, 1)
        join(out)
        assert lmdbloader.verify(out).is_sound
    else:
        assert name == "data.mdb" and not lmdbloader.verify(out).is_sound  # by its digest
        lmdbloader.convert(src, out, parts=2, overwrite=True, workers=1)
        assert lmdbloader.verify(out).is_sound


def test_a_damaged_plan_and_a_part_cut_short_have_a_way_out(src: Path, out: Path) -> None:
    plan_parts(src, out, parts=2)
    convert_part(out, 0)
    partial = out.with_name("out.partial")
    with open(partial / "part-00000" / "data.mdb", "r+b") as file:
        file.truncate(100)
    assert convert_part(out, 0).num_samples == 4
    (partial / "sources-00001.npz").write_bytes(b"PK\x03\x04")
    with pytest.raises(DestinationError, match=r"sources-00001\.npz: does not decode .*restart=True"):
        convert_part(out, 1)
    (partial / "plan.json").write_text("{")
    for call in (lambda: join(out), lambda: lmdbloader.convert(src, out, parts=2, workers=1)):
        with pytest.raises(DestinationError, match=r"plan\.json: does not decode"):
            call()
    assert lmdbloader.convert(src, out, parts=2, workers=1, restart=True).num_samples == 8


def test_files_that_are_in_the_way_are_never_replaced(src: Path, out: Path) -> None:
    plan_parts(src, out, parts=2)
    for number in range(2):
        convert_part(out, number)
    partial = out.with_name("out.partial")
    (partial / "mine.txt").write_text("mine")
    with pytest.raises(DestinationError, match=r"'mine\.txt'"):
        join(out)
    (partial / "mine.txt").unlink()
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    for call in (lambda: join(out), lambda: lmdbloader.convert(src, out, parts=2)):
        with pytest.raises(DestinationError, match="folder with other things in it"):
            call()
    assert names(out) == ["mine.txt"]


# --- sources that only this process sees, places, room ---


def test_parts_may_be_made_in_other_folders(src: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(src.parent)
    plan_parts("src", "out", parts=2)
    monkeypatch.chdir(src)
    for number in range(2):
        convert_part("../out", number)
    assert parts.saved_plan(".", "../out", parts=2).num_parts == 2
    assert join(out).num_samples == 8


def test_a_disk_that_is_too_small_is_refused_before_anything_is_written(
    src: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(src)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=2000))
        with pytest.raises(DiskFullError, match=r"1\.95 KiB are free: at least .* missing"):
            lmdbloader.convert(src, out, workers=1, parts=3)
    assert not out.exists()
    lmdbloader.convert(src, out, workers=1, parts=3)
    assert len(Reader(out)) == 8
