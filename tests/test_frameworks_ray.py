"""`lmdbloader.ray` on real clusters: rows of ray.data, datasets written by it, and conversions by Ray's workers."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import lmdbloader
from lmdbloader import LMDBDataset, fields
from lmdbloader.errors import DestinationError, ImageError, OptionError, WorkerError
from lmdbloader.ray import converting as engine
from lmdbloader.ray import read_lmdb, write_lmdb
from lmdbloader.transforms import RandomCrop, ToDtype

ray = pytest.importorskip("ray")
pytest.importorskip("ray.data")
Cluster = pytest.importorskip("ray.cluster_utils").Cluster

COUNT = 40


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pytest.MonkeyPatch]:
    """Ray's processes import this package, and write into a folder of the tests: its token, too."""
    with pytest.MonkeyPatch.context() as patch:
        here = Path(__file__).resolve().parent
        patch.setenv("PYTHONPATH", os.pathsep.join(map(str, (Path(lmdbloader.__file__).parent.parent, here))))
        home = tmp_path_factory.mktemp("home")
        token = Path.home() / ".ray" / "auth_token"
        if token.exists():  # which this process has read already, if it had a cluster before
            patch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
        patch.setenv("HOME", str(home))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_DATA_DISABLE_PROGRESS_BARS", "1")
        yield patch
        ray.shutdown()


@pytest.fixture
def cluster(environment: pytest.MonkeyPatch) -> Iterator[None]:
    """One for all tests in a row that need it: a test with one of its own shuts it down."""
    if not ray.is_initialized():
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=200 * 2**20)
    yield


def sample_of(number: int) -> dict[str, Any]:
    rng = np.random.default_rng(number)
    height, width = rng.integers(8, 20, 2).tolist()
    return {
        "number": number,
        "image": rng.integers(0, 256, (height, width, 3), np.uint8),
        "grey": rng.integers(0, 2**16, (8, 9), np.uint16),
        "either": rng.integers(0, 256, (8, 8, 1 + 2 * (number % 2)), np.uint8),
        "bits": rng.integers(0, 256, (8, 8, 3)).astype((np.uint8, np.uint16)[number % 2]),
        "mask": rng.integers(0, 5, (height, width), np.uint8),
        "boxes": np.tile(np.array([[1, 2, 3.5, 4]], np.float32), (number % 3, 1)),
        "classes": np.arange(number % 3),
        "fixed": rng.normal(size=(2, 3)).astype(np.float32),
        "ragged": rng.normal(size=(number % 4, 2)),
        "any": rng.normal(size=(2,) * (1 + number % 2)),
        "complex": np.array([number + 1j]),
        "flags": rng.random(5) < 0.5,
        "nothing": np.zeros((0, 3), np.float32),
        "score": number / 3,
        "text": f"caption {number}",
        "story": f"{number} " * 100,
        "data": bytes(range(number)),
        "facts": {"a": [number, None], "b": {} if number % 2 else "text"},
    }


