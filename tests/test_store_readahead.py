"""Reading ahead: it loads the requested samples, no caller waits forever, and its thread ends with its owner."""

from __future__ import annotations

import gc
import mmap
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lmdbloader
from lmdbloader.base import system
from lmdbloader.format.layout import CODEC_TILES
from lmdbloader.store import Readahead, Reader
from lmdbloader.store import readahead as module
from lmdbloader.store.readahead import coalesce

NUM_SAMPLES, NUM_LARGE = 600, 2
SMALL = np.arange(NUM_SAMPLES)
IO = pytest.mark.parametrize("io", ["mmap", "pread"])
LARGE = NUM_SAMPLES + np.arange(NUM_LARGE)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 600 pairs of 25 KB, and two with an image of 1.5 MB in tiles."""
    rng = np.random.default_rng(0)

    def samples() -> Iterator[dict[str, Any]]:
        for i in range(NUM_SAMPLES + NUM_LARGE):
            side = 80 if i < NUM_SAMPLES else 700
            image = rng.integers(0, 256, (side, side, 3), np.uint8)
            yield {"image": image, "mask": rng.integers(0, 256, (75, 75), np.uint8), "label": i}

    path = tmp_path_factory.mktemp("readahead") / "d"
    lmdbloader.write(samples(), path)
    return path


@pytest.fixture
def reader(written: Path) -> Reader:
    return Reader(written)


@pytest.fixture
def cold(written: Path) -> Reader:
    """A reader with only the pages in memory that opening it needs."""
    if not hasattr(os, "posix_fadvise"):
        pytest.skip("this platform has no posix_fadvise, so nothing can be dropped from memory")
    gc.collect()  # pages that somebody maps stay
    with open(written / "data.mdb", "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    reader = Reader(written)
    if resident_part(reader, "image", SMALL) > 0.1:
        pytest.skip("dropping a file from memory does nothing on this file system")
    return reader


def resident_part(reader: Reader, field: str, rows: np.ndarray) -> float:
    """Return the share of payloads in memory, 0 to 1, judged by one page of each."""
    starts = reader.index.arrays[f"{field}.offset"][rows] + 5000
    return float(np.mean([not cold_at(reader, at) for at in starts.tolist()]))


def num_threads() -> int:
    return sum(thread.name == "lmdbloader-readahead" for thread in threading.enumerate())


def until(condition: Any, seconds: float = 20) -> bool:
    give_up = time.monotonic() + seconds
    while not condition() and time.monotonic() < give_up:
        time.sleep(0.01)
    return bool(condition())


@pytest.fixture
def blocked(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Keep the thread from finishing anything until the event is set."""
    go = threading.Event()
    monkeypatch.setattr(module, "_serve", lambda *_: go.wait(60))
    yield go
    go.set()


ranges = st.lists(st.tuples(st.integers(0, 300), st.integers(1, 60)), max_size=12)


