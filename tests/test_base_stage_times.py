"""Stage times: seconds in the right stage, every second once, and exact counts."""

from __future__ import annotations

import os
import pickle
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import lmdbloader
from lmdbloader import LMDBDataset, Loader
from lmdbloader.base.stage_times import StageTimes
from lmdbloader.errors import CorruptError
from lmdbloader.transforms import CenterCrop, RandomCrop, RandomResizedCrop

COUNT = 45
SIDE = 48


def picture(number: int) -> np.ndarray:
    """Return an image that lz4 makes smaller."""
    return (np.random.default_rng(number).integers(0, 256, (SIDE, SIDE, 3)) & 0x10).astype(np.uint8)


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> LMDBDataset:
    return _written(tmp_path_factory.mktemp("raw") / "d", "raw")


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> LMDBDataset:
    return _written(tmp_path_factory.mktemp("lz4") / "d", "lz4")


def _written(path: Path, codec: Any) -> LMDBDataset:
    lmdbloader.write(({"image": picture(i), "label": i} for i in range(COUNT)), path, codec=codec)
    return LMDBDataset(path)


def timed(loader: Loader, epochs: int = 1) -> StageTimes:
    """Return the stage times of some epochs."""
    loader.time_stages()
    before = loader.stage_times()
    for _ in range(epochs):
        list(loader)
    return loader.stage_times() - before


def stored_nbytes(ds: LMDBDataset) -> int:
    return int(ds.reader.index.arrays["image.stored_nbytes"].sum())


