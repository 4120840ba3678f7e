"""repair: a lost index or manifest is rebuilt unchanged, and every sound sample of a damaged data file is saved."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pyarrow as pa
import pytest
from damage import flip

import lmdbloader
from lmdbloader.errors import CorruptError, DestinationError, FormatError, LockedError
from lmdbloader.format.codecs import checksum
from lmdbloader.format.digests import DIGESTS, DigestName
from lmdbloader.format.layout import MANIFEST_FILE
from lmdbloader.store import Reader, open_writer, read_manifest, repair, verify
from lmdbloader.store.care.pages import find_entries, find_records

COUNT = 60
PAGE = 4096
FILES = ("data.mdb", "index.arrow", MANIFEST_FILE)


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
    path = tmp_path_factory.mktemp("repair") / "d"
    lmdbloader.write((make_sample(i) for i in range(COUNT)), path, codec="lz4")
    assert len(find_all_records(path)) > 5
    return path


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


def find_all_records(path: Path) -> list[Any]:
    with open(path / "data.mdb", "rb") as file:
        return find_records(file.fileno())


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
    assert set(verify(path).files) <= set(names)  # without a manifest, an index cannot be checked
    done = repair(path)
    assert bytes_of(path) == before
    assert set(names) <= set(done.replaced) and (done.out, done.num_samples, done.left_out) == (None, COUNT, ())
    assert verify(path).is_sound


def test_sources_and_classes_are_rebuilt_too(patches: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(patches, tmp_path / "d"))
    lose(path, "index.arrow")
    lose(path, MANIFEST_FILE)
    repair(path)
    assert bytes_of(path) == bytes_of(patches)
    assert read_manifest(path).classes == {"label": ("a", "b")}


def test_a_sound_dataset_is_left_alone(path: Path, tmp_path: Path) -> None:
    before = bytes_of(path)
    lines: list[str] = []
    done = repair(path, tmp_path / "out", log=lines.append)
    assert (done.replaced, done.out, done.num_samples, done.left_out) == ((), None, COUNT, ())
    assert lines == [f"{path}: is sound, nothing was done"]
    assert bytes_of(path) == before and not (tmp_path / "out").exists()


def test_an_index_of_another_release_of_arrow_gets_a_manifest_of_its_own(path: Path) -> None:
    manifest = json.loads((path / MANIFEST_FILE).read_bytes())
    with pa.ipc.open_file((path / "index.arrow").read_bytes()) as reader:
        batch = reader.get_batch(0)
    options = pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V4)
    with pa.OSFile(str(path / "index.arrow"), "wb") as sink, pa.ipc.new_file(sink, batch.schema, options=options) as w:
        w.write_batch(batch)
    other = (path / "index.arrow").read_bytes()
    old = read_manifest(path)
    changed = dataclasses.replace(
        old, index_digest=f"xxh64:{checksum(other):016x}", sizes={**old.sizes, "index_nbytes": len(other)}
    )
    (path / MANIFEST_FILE).write_bytes(changed.to_json())
    assert verify(path).is_sound
    lose(path, "index.arrow")
    assert set(repair(path).replaced) == {"index.arrow", MANIFEST_FILE}
    assert json.loads((path / MANIFEST_FILE).read_bytes()) == manifest
    assert verify(path).is_sound


def test_damaged_samples_are_left_out_and_listed(path: Path, tmp_path: Path) -> None:
    a = Reader(path).index.arrays
    flip(path, int(a["blob.offset"][3]) + 100)
    flip(path, int(a["image.offset"][7]) + int(a["image.stored_nbytes"][7]) - 9)  # in the last tile
    flip(path, int(a["image.offset"][50]) + 30)
    flip(path, int(a["extra.offset"][50]))
    before = bytes_of(path)
    lines: list[str] = []
    with pytest.raises(
        CorruptError, match=rf"data.mdb is damaged, and is never changed. `lmdbloader repair {path} OUT`"
    ):
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
    flip(path, int(reader.index.arrays["image.offset"][9]) + 3)
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


@pytest.mark.parametrize("what", ["meta pages", "a page of the tree", "behind the values"])
def test_damage_between_the_samples_costs_none(path: Path, tmp_path: Path, what: str) -> None:
    if what == "meta pages":
        with open(path / "data.mdb", "r+b") as file:
            file.write(b"\xff" * 2 * PAGE)
    elif what == "a page of the tree":
        data = (path / "data.mdb").read_bytes()
        for page in range(2, len(data) // PAGE):
            if data[page * PAGE : page * PAGE + 8] == page.to_bytes(8, "little") and data[page * PAGE + 10] in (1, 2):
                with open(path / "data.mdb", "r+b") as file:
                    file.seek(page * PAGE)
                    file.write(bytes(PAGE))
    else:
        last = find_all_records(path)[-1]
        assert (last.at + last.nbytes) % PAGE
        flip(path, last.at + last.nbytes)
    assert verify(path).damaged == ()
    done = repair(path, tmp_path / "out")
    assert (done.num_samples, done.left_out) == (COUNT, ())
    assert read_manifest(tmp_path / "out").content_digest == read_manifest(path).content_digest
    assert not (tmp_path / "out" / "left_out.tsv").exists()
    assert read_manifest(tmp_path / "out").made_by == read_manifest(path).made_by
    check_samples(tmp_path / "out", list(range(COUNT)))


def test_of_a_file_cut_short_the_samples_within_it_are_saved(path: Path, tmp_path: Path) -> None:
    a = Reader(path).index.arrays
    names = ("image", "blob", "mask", "extra")
    ends = np.max([a[f"{name}.offset"] + a[f"{name}.stored_nbytes"] for name in names], axis=0)
    size = (path / "data.mdb").stat().st_size // 2 + 77
    os.truncate(path / "data.mdb", size)
    repair(path, tmp_path / "out")
    check_samples(tmp_path / "out", np.flatnonzero(ends <= size).tolist())
    assert verify(tmp_path / "out").is_sound


@pytest.mark.parametrize("lost", [("index.arrow",), ("index.arrow", MANIFEST_FILE), (MANIFEST_FILE,)])
@pytest.mark.parametrize("what", ["flip", "cut", "meta pages"])
def test_without_an_index_whole_records_are_saved(path: Path, tmp_path: Path, lost: tuple[str, ...], what: str) -> None:
    records = find_all_records(path)
    for name in lost:
        lose(path, name)
    ends = [r.first for r in records[1:]] + [COUNT]
    if what == "flip":
        flip(path, records[2].at + 1000)
        gone = set(range(records[2].first, ends[2]))
    elif what == "cut":
        os.truncate(path / "data.mdb", max(r.at for r in records) + 10)
        gone = set()
        by_place = max(range(len(records)), key=lambda i: records[i].at)
        gone = set(range(records[by_place].first, ends[by_place]))
    else:
        with open(path / "data.mdb", "r+b") as file:
            file.write(bytes(2 * PAGE))
        gone = set()
    lines: list[str] = []
    done = repair(path, tmp_path / "out", log=lines.append)
    if what == "flip":
        assert f"samples {min(gone)} to {max(gone)}: their record is damaged, and there is no index" in lines
    check_samples(tmp_path / "out", [i for i in range(COUNT) if i not in gone])
    assert verify(tmp_path / "out").is_sound
    assert {d.sample for d in done.left_out} == gone
    assert not done.may_lack_more


def entries_of(path: Path, key: bytes) -> list[tuple[int, int]]:
    with open(path / "data.mdb", "rb") as file:
        return [(at, nbytes) for found, at, nbytes in find_entries(file.fileno()) if found == key]


@pytest.fixture
def patches_cut_short(patches: Path, tmp_path: Path) -> Path:
    """Return a dataset whose last record is damaged, without index and manifest."""
    path = Path(shutil.copytree(patches, tmp_path / "d"))
    records = find_all_records(path)
    assert len(records) > 1
    flip(path, records[-1].at + records[-1].nbytes - 9)
    lose(path, "index.arrow")
    lose(path, MANIFEST_FILE)
    return path


def test_samples_lost_at_the_end_are_listed_without_index_and_manifest(
    patches: Path, patches_cut_short: Path, tmp_path: Path
) -> None:
    count = read_manifest(patches).num_samples
    lines: list[str] = []
    done = repair(patches_cut_short, tmp_path / "out", log=lines.append)
    lost = range(done.num_samples, count)
    assert [d.sample for d in done.left_out] == list(lost) and lost and not done.may_lack_more
    assert lines[-1].endswith(f"{len(lost)} left out, listed in {tmp_path}/out/left_out.tsv")
    listed = (tmp_path / "out" / "left_out.tsv").read_text().splitlines()[1:]
    assert [line.split("\t")[0] for line in listed] == [f"{lost[0]}-{lost[-1]}"]
    with pytest.raises(DestinationError):
        lmdbloader.convert(patches.parent / "photos", tmp_path / "out", layout="classes", patch_size=96, workers=1)


@pytest.mark.parametrize("change", ["no number", "too few", "not as it is written"])
def test_an_unknown_number_of_samples_is_reported(
    patches: Path, patches_cut_short: Path, tmp_path: Path, change: str
) -> None:
    for at, nbytes in entries_of(patches_cut_short, b"progress"):
        text = {"no number": b'{"num_samples": x', "too few": b'{"num_samples": 1', "not as it is written": b""}[change]
        content = (text + b"}").rjust(nbytes) if change != "too few" else text + b"}" + b" " * (nbytes - 18)
        with open(patches_cut_short / "data.mdb", "r+b") as file:
            file.seek(at)
            file.write(content)
    lines: list[str] = []
    done = repair(patches_cut_short, tmp_path / "out", log=lines.append)
    assert (done.may_lack_more, done.left_out) == (True, ())
    assert "the number of missing samples is unknown" in lines[-1]
    assert 0 < done.num_samples < read_manifest(patches).num_samples
    assert read_manifest(tmp_path / "out").made_by["inputs"]["may_lack_more"] is True
    assert verify(tmp_path / "out").is_sound
    with pytest.raises(DestinationError):
        lmdbloader.convert(patches.parent / "photos", tmp_path / "out", layout="classes", patch_size=96, workers=1)


def test_samples_beyond_those_that_are_stated_make_the_number_uncertain(path: Path, tmp_path: Path) -> None:
    """One flipped bit of a digit causes that."""
    for at, nbytes in entries_of(path, b"progress"):
        with open(path / "data.mdb", "r+b") as file:
            file.seek(at)
            if file.read(nbytes) == b'{"num_samples": 60}':
                file.seek(at)
                file.write(b'{"num_samples": 59}')
    lose(path, "index.arrow")
    lose(path, MANIFEST_FILE)
    done = repair(path, tmp_path / "out")
    assert (done.num_samples, done.left_out, done.may_lack_more) == (COUNT, (), True)


@pytest.mark.parametrize("num_fields", [1, 9, 18])
def test_numbers_that_earlier_transactions_left_do_not_count(tmp_path: Path, num_fields: int) -> None:
    """The description is on the tree's page, or on pages of its own if there are many fields."""
    names = [f"a_field_with_the_number_{i}" for i in range(num_fields)]
    path = tmp_path / "d"
    lmdbloader.write(({"blob": bytes(300_000), **dict.fromkeys(names, i)} for i in range(70)), path, codec="raw")
    for name in ("index.arrow", MANIFEST_FILE):
        lose(path, name)
    records = find_all_records(path)
    for record in records[-2:]:
        flip(path, record.at + 2000)
    done = repair(path, tmp_path / "out")
    assert [d.sample for d in done.left_out] == [68, 69] and not done.may_lack_more
    assert done.num_samples == 68


