"""The content digest of datasets: joined from parts, under older schemes, and under one that is not known."""

from __future__ import annotations

import dataclasses
import json
import runpy
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lmdbloader
from lmdbloader.errors import CorruptError, FormatError
from lmdbloader.format.content import digest_of_columns, join_columns
from lmdbloader.format.digests import CONTENT_SCHEMES, digest_of_text
from lmdbloader.format.layout import MANIFEST_FILE
from lmdbloader.format.manifest import parse_description, parse_manifest
from lmdbloader.store import read_manifest
from lmdbloader.store.contents import digest_column, digest_contents
from lmdbloader.store.reader import Reader

DATA = Path(__file__).resolve().parent / "data"
GOLDEN = DATA / "joinable"
COUNT = 30
TEXTS = st.lists(st.text(max_size=9), max_size=12)
NUMBERS = st.lists(st.integers(0, 255), max_size=30)


def samples(rows: range = range(COUNT)) -> Iterator[dict[str, Any]]:
    for i in rows:
        small = {"label": i // 7, "score": i / 3, "caption": "ü" * (i % 4), "blob": bytes(range(i))}
        arrays = {"vector": np.arange(i % 3, dtype=np.float32), "extra": {"of": [i, None]}}
        yield {"image": np.full((5, 4 + i % 2, 3), i, np.uint8), **small, **arrays}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("contents") / "d"
    lmdbloader.write(samples(), path)
    return path


@pytest.fixture
def path(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "d"))


def rewrite(path: Path, **changes: Any) -> None:
    """Change keys of the manifest, and sign it as a writer does."""
    body = json.loads((path / MANIFEST_FILE).read_bytes()) | changes
    body.pop("manifest_digest")
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    body["manifest_digest"] = digest_of_text(text.encode("ascii"), "xxh64")
    (path / MANIFEST_FILE).write_text(json.dumps(body, indent=1, ensure_ascii=False) + "\n", "utf-8")


@pytest.mark.parametrize("kind", ["uint8", "uint32", "int64", "uint64", "float64", "float16", "int8"])
@given(values=NUMBERS, cut=st.integers(0, 30))
def test_a_column_of_numbers_joins_from_its_parts(kind: str, values: list[int], cut: int) -> None:
    column = np.array(values).astype(kind)
    whole, parts = digest_column(column), [digest_column(part) for part in (column[:cut], column[cut:])]
    assert whole == parts[0].joined(parts[1])
    assert (whole.kind, whole.num_rows) == (kind, len(values))
    assert digest_column(np.repeat(column, 2)[::2]) == whole  # also if it is not contiguous


def as_arrow(texts: list[str]) -> list[pa.Array]:
    """Return the same texts in every way that Arrow stores them."""
    plain = [pa.array(texts, kind) for kind in (pa.string(), pa.large_string())]
    framed = pa.array(["other", *texts, "ends"], pa.large_string()).slice(1, len(texts))
    names = pa.array(["not used", *sorted(set(texts), reverse=True)], pa.large_string())
    codes = pa.array([names.to_pylist().index(text) for text in texts], pa.int32())
    numbered = [pa.DictionaryArray.from_arrays(codes, names.cast(kind)) for kind in (pa.string(), pa.large_string())]
    return [*plain, framed, *numbered, pa.array([*texts, "more"]).dictionary_encode().slice(0, len(texts))]


@given(texts=TEXTS, cut=st.integers(0, 12))
def test_texts_have_one_digest_however_arrow_stores_them(texts: list[str], cut: int) -> None:
    for one, other in ((a, b) for a in as_arrow(texts) for b in as_arrow(texts)[:1]):
        assert digest_column(one) == digest_column(other)
        assert digest_column(one) == digest_column(one[:cut]).joined(digest_column(one[cut:]))


@given(TEXTS, TEXTS)
def test_different_texts_have_different_digests(a: list[str], b: list[str]) -> None:
    found = [digest_column(pa.array(texts, pa.large_string())) for texts in (a, b)]
    assert (found[0] == found[1]) == (a == b)


