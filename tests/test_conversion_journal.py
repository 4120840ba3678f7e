"""Interrupted conversions that are called again: kept progress, refusals, and the same dataset in the end."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import lmdbloader
from lmdbloader.conversion import tasks
from lmdbloader.errors import CorruptError, DestinationError, DiskFullError, ImageError
from lmdbloader.store import Reader

NUM_IMAGES = 12
BROKEN = 7


@pytest.fixture(autouse=True)
def small_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmdbloader.store.writing.writer.TRANSACTION_NBYTES", 1)
    monkeypatch.setattr("lmdbloader.conversion.pool.TASK_NBYTES", 1)


@pytest.fixture
def src(tmp_path: Path) -> Path:
    return make_images(tmp_path / "src")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.lmdb"


def make_images(folder: Path) -> Path:
    """A folder of twelve images."""
    folder.mkdir()
    for i in range(NUM_IMAGES):
        save(folder / f"{i:02}.png", seed=i)
    return folder


def save(path: Path, seed: int, side: int = 20) -> None:
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (side, side, 3), np.uint8)).save(path)


def convert(src: Path, out: Path, **options: Any) -> lmdbloader.conversion.Report:
    return lmdbloader.convert(src, out, **{"workers": 1, "patch_size": 8, **options})


def partial_of(out: Path) -> Path:
    return out.with_name(out.name + ".partial")


def interrupt(src: Path, out: Path, **options: Any) -> None:
    """Convert with the eighth image broken, and mend it."""
    path = src / f"{BROKEN:02}.png"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ImageError, match=path.name):
        convert(src, out, **options)
    path.write_bytes(whole)
    assert partial_of(out).is_dir() and not out.exists()


def digest(path: Path) -> str:
    assert lmdbloader.verify(path).is_sound
    return Reader(path).manifest.content_digest


def assert_only(out: Path) -> None:
    """Nothing named like the dataset is there but its three files and the note of its sources."""
    assert [p.name for p in out.parent.iterdir() if p.name.startswith(out.name)] == [out.name]
    assert sorted({*os.listdir(out), "sources.arrow"}) == ["data.mdb", "index.arrow", "manifest.json", "sources.arrow"]


def resumed(src: Path, out: Path, **options: Any) -> int:
    """Convert, and return how many sources were done before."""
    lines: list[str] = []
    report = convert(src, out, log=lines.append, **options)
    assert report.num_sources == NUM_IMAGES and not report.was_finished
    found = [line for line in lines if "resuming after" in line]
    return int(found[0].split("after ")[1].split()[0]) if found else 0


def test_what_is_done_is_not_done_again_and_the_dataset_is_the_same(src: Path, out: Path, tmp_path: Path) -> None:
    interrupt(src, out)
    report_lines: list[str] = []
    report = convert(src, out, log=report_lines.append)
    assert f"resuming after {BROKEN} of {NUM_IMAGES} images" in report_lines[1]
    assert report.num_samples == 4 * NUM_IMAGES and report.stored_as == {"raw": 4 * NUM_IMAGES}
    assert_only(out)
    assert digest(out) == digest_of_undisturbed(src, tmp_path)
    assert Reader(out).manifest.made_by == Reader(tmp_path / "undisturbed").manifest.made_by
    assert convert(src, out).was_finished


def digest_of_undisturbed(src: Path, tmp_path: Path, **options: Any) -> str:
    convert(src, tmp_path / "undisturbed", **options)
    return digest(tmp_path / "undisturbed")


@pytest.mark.parametrize("options", [{"scale": 2}, {"patch_size": None}, {"write_mode": "jpg"}, {"codec": "auto"}])
def test_any_kind_of_dataset_is_resumed(src: Path, out: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    interrupt(src, out, **options)
    assert resumed(src, out, **options) == BROKEN
    assert digest(out) == digest_of_undisturbed(src, tmp_path, **options)


def test_an_image_of_several_parts_is_done_whole_or_not_at_all(
    src: Path, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Parts of one patch each: the interruption comes when a transaction holds some of an image's patches.
    monkeypatch.setattr("lmdbloader.conversion.tasks.PART_NBYTES", 1)
    path = src / f"{BROKEN:02}.png"
    seen: list[int] = []

    from lmdbloader.store.writing.writer import Writer

    add = Writer.add

    def failing(self: Writer, *arguments: Any) -> None:
        seen.append(1)
        if len(seen) == 4 * BROKEN + 3:
            raise KeyboardInterrupt
        add(self, *arguments)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Writer, "add", failing)
        convert(src, out)
    assert path.exists() and resumed(src, out) == BROKEN
    assert digest(out) == digest_of_undisturbed(src, tmp_path)


def test_skipped_sources_stay_skipped(src: Path, out: Path, tmp_path: Path) -> None:
    for i in (0, 3, 9):
        (src / f"{i:02}.png").write_bytes(b"")
    # What to do at a bad image may be decided after the first was met.
    (src / "00.png").rename(tmp_path / "kept")
    save(src / "00.png", seed=0)
    with pytest.raises(ImageError, match=r"03\.png"):
        convert(src, out)
    assert resumed(src, out, on_error="skip") == 3
    assert (out / "skipped.tsv").read_text().count("\n") == 3
    assert digest(out) == digest_of_undisturbed(src, tmp_path, on_error="skip")
    assert (out / "skipped.tsv").read_bytes() == (tmp_path / "undisturbed" / "skipped.tsv").read_bytes()


def test_nothing_is_kept_if_nothing_is_done(src: Path, out: Path) -> None:
    (src / "00.png").write_bytes(b"")
    with pytest.raises(ImageError):
        convert(src, out)
    assert not partial_of(out).exists()


def grow(path: Path) -> None:
    save(path, seed=99, side=24)


def rewrite(path: Path) -> None:
    before = path.stat().st_size
    save(path, seed=99)
    assert path.stat().st_size == before
    os.utime(path, ns=(1, 1))


def rewrite_unnoticed(path: Path) -> None:
    before = path.stat()
    rewrite(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize(
    ("change", "message", "options"),
    [
        (lambda src: grow(src / "03.png"), r"03\.png has \d+ bytes; it had \d+", {}),
        (lambda src: rewrite(src / "03.png"), r"03\.png has other content", {}),
        (lambda src: rewrite_unnoticed(src / "03.png"), r"03\.png has other content", {"check_content": True}),
        (lambda src: (src / "03.png").unlink(), r"04\.png replaces another input", {}),
        (lambda src: save(src / "02b.png", 5), r"02b\.png replaces another input", {}),
        (lambda src: (src / "03.png").rename(src / "99.png"), r"04\.png replaces another input", {}),
        (lambda src: [p.unlink() for p in sorted(src.iterdir())[3:]], r"3 inputs are there, fewer", {}),
    ],
    ids=["size", "time", "hash", "removed", "added", "renamed", "fewer"],
)
def test_inputs_that_are_done_and_have_changed_are_refused_by_name(
    src: Path, out: Path, change: Callable[[Path], object], message: str, options: dict[str, Any]
) -> None:
    interrupt(src, out)
    change(src)
    before = sorted((p.name, p.stat().st_mtime_ns) for p in partial_of(out).iterdir() if p.name != "owner.json")
    with pytest.raises(DestinationError, match=message + r".*restart=True"):
        convert(src, out, **options)
    assert before == sorted((p.name, p.stat().st_mtime_ns) for p in partial_of(out).iterdir() if p.name != "owner.json")
    report = convert(src, out, restart=True)
    assert report.num_sources == len(os.listdir(src))
    assert_only(out)


def test_the_data_of_another_conversion_is_not_gone_on_with(src: Path, out: Path, tmp_path: Path) -> None:
    """Of inputs with the same names and sizes: a backup that was restored in part."""
    interrupt(src, out)
    other = shutil.copytree(src, tmp_path / "other")
    for path in other.iterdir():
        rewrite(path)
    interrupt(other, tmp_path / "out of other")
    data = partial_of(out) / "data.mdb"
    own = data.read_bytes()
    shutil.copyfile(partial_of(tmp_path / "out of other") / "data.mdb", data)
    with pytest.raises(
        CorruptError, match=r"data\.mdb: does not hold the samples that .*another conversion.*restart=True"
    ):
        convert(src, out)
    data.write_bytes(own)
    assert resumed(src, out) == BROKEN
    assert digest(out) == digest_of_undisturbed(src, tmp_path)


def test_an_input_that_does_not_read_any_more_has_no_other_content(
    src: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(src, out)
    read = tasks.read

    def fail(file: Any, *args: Any) -> bytes:
        if os.fsencode(file).endswith(b"03.png"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(file, *args)

    with monkeypatch.context() as patch:
        patch.setattr(tasks, "read", fail)
        with pytest.raises(ImageError, match=r"03\.png.*the disk failed"):
            convert(src, out, check_content=True)
    assert resumed(src, out, check_content=True) == BROKEN


def test_inputs_that_are_touched_or_not_yet_done_may_change(src: Path, out: Path, tmp_path: Path) -> None:
    interrupt(src, out)
    os.utime(src / "02.png", ns=(5, 5))
    grow(src / "09.png")
    assert resumed(src, out) == BROKEN
    assert digest(out) == digest_of_undisturbed(src, tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"patch_size": 4}, "patch_size 8, now 4"),
        ({"scale": 2}, "scale none, now 2"),
        ({"codec": "lz4"}, "codec .*, now lz4"),
        ({"layout": "classes"}, "layout images, now classes"),
    ],
)
def test_other_options_are_refused_by_name(src: Path, out: Path, options: dict[str, Any], message: str) -> None:
    interrupt(src, out)
    if options.get("layout") == "classes":
        (src / "class").mkdir()
        for path in list(src.glob("*.png")):
            path.rename(src / "class" / path.name)
    with pytest.raises(DestinationError, match=rf"with other options is unfinished there .*{message}.*restart=True"):
        convert(src, out, **options)
    assert not convert(src, out, restart=True, **options).was_finished
    assert_only(out)


def test_a_new_dataset_takes_the_old_ones_place_also_when_it_was_interrupted(src: Path, out: Path) -> None:
    convert(src, out, patch_size=10)
    old = digest(out)
    (src / f"{BROKEN:02}.png").rename(src.parent / "aside")
    (src / f"{BROKEN:02}.png").write_bytes(b"")
    with pytest.raises(ImageError):
        convert(src, out, overwrite=True)
    assert digest(out) == old
    (src.parent / "aside").replace(src / f"{BROKEN:02}.png")
    assert resumed(src, out, overwrite=True) == BROKEN
    assert digest(out) != old
    assert_only(out)


def test_samples_from_python_do_not_take_the_place_of_an_unfinished_conversion(src: Path, out: Path) -> None:
    interrupt(src, out)
    with pytest.raises(DestinationError, match=r"partial: a conversion .* \(it was begun by lmdbloader\.convert\)"):
        lmdbloader.write([{"n": 1}], out)
    with pytest.raises(DestinationError, match=r"out\.lmdb\.partial: an unfinished conversion is there"):
        lmdbloader.write(iter([{"n": 1}]), out)
    assert resumed(src, out) == BROKEN


def test_what_a_kill_after_the_renaming_left_is_cleared_away(src: Path, out: Path) -> None:
    convert(src, out)
    for name in ("plan.json", "journal", "owner.json"):
        (out / name).write_text('{"pid": 1, "host": "node"}')
    partial_of(out).mkdir()
    for name in ("data.mdb", "index.arrow", "manifest.json"):
        (partial_of(out) / name).write_bytes(b"of the dataset that was replaced")
    before = {p.name: (p.stat().st_mtime_ns, p.read_bytes()) for p in out.iterdir() if "." in p.name}
    assert convert(src, out).was_finished
    assert_only(out)
    assert all(before[p.name] == (p.stat().st_mtime_ns, p.read_bytes()) for p in out.iterdir())


def test_what_others_put_into_a_dataset_stays(src: Path, out: Path) -> None:
    convert(src, out)
    (out / "plan.json").write_text("mine")
    assert convert(src, out).was_finished
    assert (out / "plan.json").read_text() == "mine"
    (out / "plan.json").rename(out / "splits.json")
    with pytest.raises(DestinationError, match=r"lmdbloader did not write 'splits\.json' in it, which would be lost"):
        convert(src, out, patch_size=10, overwrite=True)
    assert (out / "splits.json").read_text() == "mine"
    (out / "splits.json").rename(out / "lock.mdb")  # which LMDB's own tools leave
    assert convert(src, out, patch_size=10, overwrite=True).num_samples == 4 * NUM_IMAGES
    assert_only(out)


def test_a_dataset_that_was_just_put_in_place_is_not_made_again(src: Path, out: Path) -> None:
    convert(src, out, overwrite=True)
    for name in ("plan.json", "journal", "owner.json"):
        (out / name).write_text('{"pid": 1, "host": "node"}')
    assert convert(src, out, overwrite=True).was_finished
    assert_only(out)
    assert not convert(src, out, overwrite=True).was_finished


def test_a_class_that_changes_the_labels_of_finished_sources_is_refused(tmp_path: Path, out: Path) -> None:
    src = tmp_path / "classes"
    src.mkdir()
    for name in ("cat-big", "dog"):  # cat comes before them
        make_images(src / name)
    interrupt_classes(src, out)
    make_images(src / "cat")
    with pytest.raises(DestinationError, match=r"cat/00\.png replaces another input, or has another label"):
        convert(src, out, layout="classes")
    report = convert(src, out, layout="classes", restart=True)
    assert report.num_sources == 3 * NUM_IMAGES
    ds = lmdbloader.LMDBDataset(out)
    assert ds.classes[ds[0].label] == "cat"


def interrupt_classes(src: Path, out: Path) -> None:
    path = src / "dog" / "03.png"
    whole = path.read_bytes()
    path.write_bytes(b"")
    with pytest.raises(ImageError, match=r"03\.png"):
        convert(src, out, layout="classes")
    path.write_bytes(whole)


def test_a_full_disk_under_the_journal_says_how_much_is_missing(
    src: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fsync

    def full(handle: int) -> None:
        if os.readlink(f"/proc/self/fd/{handle}").endswith("journal"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(handle)

    with monkeypatch.context() as patch, pytest.raises(DiskFullError, match=r"partial: disk full .*MiB are"):
        patch.setattr(os, "fsync", full)
        convert(src, out)
    assert not partial_of(out).exists()


def test_an_unfinished_conversion_next_to_a_finished_one_is_not_removed(src: Path, out: Path) -> None:
    convert(src, out, patch_size=10)
    (src / f"{BROKEN:02}.png").rename(src.parent / "aside")
    (src / f"{BROKEN:02}.png").write_bytes(b"")
    with pytest.raises(ImageError):
        convert(src, out, overwrite=True)
    (src.parent / "aside").replace(src / f"{BROKEN:02}.png")
    assert convert(src, out, patch_size=10).was_finished
    assert partial_of(out).is_dir()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 9}', '{"version": 1}', "\xff", "[" * 100_000])
def test_a_plan_that_does_not_decode_is_refused(src: Path, out: Path, text: str) -> None:
    interrupt(src, out)
    (partial_of(out) / "plan.json").write_text(text, "latin-1")
    with pytest.raises(DestinationError, match=r"plan\.json: does not decode .*restart=True"):
        convert(src, out)


def test_records_that_were_damaged_are_refused(src: Path, out: Path) -> None:
    interrupt(src, out)
    data = partial_of(out) / "data.mdb"
    whole = data.read_bytes()
    image = np.asarray(Image.open(src / "02.png"))[:8, :8].transpose(2, 0, 1).tobytes()
    at = whole.index(image)
    data.write_bytes(whole[:at] + b"\0" * 16 + whole[at + 16 :])
    with pytest.raises(CorruptError, match=r"checksum .* damaged"):
        convert(src, out)
    assert convert(src, out, restart=True).num_samples == 4 * NUM_IMAGES


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """A folder of images, the progress of its conversion, and the final digest."""
    folder = tmp_path_factory.mktemp("interrupted")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lmdbloader.store.writing.writer.TRANSACTION_NBYTES", 1)
        patch.setattr("lmdbloader.conversion.pool.TASK_NBYTES", 1)
        src = make_images(folder / "src")
        interrupt(src, folder / "out.lmdb")
        return src, partial_of(folder / "out.lmdb"), digest_of_undisturbed(src, folder)


@settings(max_examples=40)
@given(data=st.data())
def test_a_journal_that_was_cut_or_damaged_costs_work_but_never_a_sample(
    data: st.DataObject, interrupted: tuple[Path, Path, str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    src, kept, expected = interrupted
    out = tmp_path_factory.mktemp("again") / "out.lmdb"
    partial_of(out).mkdir()
    for file in kept.iterdir():
        if file.is_file():
            (partial_of(out) / file.name).write_bytes(file.read_bytes())
    journal = partial_of(out) / "journal"
    text = bytearray(journal.read_bytes())
    at = data.draw(st.integers(0, len(text) - 1))
    if data.draw(st.booleans()):
        del text[at:]
    else:
        text[at] ^= data.draw(st.integers(1, 255))
    journal.write_bytes(bytes(text))
    assert resumed(src, out) == bytes(text[:at]).count(b"\n")
    assert Reader(out).manifest.content_digest == expected
    assert_only(out)


def test_the_plan_describes_the_conversion(src: Path, out: Path) -> None:
    interrupt(src, out)
    plan = json.loads((partial_of(out) / "plan.json").read_bytes())
    assert plan["made_by"]["options"]["patch_size"] == 8
    assert plan["fields"][0]["name"] == "image"


def test_the_first_pages_are_on_the_disk_before_the_journal(
    src: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[str] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        flushed.append(os.path.basename(os.readlink(f"/proc/self/fd/{handle}")))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    convert(src, out)
    assert flushed.index("data.mdb") < flushed.index("journal")


@pytest.mark.parametrize("kept", ["nothing", "no pages", "one page", "no length"])
def test_a_power_cut_in_the_first_transaction_costs_no_more_than_it(
    kept: str, src: Path, out: Path, tmp_path: Path
) -> None:
    # As older releases left them: their journal counted on pages that were not on the disk.
    interrupt(src, out)
    data = partial_of(out) / "data.mdb"
    whole = data.read_bytes()
    data.write_bytes(
        {
            "nothing": b"",
            "no pages": bytes(len(whole)),
            "one page": bytes(4096) + whole[4096:4112] + bytes(len(whole)),
            "no length": whole[:100],
        }[kept]
    )
    assert resumed(src, out) == 0
    assert digest(out) == digest_of_undisturbed(src, tmp_path)


def test_pages_that_were_damaged_are_refused_with_the_way_out(src: Path, out: Path) -> None:
    interrupt(src, out)
    data = partial_of(out) / "data.mdb"
    pages = bytearray(data.read_bytes())
    for at in range(8192, len(pages), 4096):
        if pages[at + 10] in (1, 2):  # of a tree
            pages[at + 12] ^= 0xFF
    data.write_bytes(pages)
    with pytest.raises(CorruptError, match=r"data\.mdb: its pages are damaged .*restart=True"):
        convert(src, out)
    assert data.read_bytes() == pages
    assert convert(src, out, restart=True).num_samples == 4 * NUM_IMAGES
