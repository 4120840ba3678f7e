"""Datasets at a URL: read through every path, cached once for all processes, refused clearly if something is wrong."""

from __future__ import annotations

import pickle
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import numpy as np
import pytest
import torch
from PIL import Image
from remote_store import NUM_SAMPLES, Server, cached_nbytes, objects_of, same, serving, write_dataset
from torch.utils.data import DataLoader

import lmdbloader
from lmdbloader import LMDBDataset, Loader, errors, subset
from lmdbloader.store.remote import service as service_module

URL = "s3://bucket/train.lmdb"
MIB = 2**20


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> LMDBDataset:
    return LMDBDataset(write_dataset(tmp_path_factory.mktemp("remote") / "train.lmdb"))


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


@pytest.mark.parametrize("order", ["quasi_random", "random", "sequential"])
@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_a_loader_reads_a_url_as_it_reads_a_folder(
    server: Server, local: LMDBDataset, tmp_path: Path, order: Any, io: Any
) -> None:
    dataset = LMDBDataset(URL, io=io, cache_dir=tmp_path)
    for epoch in range(2):
        pairs = zip(Loader(dataset, 32, order=order, seed=3), Loader(local, 32, order=order, seed=3), strict=True)
        for found, expected in pairs:
            assert torch.equal(found.image, expected.image)
            assert found.caption == expected.caption
        wanted = {at // MIB for first, last in server.ranges() for at in range(first, last + 1, MIB)}
        assert wanted == set(range(-(-len(server.objects["train.lmdb/data.mdb"]) // MIB))), epoch
    nbytes = sum(last + 1 - first for first, last in server.ranges())
    assert nbytes == len(server.objects["train.lmdb/data.mdb"])  # every byte once, in two epochs


def test_single_samples_fetch_what_they_touch_and_no_more(server: Server, local: LMDBDataset, tmp_path: Path) -> None:
    dataset = LMDBDataset(URL, cache_dir=tmp_path)
    assert (dataset.path, len(dataset)) == (URL, NUM_SAMPLES)
    assert server.ranges() == []
    for index in (0, NUM_SAMPLES - 1, 0, 250):
        assert same(dataset[index], local[index])
    assert len(server.ranges()) <= 6
    assert sum(last + 1 - first for first, last in server.ranges()) <= 6 * MIB
    window = dataset.crop(100, top=3, left=5, height=16, width=20)
    assert torch.equal(window, local.crop(100, top=3, left=5, height=16, width=20))
    assert dataset.table.equals(local.table)


def test_a_second_opening_uses_the_cache(server: Server, local: LMDBDataset, tmp_path: Path) -> None:
    assert labels(Loader(LMDBDataset(URL, cache_dir=tmp_path), 50, seed=1)) != []
    before = len(server.ranges())
    again = LMDBDataset(URL, cache_dir=tmp_path)
    assert all(same(a, b) for a, b in zip(again, local, strict=True))
    assert len(server.ranges()) == before
    assert [line for line in server.requests if "index.arrow bytes" in line] == ["GET /bucket/train.lmdb/index.arrow "
        f"bytes=0-{len(server.objects['train.lmdb/index.arrow']) - 1}"]  # fmt: skip


def test_workers_share_the_cache_and_ask_for_each_piece_once(
    server: Server, local: LMDBDataset, tmp_path: Path
) -> None:
    dataset = LMDBDataset(URL, cache_dir=tmp_path)
    opening = len(server.requests)
    loader = DataLoader(dataset, 50, num_workers=2, multiprocessing_context="fork")
    assert labels(loader) == list(range(NUM_SAMPLES))
    starts = [at // MIB for first, last in server.ranges() for at in range(first, last + 1, MIB)]
    assert len(starts) == len(set(starts)) == -(-len(server.objects["train.lmdb/data.mdb"]) // MIB)
    assert len(server.requests) == opening + len(server.ranges())  # the workers opened it without a request


def test_processes_that_start_later_share_the_cache(server: Server, local: LMDBDataset, tmp_path: Path) -> None:
    dataset = LMDBDataset(URL, cache_dir=tmp_path)
    opening = len(server.requests)
    server.delay = 0.1
    code = "import pickle, sys; r = pickle.load(sys.stdin.buffer); print(sum(int(r.read_bytes('image', i).sum()) "
    code += f"for i in range({NUM_SAMPLES})))"
    data = pickle.dumps(dataset.reader)
    children = [
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(2)
    ]
    for child in children:
        assert child.stdin is not None
        child.stdin.write(data)
        child.stdin.close()
    expected = sum(int(sample.image.sum()) for sample in local)
    for child in children:
        assert child.stdout is not None
        assert int(child.stdout.read()) == expected
        child.stdout.close()
        assert child.wait() == 0
    starts = [at // MIB for first, last in server.ranges() for at in range(first, last + 1, MIB)]
    assert len(starts) == len(set(starts)) == -(-len(server.objects["train.lmdb/data.mdb"]) // MIB)
    assert len(server.requests) == opening + len(server.ranges())  # they opened it without a request


def test_a_pickle_holds_no_key_and_opens_what_is_cached_without_the_server(
    server: Server, local: LMDBDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = LMDBDataset(URL, cache_dir=tmp_path)
    assert same(dataset[7], local[7])
    data, count = pickle.dumps(dataset), len(server.requests)
    assert b"secret" not in data
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    assert same(pickle.loads(data)[7], local[7])
    assert len(server.requests) == count
    assert same(pickle.loads(data)[400], local[400])  # the server is that of the opening
    assert len(server.requests) - count in (1, 2)  # it may lie in two pieces


@pytest.mark.parametrize("fault", ["503", "cut", "hang", "short", "wrong"])
def test_a_fault_that_passes_changes_no_pixel(
    server: Server, local: LMDBDataset, tmp_path: Path, soon: None, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    seen: set[int] = set()

    def once(number: int, start: int) -> str:
        is_first = start not in seen and len(seen) < 3
        seen.add(start)
        return fault if is_first else ""

    server.fault = once
    dataset = LMDBDataset(URL, cache_dir=tmp_path)
    for found, expected in zip(Loader(dataset, 50, seed=2), Loader(local, 50, seed=2), strict=True):
        assert torch.equal(found.image, expected.image)
    assert all(same(a, b) for a, b in zip(dataset, local, strict=True))


@pytest.mark.parametrize("how", ["sample", "crop", "text", "loader", "stored"])
def test_damage_at_the_url_is_fetched_once_more_and_then_an_error(
    server: Server, local: LMDBDataset, tmp_path: Path, how: str
) -> None:
    damaged = bytearray(server.objects["train.lmdb/data.mdb"])
    offset = int(local.reader.index.arrays["image.offset"][123])
    text = int(local.reader.index.arrays["caption.offset"][123])
    for at in (offset, text):
        damaged[at + 5] ^= 1
    server.objects["train.lmdb/data.mdb"] = bytes(damaged)
    dataset = LMDBDataset(URL, cache_dir=tmp_path)
    reads = {
        "sample": lambda: dataset[123],
        "crop": lambda: dataset.crop(123, top=0, left=0, height=4, width=4),
        "text": lambda: dataset.table,
        "loader": lambda: labels(Loader(dataset, 10)),
        "stored": lambda: dataset.reader.stored_bytes("image", 123),
    }
    with pytest.raises(errors.CorruptError, match=r"s3://bucket/train\.lmdb.*sample 123.*fetched twice"):
        reads[how]()
    at = text if how == "text" else offset
    assert len([first for first, last in server.ranges() if first <= at <= last]) == 2
    assert same(dataset[122], local[122])


def test_bytes_that_the_disk_changed_are_fetched_again(server: Server, local: LMDBDataset, tmp_path: Path) -> None:
    dataset = LMDBDataset(URL, cache_dir=tmp_path)
    assert labels(Loader(dataset, 50)) != []
    (pieces,) = tmp_path.glob("*/data.pieces")
    with open(pieces, "r+b") as file:
        file.seek(int(local.reader.index.arrays["image.offset"][30]))
        file.write(bytes(1000))
    again = LMDBDataset(URL, cache_dir=tmp_path)
    assert all(same(a, b) for a, b in zip(again, local, strict=True))


def test_a_dataset_that_was_replaced_is_an_error_and_then_a_dataset_of_its_own(
    server: Server, local: LMDBDataset, tmp_path: Path
) -> None:
    dataset = LMDBDataset(URL, cache_dir=tmp_path / "cache")
    assert same(dataset[0], local[0])
    other = write_dataset(tmp_path / "other.lmdb", seed=1)
    server.objects.update(objects_of(other))
    with pytest.raises(errors.CorruptError, match="was replaced since it was opened"):
        labels(Loader(dataset, 50))
    assert same(dataset[0], local[0])  # what is cached is still that of the first one
    fresh = LMDBDataset(URL, cache_dir=tmp_path / "cache")
    assert all(same(a, b) for a, b in zip(fresh, LMDBDataset(other), strict=True))


def test_a_replacement_that_no_request_tells_is_named_when_its_bytes_are_damage(
    local: LMDBDataset, tmp_path: Path
) -> None:
    files, other = fsspec.filesystem("memory"), write_dataset(tmp_path / "other.lmdb", seed=1)
    for path in (Path(local.path), other):
        files.pipe({f"/replaced/{key}": data for key, data in objects_of(path).items()})
        if path != other:
            dataset = LMDBDataset("memory://replaced/train.lmdb", cache_dir=tmp_path / "cache")
            assert same(dataset[0], local[0])
            time.sleep(0.01)  # it is another time
    with pytest.raises(errors.CorruptError, match="was replaced since it was opened"):
        dataset[NUM_SAMPLES - 1]
    assert same(dataset[0], local[0])


@pytest.mark.parametrize("fault", ["503", "cut", "hang"])
def test_a_server_that_fails_for_good_is_an_error_and_cached_pieces_stay(
    server: Server, local: LMDBDataset, tmp_path: Path, soon: None, fault: str
) -> None:
    dataset = LMDBDataset(URL, cache_dir=tmp_path)
    assert same(dataset[0], local[0])
    server.fault = lambda number, start: fault
    assert same(dataset[0], local[0])
    for read in (lambda: dataset[NUM_SAMPLES - 1], lambda: labels(Loader(dataset, 50))):
        with pytest.raises(errors.DiskError, match=r"cannot be read: .*It was tried . times"):
            read()


def test_an_unreachable_server_is_an_error_at_opening(tmp_path: Path, soon: None) -> None:
    with serving({}) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        with pytest.raises(errors.DiskError, match=r"127\.0\.0\.1:9"):
            LMDBDataset(URL, cache_dir=tmp_path)
        assert server.requests == []


def test_what_is_no_dataset_is_refused(server: Server, tmp_path: Path) -> None:
    with pytest.raises(errors.NotFoundError, match=r"s3://bucket/other: there is no dataset"):
        LMDBDataset("s3://bucket/other", cache_dir=tmp_path)
    server.objects["train.lmdb/data.mdb"] += b"x"
    with pytest.raises(errors.CorruptError, match="belongs to another dataset"):
        LMDBDataset(URL, cache_dir=tmp_path)
    server.objects["train.lmdb/data.mdb"] = server.objects["train.lmdb/data.mdb"][:-1]
    server.objects["train.lmdb/index.arrow"] = server.objects["train.lmdb/index.arrow"][:-1] + b"x"
    with pytest.raises(errors.CorruptError, match=r"index\.arrow: its digest is"):
        LMDBDataset(URL, cache_dir=tmp_path)
    for wrong, message in (
        (1.5, r"cache_fraction=1\.5: expected a share"),
        (True, "cache_fraction=True: expected a share"),
        (float("nan"), "cache_fraction=nan: expected a share"),
        ("0.2", r"cache_fraction='0\.2': expected a share .*Write cache_fraction=0\.2\."),
        ("1", r"Write cache_fraction=1\.0\."),
        ("20%", r"'20%': expected a share .*Write cache_fraction=0\.2\."),
        ("200%", "expected a size"),
    ):
        with pytest.raises(errors.OptionError, match=message):
            LMDBDataset(URL, cache_dir=tmp_path, cache_fraction=wrong)
    with pytest.raises(errors.OptionError, match="nosuch"):
        LMDBDataset("nosuch://bucket/train.lmdb", cache_dir=tmp_path)


def test_a_full_disk_is_an_error_that_says_so(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lmdbloader.base import system

    dataset = LMDBDataset(URL, cache_dir=tmp_path)

    def full(descriptor: int, data: bytes, at: int) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(system, "write_at", full)
    with pytest.raises(errors.DiskFullError, match="disk full"):
        dataset[0]


def have_free(patch: pytest.MonkeyPatch, nbytes: int, total: int = 2**40) -> None:
    patch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(total=total, free=nbytes))


def test_a_whole_copy_needs_its_own_size_and_little_more(
    server: Server, local: LMDBDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nbytes = (Path(local.path) / "data.mdb").stat().st_size
    have_free(monkeypatch, nbytes - MIB // 2)
    with pytest.raises(errors.DiskFullError) as caught:
        LMDBDataset(URL, cache_dir=tmp_path / "small")
    found = re.search(r"needs ([\d.]+) MiB, and ([\d.]+) MiB are free: ([\d.]+) MiB are missing\.", str(caught.value))
    assert found is not None
    needed, free, missing = map(float, found.groups())
    assert needed - free == pytest.approx(missing, abs=0.02) and 1.5 <= missing < 1.6
    have_free(monkeypatch, nbytes + 2 * MIB)
    assert same(LMDBDataset(URL, cache_dir=tmp_path / "right")[0], local[0])
    have_free(monkeypatch, 0, total=0)  # unknown
    assert same(LMDBDataset(URL, cache_dir=tmp_path / "unknown")[0], local[0])


@pytest.mark.parametrize("fraction", [0.0, 0.25])
def test_what_is_not_kept_needs_space_too(
    server: Server, local: LMDBDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fraction: float
) -> None:
    monkeypatch.setattr("lmdbloader.store.remote.opening.SPARE_NBYTES", 2 * MIB)
    kept = int((Path(local.path) / "data.mdb").stat().st_size * fraction)
    have_free(monkeypatch, kept + 2 * MIB)
    said = r"2 MiB of them for what is read and not kept, .*: 1(\.\d+)? MiB are missing\. Free .* may need [789]\."
    with pytest.raises(errors.DiskFullError, match=said):
        LMDBDataset(URL, cache_dir=tmp_path, cache_fraction=fraction)
    have_free(monkeypatch, kept + 4 * MIB)
    assert same(LMDBDataset(URL, cache_dir=tmp_path, cache_fraction=fraction)[0], local[0])


def test_the_fraction_that_is_advised_leaves_space_for_any_order(
    server: Server, local: LMDBDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmdbloader.store.remote.opening.SPARE_NBYTES", MIB)
    monkeypatch.setattr("lmdbloader.store.remote.opening._STREAMED_NBYTES", 2 * MIB)
    nbytes = (Path(local.path) / "data.mdb").stat().st_size
    have_free(monkeypatch, 5 * MIB)
    with pytest.raises(errors.DiskFullError, match=r"Keep a fraction of it, cache_fraction=0\.\d\d;") as caught:
        LMDBDataset(URL, cache_dir=tmp_path / "a")
    share = float(str(caught.value).split("cache_fraction=")[1][:4])
    assert 1.8 * MIB < share * nbytes <= 2 * MIB
    assert same(LMDBDataset(URL, cache_dir=tmp_path / "b", cache_fraction=share)[0], local[0])


def test_a_fetcher_that_is_killed_leaves_its_pieces_to_others(
    server: Server, local: LMDBDataset, tmp_path: Path
) -> None:
    code = f"import lmdbloader; lmdbloader.LMDBDataset({URL!r}, cache_dir={str(tmp_path)!r})[0]"
    server.fault = lambda number, start: "hang" if number == 0 else ""
    with subprocess.Popen([sys.executable, "-c", code]) as child:
        until = time.monotonic() + 60
        while not server.num_data and time.monotonic() < until:
            time.sleep(0.01)
        child.send_signal(signal.SIGKILL)
    assert same(LMDBDataset(URL, cache_dir=tmp_path)[0], local[0])


def test_pieces_are_checked_after_the_machine_was_started_again(
    server: Server, local: LMDBDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lmdbloader.base import system

    dataset = LMDBDataset(URL, cache_dir=tmp_path)
    assert labels(Loader(dataset, 50)) != []
    del dataset
    before = len(server.ranges())
    (pieces,) = tmp_path.glob("*/data.pieces")
    with open(pieces, "r+b") as file:  # as if the power had failed
        file.seek(2 * MIB)
        file.write(bytes(MIB))
    monkeypatch.setattr(system, "boot_id", lambda: "another")
    dataset = LMDBDataset(URL, cache_dir=tmp_path)
    images = torch.cat([b.image for b in Loader(dataset, 50, order="sequential", verify=False)])
    assert torch.equal(images, torch.cat([b.image for b in Loader(local, 50, order="sequential")]))
    assert server.ranges()[before:] == [(2 * MIB, 3 * MIB - 1)]


@pytest.mark.parametrize("protocol", ["memory", "file", "http"])
def test_other_services_work_alike(server: Server, local: LMDBDataset, tmp_path: Path, protocol: str) -> None:
    if protocol == "memory":
        fsspec.filesystem("memory").pipe({f"/remote/{key}": data for key, data in server.objects.items()})
    url = {"memory": "memory://remote/train.lmdb", "file": f"file://{local.path}",
           "http": f"{server.url}/bucket/train.lmdb"}[protocol]  # fmt: skip
    dataset = LMDBDataset(url, cache_dir=tmp_path)
    pairs = zip(Loader(dataset, 50, seed=5), Loader(local, 50, seed=5), strict=True)
    assert all(torch.equal(a.image, b.image) for a, b in pairs)
    with pytest.raises(errors.NotFoundError):
        LMDBDataset(url + "x", cache_dir=tmp_path)


def test_requests_are_many_at_once_and_few_in_all(server: Server, tmp_path: Path) -> None:
    server.delay = 0.5  # longer than a slow machine takes to make a request
    dataset = LMDBDataset(URL, cache_dir=tmp_path)
    assert len(labels(Loader(dataset, 50, order="quasi_random"))) == NUM_SAMPLES
    assert server.most_open >= 3
    assert len(server.ranges()) <= 1.1 * -(-len(server.objects["train.lmdb/data.mdb"]) // MIB)
    assert np.isclose(cached_nbytes(tmp_path), len(server.objects["train.lmdb/data.mdb"]), atol=MIB)


@pytest.mark.parametrize("fraction", [1.0, 0.2])
def test_a_mix_reads_urls_in_windows(server: Server, local: LMDBDataset, tmp_path: Path, fraction: float) -> None:
    server.objects.update(objects_of(write_dataset(tmp_path / "two.lmdb", seed=1, num_samples=200), "two.lmdb"))
    two = LMDBDataset(tmp_path / "two.lmdb")
    at_urls = [LMDBDataset(url, cache_dir=tmp_path, cache_fraction=fraction) for url in (URL, "s3://bucket/two.lmdb")]
    found, expected = (
        Loader(lmdbloader.mix(datasets, [0.5, 0.3, 0.2]), 32, order="quasi_random", seed=3)
        for datasets in ([*at_urls, local], [local, two, local])
    )
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one.image, other.image)
        assert one.caption == other.caption


def test_a_cache_folder_that_cannot_be_written_to_is_named(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.OptionError, match=r"cannot be cached there: .*file: .* Choose another one"):
        LMDBDataset(URL, cache_dir=tmp_path / "file")
    LMDBDataset(URL, cache_dir=tmp_path / "cache")
    (pieces,) = (tmp_path / "cache").glob("*/data.pieces")
    pieces.unlink()
    pieces.mkdir()
    with pytest.raises(errors.OptionError, match=r"data\.pieces: .* Choose another one"):
        LMDBDataset(URL, cache_dir=tmp_path / "cache")


@pytest.mark.parametrize("damage", ["flipped", "gone"])
def test_an_index_that_the_disk_changed_is_fetched_again(
    server: Server, local: LMDBDataset, tmp_path: Path, damage: str
) -> None:
    LMDBDataset(URL, cache_dir=tmp_path)
    (index,) = tmp_path.glob("*/index.arrow")
    whole = index.read_bytes()
    changed = bytearray(whole)
    changed[len(changed) // 2] ^= 0xFF
    index.write_bytes(changed)
    if damage == "gone":
        index.unlink()
    dataset = LMDBDataset(URL, cache_dir=tmp_path)
    assert all(same(dataset[i], local[i]) for i in (0, 250, -1))
    assert index.read_bytes() == whole


def test_pieces_that_were_deleted_alone_are_fetched_again(server: Server, local: LMDBDataset, tmp_path: Path) -> None:
    dataset = LMDBDataset(URL, cache_dir=tmp_path)
    assert len(labels(Loader(dataset, 50))) == NUM_SAMPLES
    del dataset
    (pieces,) = tmp_path.glob("*/data.pieces")
    pieces.unlink()
    dataset = LMDBDataset(URL, cache_dir=tmp_path)
    for found, expected in zip(Loader(dataset, 50, verify=False), Loader(local, 50), strict=True):
        assert torch.equal(found.image, expected.image)


def test_what_is_made_of_a_url_has_its_name(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    (tmp_path / "photos").mkdir()
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / "photos" / "a.png")
    lmdbloader.convert(tmp_path / "photos", tmp_path / "own.lmdb", workers=1)
    server.objects.update(objects_of(tmp_path / "own.lmdb", "photos.lmdb"))
    dataset = LMDBDataset("s3://bucket/photos.lmdb", cache_dir=tmp_path / "cache")
    lmdbloader.merge([dataset, tmp_path / "own.lmdb"], tmp_path / "merged", prefix_sources=True)
    merged = LMDBDataset(tmp_path / "merged").reader
    assert [merged.source(row) for row in range(2)] == ["photos/a.png", "own/a.png"]
    lmdbloader.extract("s3://bucket/photos.lmdb", tmp_path / "files")
    assert '"dataset": "photos.lmdb"' in (tmp_path / "files" / "extracted.json").read_text()


def test_a_folder_of_the_cache_is_no_dataset(server: Server, tmp_path: Path) -> None:
    LMDBDataset(URL, cache_dir=tmp_path)
    (folder,) = tmp_path.iterdir()
    with pytest.raises(errors.FormatError, match=r"is the cache of a dataset at a URL.*Open the URL"):
        LMDBDataset(folder)


def test_subsets_and_files_are_made_from_a_url(server: Server, local: LMDBDataset, tmp_path: Path) -> None:
    done = subset(LMDBDataset(URL, cache_dir=tmp_path / "cache")[5:9], tmp_path / "few.lmdb")
    assert done.num_samples == 4
    assert all(same(a, local[5 + i]) for i, a in enumerate(LMDBDataset(tmp_path / "few.lmdb")))
