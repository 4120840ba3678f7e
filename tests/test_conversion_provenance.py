"""Conversions that are finished already: found by times, sizes and content of their sources."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import lmdbloader
from lmdbloader.conversion import provenance
from lmdbloader.errors import DestinationError
from lmdbloader.store import read_manifest

NOTE = "sources.json"
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
    """One for each time that all sources were read to compare their content."""
    found: list[int] = []
    real = provenance.content_of

    def counting(tasks: Any) -> str:
        found.append(1)
        return real(tasks)

    monkeypatch.setattr(provenance, "content_of", counting)
    return found


def convert(src: Path | None, out: Path, **options: Any) -> bool:
    return lmdbloader.convert(src, out, workers=1, **options).was_finished


def test_sources_that_are_as_they_were_are_not_read(src: Path, out: Path, reads: list[int]) -> None:
    convert(src, out)
    assert convert(src, out)
    assert reads == []
    assert convert(src, out, check_content=True)
    assert sum(reads) == 1


@pytest.mark.parametrize("why", ["the dataset was copied later", "the clock was set back"])
def test_a_source_that_changed_is_noticed_though_the_dataset_is_newer(src: Path, out: Path, why: str) -> None:
    convert(src, out)
    change(src / "2.pgm", SIDE**2 // 2)
    if "copied" in why:
        shutil.copytree(out, out.with_name("copy"), copy_function=shutil.copy)
        out = out.with_name("copy")
    else:
        os.utime(out / "manifest.json", (2**31, 2**31))
    with pytest.raises(DestinationError, match="made from other inputs"):
        convert(src, out)


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
    assert sum(reads) == 1
    assert convert(src, out)
    assert sum(reads) == 1
    assert before == {path.name: path.read_bytes() for path in out.iterdir() if path.name != NOTE}
    assert sorted(path.name for path in out.parent.iterdir() if path.name.startswith("out")) == ["out"]
    change(src / "1.pgm", SIDE**2 // 2)
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


def lost(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def large(path: Path) -> None:
    with open(path, "ab") as file:
        file.truncate(2**33)


@pytest.mark.parametrize("damage", [lost, cut, large])
def test_without_a_sound_note_everything_is_read(src: Path, out: Path, reads: list[int], damage: Any) -> None:
    convert(src, out)
    damage(out / NOTE)
    assert convert(src, out)
    assert sum(reads) == 1
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
    assert read_manifest(out) == read_manifest(copy)
    convert(src, out, patch_size=60, overwrite=True)  # it is of our making