TYPES = {
    "mask": fields.Mask(),
    "boxes": fields.Boxes(image="image"),
    "classes": fields.Labels(),
    "fixed": fields.Array(),
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("read") / "d.lmdb"
    lmdbloader.write(map(sample_of, range(COUNT)), path, fields=TYPES)
    return path


def check_equal(row: dict[str, Any], sample: dict[str, Any]) -> None:
    assert list(row) == list(sample)
    for name, value in sample.items():
        if isinstance(value, np.ndarray):
            assert isinstance(row[name], np.ndarray), name
            assert row[name].dtype == value.dtype and row[name].shape == value.shape, name
            assert np.array_equal(row[name], value), name
        else:
            assert row[name] == value and type(row[name]) is type(value), name


@pytest.mark.parametrize("num_blocks", [1, 3, None])
def test_rows_are_the_samples(cluster: None, path: Path, num_blocks: int | None) -> None:
    data = read_lmdb(path, override_num_blocks=num_blocks)
    assert data.count() == COUNT
    assert data.schema().names == list(sample_of(0))
    rows = sorted(data.take_all(), key=lambda row: row["number"])
    for number, row in enumerate(rows):
        check_equal(row, sample_of(number))


def test_views_give_their_samples_in_their_order(cluster: None, path: Path) -> None:
    view = LMDBDataset(path).select([30, 3, 3, 17])
    rows = read_lmdb(view, ["number", "story", "image"], override_num_blocks=1).take_all()
    assert [row["number"] for row in rows] == [30, 3, 3, 17]
    assert [row["story"] for row in rows] == [sample_of(number)["story"] for number in (30, 3, 3, 17)]
    assert np.array_equal(rows[3]["image"], sample_of(17)["image"])
    even = read_lmdb(LMDBDataset(path)[::2], ["number"], override_num_blocks=7).take_all()
    assert sorted(row["number"] for row in even) == list(range(0, COUNT, 2))
    empty = read_lmdb(LMDBDataset(path)[:0])
    assert (empty.count(), empty.take_all()) == (0, [])
    assert read_lmdb(path, override_num_blocks=1000).limit(7).count() == 7


def test_transforms_of_a_view_are_applied_as_the_view_applies_them(cluster: None, path: Path) -> None:
    view = LMDBDataset(path, ["image", "boxes", "number"])[5:].transformed(
        [RandomCrop(8), ToDtype(torch.float32, True)], seed=3
    )
    rows = sorted(
        read_lmdb(view, ["boxes", "image", "number"], override_num_blocks=4).take_all(), key=lambda r: r["number"]
    )
    assert len(rows) == COUNT - 5
    for row, sample in zip(rows, view, strict=True):
        assert np.array_equal(row["image"], sample.image.permute(1, 2, 0).numpy()) and row["image"].dtype == np.float32
        assert np.array_equal(row["boxes"], sample.boxes.numpy())


def plain_of(value: Any) -> Any:
    """Return a value with its type, its shape and its bytes, to compare."""
    return (str(value.dtype), tuple(value.shape), value.numpy().tobytes()) if isinstance(value, torch.Tensor) else value


def samples_of(path: Path) -> list[dict[str, Any]]:
    return [{name: plain_of(value) for name, value in sample._asdict().items()} for sample in LMDBDataset(path)]


def check_round_trip(path: Path, out: Path, num_parts: int) -> None:
    """Check that a set has the samples of a dataset, and what else `lmdbloader.write` would write."""
    one, other = LMDBDataset(path).reader.manifest, LMDBDataset(out).reader.manifest
    assert samples_of(out) == samples_of(path)
    assert other.content_digest == one.content_digest and other.made_by == one.made_by and other.classes == one.classes
    assert len(other.parts) == num_parts
    assert lmdbloader.verify(out).is_sound
    assert [entry.name for entry in out.parent.iterdir()] == [out.name]


def the_first_block_last(batch: dict[str, Any]) -> dict[str, Any]:
    time.sleep(0 if batch["number"][0] else 5)
    return batch


def test_samples_are_in_the_order_of_the_blocks(cluster: None, tmp_path: Path) -> None:
    names = ("number", "grey", "fixed", "text", "story")
    rows = [{name: sample_of(number)[name] for name in names} for number in range(COUNT)]
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    lmdbloader.write(rows, tmp_path / "one" / "d.lmdb", classes={"number": [f"class {i}" for i in range(COUNT)]})
    data = read_lmdb(tmp_path / "one" / "d.lmdb", override_num_blocks=4).map_batches(
        the_first_block_last, batch_size=None
    )
    write_lmdb(data, tmp_path / "two" / "d.lmdb", classes={"number": [f"class {i}" for i in range(COUNT)]})
    check_round_trip(tmp_path / "one" / "d.lmdb", tmp_path / "two" / "d.lmdb", 4)


@ray.remote(num_cpus=0)
class Once:
    """Says True to the first who asks, of each number."""

    def __init__(self) -> None:
        self.asked: set[int] = set()
        self.repeats = 0

    def ask(self, number: int) -> bool:
        was_asked = number in self.asked
        self.asked.add(number)
        self.repeats += was_asked
        return not was_asked

    def count(self) -> int:
        return self.repeats


def test_a_task_that_died_and_was_run_again_leaves_nothing_behind(cluster: None, tmp_path: Path) -> None:
    once = Once.remote()

    def die(row: dict[str, Any]) -> dict[str, Any]:
        if row["id"] % 100 == 60 and ray.get(once.ask.remote(int(row["id"]))):
            os.kill(os.getpid(), signal.SIGKILL)
        return {"number": row["id"], "image": np.full((16, 16, 3), row["id"] % 256, np.uint8)}

    write_lmdb(ray.data.range(400, override_num_blocks=4).map(die), tmp_path / "d.lmdb")
    assert ray.get(once.count.remote()) == 4  # each block was made again
    assert [sample.number for sample in LMDBDataset(tmp_path / "d.lmdb")] == list(range(400))
    assert lmdbloader.verify(tmp_path / "d.lmdb").is_sound
    assert [entry.name for entry in tmp_path.iterdir()] == ["d.lmdb"]


def test_nothing_is_there_if_the_job_fails(cluster: None, tmp_path: Path) -> None:
    out = tmp_path / "d.lmdb"

    def changing(row: dict[str, Any]) -> dict[str, Any]:
        return {"image": np.zeros((8, 8, 3), np.uint8), "score": 0.5 if row["id"] < 30 else "none"}

    with pytest.raises(OptionError, match=r"write task \d, whose samples are counted from 0: .*score"):
        write_lmdb(ray.data.range(40, override_num_blocks=4).map(changing), out)
    with pytest.raises(OptionError, match="nothing to write: the dataset has no rows"):
        write_lmdb(ray.data.range(40).filter(lambda row: False), out)
    assert list(tmp_path.iterdir()) == []


def test_a_dataset_that_is_there_is_replaced_on_request_only(cluster: None, tmp_path: Path) -> None:
    out, data = tmp_path / "d.lmdb", ray.data.range(20, override_num_blocks=4)
    assert write_lmdb(data, out, min_rows_per_part=10).num_samples == 20
    assert len(LMDBDataset(out).reader.manifest.parts) == 2
    with pytest.raises(DestinationError, match="a dataset is there already"):
        write_lmdb(data, out)
    assert write_lmdb(data.map(lambda row: {"id": row["id"] + 1}), out, overwrite=True).num_samples == 20
    assert [sample.id for sample in LMDBDataset(out)] == list(range(1, 21))


# Conversions. Their images take long to decode, and little room.


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of images that take some 50 ms each."""
    folder = tmp_path_factory.mktemp("large")
    rows, columns = np.mgrid[:2400, :2400]
    Image.fromarray(np.stack([rows // 10, columns // 10, (rows + columns) // 20], 2).astype(np.uint8)).save(
        folder / "000.jpg", quality=80
    )
    for number in range(1, 96):
        os.link(folder / "000.jpg", folder / f"{number:03d}.jpg")
    return folder


SMALL: dict[str, Any] = {"write_mode": "jpg", "max_resolution": 48, "parts": 6}


@pytest.fixture(scope="module")
def expected(large: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the set that the local engine makes."""
    out = tmp_path_factory.mktemp("local") / "d.lmdb"
    lmdbloader.convert(large, out, **SMALL)
    return out


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def wait_for(found: Callable[[], Any], seconds: float = 120) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if result := found():
            return result
        time.sleep(0.02)
    raise AssertionError("it did not happen")


def begun_parts(out: Path) -> set[int]:
    """Return the processes that are making parts: the folders in which they do so are named after them."""
    tags = (entry.name.partition(".")[2].split("-") for entry in Path(f"{out}.partial").glob("part-*.*"))
    return {int(tag[2]) for tag in tags if len(tag) == 5}


def test_a_cluster_makes_the_same_files_though_a_worker_and_a_node_die(
    environment: pytest.MonkeyPatch, large: Path, expected: Path, tmp_path: Path
) -> None:
    ray.shutdown()
    cluster, out, lines = Cluster(initialize_head=True, head_node_args={"num_cpus": 0}), tmp_path / "d.lmdb", []
    killed = []

    def strike() -> None:
        (worker, *_) = wait_for(lambda: begun_parts(out))
        os.kill(worker, signal.SIGKILL)
        killed.append(worker)
        wait_for(lambda: any("its worker died" in line for line in lines))
        wait_for(lambda: {*begun_parts(out)} - {worker})
        nodes[0].kill_all_processes(check_alive=False, allow_graceful=False, wait=True)
        killed.append(nodes[0])

    try:
        nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
        striking = threading.Thread(target=strike)
        striking.start()
        report = lmdbloader.ray.convert(large, out, address=cluster.address, log=lines.append, **SMALL)
        striking.join()
        assert not ray.is_initialized()
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert len(killed) == 2 and report.num_samples == 96
    assert "Ray: a cluster of 3 nodes with 2 CPUs" in lines
    assert files_of(out) == files_of(expected)
    assert [entry.name for entry in tmp_path.iterdir()] == ["d.lmdb"]


def test_a_conversion_whose_driver_was_killed_is_continued(
    environment: pytest.MonkeyPatch, large: Path, expected: Path, tmp_path: Path
) -> None:
    ray.shutdown()
    out = tmp_path / "d.lmdb"
    command = [sys.executable, "-m", "lmdbloader", "convert", str(large), str(out), "--engine", "ray", "--parts", "6"]
    command += ["--write-mode", "jpg", "--max-resolution", "48", "--workers", "2"]
    driver = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    work = Path(f"{out}.partial")
    wait_for(lambda: list(work.glob("part-?????")) or driver.poll() is not None)
    assert driver.poll() is None, driver.stderr and driver.stderr.read()
    driver.kill()
    driver.communicate()
    assert not out.exists()
    again = subprocess.run(command, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert "of 6 parts are complete" in again.stdout and "Ray: 2 CPUs of this machine" in again.stdout
    assert files_of(out) == files_of(expected)
    finished = subprocess.run(command, capture_output=True, text=True)
    assert finished.returncode == 0 and "nothing to do" in finished.stdout


def test_errors_of_parts_are_those_of_convert(cluster: None, photos: Path, tmp_path: Path) -> None:
    shutil.copytree(photos, tmp_path / "photos")
    (tmp_path / "photos" / "zz.png").write_bytes((tmp_path / "photos" / min(os.listdir(photos))).read_bytes()[:99])
    with pytest.raises(ImageError, match=r"zz\.png"):
        lmdbloader.ray.convert(tmp_path / "photos", tmp_path / "d.lmdb", parts=2)
    report = lmdbloader.ray.convert(tmp_path / "photos", tmp_path / "d.lmdb", parts=2, on_error="skip")
    assert [name for name, _ in report.skipped] == ["zz.png"]
    assert ray.is_initialized()
    with pytest.raises(OptionError, match=r"address='10\.9\.9\.9:1': this program is connected to the Ray cluster"):
        lmdbloader.ray.convert(tmp_path / "photos", tmp_path / "e.lmdb", parts=2, address="10.9.9.9:1")


def test_a_part_that_kills_its_worker_every_time_is_given_up(
    cluster: None, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*about: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(engine, "make_part", dies)
    with pytest.raises(WorkerError, match="4 workers of Ray died while making part 0"):
        lmdbloader.ray.convert(photos, tmp_path / "d.lmdb", parts=1)