@given(ranges, st.integers(0, 20), st.sampled_from([1, 4, 16]))
def test_coalesced_ranges_equal_those_of_single_bytes(
    found: list[tuple[int, int]], gap_nbytes: int, page_nbytes: int
) -> None:
    touched = np.zeros(500, bool)
    for start, nbytes in found:
        touched[start // page_nbytes * page_nbytes : -(-(start + nbytes) // page_nbytes) * page_nbytes] = True
    edges = np.flatnonzero(np.diff(np.concatenate(([False], touched, [False]))))
    expected: list[list[int]] = []
    for start, stop in edges.reshape(-1, 2).tolist():
        if expected and start - expected[-1][1] <= gap_nbytes:
            expected[-1][1] = stop
        else:
            expected.append([start, stop])
    starts = np.array([start for start, _ in found], np.int64)
    stops = starts + np.array([nbytes for _, nbytes in found], np.int64)
    got = coalesce(starts, stops, gap_nbytes=gap_nbytes, page_nbytes=page_nbytes)
    assert np.stack(got, 1).tolist() == expected


@IO
def test_load_brings_in_all_samples_before_the_ticket_is_done(cold: Reader, io: Any) -> None:
    readahead = Readahead(cold.with_io(io), ["image", "mask"])
    readahead.advise(random=True)
    rows = np.random.default_rng(1).permutation(NUM_SAMPLES // 2)
    assert not readahead.is_resident(rows)
    ticket = readahead.load(rows)
    assert ticket.wait(60) and ticket.done
    assert readahead.is_resident(rows)
    assert resident_part(cold, "image", rows) == resident_part(cold, "mask", rows[:, None].ravel()) == 1
    assert resident_part(cold, "image", SMALL[NUM_SAMPLES // 2 + 40 :]) == 0
    readahead.close()


@IO
def test_will_need_brings_samples_in_but_no_large_tiled_image(cold: Reader, io: Any) -> None:
    assert (cold.index.arrays["image.codec"][LARGE] == CODEC_TILES).all()
    readahead = Readahead(cold.with_io(io), ["image", "mask"])
    readahead.advise(random=True)
    rows = np.concatenate((LARGE, np.arange(0, NUM_SAMPLES, 7)[::-1]))
    readahead.will_need(rows)
    assert until(lambda: resident_part(cold, "image", rows[NUM_LARGE:]) == 1)
    assert readahead.load(SMALL[:1]).wait(60)  # the one before is over
    assert until(lambda: resident_part(cold, "mask", rows) == 1)
    large = cold.index.arrays["image.offset"][LARGE] + 700_000
    assert all(cold_at(cold, at) for at in large)
    assert readahead.load(LARGE).wait(60)
    assert not any(cold_at(cold, at) for at in large)
    readahead.close()


def cold_at(reader: Reader, at: int) -> bool:
    found = np.ones(1, np.uint8)
    return (
        system.resident_pages((reader.data_file.data.ctypes.data + int(at)) & -mmap.PAGESIZE, 1, found)
        and not found[0] & 1
    )


def test_there_is_one_thread_and_close_ends_it(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    readahead, make = Readahead(reader, ["image"]), module._Worker
    assert num_threads() == 0
    together = threading.Barrier(8)

    def make_together() -> Any:
        together.wait(20)  # everybody finds that there is none yet
        return make()

    monkeypatch.setattr(module, "_Worker", make_together)

    def ask() -> None:
        readahead.will_need(SMALL[:5])
        assert readahead.load(SMALL[:5]).wait(60)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert num_threads() == 1
    readahead.close()
    assert num_threads() == 0
    readahead.close()
    readahead.will_need(SMALL)
    assert readahead.load(SMALL).wait(0)
    assert num_threads() == 0


def test_closing_ends_every_wait(reader: Reader, blocked: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_JOIN_SECONDS", 0.05)  # as with storage that does not answer
    readahead = Readahead(reader, ["image"])
    under_way, waiting = readahead.load(SMALL), readahead.load(SMALL)
    assert not under_way.wait(0.05) and not waiting.done
    done: list[bool] = []
    threads = [threading.Thread(target=lambda t=t: done.append(t.wait(60))) for t in (under_way, waiting)]
    for thread in threads:
        thread.start()
    readahead.close()
    for thread in threads:
        thread.join(20)
    assert done == [True, True]


def test_an_error_in_the_thread_reaches_waiting_and_later_callers(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()

    def fail(*_: object) -> None:
        go.wait(60)
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(module, "_serve", fail)
    readahead = Readahead(reader, ["image"])
    tickets = [readahead.load(SMALL), readahead.load(SMALL)]
    go.set()
    for ticket in tickets:
        with pytest.raises(ZeroDivisionError, match="planted"):
            ticket.wait(20)
    assert until(lambda: num_threads() == 0)
    with pytest.raises(ZeroDivisionError, match="planted"):
        readahead.will_need(SMALL)


def test_a_thread_without_memory_leaves_no_caller_waiting(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE_NBYTES", 2**62)
    readahead = Readahead(reader, ["image"])
    with pytest.raises(MemoryError):
        readahead.load(SMALL).wait(20)
    readahead.close()


@IO
def test_a_file_that_cannot_be_read_ends_the_ticket(reader: Reader, io: Any, tmp_path: Path) -> None:
    readahead = Readahead(reader.with_io(io), ["image"])
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        os.dup2(folder, readahead._file.files[0].descriptor)
    finally:
        os.close(folder)
    assert readahead.load(SMALL).wait(20)
    assert io == "mmap" or not readahead.is_resident(SMALL)
    readahead.will_need(SMALL)
    readahead.close()


def run(program: str, path: Path) -> str:
    """Return the output of a program run in another process, which must end by itself."""
    start = (
        "import os, sys, warnings, numpy as np\n"
        "from lmdbloader.store import Reader, Readahead\n"
        "from lmdbloader.store import readahead as module\n"
        "reader = Reader(sys.argv[1]); rows = np.arange(600)\n"
        "readahead = Readahead(reader, ['image'])\n"
    )
    command = [sys.executable, "-c", start + program, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.mark.parametrize("last", ["", "import time; module._serve = lambda *_: time.sleep(100); readahead.load(rows)"])
def test_the_interpreter_exits_with_the_thread_at_work(written: Path, last: str) -> None:
    assert run(f"for _ in range(50): readahead.load(rows)\nprint('end')\n{last}", written) == "end\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform does not fork")
def test_a_forked_child_starts_its_own_thread_and_does_not_wait_for_the_parents(written: Path) -> None:
    program = """
import threading
go = threading.Event()
serve, module._serve = module._serve, lambda *_: go.wait(60)
ticket = readahead.load(rows)
assert not ticket.wait(0.05)
warnings.simplefilter("ignore")  # of forking with threads
child = os.fork()
if child == 0:
    module._serve = serve
    assert ticket.wait(60)
    assert readahead.load(rows).wait(60)
    assert threading.active_count() == 2, threading.enumerate()
    readahead.close()
    assert threading.active_count() == 1
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert not ticket.done
go.set()
assert ticket.wait(60)
print("end")
"""
    assert run(program, written) == "end\n"
