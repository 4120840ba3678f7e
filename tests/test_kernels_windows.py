"""Under Wine the kernels built for Windows do to recorded memory what they did to it on Linux."""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recorded_calls import Call, Recorder, make_calls, record

import lmdbloader
from lmdbloader.batch.pipeline import Pipeline
from lmdbloader.format import codecs, layout
from lmdbloader.format.digests import Blake3
from lmdbloader.images.downscale import downscale
from lmdbloader.kernels import entries
from lmdbloader.kernels.calls import libraries
from lmdbloader.kernels.jpeg.seek import count_entries
from lmdbloader.store import Reader
from lmdbloader.transforms import ColorJitter, Normalize, RandomCrop, RandomDihedral, RandomErasing, RandomResizedCrop

ROOT = Path(__file__).resolve().parent.parent
# `make test-windows` leaves there what these tests run: the libraries, and the native program.
BUILT = ROOT / ".wine"
ROWS = np.arange(4)


@pytest.fixture(scope="module")
def built() -> Path:
    """The folder of libraries and program; where they are missing or older than the kernels the test is skipped."""
    if shutil.which("wine") is None:
        pytest.skip("Wine is not installed: kernels for Windows are not run")
    if libraries.built_from(BUILT) != libraries.source_digest():
        pytest.skip(f"{BUILT} has no kernels for Windows from the present sources: `make test-windows` builds them")
    return BUILT


@pytest.fixture(scope="module")
def datasets(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Four samples of a photograph each, stored in every way that kernels decode."""
    from PIL import Image

    folder = tmp_path_factory.mktemp("windows")
    paths = sorted(photos.iterdir())[: len(ROWS)]
    pixels = [np.asarray(Image.open(path)) for path in paths]
    (folder / "jpegs").mkdir()
    for path in paths:
        Image.open(path).save(folder / "jpegs" / f"{path.stem}.jpg", quality=90)
    lmdbloader.convert(folder / "jpegs", folder / "jpeg", workers=1)
    for name in ("raw", "lz4"):
        lmdbloader.write([{"image": image[:48, :40]} for image in pixels], folder / name, codec=name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codecs, "TILED_ABOVE_NBYTES", 0)
        patch.setattr(layout, "TILE_SIZE", 32)
        lmdbloader.write([{"image": image} for image in pixels], folder / "tiled", codec="lz4")
    return {name: folder / name for name in ("raw", "lz4", "tiled", "jpeg")}


def read_batch(recorder: Recorder, path: Path, io: Any, transforms: Sequence[Any]) -> np.ndarray:
    """Read one batch in one call, all of whose memory the recorder knows."""
    reader = Reader(path, io=io)
    pipeline = Pipeline(reader, ["image"], transforms, seed=3)
    scratch = pipeline.scratch()
    (output,) = pipeline.outputs
    images = np.zeros((len(ROWS), output.nbytes), np.uint8)
    arrays = [array for array in reader.index.arrays.values() if isinstance(array, np.ndarray)]
    tables = [table for table in [output.values.table] if table is not None]
    recorder.known = [*arrays, *tables, images, scratch._memory]
    if io == "mmap":
        recorder.known.append(np.frombuffer(reader.data_file.data, np.uint8))
    pipeline.read(ROWS, ROWS, 0, np.array([[images.ctypes.data]]), len(ROWS), scratch)
    recorder.known = []
    return images


def check(built: Path, calls: Sequence[Call], folder: Path, file: Path | None = None) -> None:
    """Make the calls with the library of every level, and compare the memory that they leave."""
    assert calls
    level = libraries.load().lmdbloader_level()
    for number in range(2, level + 1):
        library = built / libraries.file_name(f"x86-64-v{number}", "Windows")
        shutil.copy(library, folder / library.name)
        if file:
            shutil.copy(file, folder / "data")
        found = make_calls(["wine", built / "call_kernels.exe", library.name], calls, folder, "data" if file else "")
        for call, memory in zip(calls, found, strict=True):
            assert memory == call.after, f"{call.name} with {library.name}"
            assert memory != call.before, f"{call.name} changed nothing"


@pytest.mark.parametrize("io", ["mmap", "pread"])
@pytest.mark.parametrize("kind", ["raw", "lz4", "tiled", "jpeg"])
def test_a_batch_is_read_and_transformed_alike(
    kind: str, io: str, built: Path, datasets: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    recorder = record(monkeypatch)
    lists = (
        [RandomCrop(32)],
        [RandomCrop(32), RandomDihedral(), ToDtype(torch.float16)],
        [RandomResizedCrop(32), ColorJitter(0.4, 0.4, 0.4, 0.1), Normalize(0.4, 0.2), RandomErasing(1.0)],
    )
    for transforms in lists:
        assert read_batch(recorder, datasets[kind], io, transforms).any()
    assert {call.name for call in recorder.calls} == {"lmdbloader_assemble_assemble", "lmdbloader_assemble_measure"}
    file = datasets[kind] / layout.DATA_FILE if io == "pread" else None
    check(built, [call for call in recorder.calls if call.name.endswith("assemble")], tmp_path, file)


def test_all_other_kernels_of_pixels_and_bytes_do_the_same(
    built: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rng = np.random.default_rng(5)
    image = rng.integers(0, 60, (50, 70, 3)).astype(np.uint8)
    recorder = record(monkeypatch)
    for samples in (image, image.astype(np.uint16) * 700):
        downscale(samples[:48, :64], 2)
        psnr_between(samples, samples // 2)
        read_png(samples)
    compressed = codecs.encode_many([image.tobytes()] * 2, codec="lz4")
    check(built, recorder.calls, tmp_path)
