"""Folders of the cache: a dataset that is cached as a whole opens without its server, and nothing else does."""

from __future__ import annotations

import io
import json
import pickle
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from remote_store import VARIABLES, Faulty, Server, objects_of, same, serving, write_dataset, write_parts

import lmdbloader
from lmdbloader import LMDBDataset, Loader, errors
from lmdbloader.store.remote import service as service_module

URL = "s3://bucket/train.lmdb"
NUM_SAMPLES = 100


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> LMDBDataset:
    folder = tmp_path_factory.mktemp("remote")
    return LMDBDataset(write_dataset(folder / "train.lmdb", num_samples=NUM_SAMPLES))


@pytest.fixture
def server(local: LMDBDataset) -> Iterator[Server]:
    with serving(objects_of(Path(local.path))) as found:
        yield found


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up after a short time, and sooner still where a request is brief."""
    monkeypatch.setattr(service_module, "_RETRY_SECONDS", 0.3)
    monkeypatch.setattr(service_module, "_BRIEF_RETRY_SECONDS", 0.05)
    monkeypatch.setattr(service_module, "_FIRST_PAUSE_SECONDS", 0.02)


@pytest.fixture
def outage(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return what goes wrong with every request, as "on": nothing at first."""
    answer, state = Faulty._answer, {"on": ""}

    def failing(self: Any) -> None:
        if state["on"] in ("503", "403"):
            self._error(int(state["on"]), {"503": "SlowDown", "403": "AccessDenied"}[state["on"]])
        elif state["on"]:
            if state["on"] == "hangs":
                time.sleep(0.8)
            self.close_connection = True  # as a server that is going down
        else:
            answer(self)

    monkeypatch.setattr(Faulty, "_answer", failing)
    return state


def read_all(dataset: LMDBDataset) -> torch.Tensor:
    return torch.cat([batch.image for batch in Loader(dataset, 7, order="sequential")])


@pytest.mark.parametrize("how", ["503", "closed", "hangs"])
def test_a_dataset_that_is_cached_as_a_whole_opens_without_its_server(
    server: Server, local: LMDBDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outage: dict[str, str],
    how: str,
) -> None:  # fmt: skip
    expected = read_all(LMDBDataset(URL, cache_dir=tmp_path))
    (folder,) = tmp_path.iterdir()
    outage["on"] = how
    if how == "hangs":
        monkeypatch.setattr(service_module, "_BRIEF_SECONDS", 0.2)
    with pytest.warns(UserWarning, match=r"the server was not reached.*complete copy") as told:
        dataset = LMDBDataset(URL, cache_dir=tmp_path)
    (message,) = [str(warning.message) for warning in told]
    etag = f'ETag "{hash(server.objects["train.lmdb/data.mdb"]) & 0xFFFFFFFF:08x}"'
    for part in (URL, str(folder), etag, local.reader.manifest.manifest_digest):
        assert part in message
    assert torch.equal(read_all(dataset), expected)
    assert same(dataset[3], local[3])
    assert pickle.loads(pickle.dumps(dataset))[0].label == 0  # workers ask nobody, and do not warn
    outage["on"] = ""
    monkeypatch.setattr(service_module, "_BRIEF_SECONDS", 20)
    assert len(LMDBDataset(URL, cache_dir=tmp_path)) == NUM_SAMPLES  # and no warning


def test_a_server_that_is_gone_is_not_waited_for(
    local: LMDBDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(objects_of(Path(local.path))) as server:
        at_http = f"{server.url}/bucket/train.lmdb"
        expected = [read_all(LMDBDataset(url, cache_dir=tmp_path)) for url in (URL, at_http)]
    for name, value in {**VARIABLES, "AWS_ENDPOINT_URL": server.url}.items():
        monkeypatch.setenv(name, value)
    for url, images in zip((URL, at_http), expected, strict=True):
        with pytest.warns(UserWarning, match="the server was not reached"):
            dataset = LMDBDataset(url, cache_dir=tmp_path)
        assert torch.equal(read_all(dataset), images)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")  # it may have another dataset
    with pytest.raises(errors.DiskError, match="cannot be read"):
        LMDBDataset(URL, cache_dir=tmp_path)


def test_sets_open_without_their_server_too(tmp_path: Path, outage: dict[str, str]) -> None:
    parts = write_parts(tmp_path / "train.lmdb", [5, 3])
    with serving(objects_of(parts)):
        expected = read_all(LMDBDataset(URL, cache_dir=tmp_path / "cache"))
        outage["on"] = "closed"
        with pytest.warns(UserWarning, match="the server was not reached"):
            dataset = LMDBDataset(URL, cache_dir=tmp_path / "cache", cache_fraction=0.5)
        for _ in range(2):
            assert torch.equal(read_all(dataset), expected)


@pytest.mark.parametrize("lack", ["pieces", "states", "index", "data", "name", "fraction"])
def test_what_is_not_cached_as_a_whole_is_refused(
    server: Server, tmp_path: Path, outage: dict[str, str], lack: str
) -> None:
    dataset = LMDBDataset(URL, cache_dir=tmp_path, cache_fraction=0.5 if lack == "fraction" else 1.0)
    (folder,) = tmp_path.iterdir()
    assert dataset[0].label == 0
    if lack != "pieces":
        read_all(dataset)
    del dataset
    if lack == "states":
        (folder / "states").unlink()
    if lack == "data":
        (folder / "data.pieces").unlink()
    if lack == "index":
        (folder / "index.arrow").write_bytes(b"")
    if lack == "name":  # of another version than it says
        facts = json.loads((folder / "remote.json").read_text())
        (folder / "remote.json").write_text(json.dumps(facts | {"version": 'ETag "0"'}))
    outage["on"] = "503"
    with pytest.raises(errors.DiskError, match=r"cannot be read: .*It was tried"):
        LMDBDataset(URL, cache_dir=tmp_path)


def test_no_password_of_a_url_is_kept_on_the_disk(
    server: Server, local: LMDBDataset, tmp_path: Path, outage: dict[str, str]
) -> None:
    url = f"{server.url}/bucket/train.lmdb".replace("://", "://me:hidden@")
    read_all(LMDBDataset(url, cache_dir=tmp_path))
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"hidden" in path.read_bytes()]
    outage["on"] = "503"
    with pytest.warns(UserWarning, match="copy in .* is used"):
        assert same(LMDBDataset(url, cache_dir=tmp_path)[5], local[5])


