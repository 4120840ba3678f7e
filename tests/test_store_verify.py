"""verify: finds planted faults of every kind, names the samples, and reports a sound dataset as sound."""

from __future__ import annotations

import dataclasses
import errno
import importlib
import json
import multiprocessing
import os
import re
import shutil
import struct
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pyarrow as pa
import pytest
from damage import flip, index_batch, put_index, with_column

import lmdbloader
from lmdbloader.base import system
from lmdbloader.errors import CorruptError, FormatError
from lmdbloader.format.codecs import checksum, encode_many
from lmdbloader.format.digests import DIGESTS, DigestName
from lmdbloader.format.layout import MANIFEST_FILE, make_field, record_key
from lmdbloader.format.manifest import _signed
from lmdbloader.store import Chunk, Reader, encode_blocks, open_writer, read_manifest, repair, verify

COUNT = 120
PAGE = 4096


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset with sources, made of several records."""
    path = tmp_path_factory.mktemp("verify") / "d"
    fields = [make_field("blob", "bytes", "lz4"), make_field("mask", "array"), make_field("n", "int")]
    rng = np.random.default_rng(0)
    with open_writer(path, fields, with_source=True, map_nbytes=2**22) as writer:
        for first in range(0, COUNT, 40):
            sizes = rng.integers(9_000, 12_000, 40)
            blobs = np.concatenate([rng.integers(0, 40, int(n), np.uint8) for n in sizes])
            payloads = {
                "blob": encode_many(blobs, sizes, "lz4"),
                "mask": encode_many(np.zeros(40 * 8, np.uint8), np.full(40, 8), "raw"),
            }
            columns: dict[str, Any] = {
                "source": [f"photo{i // 7}.png" for i in range(first, first + 40)],
                "top": np.arange(40),
                "left": np.arange(40),
                "mask.type": ["float32[2]"] * 40,
                "n": np.arange(first, first + 40),
            }
            chunk = Chunk(40, payloads, columns)
            writer.add(chunk, encode_blocks(chunk, fields, with_source=True))
        writer.finish(classes={}, made_by={})
    return path


@pytest.fixture
def path(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "d"))


def write_at(path: Path, at: int, data: bytes) -> None:
    with open(path / "data.mdb", "r+b") as file:
        file.seek(at)
        file.write(data)


FILES = {"data": "data.mdb", "index": "index.arrow"}


def sign(path: Path, **changes: Any) -> None:
    """Update the digests in the manifest to the current files."""
    changes.setdefault("data_digest", "")
    changes.setdefault("index_digest", f"xxh64:{checksum((path / 'index.arrow').read_bytes()):016x}")
    nbytes = {f"{name}_nbytes": (path / file).stat().st_size for name, file in FILES.items()}
    sizes = {**read_manifest(path).sizes, **nbytes}
    manifest = dataclasses.replace(read_manifest(path), sizes=sizes, **changes)
    (path / MANIFEST_FILE).write_bytes(manifest.to_json())


def test_a_sound_dataset_is_sound(written: Path) -> None:
    counts: list[int] = []
    found = verify(written, progress=counts.append)
    assert found.is_sound
    assert (found.num_samples, found.problems, found.damaged) == (COUNT, (), ())
    assert sum(counts) == COUNT


def test_verify_leaves_the_dataset_as_it_was(path: Path) -> None:
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    verify(path)
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before


def test_every_damaged_sample_is_named_with_its_source(path: Path) -> None:
    a = Reader(path).index.arrays
    for row in (3, 4, 77):
        flip(path, int(a["blob.offset"][row]) + 100)
    flip(path, int(a["mask.offset"][COUNT - 1]))
    found = verify(path)
    assert not found.is_sound
    assert [(d.sample, d.field, d.source) for d in found.damaged] == [
        (3, "blob", "photo0.png"),
        (4, "blob", "photo0.png"),
        (77, "blob", "photo11.png"),
        (119, "mask", "photo17.png"),
    ]
    assert all("checksum" in d.reason for d in found.damaged)
    assert found.files == ("data.mdb",)
    assert f"`lmdbloader repair {path} OUT` writes the samples that are sound" in found.advice
    sign(path)  # as in a dataset of before there was a digest of the whole file
    found = verify(path)
    assert [d.sample for d in found.damaged] == [3, 4, 77, 119]
    assert any("checksum" in problem for problem in found.problems)  # of the records that hold them


@pytest.mark.parametrize("name", DIGESTS)
def test_any_flipped_byte_of_any_file_is_found_with_every_algorithm(tmp_path: Path, name: DigestName) -> None:
    path = tmp_path / "d"
    noise = np.random.default_rng(0).integers(0, 256, (40, 5_000), np.uint8)
    lmdbloader.write(({"blob": row.tobytes(), "n": i} for i, row in enumerate(noise)), path, digest=name)
    assert verify(path).is_sound
    for file in ("data.mdb", "index.arrow", MANIFEST_FILE):
        content = (path / file).read_bytes()
        places = np.random.default_rng(len(content)).integers(0, len(content), 12).tolist()
        if file == MANIFEST_FILE:  # the keys that describe the rest
            places += [content.index(key) + len(key) for key in (b'"format_version": ', b'"manifest_digest": "')]
        for at in places:
            flip(path, at, file)
            found = verify(path)
            assert file in found.files, at
            assert found.advice
            flip(path, at, file)
    assert verify(path).is_sound
    last = (path / "data.mdb").stat().st_size - 1
    flip(path, last)
    prefix = name + ":"
    assert verify(path).problems[0].startswith(f"data.mdb: its digest is {prefix}")
    flip(path, last)
    flip(path, 100, "index.arrow")
    assert verify(path).problems[0].startswith(f"index.arrow: its digest is {prefix}")


@pytest.mark.parametrize("name", DIGESTS)
def test_samples_that_are_not_those_of_the_manifest_are_found_with_every_algorithm(
    tmp_path: Path, name: DigestName
) -> None:
    lmdbloader.write(({"n": i} for i in range(9)), tmp_path / "d", digest=name)
    manifest = read_manifest(tmp_path / "d")
    other = manifest.content_digest[:-1] + ("1" if manifest.content_digest.endswith("0") else "0")
    (tmp_path / "d" / MANIFEST_FILE).write_bytes(dataclasses.replace(manifest, content_digest=other).to_json())
    assert verify(tmp_path / "d").problems == (f"the content digest is {manifest.content_digest}, expected {other}",)


@pytest.mark.parametrize("name", DIGESTS)
def test_a_manifest_in_another_spelling_is_found_and_opens(tmp_path: Path, name: DigestName) -> None:
    path = tmp_path / "d"
    lmdbloader.write(({"n": i} for i in range(9)), path, digest=name)
    with open_writer(path / "x", read_manifest(path).fields, with_source=False, map_nbytes=2**20) as writer:
        made_by = {"fraction": 1e-05, "second": "a b"}
        writer.finish(classes={}, made_by=made_by, digest=name)
    path = path / "x"
    text = (path / MANIFEST_FILE).read_bytes()
    spellings = [
        text.replace(b"1e-05", b"1E-05"),
        text.replace(b"1e-05", b"0.00001"),
        text.replace(b"\n", b"\r\n"),
        text.replace(b'"num_samples": ', b'"num_samples":'),
        text.replace(b'"a b"', b'"a\\u0020b"'),
        b" " + text,
        text + b"\n",
        json.dumps(json.loads(text)).encode() + b"\n",
        json.dumps(dict(reversed(json.loads(text).items())), indent=1).encode() + b"\n",
        text.replace(b'"fraction": 1e-05,\n  "second": "a b"', b'"second": "a b",\n  "fraction": 1e-05'),
    ]
    assert verify(path).is_sound
    for spelling in spellings:
        assert spelling != text
        (path / MANIFEST_FILE).write_bytes(spelling)
        assert len(Reader(path)) == 0
        found = verify(path)
        (problem,) = found.problems
        assert problem.startswith(f"{MANIFEST_FILE}: has its original content, but other bytes: white space")
        assert found.files == (MANIFEST_FILE,) and "rebuilds manifest.json" in found.advice
        assert repair(path).replaced == (MANIFEST_FILE,)
        assert (path / MANIFEST_FILE).read_bytes() == text


@pytest.mark.parametrize("name", DIGESTS)
def test_two_values_of_a_key_are_refused_at_open_and_found(tmp_path: Path, name: DigestName) -> None:
    path = tmp_path / "d"
    lmdbloader.write(({"n": i} for i in range(9)), path, digest=name)
    text = (path / MANIFEST_FILE).read_bytes()
    for key, twice in ((b"num_samples", b'"num_samples": 7, "num_samples": 9'), (b"kind", b'"kind": 1, "kind": "int"')):
        value = b"9" if key == b"num_samples" else b'"int"'
        (path / MANIFEST_FILE).write_bytes(text.replace(b'"' + key + b'": ' + value, twice))
        with pytest.raises(FormatError, match=f"has two values of '{key.decode()}', expected one"):
            Reader(path)
        assert verify(path).files == (MANIFEST_FILE,)
        repair(path)
        assert (path / MANIFEST_FILE).read_bytes() == text


def test_a_manifest_of_a_later_release_is_not_damage(path: Path) -> None:
    body = json.loads((path / MANIFEST_FILE).read_bytes())
    body |= {"format_version": 3, "manifest_digest": "sha3_512:" + "0" * 128}
    (path / MANIFEST_FILE).write_text(json.dumps(body) + "\n")
    for act in (verify, repair, lmdbloader.LMDBDataset):
        with pytest.raises(FormatError, match=r"format version 3; this release reads 1 and 2\. Upgrade"):
            act(path)


def test_damage_to_a_record_outside_of_its_payloads_is_found(path: Path) -> None:
    first = int(Reader(path).index.arrays["blob.offset"].min())
    flip(path, first - 40)  # in the record's Arrow header
    found = verify(path)
    assert found.damaged == ()
    (problem,) = found.problems
    assert re.fullmatch(
        "data.mdb: its digest is xxh64:.*, expected xxh64:.*: it was changed after it was written", problem
    )
    sign(path)
    found = verify(path)
    assert found.damaged == ()
    assert any("checksum" in problem for problem in found.problems)


def payload_bytes(path: Path) -> np.ndarray:
    reader = Reader(path)
    mask = np.zeros(len(reader.data), bool)
    for name in ("blob", "mask"):
        columns = (reader.index.arrays[f"{name}.{part}"].tolist() for part in ("offset", "stored_nbytes"))
        for at, nbytes in zip(*columns, strict=True):
            mask[at : at + nbytes] = True
    return mask


def outcome(path: str) -> str:
    return "sound" if verify(path).is_sound else "problems"


def leaf_pages(path: Path) -> list[int]:
    """Return the numbers of the pages that hold keys: their header has their number and a branch's or a leaf's flag."""
    data = (path / "data.mdb").read_bytes()
    headers = [struct.unpack_from("<QHH", data, n * PAGE) for n in range(len(data) // PAGE)]
    return [n for n, (number, _, flags) in enumerate(headers) if n >= 2 and number == n and flags in (1, 2)]


def test_a_wiped_tree_page_is_found_and_does_not_end_the_process(path: Path) -> None:
    sound = (path / "data.mdb").read_bytes()
    pages = leaf_pages(path)
    with multiprocessing.get_context("spawn").Pool(1) as pool:  # an aborted process would fail the test, not end it
        found = 0
        for page in pages:
            for data in (bytes(PAGE), b"\xff" * PAGE, bytes(16) + sound[page * PAGE + 16 : (page + 1) * PAGE]):
                write_at(path, page * PAGE, data)
                found += pool.apply_async(outcome, (str(path),)).get(60) == "problems"
                write_at(path, page * PAGE, sound[page * PAGE : (page + 1) * PAGE])
        # A page that a later transaction freed may be wiped without loss; the tree's own may not.
        assert found >= 3
        assert pool.apply_async(outcome, (str(path),)).get(60) == "sound"


def test_wiped_meta_pages_are_found(path: Path) -> None:
    write_at(path, 0, bytes(2 * PAGE))
    assert any("data.mdb" in problem for problem in verify(path).problems)


def test_a_damaged_key_is_found(path: Path) -> None:
    data = (path / "data.mdb").read_bytes()
    with lmdb.open(str(path), readonly=True, lock=False) as env, env.begin() as transaction:
        keys = [key for key in transaction.cursor().iternext(values=False) if len(key) == 16]
    assert len(keys) > 3
    for part in (7, 12):  # the number of its first sample; its checksum
        places = find_all(data, keys[1])
        for at in places:
            flip(path, at + part, bit=1)
        assert not verify(path).is_sound
        for at in places:
            flip(path, at + part, bit=1)
    assert verify(path).is_sound


def find_all(data: bytes, part: bytes) -> list[int]:
    places, at = [], -1
    while (at := data.find(part, at + 1)) >= 0:
        places.append(at)
    return places


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("drop a record", "a record is missing"),
        ("drop the last record", "holds 80 samples, the index 120|holds .* samples, the index 120"),
        ("drop the schema", "its schema is not the one"),
        ("change the schema", "its schema is not the one"),
        ("change the progress", "progress entry does not state 120 samples"),
        ("swap a value", "checksum"),
    ],
)
def test_a_change_made_through_lmdb_is_found(path: Path, change: str, expected: str) -> None:
    with lmdb.open(str(path), map_size=2**24, lock=False) as env, env.begin(write=True) as transaction:
        keys = [key for key, _ in transaction.cursor() if len(key) == 16]
        if change == "drop a record":
            transaction.delete(keys[1])
        elif change == "drop the last record":
            transaction.delete(keys[-1])
        elif change == "drop the schema":
            transaction.delete(b"schema")
        elif change == "change the schema":
            transaction.put(b"schema", pa.schema([("x", pa.int8())]).serialize().to_pybytes())
        elif change == "change the progress":
            transaction.put(b"progress", b'{"num_samples": 1}')
        else:
            transaction.put(keys[1], transaction.get(keys[2]))
    sign(path)
    found = verify(path)
    assert any(re.search(expected, problem) for problem in found.problems), found


def test_a_record_more_than_the_index_has_is_found(path: Path) -> None:
    with lmdb.open(str(path), map_size=2**24, lock=False) as env, env.begin(write=True) as transaction:
        *_, (_, value) = ((k, v) for k, v in transaction.cursor() if len(k) == 16)
        transaction.put(record_key(COUNT, checksum(value)), value)
    sign(path)
    assert any("the index 120" in problem for problem in verify(path).problems)


@pytest.mark.parametrize("column", ["n", "top", "source", "mask.offset", "blob.checksum", "mask.type"])
def test_an_index_that_contradicts_the_records_is_found_despite_its_digest(path: Path, column: str) -> None:
    batch = index_batch(path)
    values = batch.column(column).to_pylist()
    values[5], values[50] = values[50], values[5]
    if column in ("mask.type", "top"):
        values[5] = "int64[1]" if column == "mask.type" else 999
    put_index(path, with_column(batch, column, values))
    found = verify(path)
    assert any(f"its column {column!r} differs from the index" in problem for problem in found.problems)
    if column != "mask.offset":  # the content digest is of everything but the offsets
        assert any("content digest" in problem for problem in found.problems)


def test_a_wrong_content_digest_is_found(path: Path) -> None:
    sign(path, content_digest="poly61:00")
    (problem,) = verify(path).problems
    assert "expected poly61:00" in problem


@pytest.mark.parametrize(("other", "error"), [("float32[3]", CorruptError), ("object[2]", FormatError)])
def test_an_array_of_another_size_than_its_type_is_refused(path: Path, other: str, error: type[Exception]) -> None:
    values = ["float32[2]"] * 9 + [other] + ["float32[2]"] * (COUNT - 10)
    put_index(path, with_column(index_batch(path), "mask.type", values))
    with pytest.raises(error):
        Reader(path).read_array("mask", 9)
    assert [(damage.sample, damage.field) for damage in verify(path).damaged] == [(9, "mask")]


def test_a_folder_that_is_not_a_dataset_is_refused_with_the_readers_error(path: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        verify(path / "nowhere")
    with pytest.raises(FormatError, match="not a dataset folder"):
        verify(path / "data.mdb")
    path.rename(tmp_path / "d.partial")
    with pytest.raises(FormatError, match="not finished"):
        verify(path)
    with pytest.raises(FormatError, match="unfinished"):
        verify(tmp_path / "d.partial")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FormatError, match="not a dataset"):
        verify(tmp_path / "empty")


def test_other_lmdbs_and_newer_versions_are_refused(path: Path, tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path / "theirs")) as env, env.begin(write=True) as transaction:
        transaction.put(b"key", b"value")
    with pytest.raises(FormatError, match="an LMDB that lmdbloader did not write"):
        verify(tmp_path / "theirs")
    body = json.loads((path / MANIFEST_FILE).read_bytes())
    body["format_version"] = 2
    (path / MANIFEST_FILE).write_bytes(json.dumps(body).encode())
    assert verify(path).files == (MANIFEST_FILE,)  # its digest says that the version was changed
    del body["manifest_digest"]
    (path / MANIFEST_FILE).write_bytes(_signed(body, "manifest_digest"))
    with pytest.raises(FormatError, match="Upgrade lmdbloader"):
        verify(path)


MENDS = "rebuilds {} from data.mdb"
SAVES = "writes the samples that are sound into a new dataset"


@pytest.mark.parametrize(
    ("changes", "problem", "advice"),
    [
        ({"index.arrow": "gone"}, "index.arrow: is missing", MENDS.format("index.arrow")),
        ({"index.arrow": "cut"}, "index.arrow: .* bytes, expected .*: it is cut short", MENDS.format("index.arrow")),
        ({"index.arrow": "flip"}, "index.arrow: its digest is", MENDS.format("index.arrow")),
        ({"index.arrow": "folder"}, "index.arrow: ", MENDS.format("index.arrow")),
        ({"manifest.json": "gone"}, "manifest.json: is missing", MENDS.format("manifest.json")),
        ({"manifest.json": "cut"}, "manifest.json: is not JSON", MENDS.format("manifest.json")),
        ({"manifest.json": "flip"}, "manifest.json: ", MENDS.format("manifest.json")),
        ({"manifest.json": "folder"}, "manifest.json: ", MENDS.format("manifest.json")),
        (
            {"manifest.json": "gone", "index.arrow": "gone"},
            "index.arrow: is missing",
            MENDS.format("manifest.json and index.arrow"),
        ),
        ({"data.mdb": "gone"}, "data.mdb: is missing", "Without data.mdb nothing can be repaired"),
        ({"data.mdb": "folder"}, "data.mdb: is not a regular file", "Without data.mdb nothing can be repaired"),
        ({"data.mdb": "cut"}, "data.mdb: .* bytes, expected .*: it is cut short", SAVES),
        ({"data.mdb": "flip"}, "data.mdb: its digest is", SAVES),
        ({"data.mdb": "flip", "index.arrow": "gone"}, "data.mdb: its digest is", SAVES),
        ({"data.mdb": "cut", "manifest.json": "gone"}, "manifest.json: is missing", SAVES),
        ({"data.mdb": "gone", "manifest.json": "gone"}, "data.mdb: is missing", "Without data.mdb nothing"),
    ],
)
def test_every_loss_is_reported_with_a_remedy(path: Path, changes: dict[str, str], problem: str, advice: str) -> None:
    for name, change in changes.items():
        data = (path / name).read_bytes()
        (path / name).unlink()
        if change == "folder":
            (path / name).mkdir()
        elif change == "cut":
            (path / name).write_bytes(data[: len(data) // 2])
        elif change == "flip":
            (path / name).write_bytes(data[:-99] + bytes([data[-99] ^ 1]) + data[-98:])
    found = verify(path)
    assert not found.is_sound
    assert set(found.files) == set(changes)
    assert any(re.match(problem, line) for line in found.problems), found.problems
    assert advice in found.advice


def test_of_a_file_cut_short_the_lost_samples_are_named(path: Path) -> None:
    a = Reader(path).index.arrays
    ends = np.maximum(*(a[f"{name}.offset"] + a[f"{name}.stored_nbytes"] for name in ("blob", "mask")))
    at = int(a["blob.offset"][60]) + 5
    (path / "data.mdb").write_bytes((path / "data.mdb").read_bytes()[:at])
    found = verify(path)
    assert sorted({d.sample for d in found.damaged}) == np.flatnonzero(ends > at).tolist()
    assert all("are outside of the file" in d.reason for d in found.damaged)


def test_files_of_two_datasets_are_not_accepted_as_one(path: Path, tmp_path: Path) -> None:
    samples = [{"blob": bytes([i]) * 50_000} for i in range(9)]
    lmdbloader.write(samples, tmp_path / "a")
    lmdbloader.write([{"blob": s["blob"][::-1]} for s in samples[::-1]], tmp_path / "b")
    sizes = [[(tmp_path / d / f).stat().st_size for f in ("data.mdb", "index.arrow")] for d in "ab"]
    assert sizes[0] == sizes[1]
    for name in ("data.mdb", "index.arrow", MANIFEST_FILE):
        shutil.copytree(tmp_path / "a", tmp_path / f"swapped {name}")
        shutil.copy(tmp_path / "b" / name, tmp_path / f"swapped {name}")
        assert not verify(tmp_path / f"swapped {name}").is_sound
    assert verify(tmp_path / "a").is_sound and verify(tmp_path / "b").is_sound


def test_no_flipped_bit_of_any_file_passes(path: Path) -> None:
    rng = np.random.default_rng(0)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        for name in ("data.mdb", "data.mdb", "index.arrow", MANIFEST_FILE):
            sound = (path / name).read_bytes()
            for at in rng.integers(0, len(sound), 10).tolist():
                damaged = bytearray(sound)
                damaged[at] ^= 1 << int(rng.integers(8))
                (path / name).write_bytes(damaged)
                assert pool.apply_async(outcome, (str(path),)).get(60) == "problems", (name, at)
            (path / name).write_bytes(sound)


def test_an_unreadable_disk_is_a_finding(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a = Reader(path).index.arrays
    bad = int(a["blob.offset"][50])
    real = os.pread

    def pread(descriptor: int, nbytes: int, at: int) -> bytes:
        if at <= bad < at + nbytes and nbytes > 100_000:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(descriptor, nbytes, at)

    def check_pages(path: Path) -> list[str]:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(system, "read_at", pread)
    monkeypatch.setattr(importlib.import_module("lmdbloader.store.care.dataset_check"), "page_problems", check_pages)
    found = verify(path)
    assert any(re.match("data.mdb: cannot be read from byte .*Input/output error", p) for p in found.problems)
    assert SAVES in found.advice


def test_no_flipped_bit_in_a_payload_passes(path: Path) -> None:
    places = np.flatnonzero(payload_bytes(path))
    rng = np.random.default_rng(0)
    for at in rng.choice(places, 12).tolist():
        bit = 1 << int(rng.integers(8))
        flip(path, at, bit=bit)
        assert len(verify(path).damaged) == 1
        flip(path, at, bit=bit)
