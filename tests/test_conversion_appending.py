"""append: what merge would write, as another part; a crash at any step leaves the old dataset or the new one."""

from __future__ import annotations

import os
import pickle
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from damage import flip
from hypothesis import given, settings
from hypothesis import strategies as st

import lmdbloader
from lmdbloader import LMDBDataset, Loader, fields
from lmdbloader.conversion import combining
from lmdbloader.errors import CorruptError, DestinationError, OptionError
from lmdbloader.store import Work, read_manifest

CLASSES = ("ant", "bee", "cat")


def write(path: Path, numbers: range | list[int], classes: tuple[str, ...] = CLASSES, **options: Any) -> Path:
    """Write samples by their numbers; labels are numbered in the order of `classes`."""

    def samples() -> Iterator[dict[str, Any]]:
        for i in numbers:
            side = 8 + i % 3
            yield {
                "image": np.full((side, side, 3), i, np.uint8),
                "label": classes.index(CLASSES[i % 3]),
                "caption": "ü" * (i % 5) + "x" * (200 * (i == 11)),
                "boxes": np.array([[0, 0, 1 + j, 2] for j in range(i % 3)], np.float32).reshape(-1, 4),
            }

    lmdbloader.write(samples(), path, fields={"boxes": fields.Boxes()}, classes={"label": classes}, **options)
    return path


def content(path: Path) -> str:
    return read_manifest(path).content_digest


def values_of(path: Path | LMDBDataset) -> list[Any]:
    ds = path if isinstance(path, LMDBDataset) else LMDBDataset(path)
    return [[v.tolist() if isinstance(v, torch.Tensor) else v for v in ds[i]] for i in range(len(ds))]


def names_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


def files_of(parts: int) -> list[str]:
    """Return the files of a dataset."""
    return sorted(["data.mdb", *(f"data-{n:05}.mdb" for n in range(1, parts)), "index.arrow", "manifest.json"])


