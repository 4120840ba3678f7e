"""Manifests: written ones read back, others are refused with a clear error."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from index_layouts import layout_of

from lmdbloader.errors import FormatError, LmdbloaderError, OptionError
from lmdbloader.fields import kind_names
from lmdbloader.format.layout import make_field
from lmdbloader.format.manifest import (
    MAX_MANIFEST_NBYTES,
    Description,
    Manifest,
    Part,
    is_signed,
    parse_description,
    parse_manifest,
)
from lmdbloader.format.manifest import signed as text_of

FIELDS = (make_field("lr", "image", "lz4"), make_field("hr", "image"), make_field("label", "int"))
MANIFEST = Manifest(
    num_samples=3,
    fields=FIELDS,
    with_source=True,
    classes={"label": ("cat", "dog", "Füchse")},
    made_by={"lmdbloader": "0.1.0", "options": {"scale": 2}, "inputs": None},
    content_digest="sha256:00",
    index_digest="sha256:01",
    index=layout_of(FIELDS, with_source=True, num_rows=3),
    parts=(Part(2, 8192, "sha256:02"), Part(1, 4096, "sha256:03")),
)


def signed(body: dict[str, Any]) -> bytes:
    """Return a manifest's bytes with the digest that its other keys have."""
    body = {key: value for key, value in body.items() if key != "manifest_digest"}
    return text_of(body, "manifest_digest")


def body() -> dict[str, Any]:
    """Return the keys of a sound manifest."""
    return dict(json.loads(MANIFEST.to_json()))


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
texts = st.text(st.characters(exclude_categories=()), max_size=8)


@given(
    num_samples=st.integers(1, 2**20),
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
        fields,
        with_source,
        classes,
        made_by,
        num_samples,
        "sha256:1",
        "sha256:2",
        layout_of(fields, with_source=with_source, num_rows=num_samples),
        (Part(num_samples, 4096, "sha256:3"),),
    )
    data = manifest.to_json()
    back = parse_manifest(data, "d")
    assert back == manifest
    assert back.to_json() == data
    assert back.manifest_digest == json.loads(data)["manifest_digest"]


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"name": "view", "kind": "hologram"}, ("'view'", "'hologram'", "image", "mask")),
        ({"name": "hr", "kind": "image", "codec": "zstd"}, ("'hr'", "'zstd'", "raw", "lz4")),
    ],
)
def test_an_unknown_kind_or_codec_of_a_field_is_named(values: dict[str, str], named: tuple[str, ...]) -> None:
    data = signed({**body(), "fields": [values]})
    with pytest.raises(FormatError) as caught:
        parse_manifest(data, "d")
    assert all(name in str(caught.value) for name in named)
    assert is_signed(data)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "is not JSON"),
        (b"\xff{}", "is not JSON"),
        (MANIFEST.to_json()[:-3], "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[]", "does not describe an lmdbloader dataset"),
        (b"null", "does not describe an lmdbloader dataset"),
        (b"{}", "does not describe an lmdbloader dataset"),
        (b'{"format": "webdataset"}', "does not describe an lmdbloader dataset"),
        (signed({**body(), "format_version": 2}), "format version 2, expected 1. Convert again"),
        (signed({**body(), "format_version": "1"}), "format version '1'"),
        (signed({**body(), "format_version": True}), "format version True"),
        (signed({**body(), "format_version": 1.0}), "format version 1.0"),
        (MANIFEST.to_json().replace(b'"scale": 2', b'"scale": 3'), "was changed after it was written"),
        (json.dumps({k: v for k, v in body().items() if k != "manifest_digest"}).encode(), "was changed"),
        (b" " * (MAX_MANIFEST_NBYTES + 1), "expected at most"),
    ],
)
def test_a_file_that_is_not_a_manifest_is_refused_with_a_reason(data: bytes, expected: str) -> None:
    with pytest.raises(FormatError, match=expected) as caught:
        parse_manifest(data, "photos.lmdb")
    assert str(caught.value).startswith("photos.lmdb/manifest.json: ")


