"""Staging sets: a copy of all parts, made once, that grows with its source."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damage import flip
from part_sets import join, make_set, tree

import lmdbloader
from lmdbloader.errors import CorruptError, DestinationError, FormatError
from lmdbloader.store import verify

COUNT = 9


def make_sample(i: int) -> dict[str, Any]:
    return {"blob": np.random.default_rng(i).integers(0, 255, 5000, np.uint8).tobytes(), "n": i}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    samples = [make_sample(i) for i in range(COUNT)]
    return make_set(tmp_path_factory.mktemp("set") / "train", [samples[:4], samples[4:5], samples[5:]])


@pytest.fixture
def db(written: Path, tmp_path: Path) -> Path:
    (tmp_path / "shared").mkdir()
    return Path(shutil.copytree(written, tmp_path / "shared" / "train"))


@pytest.fixture
def node(tmp_path: Path) -> Path:
    return tmp_path / "node"


def grow(db: Path) -> None:
    lmdbloader.write([make_sample(COUNT)], db / "part-00003")
    join(db, 4)


def inodes(path: Path) -> dict[str, int]:
    return {str(file.relative_to(path)): file.stat().st_ino for file in path.rglob("*") if file.is_file()}


def test_a_copy_is_equal_and_made_once(db: Path, node: Path) -> None:
    (db / "skipped.tsv").write_text("name\treason\n")
    path = lmdbloader.stage(db, node)
    assert path == node / "train" and tree(path) == tree(db)
    assert [p.name for p in node.iterdir()] == ["train"]
    assert verify(path).is_sound and len(lmdbloader.LMDBDataset(path)) == COUNT
    before, lines = inodes(path), list[str]()
    assert lmdbloader.stage(db, node, log=lines.append) == path
    assert lines == [f"{path}: staged already"] and inodes(path) == before
    assert lmdbloader.stage(path, node) == path


def test_only_the_new_part_of_a_grown_set_is_copied(db: Path, node: Path) -> None:
    path = lmdbloader.stage(db, node)
    dataset, before = lmdbloader.LMDBDataset(path), inodes(path)
    grow(db)
    lines: list[str] = []
    lmdbloader.stage(db, node, log=lines.append)
    assert any("keeps 3 of 4 parts" in line for line in lines)
    (db / "index-00003.arrow").unlink()
    assert tree(path) == tree(db)
    after = inodes(path)
    old = [name for name in before if name.startswith("part-")]
    assert len(old) == 9 and {name: after[name] for name in old} == {name: before[name] for name in old}
    assert all((path / name).stat().st_nlink == 1 for name in old)
    assert [p.name for p in node.iterdir()] == ["train"]
    assert bytes(dataset[0].blob) == make_sample(0)["blob"] and len(lmdbloader.LMDBDataset(path)) == COUNT + 1


def test_a_dataset_in_one_file_that_has_grown_keeps_its_data(db: Path, node: Path, tmp_path: Path) -> None:
    one = tmp_path / "shared" / "one.lmdb"
    lmdbloader.write([make_sample(i) for i in range(4)], one)
    path = lmdbloader.stage(one, node)
    before = (path / "data.mdb").stat().st_ino
    lmdbloader.append(one, [db])
    lines: list[str] = []
    lmdbloader.stage(one, node, log=lines.append)
    assert any("keeps 1 of 2 parts" in line for line in lines)
    assert (path / "part-00000" / "data.mdb").stat().st_ino == before
    staged = {name: content for name, content in tree(one).items() if not name.endswith("sources.arrow")}
    assert tree(path) == staged and verify(path).is_sound


def test_without_second_names_everything_is_copied(db: Path, node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = lmdbloader.stage(db, node)
    grow(db)
    links = []

    def refuse(*names: Any) -> None:
        links.append(names)
        if len(links) % 2 == 0:
            raise PermissionError("no links here")
        os.symlink(*names)  # something is there that must go

    monkeypatch.setattr(os, "link", refuse)
    lmdbloader.stage(db, node)
    assert links
    (db / "index-00003.arrow").unlink()
    assert tree(path) == tree(db) and not any(file.is_symlink() for file in path.rglob("*"))


@pytest.mark.parametrize("name", ["data.mdb", "index.arrow", "manifest.json"])
def test_a_damaged_part_of_an_earlier_copy_is_copied_again(db: Path, node: Path, name: str) -> None:
    path = lmdbloader.stage(db, node)
    grow(db)
    (db / "index-00003.arrow").unlink()
    flip(path / "part-00000", 300, name)
    lines: list[str] = []
    lmdbloader.stage(db, node, log=lines.append)
    assert any("keeps 2 of 4 parts" in line for line in lines)
    assert tree(path) == tree(db)


def test_another_set_is_not_replaced(db: Path, node: Path) -> None:
    node.mkdir()
    make_set(node / "train", [[make_sample(100)]])
    before = tree(node / "train")
    with pytest.raises(DestinationError, match="a dataset is there already"):
        lmdbloader.stage(db, node)
    assert tree(node / "train") == before
    assert tree(lmdbloader.stage(db, node, overwrite=True)) == tree(db)
    # A smaller set with other parts behind it is not an earlier copy, either.
    shutil.rmtree(db)
    make_set(db, [[make_sample(i)] for i in range(4)])
    with pytest.raises(DestinationError, match="a dataset is there already"):
        lmdbloader.stage(db, node)


def test_a_changed_copy_is_found_by_its_time_or_by_reading(db: Path, node: Path) -> None:
    path = lmdbloader.stage(db, node)
    data = path / "part-00001" / "data.mdb"
    flip(path / "part-00001", data.stat().st_size - 1)
    lines: list[str] = []
    assert tree(lmdbloader.stage(db, node, log=lines.append)) == tree(db)
    assert "reading and comparing" in lines[0] and "part-00001/data.mdb: its digest is" in lines[1]
    assert any("keeps 2 of 3 parts" in line for line in lines)
    time_ns = data.stat().st_mtime_ns
    flip(path / "part-00001", data.stat().st_size - 1)
    os.utime(data, ns=(time_ns, time_ns))
    assert tree(lmdbloader.stage(db, node)) != tree(db), "nothing shows the change"
    assert tree(lmdbloader.stage(db, node, check=True)) == tree(db)


def test_a_damaged_source_is_not_copied(db: Path, node: Path) -> None:
    flip(db / "part-00002", (db / "part-00002" / "data.mdb").stat().st_size - 1)
    with pytest.raises(CorruptError, match=r"part-00002/data\.mdb: its digest is .* is not copied"):
        lmdbloader.stage(db, node)
    assert not list(node.iterdir())


def test_a_part_that_is_a_link_is_read_and_not_copied(db: Path, node: Path) -> None:
    os.rename(db / "part-00001", db.with_name("elsewhere"))
    os.symlink(db.with_name("elsewhere"), db / "part-00001")
    assert len(lmdbloader.LMDBDataset(db)) == COUNT
    with pytest.raises(FormatError, match=r"part-00001: is a link, and links are not followed") as caught:
        lmdbloader.stage(db, node)
    assert f"`lmdbloader merge {db} -o OUT`" in str(caught.value)
    assert not list(node.iterdir())
    lmdbloader.merge([db], node / "whole")
    assert len(lmdbloader.LMDBDataset(lmdbloader.stage(node / "whole", node.parent))) == COUNT


def test_a_part_that_was_replaced_is_not_copied(db: Path, node: Path) -> None:
    (db / "part-00002" / "manifest.json").write_bytes((db / "part-00001" / "manifest.json").read_bytes())
    with pytest.raises(CorruptError, match="part-00002: is not the part that the set states"):
        lmdbloader.stage(db, node)
