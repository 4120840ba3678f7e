"""`lmdbloader.convert` from LMDBs, tars and URLs: content, refusals, and datasets that are there already."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
from PIL import Image
from s3_server import NoRanges, serve
from tars import png, save_tar, tar_bytes

import lmdbloader
from lmdbloader.errors import ImageError, SourceError
from lmdbloader.images.decode import decode_image
from lmdbloader.images.downscale import downscale


def convert(src: Any, out: Path, **options: Any) -> lmdbloader.conversion.Report:
    return lmdbloader.convert(src, out, **{"workers": 1, **options})


def images(path: Path, field: str = "image") -> list[Any]:
    return [np.moveaxis(getattr(sample, field).numpy(), 0, 2) for sample in lmdbloader.LMDBDataset(path)]


def column(path: Path, name: str) -> list[Any]:
    return lmdbloader.LMDBDataset(path).table[name].to_pylist()


def files_of(path: Path) -> dict[str, bytes]:
    return {name: (path / name).read_bytes() for name in ("data.mdb", "index.arrow", "manifest.json")}


def save_lmdb(path: Path, entries: dict[bytes, bytes]) -> Path:
    with lmdb.open(str(path), map_size=2**26) as env, env.begin(write=True) as transaction:
        for key, value in entries.items():
            transaction.put(key, value)
    return path


SAMPLES = [
    ("a.png", png(0, 20)),
    ("a.cls", b"7\n"),
    ("a.json", b'{"b": [1, null]}'),
    ("a.txt", "ä word".encode()),
    ("b.cls", b"-2"),
    ("b.png", png(1, 31)),
    ("b.json", b"[]"),
    ("b.txt", b""),
]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.lmdb"


def test_a_tar_with_labels_json_and_text(tmp_path: Path, out: Path) -> None:
    report = convert(save_tar(tmp_path / "a.tar", *SAMPLES), out)
    assert (report.layout, report.num_samples) == ("tar", 2)
    ds = lmdbloader.LMDBDataset(out)
    assert [(s.label, s.json, s.text) for s in ds] == [(7, {"b": [1, None]}, "ä word"), (-2, [], "")]
    for found, data in zip(images(out), (png(0, 20), png(1, 31)), strict=True):
        np.testing.assert_array_equal(found, decode_image(data))
    assert column(out, "source") == ["a.png", "b.png"]
    assert lmdbloader.verify(out).is_sound


def test_patches_and_scales_of_images_in_a_tar(tmp_path: Path, out: Path) -> None:
    convert(save_tar(tmp_path / "a.tar", *SAMPLES), out, patch_size=10, scale=2, bicubic="pillow")
    assert column(out, "source") == ["a.png"] * 4 + ["b.png"] * 9
    assert [s.label for s in lmdbloader.LMDBDataset(out)] == [7] * 4 + [-2] * 9
    assert [s.json for s in lmdbloader.LMDBDataset(out)] == [{"b": [1, None]}] * 4 + [[]] * 9
    low = downscale(decode_image(png(0, 20)), 2, method="pillow")
    np.testing.assert_array_equal(images(out, "lr")[3], low[5:, 5:])


@pytest.mark.parametrize(
    ("member", "reason"),
    [
        (("bad.cls", b"seven"), "its label: b'seven' is not a whole number of 64 bits"),
        (("bad.cls", b"9" * 19), "its label: .* is not a whole number"),
        (("bad.json", b"{'a': 1}"), "its json: Expecting property name"),
        (("bad.json", b"[NaN]"), "its json: NaN is not JSON"),
        (("bad.json", b"[1e999]"), "its json: Out of range"),
        (("bad.json", b"[" * 200_000), "its json: .*recursion"),
        (("bad.txt", b"\xff"), "its text: is not UTF-8"),
        (("bad.png", b"no image"), "not an image of a supported kind"),
        (("other.png", png(3)), "has no label, which other samples have"),
    ],
)
def test_a_sample_that_does_not_fit_is_named(tmp_path: Path, out: Path, member: Any, reason: str) -> None:
    key = member[0].partition(".")[0]
    plain = [(f"{key}.png", png(2)), (f"{key}.cls", b"1"), (f"{key}.json", b"1"), (f"{key}.txt", b"")]
    others = [] if key == "other" else [entry for entry in plain if entry[0] != member[0]]
    path = save_tar(tmp_path / "a.tar", *SAMPLES, *others, member)
    with pytest.raises(ImageError, match=rf"^{key}\.png: {reason}"):
        convert(path, out)
    assert not out.exists()
    report = convert(path, out, on_error="skip")
    assert [name for name, _ in report.skipped] == [f"{key}.png"]
    assert report.num_samples == 2


def test_an_lmdb_of_images_in_the_order_of_its_numbers(tmp_path: Path, out: Path) -> None:
    src = save_lmdb(tmp_path / "a.lmdb", {b"%d" % i: png(i) for i in range(12)} | {b"__len__": pickle.dumps(12)})
    report = convert(src, out)
    assert (report.layout, report.num_samples) == ("lmdb", 12)
    assert report.ignored[0][0] == "__len__"
    for i, found in enumerate(images(out)):
        np.testing.assert_array_equal(found, decode_image(png(i)))
    assert convert(src, out, layout="lmdb").was_finished


@pytest.mark.parametrize("kind", ["lmdb", "tar"])
def test_pairs_from_two_lmdbs_or_tars(tmp_path: Path, out: Path, photos: Path, kind: str) -> None:
    high, low = {}, {}
    for path in sorted(photos.iterdir())[:2]:
        pixels = decode_image(path.read_bytes())
        Image.fromarray(downscale(pixels, 2)).save(tmp_path / "lr.png")
        high[path.stem.encode()], low[path.stem.encode()] = path.read_bytes(), (tmp_path / "lr.png").read_bytes()
    if kind == "lmdb":
        places = save_lmdb(tmp_path / "hr.lmdb", high), save_lmdb(tmp_path / "lr.lmdb", low)
    else:
        large, small = ([(f"{k.decode()}.png", v) for k, v in half.items()] for half in (high, low))
        places = (
            save_tar(tmp_path / "hr.tar", *large),
            save_tar(tmp_path / "lr.tar", *small, (small[-1][0][:-3] + "cls", b"1")),
        )
    report = convert(None, out, hr=places[0], lr=places[1], workers=2)
    assert (report.layout, report.num_samples) == ("pairs", 2)
    assert ("label" in dict(report.ignored)) == (kind == "tar")
    np.testing.assert_array_equal(images(out, "hr")[1], decode_image(high[sorted(high)[1]]))
    np.testing.assert_array_equal(images(out, "lr")[1], decode_image(low[sorted(low)[1]]))


@pytest.mark.parametrize("kind", ["tar", "lmdb"])
def test_a_changed_container_is_noticed_and_an_unchanged_one_left(tmp_path: Path, out: Path, kind: str) -> None:
    def make(*values: int) -> Path:
        if kind == "tar":
            return save_tar(tmp_path / "src.tar", *[(f"{i}.ppm", plain(v)) for i, v in enumerate(values)])
        return save_lmdb(tmp_path / "src", {b"%d" % i: plain(v) for i, v in enumerate(values)})

    def plain(value: int) -> bytes:
        return b"P6 2 2 255 " + bytes([value] * 12)

    src = make(1, 2)
    first = convert(src, out)
    assert not first.was_finished
    assert convert(src, out).was_finished
    later = time.time() + 5
    file = src if kind == "tar" else src / "data.mdb"
    os.utime(file, (later, later))
    assert convert(src, out).was_finished  # newer, but of the same content
    make(1, 3)
    os.utime(file, (later, later))
    with pytest.raises(lmdbloader.errors.DestinationError, match="made from other inputs"):
        convert(src, out)


@pytest.fixture
def memory() -> Iterator[Any]:
    fsspec = pytest.importorskip("fsspec")
    filesystem = fsspec.filesystem("memory")
    filesystem.store.clear()  # other modules of this process write there, too
    filesystem.pipe({f"/bucket/{c}/{i}.png": png(i, 200) for c in ("cat", "dog") for i in range(20)})
    filesystem.pipe("/shards/a.tar", tar_bytes(SAMPLES))
    yield filesystem
    filesystem.store.clear()
    filesystem.pseudo_dirs[:] = [""]


def test_classes_from_memory_which_workers_do_not_see(tmp_path: Path, out: Path, memory: Any) -> None:
    report = convert("memory://bucket", out, workers=2)
    assert (report.layout, report.num_samples) == ("classes", 40)
    assert lmdbloader.LMDBDataset(out).classes == ("cat", "dog")
    local = tmp_path / "local"
    memory.get("/bucket", str(local), recursive=True)
    convert(local, tmp_path / "again.lmdb")
    assert files_of(out) == files_of(tmp_path / "again.lmdb")
    assert convert("memory://bucket", out).was_finished
    # The same files elsewhere are the same inputs.
    assert convert(local, out).was_finished
    memory.pipe("/bucket/cat/3.png", png(4, 200))  # of another size
    with pytest.raises(lmdbloader.errors.DestinationError, match="made from other inputs"):
        convert("memory://bucket", out)


def test_worker_processes_read_from_s3(tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    s3fs = pytest.importorskip("s3fs", reason="s3fs is not installed: pip install 'lmdbloader[remote]'")
    objects = {f"set/{c}/{i}.png": png(i, 250) for c in ("cat", "dog") for i in range(10)}
    objects["shards/a.tar"] = tar_bytes(SAMPLES)
    with serve({"bucket": objects}) as (url, requests):
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
            monkeypatch.setenv(name, "x")
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        s3fs.S3FileSystem.clear_instance_cache()
        report = convert("s3://bucket/set", out, workers=2)
        assert (report.layout, report.num_samples) == ("classes", 20)
        for i, found in enumerate(images(out)):
            np.testing.assert_array_equal(found, decode_image(png(i % 10, 250)))
        del requests[:]
        assert convert("s3://bucket/set", out).was_finished
        assert not [r for r in requests if r.startswith("GET /bucket/set")]  # nothing is newer
        convert("s3://bucket/shards/a.tar", tmp_path / "tar.lmdb")
        assert [s.label for s in lmdbloader.LMDBDataset(tmp_path / "tar.lmdb")] == [7, -2]
        with pytest.raises(SourceError, match=r"s3://nowhere/set: nothing is there"):
            convert("s3://nowhere/set", tmp_path / "none.lmdb")
        assert not (tmp_path / "none.lmdb").exists()
        objects["set/dog/9.png"] = b"no image at all"
        with pytest.raises(ImageError, match=r"^dog/9\.png: not an image"):
            convert("s3://bucket/set", tmp_path / "bad.lmdb")
        s3fs.S3FileSystem.clear_instance_cache()


def test_the_content_is_compared_if_times_of_change_are_unknown(out: Path) -> None:
    pytest.importorskip("aiohttp", reason="aiohttp is not installed: pip install 'lmdbloader[remote]'")
    files = {"set/1.ppm": b"P6 2 2 255 " + bytes(12), "set/2.ppm": b"P6 2 2 255 " + bytes(12)}
    with serve({"files": files}, NoRanges) as (url, requests):
        assert convert(f"{url}/set", out).num_samples == 2
        del requests[:]
        assert convert(f"{url}/set", out).was_finished
        assert "GET /set/2.ppm" in requests
        files["set/2.ppm"] = b"P6 2 2 255 " + bytes(11) + b"x"
        with pytest.raises(lmdbloader.errors.DestinationError, match="made from other inputs"):
            convert(f"{url}/set", out)
