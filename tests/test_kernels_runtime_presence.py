"""Pages of a map are checked once before they are touched; bytes that the file lost are noticed."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmdbloader.base.system import POPULATE_READ, resident_pages
from lmdbloader.kernels.runtime.guard_words import LENGTH, LOOKS, NUM_HEAD, POPULATE
from lmdbloader.kernels.runtime.presence import forget, is_there, look
from lmdbloader.store.opening import DataFile, OpenFile

PAGE = mmap.PAGESIZE
NUM_PAGES = 300
NBYTES = NUM_PAGES * PAGE - 100
PAGEOUT = 21


class Guarded:
    """A mapped file and its guard."""

    def __init__(self, path: Path, populate: int = POPULATE_READ) -> None:
        self.file = DataFile([OpenFile(path)], "mmap", path)
        self.base, _, _, self.guard = self.file.for_kernels()
        self.words = self.file._words
        self.words[POPULATE] = populate
        self.words[LOOKS] = 1

    def has(self, at: int, nbytes: int) -> bool:
        return bool(is_there(self.guard, self.base, np.int64(at), np.int64(nbytes)))

    def marked(self) -> set[int]:
        bits = np.unpackbits(self.words[NUM_HEAD:].view(np.uint8), bitorder="little")
        return set(np.flatnonzero(bits).tolist())


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("presence") / "data"
    path.write_bytes(os.urandom(NBYTES))
    return path


def pages(ranges: list[tuple[int, int]]) -> set[int]:
    return {page for at, nbytes in ranges for page in range(at // PAGE, (at + nbytes - 1) // PAGE + 1)}


RANGES = st.lists(
    st.integers(0, NBYTES - 1).flatmap(lambda at: st.tuples(st.just(at), st.integers(1, min(NBYTES - at, 90 * PAGE)))),
    max_size=6,
)


@settings(max_examples=60)
@given(read=RANGES, lost=RANGES, again=RANGES)
def test_the_marks_are_those_of_the_pages_that_were_read(
    path: Path, read: list[tuple[int, int]], lost: list[tuple[int, int]], again: list[tuple[int, int]]
) -> None:
    guarded = Guarded(path)
    assert all(guarded.has(at, nbytes) for at, nbytes in read)
    assert guarded.marked() == pages(read)
    starts, stops = np.array([(at, at + nbytes) for at, nbytes in lost], np.int64).reshape(-1, 2).T
    forget(guarded.guard, np.ascontiguousarray(starts), np.ascontiguousarray(stops))
    assert guarded.marked() == pages(read) - pages(lost)
    assert all(guarded.has(at, nbytes) for at, nbytes in again)
    assert guarded.marked() == pages(read) - pages(lost) | pages(again)


@contextmanager
def cut(path: Path, nbytes: int) -> Iterator[None]:
    content = path.read_bytes()
    os.truncate(path, nbytes)
    try:
        yield
    finally:
        path.write_bytes(content)


@pytest.mark.parametrize("populate", [POPULATE_READ, -1, 10**6], ids=["mapped", "read", "advice the system lacks"])
def test_bytes_that_the_file_lost_are_absent(path: Path, populate: int) -> None:
    guarded = Guarded(path, populate)
    assert guarded.has(0, NBYTES) and len(guarded.marked()) == NUM_PAGES
    with cut(path, 10 * PAGE + 5):
        look(guarded.guard)
        assert guarded.has(9 * PAGE, PAGE + 5) and not guarded.has(9 * PAGE, PAGE + 6)
        assert not guarded.has(200 * PAGE, 1)
        assert guarded.marked() == {9, 10}
    assert guarded.has(200 * PAGE, 1)  # it is there again
    with cut(path, 0):
        look(guarded.guard)
        assert not guarded.has(0, 1)
        assert guarded.has(0, 0)


def test_pages_behind_the_end_are_not_there_though_the_length_is_not_looked_at(path: Path) -> None:
    # As with a slow server: only the first read of a page is checked.
    guarded = Guarded(path)
    assert guarded.words is not None
    guarded.words[LOOKS] = 0
    assert guarded.has(0, PAGE)
    with cut(path, 10 * PAGE):
        look(guarded.guard)
        assert guarded.words[LENGTH] == NBYTES
        assert guarded.has(0, PAGE) and not guarded.has(20 * PAGE, PAGE)


@pytest.mark.skipif(POPULATE_READ < 0, reason="not Linux")
def test_memory_that_the_system_took_back_is_asked_for_again(tmp_path: Path) -> None:
    path = tmp_path / "data"  # mapped by nobody else
    path.write_bytes(os.urandom(NBYTES))
    guarded = Guarded(path)
    descriptor = os.open(path, os.O_RDWR)
    os.fsync(descriptor)  # marks that are not written yet stay
    os.close(descriptor)
    assert guarded.has(0, NBYTES)
    found = np.ones(NUM_PAGES, np.uint8)
    for _ in range(50):  # pages that were written just now stay for a moment
        with suppress(OSError):  # a system that cannot be asked to
            guarded.file._map.madvise(PAGEOUT)
        if resident_pages(guarded.base, NBYTES, found) and not (found & 1).all():
            break
        time.sleep(0.05)
    else:
        pytest.skip("the system keeps the pages in memory")
    for number in range(NUM_PAGES - 1, -1, -1):  # one of 16 is looked at
        assert guarded.has(number * PAGE + 8, 8)
        if len(guarded.marked()) < NUM_PAGES:
            return
    raise AssertionError("nobody saw that the pages are gone")