def test_an_empty_dataset_comes_back_and_nothing_else_comes_back_empty(path: Path, tmp_path: Path) -> None:
    with open_writer(tmp_path / "none", read_manifest(path).fields, with_source=False, map_nbytes=2**20) as writer:
        writer.finish(classes={}, made_by={})
    before = bytes_of(tmp_path / "none")
    for damaged in (path, tmp_path / "none"):
        lose(damaged, "index.arrow")
        lose(damaged, MANIFEST_FILE)
    assert repair(tmp_path / "none").num_samples == 0
    assert bytes_of(tmp_path / "none") == before
    for record in find_all_records(path):
        flip(path, record.at + 50)
    for uncertain in (False, True):
        if uncertain:
            for at, _ in entries_of(path, b"progress"):
                flip(path, at)
        with pytest.raises(CorruptError, match="not one of its samples"):
            repair(path, tmp_path / "out")
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("also", [None, "index.arrow", "data.mdb"])
def test_a_manifest_in_another_spelling_is_repaired(path: Path, tmp_path: Path, also: str | None) -> None:
    before = bytes_of(path)
    (path / MANIFEST_FILE).write_bytes(before[MANIFEST_FILE].replace(b"\n", b"\r\n"))
    if also == "data.mdb":
        flip(path, int(Reader(path).index.arrays["blob.offset"][3]))
        assert repair(path, tmp_path / "out").num_samples == COUNT - 1
        assert verify(tmp_path / "out").is_sound
        return
    if also:
        lose(path, also)
    assert set(repair(path).replaced) == {MANIFEST_FILE, *([also] if also else [])}
    assert bytes_of(path) == before


