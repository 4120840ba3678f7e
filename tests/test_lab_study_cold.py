"""Cold reads: the page cache is dropped for the files that are measured alone, and a note says if it cannot be."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from part_sets import make_set

import lmdbloader
from lmdbloader.base import system
from lmdbloader.lab.machine import filesystem_of, residency
from lmdbloader.lab.study import Study
from lmdbloader.lab.study.cold import drop

QUICK: dict[str, Any] = {"seconds": 0.05, "repeats": 1, "num_workers": 1, "batch_sizes": [8], "crops": [32]}


@pytest.fixture
def place(tmp_path: Path, photos: Path) -> Path:
    """A dataset, its images as files, and a file that nobody measures."""
    if not system.CAN_DROP_CACHE or filesystem_of(tmp_path).kind == "memory":
        pytest.skip("the page cache of these files cannot be dropped")
    shutil.copytree(photos, tmp_path / "files")
    lmdbloader.convert(tmp_path / "files", tmp_path / "made.lmdb", workers=1, codec="raw", layout="images")
    (tmp_path / "other").write_bytes(bytes(2**20))
    return tmp_path


def study_of(place: Path, **options: Any) -> Study:
    study = lmdbloader.lab.bench(place / "made.lmdb", only=["cold"], **{**QUICK, **options})
    assert Study.from_json(json.loads(json.dumps(study.as_json(), allow_nan=False))) == study
    assert max(map(len, str(study).partition("What to do now")[0].splitlines())) <= 100
    return study


def test_the_cache_of_some_files_is_dropped_and_of_no_others(place: Path) -> None:
    files = [str(path) for path in (place / "files").iterdir()]
    for path in [*files, place / "other"]:
        Path(path).read_bytes()
    assert residency(files[0]) == residency(place / "other") == 1
    assert drop(files) == 0
    assert all(residency(path) == 0 for path in files)
    assert residency(place / "other") == 1


def test_every_loader_reads_from_cold_and_again(place: Path) -> None:
    study = study_of(place, baseline=place / "files")
    found = [(row.source, row.order, row.batch_size, row.crop) for row in study.cold]
    assert found == [
        ("lmdbloader", "random", 8, 32),
        ("lmdbloader", "quasi_random", 8, 32),
        ("dataloader", "random", 8, 32),
        ("folder", "random", 8, 32),
    ]
    for row in study.cold:
        assert row.num_samples == study.dataset.num_samples and row.held < 0.05
        assert row.cold_samples_per_s > 0 and row.warm_samples_per_s > 0
        assert (row.cold_turns, row.warm_turns) == ((row.cold_samples_per_s,), (row.warm_samples_per_s,))
    assert study.sweep == study.threads == ()
    text = str(study)
    assert "From a cold page cache, and the same again: samples/s" in text
    assert "From cold storage the Loader " in " ".join(text.split())
    assert "stayed in the page cache" not in text
    assert study.settings.command.endswith("--only cold --seconds 0.05 --repeats 1 --num-workers 1")


def test_all_files_of_a_set_are_dropped(place: Path) -> None:
    photos = [
        {"image": sample.image.numpy()[:, :64, :64].transpose(1, 2, 0)}
        for sample in lmdbloader.LMDBDataset(place / "made.lmdb", fields=["image"])
    ]
    make_set(place / "set.lmdb", [photos[:3], photos[3:]])
    study = lmdbloader.lab.bench(place / "set.lmdb", only=["cold"], **{**QUICK, "batch_sizes": [2]})
    assert [row.num_samples for row in study.cold] == [len(photos)] * 3
    assert all(row.held < 0.05 for row in study.cold)
    assert "of the data files before the first turn" in str(dict(study.machine)["page cache"])


def test_a_file_that_is_mapped_stays_and_a_note_says_so(place: Path) -> None:
    ds = lmdbloader.LMDBDataset(place / "made.lmdb")
    assert [ds[i].image.shape[0] for i in range(len(ds))]  # its pages are mapped now
    study = study_of(place)
    assert max(row.held for row in study.cold) > 0.5
    assert any("of the files stayed in the page cache" in note and "too high" in note for note in study.notes)
    del ds


def test_it_is_left_out_where_it_cannot_be_measured(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = lmdbloader.lab.bench(place / "made.lmdb", only=["threads"], **QUICK)
    assert other.cold == () and not any("old reads" in note for note in other.notes)
    older = {key: value for key, value in other.as_json().items() if key != "cold"}
    assert Study.from_json(older) == other
    with monkeypatch.context() as patch:
        patch.setattr(system, "CAN_DROP_CACHE", False)
        assert any("this system does not let a program drop" in note for note in study_of(place).notes)
    memory = filesystem_of("/dev/shm")
    if memory.kind == "memory":
        monkeypatch.setattr("lmdbloader.lab.study.cold.filesystem_of", lambda path: memory)
        study = study_of(place)
        assert study.cold == () and any("is on a file system in memory" in note for note in study.notes)


def test_a_dataset_at_a_url_is_not_measured(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fsspec")
    monkeypatch.setenv("XDG_CACHE_HOME", str(place / "home"))
    study = lmdbloader.lab.bench(f"file://{place / 'made.lmdb'}", only=["cold"], **QUICK)
    assert study.cold == ()
    assert "is at a URL. Copy it to a disk with `lmdbloader stage`" in str(study.notes)
