"""Each benchmark runs in seconds and writes its tables and files; all stores yield the same pairs."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

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
    assert sequential.neighbour_distance < quasi.neighbour_distance < random.neighbour_distance
    assert random.neighbour_distance == pytest.approx(1, abs=0.05)
    reads = [fresh.storage_reads(order, offset, nbytes, gap_nbytes=0) for order in orders]
    assert reads[0] == (1, 200_000)
    assert reads[2][0] == 20_000
    assert reads[2][1] == 10
    # 1,000 blocks of 20 samples, of which 96 lanes may cut 95.
    assert 500 < reads[1][0] <= 1095
    assert reads[1][0] * reads[1][1] == 200_000


def test_kernels_agree_with_the_c_functions_that_they_stand_for(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "NUMBA_OPT", "0"
    )  # to optimise takes most of the time; what functions return does not depend on it
    text, found = run("kernels_against_c.py", tmp_path, "--markdown")  # it ends with an error where they do not
    sections = ["LZ4, decompression", "XXH64", "exp and log"]
    assert list(found) == ["environment", *sections]
    assert found["environment"]["record"]["packages"]["lmdb"] in found["environment"]["packages"]
    assert found["environment"]["record"]["storage"]["text"] in text and "record" not in text
    for section, rows in zip(sections, tables(text), strict=True):
        assert [row[0] for row in rows[1:]] == list(found[section])
        assert all(figure["ratio"] > 0 and figure["c"] > 0 for figure in found[section].values())


def test_the_cost_of_profiling_is_measured_and_a_healthy_pipeline_named(run: Run, tmp_path: Path) -> None:
    text, found = run("profiling.py", tmp_path, "--markdown")
    cost, named = tables(text)

    assert [row[0].partition(":")[2].strip() for row in cost[1:]] == ["time", "time", "core time of all threads"]
    assert [row[0] for row in named[1:]] == ["healthy"]
    assert [profile["bottleneck"] for profile in found["planted"]["healthy"]] == ["model"]
    assert len(found["training"]["recorded cpu"]) == 1


def test_reading_is_compared_with_the_hand_written_lmdb(run: Run, tmp_path: Path) -> None:
    text, found = run("read.py", tmp_path, "--markdown")
    speed, size = tables(text)

    settings = [(row[0], row[1], row[2]) for row in speed[1:]]
    assert settings == [(name, w, b) for w in "01" for b in ("8", "16") for name in ("LMDB by hand", "LMDBDataset lz4")]
    assert {row[4] for row in speed[1:] if row[0] == "LMDB by hand"} == {"1.00"}
    assert [row[0] for row in size[1:]] == ["LMDB by hand", "LMDBDataset lz4"]
    assert "x the pairs/s of the hand-written LMDB at the same batch size" in text
    assert "At batch size 8 it reads" in text
    for figure in found["figures"]:
        assert figure["pairs_per_s"] > 0
        assert 0 < figure["p50_ms"] <= figure["p99_ms"]
        assert figure["cpu_us"] > 0
    assert {f["setting"]["conversion"] for f in found["figures"]} == {"sample", "collate", "consumer"}
    assert set(found["disk_nbytes"]) == set(found["memory_nbytes"]) == {"LMDB by hand", "LMDBDataset lz4"}


def test_writing_is_compared_with_a_loop_and_gives_the_same_files(run: Run, tmp_path: Path) -> None:
    text, found = run("write.py", tmp_path, "--markdown")
    [rows] = tables(text)
    assert rows[0] == ["job", "samples/s", "seconds, least to most", "CPU s", "rate against"]
    arrays = ["LMDB put, by hand", "arrays, 1 worker", "arrays, 2 threads", "arrays, 2 processes"]
    jpegs = ["JPEG files, 1 worker", "JPEG files, 2 processes", "JPEG files, 2 threads"]
    assert [row[0] for row in rows[1:]] == [*arrays, *jpegs] == [figure["name"] for figure in found["figures"]]
    assert text.count("the three files are the same, byte for byte, for all workers") == 2
    assert len({figure["digest"] for figure in found["figures"]}) == 3  # the loop has none


def test_converting_is_compared_with_decoding_and_writing(run: Run, tmp_path: Path) -> None:
    text, found = run("convert.py", tmp_path, "--markdown")
    ((header, *rows),) = tables(text)

    jobs = ["lmdbloader.convert", "decode only: Pillow", "decode only: lmdbloader", "write only"]
    assert [row[0] for row in rows] == [f["job"] for f in found["figures"]] == jobs
    assert header[1] == "images/s"
    assert rows[0][3] == "100%"
    assert all(figure["images_per_s"] > 0 for figure in found["figures"])
    assert found["sizes"]["data_nbytes"] > 0
    assert [p.name for p in tmp_path.iterdir()] == ["json"]  # its files are gone


def test_memory_opening_and_page_waste_are_measured(run: Run, tmp_path: Path) -> None:
    text, found = run("memory.py", tmp_path, "--markdown")
    growth, waste = tables(text)

    assert [row[0] for row in growth[1:]] == ["read, 0 workers", "convert, 1 processes"] == list(found["growth"])
    for small, large in found["growth"].values():
        assert large["count"] == 10 * small["count"]
        assert min(small["own"], large["own"]) > 50 * 2**20  # Python and torch alone take that
    assert [row[0] for row in waste[1:]] == ["16x16", "96x96", "192x192"]
    assert all(f["data_nbytes"] > f["payload_nbytes"] > 0 for f in found["waste"])
    assert "Opening a dataset of 1,000 samples takes" in text
    assert found["opening"]["median"] > 0
    assert [p.name for p in tmp_path.iterdir()] == ["json"]


def test_many_parts_are_compared_with_one(run: Run, tmp_path: Path) -> None:
    text, found = run("parts.py", tmp_path, "--markdown", "--small-pages")
    (rows,) = tables(text)
    assert [row[0] for row in rows[1:]] == ["random", "quasi_random", "sequential"]
    assert [order for order, _ in found["CPU time a sample"]] == [row[0] for row in rows[1:]]
    assert all(figure["ratio"] > 0 for _, figure in found["CPU time a sample"])


def test_a_dataset_behind_a_link_is_compared_with_one_on_the_disk(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("s3fs", reason="s3fs is not installed: pip install 'lmdbloader[remote]'")
    text, found = run("remote.py", tmp_path, "--markdown")
    assert [row[0] for row in tables(text)[1][1:]] == [f"0.2 is kept, epoch {k}" for k in (1, 2)]
    ((*_, figure),) = found["everything is fetched"]
    assert figure["bytes"] == 1
    assert 0 < figure["requests"] <= 1
    assert len(found["everything is cached"]) == 2


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


def test_a_store_with_other_pixels_is_not_compared(module: Callable[[str], Any], tmp_path: Path) -> None:
    common, stores, read = module("common"), module("stores"), module("read")
    pairs = common.cut_pairs(3)
    store = stores.Store("other", stores.write_hdf5, stores.Hdf5Pairs)
    store.write(common.Pairs(pairs.lr, 255 - pairs.hr), tmp_path / "other")

    with pytest.raises(SystemExit, match="other: pair 0 is not the one that was written"):
        read.check_stores([store], tmp_path, pairs)


def test_pairs_are_aligned_pieces_of_photographs(module: Callable[[str], Any]) -> None:
    pairs = module("common").cut_pairs(9)

    assert (pairs.lr.shape, pairs.hr.shape) == ((9, 3, 48, 48), (9, 3, 96, 96))
    means = pairs.hr.reshape(9, 3, 48, 2, 48, 2).mean((3, 5))
    error = np.abs(means - pairs.lr).mean((1, 2, 3))
    assert (error < 6).all()  # a piece of another place differs by tens
    assert np.abs(means - pairs.lr[::-1]).mean() > 20


def test_the_ratios_are_of_the_best_settings(module: Callable[[str], Any]) -> None:
    read = module("read")

    def figure(store: str, batch_size: int, conversion: str, speed: float) -> Any:
        return read.Figure(read.Setting(store, batch_size, 0, conversion, 1), (speed,), speed, 1.0, 2.0, 1e4 / speed)

    figures = [
        figure("LMDB by hand", 8, "sample", 50.0),
        figure("LMDB by hand", 8, "consumer", 100.0),
        figure("LMDB by hand", 128, "sample", 200.0),
        figure("LMDBDataset lz4", 8, "consumer", 300.0),
        figure("LMDBDataset lz4", 128, "consumer", 500.0),
    ]
    rows = {(row[0], row[2]): row for row in read.speed_rows(figures)}

    assert rows["LMDB by hand", "8"][3:6] == ["100", "1.00", "0.50"]
    assert rows["LMDBDataset lz4", "8"][3:6] == ["300", "3.00", "1.50"]
    assert rows["LMDBDataset lz4", "128"][3:6] == ["500", "2.50", "2.50"]
    text = " ".join(read.verdict(figures))
    assert "reads 2.50 x" in text
    assert "(the least, at 128), and 1.50 to 2.50 x those of its best batch size" in text
    assert "At batch size 8 it reads 60% of its pairs/s at 128 (60% by CPU time)." in text


def test_the_loader_is_compared_with_the_others_and_with_the_machine(run: Run, tmp_path: Path) -> None:
    text, found = run("loader.py", tmp_path, "--markdown")

    pairs, references, crops, memory, orders, start, threads = tables(text)
    names = {row[0] for row in pairs[1:]}
    assert names == {"LMDB by hand", "Loader raw", "Loader lz4"}
    assert "1.00" in {row[4] for row in pairs[1:] if row[0] == "LMDB by hand"}
    for codec in ("raw", "lz4"):
        assert re.search(rf"Loader {codec}: [\d.]+ x the hand-written LMDB's best setting", text)
    assert [row[3] for row in references[1:] if row[0] == "copying uint8 batches"] == ["1.00", "1.00"]
    assert {row[0] for row in crops[1:]} == {"uint8", "float32"}
    assert len(memory) == 5
    assert [row[0] for row in orders[1:]] == ["sequential", "quasi_random", "random"]
    assert orders[1][4] == "1.000"
    assert len(start) == 3
    assert threads[1][2] == "1.00"
    for section in ("pairs", "references", "crops", "threads"):
        assert all(row[-1] > 0 for row in found[section])


def test_images_are_compared_with_the_folder_and_with_decoding(run: Run, tmp_path: Path) -> None:
    text, found = run("images.py", tmp_path, "--markdown", "--sections", "speed", "disk")
    speed, disk = tables(text)
    names = ["folder, Pillow", "LMDB of the files, Pillow", "decoding whole files only", "original", "jpg", "raw256"]
    assert [(row[0], row[1]) for row in speed[1:]] == [(name, size) for size in ("64", "32") for name in names]
    assert {row[5] for row in speed[1:] if row[0] == names[0]} == {"1.00"}
    assert {row[6] for row in speed[1:] if row[0] == names[2]} == {"1.00"}
    assert all(figure[-1] > 0 for figure in found["speed"])
    small = next(value for name, value in found["disk"].items() if name.startswith("32x32"))
    assert 1 < small < 1.2  # of 500 images only; of 50,000 it is less
    assert len(disk) == 1 + len(found["disk"])


def test_the_recommendation_of_tune_is_compared_with_the_best_of_all(run: Run, tmp_path: Path) -> None:
    text, found = run("tune.py", tmp_path, "--markdown")
    ((header, *rows),) = tables(text)

    assert header[3] == "recommended" and len(rows) == len(found["figures"])
    assert [row[1] for row in rows].count("all") == 3
    for figure in found["figures"]:
        assert 0 < figure["low"] <= figure["ratio"] <= figure["high"]
        assert figure["ratio"] <= 1 + 1e-9  # nothing is better than the best
    assert re.search(r"The bar, 90% in under 60 s, is (reached|MISSED)\.", text)


def test_start_up_is_compared_with_its_bounds(run: Run, tmp_path: Path) -> None:
    text, found = run("start.py", tmp_path, "--markdown")
    ((header, *rows),) = tables(text)

    assert header[1:4] == ["seconds", "processor seconds", "bound"]
    assert [row[0] for row in rows] == list(found["start"])
    assert {"import lmdbloader", "the first ds[0] after it", "lmdbloader info"} <= set(found["start"])
    for row, figure in zip(rows, found["start"].values(), strict=True):
        assert figure["seconds"] > 0
        assert row[4] == ("reached" if figure["seconds"] <= figure["bound"] else "MISSED")


def test_overhead_falls_with_the_number_of_samples(run: Run, tmp_path: Path) -> None:
    text, found = run("overhead.py", tmp_path, "--markdown", "--svg", str(tmp_path / "chart.svg"))
    kinds = [name for name in found if name != "environment"]
    assert len(kinds) == len(tables(text)) == 3
    for kind in kinds:
        each = [found[kind][count] for count in ("1", "10", "100")]
        overheads = [row["overhead"] for row in each]
        assert overheads == sorted(overheads, reverse=True) and overheads[-1] > 0
        for row in each:
            parts = row["data.mdb"] + row["index.arrow"] + row["manifest.json"]
            assert row["overhead"] == pytest.approx(parts)
    assert found["32 x 32 pixels, label"]["100"]["payload"] == 32 * 32 * 3
    picture = ElementTree.parse(tmp_path / "chart.svg").getroot()
    lines = picture.findall("{http://www.w3.org/2000/svg}polyline")
    assert [len(line.attrib["points"].split()) for line in lines] == [3, 3, 3]


def test_accuracy_is_told_for_each_quality_of_jpegs(run: Run, tmp_path: Path) -> None:
    text, found = run("jpeg_quality.py", tmp_path, "--markdown", "--svg", str(tmp_path / "chart.svg"))
    (cells,) = tables(text)
    assert [row[0] for row in cells] == ["quality", "10", "90", "pixels"]
    (results,) = (value for name, value in found.items() if name != "environment")
    assert list(results) == ["10", "90", "pixels"]
    for name, each in results.items():
        assert len(each) == 2, "one of each seed"
        for result in each:
            assert 0 <= result["top1"] <= 1 and result["loss"] > 0 and result["val_loss"] > 0
            assert (result["psnr"] is None) == (name == "pixels")
    low, high, pixels = (results[name][0] for name in ("10", "90", "pixels"))
    assert pixels["payload"] == 64 * 64 * 3
    assert pixels["top1"] == pixels["top1_pixels"]
    assert low["payload"] < high["payload"] < pixels["payload"]
    assert 20 < low["psnr"] < high["psnr"] < 50
    words = [element.text.strip() for element in ElementTree.parse(tmp_path / "chart.svg").iter() if element.text]
    assert {"10", "90", "pixels", "bytes an image, as stored (logarithmic)"} <= set(words)
    top1 = sum(each["top1"] for each in results["pixels"]) / 2
    assert f"top-1 accuracy: points more than from pixels, which give {top1:.1%}".replace("%", " %") in words


def test_the_cost_of_many_samples_is_measured(run: Run, tmp_path: Path) -> None:
    text, found = run("many_samples.py", tmp_path, "--markdown")
    beginning, pauses, reading = tables(text)
    assert [row[0] for row in beginning[1:]] == ["random", "quasi_random", "sequential"]
    assert [row[0] for row in pauses[1:]] == ["random", "quasi_random", "sequential"]
    assert [row[0] for row in reading[1:]] == ["400", "40,000"]
    assert len(found["Random reading"]["turns"]) == 2
    assert re.search(r"The bar, 1.5, is (reached|MISSED)\.", text)
    assert [p.name for p in tmp_path.iterdir()] == ["json"]


def test_the_page_of_scale_has_the_stored_figures() -> None:
    many = json.loads((FOLDER / "results" / "many-samples.json").read_text("utf-8"))
    reading = many["Random reading"]
    text = (FOLDER.parent / "docs" / "scale.md").read_text("utf-8")
    assert f"{reading['ratio']:.2f} x" in text and f"{1e6 * reading['large']:.2f} us" in text
