"""`stage` from a URL: a checked copy that opens like the original, made once, and never a damaged one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from part_sets import tree
from remote_store import Server, objects_of, same, serving, write_dataset, write_parts

from lmdbloader import LMDBDataset, errors, stage

URL = "s3://bucket/train.lmdb"


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> LMDBDataset:
    return LMDBDataset(write_dataset(tmp_path_factory.mktemp("staged") / "train.lmdb", num_samples=150))


@pytest.fixture
def server(local: LMDBDataset) -> Iterator[Server]:
    with serving(objects_of(Path(local.path))) as found:
        yield found


def test_a_copy_is_equal_and_made_once(server: Server, local: LMDBDataset, tmp_path: Path) -> None:
    server.objects["train.lmdb/skipped.tsv"] = b"a note\n"
    lines: list[str] = []
    path = stage(URL, tmp_path, log=lines.append)
    assert path == tmp_path / "train.lmdb"
    assert {file.name: file.read_bytes() for file in path.iterdir()} == {
        key.partition("/")[2]: data for key, data in server.objects.items()
    }
    assert all(same(a, b) for a, b in zip(LMDBDataset(path), local, strict=True))
    count = len(server.ranges())
    assert count == 1
    assert stage(URL, tmp_path, log=lines.append) == path
    assert len(server.ranges()) == count
    assert "staged already" in lines[-1]


@pytest.mark.parametrize("name", ["data.mdb", "index.arrow"])
def test_a_damaged_original_is_not_put_in_place(server: Server, tmp_path: Path, name: str) -> None:
    damaged = bytearray(server.objects[f"train.lmdb/{name}"])
    damaged[len(damaged) // 2] ^= 1
    server.objects[f"train.lmdb/{name}"] = bytes(damaged)
    with pytest.raises(errors.CorruptError, match=f"{name}.*: the copy's digest is"):
        stage(URL, tmp_path)
    assert not (tmp_path / "train.lmdb").exists()


def test_faults_that_pass_are_tried_again(server: Server, tmp_path: Path) -> None:
    server.fault = lambda number, start: "cut" if number == 0 else ""
    assert (stage(URL, tmp_path) / "data.mdb").read_bytes() == server.objects["train.lmdb/data.mdb"]


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_parts(tmp_path_factory.mktemp("parts") / "train.lmdb", [30, 400, 20])


def test_only_the_new_parts_of_a_grown_dataset_are_copied(parts: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    with serving(objects_of(parts)) as server:
        path = stage(URL, tmp_path)
        before = {file.name: file.stat().st_ino for file in path.glob("*.mdb")}
        grown = write_parts(tmp_path / "grown.lmdb", [30, 400, 20, 10])
        server.objects.clear()
        server.objects.update(objects_of(grown))
        assert stage(URL, tmp_path, log=lines.append) == path
    assert any("keeps 3 of 4 parts" in line for line in lines)
    assert tree(path) == tree(grown)
    assert {name: (path / name).stat().st_ino for name in before} == before


@pytest.mark.parametrize("change", ["damaged", "missing", "short", "other"])
def test_a_dataset_with_a_wrong_part_is_not_put_in_place(parts: Path, tmp_path: Path, change: str) -> None:
    objects = objects_of(parts)
    key = "train.lmdb/data-00001.mdb"
    if change == "missing":
        del objects[key]
    elif change == "short":
        objects[key] = objects[key][:-1]
    elif change == "damaged":
        objects[key] = objects[key][:-1] + bytes([objects[key][-1] ^ 1])
    else:
        objects[key] = objects["train.lmdb/data.mdb"]
    with serving(objects), pytest.raises((errors.CorruptError, errors.NotFoundError), match=r"data-00001\.mdb"):
        stage(URL, tmp_path)
    assert not (tmp_path / "train.lmdb").exists()
