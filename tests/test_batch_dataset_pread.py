"""With io="pread" nothing is mapped: a file that is truncated under a running reader is an error, never a signal."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from payloads import EACH, one_of_each, write_payloads

import lmdbloader
from lmdbloader import LMDBDataset, Loader
from lmdbloader.errors import CorruptError
from lmdbloader.store import Reader

PROGRAM = Path(__file__).with_name("reading_cut_short.py")
IO = pytest.mark.parametrize("io", ["mmap", "pread"])
COUNT = 3


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_payloads(tmp_path_factory.mktemp("pread") / "d", EACH, [one_of_each(i) for i in range(COUNT)])


def run(path: Path, io: str, seconds: float) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", str(PROGRAM), str(path), io, str(seconds)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(PROGRAM.parent.parent), str(PROGRAM.parent)])}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=300)


def test_a_file_that_is_cut_short_under_a_reader_is_an_error_with_pread(written: Path, tmp_path: Path) -> None:
    done = run(Path(shutil.copytree(written, tmp_path / "d")), "pread", 0.5)
    assert done.returncode == 0, done.stderr
    right, corrupt = map(int, done.stdout.split())
    assert right > 100 and corrupt > 100


def test_a_file_that_was_cut_short_before_it_is_read_is_an_error_with_the_map(written: Path, tmp_path: Path) -> None:
    # Nothing is cut in the middle of reading it: that can still end the process, as the documents state.
    done = run(Path(shutil.copytree(written, tmp_path / "d")), "mmap", 0)
    assert done.returncode == 0, done.stderr
    right, corrupt = map(int, done.stdout.split())
    assert right > 100 and corrupt > 100


@IO
def test_a_reader_keeps_a_dataset_that_a_rename_replaces(tmp_path: Path, io: Any) -> None:
    def write(fill: int) -> None:
        samples = ({"image": np.full((20, 20, 3), fill, np.uint8), "n": fill, "b": bytes([fill])} for _ in range(30))
        lmdbloader.write(samples, tmp_path / "d", overwrite=True)

    write(0)
    readers = []
    for fill in range(1, 4):
        ds = LMDBDataset(tmp_path / "d", io=io)
        batches = iter(Loader(ds, 4, shuffle=True, num_threads=1, prefetch=0, io=io))
        first = next(batches)
        readers.append((fill - 1, ds, batches, first))
        write(fill)
    for old, ds, batches, first in readers:
        assert all((batch.image == old).all() and (batch.n == old).all() for batch in [first, *batches])
        assert ds[7].b == bytes([old]) and (ds.with_io("mmap").crop(3, top=0, left=0, height=2, width=2) == old).all()
        assert ds.with_io("pread")[7].b == bytes([old])
        assert all((batch.image == old).all() for batch in Loader(ds, 8, shuffle=True, io="pread"))
    assert LMDBDataset(tmp_path / "d", io=io)[0].n == 3
    with pytest.raises(CorruptError, match="was replaced by another dataset"):
        pickle.loads(pickle.dumps(readers[0][1]))


@IO
def test_every_field_reads_the_same(written: Path, io: Any) -> None:
    ds = LMDBDataset(written, io=io)
    other = LMDBDataset(written)
    assert ds.reader.io == io
    for a, b in zip(ds, other, strict=True):
        for name, x, y in zip(EACH, a, b, strict=True):
            assert torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y, name
    assert len(ds.reader.data_file.data) == (0 if io == "pread" else os.path.getsize(written / "data.mdb"))


@IO
def test_how_it_is_read_survives_pickling_views_and_forks(written: Path, io: Any) -> None:
    ds = LMDBDataset(written, io=io)
    back = pickle.loads(pickle.dumps(ds))
    for each in (
        back,
        ds.select([1]),
        ds.where("source == '0.png'"),
        pickle.loads(pickle.dumps(ds.reader)),
    ):
        reader = each if isinstance(each, Reader) else each.reader
        assert reader.io == io
    loader = pickle.loads(pickle.dumps(Loader(ds, 2, shuffle=True, io="pread")))
    assert loader.dataset.reader.io == io
    expected = back[1].jpeg.numpy()
    if (pid := os.fork()) == 0:  # where torch must not compute: its threads did not come along
        os._exit(0 if np.array_equal(ds[1].jpeg.numpy(), expected) else 1)
    assert os.waitpid(pid, 0)[1] == 0


def test_no_descriptor_is_left(written: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        ds = LMDBDataset(written, io="pread").with_io("mmap").with_io("pread")
        assert ds[0].bytes == b"some bytes"
        del ds
    assert len(os.listdir("/proc/self/fd")) == before
