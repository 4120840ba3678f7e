"""The destination: one writer at a time, complete or absent, and other files are never replaced."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from part_sets import make_set, tree

import lmdbloader
from lmdbloader.base import system
from lmdbloader.errors import DestinationError, DiskFullError
from lmdbloader.format.layout import make_field
from lmdbloader.store import check_destination, is_dataset, open_writer
from lmdbloader.store.writing import claim, publish

ROOT = Path(__file__).resolve().parent.parent


def samples(value: int = 0, count: int = 5) -> Iterator[dict[str, Any]]:
    for i in range(count):
        yield {"image": np.full((8, 8), value + i, np.uint8)}


def write(path: Path, value: int = 0, **options: Any) -> None:
    lmdbloader.write(samples(value), path, **options)


def first_pixel(path: Path) -> int:
    return int(lmdbloader.LMDBDataset(path)[0].image[0, 0, 0])


def test_nothing_but_the_dataset_is_left(tmp_path: Path) -> None:
    write(tmp_path / "d")
    assert os.listdir(tmp_path) == ["d"]
    assert sorted(os.listdir(tmp_path / "d")) == ["data.mdb", "index.arrow", "manifest.json"]


def test_a_relative_destination_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("d"), 3)
    write(Path("d"), 4, overwrite=True)
    assert os.listdir(tmp_path) == ["d"]
    assert first_pixel(tmp_path / "d") == 4


def test_an_empty_folder_counts_as_absent(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    write(tmp_path / "d")
    assert os.listdir(tmp_path) == ["d"]
    assert is_dataset(tmp_path / "d")


def test_a_dataset_is_replaced_only_when_asked(tmp_path: Path) -> None:
    write(tmp_path / "d", 1)
    with pytest.raises(DestinationError, match=r"d: a dataset is there already\. Choose .*overwrite"):
        write(tmp_path / "d", 2)
    assert first_pixel(tmp_path / "d") == 1
    before = lmdbloader.LMDBDataset(tmp_path / "d")
    write(tmp_path / "d", 2, overwrite=True)
    assert first_pixel(tmp_path / "d") == 2
    assert int(before[0].image[0, 0, 0]) == 1  # who reads the old one goes on reading it
    assert os.listdir(tmp_path) == ["d"]


def test_a_dataset_is_replaced_on_a_system_without_exchange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "d", 1)
    monkeypatch.setattr(system, "exchange", lambda a, b: False)
    write(tmp_path / "d", 2, overwrite=True)
    assert first_pixel(tmp_path / "d") == 2
    assert os.listdir(tmp_path) == ["d"]


def test_the_old_dataset_stays_when_the_new_one_fails(tmp_path: Path) -> None:
    def failing() -> Iterator[dict[str, Any]]:
        yield from samples(9)
        raise RuntimeError("the camera broke")

    write(tmp_path / "d", 1)
    with pytest.raises(RuntimeError, match="the camera broke"):
        lmdbloader.write(failing(), tmp_path / "d", overwrite=True)
    assert first_pixel(tmp_path / "d") == 1
    assert os.listdir(tmp_path) == ["d"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_whatever_ends_the_writing_nothing_is_left(tmp_path: Path, error: type[BaseException]) -> None:
    with (
        pytest.raises(error),
        open_writer(tmp_path / "d", [make_field("n", "int")], with_source=False, map_nbytes=2**20),
    ):
        assert os.listdir(tmp_path) == ["d.partial"]
        raise error
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(
    "files",
    [
        {"notes.txt": b"mine"},
        {"data.mdb": b"an LMDB of somebody's"},
        {"manifest.json": b'{"format": "web app"}'},
        {"manifest.json": b"[" * 100_000},
        {"manifest.json": b"[]"},
    ],
    ids=["notes", "lmdb", "other-manifest", "deep-manifest", "list-manifest"],
)
def test_a_folder_with_other_things_is_never_replaced(tmp_path: Path, files: dict[str, bytes], overwrite: bool) -> None:
    (tmp_path / "d").mkdir()
    for name, data in files.items():
        (tmp_path / "d" / name).write_bytes(data)
    with pytest.raises(DestinationError, match="a folder with other things in it, which is never replaced"):
        write(tmp_path / "d", overwrite=overwrite)
    # Nor where it came to be while the new one was being written.
    with pytest.raises(DestinationError, match="a folder with other things"):
        publish_over(tmp_path / "d")
    assert {p.name: p.read_bytes() for p in (tmp_path / "d").iterdir()} == files
    assert os.listdir(tmp_path) == ["d"]


def test_a_part_of_a_set_is_never_replaced(tmp_path: Path) -> None:
    samples = [[{"n": k}, {"n": k + 1}] for k in range(2)]
    path = make_set(tmp_path / "set", samples)
    before = tree(path)
    for part in (path / "part-00001", path / "part-00000"):
        with pytest.raises(DestinationError, match=r"is a part of the set .*set, which lists its samples"):
            lmdbloader.write(samples[0], part, overwrite=True)
        with pytest.raises(DestinationError, match="is a part of the set"):
            publish_over(part)
    assert tree(path) == before
    alone = tmp_path / "part-00001"  # a dataset of that name, which no set lists
    for _ in range(2):
        lmdbloader.write(samples[1], alone, overwrite=True)
    lmdbloader.write(samples[0], path / "part-00007")
    lmdbloader.write(samples[1], path / "part-00007", overwrite=True)


def publish_over(out: Path) -> None:
    with open_writer(out, [make_field("n", "int")], with_source=False, map_nbytes=2**20) as writer:
        writer.finish(classes={}, made_by={})


@pytest.mark.parametrize("kind", ["file", "link to a folder", "dangling link"])
def test_a_destination_that_is_not_a_folder_is_refused(tmp_path: Path, kind: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    if kind == "file":
        (tmp_path / "d").write_bytes(b"mine")
    else:
        (tmp_path / "d").symlink_to(tmp_path / ("elsewhere" if "folder" in kind else "nowhere"))
    with pytest.raises(DestinationError, match="exists and is not a folder"):
        check_destination(tmp_path / "d", overwrite=True)
    with pytest.raises(DestinationError, match="exists and is not a folder"):
        write(tmp_path / "d", overwrite=True)
    assert sorted(os.listdir(tmp_path)) == ["d", "elsewhere"]


def test_a_missing_parent_is_named(tmp_path: Path) -> None:
    with pytest.raises(DestinationError, match=r"the folder .*nowhere does not exist. Create it first"):
        write(tmp_path / "nowhere" / "d")
    assert os.listdir(tmp_path) == []


HOLDER = """
import sys
from pathlib import Path
from lmdbloader.format.layout import make_field
from lmdbloader.store import open_writer
with open_writer(Path(sys.argv[1]), [make_field("n", "int")], with_source=False, map_nbytes=2**20) as writer:
    print("writing", flush=True)
    sys.stdin.read()
    writer.finish(classes={}, made_by={})
