"""Under Wine the kernels built for Windows leave recorded memory as they left it on Linux."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lz4.block
import numpy as np
import pytest
import torch
from loading_scripts import load_script
from PIL import Image
from recorded_calls import PREFIX, Call, Recorder, make_calls, record

import lmdbloader
from lmdbloader.batch.pipeline import Pipeline
from lmdbloader.conversion.storage import shrink
from lmdbloader.format import codecs, layout
from lmdbloader.images.decode import decode_image
from lmdbloader.images.downscale import downscale, psnr_between
from lmdbloader.images.png import encode_png
from lmdbloader.kernels import entries
from lmdbloader.kernels.calls import libraries
from lmdbloader.kernels.codec_numbers import OK
from lmdbloader.store import Reader
from lmdbloader.transforms import (
    ColorJitter,
    Normalize,
    RandomCrop,
    RandomDihedral,
    RandomErasing,
    RandomResizedCrop,
    ToDtype,
)

wine = load_script("wine")
COLORS = [
    RandomResizedCrop(32), ColorJitter(0.4, 0.4, 0.4), ToDtype(torch.float32, scale=True),
    Normalize([0.4] * 3, [0.2] * 3), RandomErasing(1.0),
]  # fmt: skip
ROWS = np.arange(4)


@pytest.fixture(scope="module")
def built() -> Path:
    """The folder of libraries and program; where they are missing or older than the kernels the test is skipped."""
    if shutil.which("wine") is None:
        pytest.skip("Wine is not installed: kernels for Windows are not run")
    folder: Path = wine.HOME
    if libraries.built_from(folder) != libraries.source_digest():
        pytest.skip(f"{folder} has no kernels for Windows from the present sources: `make test-windows` builds them")
    return folder


@pytest.fixture(scope="module")
def datasets(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Four samples of a photograph each, stored in every way that kernels decode."""
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
    recorder.known, recorder.scratch = [*arrays, *tables, images], [scratch._memory]
    if io == "mmap":
        recorder.known.append(np.frombuffer(reader.data_file.data, np.uint8))
    pipeline.read(ROWS, ROWS, 0, np.array([[images.ctypes.data]]), len(ROWS), scratch)
    recorder.known, recorder.scratch = [], []
    return images


def check(built: Path, calls: Sequence[Call], folder: Path, file: Path | None = None) -> None:
    """Make the calls with the library of every level, and compare the memory that they leave."""
    assert calls
    level = libraries.load().lmdbloader_level()
    present = [path for path in sorted(built.glob("kernels-windows-x86-64-v*.dll")) if int(path.stem[-1]) <= level]
    assert present
    for library in present:
        shutil.copy(library, folder / library.name)
        if file:
            shutil.copy(file, folder / "data")
        program = ["wine", built / "call_kernels.exe", library.name]
        found = make_calls(program, calls, folder, "data" if file else "", wine.ENVIRONMENT)
        for call, memory in zip(calls, found, strict=True):
            three = (call.before, call.after, memory)
            before, after, here = (np.frombuffer(part, np.uint8)[call.is_result] for part in three)
            assert np.array_equal(here, after), f"{call.name} with {library.name}"
            assert not np.array_equal(here, before), f"{call.name} changed nothing"


