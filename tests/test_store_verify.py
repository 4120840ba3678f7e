"""verify: finds planted faults of every kind, names the samples, and reports a sound dataset as sound."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damage import flip, index_batch, put_index, with_column
from part_sets import make_set

import lmdbloader
from lmdbloader.errors import FormatError
from lmdbloader.format.layout import MANIFEST_FILE
from lmdbloader.format.manifest import part_begins, signed
from lmdbloader.store import Reader, read_manifest, repair, verify

COUNT, FIRST = 120, 50
FILES = ("data.mdb", "data-00001.mdb", "index.arrow", MANIFEST_FILE)


def sample(i: int) -> dict[str, Any]:
    rng = np.random.default_rng(i)
    blob = rng.integers(0, 40, int(rng.integers(9_000, 12_000)), np.uint8).tobytes()
    return {"blob": blob, "mask": np.full(2, i, np.float32), "n": i}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset of two parts, each of several records."""
    samples = [sample(i) for i in range(COUNT)]
    return make_set(tmp_path_factory.mktemp("verify") / "d", [samples[:FIRST], samples[FIRST:]], [{"codec": "lz4"}] * 2)


@pytest.fixture
def path(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "d"))


def place(path: Path, field: str, row: int) -> tuple[str, int]:
    """Return the data file with the payload of a row, and where it begins in it."""
    manifest, at = read_manifest(path), int(Reader(path).index.arrays[f"{field}.offset"][row])
    begins = part_begins([part.data_nbytes for part in manifest.parts])
    number = sum(begin <= at for begin in begins[1:-1])
    return manifest.data_files[number], at - begins[number]


def test_a_sound_dataset_is_sound(written: Path) -> None:
    counts: list[int] = []
    found = verify(written, progress=counts.append)
    assert found.is_sound
    assert (found.num_samples, found.problems, found.damaged) == (COUNT, (), ())
    assert sum(counts) == COUNT


def test_every_damaged_sample_is_named(path: Path) -> None:
    for row in (3, 4, 77):
        name, at = place(path, "blob", row)
        flip(path, at + 100, name)
    name, at = place(path, "mask", COUNT - 1)
    flip(path, at, name)
    found = verify(path)
    assert not found.is_sound
    assert [(d.sample, d.field) for d in found.damaged] == [(3, "blob"), (4, "blob"), (77, "blob"), (119, "mask")]
    assert all("checksum" in d.reason for d in found.damaged)
    assert found.files == FILES[:2]
    assert f"`lmdbloader repair {path} OUT` writes the samples that are sound" in found.advice


def test_any_flipped_byte_of_any_file_is_found(path: Path) -> None:
    for file in FILES:
        content = (path / file).read_bytes()
        places = np.random.default_rng(len(content)).integers(0, len(content), 12).tolist()
        if file == MANIFEST_FILE:  # the keys that describe the rest
            places += [content.index(key) + len(key) for key in (b'"format_version": ', b'"manifest_digest": "')]
        for at in places:
            flip(path, at, file)
            found = verify(path)
            assert file in found.files, at
            assert found.advice
            flip(path, at, file)
    assert verify(path).is_sound


def test_a_manifest_of_a_later_release_is_not_damage(path: Path) -> None:
    body = json.loads((path / MANIFEST_FILE).read_bytes())
    body["format_version"] = 2
    (path / MANIFEST_FILE).write_bytes(json.dumps(body).encode())
    assert verify(path).files[0] == MANIFEST_FILE  # its digest says that the version was changed
    del body["manifest_digest"]
    (path / MANIFEST_FILE).write_bytes(signed(body, "manifest_digest"))
    for act in (verify, repair, lmdbloader.LMDBDataset):
        with pytest.raises(FormatError, match="format version 2"):
            act(path)