def inodes(folder: Path) -> list[int]:
    """Return what shows whether the data files are the same ones."""
    return [(folder / name).stat().st_ino for name in read_manifest(folder).data_files]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three datasets, in one file each."""
    place = tmp_path_factory.mktemp("append")
    write(place / "a.lmdb", range(6))
    write(place / "b.lmdb", range(6, 10))
    write(place / "c.lmdb", range(10, 15))  # with a long caption
    write(place / "turned.lmdb", range(6, 10), ("cat", "ant", "bee"))
    return place


@pytest.fixture
def db(place: Path, tmp_path: Path) -> Path:
    """A copy of the first one."""
    return Path(shutil.copytree(place / "a.lmdb", tmp_path / "db"))


def test_the_result_is_that_of_a_merge(place: Path, db: Path, tmp_path: Path) -> None:
    before, content_before = inodes(db), (db / "data.mdb").read_bytes()
    done = lmdbloader.append(db, [place / "b.lmdb"])
    expected = lmdbloader.merge([place / "a.lmdb", place / "b.lmdb"], tmp_path / "merged")
    assert (done.num_samples, done.num_copied, done.notes) == (10, 4, ())
    assert done.content_digest == expected.content_digest == content(db)
    assert values_of(db) == values_of(tmp_path / "merged")
    assert names_in(db) == files_of(2)
    assert inodes(db)[:1] == before and (db / "data.mdb").read_bytes() == content_before
    assert lmdbloader.verify(db).is_sound
    before = inodes(db)
    done = lmdbloader.append(db, [place / "c.lmdb", place / "b.lmdb"])
    inputs = [place / f"{name}.lmdb" for name in "abcb"]
    lmdbloader.merge(inputs, tmp_path / "more")
    assert values_of(db) == values_of(tmp_path / "more")
    assert names_in(db) == files_of(3) and inodes(db)[:2] == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["db", "merged", "more"]


def test_other_classes_are_refused_or_added_behind(tmp_path: Path) -> None:
    samples = [{"image": np.full((8, 8), i, np.uint8), "label": i % 2} for i in range(4)]
    lmdbloader.write(samples, tmp_path / "a", classes={"label": ["cat", "dog"]})
    lmdbloader.write(samples, tmp_path / "b", classes={"label": ["bird", "cat"]})
    with pytest.raises(OptionError, match=r"b .*'label'.*\(bird\).*add_classes=True"):
        lmdbloader.append(tmp_path / "a", [tmp_path / "b"])
    assert names_in(tmp_path / "a") == ["data.mdb", "index.arrow", "manifest.json"]
    lmdbloader.merge([tmp_path / "a", tmp_path / "b"], tmp_path / "merged", add_classes=True)
    lmdbloader.append(tmp_path / "a", [tmp_path / "b"], add_classes=True)
    ds = LMDBDataset(tmp_path / "a")
    assert ds.classes == ("cat", "dog", "bird") and ds.targets == (0, 1, 0, 1, 2, 0, 2, 0)
    assert content(tmp_path / "a") == content(tmp_path / "merged")
    # A further part knows the classes of all before it.
    lmdbloader.append(tmp_path / "a", [tmp_path / "b"])
    assert LMDBDataset(tmp_path / "a").targets[-4:] == (2, 0, 2, 0)


def test_sources_are_those_of_the_dataset_that_grows(photos: Path, tmp_path: Path) -> None:
    lmdbloader.convert(photos, tmp_path / "named", patch_size=96, workers=1)
    lmdbloader.write([{"image": np.zeros((96, 96, 3), np.uint8)}], tmp_path / "plain")
    shutil.copytree(tmp_path / "named", tmp_path / "db.lmdb")
    for db, name, drops in (("db.lmdb", "plain", False), ("db.lmdb", "named", True), ("plain", "named", False)):
        with pytest.raises(OptionError, match="source"):
            lmdbloader.append(tmp_path / db, [tmp_path / name], drop_sources=drops)
    lmdbloader.append(tmp_path / "plain", [tmp_path / "named"], drop_sources=True)
    assert len(LMDBDataset(tmp_path / "plain")) == 49
    done = lmdbloader.append(tmp_path / "db.lmdb", [tmp_path / "named"], prefix_sources=True)
    sources = LMDBDataset(tmp_path / "db.lmdb").table["source"].to_pylist()
    assert sources[48:] == [f"named/{name}" for name in sources[:48]]
    assert done.notes == ()
    # A conversion sees that the dataset is another one now.
    assert not (tmp_path / "db.lmdb" / "sources.json").exists()
    with pytest.raises(DestinationError, match="a dataset is there already"):
        lmdbloader.convert(photos, tmp_path / "db.lmdb", patch_size=96, workers=1)


def test_damage_leaves_the_dataset_as_it_was(place: Path, db: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(place / "b.lmdb", tmp_path / "b")
    reader = LMDBDataset(place / "b.lmdb").reader
    flip(broken, int(reader.index.arrays["image.offset"][2]) + 7)
    before = names_in(db)
    with pytest.raises(CorruptError, match="sample 2: its checksum does not match"):
        lmdbloader.append(db, [broken])
    assert names_in(db) == before and len(LMDBDataset(db)) == 6


# Readers and states


def test_open_readers_keep_the_old_dataset(place: Path, db: Path) -> None:
    for number, name in enumerate("bc"):  # from one file to a set, and from one set to the next
        open_one, old = LMDBDataset(db), values_of(db)
        saved = pickle.dumps(open_one)
        loader = Loader(LMDBDataset(db, fields=["label"]), 2, order="random", seed=1)
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        lmdbloader.append(db, [place / f"{name}.lmdb"])
        assert values_of(open_one) == old
        assert sum(len(batch.label) for batch in batches) == len(old) - 2
        with pytest.raises(CorruptError, match="was replaced by another dataset"):
            pickle.loads(saved)
        new = Loader(LMDBDataset(db, fields=["label"]), 2, order="random", seed=1)
        with pytest.raises(OptionError, match="the state is of another dataset"):
            new.load_state_dict(state)
        assert values_of(db)[: len(old)] == old and len(LMDBDataset(db)) == (10, 15)[number]


def test_two_at_once_do_not_lose_samples(place: Path, db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one is done before the first: the first must not put its dataset in place of it."""
    real = combining._make_parts

    def and_append(*args: Any, **options: Any) -> Any:
        found = real(*args, **options)
        with monkeypatch.context() as patch:
            patch.setattr(combining, "_make_parts", real)
            lmdbloader.append(db.with_name("other"), [place / "c.lmdb"])
        shutil.rmtree(db)
        db.with_name("other").rename(db)
        return found

    shutil.copytree(db, db.with_name("other"))
    with monkeypatch.context() as patch:
        patch.setattr(combining, "_make_parts", and_append)
        with pytest.raises(DestinationError, match="was changed by another process meanwhile"):
            lmdbloader.append(db, [place / "b.lmdb"])
    assert len(values_of(db)) == 11
    assert lmdbloader.append(db, [place / "b.lmdb"]).num_samples == 15


