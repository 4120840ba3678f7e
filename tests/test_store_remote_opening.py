"""Datasets at a URL: read through every path as in a folder, and an error or the right sample whatever goes wrong."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pytest
import torch
from remote_store import Server, objects_of, same, serving, write_dataset, write_parts

import lmdbloader
from lmdbloader import LMDBDataset, Loader, errors
from lmdbloader.cli import main
from lmdbloader.format.layout import INDEX_FILE
from lmdbloader.store.readahead import Readahead
from lmdbloader.store.remote import service as service_module

URL = "s3://bucket/train.lmdb"
MIB = 2**20
COUNTS = [210, 40, 250]
LAST = sum(COUNTS) - 1


@pytest.fixture(scope="module", params=["one data file", "several data files"])
def local(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LMDBDataset:
    path = tmp_path_factory.mktemp("remote") / "train.lmdb"
    is_one = request.param == "one data file"
    return LMDBDataset(write_dataset(path, num_samples=sum(COUNTS)) if is_one else write_parts(path, COUNTS))


@pytest.fixture
def server(local: LMDBDataset) -> Iterator[Server]:
    with serving(objects_of(Path(local.path))) as found:
        yield found


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up after a short time."""
    monkeypatch.setattr(service_module, "_RETRY_SECONDS", 0.2)
    monkeypatch.setattr(service_module, "_READ_SECONDS", 0.5)
    monkeypatch.setattr(service_module, "_LONGEST_PAUSE_SECONDS", 0.1)


def labels(loader: Any) -> list[int]:
    return [label for batch in loader for label in batch.label.tolist()]


def last_key(local: LMDBDataset) -> str:
    """Return the name of the object with the last samples."""
    return f"train.lmdb/{local.reader.manifest.data_files[-1]}"


def place_of(local: LMDBDataset, name: str, row: int) -> int:
    """Return where a payload is in its data file."""
    return local.reader.data_file.place(int(local.reader.index.arrays[f"{name}.offset"][row]))[1]


def are_equal(found: LMDBDataset, expected: LMDBDataset, order: Any = "quasi_random", **options: Any) -> bool:
    """Return whether an epoch has the same batches."""
    pairs = zip(
        Loader(found, 32, order=order, seed=3, **options), Loader(expected, 32, order=order, seed=3), strict=True
    )
    return all(torch.equal(a.image, b.image) and a.caption == b.caption for a, b in pairs)


@pytest.mark.parametrize(
    "order, io, fraction",
    [
        ("quasi_random", "mmap", 1.0), ("random", "pread", 1.0), ("sequential", "mmap", 1.0),
        ("quasi_random", "mmap", 0.4), ("random", "pread", 0), ("sequential", "mmap", 0.1),
    ],
)  # fmt: skip
def test_a_url_is_read_as_a_folder(
    server: Server, local: LMDBDataset, tmp_path: Path, order: Any, io: Any, fraction: Any
) -> None:
    dataset = LMDBDataset(URL, io=io, cache_dir=tmp_path, cache_fraction=fraction)
    assert (dataset.path, dataset.reader.name, len(dataset)) == (URL, "train.lmdb", len(local))
    assert not [line for line in server.requests if ".mdb" in line]  # there may be thousands
    assert all(same(dataset[row], local[row]) for row in (0, COUNTS[0] - 1, COUNTS[0], LAST))
    for _ in range(2):
        assert are_equal(dataset, local, order)
    window = dataset.crop(LAST, top=3, left=5, height=16, width=20)
    assert torch.equal(window, local.crop(LAST, top=3, left=5, height=16, width=20))
    assert dataset.table.equals(local.table)
    if fraction == 1.0:  # every byte came once
        nbytes = sum(len(data) for key, data in server.objects.items() if key.endswith(".mdb"))
        assert sum(last + 1 - first for first, last in server.ranges()) == nbytes
        before = len(server.ranges())
        assert are_equal(LMDBDataset(URL, cache_dir=tmp_path), local, order)
        assert len(server.ranges()) == before


