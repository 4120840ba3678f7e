"""Conversions that are finished already: found by times, sizes and content of their sources."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lmdbloader
from lmdbloader.conversion import provenance
from lmdbloader.conversion.sources.listing import Source, Span
from lmdbloader.conversion.sources.reading import digest_ends, read_ends
from lmdbloader.errors import DestinationError, ImageError
from lmdbloader.store import Reader

NOTE = "sources.arrow"
SIDE = 120  # so that a file is longer than its head and tail


def save(path: Path, value: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"P5 %d %d 255 " % (SIDE, SIDE) + bytes([value]) * SIDE**2)


def change(path: Path, at: int) -> None:
    """Change one pixel in place."""
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(b"\x80")


@pytest.fixture
def src(tmp_path: Path) -> Path:
    for i in range(4):
        save(tmp_path / "src" / f"{i}.pgm", i)
    return tmp_path / "src"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many sources were read to compare their content, each time that some were."""
    found: list[int] = []
    real = provenance.hash_files

    def counting(sources: Any) -> list[int]:
        found.append(len(sources))
        return real(sources)

    monkeypatch.setattr(provenance, "hash_files", counting)
    return found


def convert(src: Path | None, out: Path, **options: Any) -> bool:
    return lmdbloader.convert(src, out, workers=1, **options).was_finished


def test_sources_that_are_as_they_were_are_not_read(src: Path, out: Path, reads: list[int]) -> None:
    convert(src, out)
    assert convert(src, out)
    assert reads == []
    assert convert(src, out, check_content=True)
    assert sum(reads) == 4


