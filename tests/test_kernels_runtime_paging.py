"""Pages in memory, and loading the others, compared with the system's own report on a real file."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lmdbloader.base import system
from lmdbloader.kernels.entries import advise

PAGE = mmap.PAGESIZE
NUM_PAGES = 24 * 2**20 // PAGE
POPULATE_READ = 22
PIECE_NBYTES = 128 * 1024


class Mapped:
    """A file and its map, (n,) uint8, nothing of which was in memory when it was made."""

    def __init__(self, path: Path) -> None:
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self.fd = os.dup(file.fileno())
        self.data = np.frombuffer(self.map, np.uint8)
        self.base = self.data.ctypes.data
        self.stopping = np.zeros(1, np.uint8)

    def is_absent(self, page: int) -> bool:
        found = np.ones(1, np.uint8)
        return system.resident_pages(self.base + page * PAGE, 1, found) and not found[0] & 1

    def advise(self, starts: np.ndarray, stops: np.ndarray, advice: int) -> bool:
        return bool(advise(self.base, starts, stops, advice, PIECE_NBYTES, self.stopping))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("paging") / "file"
    path.write_bytes(np.random.default_rng(0).bytes(NUM_PAGES * PAGE))
    return path


@pytest.fixture
def cold(file: Path) -> Iterator[Mapped]:
    if not hasattr(os, "posix_fadvise"):
        pytest.skip("this platform has no posix_fadvise, so nothing can be dropped from memory")
    mapped = Mapped(file)
    if not mapped.is_absent(NUM_PAGES // 2):
        pytest.skip("dropping a file from memory does nothing on this file system")
    yield mapped
    os.close(mapped.fd)


def test_pages_are_mapped_in_its_ranges_and_no_others(cold: Mapped) -> None:
    cold.map.madvise(mmap.MADV_RANDOM)
    # Some pages, one range of more than a piece, another of many.
    starts = np.array([1, 100, 1000]) * PAGE
    stops = np.array([3 * PAGE, 100 * PAGE + 3 * PIECE_NBYTES, NUM_PAGES * PAGE - 10 * PAGE])
    wanted = {page for a, b in zip(starts, stops, strict=True) for page in range(a // PAGE, b // PAGE)}
    for _ in range(5):
        if not cold.advise(starts, stops, POPULATE_READ):
            pytest.skip("this system does not map pages on advice")
        present = {page for page in range(NUM_PAGES) if not cold.is_absent(page)}
        assert present <= wanted
        if present == wanted:  # the system may take pages away at any time
            return
    raise AssertionError(sorted(wanted - present))


def test_advice_that_the_system_refuses_is_reported(tmp_path: Path) -> None:
    short = tmp_path / "short"
    short.write_bytes(bytes(3 * PAGE))
    mapped = Mapped(short)
    start, stop = np.array([0]), np.array([3 * PAGE])
    assert mapped.advise(start, stop, mmap.MADV_WILLNEED)
    assert not mapped.advise(start, stop, 10**6)
    assert not mapped.advise(start, stop, -1)
    os.truncate(short, PAGE)
    assert not mapped.advise(start, stop, POPULATE_READ)
    mapped.stopping[0] = 1
    assert not mapped.advise(start, stop, mmap.MADV_WILLNEED)
    os.close(mapped.fd)


def test_advise_has_the_system_read_its_ranges(cold: Mapped) -> None:
    starts = np.array([0, 400]) * PAGE
    stops = np.array([1, 400 + 3 * PIECE_NBYTES // PAGE]) * PAGE
    assert cold.advise(starts, stops, mmap.MADV_WILLNEED)
    wanted = [0, *range(400, 400 + 3 * PIECE_NBYTES // PAGE)]
    give_up = time.monotonic() + 20
    while any(map(cold.is_absent, wanted)) and time.monotonic() < give_up:  # nothing waits for the disk
        time.sleep(0.01)
    assert [page for page in range(NUM_PAGES) if not cold.is_absent(page)] == wanted
