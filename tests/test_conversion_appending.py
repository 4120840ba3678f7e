"""append: what merge would write, as another part; a crash at any step leaves the old dataset or the new one."""

from __future__ import annotations

import errno
import json
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
from lmdbloader.store.writing.publish import partial_folder

import lmdbloader
from lmdbloader import LMDBDataset, Loader, fields
from lmdbloader.errors import CorruptError, DestinationError, FormatError, LockedError, NotFoundError, OptionError
from lmdbloader.store import read_manifest
from lmdbloader.store.writing import writer

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


def set_of(parts: int) -> list[str]:
    """Return the files of a set."""
    of_part = ("data.mdb", "index.arrow", "manifest.json")
    inside = [f"part-{number:05}/{name}" for number in range(parts) for name in of_part]
    return sorted([f"index-{parts:05}.arrow", "manifest.json", *inside])


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
    before = {name: (db / name).read_bytes() for name in ("data.mdb", "index.arrow", "manifest.json")}
    inode = (db / "data.mdb").stat().st_ino
    done = lmdbloader.append(db, [place / "b.lmdb"])
    expected = lmdbloader.merge([place / "a.lmdb", place / "b.lmdb"], tmp_path / "merged")
    assert (done.num_samples, done.num_appended, done.part, done.notes) == (10, 4, "part-00001", ())
    assert done.content_digest == expected.content_digest == content(db)
    assert values_of(db) == values_of(tmp_path / "merged")
    assert names_in(db) == set_of(2)
    assert {name: (db / "part-00000" / name).read_bytes() for name in before} == before
    assert (db / "part-00000" / "data.mdb").stat().st_ino == inode
    assert values_of(db / "part-00001") == values_of(place / "b.lmdb")
    assert lmdbloader.verify(db / "part-00001").is_sound
    done = lmdbloader.append(db, [place / "c.lmdb", place / "b.lmdb"])
    inputs = [place / f"{name}.lmdb" for name in "abcb"]
    assert done.content_digest == lmdbloader.merge(inputs, tmp_path / "more").content_digest
    assert values_of(db) == values_of(tmp_path / "more")
    assert names_in(db) == set_of(3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["db", "merged", "more"]


def test_a_set_is_loaded_in_batches(place: Path, db: Path) -> None:
    lmdbloader.append(db, [place / "b.lmdb"])
    labels = [label for batch in Loader(LMDBDataset(db, fields=["label"]), 4) for label in batch.label.tolist()]
    assert labels == [i % 3 for i in range(10)]


def test_how_it_was_made_is_recorded(place: Path, db: Path) -> None:
    made = read_manifest(db).made_by
    lmdbloader.append(db, [place / "b.lmdb"])
    lmdbloader.append(db, [LMDBDataset(place / "c.lmdb")[1:3]])
    now = read_manifest(db).made_by
    assert {**made, "appended": now["appended"]} == now
    first, second = now["appended"]
    assert (first["num_samples"], first["content_digest"]) == (4, content(place / "b.lmdb"))
    assert (second["num_samples"], second["of_samples"]) == (2, 5)
    assert first["made_by"] == read_manifest(place / "b.lmdb").made_by
    assert str(place) not in json.dumps(now)


def test_labels_are_renumbered_and_it_says_so(place: Path, db: Path, tmp_path: Path) -> None:
    said: list[str] = []
    done = lmdbloader.append(db, [place / "turned.lmdb"], log=said.append)
    note = "label: the labels of turned.lmdb are renumbered: cat 0 to 2, ant 1 to 0, bee 2 to 1"
    assert done.notes == (note,) and said == [f"note: {note}."]
    assert done.content_digest == lmdbloader.merge([place / "a.lmdb", place / "b.lmdb"], tmp_path / "m").content_digest


def test_other_classes_are_refused_or_added_behind(tmp_path: Path) -> None:
    samples = [{"image": np.full((8, 8), i, np.uint8), "label": i % 2} for i in range(4)]
    lmdbloader.write(samples, tmp_path / "a", classes={"label": ["cat", "dog"]})
    lmdbloader.write(samples, tmp_path / "b", classes={"label": ["bird", "cat"]})
    message = r"b has 1 class of 'label' that a lacks \(bird\)\. a has cat, dog\. .*add_classes=True"
    with pytest.raises(OptionError, match=message):
        lmdbloader.append(tmp_path / "a", [tmp_path / "b"])
    assert names_in(tmp_path / "a") == ["data.mdb", "index.arrow", "manifest.json"]
    lmdbloader.merge([tmp_path / "a", tmp_path / "b"], tmp_path / "merged", add_classes=True)
    lmdbloader.append(tmp_path / "a", [tmp_path / "b"], add_classes=True)
    ds = LMDBDataset(tmp_path / "a")
    assert ds.classes == ("cat", "dog", "bird") and ds.targets == [0, 1, 0, 1, 2, 0, 2, 0]
    assert content(tmp_path / "a") == content(tmp_path / "merged")
    assert LMDBDataset(tmp_path / "a" / "part-00000").classes == ("cat", "dog")
    # A further part knows the classes of all before it.
    lmdbloader.append(tmp_path / "a", [tmp_path / "b"])
    assert LMDBDataset(tmp_path / "a").targets[-4:] == [2, 0, 2, 0]


def test_fields_that_do_not_fit_are_refused_with_the_line_to_write(tmp_path: Path) -> None:
    lmdbloader.write([{"n": 0, "x": 1}], tmp_path / "a")
    lmdbloader.write([{"n": 1, "x": 2, "y": 3}], tmp_path / "more")
    lmdbloader.write([{"n": 1}], tmp_path / "less")
    lmdbloader.write([{"n": "text", "x": 1}], tmp_path / "other")
    lmdbloader.write([{"z": 1}], tmp_path / "none")
    a = tmp_path / "a"
    with pytest.raises(OptionError, match=r"more has the fields n, x, y; a has n, x\. .*: fields=\['n', 'x'\]"):
        lmdbloader.append(a, [tmp_path / "more"])
    line = f"lmdbloader merge {a} {tmp_path}/less -o OUT --fields n"
    with pytest.raises(OptionError, match=rf"less has the fields n; a has n, x, .* all of them\. .*: {line}$"):
        lmdbloader.append(a, [tmp_path / "less"])
    with pytest.raises(OptionError, match=rf"kind int in a and text in other.*{tmp_path}/other -o OUT --fields x\)"):
        lmdbloader.append(a, [tmp_path / "other"])
    with pytest.raises(OptionError, match="no field in common"):
        lmdbloader.append(a, [tmp_path / "none"])
    with pytest.raises(OptionError, match=r"has all of them\. For n alone .* -o OUT --fields n$"):
        lmdbloader.append(a, [tmp_path / "more"], fields=["n"])
    with pytest.raises(OptionError, match="a: no field 'z'"):
        lmdbloader.append(a, [tmp_path / "more"], fields=["n", "z"])
    assert names_in(a) == ["data.mdb", "index.arrow", "manifest.json"]
    lmdbloader.append(a, [tmp_path / "more"], fields=["x", "n"])
    lmdbloader.append(a, [LMDBDataset(tmp_path / "more", fields=["n", "x"])])
    assert values_of(a) == [[0, 1], [1, 2], [1, 2]]


def test_sources_are_those_of_the_dataset_that_grows(photos: Path, tmp_path: Path) -> None:
    lmdbloader.convert(photos, tmp_path / "named", patch_size=96, workers=1)
    lmdbloader.write([{"image": np.zeros((96, 96, 3), np.uint8)}], tmp_path / "plain")
    shutil.copytree(tmp_path / "named", tmp_path / "db.lmdb")
    with pytest.raises(OptionError, match=r"db.lmdb has the name .* plain has none .*-o OUT --drop-sources$"):
        lmdbloader.append(tmp_path / "db.lmdb", [tmp_path / "plain"])
    with pytest.raises(OptionError, match=r"and so has each of its parts.*-o OUT --drop-sources$"):
        lmdbloader.append(tmp_path / "db.lmdb", [tmp_path / "named"], drop_sources=True)
    with pytest.raises(OptionError, match=r"named has the name of .*: drop_sources=True"):
        lmdbloader.append(tmp_path / "plain", [tmp_path / "named"])
    lmdbloader.append(tmp_path / "plain", [tmp_path / "named"], drop_sources=True)
    assert len(LMDBDataset(tmp_path / "plain")) == 49
    done = lmdbloader.append(tmp_path / "db.lmdb", [tmp_path / "named"], prefix_sources=True)
    sources = LMDBDataset(tmp_path / "db.lmdb").table["source"].to_pylist()
    assert sources[48:] == [f"named/{name}" for name in sources[:48]]
    assert done.notes == ()
    # The note of the files goes with their part, and a conversion sees that the dataset is another one now.
    assert "part-00000/sources.arrow" in names_in(tmp_path / "db.lmdb")
    assert not (tmp_path / "db.lmdb" / "sources.arrow").exists()
    with pytest.raises(DestinationError, match="other samples were appended to it"):
        lmdbloader.convert(photos, tmp_path / "db.lmdb", patch_size=96, workers=1)


def test_notes_for_people_stay_and_are_in_the_part(place: Path, db: Path) -> None:
    (db / "skipped.tsv").write_text("name\treason\nx.png\tbroken\n")
    lmdbloader.append(db, [place / "b.lmdb"])
    assert names_in(db) == sorted([*set_of(2), "part-00000/skipped.tsv", "skipped.tsv"])
    lmdbloader.append(db, [place / "b.lmdb"])
    assert (db / "skipped.tsv").read_text() == (db / "part-00000" / "skipped.tsv").read_text()


def test_a_dataset_is_appended_to_itself(place: Path, db: Path, tmp_path: Path) -> None:
    lmdbloader.append(db, [db])
    done = lmdbloader.append(db, [LMDBDataset(db)[::-1], db])
    expected = values_of(place / "a.lmdb") * 2
    assert values_of(db) == expected + expected[::-1] + expected
    assert done.num_samples == 36 and names_in(db) == set_of(3)
    assert lmdbloader.append(db, [db / "part-00001"]).num_samples == 42


def test_what_cannot_be_appended_is_refused(place: Path, db: Path, tmp_path: Path) -> None:
    before = names_in(db)
    with pytest.raises(OptionError, match="nothing to append: the datasets have no samples"):
        lmdbloader.append(db, [LMDBDataset(place / "b.lmdb")[:0]])
    with pytest.raises(OptionError, match="expected at least one dataset"):
        lmdbloader.append(db, [])
    with pytest.raises(OptionError, match=r"expected a list of datasets\. Write append\(db, \[\.\.\.\]\)"):
        lmdbloader.append(db, place / "b.lmdb")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"Write append\('.*db', \[\.\.\.\]\), and open it again"):
        lmdbloader.append(LMDBDataset(db), [place / "b.lmdb"])  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="a view with transforms"):
        lmdbloader.append(db, [LMDBDataset(place / "b.lmdb", transform=str)])
    with pytest.raises(NotFoundError):
        lmdbloader.append(db, [tmp_path / "nothing"])
    with pytest.raises(NotFoundError):
        lmdbloader.append(tmp_path / "nothing", [db])
    with pytest.raises(FormatError):
        (tmp_path / "empty").mkdir()
        lmdbloader.append(tmp_path / "empty", [db])
    assert names_in(db) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["db", "empty"]
    lmdbloader.append(db, [place / "b.lmdb"])
    with pytest.raises(
        DestinationError, match=r"is a part of the dataset .*db, which .*: lmdbloader append .*/db \.\.\."
    ):
        lmdbloader.append(db / "part-00000", [place / "b.lmdb"])


