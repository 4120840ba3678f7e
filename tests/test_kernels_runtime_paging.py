"""Pages in memory, and loading the others, compared with the system's own report on a real file."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lmdbloader.kernels.entries import advise, any_absent, load
from lmdbloader.kernels.runtime.paging_words import LOADED, PIECE_NBYTES, UNREADABLE

PAGE = mmap.PAGESIZE
NUM_PAGES = 24 * 2**20 // PAGE
POPULATE_READ = 22


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
        return bool(any_absent(self.base, np.array([page * PAGE]), PAGE, np.zeros(1, np.uint8)))

    def load(self, starts: np.ndarray, stops: np.ndarray, populate: int) -> int:
        buffer = np.empty(PIECE_NBYTES, np.uint8)
        zeros = np.zeros(len(starts), np.int64)
        return int(load(self.base, starts, stops, populate, zeros + self.fd, zeros, buffer, self.stopping))


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


def test_a_page_that_was_touched_is_in_memory_and_a_far_one_is_not(cold: Mapped) -> None:
    cold.map.madvise(mmap.MADV_RANDOM)  # the page alone
    at = NUM_PAGES // 2
    assert cold.data[at * PAGE + 5] >= 0
    found = np.zeros(1, np.uint8)
    inside = np.array([at * PAGE, at * PAGE + 5, at * PAGE + PAGE - 1])
    assert not any_absent(cold.base, inside, PAGE, found)
    assert any_absent(cold.base, np.append(inside, (at + 1) * PAGE), PAGE, found)
    assert any_absent(cold.base, np.append(inside, at * PAGE - 1), PAGE, found)
    assert not any_absent(cold.base, np.empty(0, np.int64), PAGE, found)


@pytest.mark.parametrize("populate", [POPULATE_READ, -1, 10**6], ids=["mapped", "read", "advice the system lacks"])
def test_load_brings_in_its_ranges_and_no_others(cold: Mapped, populate: int) -> None:
    cold.map.madvise(mmap.MADV_RANDOM)
    # Some pages, one range of more than a piece, another of more than is asked for ahead.
    starts = np.array([1, 100, 1000]) * PAGE
    stops = np.array([3 * PAGE, 100 * PAGE + 3 * PIECE_NBYTES, NUM_PAGES * PAGE - 10 * PAGE])
    wanted = {page for a, b in zip(starts, stops, strict=True) for page in range(a // PAGE, b // PAGE)}
    for _ in range(5):
        assert cold.load(starts, stops, populate) == LOADED
        present = {page for page in range(NUM_PAGES) if not cold.is_absent(page)}
        assert present <= wanted
        if present == wanted:  # the system may take pages away at any time
            return
    raise AssertionError(sorted(wanted - present))


@pytest.mark.parametrize("populate", [POPULATE_READ, -1])
def test_load_past_the_end_says_so(tmp_path: Path, populate: int) -> None:
    short = tmp_path / "short"
    short.write_bytes(bytes(3 * PAGE))
    mapped = Mapped(short)
    os.truncate(short, PAGE)
    assert mapped.load(np.array([0]), np.array([3 * PAGE]), populate) == LOADED  # the existing part of the piece
    assert mapped.load(np.array([PAGE]), np.array([3 * PAGE]), populate) == UNREADABLE
    os.close(mapped.fd)


def test_advise_has_the_system_read_its_ranges(cold: Mapped) -> None:
    starts = np.array([0, 400]) * PAGE
    stops = np.array([1, 400 + 3 * PIECE_NBYTES // PAGE]) * PAGE
    assert advise(cold.base, starts, stops, mmap.MADV_WILLNEED, PIECE_NBYTES, cold.stopping) == LOADED
    wanted = [0, *range(400, 400 + 3 * PIECE_NBYTES // PAGE)]
    give_up = time.monotonic() + 20
    while any(map(cold.is_absent, wanted)) and time.monotonic() < give_up:  # nothing waits for the disk
        time.sleep(0.01)
    assert [page for page in range(NUM_PAGES) if not cold.is_absent(page)] == wanted
