"""Manifests: written ones read back, others are refused with a clear error."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from index_layouts import layout_of, nbytes_of

from lmdbloader.errors import FormatError, LmdbloaderError, OptionError
from lmdbloader.fields import kind_names
from lmdbloader.format.digests import DIGESTS, DigestName, digest_of_text
from lmdbloader.format.index import IndexLayout
from lmdbloader.format.layout import make_field
from lmdbloader.format.manifest import (
    MAX_MANIFEST_NBYTES,
    Description,
    Manifest,
    _digest_of,
    check_fits,
    is_newer_description,
    is_signed,
    parse_description,
    parse_manifest,
)

FIELDS = (make_field("lr", "image", "lz4"), make_field("hr", "image"), make_field("label", "int"))
MANIFEST = Manifest(
    num_samples=3,
    fields=FIELDS,
    with_source=True,
    classes={"label": ("cat", "dog", "Füchse")},
    sizes={"data_nbytes": 4096, "index_nbytes": 100, "payload_nbytes": 5, "raw_nbytes": 6},
    made_by={"lmdbloader": "0.1.0", "options": {"scale": 2}, "inputs": None},
    content_digest="blake2b:00",
    index_digest="xxh64:00",
    data_digest="xxh64:01",
    index=layout_of(FIELDS, with_source=True, num_rows=3),
)


def with_digest(name: DigestName) -> Manifest:
    """Return the manifest of a dataset whose digests are of some algorithm."""
    if name == "xxh64":
        return MANIFEST
    digests = {f"{what}_digest": digest_of_text(what.encode(), name) for what in ("content", "index", "data")}
    return dataclasses.replace(MANIFEST, digest=name, **digests)


def signed(body: dict[str, Any], name: DigestName = "xxh64") -> bytes:
    """Return a manifest's bytes with the digest that its other keys have."""
    body = {key: value for key, value in body.items() if key != "manifest_digest"}
    return json.dumps({**body, "manifest_digest": _digest_of(body, name)}).encode() + b"\n"


def body(name: DigestName = "xxh64") -> dict[str, Any]:
    """Return the keys of a sound manifest."""
    return dict(json.loads(with_digest(name).to_json()))


# The keys of the description in data.mdb.
DESCRIBED = ("requires", "fields", "with_source", "classes", "made_by")
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
texts = st.text(st.characters(exclude_categories=()), max_size=8)


@given(
    num_samples=st.integers(0, 10**6),
    names=st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=5, unique=True),
    kinds=st.lists(st.sampled_from(kind_names()), min_size=5, max_size=5),
    with_source=st.booleans(),
    classes=st.dictionaries(texts, st.lists(texts, max_size=3).map(tuple), max_size=3),
    made_by=st.dictionaries(texts, texts | st.integers() | st.none() | st.lists(texts), max_size=3),
)
def test_a_manifest_reads_back_as_it_was_written(
    num_samples: int, names: list[str], kinds: list[Any], with_source: bool, classes: Any, made_by: Any
) -> None:
    # A byte of a file name that is not text becomes half a surrogate pair: it has to survive too.
    fields = tuple(make_field(name, kind, "lz4") for name, kind in zip(names, kinds, strict=False))
    manifest = Manifest(
        num_samples,
        fields,
        with_source,
        classes,
        {"data_nbytes": 3 * num_samples, "index_nbytes": nbytes_of(num_samples)},
        made_by,
        "blake2b:1",
        "xxh64:2",
        index=layout_of(fields, with_source=with_source, num_rows=num_samples),
    )
    data = manifest.to_json()
    back = parse_manifest(data, "d")
    assert back == manifest
    assert back.to_json() == data
    assert back.manifest_digest == json.loads(data)["manifest_digest"]


@pytest.mark.parametrize("name", DIGESTS)
def test_every_algorithm_reads_back_and_says_its_name(name: DigestName) -> None:
    manifest = with_digest(name)
    data = manifest.to_json()
    back = parse_manifest(data, "d")
    assert (back, back.to_json(), back.digest) == (manifest, data, name)
    assert json.loads(data)["format_version"] == back.format_version == (1 if name == "xxh64" else 2)
    assert back.manifest_digest.startswith("blake2b:" if name == "xxh64" else f"{name}:")
    description = parse_description(manifest.description.to_json(), "d")
    assert (description, description.digest) == (manifest.description, name)
    assert is_signed(data)


