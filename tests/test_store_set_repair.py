"""repair of sets: files of parts from their data, the set's own from the parts, and the sound samples of all parts."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damage import flip
from part_sets import make_set, tree

import lmdbloader
from lmdbloader.cli import main
from lmdbloader.errors import CorruptError, LockedError
from lmdbloader.format.layout import DATA_FILE, INDEX_FILE, MANIFEST_FILE
from lmdbloader.store import Reader, read_manifest, repair, verify

COUNT = 24
INDEX = "index-00003.arrow"


def make_sample(i: int) -> dict[str, Any]:
    rng = np.random.default_rng(i)
    return {
        "blob": rng.integers(0, 256, 30_000, np.uint8).tobytes(),
        "caption": "long " * 40 if i == 21 else f"ü{i}",
        "label": i % 2,
    }


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    samples = [make_sample(i) for i in range(COUNT)]
    classes: list[dict[str, Any]] = [{"classes": {"label": ["a", "b"]}}] * 3
    return make_set(tmp_path_factory.mktemp("set") / "set", [samples[:10], samples[10:20], samples[20:]], classes)


@pytest.fixture
def path(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "set"))


def numbers(path: Path) -> list[int]:
    """Return the numbers of the samples of a dataset, by their content."""
    known = {make_sample(i)["blob"]: i for i in range(COUNT)}
    dataset = lmdbloader.LMDBDataset(path)
    return [known[bytes(dataset[i].blob)] for i in range(len(dataset))]


def test_a_sound_set_is_left_alone(path: Path) -> None:
    before, lines = tree(path), list[str]()
    assert repair(path, log=lines.append).replaced == ()
    assert tree(path) == before and "is sound" in lines[-1]


@pytest.mark.parametrize(
    "lost",
    [
        [INDEX],
        [MANIFEST_FILE],
        [INDEX, MANIFEST_FILE],
        ["part-00001/" + INDEX_FILE],
        ["part-00001/" + MANIFEST_FILE],
        ["part-00000/" + INDEX_FILE, "part-00000/" + MANIFEST_FILE, "part-00002/" + INDEX_FILE],
        ["part-00002/" + MANIFEST_FILE, INDEX, MANIFEST_FILE],
    ],
)
def test_lost_files_are_made_again(path: Path, lost: list[str]) -> None:
    before = tree(path)
    for name in lost:
        (path / name).unlink()
    lines: list[str] = []
    done = repair(path, log=lines.append)
    assert set(lost) <= set(done.replaced) and (done.out, done.num_samples, done.left_out) == (None, COUNT, ())
    assert tree(path) == before
    assert verify(path).is_sound
    if MANIFEST_FILE in lost:
        assert any("taken from 3 of its parts" in line for line in lines)


@pytest.mark.parametrize("name", [INDEX, MANIFEST_FILE, "part-00001/" + INDEX_FILE, "part-00001/" + MANIFEST_FILE])
def test_damaged_files_are_made_again(path: Path, name: str) -> None:
    before = tree(path)
    flip(path, 200, name)
    assert name in repair(path).replaced
    assert tree(path) == before


def test_what_only_the_manifest_of_the_set_stated_is_kept_while_it_is_readable(path: Path) -> None:
    text = (path / MANIFEST_FILE).read_text()
    (path / MANIFEST_FILE).write_text(text.replace('"num_samples": 24', '"num_samples":  24'))
    assert MANIFEST_FILE in repair(path).replaced
    assert (path / MANIFEST_FILE).read_text() == text


def test_damaged_data_needs_another_dataset(path: Path, tmp_path: Path) -> None:
    for row in (2, 7):
        part = path / "part-00001"
        flip(part, int(Reader(part).index.arrays["blob.offset"][row]) + 9)
    (path / INDEX).unlink()
    before = tree(path)
    with pytest.raises(CorruptError, match=r"part-00001/data\.mdb is damaged or missing.*repair \S+ OUT"):
        repair(path)
    assert tree(path) == before
    lines: list[str] = []
    done = repair(path, tmp_path / "out", log=lines.append)
    assert tree(path) == before
    assert numbers(tmp_path / "out") == [i for i in range(COUNT) if i not in (12, 17)]
    assert [damage.sample for damage in done.left_out] == [12, 17]
    assert verify(tmp_path / "out").is_sound and done.num_samples == COUNT - 2
    manifest = read_manifest(tmp_path / "out")
    assert manifest.parts == () and manifest.classes == {"label": ("a", "b")}
    assert manifest.made_by["inputs"]["left_out"] == 2
    assert (tmp_path / "out" / "left_out.tsv").read_text().count("\n") == 3


def test_a_missing_part_leaves_the_others(path: Path, tmp_path: Path) -> None:
    shutil.rmtree(path / "part-00001")
    done = repair(path, tmp_path / "out")
    assert numbers(tmp_path / "out") == [*range(10), *range(20, COUNT)]
    assert [damage.sample for damage in done.left_out] == list(range(10, 20))
    assert not done.may_lack_more and "missing" in done.left_out[0].reason
    assert read_manifest(tmp_path / "out").made_by["inputs"]["left_out"] == 10
    rows = [line.split("\t") for line in (tmp_path / "out" / "left_out.tsv").read_text().splitlines()]
    assert rows == [["sample", "field", "source", "reason"], ["10-19", "all", "", done.left_out[0].reason]]


def test_samples_that_were_lost_together_are_one_line_and_others_one_each(path: Path, tmp_path: Path) -> None:
    flip(path / "part-00000", int(Reader(path / "part-00000").index.arrays["blob.offset"][8]) + 9)
    flip(path / "part-00000", int(Reader(path / "part-00000").index.arrays["blob.offset"][9]) + 9)
    for name in ("part-00001", "part-00002"):
        shutil.rmtree(path / name)
    repair(path, tmp_path / "out")
    rows = [line.split("\t")[:2] for line in (tmp_path / "out" / "left_out.tsv").read_text().splitlines()]
    assert rows[1:] == [["8", "blob"], ["9", "blob"], [f"10-{COUNT - 1}", "all"]]


def test_a_cut_part_without_an_index_gives_its_records(path: Path, tmp_path: Path) -> None:
    part = path / "part-00000"
    os.truncate(part / DATA_FILE, (part / DATA_FILE).stat().st_size // 2)
    (part / INDEX_FILE).unlink()
    done = repair(path, tmp_path / "out")
    found = numbers(tmp_path / "out")
    assert found[-14:] == list(range(10, COUNT))
    assert sorted({damage.sample for damage in done.left_out} | set(found)) == list(range(COUNT))


def test_index_files_of_sound_parts_are_made_before_samples_are_saved(path: Path, tmp_path: Path) -> None:
    flip(path / "part-00002", int(Reader(path / "part-00002").index.arrays["blob.offset"][1]) + 9)
    before = (path / "part-00000" / INDEX_FILE).read_bytes()
    (path / "part-00000" / INDEX_FILE).unlink()
    repair(path, tmp_path / "out")
    assert numbers(tmp_path / "out") == [i for i in range(COUNT) if i != 21]
    assert (path / "part-00000" / INDEX_FILE).read_bytes() == before


def exchange(path: Path) -> None:
    os.rename(path / "part-00000", path / "x")
    os.rename(path / "part-00001", path / "part-00000")
    os.rename(path / "x", path / "part-00001")


def test_exchanged_parts_are_not_repaired(path: Path) -> None:
    exchange(path)
    before = tree(path)
    with pytest.raises(CorruptError, match="Exchange the names of part-00000 and part-00001"):
        repair(path)
    (path / INDEX).unlink()
    with pytest.raises(CorruptError, match="Exchange the names of part-00000 and part-00001"):
        repair(path)
    before.pop(INDEX)
    assert tree(path) == before


def test_another_dataset_as_a_part_is_refused_until_the_manifest_is_removed(path: Path, tmp_path: Path) -> None:
    shutil.rmtree(path / "part-00001")
    options: dict[str, Any] = {"classes": {"label": ["a", "b"]}}
    lmdbloader.write([make_sample(i) for i in range(5)], path / "part-00001", **options)
    with pytest.raises(CorruptError, match="Put back the part that was replaced"):
        repair(path)
    flip(path / "part-00000", int(Reader(path / "part-00000").index.arrays["blob.offset"][1]) + 9)
    with pytest.raises(CorruptError, match="part-00001 is not the dataset that belongs"):
        repair(path, tmp_path / "out")
    flip(path / "part-00000", int(Reader(path / "part-00000").index.arrays["blob.offset"][1]) + 9)
    (path / MANIFEST_FILE).unlink()
    repair(path)
    assert numbers(path) == [*range(10), *range(5), *range(20, COUNT)]
    assert verify(path).is_sound


def test_a_set_without_a_manifest_and_a_part_is_not_made_smaller(path: Path) -> None:
    (path / MANIFEST_FILE).unlink()
    shutil.rmtree(path / "part-00002")
    with pytest.raises(CorruptError, match=r"part-00002/data\.mdb is damaged or missing"):
        repair(path)


def test_the_classes_of_a_grown_set_come_from_the_part_with_the_most(path: Path) -> None:
    lmdbloader.write([make_sample(1)], path / "part-00003", classes={"label": ["a", "b", "c"]})
    (path / MANIFEST_FILE).unlink()
    (path / INDEX).unlink()
    repair(path)
    assert read_manifest(path).classes == {"label": ("a", "b", "c")} and len(Reader(path)) == COUNT + 1


def test_damaged_parts_without_any_manifest_are_described_by_their_data(path: Path, tmp_path: Path) -> None:
    for name in ("part-00000", "part-00001", "part-00002"):
        flip(path / name, int(Reader(path / name).index.arrays["blob.offset"][1]) + 9)
    for manifest in path.rglob(MANIFEST_FILE):
        manifest.unlink()
    done = repair(path, tmp_path / "out")
    found = numbers(tmp_path / "out")
    assert done.num_samples == len(found) > 0 and read_manifest(tmp_path / "out").classes == {"label": ("a", "b")}


@pytest.mark.parametrize("has_index", [True, False])
def test_the_index_tells_a_set_from_a_dataset_that_begins_to_grow(path: Path, has_index: bool) -> None:
    for name in (DATA_FILE, INDEX_FILE):  # as of a call of append that was killed
        os.link(path / "part-00000" / name, path / name)
    (path / MANIFEST_FILE).unlink()
    if not has_index:
        (path / INDEX).unlink()
    repair(path)
    assert len(Reader(path)) == (COUNT if has_index else 10)


def test_a_set_that_is_being_repaired_is_locked(path: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    (path / INDEX).unlink()
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with pytest.raises(LockedError, match="being repaired"):
            repair(path)
    finally:
        os.close(descriptor)


def test_the_command_repairs_a_set(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path / INDEX).unlink()
    assert main(["repair", str(path)]) == 0
    assert f"{INDEX} and manifest.json rebuilt from its 3 parts" in capsys.readouterr().out
    flip(path / "part-00000", int(Reader(path / "part-00000").index.arrays["blob.offset"][1]) + 9)
    assert main(["repair", str(path), str(tmp_path / "out")]) == 0
    assert "23 samples" in capsys.readouterr().out