def test_an_older_manifest_in_another_spelling_is_repaired(tmp_path: Path) -> None:
    for name in ("samples", "patches"):
        golden = Path(__file__).parent / "data" / "format1" / f"{name}.lmdb"
        path = Path(shutil.copytree(golden, tmp_path / name))
        before = bytes_of(path)
        (path / MANIFEST_FILE).write_bytes(before[MANIFEST_FILE].replace(b": ", b":  "))
        assert verify(path).files == (MANIFEST_FILE,)
        repair(path)
        assert bytes_of(path)[MANIFEST_FILE] == before[MANIFEST_FILE]
        assert verify(path).is_sound


@pytest.mark.parametrize("change", [{"payload_nbytes": 1}, {"raw_nbytes": 1}])
def test_wrong_numbers_in_a_manifest_that_was_signed_again_are_repaired(path: Path, change: dict[str, int]) -> None:
    before, manifest = bytes_of(path), read_manifest(path)
    sizes = {name: change.get(name, nbytes) for name, nbytes in manifest.sizes.items()}
    changed = dataclasses.replace(manifest, sizes=sizes)
    (path / MANIFEST_FILE).write_bytes(changed.to_json())
    assert not verify(path).is_sound
    assert MANIFEST_FILE in repair(path).replaced
    assert bytes_of(path) == before


