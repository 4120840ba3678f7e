"""Each benchmark runs in seconds and writes its tables and figures; all stores yield the same pairs."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from nursery import Nursery

from lmdbloader.loader.orders import Layout
from lmdbloader.loader.quasi_random import QuasiRandom, epoch_order

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks"
Run = Callable[..., tuple[str, dict[str, Any]]]
STORES = ["PNG files", "HDF5", "HDF5 lzf", "LMDB by hand", "LMDBDataset raw", "LMDBDataset lz4"]


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Import modules of the benchmarks' folder, and forget their short names afterwards."""
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module
    for path in FOLDER.glob("*.py"):
        sys.modules.pop(path.stem, None)


@pytest.fixture
def run(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return a function that runs a benchmark in quick mode, `run(name, folder, *options)`.

    The function returns its output and its figures.
    """
    nursery.load("h5py", "psutil", "skimage.data", "torch._dynamo")

    def run_one(name: str, folder: Path, *options: str) -> tuple[str, dict[str, Any]]:
        words = [str(FOLDER / name), "--quick", "--folder", str(folder), "--json", str(folder / "json"), *options]
        program = nursery.start_command(words, tmp_path_factory.mktemp("benchmark"), cwd=Path.cwd())
        assert program.end(300) == 0, program.errors
        for what in ("processor", "memory", "load", "disk", "torch", "packages", "command"):
            assert f"{what}: " in program.out
        return program.out, json.loads((folder / "json").read_text())

    return run_one


def tables(text: str) -> list[list[list[str]]]:
    """Return the cells of the Markdown tables in a text, without their rules."""
    found: list[list[list[str]]] = [[]]
    for line in text.splitlines():
        if not line.startswith("|"):
            found.append([])
        elif not line.startswith("|-"):
            found[-1].append([cell.strip() for cell in line.strip("|").split("|")])
    return [rows for rows in found if rows]


ORDERS = ["random", "quasi_random", "sequential"]
READ = [name for _ in range(4) for name in ("LMDB by hand", "LMDBDataset lz4")]
CROPS = ["whole PNG files, DataLoader", "PNG sub-images, DataLoader", *["whole images, Loader"] * 2]
JOBS = ["lmdbloader.convert", "decode only: Pillow", "decode only: lmdbloader", "write only"]
IMAGES = [
    "folder, Pillow", "LMDB of the files, Pillow", "decoding whole files only", "original", "recoded", "jpg", "raw256",
]  # fmt: skip
WRITTEN = [
    "LMDB put, by hand", "arrays, 1 worker", "arrays, 2 threads", "arrays, 2 processes",
    "JPEG files, 1 worker", "JPEG files, 2 processes", "JPEG files, 2 threads",
]  # fmt: skip
# A benchmark, the number of its tables, the first cells of one table, and its place.
BENCHMARKS = {
    "clips.py": (1, ["single frames", "windows of 5", "windows of 15"] * 2, 0),
    "convert.py": (1, JOBS, 0),
    "crops.py": (2, CROPS, 0),
    "degradations.py": (3, ["real_esrgan", "neosr", "bsrgan", "bsrgan_plus", "trainner_redux", "first_order"], 0),
    "gil.py": (1, ["4", "4", "4", "16", "16", "16"], 0),
    "images.py --sections speed disk": (2, IMAGES * 2, 0),
    "keep.py": (3, ["JPEG", "JPEG, kept", "raw pixels", "raw pixels, not verified"], 0),
    "loader.py --sections pairs orders": (2, ORDERS[::-1], 1),
    "many_samples.py": (3, ORDERS, 0),
    "overhead.py": (3, ["1", "10", "100"], 0),
    "read.py": (2, READ, 0),
    "views.py": (4, ["equal sizes", "buckets"], 3),
    "write.py": (1, WRITTEN, 0),
}


@pytest.mark.parametrize("command", BENCHMARKS)
def test_a_benchmark_writes_its_tables(run: Run, tmp_path: Path, command: str) -> None:
    num_tables, first_cells, place = BENCHMARKS[command]
    name, *options = command.split()
    text, found = run(name, tmp_path, "--markdown", *options)
    written = tables(text)
    assert len(written) == num_tables
    if first_cells is not None:
        assert [row[0] for row in written[place][1:]] == first_cells
    for row in (row for rows in written for row in rows):
        assert "nan" not in row and "inf" not in row
    assert "environment" in found and len(found) > 1


def test_mixing_and_reads_differ_between_orders(module: Callable[[str], Any]) -> None:
    fresh = module("fresh")
    offset, nbytes = np.arange(20_000) * 10, np.full(20_000, 10)
    kinds = ("sequential", QuasiRandom(200, 20_000), "random")
    layout = Layout(20_000, lambda first, end: (offset[first:end], nbytes[first:end]))
    orders = [epoch_order(order, layout, seed=0, epoch=0) for order in kinds]
    sequential, quasi, random = [fresh.mixing(order.samples(np.arange(20_000)), offset) for order in orders]
    assert sequential.correlation == pytest.approx(1)
    assert abs(random.correlation) < 0.05
    assert abs(quasi.correlation) < 0.5
    assert sequential.neighbor_distance < quasi.neighbor_distance < random.neighbor_distance
    assert random.neighbor_distance == pytest.approx(1, abs=0.05)
    reads = [fresh.storage_reads(order, offset, nbytes, gap_nbytes=0) for order in orders]
    assert reads[0] == (1, 200_000)
    assert reads[2][0] == 20_000
    assert reads[2][1] == 10
    # 1,000 blocks of 20 samples, of which 96 lanes may cut 95.
    assert 500 < reads[1][0] <= 1095
    assert reads[1][0] * reads[1][1] == 200_000


@pytest.mark.parametrize("name", STORES)
def test_every_store_hands_out_the_pairs_that_were_written(
    module: Callable[[str], Any], tmp_path: Path, name: str
) -> None:
    common, stores = module("common"), module("stores")
    pairs = common.cut_pairs(12)
    store = next(s for s in stores.STORES if s.name == name)
    store.write(pairs, tmp_path / "store")
    try:
        dataset = stores.open_dataset(store, tmp_path / "store")
        assert len(dataset) == 12
        for i in (0, 7, 11):
            lr, hr = dataset[i]
            np.testing.assert_array_equal(lr, pairs.lr[i])
            np.testing.assert_array_equal(hr, pairs.hr[i])
        for conversion in store.conversions:
            loader = stores.open_loader(store, tmp_path / "store", conversion, batch_size=4, workers=0, seed=3)
            batch = next(iter(loader))
            lr, hr = stores.floats(batch) if conversion == "consumer" else batch
            order = [i for i, _ in zip(stores.EndlessOrder(12, 3), range(4), strict=False)]
            assert (lr.dtype, hr.dtype) == (torch.float32, torch.float32)
            torch.testing.assert_close(lr, torch.from_numpy(pairs.lr[order]).float() / 255)
            torch.testing.assert_close(hr, torch.from_numpy(pairs.hr[order]).float() / 255)
    finally:
        store.close(tmp_path / "store")


def test_storage_compares_the_codecs_of_pixels(run: Run, tmp_path: Path) -> None:
    text, figures = run("storage.py", tmp_path, "--env", str(tmp_path / "none"))
    assert "not measured: " in text and "environment.py" in text  # FFCV
    sizes = figures["Bytes, of those of the pixels"]
    assert all(found["delta"] < found["lz4"] and found["delta"] < found["PNG"] for found in sizes.values())
    assert all(speed > 0 for speed in figures["One thread"].values())
    assert {codec for codec, _, _ in figures["Pairs of patches"]} == {"raw", "lz4", "delta"}


def test_pairs_are_aligned_pieces_of_photographs(module: Callable[[str], Any]) -> None:
    pairs = module("common").cut_pairs(9)

    assert (pairs.lr.shape, pairs.hr.shape) == ((9, 3, 48, 48), (9, 3, 96, 96))
    means = pairs.hr.reshape(9, 3, 48, 2, 48, 2).mean((3, 5))
    error = np.abs(means - pairs.lr).mean((1, 2, 3))
    assert (error < 6).all()  # a piece of another place differs by tens
    assert np.abs(means - pairs.lr[::-1]).mean() > 20