def test_a_system_that_maps_one_file_at_a_time_reads_sets_without_a_map(
    place: Path, db: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(files: Any, nbytes: int) -> Any:
        raise OSError(errno.ENOTSUP, "no")

    monkeypatch.setattr("lmdbloader.base.system.map_in_a_row", refuse)
    lmdbloader.append(db, [place / "b.lmdb"])
    lmdbloader.append(db, [place / "c.lmdb", db])
    merged = lmdbloader.merge([db], tmp_path / "merged")
    assert merged.num_samples == 25 and merged.content_digest == content(db)


def test_damage_leaves_the_dataset_as_it_was(place: Path, db: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(place / "b.lmdb", tmp_path / "b")
    reader = LMDBDataset(place / "b.lmdb").reader
    flip(broken, int(reader.index.arrays["image.offset"][2]) + 7)
    before = names_in(db)
    with pytest.raises(CorruptError, match="sample 2: its checksum does not match"):
        lmdbloader.append(db, [broken])
    assert names_in(db) == before and not list(db.glob("part*")) and len(LMDBDataset(db)) == 6


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
        with pytest.raises(CorruptError, match="was replaced by another dataset since this reader was pickled"):
            pickle.loads(saved)
        new = Loader(LMDBDataset(db, fields=["label"]), 2, order="random", seed=1)
        with pytest.raises(OptionError, match="the state is of another dataset"):
            new.load_state_dict(state)
        assert values_of(db)[: len(old)] == old and len(LMDBDataset(db)) == (10, 15)[number]


def test_one_that_is_opened_at_the_same_moment_is_the_old_or_the_new_dataset(
    place: Path, db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = iter("bc")

    def read(path: Any) -> Any:
        found = read_manifest(path)
        with monkeypatch.context() as patch:
            patch.setattr("lmdbloader.store.reader.read_manifest", read_manifest)
            if (name := next(names, None)) is not None:
                lmdbloader.append(db, [place / f"{name}.lmdb"])
        return found

    monkeypatch.setattr("lmdbloader.store.reader.read_manifest", read)
    # Twice the index that a manifest names is gone when it is to be opened.
    assert [row[1] for row in values_of(LMDBDataset(db))] == [i % 3 for i in range(15)]


def test_two_at_once_do_not_lose_samples(place: Path, db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside, go_on = threading.Event(), threading.Event()
    finish = writer.Writer.finish

    def wait(*args: Any, **options: Any) -> Any:
        inside.set()
        assert go_on.wait(30)
        return finish(*args, **options)

    monkeypatch.setattr(writer.Writer, "finish", wait)
    thread = threading.Thread(target=lmdbloader.append, args=(db, [place / "b.lmdb"]))
    thread.start()
    assert inside.wait(30)
    with pytest.raises(LockedError, match=r"db\.partial: process \d+ on host .* is writing there"):
        lmdbloader.append(db, [place / "c.lmdb"])
    link = db.with_name("link")
    link.symlink_to(db)
    with pytest.raises(LockedError):
        lmdbloader.append(link, [place / "c.lmdb"])
    go_on.set()
    thread.join()
    lmdbloader.append(link, [place / "c.lmdb"])
    assert len(LMDBDataset(db)) == 15


def test_it_waits_for_no_process_that_was_killed(place: Path, db: Path) -> None:
    with partial_folder(db):
        owner = json.loads((db.with_name("db.partial") / "owner.json").read_text())
    db.with_name("db.partial").mkdir()
    owner |= {"pid": 2**22 - 1, "started": 1}
    (db.with_name("db.partial") / "owner.json").write_text(json.dumps(owner))
    assert lmdbloader.append(db, [place / "b.lmdb"]).num_samples == 10
    assert not db.with_name("db.partial").exists()


def test_an_unfinished_conversion_to_the_same_place_is_not_touched(
    place: Path, db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(writer, "TRANSACTION_NBYTES", 100)
        patch.setattr(writer.Writer, "finish", _fail)
        with pytest.raises(RuntimeError):
            lmdbloader.merge([place / "c.lmdb"], db, overwrite=True)
    with pytest.raises(DestinationError, match=r"db\.partial: an unfinished conversion is there"):
        lmdbloader.append(db, [place / "b.lmdb"])
    lmdbloader.merge([place / "c.lmdb"], db, overwrite=True)
    assert len(LMDBDataset(db)) == 5


def _fail(*_: Any, **__: Any) -> None:
    raise RuntimeError("stopped")


def test_an_interrupted_one_continues(place: Path, db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "TRANSACTION_NBYTES", 100)
    monkeypatch.setattr("lmdbloader.store.copying._CHUNK_ROWS", 2)
    with monkeypatch.context() as patch:
        patch.setattr(writer.Writer, "finish", _fail)
        with pytest.raises(RuntimeError):
            lmdbloader.append(db, [place / "b.lmdb"])
    assert not (db / "part-00000").exists() and len(LMDBDataset(db)) == 6
    with pytest.raises(DestinationError, match=r"an append of other samples is unfinished there\..*restart=True"):
        lmdbloader.append(db, [place / "c.lmdb"])
    said: list[str] = []
    lmdbloader.append(db, [place / "b.lmdb"], log=said.append)
    assert any("resuming after 4 of 4 samples" in line for line in said)
    assert names_in(db) == set_of(2)


def test_a_file_system_without_hard_links_gets_the_line_of_merge(
    place: Path, db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", refuse)
        line = f"lmdbloader merge {db} {place}/b.lmdb -o OUT"
        with pytest.raises(DestinationError, match=rf"hard-linked into .*Operation not permitted.* dataset: {line}"):
            lmdbloader.append(db, [place / "b.lmdb"])
    assert names_in(db) == ["data.mdb", "index.arrow", "manifest.json"]
    (db / "data.mdb").rename(db.with_name("elsewhere"))
    (db / "data.mdb").symlink_to(db.with_name("elsewhere"))
    with pytest.raises(DestinationError, match="it is a symbolic link"):
        lmdbloader.append(db, [place / "b.lmdb"])
    assert not list(db.glob("part*"))


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
    place: Path, tmp_path: Path, parts: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whether an opening is noted depends on the time since a file was written: steps could not be counted.
    monkeypatch.setattr("lmdbloader.base.system.settling_seconds", lambda descriptor: None)
    start, db = tmp_path / "start", tmp_path / "db"
    shutil.copytree(place / "a.lmdb", start)
    if parts == 2:
        lmdbloader.append(start, [place / "turned.lmdb"])
    shutil.copytree(start, db)
    steps = steps_until_killed(10**6, lambda: lmdbloader.append(db, [place / "c.lmdb"]))
    old, new = content(start), content(db)
    commit = max(k for k, step in enumerate(steps) if step.startswith("os.rename") and "manifest.json.new" in step)
    assert 20 < commit < len(steps) - 3
    for last in sorted({*range(0, len(steps), len(steps) // count), commit, commit + 1, len(steps) - 1}):
        shutil.rmtree(db)
        shutil.copytree(start, db)
        assert len(steps_until_killed(last, lambda: lmdbloader.append(db, [place / "c.lmdb"]))) == last
        assert content(db) == (old if last <= commit else new)
        assert len(values_of(db)) == 6 + 4 * (parts - 1) + 5 * (last > commit)
        if last <= commit:
            assert lmdbloader.verify(db).is_sound
        # The next call clears or continues what is left.
        lmdbloader.append(db, [place / ("c.lmdb" if last <= commit else "b.lmdb")])
        assert names_in(db) == set_of(parts + (1 if last <= commit else 2))
        assert last > commit or content(db) == new
        assert sorted(path.name for path in tmp_path.iterdir()) == ["db", "start"]


def test_a_part_that_was_complete_is_not_written_again(place: Path, db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("lmdbloader.conversion.appending.write_set", _fail)
        with pytest.raises(RuntimeError):
            lmdbloader.append(db, [place / "b.lmdb"])
    inode = (db / "part-00001" / "data.mdb").stat().st_ino
    with pytest.raises(DestinationError, match=r"another call are complete there, .*restart=True"):
        lmdbloader.append(db, [place / "c.lmdb"])
    lmdbloader.append(db, [place / "b.lmdb"])
    assert (db / "part-00001" / "data.mdb").stat().st_ino == inode and len(LMDBDataset(db)) == 10
    with monkeypatch.context() as patch:
        patch.setattr("lmdbloader.conversion.appending.write_set", _fail)
        with pytest.raises(RuntimeError):
            lmdbloader.append(db, [place / "b.lmdb"])
    flip(db / "part-00002", 3000, "index.arrow")
    lmdbloader.append(db, [place / "b.lmdb"])
    lmdbloader.append(db, [place / "c.lmdb"], restart=True)
    assert len(values_of(db)) == 19


def test_a_folder_that_is_not_a_part_is_left_alone(place: Path, db: Path) -> None:
    shutil.copytree(place / "b.lmdb", db / "part-00000")
    with pytest.raises(DestinationError, match=r"part-00000: is not a part of the dataset in .*Move it away"):
        lmdbloader.append(db, [place / "c.lmdb"])
    assert values_of(db / "part-00000") == values_of(place / "b.lmdb")


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
    assert content(db) == merged.content_digest
    assert values_of(db) == values_of(folder / "merged")