@pytest.mark.parametrize("io", ["mmap", "pread"])
@pytest.mark.parametrize("kind", ["raw", "lz4", "tiled", "jpeg"])
def test_a_batch_is_read_and_transformed_alike(
    kind: str, io: str, built: Path, datasets: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    recorder = record(monkeypatch)
    lists = (
        [RandomCrop(32)],
        [RandomCrop(32), RandomDihedral(), ToDtype(torch.float16, scale=True)],
        COLORS,
    )
    for transforms in lists:
        assert read_batch(recorder, datasets[kind], io, transforms).any()
    calls = [call for call in recorder.calls if call.name.endswith("assemble_assemble")]
    assert len(calls) == len(lists)
    check(built, calls, tmp_path, datasets[kind] / layout.DATA_FILE if io == "pread" else None)


def scan_jpeg(recorder: Recorder, file: bytes) -> None:
    """Find the places in a JPEG file at which decoding can begin."""
    source, work = np.frombuffer(file, np.uint8), np.zeros(entries.jpeg_room(len(file), 0, 0), np.uint8)
    recorder.scratch = [work]
    expected, step = entries.count_entries(source, work.ctypes.data)
    status, number, *_ = entries.scan(source, step, work.ctypes.data, np.zeros(1000 * expected, np.uint8), 0)
    assert (status, number > 0) == (OK, True)
    recorder.scratch = []


def read_payloads(recorder: Recorder, reader: Reader) -> None:
    """Read an image, and a window of one."""
    recorder.known = [reader.data_file.data]
    reader.read_image("image", 1)
    reader.read_crop("image", 2, top=3, left=4, height=20, width=24)
    recorder.known = []


def hash_xxh3(recorder: Recorder, data: np.ndarray) -> None:
    """Hash bytes."""
    recorder.known = [data]
    entries.xxh3(data.ctypes.data, data.nbytes)
    recorder.known = []


def unpack_lz4(recorder: Recorder, data: np.ndarray) -> None:
    """Restore bytes that are compressed."""
    packed = np.frombuffer(lz4.block.compress(data, store_size=False), np.uint8)
    restored = np.zeros_like(data)
    recorder.known = [packed, restored]
    assert entries.lz4_decompress(packed.ctypes.data, restored.ctypes.data, packed.nbytes, data.nbytes) == data.nbytes
    recorder.known = []


def find_places() -> None:
    """Find the samples at places of an order, of lanes, and of a mixture with and without cycles."""
    places, shares = np.arange(0, 1000, 7), np.array([5, 0, 2**40, 3])
    entries.permute(np.arange(1000), 1000, 1, 2, 3, np.zeros(1000, np.int64))
    entries.read_lanes(np.arange(9), 2, np.array([4, 9]), np.array([5, 0]), 1, 2, 3, np.zeros(9, np.int64))
    for parts, cycle in ((shares, 0), (np.array([5, 0, 1, 3]), 11)):
        chosen, numbers = np.zeros_like(places), np.zeros_like(places)
        entries.deal(places, parts, -1, 1000, cycle, 1, 2, 3, chosen, numbers)
        entries.deal(places, parts, 2, 1000, cycle, 1, 2, 3, np.zeros_like(places), np.zeros_like(places))
        entries.shuffle_piles(chosen, numbers, np.array([10, 1, 70, 200]), 1, 2, 3, np.zeros_like(places))


def test_every_other_kernel_does_the_same(
    built: Path, datasets: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    readers = [Reader(datasets[kind]) for kind in ("raw", "tiled", "jpeg")]
    recorder = record(monkeypatch)
    rng = np.random.default_rng(5)
    image = np.sort(rng.integers(0, 250, (48, 64, 3)), axis=1).astype(np.uint8)
    for samples in (image, image.astype(np.uint16) * 250):
        for method in ("matlab", "pillow"):
            if (samples.dtype, method) != (np.uint16, "pillow"):
                psnr_between(downscale(samples, 2, method=method), samples[::2, ::2])
        downscale(samples[:26, :52], 26)  # in 64 bits
        decode_image(encode_png(samples))
        entries.cut_many(samples, np.arange(3), np.arange(3), 16, 16, np.zeros((3, 3 * 16 * 16), samples.dtype))
        entries.cut(samples, 1, 2, 30, 40, np.zeros(30 * 40 * 3, samples.dtype))
        entries.cut_tiles(samples, 32, np.zeros(samples.size, samples.dtype))
        shrink(samples, 20, 30)
    scan_jpeg(recorder, next((datasets["jpeg"].parent / "jpegs").iterdir()).read_bytes())
    for reader in readers:
        read_payloads(recorder, reader)
    hash_xxh3(recorder, image)
    unpack_lz4(recorder, image)
    find_places()
    tested = {call.name.removeprefix(PREFIX) for call in recorder.calls}
    check(built, recorder.calls, tmp_path)
    names = {name for entry in entries.all_entries() for name in entry.variants}
    # Those in the batches of the test above; and those that ask the system about pages, which Windows does not report.
    others = {name for name in names if name.startswith(("assemble_", "runtime_paging_", "runtime_presence_"))}
    assert tested == names - others