def test_random_reading_looks_for_all_coming_samples_of_a_url(
    server: Server, local: LMDBDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of a cache that lacks a few of them, a look at some finds all of those there, and the others come one by one.
    looked, look = [], Readahead.is_resident

    def is_resident(readahead: Readahead, rows: Any) -> bool:
        looked.append(len(rows))
        return look(readahead, rows)

    monkeypatch.setattr(Readahead, "is_resident", is_resident)
    labels(Loader(local, 32, order="random", seed=0))
    assert max(looked) <= 4
    looked.clear()
    labels(Loader(LMDBDataset(URL, cache_dir=tmp_path), 32, order="random", seed=0))
    assert looked and looked[0] > 32


@pytest.mark.parametrize("protocol", ["memory", "file", "http"])
def test_other_services_work_alike(server: Server, local: LMDBDataset, tmp_path: Path, protocol: str) -> None:
    if protocol == "memory":
        fsspec.filesystem("memory").pipe({f"/remote/{key}": data for key, data in server.objects.items()})
    url = {"memory": "memory://remote/train.lmdb", "file": f"file://{local.path}",
           "http": f"{server.url}/bucket/train.lmdb"}[protocol]  # fmt: skip
    for fraction in (1.0, 0.5):
        assert are_equal(LMDBDataset(url, cache_dir=tmp_path, cache_fraction=fraction), local)
    with pytest.raises(errors.NotFoundError):
        LMDBDataset(url + "x", cache_dir=tmp_path)


@pytest.mark.parametrize("url", ["S3://bucket/train.lmdb", f"{URL}/manifest.json", "S3://bucket/train.lmdb/"])
def test_other_spellings_of_a_url_are_the_same_dataset(
    server: Server, local: LMDBDataset, tmp_path: Path, url: str
) -> None:
    LMDBDataset(URL, cache_dir=tmp_path)
    dataset = LMDBDataset(url, cache_dir=tmp_path)
    assert dataset.path == URL and same(dataset[3], local[3])
    (folder,) = tmp_path.iterdir()
    with pytest.raises(errors.FormatError, match="cache of a dataset at a URL"):
        LMDBDataset(folder)


def test_a_pickle_holds_no_key_and_opens_what_is_cached_without_the_server(
    server: Server, local: LMDBDataset, tmp_path: Path
) -> None:
    dataset = LMDBDataset(URL, cache_dir=tmp_path)
    assert same(dataset[7], local[7])
    data, count = pickle.dumps(dataset), len(server.requests)
    assert b"secret" not in data
    assert same(pickle.loads(data)[7], local[7])
    assert len(server.requests) == count
    assert same(pickle.loads(data)[400], local[400])


@pytest.mark.parametrize("fraction", [1.0, 0.2])
def test_what_is_made_of_a_url(
    server: Server, local: LMDBDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fraction: float
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    dataset = LMDBDataset(URL, cache_dir=tmp_path / "cache", cache_fraction=fraction)
    lmdbloader.subset(dataset[205:255], tmp_path / "few.lmdb")
    assert all(same(a, local[205 + i]) for i, a in enumerate(LMDBDataset(tmp_path / "few.lmdb")))
    two = LMDBDataset(write_dataset(tmp_path / "two.lmdb", seed=1, num_samples=60))
    server.objects.update(objects_of(Path(two.path), "two.lmdb"))
    lmdbloader.merge([two, dataset], tmp_path / "merged")
    assert same(LMDBDataset(tmp_path / "merged")[60 + LAST], local[LAST])
    at_urls = [dataset, LMDBDataset("s3://bucket/two.lmdb", cache_dir=tmp_path / "cache")]
    found, expected = (lmdbloader.mix([*each, local], [0.5, 0.3, 0.2]) for each in (at_urls, (local, two)))
    assert are_equal(found, expected)
    assert main(["info", URL]) == 0 and main(["doctor", URL]) == 0
    assert main(["verify", URL]) != 0 and main(["repair", URL, str(tmp_path / "out")]) != 0


# -- What goes wrong


@pytest.mark.parametrize("fault", ["503", "cut", "hang", "short", "wrong"])
@pytest.mark.parametrize("fraction", [1.0, 0.3])
def test_a_fault_that_passes_changes_no_pixel(
    server: Server, local: LMDBDataset, tmp_path: Path, soon: None, fault: str, fraction: float
) -> None:
    server.fault = lambda number, start: fault if number < 3 else ""
    assert are_equal(LMDBDataset(URL, cache_dir=tmp_path, cache_fraction=fraction), local)


@pytest.mark.parametrize("fault", ["503"])
def test_a_server_that_fails_for_good_is_an_error_and_what_is_cached_stays(
    server: Server, local: LMDBDataset, tmp_path: Path, soon: None, fault: str
) -> None:
    dataset = LMDBDataset(URL, cache_dir=tmp_path)
    assert same(dataset[0], local[0])
    server.fault = lambda number, start: fault
    assert same(dataset[0], local[0])
    for read in (lambda: dataset[LAST], lambda: labels(Loader(dataset, 50))):
        with pytest.raises(errors.DiskError, match=r"data.*\.mdb: cannot be read"):
            read()
    server.fault = lambda number, start: ""
    assert are_equal(LMDBDataset(URL, cache_dir=tmp_path), local)


@pytest.mark.parametrize("how", ["sample", "crop", "text", "loader", "stored"])
@pytest.mark.parametrize("fraction", [1.0, 0])
def test_damage_at_the_url_is_an_error_of_its_sample(
    server: Server, local: LMDBDataset, tmp_path: Path, how: str, fraction: float
) -> None:
    row, key = LAST - 50, last_key(local)
    damaged = bytearray(server.objects[key])
    damaged[place_of(local, "caption" if how == "text" else "image", row) + 5] ^= 1
    server.objects[key] = bytes(damaged)
    dataset = LMDBDataset(URL, cache_dir=tmp_path, cache_fraction=fraction)
    reads: dict[str, Callable[[], Any]] = {
        "sample": lambda: dataset[row],
        "crop": lambda: dataset.crop(row, top=0, left=0, height=4, width=4),
        "text": lambda: dataset.table,
        "loader": lambda: labels(Loader(dataset, 10)),
        "stored": lambda: dataset.reader.stored_bytes("image", row),
    }
    with pytest.raises(errors.CorruptError, match=rf"s3://bucket/{key}.*damaged") as caught:
        reads[how]()
    assert (caught.value.sample, caught.value.path) == (row, URL)
    assert same(dataset[row - 1], local[row - 1])


@pytest.mark.parametrize("place", ["data", "index.arrow", "no index", "no data"])
def test_what_the_disk_changed_is_fetched_again(server: Server, local: LMDBDataset, tmp_path: Path, place: str) -> None:
    dataset = LMDBDataset(URL, cache_dir=tmp_path)
    assert are_equal(dataset, local)
    name = "data" if "data" in place else INDEX_FILE
    (path,) = tmp_path.glob(f"*/{name}")
    if place.startswith("no "):
        path.unlink()
    else:
        with open(path, "r+b") as file:
            file.seek(path.stat().st_size // 2 + 1000)
            file.write(bytes(10_000))
    assert are_equal(LMDBDataset(URL, cache_dir=tmp_path), local, verify=place == "data")


def test_a_replaced_dataset_is_an_error_and_then_a_dataset_of_its_own(
    server: Server, local: LMDBDataset, tmp_path: Path
) -> None:
    dataset = LMDBDataset(URL, cache_dir=tmp_path / "cache")
    assert same(dataset[LAST], local[LAST])
    other = write_dataset(tmp_path / "other.lmdb", seed=1, num_samples=COUNTS[-1])
    server.objects[last_key(local)] = (other / "data.mdb").read_bytes()[: len(server.objects[last_key(local)])]
    row = LAST - 150
    with pytest.raises(
        errors.CorruptError, match=f"{last_key(local)}( is damaged, or was replaced|: .* belongs to another)"
    ):
        dataset[row]
    assert same(dataset[LAST], local[LAST])  # what is cached is still that of the first one
    # Another process sees a file of another length, or other bytes than the checksums are of.
    with pytest.raises(errors.CorruptError, match=last_key(local)):
        LMDBDataset(URL, cache_dir=tmp_path / "cache")[row]
    server.objects.clear()
    server.objects.update(objects_of(other))
    assert are_equal(LMDBDataset(URL, cache_dir=tmp_path / "cache"), LMDBDataset(other))


def test_what_is_no_dataset_is_refused(server: Server, local: LMDBDataset, tmp_path: Path) -> None:
    with pytest.raises(errors.NotFoundError, match="s3://bucket/other"):
        LMDBDataset("s3://bucket/other", cache_dir=tmp_path)
    with pytest.raises(errors.OptionError, match="nosuch"):
        LMDBDataset("nosuch://bucket/train.lmdb", cache_dir=tmp_path)
    whole = dict(server.objects)
    server.objects[last_key(local)] += b"x"
    with pytest.raises(errors.CorruptError, match=f"{last_key(local)}: .* belongs to another dataset"):
        LMDBDataset(URL, cache_dir=tmp_path)[LAST]
    del server.objects[last_key(local)]
    with pytest.raises(errors.CorruptError, match=f"{last_key(local)}: is missing"):
        labels(Loader(LMDBDataset(URL, cache_dir=tmp_path), 50))
    index = f"train.lmdb/{INDEX_FILE}"
    server.objects.update(whole)
    server.objects[index] = whole[index][:-1] + b"x"
    with pytest.raises(errors.CorruptError, match=f"{index}: its digest is"):
        LMDBDataset(URL, cache_dir=tmp_path / "other")


def test_a_disk_without_room_is_an_error(
    server: Server, local: LMDBDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lmdbloader.base import system

    nbytes = local.reader.data_file.nbytes
    with monkeypatch.context() as patch:
        patch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(total=2**40, free=nbytes - MIB))
        with pytest.raises(errors.DiskFullError, match=r"MiB are free\. .*cache_fraction="):
            LMDBDataset(URL, cache_dir=tmp_path)
        assert same(LMDBDataset(URL, cache_dir=tmp_path, cache_fraction=0.5)[0], local[0])

    def full(descriptor: int, data: bytes, at: int) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(system, "write_at", full)
    with pytest.raises(errors.DiskFullError, match="disk full"):
        LMDBDataset(URL, cache_dir=tmp_path)[LAST]


# -- Without the server


def test_an_unreachable_server_is_an_error_at_opening(tmp_path: Path, soon: None) -> None:
    with serving({}), pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        with pytest.raises(errors.DiskError, match=r"127\.0\.0\.1:9"):
            LMDBDataset(URL, cache_dir=tmp_path)
