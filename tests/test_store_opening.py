"""Several data files in one range of addresses: bytes, ranges, guards, and files that are cut short meanwhile."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from part_sets import make_set

from lmdbloader.format.layout import PART_ALIGNMENT
from lmdbloader.kernels.runtime.presence import forget, is_there, look
from lmdbloader.store.opening import IO, DataFile, OpenFile

PAGE = mmap.PAGESIZE
# One file is as long as the alignment, so that the next one begins where it ends.
LENGTHS = [3 * PAGE + 7, PART_ALIGNMENT, 1, 2 * PAGE]


@pytest.fixture(scope="module")
def contents(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], list[bytes]]:
    folder, rng = tmp_path_factory.mktemp("joined"), np.random.default_rng(0)
    paths, contents = [], []
    for number, nbytes in enumerate(LENGTHS):
        paths.append(folder / str(number))
        contents.append(rng.bytes(nbytes))
        paths[-1].write_bytes(contents[-1])
    return paths, contents


def joined(paths: list[Path], io: IO = "mmap") -> DataFile:
    return DataFile([OpenFile(path) for path in paths], io, Path("set"))


@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_bytes_are_those_of_the_files(contents: tuple[list[Path], list[bytes]], io: Any) -> None:
    paths, expected = contents
    file = joined(paths, io)
    assert file.nbytes == file.begins[-1] + LENGTHS[-1]
    assert [begin % PART_ALIGNMENT for begin in file.begins] == [0] * 4
    for begin, content in zip(file.begins, expected, strict=True):
        assert file.read(begin, len(content)) == content
        assert file.read(begin + len(content) - 1, 100) == content[-1:]  # ends with its file
        buffer = bytearray(5)
        assert file.read_into(buffer, begin) == min(5, len(content))
        if io == "mmap":
            assert file.data[begin : begin + len(content)].tobytes() == content
    other: IO = "pread" if io == "mmap" else "mmap"
    assert file.with_io(other).read(file.begins[1], 10) == expected[1][:10]


RANGES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, PART_ALIGNMENT), st.integers(1, 9 * PAGE)), max_size=6)


@settings(max_examples=60)
@given(ranges=RANGES)
def test_ranges_are_split_at_the_ends_of_files(
    contents: tuple[list[Path], list[bytes]], ranges: list[tuple[int, int, int]]
) -> None:
    file = joined(contents[0], "pread")
    begin = [file.begins[number] + at for number, at, _ in ranges]
    stop = [at + nbytes for at, (_, _, nbytes) in zip(begin, ranges, strict=True)]
    columns = file.places(np.array(begin, np.int64), np.array(stop, np.int64))
    number_of = {each.descriptor: number for number, each in enumerate(file.files)}
    found = [(low, high, number_of[d], first) for low, high, d, first in zip(*map(list, columns), strict=True)]
    spans = [(a, a + nbytes) for a, nbytes in zip(file.begins, LENGTHS, strict=True)]
    parts = [
        (max(low, first), min(high, last), number, first)
        for low, high in zip(begin, stop, strict=True)
        for number, (first, last) in enumerate(spans)
    ]
    assert found == [part for part in parts if part[0] < part[1]]


def test_a_guard_lets_through_what_is_in_one_file(contents: tuple[list[Path], list[bytes]]) -> None:
    paths = contents[0]
    file = joined(paths)
    base, _, descriptor, guard = file.for_kernels()
    assert descriptor == -1

    def has(at: int, nbytes: int) -> bool:
        return bool(is_there(guard, base, np.int64(at), np.int64(nbytes)))

    for begin, nbytes in zip(file.begins, LENGTHS, strict=True):
        assert has(begin, nbytes) and has(begin + nbytes - 1, 1) and has(begin, 0)
        assert not has(begin, nbytes + 1)
        assert not has(begin + nbytes, 1) or begin + nbytes in file.begins
        starts = np.array([begin], np.int64)
        forget(guard, starts, starts + nbytes)
        assert has(begin, nbytes)
    assert not has(-1, 1) and not has(file.nbytes, 1)
    whole = joined(paths[:2])  # it ends where another file could begin
    directory = np.append(whole._words, 0)  # a word that is not of the directory
    base, guard = whole.data.ctypes.data, directory.ctypes.data
    assert whole.nbytes % PART_ALIGNMENT == 0 and has(whole.nbytes, 0) and not has(whole.nbytes, 1)


def test_a_file_that_is_cut_short_is_noticed(contents: tuple[list[Path], list[bytes]], tmp_path: Path) -> None:
    copies = []
    for path in contents[0]:
        copies.append(tmp_path / path.name)
        copies[-1].write_bytes(path.read_bytes())
    files = [joined(copies) for _ in range(8)]  # one payload of 16 is looked at in any case
    places = [np.int64(file.begins[1] + PART_ALIGNMENT - 10 * k) for k, file in enumerate(files, 1)]

    def are_there(begin: Any) -> list[bool]:
        return [
            bool(is_there(file.for_kernels()[3], file.for_kernels()[0], np.int64(at), np.int64(10)))
            for file, at in zip(files, begin, strict=True)
        ]

    assert all(are_there(places)) and files[0].lost() is None
    os.truncate(copies[1], PAGE)
    for file in files:
        look(file.for_kernels()[3])  # as the next batch does
    assert not any(are_there(places)) and all(are_there([0] * 8))
    assert files[0].lost() == (files[0].files[1], PAGE)


_MANY_PARTS = """
import os, resource, shutil, sys
import lmdbloader
from lmdbloader.base.system import machine

hard, case, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
resource.setrlimit(resource.RLIMIT_NOFILE, (30, hard))
if case == "old":
    machine._populates = lambda: False
dataset = lmdbloader.LMDBDataset(folder, io="pread" if case == "pread" else "mmap")
reader = dataset.reader
if case == "replaced":
    os.replace(shutil.copy(folder + "/data-00038.mdb", folder + "/copy"), folder + "/data-00039.mdb")
    reader.stored_bytes("blob", 39)
if case == "deleted":
    shutil.rmtree(folder)
    for batch in lmdbloader.Loader(dataset, batch_size=40, io="pread", order="random"):
        print(sum(blob[0] for blob in batch["blob"]), len(batch["blob"]))
    sys.exit()
total = sum(int(reader.read_bytes("blob", row)[0]) for row in range(len(reader)))
for batch in lmdbloader.Loader(reader.path, batch_size=40, io=reader.io, order="random"):
    assert lmdbloader.verify(folder).is_sound
    print(total, len(batch["blob"]))
"""


@pytest.mark.parametrize(
    ("hard", "case"), [(400, "mmap"), (30, "mmap"), (30, "pread"), (30, "old"), (30, "replaced"), (30, "deleted")]
)
def test_more_parts_than_open_files(tmp_path: Path, hard: int, case: str) -> None:
    make_set(tmp_path / "d", [[{"blob": bytes([i])}] for i in range(40)])
    command = [sys.executable, "-c", _MANY_PARTS, str(hard), case, tmp_path / "d"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if case == "old":
        assert "OptionError" in found.stderr and "has 40 parts" in found.stderr and "ulimit -n" in found.stderr
    elif case == "replaced":
        assert (
            "CorruptError" in found.stderr and "cannot read bytes" in found.stderr and "data-00039.mdb" in found.stderr
        )
    else:
        assert found.stdout.split() == [str(sum(range(40))), "40"], found.stderr
