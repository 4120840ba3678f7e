"""Only regular files are opened; a FIFO or a device in place of any file is an error and does not block."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tars import png

import lmdbloader
from lmdbloader.base.files import NotRegularError, open_regular, read_regular
from lmdbloader.cli import main
from lmdbloader.conversion.extraction import extract
from lmdbloader.conversion.sources.layouts import list_sources
from lmdbloader.errors import LmdbloaderError

ALL_FILES = ("manifest.json", "index.arrow", "data.mdb")


@pytest.fixture(autouse=True)
def nothing_waits_for_ever() -> Iterator[None]:
    """Interrupt a test that waits for a FIFO's other end."""

    def interrupt(*_: Any) -> None:
        pytest.fail("it waits for a FIFO's other end")  # no OSError, which might be taken for an answer

    before = signal.signal(signal.SIGALRM, interrupt), signal.getsignal(signal.SIGTERM)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before[0])
    signal.signal(signal.SIGTERM, before[1])


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def listening(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(path))


KINDS = pytest.mark.parametrize("make", [os.mkfifo, endless], ids=["FIFO", "device"])


def test_files_are_opened_and_links_to_them_are_followed(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"content")
    (tmp_path / "link").symlink_to("a")
    assert read_regular(tmp_path / "link", 100) == b"content"
    assert read_regular(os.fsencode(tmp_path / "a"), 3) == b"con"
    descriptor = open_regular(tmp_path / "a")
    assert not os.get_inheritable(descriptor)
    os.close(descriptor)


@pytest.mark.parametrize(
    ("make", "kind"), [(os.mkfifo, "a FIFO"), (endless, "a device"), (listening, "a socket")], ids=["f", "d", "s"]
)
def test_everything_else_is_refused_by_kind(tmp_path: Path, make: Callable[[Path], None], kind: str) -> None:
    make(tmp_path / "a")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(NotRegularError, match=f"is {kind}, not a regular file"):
        open_regular(tmp_path / "a")
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path)
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "b")
    assert len(os.listdir("/proc/self/fd")) == before


@KINDS
@pytest.mark.parametrize(
    "how",
    [
        lambda path, good: list_sources(path),
        lambda path, good: list_sources(path, layout="tar"),
        lambda path, good: list_sources(path, layout="lmdb"),
        lambda path, good: list_sources(None, hr=path, lr=good),
        lambda path, good: list_sources(None, hr=good, lr=path),
        lambda path, good: lmdbloader.convert(path, path.parent / "out"),
    ],
    ids=["auto", "tar", "lmdb", "hr", "lr", "convert"],
)
@pytest.mark.parametrize("name", ["a.tar", "photos", "data.mdb"])
def test_a_source_that_is_not_a_file(tmp_path: Path, make: Callable[[Path], None], how: Any, name: str) -> None:
    (tmp_path / "good").mkdir()
    (tmp_path / "good" / "a.png").write_bytes(png(1))
    make(tmp_path / name)
    with pytest.raises(LmdbloaderError, match=name.replace(".", r"\.")):
        how(tmp_path / name, tmp_path / "good")


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    lmdbloader.write([{"image": np.zeros((9, 9, 3), np.uint8), "n": i} for i in range(4)], tmp_path / "d.lmdb")
    return tmp_path / "d.lmdb"


@KINDS
@pytest.mark.parametrize("file", ALL_FILES)
def test_a_file_of_a_dataset(dataset: Path, make: Callable[[Path], None], file: str) -> None:
    (dataset / file).unlink()
    make(dataset / file)
    out = dataset.parent / "mended.lmdb"
    uses: list[Callable[[], Any]] = [
        lambda: lmdbloader.LMDBDataset(dataset),
        lambda: lmdbloader.LMDBDataset(dataset, io="pread"),
        lambda: extract(dataset, dataset.parent / "files"),
        lambda: list_sources(dataset),
    ]
    for use in uses:
        with pytest.raises(LmdbloaderError, match=r"d\.lmdb"):
            use()
    assert not lmdbloader.verify(dataset).is_sound
    for words in (["info", dataset], ["verify", dataset], ["preview", dataset, "-o", out.with_suffix(".png")]):
        assert main([*map(str, words)]) == 1
    for target in (out, None):
        try:
            lmdbloader.repair(dataset, target)
        except (LmdbloaderError, OSError) as error:
            assert "d.lmdb" in str(error)


@KINDS
def test_notes_and_markers(dataset: Path, make: Callable[[Path], None], capsys: pytest.CaptureFixture[str]) -> None:
    make(dataset / "skipped.tsv")
    assert main(["info", str(dataset)]) == 0
    assert "4 samples" in " ".join(capsys.readouterr().out.split())
    for name in ("manifest.json", "owner.json"):
        taken = dataset.parent / name.partition(".")[0]
        taken.mkdir()
        make(taken / name)
        with pytest.raises(LmdbloaderError, match="with other things in it"):
            lmdbloader.write([{"n": 1}], taken, overwrite=True)


def test_a_folder_of_photographs_leaves_them_out(tmp_path: Path) -> None:
    src = tmp_path / "src"
    src.mkdir()
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(src / "a.png")
    os.mkfifo(src / "b.png")
    endless(src / "c.png")
    report = lmdbloader.convert(src, tmp_path / "out", workers=1)
    assert report.num_samples == 1
    assert dict(report.ignored) == {"b.png": "not a regular file", "c.png": "not a regular file"}