def test_a_manifest_that_contradicts_the_data_is_not_repaired(path: Path) -> None:
    before = bytes_of(path)
    manifest = read_manifest(path)
    for made_by in ({**manifest.made_by, "layout": "pairs"}, {}):
        (path / MANIFEST_FILE).write_bytes(dataclasses.replace(manifest, made_by=made_by).to_json())
        assert verify(path).problems == (f"{MANIFEST_FILE}: describes another dataset than data.mdb",)
        with pytest.raises(CorruptError, match=r"if data\.mdb is the right one, remove manifest\.json"):
            repair(path)
    lose(path, MANIFEST_FILE)
    repair(path)
    assert bytes_of(path) == before


@pytest.mark.parametrize("name", DIGESTS)
def test_a_repaired_dataset_keeps_its_digest_algorithm(tmp_path: Path, name: DigestName) -> None:
    path = tmp_path / "d"
    lmdbloader.write((make_sample(i) for i in range(COUNT)), path, codec="lz4", digest=name)
    before = bytes_of(path)
    for lost in ({"index.arrow"}, {MANIFEST_FILE}, {"index.arrow", MANIFEST_FILE}):
        for file in lost:
            lose(path, file)
        assert lost <= {*repair(path).replaced}
        assert bytes_of(path) == before
    damage(path, MANIFEST_FILE)
    repair(path)
    assert bytes_of(path) == before
    flip(path, int(Reader(path).index.arrays["blob.offset"][3]))
    assert repair(path, tmp_path / "sound").num_samples == COUNT - 1
    lose(path, "index.arrow")
    lose(path, MANIFEST_FILE)
    assert 0 < repair(path, tmp_path / "salvaged").num_samples < COUNT
    for out in (tmp_path / "sound", tmp_path / "salvaged"):
        assert read_manifest(out).digest == name
        assert verify(out).is_sound


def test_an_older_dataset_whose_manifest_is_lost_cannot_be_repaired(tmp_path: Path) -> None:
    golden = Path(__file__).parent / "data" / "format1" / "samples.lmdb"
    path = Path(shutil.copytree(golden, tmp_path / "d"))
    before = bytes_of(path)
    lose(path, "index.arrow")
    repair(path)
    assert verify(path).is_sound
    assert read_manifest(path).content_digest == json.loads(before[MANIFEST_FILE])["content_digest"]
    lose(path, MANIFEST_FILE)
    with pytest.raises(CorruptError, match=r"data\.mdb does not hold the content of manifest\.json"):
        repair(path, tmp_path / "out")


@pytest.mark.parametrize("out", [None, "out"])
def test_without_data_nothing_can_be_repaired(path: Path, tmp_path: Path, out: str | None) -> None:
    lose(path, "data.mdb")
    with pytest.raises(CorruptError, match=r"Without data\.mdb nothing can be repaired"):
        repair(path, out and tmp_path / out)
    assert not (tmp_path / "out").exists()


def test_a_dataset_without_a_sound_sample_is_not_written(path: Path, tmp_path: Path) -> None:
    size = (path / "data.mdb").stat().st_size
    (path / "data.mdb").write_bytes(bytes(size))
    for name in ("index.arrow", None):
        with pytest.raises(CorruptError, match="not one of its samples"):
            repair(path, tmp_path / "out")
        if name:
            lose(path, name)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["d"]