@pytest.mark.parametrize(
    ("digest", "known"),
    [
        ("md5:0123456789abcdef0123456789abcdef", False),
        ("sha512:00", False),
        ("", False),
        (None, False),
        (7, False),
        (_digest_of({}), True),  # BLAKE2b is of version 1
    ],
)
def test_an_algorithm_that_this_release_does_not_know_is_named(digest: Any, known: bool) -> None:
    data = json.dumps({**body("sha256"), "manifest_digest": digest}).encode() + b"\n"
    with pytest.raises(FormatError, match=r"expected one of sha256 or blake3: .* Upgrade lmdbloader") as caught:
        parse_manifest(data, "d")
    assert repr(digest) in str(caught.value)
    assert not is_signed(data)  # no release writes it in version 2: it is damage
    later = json.dumps({**body("sha256"), "format_version": 3, "manifest_digest": digest}).encode() + b"\n"
    with pytest.raises(FormatError, match=r"format version 3; this release reads 1 and 2\. Upgrade lmdbloader"):
        parse_manifest(later, "d")
    assert is_signed(later) == (isinstance(digest, str) and len(digest) > 20 and not known)


@pytest.mark.parametrize("name", ["sha256", "blake3"])
@pytest.mark.parametrize("key", ["content_digest", "index_digest", "data_digest"])
@pytest.mark.parametrize("value", ["xxh64:0123456789abcdef", "md5:00", "", None, "other"])
def test_digests_of_several_algorithms_are_refused(name: DigestName, key: str, value: Any) -> None:
    value = _digest_of({}, "blake3" if name == "sha256" else "sha256") if value == "other" else value
    with pytest.raises(FormatError, match=rf"{key}.*expected the keys of format version 2"):
        parse_manifest(signed({**body(name), key: value}, name), "d")
    without = {k: v for k, v in body(name).items() if k != key}
    with pytest.raises(FormatError, match=rf"{key}.*expected the keys of format version 2"):
        parse_manifest(signed(without, name), "d")


@pytest.mark.parametrize("name", ["sha256", "blake3"])
def test_version_1_has_no_digest_of_another_algorithm(name: DigestName) -> None:
    data = signed({**body(name), "format_version": 1}, name)
    with pytest.raises(FormatError, match=r"its digest is .*, expected 'blake2b:"):
        parse_manifest(data, "d")
    assert is_signed(data)  # somebody has made it so: no damage that could be mended


def _of_a_newer_release(**more: Any) -> dict[str, Any]:
    """Return the keys of a manifest with a kind of field that no release knows yet."""
    newer = {"name": "view", "kind": "hologram", "codec": "raw"}
    return {**body(), "requires": ["hologram"], "fields": [newer], "made_by": {"lmdbloader": "7.1.0"}, **more}


@pytest.mark.parametrize(
    ("made_by", "advice"),
    [
        ({"lmdbloader": "7.1.0"}, r"Upgrade lmdbloader to 7\.1\.0 or later\."),
        ({}, r"Upgrade lmdbloader\."),
        ({"lmdbloader": "a\nb"}, r"Upgrade lmdbloader\."),
        ([], r"Upgrade lmdbloader\."),
    ],
)
def test_a_feature_that_this_release_does_not_know_is_named(made_by: Any, advice: str) -> None:
    data = signed(_of_a_newer_release(made_by=made_by))
    with pytest.raises(FormatError, match=rf"^d/manifest.json: needs 'hologram', which .* {advice}$"):
        parse_manifest(data, "d")
    assert is_signed(data)
    description = {key: value for key, value in _of_a_newer_release(made_by=made_by).items() if key in DESCRIBED}
    text = json.dumps({**description, "description_digest": _digest_of(description)}).encode()
    with pytest.raises(FormatError, match=rf"^d/data.mdb: its description needs 'hologram', which .* {advice}$"):
        parse_description(text, "d")


def test_a_feature_is_named_before_a_digest_of_an_algorithm_that_this_release_does_not_know() -> None:
    data = json.dumps({**_of_a_newer_release(), "manifest_digest": "sha9:" + "0" * 32}).encode() + b"\n"
    with pytest.raises(FormatError, match="needs 'hologram'"):
        parse_manifest(data, "d")
    assert is_signed(data)  # no damage: a repair leaves it alone


