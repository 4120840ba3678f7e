"""Other users' links, folders and files at OUT.partial are never written to, and the errors name them."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lmdbloader
from lmdbloader.errors import DestinationError, DiskFullError, FormatError
from lmdbloader.format.layout import make_field
from lmdbloader.store import Writer, open_writer, partial_folder

STRANGER = 12345
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of another user's")
# Whatever a conversion writes to by its name.
NAMES = ("owner.json", "plan.json", "journal", "data.mdb", "index.arrow", "manifest.json", "skipped.tsv", "columns")


def samples(count: int = 5) -> Iterator[dict[str, Any]]:
    for i in range(count):
        yield {"image": np.full((8, 8), i % 256, np.uint8)}


@pytest.fixture
def src(tmp_path: Path) -> Path:
    folder = tmp_path / "src"
    folder.mkdir()
    for i in range(3):
        (folder / f"{i}.pgm").write_bytes(b"P5 4 4 255 " + bytes([i] * 16))
    return folder


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "place").mkdir()
    return tmp_path / "place" / "out"


@pytest.fixture
def partial(out: Path) -> Path:
    """Return a folder prepared by another user."""
    out.with_name("out.partial").mkdir()
    return out.with_name("out.partial")


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_bytes(b"not to be touched")
    return tmp_path / "secret"


def link(path: Path, secret: Path) -> None:
    path.symlink_to(secret)


def hard_link(path: Path, secret: Path) -> None:
    os.link(secret, path)


def fifo(path: Path, secret: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize("plant", [link, hard_link, fifo])
@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_written_through_links_in_the_folder(
    src: Path, out: Path, partial: Path, secret: Path, name: str, plant: Callable[[Path, Path], None]
) -> None:
    plant(partial / name, secret)
    before = sorted(os.listdir(partial))
    for write in (lambda: lmdbloader.convert(src, out), lambda: lmdbloader.write(samples(), out)):
        with pytest.raises(DestinationError, match=rf"out\.partial: '{name}' in it (is|has) .*no conversion leaves"):
            write()
    assert secret.read_bytes() == b"not to be touched"
    assert sorted(os.listdir(partial)) == before and not out.exists()


@needs_root
@pytest.mark.parametrize("what", ["the folder", "a file in it", "a folder in it"])
def test_folders_and_files_of_another_user_are_refused(src: Path, out: Path, partial: Path, what: str) -> None:
    theirs = {"the folder": partial, "a file in it": partial / "data.mdb", "a folder in it": partial / "columns"}[what]
    if what == "a file in it":
        theirs.write_bytes(b"theirs")
    else:
        theirs.mkdir(exist_ok=True)
    os.chown(theirs, STRANGER, STRANGER)
    for write in (lambda: lmdbloader.convert(src, out), lambda: lmdbloader.write(samples(), out)):
        with pytest.raises(DestinationError, match=rf"out\.partial: .*belongs to user {STRANGER}"):
            write()
    assert theirs.exists() and not out.exists()
    assert sorted(os.listdir(out.parent)) == ["out.partial"]


@pytest.mark.parametrize(("umask", "permissions"), [(0o002, 0o775), (0o022, 0o755), (0o077, 0o700)])
def test_nobody_else_can_write_to_the_folder_until_it_is_in_place(out: Path, umask: int, permissions: int) -> None:
    seen = []

    def looking() -> Iterator[dict[str, Any]]:
        yield from samples(1)
        seen.append(stat.S_IMODE(os.stat(out.with_name("out.partial")).st_mode))
        yield from samples(1)

    before = os.umask(umask)
    try:
        with open_writer(out, [make_field("n", "int")], with_source=False, map_nbytes=2**20) as writer:
            seen.append(stat.S_IMODE(os.stat(out.with_name("out.partial")).st_mode))
            writer.finish(classes={}, made_by={})
    finally:
        os.umask(before)
    assert seen == [permissions & 0o755]
    assert stat.S_IMODE(out.stat().st_mode) == permissions


def test_an_unfinished_conversion_that_others_could_write_to_is_continued(
    src: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmdbloader.store.writing.writer.TRANSACTION_NBYTES", 1)
    monkeypatch.setattr("lmdbloader.conversion.pool.TASK_NBYTES", 1)
    (src / "2.pgm").write_bytes(b"")
    with pytest.raises(lmdbloader.errors.ImageError):
        lmdbloader.convert(src, out)
    partial = out.with_name("out.partial")
    partial.chmod(0o777)  # as an older release left it, where the umask allowed it
    (src / "2.pgm").write_bytes(b"P5 4 4 255 " + bytes(16))
    lines: list[str] = []
    assert lmdbloader.convert(src, out, log=lines.append).num_samples == 3
    assert any(line.startswith(f"{partial}: resuming after 2 of 3") for line in lines)


@pytest.mark.parametrize("when", ["before the first transaction", "before it is put in place"])
def test_a_folder_that_was_swapped_is_neither_written_to_nor_put_in_place(
    out: Path, secret: Path, tmp_path: Path, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    partial = out.with_name("out.partial")

    def swap() -> None:
        partial.rename(tmp_path / "aside")
        partial.mkdir()
        for name in NAMES:
            (partial / name).symlink_to(secret)

    def swapping() -> Iterator[dict[str, Any]]:
        yield from samples(4096)  # the first chunk
        swap()
        yield from samples(1)

    if when == "before it is put in place":
        finish = Writer.finish
        monkeypatch.setattr(Writer, "finish", lambda self, **options: (swap(), finish(self, **options))[1])
    with pytest.raises(DestinationError, match=r"out\.partial: is no longer the folder that was written to"):
        lmdbloader.write(swapping() if when.endswith("transaction") else samples(), out)
    assert secret.read_bytes() == b"not to be touched"
    assert sorted(os.listdir(partial)) == sorted(NAMES) and not out.exists()


def test_errors_call_the_folder_by_its_name(out: Path) -> None:
    with (
        pytest.raises(DiskFullError, match=r"place/out\.partial: disk full .*place/out\.partial/data\.mdb") as caught,
        open_writer(out, [make_field("n", "int")], with_source=False, map_nbytes=2**20) as writer,
    ):
        folder = writer._partial
        raise DiskFullError(f"{folder}: disk full ({folder}/data.mdb: No space left on device)")
    assert "/proc/" not in str(caught.value)
    with pytest.raises(FileNotFoundError) as missing, partial_folder(out) as folder:
        (folder / "nothing").read_bytes()
    assert missing.value.filename == str(out.with_name("out.partial") / "nothing")


def test_a_file_system_without_owners_causes_a_warning(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As on vfat: new files belong to another user.
    monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
    with pytest.warns(UserWarning, match=r"out\.partial: its file system does not have owners"):
        lmdbloader.write(samples(), out)
    assert len(lmdbloader.LMDBDataset(out)) == 5
    assert os.listdir(out.parent) == ["out"]


def test_permissions_that_cannot_be_removed_cause_a_warning(
    out: Path, partial: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partial.chmod(0o777)
    monkeypatch.setattr(os, "fchmod", lambda descriptor, mode: None)
    with pytest.warns(UserWarning, match=r"out\.partial: its file system does not let others' permission"):
        lmdbloader.write(samples(), out)
    assert len(lmdbloader.LMDBDataset(out)) == 5


def test_a_finished_conversion_removes_only_its_own_files(src: Path, out: Path, secret: Path) -> None:
    lmdbloader.convert(src, out)
    partial = out.with_name("out.partial")
    partial.mkdir()
    (partial / "data.mdb").symlink_to(secret)
    assert lmdbloader.convert(src, out).was_finished
    assert os.listdir(partial) == ["data.mdb"] and secret.read_bytes() == b"not to be touched"


@pytest.mark.parametrize("plant", [link, hard_link, fifo])
def test_stage_copies_files_of_the_format_and_follows_no_link(
    out: Path, tmp_path: Path, secret: Path, plant: Callable[[Path, Path], None]
) -> None:
    lmdbloader.write(samples(), out)
    for name in ("skipped.tsv", "left_out.tsv"):
        plant(out / name, secret)
    (out / "notes.txt").write_text("theirs")
    lines: list[str] = []
    copy = lmdbloader.stage(out, tmp_path / "node", log=lines.append)
    assert sorted(os.listdir(copy)) == ["data.mdb", "index.arrow", "manifest.json"]
    assert sum("is a link or not a regular file" in line for line in lines) == 2


@pytest.mark.parametrize("name", ["data.mdb", "index.arrow", "manifest.json"])
def test_stage_refuses_a_dataset_whose_own_files_are_links(out: Path, tmp_path: Path, name: str) -> None:
    lmdbloader.write(samples(), out)
    (out / name).rename(tmp_path / name)
    (out / name).symlink_to(tmp_path / name)
    with pytest.raises(FormatError, match=rf"{name}: is a link, and links are not followed"):
        lmdbloader.stage(out, tmp_path / "node")
    assert os.listdir(tmp_path / "node") == []


def test_repair_does_not_follow_links(src: Path, out: Path, tmp_path: Path, secret: Path) -> None:
    lmdbloader.convert(src, out, codec="raw")
    data = bytearray((out / "data.mdb").read_bytes())
    data[data.index(bytes([1] * 16))] ^= 1
    (out / "data.mdb").write_bytes(data)
    (out / "skipped.tsv").symlink_to(secret)
    mended = lmdbloader.repair(out, tmp_path / "mended").out
    assert mended is not None
    assert "skipped.tsv" not in os.listdir(mended) and "left_out.tsv" in os.listdir(mended)


def test_a_probe_that_cannot_be_made_counts_as_a_file_system_with_owners(
    out: Path, partial: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(**options: Any) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
    monkeypatch.setattr(tempfile, "mkdtemp", refused)
    with pytest.raises(DestinationError, match=rf"and this process runs as user {STRANGER}"):
        lmdbloader.write(samples(), out)