@pytest.mark.parametrize("column", ["n", "mask.offset", "blob.checksum", "mask.type"])
def test_an_index_that_contradicts_the_samples_is_found_despite_its_digest(path: Path, column: str) -> None:
    batch = index_batch(path)
    values = batch.column(column).to_pylist()
    values[5], values[50] = values[50], values[5]
    if column == "mask.type":
        values[5] = "int64[1]"
    put_index(path, with_column(batch, column, values))
    found = verify(path)
    if column == "mask.offset":  # the content digest is of everything but the offsets
        assert [damage.sample for damage in found.damaged] == [5, 50]
    else:
        assert any("content digest" in problem for problem in found.problems)


def test_a_folder_that_is_not_a_dataset_is_refused_with_the_readers_error(path: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        verify(path / "nowhere")
    with pytest.raises(FormatError, match="is a file"):
        verify(path / "data.mdb")
    path.rename(tmp_path / "d.partial")
    with pytest.raises(FormatError, match="not finished"):
        verify(path)
    with pytest.raises(FormatError, match="unfinished"):
        verify(tmp_path / "d.partial")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FormatError, match="not a dataset"):
        verify(tmp_path / "empty")


SAVES = "writes the samples that are sound into a new dataset"


@pytest.mark.parametrize("change", ["gone", "cut", "flip", "folder"])
@pytest.mark.parametrize("names", [("index.arrow",), ("manifest.json",), ("data-00001.mdb",), FILES[:2], FILES])
def test_every_loss_is_reported_with_a_remedy(path: Path, names: tuple[str, ...], change: str) -> None:
    for name in names:
        data = (path / name).read_bytes()
        (path / name).unlink()
        if change == "folder":
            (path / name).mkdir()
        elif change == "cut":
            (path / name).write_bytes(data[: len(data) // 2])
        elif change == "flip":
            (path / name).write_bytes(data[:-99] + bytes([data[-99] ^ 1]) + data[-98:])
    if names == FILES and change in ("gone", "folder"):
        with pytest.raises(FormatError):  # nothing shows that this is a dataset
            verify(path)
        return
    found = verify(path)
    assert not found.is_sound
    if names != FILES or change != "flip":  # without a manifest, a flipped bit in a payload shows only to `repair`
        assert {*names} <= {*found.files} <= {*names, "index.arrow"}
    is_data = any(name.endswith(".mdb") for name in found.files)
    if not any((path / name).is_file() for name in FILES[:2]):
        assert found.advice.startswith("Without data files")
    else:
        assert (SAVES if is_data else "from the data files") in found.advice


def test_of_a_file_cut_short_the_lost_samples_are_named(path: Path) -> None:
    name, at = place(path, "blob", 60)
    assert name == FILES[1]
    os.truncate(path / name, at + 5)
    found = verify(path)
    lost = sorted({d.sample for d in found.damaged})
    assert 60 in lost and lost[0] >= FIRST and len(lost) > 30
    repair(path, path.with_name("out"))
    kept = [row for row in range(COUNT) if row not in lost]
    assert [s.blob for s in lmdbloader.LMDBDataset(path.with_name("out"))] == [sample(row)["blob"] for row in kept]


def test_files_of_two_datasets_are_not_accepted_as_one(path: Path, tmp_path: Path) -> None:
    samples = [{"blob": bytes([i]) * 50_000} for i in range(9)]
    lmdbloader.write(samples, tmp_path / "a")
    lmdbloader.write([{"blob": s["blob"][::-1]} for s in samples[::-1]], tmp_path / "b")
    sizes = [[(tmp_path / d / f).stat().st_size for f in ("data.mdb", "index.arrow")] for d in "ab"]
    assert sizes[0] == sizes[1]
    for name in ("data.mdb", "index.arrow", MANIFEST_FILE):
        shutil.copytree(tmp_path / "a", tmp_path / f"swapped {name}")
        shutil.copy(tmp_path / "b" / name, tmp_path / f"swapped {name}")
        assert not verify(tmp_path / f"swapped {name}").is_sound
    assert verify(tmp_path / "a").is_sound and verify(tmp_path / "b").is_sound