@pytest.mark.parametrize("required", [["image"], [7], "hologram", "", {"hologram": 1}, {}, None])
def test_features_that_the_fields_do_not_need_are_refused(required: Any) -> None:
    with pytest.raises(FormatError, match=r"requires is .* with fields that require"):
        parse_manifest(signed({**body(), "requires": required}), "d")


def test_kinds_of_the_first_releases_are_not_required() -> None:
    assert "requires" not in body()


def test_a_manifest_is_readable_text() -> None:
    assert "Füchse" in MANIFEST.to_json().decode("utf-8")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "is not JSON"),
        (b"\xff{}", "is not JSON"),
        (MANIFEST.to_json()[:-3], "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (
            b'{"format": "lmdbloader", "format_version": 1, "x": ' + b"[" * 900 + b"]" * 900 + b"}",
            "digest|not JSON|deep",
        ),
        (b"[]", "does not describe an lmdbloader dataset"),
        (b"null", "does not describe an lmdbloader dataset"),
        (b"{}", "does not describe an lmdbloader dataset"),
        (b'{"format": "webdataset"}', "does not describe an lmdbloader dataset"),
        (signed({**body(), "format_version": 3}), "format version 3; this release reads 1 and 2. Upgrade lmdbloader"),
        (signed({**body(), "format_version": 0}), "format version 0; this release reads 1 and 2. Convert again"),
        (signed({**body(), "format_version": "1"}), "format version '1'"),
        (signed({**body(), "format_version": True}), "format version True"),
        (signed({**body(), "format_version": 1.0}), "format version 1.0"),
        (MANIFEST.to_json().replace(b'"scale": 2', b'"scale": 3'), "was changed after it was written"),
        (json.dumps({k: v for k, v in body().items() if k != "manifest_digest"}).encode(), "its digest is None"),
        (b" " * (MAX_MANIFEST_NBYTES + 1), "expected at most"),
    ],
)
def test_a_file_that_is_not_a_manifest_is_refused_with_a_reason(data: bytes, expected: str) -> None:
    with pytest.raises(FormatError, match=expected) as caught:
        parse_manifest(data, "photos.lmdb")
    assert str(caught.value).startswith("photos.lmdb/manifest.json: ")


# Keys that a manifest may lack: the first two have their own errors, the third is newer than the others.
OPTIONAL = ("format", "format_version", "data_digest", "manifest_digest")
TEXTS = ("made_by", "content_digest", "index_digest", "data_digest")


def _without(key: str) -> Callable[[dict[str, Any]], None]:
    return lambda b: b.pop(key)