def test_nothing_is_counted_unless_it_is_asked_for(raw: LMDBDataset) -> None:
    loader = Loader(raw, 4, shuffle=True)
    list(loader)
    assert loader.stage_times() == StageTimes()


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_samples_batches_and_bytes_are_counted_exactly(packed: LMDBDataset, batch_size: int, num_threads: int) -> None:
    times = timed(Loader(packed, batch_size, shuffle=True, num_threads=num_threads), epochs=2)
    assert times.num_samples == 2 * COUNT
    assert times.num_batches == 2 * -(-COUNT // batch_size)
    assert times.nbytes == 2 * stored_nbytes(packed)


def test_raw_pixels_are_read_verified_and_transformed(raw: LMDBDataset) -> None:
    times = timed(Loader(raw, 16, shuffle=True, transforms=[RandomCrop(24)]))
    assert min(times.read, times.verify, times.transform) > 0
    assert times.decode == 0


@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_lz4_is_decoding(packed: LMDBDataset, io: Any) -> None:
    times = timed(Loader(packed, 16, shuffle=True, io=io))
    assert min(times.read, times.verify, times.decode, times.transform) > 0
    assert times.nbytes == stored_nbytes(packed)


def test_of_tiles_those_that_are_touched_are_read(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    large = (rng.integers(0, 256, (600, 600, 3)) & 0x10).astype(np.uint8)
    lmdbloader.write([{"image": large, "label": 0}], tmp_path / "d", codec="lz4")
    ds = LMDBDataset(tmp_path / "d")
    whole, part = timed(Loader(ds, 1, shuffle=True)), timed(Loader(ds, 1, shuffle=True, transforms=[CenterCrop(8)]))
    assert min(whole.verify, whole.decode, part.verify, part.decode) > 0
    # 100 tiles are two groups. The end of the first one's last tile, 4 bytes, is read with the second one again.
    assert whole.nbytes == stored_nbytes(ds) + 4
    assert 0 < part.nbytes < whole.nbytes / 2


@pytest.mark.parametrize("transforms", [[CenterCrop(180)], [RandomResizedCrop(160)]])
def test_jpegs_are_decoded_and_transformed(tmp_path: Path, photos: Path, transforms: Any) -> None:
    (tmp_path / "src").mkdir()
    for number, path in enumerate(sorted(photos.iterdir())[:4]):
        Image.open(path).save(tmp_path / "src" / f"{number}.jpg", quality=90)
    lmdbloader.convert(tmp_path / "src", tmp_path / "d", workers=1)
    ds = LMDBDataset(tmp_path / "d")
    loader = Loader(ds, 2, shuffle=True, transforms=transforms)
    loader.time_stages()
    list(loader)
    times = loader.stage_times()
    assert min(times.read, times.verify, times.decode, times.transform) > 0
    assert times.nbytes == stored_nbytes(ds)


def test_arrays_and_bytes_count_as_images_do(tmp_path: Path) -> None:
    samples = [{"array": np.arange(4000.0) + i, "bytes": bytes(1000), "json": {"number": i}} for i in range(9)]
    lmdbloader.write(samples, tmp_path / "d", codec="lz4")
    ds = LMDBDataset(tmp_path / "d")
    arrays = ds.reader.index.arrays
    nbytes = sum(int(arrays[f"{name}.stored_nbytes"].sum()) for name in ds.fields)
    times = timed(Loader(ds, 4, shuffle=True))
    assert min(times.read, times.verify, times.decode, times.function) > 0
    assert (times.num_samples, times.nbytes, times.transform) == (9, nbytes, 0.0)


def test_a_sample_that_is_left_out_is_not_counted_but_takes_time(tmp_path: Path, raw: LMDBDataset) -> None:
    shutil.copytree(raw.path, tmp_path / "d")
    ds = LMDBDataset(tmp_path / "d")
    data = bytearray((tmp_path / "d" / "data.mdb").read_bytes())
    data[int(ds.reader.index.arrays["image.offset"][7])] ^= 1
    (tmp_path / "d" / "data.mdb").write_bytes(data)
    ds = LMDBDataset(tmp_path / "d")
    loader = Loader(ds, 15, shuffle=True, on_corrupt="skip")
    times = timed(loader)
    assert len(loader.corrupt) == 1
    assert (times.num_samples, times.num_batches) == (COUNT - 1, 3)
    assert times.nbytes > stored_nbytes(ds)  # the others of its batch were read again
    failing = Loader(ds, 15, shuffle=True)
    failing.time_stages()
    with pytest.raises(CorruptError):
        list(failing)
    assert failing.stage_times().num_samples <= COUNT - 15


def test_timing_that_is_started_again_begins_at_zero(raw: LMDBDataset) -> None:
    loader = Loader(raw, 8, shuffle=True)
    timed(loader)
    loader.time_stages(False)
    stopped = loader.stage_times()
    list(loader)
    assert loader.stage_times() == stopped
    assert stopped.num_samples == COUNT
    loader.time_stages()
    assert loader.stage_times() == StageTimes()
    loader.time_stages()  # it is on already
    list(loader)
    assert loader.stage_times().num_samples == COUNT


def test_a_slow_function_of_batches_shows_in_function(raw: LMDBDataset) -> None:
    def slow(batch: Any) -> Any:
        time.sleep(0.01)
        return batch

    assert timed(Loader(raw, 9, shuffle=True, transforms=[slow])).function >= 0.05


def test_a_pickled_copy_is_off_and_begins_at_nothing(raw: LMDBDataset) -> None:
    loader = Loader(raw, 8, shuffle=True)
    timed(loader)
    copy = pickle.loads(pickle.dumps(loader))
    list(copy)
    assert copy.stage_times() == StageTimes()


def test_a_forked_child_counts_on_and_its_parent_does_not_see_it(raw: LMDBDataset) -> None:
    loader = Loader(raw, 8, shuffle=True)
    timed(loader)
    child = os.fork()
    if not child:
        code = 1
        try:
            list(loader)
            code = 0 if loader.stage_times().num_samples == 2 * COUNT else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert loader.stage_times().num_samples == COUNT


def test_an_unfinished_epoch_counts_the_batches_that_were_read(raw: LMDBDataset) -> None:
    loader = Loader(raw, 64, shuffle=True, num_threads=1, prefetch=0)
    loader.time_stages()
    next(iter(loader))
    loader.close()
    assert loader.stage_times().num_samples == COUNT