def test_what_the_bytes_of_texts_do_not_show_counts() -> None:
    for a, b in ((["ab", "c"], ["a", "bc"]), ([""], []), (["", "a"], ["a", ""]), (["\0"], [""])):
        assert digest_column(pa.array(a, pa.string())) != digest_column(pa.array(b, pa.string()))
    # The number 0 of one type is not that of another.
    assert len({digest_column(np.zeros(3, kind)) for kind in ("u1", "u4", "i8", "f8")}) == 4
    assert digest_column(np.array([0.0])) != digest_column(np.array([-0.0]))


@pytest.mark.parametrize(
    "values",
    [
        pa.array(["a", None]),
        pa.array([None, "a"], pa.large_string()),
        pa.array(["a", None]).dictionary_encode(),
        pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int32()), pa.array(["a", None])),
    ],
)
def test_nulls_are_refused(values: pa.Array) -> None:
    with pytest.raises(FormatError, match="column 'c': has nulls, expected a value in every row"):
        digest_column(values, "c")


def test_other_types_are_refused() -> None:
    with pytest.raises(FormatError, match=r"column 'c': is of list.*, expected numbers or texts"):
        digest_column(pa.array([[1]]), "c")


@settings(max_examples=8)
@given(cuts=st.lists(st.integers(0, COUNT), max_size=3))
def test_datasets_join_to_the_digest_of_the_whole(
    written: Path, tmp_path_factory: pytest.TempPathFactory, cuts: list[int]
) -> None:
    folder, edges, parts = tmp_path_factory.mktemp("parts"), [0, *sorted(cuts), COUNT], []
    for number, (a, b) in enumerate(pairwise(edges)):
        if a < b:  # a dataset has a sample
            lmdbloader.write(samples(range(a, b)), folder / str(number))
            parts.append(dict(read_manifest(folder / str(number)).column_digests))
    whole = read_manifest(written)
    assert join_columns(parts) == dict(whole.column_digests)
    assert digest_of_columns(join_columns(parts)) == whole.content_digest


def test_sources_join_too(photos: Path, tmp_path: Path) -> None:
    """Their names are numbered from 0 in each part, and the parts of one source may be in two."""
    lmdbloader.convert(photos, tmp_path / "d", patch_size=96, workers=1)
    batch, manifest = Reader(tmp_path / "d").index.batch, read_manifest(tmp_path / "d")
    for cut in (0, 1, 7, batch.num_rows):
        parts = [digest_contents(part, "poly61")[1] for part in (batch[:cut], batch[cut:])]
        assert join_columns(parts) == dict(manifest.column_digests)


def test_the_golden_parts_join_to_the_golden_whole() -> None:
    make = runpy.run_path(str(GOLDEN / "make_joinable.py"))
    manifests = {name: read_manifest(GOLDEN / f"{name}.lmdb") for name in ("whole", *make["PARTS"])}
    whole = manifests.pop("whole")
    assert whole.content_digest == "poly61:9d5bb93132d91ae8170c5cfca16eae91"
    assert whole.column_digests["score"] == "float64[12]:049b675ee8ba78e50502e1012c3170ad"
    assert join_columns([part.column_digests for part in manifests.values()]) == dict(whole.column_digests)
    for name, rows in {"whole": range(make["COUNT"]), **make["PARTS"]}.items():
        found = lmdbloader.verify(GOLDEN / f"{name}.lmdb")
        assert (found.problems, found.damaged, found.num_samples) == ((), (), len(rows))
        for sample, values in zip(lmdbloader.LMDBDataset(GOLDEN / f"{name}.lmdb"), make["samples"](rows), strict=True):
            np.testing.assert_array_equal(sample.image.numpy(), values["image"].transpose(2, 0, 1))
            np.testing.assert_array_equal(sample.vector.numpy(), values["vector"])
            assert (sample.label, sample.score, sample.caption) == (values["label"], values["score"], values["caption"])