@pytest.mark.parametrize("why", ["the dataset was copied later", "the clock was set back"])
def test_a_source_that_changed_is_noticed_though_the_dataset_is_newer(src: Path, out: Path, why: str) -> None:
    convert(src, out)
    change(src / "2.pgm", SIDE**2 // 2)
    if "copied" in why:
        shutil.copytree(out, out.with_name("copy"), copy_function=shutil.copy)
        out = out.with_name("copy")
    else:
        later = time.time() + 3600
        os.utime(out / "manifest.json", (later, later))
    with pytest.raises(DestinationError, match="made from other inputs"):
        convert(src, out)


def test_the_ends_show_a_change_that_times_do_not(
    src: Path, out: Path, reads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("provenance", "tasks"):
        monkeypatch.setattr(f"lmdbloader.conversion.{module}.times_of", lambda source: (1, 1))
    convert(src, out)
    size = (src / "2.pgm").stat().st_size
    change(src / "2.pgm", size // 2)
    assert convert(src, out) and reads == [], "neither size nor time nor ends have changed"
    with pytest.raises(DestinationError, match="made from other inputs"):
        convert(src, out, check_content=True)
    save(src / "2.pgm", 2)
    for at in (20, size - 1):
        change(src / "2.pgm", at)
        with pytest.raises(DestinationError, match="made from other inputs"):
            convert(src, out)
        save(src / "2.pgm", 2)
    assert convert(src, out)


@pytest.mark.parametrize("why", ["touched", "the note is lost", "elsewhere"])
def test_sources_that_were_read_and_are_the_same_are_not_read_again(
    src: Path, out: Path, reads: list[int], why: str
) -> None:
    convert(src, out)
    before = {path.name: path.read_bytes() for path in out.iterdir() if path.name != NOTE}
    if why == "touched":
        os.utime(src / "1.pgm")
    elif why == "elsewhere":
        shutil.copytree(src, src.with_name("elsewhere"))
        src = src.with_name("elsewhere")
    else:
        (out / NOTE).unlink()
    assert convert(src, out)
    assert sum(reads) == 4
    assert convert(src, out)
    assert sum(reads) == 4
    assert before == {path.name: path.read_bytes() for path in out.iterdir() if path.name != NOTE}
    assert sorted(path.name for path in out.parent.iterdir() if path.name.startswith("out")) == ["out"]
    change(src / "1.pgm", SIDE**2 // 2)
    with pytest.raises(DestinationError, match="made from other inputs"):
        convert(src, out)


def test_a_source_that_changes_while_it_is_compared_is_read_again(
    src: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert(src, out)
    os.utime(src / "1.pgm")
    real = provenance.hash_files

    def and_change(sources: Any) -> list[int]:
        found = real(sources)
        change(src / "1.pgm", SIDE**2 // 2)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(provenance, "hash_files", and_change)
        assert convert(src, out), "as it was when it was read"
    with pytest.raises(DestinationError, match="made from other inputs"):
        convert(src, out)


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_dataset_that_cannot_be_written_to_keeps_its_note(src: Path, out: Path) -> None:
    convert(src, out)
    note = (out / NOTE).read_bytes()
    os.utime(src / "1.pgm")
    out.chmod(0o555)
    try:
        assert convert(src, out)
        assert (out / NOTE).read_bytes() == note
    finally:
        out.chmod(0o755)


@pytest.mark.parametrize("half", ["hr", "lr"])
def test_either_half_of_a_pair_is_looked_at(tmp_path: Path, out: Path, half: str) -> None:
    for i in range(3):
        save(tmp_path / "hr" / f"{i}.pgm", i)
        (tmp_path / "lr").mkdir(exist_ok=True)
        (tmp_path / "lr" / f"{i}.pgm").write_bytes(b"P5 60 60 255 " + bytes([i]) * 3600)
    options: dict[str, Any] = {"hr": tmp_path / "hr", "lr": tmp_path / "lr", "min_pair_psnr": 0}
    convert(None, out, **options)
    assert convert(None, out, **options)
    path = tmp_path / half / "1.pgm"
    before = path.stat()
    change(path, 2000)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(DestinationError, match="made from other inputs"):
        convert(None, out, **options)


def test_the_same_files_elsewhere_are_read_and_are_the_same(src: Path, out: Path, reads: list[int]) -> None:
    convert(src, out)
    shutil.copytree(src, src.with_name("elsewhere"))
    assert convert(src.with_name("elsewhere"), out)
    assert sum(reads) == 4


def lost(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    at = data.index(int((path.parent.parent / "src" / "1.pgm").stat().st_mtime_ns).to_bytes(8, "little"))
    data[at + 1] ^= 4
    path.write_bytes(data)


def linked(path: Path) -> None:
    path.rename(path.parent.parent / "note")
    path.symlink_to(path.parent.parent / "note")


def large(path: Path) -> None:
    with open(path, "ab") as file:
        file.truncate(2**33)


def of_others(path: Path) -> None:
    from lmdbloader.conversion.sources.layouts import list_sources

    listing = list_sources(path.parent.parent / "src")
    rows = provenance.Seen()
    rows.add([(1, 1, 1)] * len(listing.sources))
    note = provenance.make_note(rows, listing)
    assert note is not None
    path.write_bytes(note)


@pytest.mark.parametrize("damage", [lost, cut, flipped, linked, large, of_others])
def test_without_a_sound_note_everything_is_read(src: Path, out: Path, reads: list[int], damage: Any) -> None:
    convert(src, out)
    damage(out / NOTE)
    assert convert(src, out)
    assert sum(reads) == 4
    change(src / "2.pgm", SIDE**2 // 2)
    with pytest.raises(DestinationError, match="made from other inputs"):
        convert(src, out)


def test_the_note_is_not_a_part_of_the_dataset(src: Path, out: Path, tmp_path: Path) -> None:
    convert(src, out)
    shutil.copytree(src, tmp_path / "elsewhere", copy_function=shutil.copy)
    convert(tmp_path / "elsewhere", tmp_path / "other")
    files = sorted(os.listdir(out))
    assert files == ["data.mdb", "index.arrow", "manifest.json", NOTE]
    assert [name for name in files if (out / name).read_bytes() != (tmp_path / "other" / name).read_bytes()] == [NOTE]
    copy = lmdbloader.stage(out, tmp_path / "node")
    assert sorted(os.listdir(copy)) == files[:3]
    (out / NOTE).write_bytes(b"whatever")
    assert lmdbloader.verify(out).is_sound
    assert Reader(out).manifest == Reader(copy).manifest
    convert(src, out, patch_size=60, overwrite=True)  # it is of our making


@pytest.mark.parametrize("workers", [1, 2])
def test_a_resumed_conversion_notes_the_same_as_an_undisturbed_one(
    src: Path, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    monkeypatch.setattr("lmdbloader.store.writing.writer.TRANSACTION_NBYTES", 1)
    monkeypatch.setattr("lmdbloader.conversion.pool.TASK_NBYTES", 1)
    whole, before = (src / "2.pgm").read_bytes(), (src / "2.pgm").stat()
    (src / "2.pgm").write_bytes(b"")
    with pytest.raises(ImageError):
        convert(src, out)
    (src / "2.pgm").write_bytes(whole)
    os.utime(src / "2.pgm", ns=(before.st_atime_ns, before.st_mtime_ns))
    lmdbloader.convert(src, out, workers=workers)
    convert(src, tmp_path / "undisturbed")
    assert (out / NOTE).read_bytes() == (tmp_path / "undisturbed" / NOTE).read_bytes()


def test_a_journal_without_times_makes_no_note(src: Path) -> None:
    from lmdbloader.conversion.sources.layouts import list_sources

    rows = provenance.Seen()
    rows.add([(1, 2, 3), (4,)])
    assert provenance.make_note(rows, list_sources(src)) is None


@given(nbytes=st.lists(st.integers(0, 9000) | st.sampled_from([4095, 4096, 4097, 8191, 8192, 8193]), max_size=3))
def test_ends_are_read_as_they_are_computed_from_the_whole(
    nbytes: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = os.fsencode(tmp_path_factory.mktemp("ends"))
    rng = np.random.default_rng(sum(nbytes))
    contents = [rng.bytes(n) for n in nbytes]
    for i, content in enumerate(contents):
        with open(path + b"/%d" % i, "wb") as file:
            file.write(content)
    with open(path + b"/all", "wb") as file:
        file.write(b"before" + b"".join(contents) + b"after")
    names = [path + b"/%d" % i for i in range(len(nbytes))]
    starts = [6 + sum(nbytes[:i]) for i in range(len(nbytes))]
    spans = [Span(path + b"/all", start, n) for start, n in zip(starts, nbytes, strict=True)]
    for files in (names, spans) if nbytes else ():
        attached = tuple((str(i), file) for i, file in enumerate(files[1:]))
        assert read_ends(Source("a", files[0], sum(nbytes), attached=attached)) == digest_ends(contents)
    assert read_ends(Source("a", path + b"/none", 1)) == 0
