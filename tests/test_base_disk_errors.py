"""Failing and full disks become errors that name the file and the remedy."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import lmdbloader
from lmdbloader.base.disk_errors import explain_full_disk, naming, unreadable_is_corrupt
from lmdbloader.errors import CorruptError, DiskError, DiskFullError


def failure(code: int = errno.EIO) -> OSError:
    return OSError(code, os.strerror(code))


def test_an_error_of_an_open_file_gets_its_name() -> None:
    with pytest.raises(OSError, match=r"Input/output error: 'a/b'"), naming(Path("a/b")):
        raise failure()
    with pytest.raises(FileNotFoundError) as caught, naming("a/b"):
        open("c/d")  # noqa: SIM115
    assert caught.value.filename == "c/d"  # its own name is kept
    with pytest.raises(CorruptError, match=r"^damaged$"), naming("a/b"):
        raise CorruptError("damaged")


def test_a_failing_disk_is_distinguished_from_a_full_one(tmp_path: Path) -> None:
    with (
        pytest.raises(DiskError, match=r"/x/data\.mdb: the disk failed \(Input/output error\).*run it again"),
        explain_full_disk(tmp_path),
        naming("/x/data.mdb"),
    ):
        raise failure()
    with pytest.raises(DiskFullError), explain_full_disk(tmp_path):
        raise failure(errno.ENOSPC)
    with pytest.raises(PermissionError), explain_full_disk(tmp_path):
        raise failure(errno.EACCES)


def test_an_unreadable_file_of_a_dataset_is_damage(tmp_path: Path) -> None:
    with (
        pytest.raises(CorruptError, match=r"index\.arrow: the disk cannot read it .*verify") as caught,
        unreadable_is_corrupt(tmp_path / "index.arrow", dataset=tmp_path),
    ):
        raise failure()
    assert caught.value.path == str(tmp_path)
    with pytest.raises(FileNotFoundError), unreadable_is_corrupt(tmp_path / "x", dataset=tmp_path):
        raise FileNotFoundError(errno.ENOENT, "no such file")


@pytest.mark.parametrize("name", ["plan.json", "data.mdb", "rows.arrow", "facts.json", "index.arrow", "manifest.json"])
def test_a_flush_that_fails_ends_the_conversion_and_names_the_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    src, out = tmp_path / "src", tmp_path / "out.lmdb"
    src.mkdir()
    for i in range(6):
        Image.fromarray(np.full((20, 20, 3), 40 * i, np.uint8)).save(src / f"{i}.png")
    real = os.fsync

    def fsync(handle: int) -> None:
        if os.readlink(f"/proc/self/fd/{handle}").partition("out.lmdb.partial")[2].rpartition("/")[2].startswith(name):
            raise failure()
        real(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        with pytest.raises(DiskError, match=rf"out\.lmdb\.partial/.*{name}.*: the disk failed"):
            lmdbloader.convert(src, out, workers=1)
    assert not out.exists()
    assert lmdbloader.convert(src, out, workers=1).num_samples == 6
    assert lmdbloader.verify(out).is_sound
