"""Cold reads: the page cache is dropped for the files that are measured alone, and a note says if it cannot be."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import lmdbloader
from lmdbloader.base import system
from lmdbloader.lab import Study, bench
from lmdbloader.lab.machine import filesystem_of, residency
from lmdbloader.lab.study.cold import drop

QUICK: dict[str, Any] = {"seconds": 0.05, "repeats": 1, "num_workers": [1], "batch_sizes": [8], "crops": [32]}


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
    return bench(place / "made.lmdb", cold=True, **{**QUICK, **options})


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
    for section in ("cold", "warm"):
        rows = study.section(section)
        assert [(row.source, row.order, row.batch_size, row.crop) for row in rows] == [
            ("lmdbloader", "random", 8, 32),
            ("lmdbloader", "quasi_random", 8, 32),
            ("dataloader", "random", 8, 32),
            ("folder", "random", 8, 32),
        ]
        assert {row.figures["num_samples"] for row in rows} == {len(list((place / "files").iterdir()))}
    assert all(row.figures["held"] < 0.05 for row in study.section("cold")) and not study.notes
    assert "From a cold page cache" in str(study) and "quasi_random" in str(study)


def test_all_parts_are_dropped(place: Path) -> None:
    lmdbloader.convert(place / "files", place / "parts.lmdb", parts=2, codec="raw", layout="images")
    assert (place / "parts.lmdb" / "data-00001.mdb").exists()
    study = bench(place / "parts.lmdb", cold=True, **QUICK)
    assert [row.figures["num_samples"] for row in study.section("cold")] == [len(list((place / "files").iterdir()))] * 3
    assert all(row.figures["held"] < 0.05 for row in study.section("cold"))
