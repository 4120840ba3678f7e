"""Claims on OUT.partial, with and without working locks: live owners are respected, dead ones are replaced."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import lmdbloader
from lmdbloader.base import system
from lmdbloader.cli import main
from lmdbloader.errors import DestinationError, ImageError, LockedError
from lmdbloader.format.layout import make_field
from lmdbloader.store import open_writer, partial_folder
from lmdbloader.store.writing import claim

FIELDS = [make_field("n", "int")]
ELSEWHERE = claim.Owner(7, "node17", "another boot", 5, "another machine")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmdbloader.store.writing.writer.TRANSACTION_NBYTES", 1)
    monkeypatch.setattr("lmdbloader.conversion.pool.TASK_NBYTES", 1)
    monkeypatch.setattr(claim, "PATIENCE_SECONDS", 0.3)


@pytest.fixture
def src(tmp_path: Path) -> Path:
    (tmp_path / "src").mkdir()
    for i in range(4):
        pixels = np.random.default_rng(i).integers(0, 256, (20, 20, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / "src" / f"{i}.png")
    return tmp_path / "src"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "place").mkdir()
    return tmp_path / "place" / "out"


@pytest.fixture
def partial(out: Path) -> Path:
    return out.with_name("out.partial")


def interrupt(src: Path, out: Path) -> None:
    """Convert three of the four images."""
    whole = (src / "3.png").read_bytes()
    (src / "3.png").write_bytes(b"")
    with pytest.raises(ImageError):
        lmdbloader.convert(src, out, workers=1)
    (src / "3.png").write_bytes(whole)


def note(partial: Path, owner: claim.Owner) -> None:
    partial.mkdir(exist_ok=True)
    (partial / "owner.json").write_text(json.dumps(asdict(owner)))


@contextmanager
def living(partial: Path) -> Iterator[None]:
    """Show signs of life, as an owner elsewhere does."""
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(0.01):
            with suppress(FileNotFoundError):
                os.utime(partial / "owner.json")

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def host(name: str) -> Iterator[None]:
    """Act as a process of another host, which does not see this one's locks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fcntl, "flock", lambda descriptor, operation: None)
        patch.setattr(socket, "gethostname", lambda: name)
        patch.setattr(system, "boot_id", lambda: f"boot of {name}")
        yield


def test_the_note_identifies_its_process(out: Path, partial: Path) -> None:
    with open_writer(out, FIELDS, with_source=False, map_nbytes=2**20):
        found = json.loads((partial / "owner.json").read_bytes())
    assert (found["pid"], found["host"]) == (os.getpid(), socket.gethostname())
    assert found["boot"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert found["started"] == int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])


def test_a_live_owner_elsewhere_is_refused_and_named(src: Path, out: Path, partial: Path) -> None:
    interrupt(src, out)
    note(partial, ELSEWHERE)
    before = {p.name: p.read_bytes() for p in partial.iterdir()}
    with living(partial):
        with pytest.raises(LockedError, match=r"process 7 on host node17 is writing .*take_over=True .* lost"):
            lmdbloader.convert(src, out)
        with pytest.raises(LockedError, match=r"process 7 on host node17 is writing there\. Wait for it"):
            lmdbloader.write([{"n": 1}], out)
        with pytest.raises(DestinationError, match=r"unfinished conversion is there"):
            lmdbloader.write(iter([{"n": 1}]), out)
    assert {p.name: p.read_bytes() for p in partial.iterdir()} == before


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc")
def test_a_place_where_nothing_can_be_made_is_refused(src: Path) -> None:
    """Creating a folder there fails with the error of a missing parent."""
    with pytest.raises(DestinationError, match=r"/proc/x\.partial: cannot be made"):
        lmdbloader.convert(src, "/proc/x")


