"""A system that refuses a thread, a process or memory: the error states how many are needed, and the remedy."""

from __future__ import annotations

import errno
import gc
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest

import lmdbloader
from lmdbloader import LMDBDataset, Loader
from lmdbloader.base import system
from lmdbloader.base.limits import explain_limit, no_memory, refused_memory
from lmdbloader.cli import main
from lmdbloader.conversion.extraction import extract
from lmdbloader.conversion.options import ConvertOptions
from lmdbloader.conversion.pool import WorkerPool
from lmdbloader.conversion.sources.listing import Source
from lmdbloader.conversion.tasks import Recipe
from lmdbloader.errors import WorkerError
from lmdbloader.format.layout import make_field
from lmdbloader.loader import loader as loader_module
from lmdbloader.store import Readahead

COUNT = 300


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("limits") / "d.lmdb"
    lmdbloader.write(({"image": np.full((8, 8), i % 256, np.uint8), "number": i} for i in range(COUNT)), path)
    return path


@pytest.fixture
def allow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int | None], None]]:
    """Limit the number of threads that can start from now on; further ones ask for a stack that no system has."""
    left: list[int | None] = [None]
    start = threading.Thread.start

    def limited(thread: threading.Thread) -> None:
        if left[0] is None:
            return start(thread)
        before = threading.stack_size(0 if left[0] > 0 else 2**46)
        try:
            start(thread)
            left[0] -= 1
        finally:
            threading.stack_size(before)

    monkeypatch.setattr(threading.Thread, "start", limited)

    def set_left(count: int | None) -> None:
        left[0] = count

    yield set_left


# A process that may map some MiB more than it has.
TIGHT = """
import re, resource, sys
import numpy as np
import lmdbloader
from lmdbloader.errors import {error}

def limit():
    kib = int(re.search(r"VmSize:\\s*(\\d+)", open("/proc/self/status").read())[1])
    resource.setrlimit(resource.RLIMIT_AS, (kib * 1024 + {mib} * 2**20, resource.RLIM_INFINITY))

images = [np.full((1000, 1000, 3), i, np.uint8) for i in range(12)]
{before}
limit()
try:
    {then}
except {error} as error:
    print(error)
{after}
"""


def in_tight_memory(error: str, mib: int, before: str, then: str, after: str = "") -> str:
    code = TIGHT.format(error=error, mib=mib, before=before, then=then, after=after)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_a_dataset_that_cannot_be_mapped_is_read_without_a_map(tmp_path: Path) -> None:
    path = str(tmp_path / "d.lmdb")
    said = in_tight_memory(
        "OptionError",
        24,
        f"lmdbloader.write(({{'image': x}} for x in images), {path!r}, codec='raw')\n"
        f"lmdbloader.LMDBDataset({path!r}, io='pread')[0]",
        f"lmdbloader.LMDBDataset({path!r})",
        f"print(lmdbloader.LMDBDataset({path!r}, io='pread')[3].image.max())",
    )
    assert re.search(r"d\.lmdb: the system refuses to map 36\d+ bytes .*io=\"pread\"", said)
    assert said.splitlines()[-1] == "tensor(3, dtype=torch.uint8)"


def no_process(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))


def no_map(*_: Any, **__: Any) -> None:
    raise lmdb.MemoryError("mmap: Cannot allocate memory")


def no_memory_left(*_: Any, **__: Any) -> None:
    raise MemoryError


# In a process whose address space ends there in fact, pyarrow's threads and CPython's compiler may end it first.
@pytest.mark.parametrize(
    ("of", "name", "refuse"), [(subprocess, "Popen", no_process), (lmdb, "open", no_map), (np, "empty", no_memory_left)]
)
def test_the_command_reports_on_one_line_that_its_address_space_is_too_small(
    of: Any, name: str, refuse: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "src").mkdir()
    for i in range(40):
        header = b"P6 200 200 255 "
        (tmp_path / "src" / f"{i}.ppm").write_bytes(header + bytes([i]) * 120_000)
    monkeypatch.setattr(system, "address_limit", lambda: 2**28)
    monkeypatch.setattr(of, name, refuse)
    assert main(["convert", str(tmp_path / "src"), str(tmp_path / "out"), "--workers", "2"]) == 1
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert re.fullmatch(r"lmdbloader: .*: the system refuses .*ulimit -v.* 268435456 .*", said.splitlines()[-1])


def chained(outer: BaseException, cause: BaseException) -> BaseException:
    outer.__cause__ = cause
    return outer