# Keys with errors of their own.
OTHERS = ("format", "format_version", "manifest_digest")
TEXTS = ("made_by", "content_digest", "index_digest")


def _without(key: str) -> Callable[[dict[str, Any]], None]:
    return lambda b: b.pop(key)


def _with(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda b: b.update(values)


def _part(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda b: b["parts"][0].update(values)


def _field(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda b: b["fields"][0].update(values)


@pytest.mark.parametrize(
    "change",
    [
        *(_without(key) for key in body() if key not in OTHERS),
        *(_with(num_samples=value) for value in (-1, 2**62, 1.0, "3", None, True, [3])),
        *(_with(fields=value) for value in (None, {}, [], "lr", [None], [[]], [{}], [{"name": "a"}], 3)),
        _with(fields=[{"name": "a", "kind": "int"}] * 2),
        *(_with(with_source=value) for value in (None, 1, "no")),
        *(_with(classes=value) for value in (None, [], {"label": "cat"}, {"label": [1]}, {"label": None})),
        *(_with(parts=value) for value in (None, {}, [], [None], [{}], body()["parts"][:1], body()["parts"][::-1] * 2)),
        *(_part(num_samples=value) for value in (0, 1, 3, -1, None, "2", True)),
        *(_part(data_nbytes=value) for value in (0, -1, None, "2", 2**62)),
        *(_part(data_digest=value) for value in (None, 3, [])),
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
    with pytest.raises(FormatError, match=r"^d/manifest\.json: "):
        parse_manifest(signed(changed), "d")


def test_a_description_reads_back() -> None:
    description = Description(MANIFEST.fields, MANIFEST.with_source, MANIFEST.classes, MANIFEST.made_by)
    assert description == MANIFEST.description
    assert parse_description(description.to_json(), "d") == description


@given(st.integers(0), st.integers(1, 255), st.booleans())
def test_no_changed_or_missing_byte_of_a_description_goes_unnoticed(position: int, change: int, cut: bool) -> None:
    description = MANIFEST.description
    sound = description.to_json()
    at = position % (len(sound) - 1)
    damaged = bytearray(sound)
    damaged[at] ^= change
    with pytest.raises(FormatError, match=r"^d/data\.mdb: its description does not read"):
        parse_description(sound[:at] if cut else bytes(damaged), "d")


@given(st.data())
def test_any_manifest_raises_only_errors_of_the_package(data: st.DataObject) -> None:
    changed = body()
    at: Any = changed
    for _ in range(data.draw(st.integers(1, 3))):
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(at[key], dict | list) or not at[key] or data.draw(st.booleans()):
            at[key] = data.draw(anything)
            break
        at = at[key]
    try:
        manifest = parse_manifest(signed(changed), "d")
    except LmdbloaderError:
        return
    assert parse_manifest(manifest.to_json(), "d") == manifest


@given(st.integers(0), st.integers(1, 255), st.booleans())
def test_no_changed_or_missing_byte_of_a_manifest_goes_unnoticed(position: int, change: int, cut: bool) -> None:
    sound = MANIFEST.to_json()
    at = position % len(sound)
    damaged = bytearray(sound)
    damaged[at] ^= change
    with pytest.raises(FormatError):
        parse_manifest(sound[:at] if cut else bytes(damaged), "d")


def test_more_names_of_classes_than_a_reader_accepts_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    many = Description((), True, {"labels": tuple(f"class {i:08d}" for i in range(5000))}, {})
    many.to_json()
    monkeypatch.setattr("lmdbloader.format.manifest.MAX_MANIFEST_NBYTES", 100_000)
    with pytest.raises(OptionError, match=r"the names of 5,000 classes, more than a reader accepts: 100,000 bytes"):
        many.to_json()