@pytest.mark.parametrize("scheme", CONTENT_SCHEMES)
def test_every_scheme_verifies_and_notices_another_order(path: Path, scheme: str) -> None:
    batch = Reader(path).index.batch
    content, columns = digest_contents(batch, scheme)
    assert content.startswith(f"{scheme}:") and bool(columns) == (scheme == "poly61")
    turned = batch.take(pa.array([1, 0, *range(2, COUNT)]))
    assert digest_contents(turned, scheme)[0] != content
    manifest = dataclasses.replace(read_manifest(path), content_digest=content, column_digests=columns)
    (path / MANIFEST_FILE).write_bytes(manifest.to_json())
    # The description in data.mdb names the scheme that it was written with.
    assert all("content digest" not in problem for problem in lmdbloader.verify(path).problems)
    other = content[:-1] + ("0" if content[-1] != "0" else "1")
    (path / MANIFEST_FILE).write_bytes(dataclasses.replace(manifest, content_digest=other).to_json())
    assert f"the content digest is {content}, expected {other}" in lmdbloader.verify(path).problems


@pytest.mark.parametrize("name", ["format2/sha256", "format2/blake3", "masks/masks", "joinable/rest"])
@pytest.mark.parametrize("lost", [["manifest.json"], ["manifest.json", "index.arrow"]])
def test_a_lost_manifest_is_rebuilt_under_its_own_scheme(name: str, lost: list[str], tmp_path: Path) -> None:
    path = Path(shutil.copytree(DATA / f"{name}.lmdb", tmp_path / "d"))
    before = (path / MANIFEST_FILE).read_bytes()
    for file in lost:
        (path / file).unlink()
    lmdbloader.repair(path)
    rebuilt = read_manifest(path)
    expected = parse_manifest(before, "d")
    assert (rebuilt.content_digest, rebuilt.column_digests) == (expected.content_digest, expected.column_digests)
    assert lmdbloader.verify(path).is_sound


def test_a_repaired_dataset_keeps_the_scheme(tmp_path: Path) -> None:
    path = Path(shutil.copytree(DATA / "masks" / "masks.lmdb", tmp_path / "d"))
    at = int(Reader(path).index.arrays["image.offset"][1])
    with open(path / "data.mdb", "r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))
    assert lmdbloader.repair(path, tmp_path / "out").num_samples == 2
    assert read_manifest(tmp_path / "out").content_digest.startswith("blake2b:")
    assert lmdbloader.verify(tmp_path / "out").is_sound


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            lambda c: c | {"label": c["score"], "extra.codec": ""},
            r"the digests of 2 columns \('label', 'extra.codec'\)",
        ),
        (lambda c: c | {"more": "x"}, r"the digests of 1 columns \('more'\) are not those of the samples"),
        (lambda c: {name: c[name] for name in c if name != "label"}, r"of 1 columns \('label'\)"),
        (lambda c: dict(reversed(c.items())), r"the digests of the columns are not in the order of the samples"),
        (lambda c: {}, r"the digests of \d+ columns \('image.stored_nbytes',"),
    ],
)
def test_changed_digests_of_columns_are_found_and_repaired(path: Path, change: Any, problem: str) -> None:
    before = (path / MANIFEST_FILE).read_bytes()
    manifest = read_manifest(path)
    columns = change(dict(manifest.column_digests))
    (path / MANIFEST_FILE).write_bytes(dataclasses.replace(manifest, column_digests=columns).to_json())
    found = lmdbloader.verify(path)
    assert len(found.problems) == 1 and found.files == (MANIFEST_FILE,)
    with pytest.raises(AssertionError, match=problem):
        raise AssertionError(found.problems[0])
    assert len(lmdbloader.LMDBDataset(path)) == COUNT  # reading does not need them
    lmdbloader.repair(path)
    assert (path / MANIFEST_FILE).read_bytes() == before


@pytest.mark.parametrize("digest", ["poly127:" + "0" * 32, "md5:00", "nonsense", ""])
def test_a_scheme_that_is_not_known_is_one_error_where_it_is_needed(digest: str, path: Path, tmp_path: Path) -> None:
    rewrite(path, content_digest=digest, column_digests=[1, {"another": "shape"}])
    assert len(lmdbloader.LMDBDataset(path)) == COUNT
    assert lmdbloader.LMDBDataset(path)[3].label == 0
    assert lmdbloader.info(path).digests["content"] == digest
    assert len(lmdbloader.LMDBDataset(lmdbloader.stage(path, tmp_path / "staged"))) == COUNT
    expected = rf"is of the scheme '{digest.partition(':')[0]}'; this release knows poly61, .*can be read.*upgrade"
    for call in (lmdbloader.verify, lmdbloader.repair):
        with pytest.raises(FormatError, match=expected) as caught:
            call(path)
        assert str(caught.value).startswith(f"{path / MANIFEST_FILE}: ")