"""


def start_holder(out: Path) -> subprocess.Popen[str]:
    """Start a process that holds `out` until its standard input closes, and then finishes it."""
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(out)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "writing\n"
    return child


def test_a_second_writer_gets_an_error_that_names_the_first(tmp_path: Path) -> None:
    with start_holder(tmp_path / "d") as child:
        with pytest.raises(DestinationError, match=rf"process {child.pid} on host {os.uname().nodename} is writing"):
            write(tmp_path / "d")
        assert os.listdir(tmp_path) == ["d.partial"]  # the other one's, untouched
        child.communicate("")
    assert child.returncode == 0
    assert os.listdir(tmp_path) == ["d"]
    assert len(lmdbloader.LMDBDataset(tmp_path / "d")) == 0


def test_the_folder_of_a_killed_writer_is_taken_over(tmp_path: Path) -> None:
    with start_holder(tmp_path / "d") as child:
        child.kill()
        child.communicate()
    assert os.listdir(tmp_path) == ["d.partial"]
    write(tmp_path / "d", 5)
    assert os.listdir(tmp_path) == ["d"]
    assert first_pixel(tmp_path / "d") == 5


def test_an_owner_that_cannot_be_read_is_another_process(tmp_path: Path) -> None:
    with start_holder(tmp_path / "d") as child:
        for text in ("", "[]", '{"pid": "x", "host": 1}', json.dumps({"pid": 1})):
            (tmp_path / "d.partial" / publish.OWNER_FILE).write_text(text)
            with pytest.raises(DestinationError, match="another process is writing there"):
                write(tmp_path / "d")
        child.kill()
        child.communicate()


def test_a_partial_folder_with_the_users_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "d.partial").mkdir()
    (tmp_path / "d.partial" / "notes.txt").write_text("mine")
    with pytest.raises(DestinationError, match=r"lmdbloader did not write 'notes\.txt' in it"):
        write(tmp_path / "d")
    assert (tmp_path / "d.partial" / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("kind", ["file", "link"])
def test_a_partial_name_that_is_taken_is_an_error(tmp_path: Path, kind: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "data.mdb").write_bytes(b"mine")
    if kind == "file":
        (tmp_path / "d.partial").write_bytes(b"mine")
    else:
        (tmp_path / "d.partial").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DestinationError, match=r"d\.partial: cannot be made"):
        write(tmp_path / "d")
    assert sorted(os.listdir(tmp_path)) == ["d.partial", "elsewhere"]
    assert (tmp_path / "elsewhere" / "data.mdb").read_bytes() == b"mine"


@pytest.mark.parametrize(
    ("number", "advice"), [(errno.EROFS, "Make {} writable for this user, or"), (errno.EEXIST, "Free that name, or")]
)
def test_a_folder_that_this_user_may_not_write_to_gets_another_advice(
    number: int, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(claim, "open_folder", refuse)
    with pytest.raises(DestinationError, match=re.escape(f"{advice.format(tmp_path)} choose another destination.")):
        write(tmp_path / "d")


def test_a_full_disk_is_explained_wherever_it_shows(tmp_path: Path) -> None:
    with (
        pytest.raises(DiskFullError, match=r"d.*: disk full .* MiB are free there"),
        open_writer(tmp_path / "d", [make_field("n", "int")], with_source=False, map_nbytes=2**20),
    ):
        raise OSError(28, "No space left on device")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("data", "expected"),
    [(None, False), (b"", False), (b"{}", False), (b'{"format": "lmdbloader", "format_version": 99}', True)],
)
def test_a_dataset_of_any_version_is_recognised(tmp_path: Path, data: bytes | None, expected: bool) -> None:
    if data is not None:
        (tmp_path / "manifest.json").write_bytes(data)
    assert is_dataset(tmp_path) is expected