def _with(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda b: b.update(values)


def _field(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda b: b["fields"][0].update(values)


@pytest.mark.parametrize(
    "change",
    [
        *(_without(key) for key in body() if key not in OPTIONAL),
        *(_with(num_samples=value) for value in (-1, 2**62, 1.0, "3", None, True, [3])),
        *(_with(fields=value) for value in (None, {}, [], "lr", [None], [[]], [{}], [{"name": "a"}], 3)),
        _with(fields=[{"name": "a", "kind": "int"}] * 2),
        *(_with(with_source=value) for value in (None, 1, "no")),
        *(_with(classes=value) for value in (None, [], {"label": "cat"}, {"label": [1]}, {"label": None})),
        *(_with(sizes=value) for value in (None, [], {"data_nbytes": "4"}, {"data_nbytes": -1})),
        *(_with(**{key: value}) for key in TEXTS for value in (None, [], 3)),
        *(_field(name=value) for value in ("", "a b", "class", "_a", "source", None, 3, [], "a" * 51)),
        *(_field(kind=value) for value in ("video", None, [], 3)),
        *(_field(codec=value) for value in ("tiles", "zstd", 3, [], {})),
        *(_field(layout=value) for value in ("HWC", None, 3)),
        *(_field(tile_size=value) for value in (0, 7, 513, -64, "64", None, True, 64.0)),
    ],
)
def test_a_manifest_with_a_right_digest_and_wrong_content_is_refused(change: Callable[[dict[str, Any]], None]) -> None:
    changed = body()
    change(changed)
    with pytest.raises(FormatError, match=r"^d/manifest\.json: .*expected the keys of format version 1"):
        parse_manifest(signed(changed), "d")


def test_a_manifest_of_before_there_was_a_data_digest_still_reads() -> None:
    old = body()
    del old["data_digest"]
    manifest = parse_manifest(signed(old), "d")
    assert manifest == dataclasses.replace(MANIFEST, data_digest="")
    assert json.loads(manifest.to_json()) == json.loads(signed(old))


@pytest.mark.parametrize(
    "text", sorted((Path(__file__).parent / "data").rglob("manifest.json")), ids=lambda path: path.parent.name
)
def test_the_manifests_of_earlier_releases_are_the_text_that_is_written_today(text: Path) -> None:
    data = text.read_bytes()
    manifest = parse_manifest(data, str(text.parent))
    assert manifest.to_json() == data and manifest.is_text(data)


@given(st.sampled_from(DIGESTS), st.integers(0), st.sampled_from([b" ", b"\n", b"\r", b"\t"]))
def test_white_space_more_or_less_is_another_text(name: DigestName, position: int, space: bytes) -> None:
    sound = with_digest(name).to_json()
    manifest = parse_manifest(sound, "d")
    at = position % (len(sound) + 1)
    places = [i for i in range(len(sound)) if sound[i : i + 1].isspace()]
    less = places[position % len(places)]
    assert manifest.is_text(sound)
    assert not manifest.is_text(sound[:at] + space + sound[at:])
    assert not manifest.is_text(sound[:less] + sound[less + 1 :])
    assert not manifest.is_text(sound[:at] if at < len(sound) else b"")


def test_a_key_with_two_values_is_refused_in_any_version() -> None:
    for version in (1, 2, 3):
        data = MANIFEST.to_json().replace(b'"format_version": 1', b'"format_version": %d' % version)
        with pytest.raises(FormatError, match=r"d/manifest\.json: has two values of 'hr', expected one\. Restore"):
            parse_manifest(data.replace(b'"scale": 2', b'"hr": 1, "hr": 1'), "d")
        assert not is_signed(data.replace(b'"scale": 2', b'"scale": 2, "scale": 2'))
    text = MANIFEST.description.to_json()
    with pytest.raises(FormatError, match="description does not read"):
        parse_description(text.replace(b'"scale": 2', b'"scale": 2, "scale": 2'), "d")


def test_a_description_reads_back_and_makes_the_same_manifest() -> None:
    description = Description(MANIFEST.fields, MANIFEST.with_source, MANIFEST.classes, MANIFEST.made_by)
    back = parse_description(description.to_json(), "d")
    assert back == description
    made = back.manifest(
        num_samples=3,
        sizes=MANIFEST.sizes,
        content_digest="blake2b:00",
        index_digest="xxh64:00",
        data_digest="xxh64:01",
        index=MANIFEST.index,
    )
    assert made.to_json() == MANIFEST.to_json()


@given(st.sampled_from(DIGESTS), st.integers(0), st.integers(1, 255), st.booleans())
def test_no_changed_or_missing_byte_of_a_description_goes_unnoticed(
    name: DigestName, position: int, change: int, cut: bool
) -> None:
    description = with_digest(name).description
    sound = description.to_json()
    at = position % (len(sound) - 1)
    damaged = bytearray(sound)
    damaged[at] ^= change
    try:
        assert parse_description(sound[:at] if cut else bytes(damaged), "d") == description
    except FormatError as error:
        assert str(error).startswith("d/data.mdb: its description does not read")


@given(st.sampled_from(DIGESTS), st.data())
def test_any_manifest_raises_only_errors_of_the_package(name: DigestName, data: st.DataObject) -> None:
    changed = body(name)
    at: Any = changed
    for _ in range(data.draw(st.integers(1, 3))):
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(at[key], dict | list) or not at[key] or data.draw(st.booleans()):
            at[key] = data.draw(anything)
            break
        at = at[key]
    try:
        manifest = parse_manifest(signed(changed, name), "d")
    except LmdbloaderError:
        return
    assert parse_manifest(manifest.to_json(), "d") == manifest


@given(st.sampled_from(DIGESTS), st.integers(0), st.integers(1, 255), st.booleans())
def test_no_changed_or_missing_byte_of_a_manifest_goes_unnoticed(
    name: DigestName, position: int, change: int, cut: bool
) -> None:
    sound = with_digest(name).to_json()
    at = position % len(sound)
    damaged = bytearray(sound)
    damaged[at] ^= change
    try:
        manifest = parse_manifest(sound[:at] if cut else bytes(damaged), "d")
    except FormatError:
        return
    assert manifest == with_digest(name)  # white space between the keys says nothing


@given(st.binary(max_size=60))
def test_bytes_that_are_no_manifest_are_a_format_error(data: bytes) -> None:
    with pytest.raises(FormatError):
        parse_manifest(data, "d")


_OPEN = """
import sys
from pathlib import Path
from lmdbloader.errors import FormatError
from lmdbloader.store import read_manifest

def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) * 1024

before = peak()
try:
    found = len(read_manifest(Path(sys.argv[1])).made_by["x"])
except FormatError as error:
    found = error
print(peak() - before, found)
"""
_TOO_LARGE = r"manifest.json: its [\d,]+ bytes would take about [\d,]+ MB of memory, expected at most 200 MB"


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell")
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (lambda: "a" * (60 << 20), str(60 << 20)),
        (lambda: "a" * (60 << 20) + "\U0001f600", _TOO_LARGE),
        (lambda: "a" * (60 << 20) + "\0", _TOO_LARGE),  # its escape might as well be that of anything
        (lambda: [[]] * (20 << 20), _TOO_LARGE),
        (lambda: ["ab"] * (12 << 20), _TOO_LARGE),
        (lambda: {str(i): 0 for i in range(1 << 20)}, _TOO_LARGE),
        (lambda: {str(i): 0 for i in range(640_000)}, "640000"),
        (lambda: [{str(i): 0} for i in range(500_000)], "500000"),
        (lambda: [f"{i:013}" for i in range(20 << 16)], str(20 << 16)),
        (lambda: [[]] * (1 << 20), str(1 << 20)),
        (lambda: "é" * (20 << 20), str(20 << 20)),
        (lambda: "漢" * (12 << 20), str(12 << 20)),
        (lambda: "a" * (20 << 20) + "\U0001f600", str((20 << 20) + 1)),
    ],
)
def test_opening_a_manifest_takes_at_most_200_megabytes(
    tmp_path: Path, value: Callable[[], Any], expected: str
) -> None:
    content = {**body(), "made_by": {"x": value()}, "classes": {}}
    del content["manifest_digest"]
    # What is too large is refused before its digest is looked at; computing it would take most of the test's time.
    content["manifest_digest"] = "xxh64:" + "0" * 16 if expected == _TOO_LARGE else _digest_of(content)
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False) + "\n"
    (tmp_path / "manifest.json").write_text(text, "utf-8")
    child = subprocess.run([sys.executable, "-c", _OPEN, tmp_path], capture_output=True, text=True, check=True)
    taken, _, found = child.stdout.strip().partition(" ")
    assert re.search(expected, found)
    assert int(taken) <= 200e6


