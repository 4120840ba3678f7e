"""A stamp saves looking at every row again, and never makes a file that differs pass as checked."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import pickle
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from many import write_many

import lmdbloader
from lmdbloader import LMDBDataset, Loader
from lmdbloader.base import system
from lmdbloader.errors import CorruptError
from lmdbloader.store import Reader, index, stamps, verify

pytestmark = pytest.mark.skipif(not system.boot_id(), reason="this system has no number for its start")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_many(tmp_path / "d", 100)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the stamps in an empty folder, also those of new files and on any file system."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(system, "settling_seconds", lambda descriptor: 0.0)
    return tmp_path / "cache/lmdbloader/checked"


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The datasets whose rows were checked."""
    found: list[Path] = []
    check = index.check_index

    def noted(columns: Any, manifest: Any, data_nbytes: int, path: Path) -> Any:
        found.append(path)
        return check(columns, manifest, data_nbytes, path)

    monkeypatch.setattr(index, "check_index", noted)
    return found


def stamped(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def contents(path: Path) -> list[tuple[int, int]]:
    return [(sample.label, int(sample.image[0, 0, 0])) for sample in LMDBDataset(path)]


@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_the_second_opening_looks_at_no_row(path: Path, folder: Path, checks: list[Path], io: Any) -> None:
    first = Reader(path, io=io)
    assert checks == [path]
    (stamp,) = stamped(folder)
    assert stamp.stat().st_size < 2000
    assert len(list(path.iterdir())) == 3  # nothing in the dataset

    second = Reader(path, io=io)
    assert checks == [path]
    assert second.index.facts == first.index.facts
    assert second.index.facts["image"].extremes["raw_nbytes"] == (3, 3)
    assert contents(path) == [(i, i % 251) for i in range(100)]
    pickle.loads(pickle.dumps(second))
    assert checks == [path]


def test_facts_of_every_kind_come_back(tmp_path: Path, checks: list[Path]) -> None:
    rng = np.random.default_rng(0)
    samples = [
        {
            "image": rng.integers(0, 256, (39 + i % 3, 52, 3), np.uint8), "mask": np.full((4, 5), i, np.uint8),
            "vector": np.arange(i % 4), "caption": "ünï" * i, "blob": bytes(i), "label": i,
        }
        for i in range(12)
    ]  # fmt: skip
    fields = dict.fromkeys(samples[0]) | {"mask": lmdbloader.fields.Mask()}
    ways: dict[str, dict[str, Any]] = {"lz4": {"codec": "lz4"}, "jpeg": {"write_mode": "jpg"}}
    for way, options in ways.items():
        lmdbloader.write(samples, tmp_path / way, fields=fields, **options)
        found = [LMDBDataset(tmp_path / way) for _ in range(2)]
        assert checks.count(tmp_path / way) == 1
        assert found[0].reader.index.facts == found[1].reader.index.facts
        for name in ("image", "mask"):
            assert found[0].reader.jpeg_room(name) == found[1].reader.jpeg_room(name)
        assert [str(sample) for sample in found[0]] == [str(sample) for sample in found[1]]
    assert found[0].reader.jpeg_room("image") > 0


def test_an_empty_dataset(tmp_path: Path, checks: list[Path]) -> None:
    lmdbloader.write([{"image": np.zeros((2, 2, 3), np.uint8)}], tmp_path / "d")
    assert len(LMDBDataset(tmp_path / "d")[[]]) == 0
    write_many(tmp_path / "none", 0)
    for _ in range(2):
        assert len(LMDBDataset(tmp_path / "none")) == 0
    assert checks == [tmp_path / "d", tmp_path / "none"]


def flip(path: Path, at: int = 1000) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def in_place(file: Path) -> None:
    with open(file, "r+b") as opened:
        opened.seek(1000)
        value = opened.read(1)
        opened.seek(1000)
        opened.write(bytes([value[0] ^ 1]))


def through_a_map(file: Path) -> None:
    with open(file, "r+b") as opened, mmap.mmap(opened.fileno(), 0) as mapped:
        mapped[1000] ^= 1


def by_another_file(file: Path) -> None:
    other = file.with_name("other")
    shutil.copy2(file, other)
    in_place(other)
    os.replace(other, file)


def with_its_times(change: Callable[[Path], None]) -> Callable[[Path], None]:
    def changed(file: Path) -> None:
        before = file.stat()
        change(file)
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert file.stat().st_mtime_ns == before.st_mtime_ns and file.stat().st_size == before.st_size

    return changed


CHANGES = [flip, in_place, through_a_map, by_another_file]


@pytest.mark.parametrize("change", [*CHANGES, *map(with_its_times, CHANGES)])
def test_a_file_that_differs_is_found(path: Path, folder: Path, change: Callable[[Path], None]) -> None:
    Reader(path)
    assert stamped(folder)
    time.sleep(0.02)  # the clock of file systems stands still for some milliseconds
    change(path / "index.arrow")
    for _ in range(2):
        with pytest.raises(CorruptError, match="digest"):
            Reader(path)
    change(path / "index.arrow")  # back again
    Reader(path)


def test_another_manifest_is_checked_again(path: Path, tmp_path: Path, checks: list[Path]) -> None:
    Reader(path)
    other = tmp_path / "other"
    lmdbloader.write(LMDBDataset(path)[:50], other)
    checks.clear()
    for name in ("manifest.json", "data.mdb"):
        shutil.copyfile(other / name, path / name)
    with pytest.raises(CorruptError):
        Reader(path)


def test_a_change_while_it_is_checked_leaves_no_stamp(
    path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = index.check_index

    def slow(*arguments: Any) -> Any:
        found = check(*arguments)
        time.sleep(0.02)
        os.utime(path / "index.arrow")
        return found

    monkeypatch.setattr(index, "check_index", slow)
    Reader(path)
    assert not stamped(folder)


def test_a_change_through_a_map_that_is_older_than_the_check_leaves_no_stamp(
    path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = index.check_index
    with open(path / "index.arrow", "r+b") as opened, mmap.mmap(opened.fileno(), 0) as mapped:
        mapped[1000] ^= 1  # the page is dirty from here on: further changes need not have a time
        mapped[1000] ^= 1
        time.sleep(0.02)

        def slow(*arguments: Any) -> Any:
            found = check(*arguments)
            mapped[1000] ^= 1
            return found

        monkeypatch.setattr(index, "check_index", slow)
        Reader(path)
        monkeypatch.setattr(index, "check_index", check)
    assert not stamped(folder)
    with pytest.raises(CorruptError, match="digest"):
        Reader(path)


def test_a_new_file_and_an_unknown_file_system_get_none(
    path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, checks: list[Path]
) -> None:
    for seconds in (3600.0, None):
        monkeypatch.setattr(system, "settling_seconds", lambda descriptor, seconds=seconds: seconds)
        for _ in range(2):
            Reader(path)
        assert not stamped(folder)
    # A clock that was set back: the file is from the future.
    monkeypatch.setattr(system, "settling_seconds", lambda descriptor: 3.0)
    monkeypatch.setattr(stamps.time, "time_ns", lambda: 10**18)
    Reader(path)
    assert not stamped(folder)
    assert len(checks) == 5


def test_a_stamp_holds_until_the_next_start(path: Path, monkeypatch: pytest.MonkeyPatch, checks: list[Path]) -> None:
    for boot in ("one", "one", "two", "one", "two", "", ""):
        monkeypatch.setattr(system, "boot_id", lambda boot=boot: boot)
        Reader(path)
    assert len(checks) == 4


def test_files_of_others_are_not_believed(path: Path, folder: Path, checks: list[Path]) -> None:
    Reader(path)
    (stamp,) = stamped(folder)
    stamp.chmod(0o666)
    Reader(path)
    assert len(checks) == 2
    Reader(path)  # it was replaced
    assert len(checks) == 2
    if os.geteuid() == 0:
        os.chown(stamp, 12345, -1)
        Reader(path)
        assert len(checks) == 3


def signed(value: Any) -> bytes:
    text = json.dumps(value)
    return f"{hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}\n{text}".encode()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(data=st.data())
def test_a_damaged_stamp_is_ignored(path: Path, folder: Path, checks: list[Path], data: st.DataObject) -> None:
    Reader(path)
    (stamp,) = stamped(folder)
    whole = stamp.read_bytes()
    kind = data.draw(st.sampled_from(["bytes", "flip", "cut", "number", "json"]))
    if kind == "bytes":
        changed = data.draw(st.binary(max_size=50))
    elif kind == "flip":
        at = data.draw(st.integers(0, len(whole) - 1))
        changed = whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :]
    elif kind == "cut":
        changed = whole[: data.draw(st.integers(0, len(whole) - 1))]
    elif kind == "number":
        found = json.loads(whole.partition(b"\n")[2])
        place = data.draw(st.sampled_from(["status", "facts", "digests", "version", "facts_of"]))
        found[place] = data.draw(st.sampled_from([None, 0, -1, [], {}, "", [[]], [[[0], {}, {}, 0, [0, 0, 0]]]]))
        changed = signed(found)
    else:
        changed = signed(data.draw(st.sampled_from([None, 1, "a", [], {}, [{}], {"facts_of": ["image"]}])))
    stamp.write_bytes(changed)
    checks.clear()
    Reader(path)
    assert checks == [path]
    checks.clear()
    Reader(path)
    assert checks == []


@pytest.mark.parametrize("place", ["file", "relative", "no home", "folder in the way"])
def test_without_a_cache_folder_it_opens(
    path: Path, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, checks: list[Path], place: str
) -> None:
    if place == "file":
        (tmp_path / "file").touch()
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    elif place == "folder in the way":
        Reader(path)
        (stamp,) = stamped(folder)
        stamp.unlink()
        stamp.mkdir()
        checks.clear()
    else:
        monkeypatch.setenv("XDG_CACHE_HOME", "relative")
        monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    for _ in range(2):
        assert len(Reader(path)) == 100
    assert len(checks) == 2


def test_the_oldest_are_forgotten(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stamps, "_MOST_STAMPS", 3)
    folder.mkdir(parents=True)
    (folder / "tmp1234").touch()  # of a process that was killed
    os.utime(folder / "tmp1234", ns=(0, 0))
    for number in range(5):
        Reader(write_many(tmp_path / str(number), 3))
        for k, stamp in enumerate(sorted(stamped(folder), key=lambda p: p.stat().st_mtime_ns)):
            os.utime(stamp, ns=(k, k))
        assert len(stamped(folder)) == min(number + 2, 3)
    assert folder / "tmp1234" not in stamped(folder)


def _open(path: Path) -> int:
    system.settling_seconds = lambda descriptor: 0.0  # type: ignore[assignment]
    return sum(Reader(path).index.arrays["label"].tolist())


@pytest.mark.parametrize("pool", [ThreadPoolExecutor, ProcessPoolExecutor])
def test_many_write_it_at_once(path: Path, folder: Path, checks: list[Path], pool: Any) -> None:
    options = {} if pool is ThreadPoolExecutor else {"mp_context": get_context("spawn")}
    with pool(4, **options) as running:
        assert set(running.map(_open, [path] * 24)) == {sum(range(100))}
    assert len(stamped(folder)) == 1
    checks.clear()
    Reader(path)
    assert checks == []


def test_verify_believes_no_stamp(path: Path, folder: Path, checks: list[Path]) -> None:
    Reader(path)
    assert stamped(folder)
    checks.clear()
    assert verify(path).is_sound
    assert checks == [path]


def test_a_large_index_is_not_read_again(path: Path, monkeypatch: pytest.MonkeyPatch, checks: list[Path]) -> None:
    populated: list[int] = []
    monkeypatch.setattr("lmdbloader.store.opening._READ_NBYTES", 100)
    monkeypatch.setattr(system, "populate", lambda mapped: populated.append(len(mapped)) or True)
    for expected in (1, 1):
        Reader(path)
        assert len(populated) == expected
    assert [batch.label.tolist() for batch in Loader(path, 50)] == [list(range(50)), list(range(50, 100))]


def test_the_file_systems_here(tmp_path: Path) -> None:
    code = "import os, sys; from lmdbloader.base import system; print(system.settling_seconds(os.open(sys.argv[1], 0)))"

    def seconds(place: str) -> str:
        run = subprocess.run(
            [sys.executable, "-c", code, place], capture_output=True, text=True, check=True, timeout=60
        )
        return run.stdout.strip()

    assert seconds(str(tmp_path)) in ("3.0", "3600.0", "None")
    for place in ("/proc/self/status", "/dev/shm"):
        if os.path.exists(place):
            assert seconds(place) == "None"


def test_another_way_to_read_the_same_file(path: Path, checks: list[Path]) -> None:
    mapped = Reader(path)
    copied = mapped.with_io("pread")
    assert len(checks) == 1
    assert copied.index.facts == mapped.index.facts
    assert copied.read_image("image", 7).tolist() == mapped.read_image("image", 7).tolist()
    in_place(path / "index.arrow")
    with pytest.raises(CorruptError, match="digest"):
        mapped.with_io("pread")
    in_place(path / "index.arrow")
