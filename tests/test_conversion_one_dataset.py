"""The free space that a conversion looks for: it is refused only if what is left surely does not fit."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

import lmdbloader
from lmdbloader.base.free_space import taken_nbytes
from lmdbloader.conversion import pool
from lmdbloader.errors import DiskFullError, ImageError


def noise(seed: int) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (64, 64, 3), np.uint8)


def save(path: Path, pixels: npt.NDArray[np.uint8]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def make_mixed(src: Path) -> Path:
    """Twelve JPEG files that become much larger, and twelve PNG files that do not."""
    smooth = np.add.outer(np.arange(64, dtype=np.uint8), np.arange(192, dtype=np.uint8)).reshape(64, 64, 3)
    for i in range(12):
        save(src / f"a{i:02}.jpg", np.full_like(smooth, i))
        save(src / f"b{i:02}.png", noise(i))
    return src


def have_free(patch: pytest.MonkeyPatch, nbytes: int, total: int = 2**30) -> None:
    patch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(total=total, free=nbytes))


def test_an_estimate_that_may_be_too_high_refuses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The header and the size of a BMP file say nothing about what lz4 saves."""
    rng = np.random.default_rng(2)
    for i in range(80):
        pixels = rng.integers(0, 256, (64, 64, 3), np.uint8) if rng.random() < 0.4 else np.full((64, 64, 3), i, "u1")
        save(tmp_path / "src" / f"{i:02}.bmp", pixels)
    lines: list[str] = []
    expected = lmdbloader.convert(tmp_path / "src", tmp_path / "out", codec="lz4", workers=1, log=lines.append)
    assert any("about 536 KiB (44 KiB to" in line for line in lines)
    assert expected.sizes["data_nbytes"] < 400 * 1024
    have_free(monkeypatch, expected.sizes["data_nbytes"])
    report = lmdbloader.convert(tmp_path / "src", tmp_path / "small", codec="lz4", workers=1)
    assert report.sizes == expected.sizes
    have_free(monkeypatch, 20_000)
    with pytest.raises(DiskFullError, match=r"at least 44\.0 KiB, probably 536\.5 KiB, .* at least 24\.\d KiB"):
        lmdbloader.convert(tmp_path / "src", tmp_path / "smaller", codec="lz4", workers=1)


def test_what_was_measured_exactly_is_refused_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(80):
        save(tmp_path / "src" / f"{i:02}.bmp", noise(i))
    expected = lmdbloader.convert(tmp_path / "src", tmp_path / "out", workers=1)
    have_free(monkeypatch, expected.sizes["data_nbytes"] * 95 // 100)
    with pytest.raises(DiskFullError, match=r"at least .* are missing\. Free some space"):
        lmdbloader.convert(tmp_path / "src", tmp_path / "small", workers=1)
    assert not (tmp_path / "small.partial" / "data.mdb").exists()


def test_a_resume_needs_what_is_not_stored_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left has most bytes of the inputs, and half of those of the dataset."""
    monkeypatch.setattr("lmdbloader.store.writing.writer.TRANSACTION_NBYTES", 1)
    monkeypatch.setattr(pool, "TASK_NBYTES", 1)
    src, partial = make_mixed(tmp_path / "src"), tmp_path / "out.partial"
    options = {"patch_size": 64, "codec": "raw", "workers": 1}
    whole = lmdbloader.convert(src, tmp_path / "whole", **options)
    broken = src / "b02.png"
    content = broken.read_bytes()
    broken.write_bytes(content[:-2000])
    with pytest.raises(ImageError, match="b02"):
        lmdbloader.convert(src, tmp_path / "out", **options)
    broken.write_bytes(content)
    left = whole.sizes["data_nbytes"] - taken_nbytes(partial / "data.mdb")
    assert left < 0.6 * whole.sizes["data_nbytes"]
    have_free(monkeypatch, left // 2)
    with pytest.raises(DiskFullError, match=r"at least .* are missing"):
        lmdbloader.convert(src, tmp_path / "out", **options)
    have_free(monkeypatch, left)
    assert lmdbloader.convert(src, tmp_path / "out", **options).sizes == whole.sizes


@pytest.mark.parametrize("parts", [None, 2])
def test_a_file_system_that_states_no_size_is_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: int | None
) -> None:
    have_free(monkeypatch, 0, total=0)
    assert lmdbloader.convert(make_mixed(tmp_path / "src"), tmp_path / "out", workers=1, parts=parts).num_samples == 24