def change_description(path: Path, before: bytes, after: bytes) -> bytes:
    """Replace a part of the description in data.mdb by one of the same length, sign it, and return it."""
    with lmdb.open(str(path), readonly=True, lock=False) as env, env.begin() as transaction:
        sound = transaction.get(b"description")
    body = json.loads(changed := sound.replace(before, after))
    found = body.pop("description_digest").encode()
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    changed = changed.replace(found, digest_of_text(text.encode("ascii"), "xxh64").encode())
    assert changed != sound and len(changed) == len(sound)
    (path / "data.mdb").write_bytes((path / "data.mdb").read_bytes().replace(sound, changed))
    return bytes(changed)


def test_a_scheme_that_only_the_description_names_is_not_guessed(path: Path) -> None:
    change_description(path, b'"poly61"', b'"poly99"')
    (path / MANIFEST_FILE).unlink()
    with pytest.raises(FormatError, match=r"data\.mdb: its content digest is of the scheme 'poly99'; this release"):
        lmdbloader.repair(path)


def test_a_scheme_that_is_not_text_is_damage(path: Path) -> None:
    changed = change_description(path, b'"poly61"', b"7       ")
    with pytest.raises(FormatError, match=r"description does not read \(TypeError\('content_scheme is 7'\)\)"):
        parse_description(changed, "d")


def test_a_lost_manifest_of_a_newer_release_is_not_called_damage(tmp_path: Path) -> None:
    """Its features are named, as in the manifest."""
    path = Path(shutil.copytree(DATA / "masks" / "masks.lmdb", tmp_path / "d"))
    change_description(path, b'"mask"', b'"musk"')
    (path / MANIFEST_FILE).unlink()
    for call in (lmdbloader.verify, lmdbloader.repair):
        with pytest.raises(FormatError, match=r"data\.mdb: its description needs 'musk', which this .* Upgrade"):
            call(path)


@pytest.mark.parametrize("where", ["manifest", "field"])
def test_keys_of_a_newer_release_are_no_damage(where: str, path: Path) -> None:
    """It lists what a reader must know in "requires"; all else is read without it, and not rewritten."""
    before = lmdbloader.LMDBDataset(path)[4]
    fields = json.loads((path / MANIFEST_FILE).read_bytes())["fields"]
    rewrite(
        path, **({"hologram": 1} if where == "manifest" else {"fields": [{**fields[0], "hologram": 1}, *fields[1:]]})
    )
    assert lmdbloader.LMDBDataset(path)[4].score == before.score
    for call in (lmdbloader.verify, lmdbloader.repair):
        with pytest.raises(FormatError, match=r"manifest\.json: has 'hologram', which this release does not know; a"):
            call(path)


def test_files_and_samples_of_the_same_content_have_the_same_digest(photos: Path, tmp_path: Path) -> None:
    lmdbloader.convert(photos, tmp_path / "a", write_mode="raw", codec="lz4", workers=1)
    images = [sample.image.numpy().transpose(1, 2, 0) for sample in lmdbloader.LMDBDataset(tmp_path / "a")]
    lmdbloader.write(({"image": image} for image in images), tmp_path / "b", codec="lz4")
    found = [dict(read_manifest(tmp_path / name).column_digests) for name in "ab"]
    assert {name: found[0][name] for name in found[1]} == found[1]
    assert set(found[0]) - set(found[1]) == {"source", "top", "left"}


def test_a_damaged_index_is_found_whatever_the_scheme(path: Path) -> None:
    data = bytearray((path / "index.arrow").read_bytes())
    data[len(data) // 2] ^= 1
    (path / "index.arrow").write_bytes(data)
    with pytest.raises(CorruptError, match="digest is"):
        lmdbloader.LMDBDataset(path)[0]
