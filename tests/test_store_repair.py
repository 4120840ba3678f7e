"""repair: a lost index or manifest is made again unchanged, and every sound sample of damaged data files is saved."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damage import flip
from part_sets import make_set, tree

import lmdbloader
from lmdbloader.errors import CorruptError, DestinationError, FormatError
from lmdbloader.format.layout import MANIFEST_FILE
from lmdbloader.format.manifest import part_begins
from lmdbloader.store import Reader, read_manifest, repair, verify

COUNT, FIRST = 60, 25
DATA = ("data.mdb", "data-00001.mdb")


def make_sample(i: int) -> dict[str, Any]:
    """Return the sample of a number, with every kind of field and every codec."""
    rng = np.random.default_rng(i)
    side = 320 if i % 20 == 7 else 40  # the large ones are stored in tiles
    shades = rng.integers(0, 256, (side, side, 3), np.uint8)
    shades[: side // 2] = i
    return {
        "n": i,
        "image": shades,
        "blob": rng.integers(0, 9, 9000, np.uint8).tobytes(),
        "mask": np.full((i % 3, 2), i, np.float32),
        "caption": "ü" * (i % 5),
        "extra": {"i": i},
    }


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    samples = [make_sample(i) for i in range(COUNT)]
    return make_set(tmp_path_factory.mktemp("repair") / "d", [samples[:FIRST], samples[FIRST:]], [{"codec": "lz4"}] * 2)


@pytest.fixture
def path(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "d"))


@pytest.fixture(scope="module")
def patches(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset of pairs with sources and two classes."""
    folder = tmp_path_factory.mktemp("classes")
    for i, file in enumerate(sorted(photos.iterdir())):
        (folder / "photos" / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
        shutil.copy(file, folder / "photos" / "ab"[i % 2])
    lmdbloader.convert(folder / "photos", folder / "d", layout="classes", patch_size=96, workers=1)
    return folder / "d"


def flip_at(path: Path, field: str, row: int, more: int) -> None:
    """Flip a bit of a payload."""
    manifest, at = read_manifest(path), int(Reader(path).index.arrays[f"{field}.offset"][row])
    begins = part_begins([part.data_nbytes for part in manifest.parts])
    number = sum(begin <= at for begin in begins[1:-1])
    flip(path, at - begins[number] + more, manifest.data_files[number])


def bytes_of(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


def check_samples(path: Path, numbers: list[int]) -> None:
    """Compare every byte of a dataset with the formula."""
    ds = lmdbloader.LMDBDataset(path)
    found = [ds[i] for i in range(len(ds))]
    assert [int(sample.n) for sample in found] == numbers
    for sample, number in zip(found, numbers, strict=True):
        expected = make_sample(number)
        np.testing.assert_array_equal(sample.image.numpy(), expected["image"].transpose(2, 0, 1))
        np.testing.assert_array_equal(sample.mask.numpy(), expected["mask"])
        assert (sample.blob, sample.caption, sample.extra) == (expected["blob"], expected["caption"], expected["extra"])


def lose(path: Path, name: str) -> None:
    (path / name).unlink()


def cut(path: Path, name: str) -> None:
    (path / name).write_bytes((path / name).read_bytes()[:500])


def damage(path: Path, name: str) -> None:
    flip(path, (path / name).stat().st_size // 2, name)


@pytest.mark.parametrize("change", [lose, cut, damage])
@pytest.mark.parametrize("names", [("index.arrow",), (MANIFEST_FILE,), ("index.arrow", MANIFEST_FILE)])
def test_a_lost_index_or_manifest_is_rebuilt_byte_for_byte(
    path: Path, names: tuple[str, ...], change: Callable[[Path, str], None]
) -> None:
    before = bytes_of(path)
    for name in names:
        change(path, name)
    assert MANIFEST_FILE in verify(path).files or names == ("index.arrow",)
    assert set(verify(path).files) <= {*names, "index.arrow"}  # without a manifest, an index cannot be checked
    done = repair(path)
    assert bytes_of(path) == before
    assert set(names) <= set(done.replaced) and (done.out, done.num_samples, done.left_out) == (None, COUNT, ())
    assert verify(path).is_sound


def test_sources_and_classes_are_rebuilt_too(patches: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(patches, tmp_path / "d"))
    lose(path, "index.arrow")
    repair(path)
    assert bytes_of(path) == bytes_of(patches)
    lose(path, "index.arrow")
    lose(path, MANIFEST_FILE)
    repair(path)
    manifest, sound = read_manifest(path), read_manifest(patches)
    # Which content the inputs had is known when all parts are complete: no part has it.
    assert {**sound.made_by["inputs"], "content": None} == {**manifest.made_by["inputs"], "content": None}
    assert manifest.content_digest == sound.content_digest
    assert manifest.classes == {"label": ("a", "b")}
    assert (path / "index.arrow").read_bytes() == (patches / "index.arrow").read_bytes()


def test_damaged_samples_are_left_out_and_listed(path: Path, tmp_path: Path) -> None:
    last = int(Reader(path).index.arrays["image.stored_nbytes"][7]) - 9
    for field, row, more in (("blob", 3, 100), ("image", 7, last), ("image", 50, 30), ("extra", 50, 0)):
        flip_at(path, field, row, more)  # of sample 7 in the last tile
    before = bytes_of(path)
    lines: list[str] = []
    with pytest.raises(CorruptError, match=rf"`lmdbloader repair {path} OUT`"):
        repair(path, log=lines.append)
    named = [("sample 3, field blob"), "sample 7, field image", "sample 50, field image", "sample 50, field extra"]
    assert all(any(line.startswith(name) for line in lines) for name in named)
    done = repair(path, tmp_path / "out", log=lines.append)
    assert bytes_of(path) == before
    assert sorted((d.sample, d.field) for d in done.left_out) == [
        (3, "blob"),
        (7, "image"),
        (50, "extra"),
        (50, "image"),
    ]
    assert done.num_samples == COUNT - 3
    assert lines[-1] == (
        f"{tmp_path}/out: written, 57 samples of {path}; 3 left out, listed in {tmp_path}/out/left_out.tsv"
    )
    rows = [line.split("\t") for line in (tmp_path / "out" / "left_out.tsv").read_text().splitlines()]
    assert rows[0] == ["sample", "field", "source", "reason"]
    assert sorted((row[0], row[1]) for row in rows[1:])[0] == ("3", "blob") and len(rows) == 5
    assert verify(tmp_path / "out").is_sound
    check_samples(tmp_path / "out", [i for i in range(COUNT) if i not in (3, 7, 50)])
    manifest = read_manifest(tmp_path / "out")
    assert manifest.fields == read_manifest(path).fields
    assert manifest.made_by["inputs"]["left_out"] == 3


def test_sources_are_named_and_kept(patches: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(patches, tmp_path / "d"))
    (path / "skipped.tsv").write_text("name\treason\nx.png\tbad\n")
    reader = Reader(path)
    flip_at(path, "image", 9, 3)
    (left_out,) = repair(path, tmp_path / "out").left_out
    assert (left_out.sample, left_out.source) == (9, reader.source(9))
    out = Reader(tmp_path / "out")
    rows = [row for row in range(len(reader)) if row != 9]
    assert [out.source(row) for row in range(len(out))] == [reader.source(row) for row in rows]
    for name in ("top", "left", "label", "image.checksum"):
        np.testing.assert_array_equal(out.index.arrays[name], reader.index.arrays[name][rows])
    assert out.manifest.classes == reader.manifest.classes
    assert (tmp_path / "out" / "skipped.tsv").read_bytes() == (path / "skipped.tsv").read_bytes()
    staged = lmdbloader.stage(tmp_path / "out", tmp_path / "staged")
    assert bytes_of(staged) == bytes_of(tmp_path / "out")
    # The same conversion is not taken for done where a part of it is missing.
    made = lmdbloader.convert(patches.parent / "photos", patches, layout="classes", patch_size=96, workers=1)
    assert made.was_finished
    with pytest.raises(DestinationError):
        lmdbloader.convert(patches.parent / "photos", tmp_path / "out", layout="classes", patch_size=96, workers=1)


def test_damage_between_the_samples_costs_none(path: Path, tmp_path: Path) -> None:
    for name in DATA:
        with open(path / name, "r+b") as file:
            file.write(b"\xff" * 8192)
    assert verify(path).damaged == ()
    done = repair(path, tmp_path / "out")
    assert (done.num_samples, done.left_out) == (COUNT, ())
    assert read_manifest(tmp_path / "out").content_digest == read_manifest(path).content_digest
    assert not (tmp_path / "out" / "left_out.tsv").exists()
    check_samples(tmp_path / "out", list(range(COUNT)))


@pytest.mark.parametrize("lost", [("index.arrow",), ("index.arrow", MANIFEST_FILE)])
def test_without_an_index_sound_parts_are_saved(path: Path, tmp_path: Path, lost: tuple[str, ...]) -> None:
    flip(path, 3, DATA[0])
    for name in lost:
        lose(path, name)
    before = tree(path)
    done = repair(path, tmp_path / "out")
    assert tree(path) == before
    check_samples(tmp_path / "out", list(range(FIRST, COUNT)))
    assert verify(tmp_path / "out").is_sound
    assert done.may_lack_more == (MANIFEST_FILE in lost)
    assert [damage.sample for damage in done.left_out] == ([] if done.may_lack_more else list(range(FIRST)))
    if not done.may_lack_more:
        assert f"\n{FIRST - 1}\tall\t" in (tmp_path / "out" / "left_out.tsv").read_text()


@pytest.mark.parametrize("name", DATA)
def test_a_lost_part_is_left_out(path: Path, tmp_path: Path, name: str) -> None:
    lose(path, name)
    gone = range(FIRST) if name == DATA[0] else range(FIRST, COUNT)
    done = repair(path, tmp_path / "out")
    assert {damage.sample for damage in done.left_out} == {*gone}
    check_samples(tmp_path / "out", [i for i in range(COUNT) if i not in gone])


def test_wrong_numbers_in_a_manifest_that_was_signed_again_are_repaired(path: Path) -> None:
    before, manifest = bytes_of(path), read_manifest(path)
    name, facts = next(iter(manifest.index.facts.items()))
    for total in ("stored_nbytes", "raw_nbytes"):
        wrong = dataclasses.replace(facts, totals={**facts.totals, total: 1})
        index = dataclasses.replace(manifest.index, facts={**manifest.index.facts, name: wrong})
        changed = dataclasses.replace(manifest, index=index)
        (path / MANIFEST_FILE).write_bytes(changed.to_json())
        assert not verify(path).is_sound
        assert MANIFEST_FILE in repair(path).replaced
        assert bytes_of(path) == before


@pytest.mark.parametrize("out", [None, "out"])
def test_without_data_nothing_can_be_repaired(path: Path, tmp_path: Path, out: str | None) -> None:
    for name in DATA:
        lose(path, name)
    with pytest.raises((CorruptError, FormatError)):
        repair(path, out and tmp_path / out)
    assert not (tmp_path / "out").exists()


def test_no_destination_is_replaced(path: Path, tmp_path: Path, written: Path) -> None:
    flip_at(path, "blob", 3, 0)
    for out in (written, tmp_path, path):
        with pytest.raises(DestinationError):
            repair(path, out)
    with pytest.raises(DestinationError, match="does not exist"):
        repair(path, tmp_path / "no" / "out")
    with pytest.raises(FileNotFoundError):
        repair(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FormatError):
        repair(tmp_path / "empty")


@pytest.mark.parametrize("lost", [(), ("index.arrow",)])
@pytest.mark.parametrize("name", ["data.mdb", MANIFEST_FILE])
def test_files_of_another_dataset_are_not_taken(path: Path, tmp_path: Path, name: str, lost: tuple[str, ...]) -> None:
    samples = [make_sample(i) for i in range(COUNT)]
    samples[5]["n"] = -1
    make_set(tmp_path / "other", [samples[:FIRST], samples[FIRST:]], [{"codec": "lz4"}] * 2)
    expected = bytes_of(path)
    shutil.copy(tmp_path / "other" / name, path)
    for other in lost:
        lose(path, other)
    before = bytes_of(path)
    assert name in verify(path).files or "data.mdb" in verify(path).files
    with pytest.raises(CorruptError):
        repair(path)
    assert bytes_of(path) == before
    if name == MANIFEST_FILE:
        lose(path, MANIFEST_FILE)
        repair(path)
        assert bytes_of(path) == expected
