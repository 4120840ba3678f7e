"""Sets of parts at a URL: one cache for all parts, read as a set in a folder is, and never bytes of two versions."""

from __future__ import annotations

import gc
import itertools
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import numpy as np
import pytest
import torch
from faults.forging import manifest_of, value_at, with_value
from part_sets import make_set
from remote_store import Server, cached_nbytes, objects_of, same, serving, write_dataset, write_parts
from torch.utils.data import DataLoader

import lmdbloader
from lmdbloader import LMDBDataset, Loader, QuasiRandom, errors
from lmdbloader.cli import main
from lmdbloader.store.remote import cache as cache_module
from lmdbloader.store.remote import service as service_module
from lmdbloader.store.remote.opening import RemoteData
from lmdbloader.store.remote.parts import Versions

URL = "s3://bucket/train.lmdb"
MIB = 2**20
# The first and the last part have several pieces; behind the first two there are pieces without data.
COUNTS = [210, 40, 300]
PARTS = [f"part-{k:05d}" for k in range(len(COUNTS))]
FIRSTS = [0, 210, 250]
LAST = sum(COUNTS) - 1


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> LMDBDataset:
    return LMDBDataset(write_parts(tmp_path_factory.mktemp("sets") / "train.lmdb", COUNTS))


@pytest.fixture
def server(local: LMDBDataset) -> Iterator[Server]:
    with serving(objects_of(Path(local.path))) as found:
        yield found


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up after a short time."""
    monkeypatch.setattr(service_module, "_RETRY_SECONDS", 0.2)
    monkeypatch.setattr(service_module, "_LONGEST_PAUSE_SECONDS", 0.1)


def key(part: int) -> str:
    return f"train.lmdb/{PARTS[part]}/data.mdb"


def labels(loader: Any) -> list[int]:
    return [label for batch in loader for label in batch.label.tolist()]


def heads(server: Server) -> list[str]:
    """Return the requests for facts about data files."""
    return [line for line in server.requests if line.startswith("HEAD") and line.endswith("data.mdb")]


def fetched(server: Server, part: int) -> list[tuple[int, int]]:
    """Return the ranges of a part that were fetched, in order, of which no byte came twice."""
    found = sorted((first, last + 1) for name, first, last in server.ranges_of_parts() if name == PARTS[part])
    assert all(stop <= start for (_, stop), (start, _) in itertools.pairwise(found))
    return found


def are_whole(server: Server) -> bool:
    """Return whether every byte of every part was fetched, once."""
    return all(
        sum(stop - start for start, stop in fetched(server, part)) == len(server.objects[key(part)])
        for part in range(len(PARTS))
    )


def replace_part(server: Server, part: int, tmp_path: Path) -> None:
    """Put other images of the same size in the place of a part."""
    other = write_dataset(tmp_path / "other.lmdb", seed=1, num_samples=COUNTS[part])
    data = (other / "data.mdb").read_bytes()
    assert len(data) == len(server.objects[key(part)])
    server.objects[key(part)] = data


@pytest.mark.parametrize(
    "order, io", [("quasi_random", "mmap"), ("quasi_random", "pread"), ("random", "mmap"), ("sequential", "pread")]
)
def test_a_loader_reads_a_set_at_a_url_as_in_a_folder(
    server: Server, local: LMDBDataset, tmp_path: Path, order: Any, io: Any
) -> None:
    dataset = LMDBDataset(URL, io=io, cache_dir=tmp_path)
    assert [line for line in server.requests if "/part-" in line] == []  # there may be thousands
    for _ in range(2):
        pairs = zip(Loader(dataset, 32, order=order, seed=3), Loader(local, 32, order=order, seed=3), strict=True)
        for found, expected in pairs:
            assert torch.equal(found.image, expected.image)
            assert found.caption == expected.caption
    assert are_whole(server)  # in two epochs, and nothing between the parts
    assert len(heads(server)) == len(PARTS)
    remote = dataset.reader.data_file.remote
    assert remote is not None and remote.is_complete
    expected_nbytes = sum(-(-len(server.objects[key(k)]) // MIB) * MIB for k in range(3))
    assert cached_nbytes(tmp_path) <= expected_nbytes


def test_single_samples_ask_for_their_part_alone(server: Server, local: LMDBDataset, tmp_path: Path) -> None:
    dataset = LMDBDataset(URL, cache_dir=tmp_path)
    assert (dataset.path, len(dataset)) == (URL, len(local))
    for row in (FIRSTS[1], FIRSTS[2] - 1):
        assert same(dataset[row], local[row])
    assert {name for name, _, _ in server.ranges_of_parts()} == {PARTS[1]} and len(heads(server)) == 1
    for row in (0, FIRSTS[1] - 1, FIRSTS[2], LAST):
        assert same(dataset[row], local[row])
    window = dataset.crop(LAST, top=3, left=5, height=16, width=20)
    assert torch.equal(window, local.crop(LAST, top=3, left=5, height=16, width=20))
    assert dataset.table.equals(local.table)


def test_a_request_for_pieces_of_two_parts_is_divided(tmp_path: Path) -> None:
    out = write_parts(tmp_path / "close.lmdb", [164, 3, 20], seed=4)
    whole = LMDBDataset(out)
    sizes = [part.data_nbytes for part in whole.reader.manifest.parts]
    assert 2 * MIB - 2**16 < sizes[0] < 2 * MIB  # so that its last piece is next to the second part's first one
    with serving(objects_of(out)) as server:
        dataset = LMDBDataset(URL, cache_dir=tmp_path / "cache")
        data = dataset.reader.data_file
        assert isinstance(data, RemoteData)
        data.remote.hold(np.array([MIB]), np.array([2 * MIB + sizes[1]]))
        first, second = ([r for r in server.ranges_of_parts() if r[0] == part] for part in PARTS[:2])
        assert max(last for _, _, last in first) == sizes[0] - 1
        assert second == [(PARTS[1], 0, sizes[1] - 1)]
        assert all(same(a, b) for a, b in zip(dataset, whole, strict=True))
        assert data.read(sizes[0] - 5, 10) == whole.reader.data_file.files[0].read(sizes[0] - 5, 5) + bytes(5)


def test_workers_and_pickles_share_the_cache(
    server: Server, local: LMDBDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = LMDBDataset(URL, cache_dir=tmp_path)
    assert same(dataset[7], local[7])
    loader = DataLoader(dataset, 50, num_workers=2, multiprocessing_context="fork")
    assert labels(loader) == list(range(len(local)))
    assert are_whole(server)
    # Who finds the version in the folder does not ask for it.
    assert len(heads(server)) <= len(PARTS) + 2
    data, count = pickle.dumps(dataset), len(server.requests)
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    assert b"secret" not in data
    assert all(same(a, b) for a, b in zip(pickle.loads(data), local, strict=True))
    assert len(server.requests) == count


def test_a_later_opening_asks_for_no_facts_about_parts(server: Server, local: LMDBDataset, tmp_path: Path) -> None:
    dataset = LMDBDataset(URL, cache_dir=tmp_path)
    assert same(dataset[FIRSTS[2]], local[FIRSTS[2]])
    assert len(heads(server)) == 1
    del dataset
    gc.collect()
    dataset = LMDBDataset(URL, cache_dir=tmp_path)
    before = len(server.ranges())
    assert same(dataset[LAST], local[LAST])
    assert len(server.ranges()) > before and len(heads(server)) == 1


@pytest.mark.parametrize("fraction", [0, 0.4, "3MiB"])
def test_a_share_of_a_set_is_kept(
    server: Server, local: LMDBDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fraction: Any
) -> None:
    monkeypatch.setattr(cache_module, "_SPARE", 2)
    order = QuasiRandom(MIB, 4 * MIB)
    dataset = LMDBDataset(URL, cache_dir=tmp_path, cache_fraction=fraction)
    for seed in range(2):
        found, expected = (Loader(each, 50, order=order, seed=seed) for each in (dataset, local))
        assert all(torch.equal(a.image, b.image) for a, b in zip(found, expected, strict=True))
    limit = {0: 0, 0.4: int(0.4 * 8 * MIB), "3MiB": 3 * MIB}[fraction]
    assert cached_nbytes(tmp_path) <= limit + 4 * MIB
    assert same(dataset[LAST], local[LAST])


def test_a_part_that_is_replaced_is_an_error_now_and_in_later_processes(
    server: Server, local: LMDBDataset, tmp_path: Path
) -> None:
    dataset = LMDBDataset(URL, cache_dir=tmp_path / "cache")
    assert same(dataset[FIRSTS[2]], local[FIRSTS[2]])
    replace_part(server, 2, tmp_path)
    named = r"train\.lmdb/part-00002/data\.mdb: was replaced since it was first read here \(.*ETag.*delete .*cache"
    with pytest.raises(errors.CorruptError, match=named):
        dataset[LAST]
    assert same(dataset[FIRSTS[2]], local[FIRSTS[2]])  # what is cached is of the first one
    assert same(dataset[0], local[0])  # other parts are what they were
    del dataset
    gc.collect()
    dataset = LMDBDataset(URL, cache_dir=tmp_path / "cache")
    with pytest.raises(errors.CorruptError, match=named):
        dataset[LAST]
    with pytest.raises(errors.CorruptError, match="was replaced"):
        labels(Loader(dataset, 32))


def test_a_replaced_part_is_found_by_its_time_where_there_are_no_etags(local: LMDBDataset, tmp_path: Path) -> None:
    write_parts(tmp_path / "own.lmdb", [100, 100], seed=2)
    url = f"file://{tmp_path / 'own.lmdb'}"
    dataset = LMDBDataset(url, cache_dir=tmp_path / "cache")
    assert dataset[100].label == 100
    del dataset
    gc.collect()
    data = tmp_path / "own.lmdb" / PARTS[1] / "data.mdb"
    os.utime(data, ns=(1, 1))
    dataset = LMDBDataset(url, cache_dir=tmp_path / "cache")
    assert dataset[100].label == 100 and dataset[0].label == 0
    with pytest.raises(errors.CorruptError, match=r"part-00001/data\.mdb: was replaced .*its version is mtime"):
        dataset[199]


def test_a_part_that_is_replaced_while_it_is_read_is_found_by_its_checksums(tmp_path: Path) -> None:
    own = write_parts(tmp_path / "own.lmdb", [10, 200], seed=2)
    dataset = LMDBDataset(f"file://{own}", cache_dir=tmp_path / "cache")
    assert dataset[10].label == 10  # such a service takes no condition with a request
    other = write_dataset(tmp_path / "other.lmdb", seed=3, num_samples=200)
    (own / PARTS[1] / "data.mdb").write_bytes((other / "data.mdb").read_bytes())
    with pytest.raises(errors.CorruptError, match=r"part-00001/data\.mdb: was replaced .*its version is mtime"):
        dataset[209]
    assert dataset[10].label == 10 and dataset[0].label == 0


def test_a_part_of_another_set_is_never_read_as_this_ones(server: Server, local: LMDBDataset, tmp_path: Path) -> None:
    replace_part(server, 2, tmp_path)
    dataset = LMDBDataset(URL, cache_dir=tmp_path / "cache")
    with pytest.raises(errors.CorruptError, match=r"sample 549.*train\.lmdb/part-00002/data\.mdb is damaged"):
        dataset[LAST]
    assert same(dataset[0], local[0])
    server.objects[key(1)] += b"x"
    with pytest.raises(errors.CorruptError, match=r"part-00001/data\.mdb: \d+ bytes, expected \d+: it is cut short"):
        dataset[FIRSTS[1]]


def test_a_set_that_is_replaced_or_grows_is_another_one(server: Server, local: LMDBDataset, tmp_path: Path) -> None:
    dataset = LMDBDataset(URL, cache_dir=tmp_path / "cache")
    assert same(dataset[0], local[0])
    grown = write_parts(tmp_path / "grown.lmdb", [*COUNTS, 10], seed=0)
    server.objects.update(objects_of(grown))
    assert len(LMDBDataset(URL, cache_dir=tmp_path / "cache")) == len(local) + 10
    other = write_parts(tmp_path / "set.lmdb", COUNTS, seed=3)
    server.objects.clear()
    server.objects.update(objects_of(other))
    with pytest.raises(errors.CorruptError, match=r"part-00000/data\.mdb: was replaced.*whole set.*open it again"):
        labels(Loader(dataset, 50, order="sequential"))
    fresh = LMDBDataset(URL, cache_dir=tmp_path / "cache")
    assert all(same(a, b) for a, b in zip(fresh, LMDBDataset(other), strict=True))


def test_a_missing_part_is_named(server: Server, local: LMDBDataset, tmp_path: Path) -> None:
    del server.objects[key(1)]
    dataset = LMDBDataset(URL, cache_dir=tmp_path)
    assert same(dataset[0], local[0])
    with pytest.raises(errors.CorruptError, match=r"s3://bucket/train\.lmdb/part-00001/data\.mdb: is missing"):
        dataset[FIRSTS[1]]
    with pytest.raises(errors.CorruptError, match="part-00001"):
        labels(Loader(dataset, 50))


@pytest.mark.parametrize("how", ["sample", "loader", "text"])
def test_damage_at_the_url_is_fetched_once_more_and_then_an_error(
    server: Server, local: LMDBDataset, tmp_path: Path, how: str
) -> None:
    row, begin = FIRSTS[2] + 5, local.reader.data_file.begins[2]  # type: ignore[attr-defined]
    name = "caption" if how == "text" else "image"
    offset = int(local.reader.index.arrays[f"{name}.offset"][row]) - begin
    damaged = bytearray(server.objects[key(2)])
    damaged[offset + 5] ^= 1
    server.objects[key(2)] = bytes(damaged)
    dataset = LMDBDataset(URL, cache_dir=tmp_path)
    reads = {
        "sample": lambda: dataset[row],
        "loader": lambda: labels(Loader(dataset, 10)),
        "text": lambda: dataset.table,
    }
    with pytest.raises(
        errors.CorruptError, match=rf"sample {row}.*fetched twice: {URL}/part-00002/data\.mdb is damaged"
    ):
        reads[how]()
    hits = [first for part, first, last in server.ranges_of_parts() if part == PARTS[2] and first <= offset <= last]
    assert len(hits) == 2
    assert same(dataset[FIRSTS[2]], local[FIRSTS[2]])


def test_a_server_that_fails_for_good_is_an_error_with_the_part(
    server: Server, local: LMDBDataset, tmp_path: Path, soon: None
) -> None:
    dataset = LMDBDataset(URL, cache_dir=tmp_path)
    assert same(dataset[0], local[0])
    server.fault = lambda number, start: "503"
    assert same(dataset[0], local[0])
    for read in (lambda: dataset[LAST], lambda: labels(Loader(dataset, 50, order="sequential"))):
        with pytest.raises(errors.DiskError, match=r"part-0000./data\.mdb: cannot be read: .*It was tried . times"):
            read()


def test_faults_that_pass_change_no_pixel(server: Server, local: LMDBDataset, tmp_path: Path) -> None:
    server.fault = lambda number, start: ["503", "cut", "short", "wrong"][number] if number < 4 else ""
    dataset = LMDBDataset(URL, cache_dir=tmp_path)
    for found, expected in zip(Loader(dataset, 50, seed=2), Loader(local, 50, seed=2), strict=True):
        assert torch.equal(found.image, expected.image)


@pytest.mark.parametrize("protocol", ["memory", "file", "http"])
def test_other_services_work_alike(server: Server, local: LMDBDataset, tmp_path: Path, protocol: str) -> None:
    if protocol == "memory":
        fsspec.filesystem("memory").pipe({f"/sets/{name}": data for name, data in server.objects.items()})
    url = {"memory": "memory://sets/train.lmdb", "file": f"file://{local.path}",
           "http": f"{server.url}/bucket/train.lmdb"}[protocol]  # fmt: skip
    for _ in range(2):
        dataset = LMDBDataset(url, cache_dir=tmp_path)
        pairs = zip(Loader(dataset, 50, seed=5), Loader(local, 50, seed=5), strict=True)
        assert all(torch.equal(a.image, b.image) for a, b in pairs)


def test_a_set_at_a_url_is_mixed_merged_and_taken_apart(server: Server, local: LMDBDataset, tmp_path: Path) -> None:
    dataset = LMDBDataset(URL, cache_dir=tmp_path / "cache")
    two = LMDBDataset(write_dataset(tmp_path / "two.lmdb", seed=1, num_samples=60))
    found, expected = (
        Loader(lmdbloader.mix([one, two], [0.7, 0.3]), 32, order="quasi_random", seed=3) for one in (dataset, local)
    )
    assert all(torch.equal(a.image, b.image) for a, b in zip(found, expected, strict=True))
    lmdbloader.subset(dataset[245:255], tmp_path / "few.lmdb")
    assert all(same(a, local[245 + i]) for i, a in enumerate(LMDBDataset(tmp_path / "few.lmdb")))
    lmdbloader.merge([two, dataset], tmp_path / "merged")
    assert same(LMDBDataset(tmp_path / "merged")[60 + LAST], local[LAST])


def test_commands_know_a_set_at_a_url(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    for command, said in (("info", "3 parts"), ("doctor", "images of 64 pixels")):
        assert main([command, URL]) == 0, command
        assert said in capsys.readouterr().out
    for command in ("verify", "repair"):
        arguments = [command, URL, *([str(tmp_path / "out")] if command == "repair" else [])]
        assert main(arguments) != 0
        assert "lmdbloader stage s3://bucket/train.lmdb ." in capsys.readouterr().err


def test_a_full_disk_is_found_at_opening(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(total=2**30, free=1000))
    with pytest.raises(errors.DiskFullError, match=r"still needs [789](\.\d+)? MiB, and 1000 bytes are free"):
        LMDBDataset(URL, cache_dir=tmp_path)


def test_a_damaged_index_of_the_cache_is_fetched_again(server: Server, local: LMDBDataset, tmp_path: Path) -> None:
    LMDBDataset(URL, cache_dir=tmp_path)
    (index,) = tmp_path.glob("*/index-00003.arrow")
    whole = index.read_bytes()
    column = manifest_of(Path(local.path))["index"]["columns"][0]
    index.write_bytes(with_value(whole, column, 0, value_at(whole, column, 0) ^ 1))
    dataset = LMDBDataset(URL, cache_dir=tmp_path)
    assert same(dataset[LAST], local[LAST]) and index.read_bytes() == whole


def test_the_first_version_counts_and_a_torn_line_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "versions"
    one, other = Versions(path), Versions(path)
    assert one.get(4) is None
    assert one.put(4, "ETag a") == "ETag a"
    assert other.put(4, "ETag b") == "ETag a"
    with open(path, "ab") as file:
        file.write(b'[5, "ETag')
    assert other.get(5) is None
    assert other.put(5, "ETag c") == "ETag c"
    assert (one.get(4), one.get(5)) == ("ETag a", "ETag c")
    assert (Versions(path).get(4), Versions(path).get(5)) == ("ETag a", "ETag c")


def test_parts_open_alone(server: Server, local: LMDBDataset, tmp_path: Path) -> None:
    part = LMDBDataset(f"{URL}/part-00001", cache_dir=tmp_path)
    assert len(part) == COUNTS[1] and same(part[3], local[FIRSTS[1] + 3])


def test_a_set_of_one_part_is_read(tmp_path: Path) -> None:
    out = make_set(tmp_path / "one.lmdb", [[{"image": np.zeros((8, 8), np.uint8)}]])
    assert LMDBDataset(f"file://{out}", cache_dir=tmp_path / "cache")[0].image.sum() == 0