def test_a_denied_access_is_not_a_server_that_is_away(server: Server, tmp_path: Path, outage: dict[str, str]) -> None:
    read_all(LMDBDataset(URL, cache_dir=tmp_path))
    outage["on"] = "403"
    with pytest.raises(errors.DiskError, match="access denied"):
        LMDBDataset(URL, cache_dir=tmp_path)


def test_a_version_that_the_server_replaced_is_not_used_again(
    server: Server, local: LMDBDataset, tmp_path: Path, outage: dict[str, str]
) -> None:
    cache = tmp_path / "cache"
    read_all(LMDBDataset(URL, cache_dir=cache))
    other = write_dataset(tmp_path / "other.lmdb", seed=1, num_samples=NUM_SAMPLES)
    server.objects.update(objects_of(other))
    assert LMDBDataset(URL, cache_dir=cache)[0].label == 0
    outage["on"] = "503"
    with pytest.raises(errors.DiskError, match="cannot be read"):  # the first version is complete, and is not this one
        LMDBDataset(URL, cache_dir=cache)
    outage["on"] = ""
    server.objects.update(objects_of(Path(local.path)))
    assert same(LMDBDataset(URL, cache_dir=cache)[0], local[0])
    outage["on"] = "503"
    with pytest.warns(UserWarning, match="the server was not reached"):  # it has said that the first one is back
        assert same(LMDBDataset(URL, cache_dir=cache)[0], local[0])


def test_a_replacement_is_an_error_when_the_server_is_back(
    server: Server, local: LMDBDataset, tmp_path: Path, outage: dict[str, str]
) -> None:
    cache = tmp_path / "cache"
    read_all(LMDBDataset(URL, cache_dir=cache))
    (pieces,) = cache.glob("*/data.pieces")
    with open(pieces, "r+b") as file:  # the disk damages a piece, so that it is fetched
        file.seek(int(local.reader.index.arrays["image.offset"][9]))
        file.write(bytes(1000))
    outage["on"] = "503"
    with pytest.warns(UserWarning, match="the server was not reached"):
        dataset = LMDBDataset(URL, cache_dir=cache)
    server.objects.update(objects_of(write_dataset(tmp_path / "other.lmdb", seed=1, num_samples=NUM_SAMPLES)))
    outage["on"] = ""
    with pytest.raises(errors.CorruptError, match="was replaced since it was opened"):
        read_all(dataset)
    assert same(dataset[0], local[0])
    fresh = LMDBDataset(URL, cache_dir=cache)
    assert same(fresh[9], LMDBDataset(tmp_path / "other.lmdb")[9])


@pytest.mark.parametrize(
    "url", ["S3://bucket/train.lmdb", f"{URL}/manifest.json", "S3://bucket/train.lmdb/manifest.json/"]
)
def test_other_spellings_of_a_url_are_the_same_dataset(
    server: Server, local: LMDBDataset, tmp_path: Path, url: str
) -> None:
    LMDBDataset(URL, cache_dir=tmp_path / "cache")
    dataset = LMDBDataset(url, cache_dir=tmp_path / "cache")
    assert (dataset.path, dataset.reader.name) == (URL, "train.lmdb")
    assert same(dataset[3], local[3])
    assert len(list((tmp_path / "cache").iterdir())) == 1
    assert lmdbloader.stage(url, tmp_path) == tmp_path / "train.lmdb"


def test_images_are_found_at_a_url_in_capitals(tmp_path: Path) -> None:
    data = io.BytesIO()
    Image.new("RGB", (8, 8)).save(data, "png")
    with serving({"photos/a.png": data.getvalue()}):
        lmdbloader.convert("S3://bucket/photos", tmp_path / "out.lmdb", workers=1)
    assert len(LMDBDataset(tmp_path / "out.lmdb")) == 1