def test_a_manifest_that_readers_would_refuse_is_not_written() -> None:
    names = tuple(f"{i:060d}" for i in range(900_000))
    with pytest.raises(OptionError, match=r"a million names of classes"):
        dataclasses.replace(MANIFEST, classes={"label": names}).to_json()
    many = dataclasses.replace(MANIFEST, classes={"label": names[:400_000]})
    assert parse_manifest(many.to_json(), "x").classes == many.classes


@given(st.binary(max_size=30) | anything.map(lambda value: json.dumps(value).encode()))
def test_other_text_is_no_description_of_a_newer_release(data: bytes) -> None:
    assert not is_newer_description(data)


def test_classes_are_refused_before_anything_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    names = tuple(f"class {i}" for i in range(5000))
    many = Description((), True, {"labels": names}, {})
    check_fits(many)
    monkeypatch.setattr("lmdbloader.format.manifest.MAX_MANIFEST_NBYTES", 100_000)
    with pytest.raises(OptionError, match=r"the names of 5,000 classes, more than a reader accepts: 100,000 bytes"):
        check_fits(many)
    # Room is left for what is known at the end only.
    fits = Description((), True, {"labels": names[:1500]}, {})
    check_fits(fits)
    longest = {"num_samples": 2**62 - 1, "sizes": dict.fromkeys(MANIFEST.sizes, 2**62 - 1)}
    digests = dict.fromkeys(("content_digest", "index_digest", "data_digest"), "sha256:" + "0" * 64)
    assert len(fits.manifest(**longest, **digests, index=IndexLayout()).to_json()) < 100_000  # type: ignore[arg-type]