def test_the_work_of_a_dead_owner_elsewhere_is_continued(src: Path, out: Path, partial: Path) -> None:
    interrupt(src, out)
    note(partial, ELSEWHERE)
    lines: list[str] = []
    assert lmdbloader.convert(src, out, log=lines.append).num_samples == 4
    assert "process 7 on host node17 began to write there; waiting 0.3 s for a sign of life" in lines[0]
    assert any("resuming after 3 of 4" in line for line in lines)
    assert os.listdir(out.parent) == ["out"]


@pytest.mark.parametrize("alive", [True, False])
def test_the_old_owner_cannot_change_the_copy_that_is_taken_over(
    src: Path, out: Path, partial: Path, alive: bool
) -> None:
    interrupt(src, out)
    note(partial, ELSEWHERE)
    theirs = os.open(partial / "data.mdb", os.O_RDWR)
    lines: list[str] = []

    def log(line: str) -> None:
        lines.append(line)
        if "resuming after 3 of 4" in line:  # it wakes up, and writes as if nothing had happened
            os.pwrite(theirs, b"\xff" * os.fstat(theirs).st_size, 0)

    try:
        assert lmdbloader.convert(src, out, take_over=alive, log=log).num_samples == 4
    finally:
        os.close(theirs)
    assert ("taken over from process 7 on host node17" in lines[0] and "lost" in lines[0]) is alive
    assert len([line for line in lines if "resuming after" in line]) == 1
    assert lmdbloader.verify(out).is_sound
    assert os.listdir(out.parent) == ["out"]


def test_the_command_takes_over(src: Path, out: Path, partial: Path, capsys: pytest.CaptureFixture[str]) -> None:
    interrupt(src, out)
    note(partial, ELSEWHERE)
    with living(partial):
        assert main(["convert", str(src), str(out)]) == 1
        assert "--take-over" in capsys.readouterr().err
        assert main(["convert", str(src), str(out), "--take-over"]) == 0
    assert "Its committed data is kept; the rest is lost" in capsys.readouterr().out
    assert lmdbloader.verify(out).is_sound