def _fail(*_: Any, **__: Any) -> None:
    raise RuntimeError("stopped")


def test_an_interrupted_one_continues(place: Path, db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch, pytest.raises(RuntimeError):
        patch.setattr(combining, "join", _fail)
        lmdbloader.append(db, [place / "b.lmdb"])
    assert names_in(db) == files_of(1) and len(values_of(db)) == 6
    with pytest.raises(DestinationError, match=r"is unfinished there.*restart=True"):
        lmdbloader.append(db, [place / "c.lmdb"])
    said: list[str] = []
    lmdbloader.append(db, [place / "b.lmdb"], log=said.append)
    assert any("resuming after 4 of 4 samples" in line for line in said)
    assert names_in(db) == files_of(2)


def test_one_that_was_killed_after_it_was_in_place_is_found_done(
    place: Path, db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, pytest.raises(RuntimeError):
        patch.setattr(Work, "discard", _fail)
        lmdbloader.append(db, [place / "b.lmdb"])
    assert len(values_of(db)) == 10
    done = lmdbloader.append(db, [place / "b.lmdb"])
    assert done.was_finished and done.num_samples == 10 and names_in(db) == files_of(2)
    assert not db.with_name(f"{db.name}.partial").exists()
    # The same samples a second time, interrupted before they are in place.
    with monkeypatch.context() as patch, pytest.raises(RuntimeError):
        patch.setattr(combining, "join", _fail)
        lmdbloader.append(db, [place / "b.lmdb"])
    again = lmdbloader.append(db, [place / "b.lmdb"])
    assert not again.was_finished and again.num_samples == 14 and len(values_of(db)) == 14


def test_one_of_clips_that_was_killed_after_it_was_in_place_is_found_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        lmdbloader.write([{"clip": name, "frame": i} for i in range(4)], tmp_path / name)
    with monkeypatch.context() as patch, pytest.raises(RuntimeError):
        patch.setattr(Work, "discard", _fail)
        lmdbloader.append(tmp_path / "a", [tmp_path / "b"])
    done = lmdbloader.append(tmp_path / "a", [tmp_path / "b"])
    assert done.was_finished and len(LMDBDataset(tmp_path / "a")) == 8
    with pytest.raises(OptionError, match="frame 0 of clip 'b' is also in"):
        lmdbloader.append(tmp_path / "a", [tmp_path / "b"])


def test_one_to_itself_that_was_killed_is_found_done_or_begins_again(
    place: Path, db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, pytest.raises(RuntimeError):
        patch.setattr(Work, "discard", _fail)
        lmdbloader.append(db, [db])
    assert len(values_of(db)) == 12
    done = lmdbloader.append(db, [db])
    assert done.was_finished and done.num_samples == len(values_of(db)) == 12
    # Parts made of the dataset before it grew otherwise are of no use.
    aside = db.with_name(f"{db.name}.aside")
    with monkeypatch.context() as patch, pytest.raises(RuntimeError):
        patch.setattr(combining, "join", _fail)
        lmdbloader.append(db, [db])
    work = db.with_name(f"{db.name}.partial")
    work.rename(aside)
    lmdbloader.append(db, [place / "b.lmdb"])
    aside.rename(work)
    assert lmdbloader.append(db, [db]).num_samples == 32


def test_a_file_system_without_hard_links_gets_copies(place: Path, db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    before = inodes(db)
    with monkeypatch.context() as patch:
        patch.setattr(os, "link", refuse)
        lmdbloader.append(db, [place / "b.lmdb"])
    assert names_in(db) == files_of(2) and inodes(db)[:1] != before
    assert len(values_of(db)) == 10


# Crashes

_EVENTS = frozenset({"os.link", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod", "shutil.copyfile"})


class _Killed(BaseException):
    """What a process that is killed does not see."""


class _Killer:
    """Ends everything that changes files, from a step on."""

    left = -1
    steps: ClassVar[list[str]] = []

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        """Count a step; raise once none is left."""
        if _Killer.left < 0 or threading.current_thread().name == "lmdbloader-owner":
            return
        writes = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if event in _EVENTS or writes:
            if _Killer.left == 0:
                raise _Killed
            _Killer.left -= 1
            _Killer.steps.append(f"{event} {args}")


sys.addaudithook(_Killer())


def steps_until_killed(step: int, call: Callable[[], Any]) -> list[str]:
    """Run a call until its n-th change of a file, and return what it changed."""
    _Killer.left, _Killer.steps = step, []
    try:
        call()
    except _Killed:
        pass
    finally:
        _Killer.left = -1
    return _Killer.steps


@pytest.mark.parametrize(("parts", "count"), [(1, 8), (2, 3)])
def test_a_crash_at_any_step_leaves_the_old_or_the_new_dataset(
    place: Path, tmp_path: Path, parts: int, count: int
) -> None:
    start, db = tmp_path / "start", tmp_path / "db"
    shutil.copytree(place / "a.lmdb", start)
    if parts == 2:
        lmdbloader.append(start, [place / "turned.lmdb"])
    shutil.copytree(start, db)
    steps = steps_until_killed(10**6, lambda: lmdbloader.append(db, [place / "c.lmdb"]))
    old, new = content(start), content(db)
    assert len(steps) > 15
    for last in sorted({*range(0, len(steps), len(steps) // count), *range(len(steps) - 6, len(steps))}):
        for name in ("db", "db.partial"):
            shutil.rmtree(tmp_path / name, ignore_errors=True)
        shutil.copytree(start, db)
        steps_until_killed(last, lambda: lmdbloader.append(db, [place / "c.lmdb"]))
        found = content(db)
        assert found in (old, new)
        assert len(values_of(db)) == 6 + 4 * (parts - 1) + 5 * (found == new)
        assert lmdbloader.verify(db).is_sound
        # The next call clears or continues what is left.
        if found == old:
            lmdbloader.append(db, [place / "c.lmdb"])
        assert content(db) == new and lmdbloader.verify(db).is_sound


@settings(max_examples=5)
@given(data=st.data())
def test_any_sequence_of_calls_is_one_merge(place: Path, tmp_path_factory: Any, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("calls")
    db = Path(shutil.copytree(place / "a.lmdb", folder / "db"))
    opened = [LMDBDataset(place / f"{name}.lmdb") for name in ("a", "b", "c", "turned")]
    every: list[LMDBDataset] = [opened[0]]
    for _ in range(data.draw(st.integers(1, 3), "calls")):
        views = []
        for _ in range(data.draw(st.integers(1, 2), "datasets")):
            ds = data.draw(st.sampled_from(opened))
            rows = st.lists(st.integers(0, len(ds) - 1), min_size=1, max_size=5)
            views.append(data.draw(st.one_of(st.just(ds), rows.map(ds.select))))
        lmdbloader.append(db, views)
        every += views
    merged = lmdbloader.merge(every, folder / "merged")
    assert values_of(db) == values_of(folder / "merged") and len(LMDBDataset(db)) == merged.num_samples