def test_no_destination_is_replaced(path: Path, tmp_path: Path, written: Path) -> None:
    flip(path, int(Reader(path).index.arrays["blob.offset"][3]))
    for out in (written, tmp_path, path, path / "inside"):
        with pytest.raises(DestinationError):
            repair(path, out)
    with pytest.raises(DestinationError, match="does not exist"):
        repair(path, tmp_path / "no" / "out")
    with pytest.raises(FileNotFoundError):
        repair(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FormatError):
        repair(tmp_path / "empty")


def test_records_of_another_dataset_are_not_taken(path: Path, tmp_path: Path) -> None:
    samples = [make_sample(i) for i in range(COUNT)]
    samples[5]["n"] = -1
    lmdbloader.write(samples, tmp_path / "other", codec="lz4")
    sizes = read_manifest(tmp_path / "other").sizes
    lose(path, "index.arrow")
    shutil.copy(tmp_path / "other" / "data.mdb", path)
    assert "data.mdb" in verify(path).files
    # As in a dataset that was made before there was a digest of data.mdb.
    (path / MANIFEST_FILE).write_bytes(dataclasses.replace(read_manifest(path), data_digest="", sizes=sizes).to_json())
    before = bytes_of(path)
    with pytest.raises(CorruptError, match="are not those of this dataset"):
        repair(path)
    flip(path, 0)  # so that the pages are damaged too, and no record
    with pytest.raises(CorruptError, match="are intact, but not those of the dataset"):
        repair(path, tmp_path / "out")
    flip(path, 0)
    assert bytes_of(path) == before and not (tmp_path / "out").exists()


def test_a_manifest_of_another_dataset_is_not_replaced(path: Path, tmp_path: Path) -> None:
    lmdbloader.write([{"text": "a"}], tmp_path / "other")
    expected = bytes_of(path)
    shutil.copy(tmp_path / "other" / MANIFEST_FILE, path)
    before = bytes_of(path)
    assert any("belongs to another dataset than data.mdb" in problem for problem in verify(path).problems)
    for out in (None, tmp_path / "out"):
        with pytest.raises(CorruptError, match=r"if data\.mdb is the right one, remove manifest\.json"):
            repair(path, out)
    assert bytes_of(path) == before
    lose(path, MANIFEST_FILE)
    repair(path)
    assert bytes_of(path) == expected


def test_repairs_exclude_each_other_and_remove_the_files_of_killed_ones(path: Path) -> None:
    before = bytes_of(path)
    lose(path, "index.arrow")
    (path / ".repair" / "columns").mkdir(parents=True)
    lock = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(LockedError, match="repaired already"):
            repair(path)
        assert (path / ".repair").exists()
    finally:
        os.close(lock)
    repair(path)
    assert bytes_of(path) == before


def test_an_open_reader_is_not_disturbed(path: Path) -> None:
    reader = Reader(path)
    expected = reader.read_bytes("blob", 11).tobytes()
    os.rename(path / "index.arrow", path.parent / "away")
    repair(path)
    assert reader.read_bytes("blob", 11).tobytes() == Reader(path).read_bytes("blob", 11).tobytes() == expected


def test_older_records_on_unused_pages_do_not_count_as_samples(path: Path, tmp_path: Path) -> None:
    """Deleted records remain on some page with a valid checksum."""
    lmdbloader.write((make_sample(i) for i in range(COUNT)), tmp_path / "other", codec="raw")
    with lmdb.open(str(tmp_path / "other"), readonly=True, lock=False) as env, env.begin() as transaction:
        entries = [(bytes(k), bytes(v)) for k, v in transaction.cursor() if len(k) == 16]
    with lmdb.open(str(path), map_size=2**26, lock=False) as env:
        with env.begin(write=True) as transaction:
            for key, value in entries:
                transaction.put(key, value)
        with env.begin(write=True) as transaction:
            for key, _ in entries:
                transaction.delete(key)
    firsts = [record.first for record in find_all_records(path)]
    assert firsts.count(0) == 2
    assert len(set(firsts)) > len(entries)
    lose(path, "index.arrow")
    lose(path, MANIFEST_FILE)
    flip(path, 0)
    repair(path, tmp_path / "out")
    check_samples(tmp_path / "out", list(range(COUNT)))


def test_every_record_is_found_without_lmdb(path: Path) -> None:
    with lmdb.open(str(path), readonly=True, lock=False) as env, env.begin() as transaction:
        expected = {bytes(k): bytes(v) for k, v in transaction.cursor() if len(k) == 16}
    data = (path / "data.mdb").read_bytes()
    found = {
        r.first.to_bytes(8, "big") + r.checksum.to_bytes(8, "big"): data[r.at : r.at + r.nbytes]
        for r in find_all_records(path)
    }
    assert found == expected
