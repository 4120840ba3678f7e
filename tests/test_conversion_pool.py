"""Worker processes: the same bytes for any number of them, failures of a worker, and callers that stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from PIL import Image

import lmdbloader
from lmdbloader.conversion import pool
from lmdbloader.conversion.options import ConvertOptions
from lmdbloader.conversion.pool import WorkerPool, make_tasks
from lmdbloader.conversion.sources.layouts import list_sources
from lmdbloader.conversion.sources.listing import Source
from lmdbloader.conversion.tasks import Recipe
from lmdbloader.errors import ImageError, WorkerError
from lmdbloader.format.layout import make_field

FILES = ("data.mdb", "index.arrow", "manifest.json")
RECIPE = Recipe((make_field("image", "image", "lz4"),), ConvertOptions(patch_size=8))


def noise(height: int, width: int, seed: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3)).astype(np.uint8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eleven PNGs of about 0.3 MB, so three or four a task, and one file that is none."""
    path = tmp_path_factory.mktemp("pool") / "src"
    path.mkdir()
    for i in range(11):
        Image.fromarray(noise(310 + i, 320, i)).save(path / f"{i:02}.png", compress_level=0)
    (path / "05b.png").write_bytes(b"no image")
    return path


@pytest.fixture
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every source a task of its own."""
    monkeypatch.setattr(pool, "TASK_NBYTES", 1)


_others: set[int] = set()  # processes of other tests and of multiprocessing


def children() -> list[int]:
    """Process numbers of children of this test, those that have ended but were not waited for included."""
    found = psutil.Process().children(recursive=True)
    return [
        child.pid
        for child in found
        if child.pid not in _others and "multiprocessing.resource_tracker" not in " ".join(_command(child))
    ]


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@pytest.fixture(autouse=True)
def no_process_is_left() -> Iterator[None]:
    _others.clear()
    _others.update(child.pid for child in psutil.Process().children(recursive=True))
    yield
    until = time.monotonic() + 10
    while children() and time.monotonic() < until:  # on a busy machine a process may still be ending
        time.sleep(0.01)
    assert children() == []


def test_any_number_of_workers_gives_the_same_three_files(folder: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"patch_size": 64, "stride": 48, "scale": 2, "on_error": "skip"}
    assert len(make_tasks(list_sources(folder).sources)) >= 3
    reports = [lmdbloader.convert(folder, tmp_path / str(n), workers=n, **options) for n in (1, 2, 3)]
    for number in (2, 3):
        for name in FILES:
            assert (tmp_path / str(number) / name).read_bytes() == (tmp_path / "1" / name).read_bytes(), name
    assert {report.num_samples for report in reports} == {reports[0].num_samples}
    assert [[name for name, _ in report.skipped] for report in reports] == [["05b.png"]] * 3
    # What two processes made is right, not only the same.
    sample = lmdbloader.LMDBDataset(tmp_path / "2")[-1]
    top, left = (310 + 10 - 64) // 48 * 48, (320 - 64) // 48 * 48
    np.testing.assert_array_equal(
        np.moveaxis(sample.hr.numpy(), 0, 2), noise(320, 320, 10)[top : top + 64, left : left + 64]
    )
    assert lmdbloader.verify(tmp_path / "3").is_sound


def test_the_first_bad_image_in_order_is_the_error_whoever_meets_it(
    folder: Path, tmp_path: Path, small_tasks: None
) -> None:
    with pytest.raises(ImageError, match=r"^05b\.png: not an image") as caught:
        lmdbloader.convert(folder, tmp_path / "out", patch_size=64, workers=2)
    # The exception is still held, as a notebook holds the last one, and yet no worker is left.
    assert children() == []
    assert caught.value.name == "05b.png"
    assert os.listdir(tmp_path) == []


# What a worker runs before it begins: with the given image it takes 300 seconds, and writes its number down.
SLOW = """
import os, time
from lmdbloader.conversion import tasks
real = tasks.read_files
def slow(source, *more):
    if source.name == {name!r}:
        with open({sign!r} + "~", "w") as file:
            file.write(str(os.getpid()))
        os.rename({sign!r} + "~", {sign!r})
        time.sleep(300)
    return real(source, *more)
tasks.read_files = slow
"""


def slow_start(name: str, sign: Path) -> str:
    """Return code for workers of which one is slow with the named image, and then makes the file `sign`."""
    return SLOW.format(name=name, sign=str(sign)) + pool._START


def wait_for_number(sign: Path) -> int:
    for _ in range(6000):
        if sign.exists():
            return int(sign.read_text())
        time.sleep(0.01)
    raise TimeoutError(f"{sign} was not made within a minute")


def test_a_killed_worker_is_named_with_the_image_it_was_at(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, sources = "06.png", list_sources(folder).sources
    assert any(name in (s.name for s in task[1:-1]) for task in make_tasks(sources))
    monkeypatch.setattr(pool, "_START", slow_start(name, tmp_path / "slow"))
    killer = threading.Thread(target=lambda: os.kill(wait_for_number(tmp_path / "slow"), signal.SIGKILL))
    killer.start()
    with WorkerPool(2) as workers, pytest.raises(WorkerError) as caught:
        list(workers.convert(RECIPE.changed(on_error="skip"), make_tasks(sources)))
    killer.join()
    advice = "Out of memory? Use fewer workers. Convert again with the same options: the conversion resumes where it "
    advice += "stopped."
    how = f"worker process {(tmp_path / 'slow').read_text()} was killed by SIGKILL"
    assert str(caught.value) == f"{how} while converting {name}. {advice}"


def test_tasks_and_results_larger_than_a_sockets_buffer_do_not_wait_for_each_other(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Paths of 3,000 bytes: each task is over 1 MB, each result has as many names.
    path = os.path.join(os.fsencode(folder), b"./" * 1400, b"00.png")
    names = [f"{'long/' * 400}{i}.png" for i in range(400)]
    monkeypatch.setattr(
        pool, "_START", f"import faulthandler; faulthandler.dump_traceback_later(60, exit=True); {pool._START}"
    )
    recipe = Recipe((make_field("image", "image", "raw"),), ConvertOptions(patch_size=300))
    tasks = [
        [Source(name, path, 1) for name in names[:4]] + [Source(n, b"nowhere" * 400, 1) for n in names]
        for _ in range(6)
    ]
    with WorkerPool(2) as workers:
        parts = list(workers.convert(recipe.changed(on_error="skip"), tasks))
    assert sum(part.num_sources for part in parts) == 6 * 404
    assert sum(part.chunk.num_samples for part in parts if part.chunk) == 6 * 4


def test_convert_needs_no_main_guard_and_no_worker_option(folder: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import lmdbloader\n"
        f"report = lmdbloader.convert({str(folder)!r}, 'out', patch_size=160, workers=2, on_error='skip')\n"
        "print(report.num_samples)\n"
    )
    root = str(Path(__file__).parent.parent)
    child = subprocess.run(
        [sys.executable, script.name],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
    )
    assert (child.returncode, child.stdout, child.stderr) == (0, f"{10 * 2 + 4}\n", "")