@pytest.mark.parametrize("when", ["published", "still written"])
def test_a_process_that_was_taken_over_gets_an_error_and_publishes_nothing(
    out: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    monkeypatch.setattr(claim, "BEAT_SECONDS", 100.0)  # as a process that is stopped
    with (
        pytest.raises(DestinationError, match=r"is no longer the folder that was written to: another process took it"),
        host("a"),
        open_writer(out, FIELDS, with_source=False, map_nbytes=2**20) as writer,
        host("b"),
    ):
        if when == "published":
            lmdbloader.write([{"n": 1}], out)
            before = {p.name: p.read_bytes() for p in out.iterdir()}
            writer_finishes_as("a", writer)
        with partial_folder(out) as theirs:
            (theirs / "data.mdb").write_bytes(b"half")
            writer_finishes_as("a", writer)
    assert os.listdir(out.parent) == (["out"] if when == "published" else [])
    if when == "published":
        assert {p.name: p.read_bytes() for p in out.iterdir()} == before
        assert lmdbloader.LMDBDataset(out)[0].n == 1


def writer_finishes_as(name: str, writer: Any) -> None:
    with host(name):
        writer.finish(classes={}, made_by={})


def test_the_note_is_compared_before_anything_is_put_in_place(out: Path, partial: Path) -> None:
    with (
        pytest.raises(DestinationError, match=r"is no longer the folder that was written to"),
        open_writer(out, FIELDS, with_source=False, map_nbytes=2**20) as writer,
    ):
        note(partial, ELSEWHERE)
        writer.finish(classes={}, made_by={})
    assert not out.exists()
    assert (partial / "owner.json").exists(), "it is another's now"


def no_sleep(seconds: float) -> None:
    raise AssertionError("it looks for signs of life")


def test_a_dead_owner_of_this_host_costs_no_time(
    src: Path, out: Path, partial: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(src, out)
    monkeypatch.setattr(claim, "time", type("Time", (), {"sleep": no_sleep}))
    mine = claim.this_process()
    for owner in (replace(mine, pid=2**22 + 1), replace(mine, pid=1, started=1), claim.Owner(1, mine.host)):
        note(partial, owner)
        data = (partial / "data.mdb").stat().st_ino
        with partial_folder(out, resumable=True) as folder:
            assert (folder / "data.mdb").stat().st_ino == data
    assert lmdbloader.convert(src, out).num_samples == 4


def test_a_conversion_that_ended_with_an_error_leaves_its_folder_to_any_host(
    src: Path, out: Path, partial: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim, "time", type("Time", (), {"sleep": no_sleep}))
    interrupt(src, out)
    assert "owner.json" not in os.listdir(partial)
    with host("b"):
        assert lmdbloader.convert(src, out, workers=1).num_samples == 4


def test_a_machine_that_was_started_again_goes_on_without_a_copy(src: Path, out: Path, partial: Path) -> None:
    mine = claim.this_process()
    if not mine.machine:
        pytest.skip("this machine has no /etc/machine-id")
    interrupt(src, out)
    note(partial, replace(mine, boot="the one before"))
    data = (partial / "data.mdb").stat().st_ino
    with partial_folder(out, resumable=True) as folder:
        assert (folder / "data.mdb").stat().st_ino == data


HOLDER = """
import sys
from pathlib import Path
from lmdbloader.store import partial_folder
with partial_folder(Path(sys.argv[1])):
    print("writing", flush=True)
    sys.stdin.read()
"""


def test_without_locks_a_process_of_this_host_is_known_by_its_number(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [sys.executable, "-c", HOLDER, str(out)]
    root = str(Path(__file__).resolve().parent.parent)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root) as child:
        assert child.stdout is not None and child.stdout.readline() == "writing\n"
        monkeypatch.setattr(fcntl, "flock", lambda descriptor, operation: None)
        with pytest.raises(LockedError, match=rf"process {child.pid} on host .* is writing there"):
            lmdbloader.write([{"n": 1}], out)
        child.communicate("")
    assert child.returncode == 0 and os.listdir(out.parent) == []


def test_a_lock_of_the_note_is_respected_too(out: Path, partial: Path) -> None:
    note(partial, ELSEWHERE)
    with open(partial / "owner.json", "r+b") as theirs:
        fcntl.flock(theirs, fcntl.LOCK_EX)  # another NFS client may not see a folder's lock
        with pytest.raises(LockedError, match=r"process 7 on host node17 is writing there"):
            lmdbloader.write([{"n": 1}], out)


def test_an_owner_shows_that_it_lives(out: Path, partial: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim, "BEAT_SECONDS", 0.01)
    with partial_folder(out):
        before, until = (partial / "owner.json").stat().st_mtime_ns, time.monotonic() + 20
        while (partial / "owner.json").stat().st_mtime_ns == before and time.monotonic() < until:
            time.sleep(0.01)
        assert (partial / "owner.json").stat().st_mtime_ns != before
    assert not [thread for thread in threading.enumerate() if "owner" in thread.name]


def test_a_finished_conversion_leaves_the_work_of_another_host(
    src: Path, out: Path, partial: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lmdbloader.convert(src, out)
    note(partial, ELSEWHERE)
    monkeypatch.setattr(claim, "time", type("Time", (), {"sleep": no_sleep}))
    assert lmdbloader.convert(src, out).was_finished
    assert os.listdir(partial) == ["owner.json"]


def test_stage_waits_for_a_host_that_gives_signs_of_life(src: Path, out: Path, tmp_path: Path) -> None:
    lmdbloader.convert(src, out)
    (tmp_path / "node").mkdir()
    theirs = tmp_path / "node" / "out.partial"
    note(theirs, ELSEWHERE)
    with living(theirs), pytest.raises(LockedError, match=r"process 7 on host node17 .* Waited 0 s") as error:
        lmdbloader.stage(out, tmp_path / "node", timeout=0)
    assert "take_over" not in str(error.value)
    assert lmdbloader.stage(out, tmp_path / "node").is_dir()
    assert os.listdir(tmp_path / "node") == ["out"]