NO_ROOM = OSError("libx.so: failed to map segment from shared object")


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (MemoryError(), "MemoryError"),
        (MemoryError("Unable to allocate 384. GiB"), "Unable to allocate 384. GiB"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "[Errno 12] Cannot allocate memory"),
        (NO_ROOM, str(NO_ROOM)),
        (ImportError(str(NO_ROOM)), str(NO_ROOM)),
        (chained(RuntimeError("no library"), NO_ROOM), str(NO_ROOM)),
        (OSError(errno.ENOENT, "No such file"), None),
        (ImportError("No module named 'x'"), None),
        (ValueError("x"), None),
    ],
)
def test_refused_memory_is_found_among_the_causes(error: BaseException, found: str | None) -> None:
    refused = refused_memory(error)
    assert (refused is None) == (found is None)
    if refused is not None:
        said = no_memory("converting a.png", refused, "Use fewer.")
        assert said.startswith(f"converting a.png: the system refuses memory ({found}).")


def test_two_loops_that_begin_at_once_share_their_threads(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()
    before = len(loader_threads())
    start, started = threading.Thread.start, threading.Barrier(2)
    monkeypatch.setattr(loader_module, "count_cores", lambda: 3)

    def slowly(thread: threading.Thread) -> None:
        if thread.name.startswith("lmdbloader"):
            time.sleep(0.05)
        start(thread)

    loader = Loader(LMDBDataset(path), 8, shuffle=True, num_threads=3)
    found: list[int] = []

    def loop() -> None:
        batches = iter(loader)
        started.wait()
        found.append(sum(len(batch.number) for batch in batches))

    loops = [threading.Thread(target=loop, name=f"loop-{k}") for k in range(2)]
    for thread in loops:
        thread.start()
    monkeypatch.setattr(threading.Thread, "start", slowly)
    for thread in loops:
        thread.join()
    assert found == [COUNT, COUNT]
    assert len(loader_threads()) - before == 3
    loader.close()


def loader_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("lmdbloader")]


@pytest.mark.parametrize("allowed", [0, 3])
def test_a_loader_whose_threads_are_refused_says_how_many_it_wants_and_works_later(
    path: Path, monkeypatch: pytest.MonkeyPatch, allow: Callable[[int | None], None], allowed: int
) -> None:
    gc.collect()
    before = loader_threads()
    monkeypatch.setattr(loader_module, "count_cores", lambda: 4)
    loader = Loader(LMDBDataset(path), 8, shuffle=True, num_threads=4)
    allow(allowed)
    with pytest.raises(WorkerError, match=rf"4 threads: thread {allowed + 1} of 4 .*num_threads=2"):
        next(iter(loader))
    assert loader_threads() == before
    allow(None)
    assert sorted(number for batch in loader for number in batch.number.tolist()) == list(range(COUNT))


def test_a_loader_whose_read_ahead_is_refused_says_so(
    path: Path, monkeypatch: pytest.MonkeyPatch, allow: Callable[[int | None], None]
) -> None:
    loader = Loader(LMDBDataset(path), 8, shuffle=True, num_threads=1)
    next(iter(loader))
    monkeypatch.setattr(Readahead, "is_resident", lambda *_: False)
    allow(0)
    with pytest.raises(WorkerError, match="reading ahead: thread 1 of 1"):
        list(loader)
    allow(None)
    assert len(list(loader)) == len(loader)
    loader.close()  # the error, which pytest may keep, holds the loader


def test_a_dataset_whose_only_thread_is_refused_says_so_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allow: Callable[[int | None], None]
) -> None:
    allow(0)
    with pytest.raises(WorkerError, match="writing a dataset: thread 1 of 1"):
        lmdbloader.write([{"number": 1}], tmp_path / "d.lmdb")
    assert list(tmp_path.iterdir()) == []
    allow(None)
    assert lmdbloader.write([{"number": 1}], tmp_path / "d.lmdb").num_samples == 1


def test_an_extraction_whose_threads_are_refused_says_so_and_leaves_nothing(
    path: Path, tmp_path: Path, allow: Callable[[int | None], None]
) -> None:
    allow(1)
    with pytest.raises(WorkerError, match=r"one of 3 threads.*workers=1"):
        extract(path, tmp_path / "out", workers=3)
    assert [p.name for p in tmp_path.iterdir()] == []


@pytest.mark.parametrize("code", [errno.EAGAIN, errno.ENOMEM])
def test_a_conversion_whose_processes_are_refused_says_how_many_it_wants(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(code, os.strerror(code))

    recipe = Recipe((make_field("image", "image", "lz4"),), ConvertOptions(patch_size=8))
    monkeypatch.setattr(subprocess, "Popen", refuse)
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    tasks: list[list[Source]] = [[], [], [], [], []]
    with WorkerPool(4) as pool, pytest.raises(WorkerError, match=r"worker process 1 of 4 .*workers=2"):
        list(pool.convert(recipe, tasks))
    gc.collect()  # files that the error's frames refer to are closed when the collector finds them
    assert len(os.listdir("/proc/self/fd")) <= before


def test_other_errors_are_unchanged() -> None:
    for error in (RuntimeError("can't create new thread at interpreter shutdown"), FileNotFoundError(2, "no such")):
        with pytest.raises(type(error)) as raised, explain_limit("x", ""):
            raise error
        assert raised.value is error
