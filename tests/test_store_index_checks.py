"""A contradictory index is refused with the first such row, and the lengths of array types are exact."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lmdbloader.errors import CorruptError, FormatError
from lmdbloader.format.layout import (
    ARRAY_DTYPES,
    CODEC_FILE,
    CODEC_JPEG,
    CODEC_LZ4,
    CODEC_RAW,
    CODEC_TILES,
    MAX_PAYLOAD_NBYTES,
    array_type,
    index_columns,
    make_field,
    parse_array_type,
)
from lmdbloader.store import index_checks
from lmdbloader.store.arrow_file import Columns, Names, Texts
from lmdbloader.store.index_checks import array_nbytes, check_index

DATA_NBYTES = 10_000


def check(
    kind: Any,
    rows: Sequence[dict[str, Any]],
    *,
    second: Sequence[dict[str, Any]] = (),
    sources: bool = False,
    **sizes: int,
) -> None:
    """Check an index of one field "f", or of two fields "f" and "g"."""
    fields = [make_field("f", kind)] + ([make_field("g", kind)] if second else [])
    columns: dict[str, list[Any]] = {"source": [f"{i}.png" for i in range(len(rows))], "top": [0] * len(rows)}
    columns["left"], columns["f"] = columns["top"], [0] * len(rows)
    for f, items in zip(fields, (rows, second), strict=False):
        default = {
            "offset": 0,
            "stored_nbytes": 0,
            "raw_nbytes": 0,
            "checksum": 0,
            "codec": CODEC_RAW,
            "channels": 1,
            "bits": 8,
        }
        items = [{**default, **item} for item in items]
        for part in {**default, "height": 0, "width": 0, "type": ""}:
            columns[f"{f.name}.{part}"] = [item.get(part) for item in items]
    kinds = index_columns(fields, with_source=sources)
    found = Columns(
        len(rows),
        {name: np.array(columns[name], kind) for name, kind in kinds.items() if kind not in ("text", "large_names")},
        {},
        {name: names_of(columns[name]) for name, kind in kinds.items() if kind == "large_names"},
    )
    totals = {
        key: sum(item.get(part, 0) for item in [*rows, *second])
        for key, part in (("payload_nbytes", "stored_nbytes"), ("raw_nbytes", "raw_nbytes"))
    }
    manifest: Any = SimpleNamespace(
        fields=tuple(fields), with_source=sources, sizes={**totals, **sizes}, parts=(), index_file="index.arrow",
    )  # fmt: skip
    check_index(found, manifest, DATA_NBYTES, Path("/d"))


def texts_of(values: Sequence[str]) -> Texts:
    data = [value.encode() for value in values]
    ends = np.cumsum([0, *map(len, data)], dtype=np.int32)
    return Texts(ends, np.frombuffer(b"".join(data), np.uint8))


def names_of(values: Sequence[str]) -> Names:
    known = list(dict.fromkeys(values))
    return Names(np.array([known.index(value) for value in values], np.int32), texts_of(known))


def plain(at: int, nbytes: int) -> dict[str, Any]:
    return {"offset": at, "stored_nbytes": nbytes, "raw_nbytes": nbytes}


def image(stored: int, height: int, width: int, codec: int, **more: Any) -> dict[str, Any]:
    raw = height * width * more.get("channels", 1) * (more.get("bits", 8) // 8)
    return {"stored_nbytes": stored, "raw_nbytes": raw, "height": height, "width": width, "codec": codec, **more}


def compressed(stored: int, raw: int, codec: int = CODEC_LZ4) -> dict[str, Any]:
    return {"stored_nbytes": stored, "raw_nbytes": raw, "codec": codec}


spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=8)


@pytest.mark.parametrize(("rows_at_once", "most_runs"), [(1, 64), (3, 64), (8192, 64), (2, 0), (2, 3)])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_storage_order_in_pieces(
    monkeypatch: pytest.MonkeyPatch, rows_at_once: int, most_runs: int, data: st.DataObject
) -> None:
    """Payloads of several fields come in the order of their offsets, whatever the pieces, empty ones left out."""
    monkeypatch.setattr(index_checks, "_ROWS_AT_ONCE", rows_at_once)
    monkeypatch.setattr(index_checks, "_MOST_RUNS", most_runs)
    count = data.draw(st.integers(0, 12))
    fields = data.draw(
        st.lists(
            st.lists(st.tuples(st.integers(0, 40), st.integers(0, 3)), min_size=count, max_size=count),
            min_size=1,
            max_size=3,
        )
    )
    mostly = data.draw(st.booleans())
    fields = [sorted(rows)[3:] + sorted(rows)[:3] if mostly else rows for rows in fields]
    columns = [
        (np.array([at for at, _ in rows], np.int64), np.array([n for _, n in rows], np.uint32)) for rows in fields
    ]
    found = [
        tuple(map(int, one)) for part in index_checks._in_storage_order(columns) for one in zip(*part, strict=True)
    ]
    every = [(at, n, f, row) for f, rows in enumerate(fields) for row, (at, n) in enumerate(rows) if n]
    assert sorted(found) == sorted(every)
    assert [one[0] for one in found] == sorted(one[0] for one in every)


@given(spans, spans, st.booleans())
def test_payloads_overlap_when_they_share_a_byte(
    first: list[tuple[int, int]], second: list[tuple[int, int]], in_order: bool
) -> None:
    if in_order:
        first, second = sorted(first), sorted(second)
    count = min(len(first), len(second))
    both = first[:count] + second[:count]
    times = np.zeros(100, int)
    for at, nbytes in both:
        times[at : at + nbytes] += 1
    rows, others = [plain(*span) for span in first[:count]], [plain(*span) for span in second[:count]]
    if times.max(initial=0) <= 1:
        check("bytes", rows, second=others)
        return
    with pytest.raises(CorruptError, match="another payload") as caught:
        check("bytes", rows, second=others)
    # The one that is named shares a byte with another.
    assert caught.value.sample is not None
    at, nbytes = (first if caught.value.field == "f" else second)[caught.value.sample]
    assert times[at : at + nbytes].max() > 1


@pytest.mark.parametrize(
    ("kind", "row"),
    [
        ("bytes", plain(DATA_NBYTES - 5, 5)),
        ("bytes", plain(DATA_NBYTES, 0)),
        ("bytes", compressed(10, 2550)),
        ("array", {**plain(0, 24), "type": "float32[2,3]"}),
        ("array", {**compressed(10, 24), "type": "float32[2,3]"}),
        ("image", image(60, 6, 10, CODEC_RAW)),
        ("image", image(360, 6, 10, CODEC_RAW, channels=3, bits=16)),
        ("image", image(10, 50, 51, CODEC_LZ4)),
        ("image", image(8 + 4 + 4 * 12 + 40, 100, 100, CODEC_TILES)),
        ("image", image(16 + 4 + 100 * 12 + 1607, 640, 640, CODEC_TILES)),
        ("image", image(10, 512, 10, CODEC_JPEG)),
        ("image", image(50, 16000, 16000, CODEC_FILE, channels=3, bits=16) | {"stored_nbytes": 50}),
    ],
)
def test_a_consistent_index_is_accepted(kind: Any, row: dict[str, Any]) -> None:
    check(kind, [row])


@pytest.mark.parametrize(
    ("kind", "row", "reason"),
    [
        ("bytes", plain(-1, 5), f"data.mdb's {DATA_NBYTES} bytes"),
        ("bytes", plain(DATA_NBYTES - 4, 5), f"data.mdb's {DATA_NBYTES} bytes"),
        ("bytes", plain(2**63 - 1, 5), f"data.mdb's {DATA_NBYTES} bytes"),
        ("bytes", plain(-(2**63), 5), f"data.mdb's {DATA_NBYTES} bytes"),
        ("bytes", {**plain(0, 5), "raw_nbytes": 6}, "the raw codec"),
        ("bytes", compressed(10, 2551), "its codec, which cannot compress"),
        ("bytes", compressed(0, 1), "its codec, which cannot compress"),
        ("bytes", compressed(DATA_NBYTES, MAX_PAYLOAD_NBYTES + 1), "bytes that one payload may have"),
        ("json", compressed(5, 5, CODEC_TILES), "the codecs of jsons"),
        (
            "json",
            compressed(5, 5, 255),
            "the codecs, 0 to 4",
        ),
        ("array", {**plain(0, 25), "type": "float32[2,3]"}, "its array's type"),
        ("array", {**compressed(10, 24), "type": "float64[2,3]"}, "its array's type"),
        ("image", image(0, 0, 0, CODEC_RAW), "an image: one of height"),
        ("image", image(0, 0, 10, CODEC_RAW), "an image: one of height"),
        ("image", image(120, 6, 10, CODEC_RAW, channels=2), "an image: one of height"),
        ("image", image(60, 6, 10, CODEC_RAW, bits=15), "an image: one of height"),
        ("image", image(61, 6, 10, CODEC_RAW) | {"raw_nbytes": 61}, "its height, width"),
        ("image", image(60, 2**32 - 1, 2**32 - 1, CODEC_RAW) | {"raw_nbytes": 60}, "its height, width"),
        ("image", image(10, 51, 51, CODEC_LZ4), "its codec, which cannot compress"),
        ("image", image(8 + 4 + 4 * 12 + 39, 100, 100, CODEC_TILES), "its codec, which cannot compress"),
        ("image", image(16 + 4 + 100 * 12 + 1606, 640, 640, CODEC_TILES), "its codec, which cannot compress"),
        ("image", image(10, 513, 10, CODEC_JPEG), "its codec, which cannot compress"),
        ("image", image(100, 6, 10, CODEC_JPEG, bits=16), "its codec, which has fewer bits"),
        ("image", image(50, 27000, 27000, CODEC_FILE, channels=3), "bytes that one payload may have"),
        ("image", image(50, 6, 10, 6), "the codecs, 0 to 4"),
    ],
)
def test_a_contradiction_is_refused_by_name(kind: Any, row: dict[str, Any], reason: str) -> None:
    sound = (
        {"type": "bool[0]", **image(0, 1, 1, CODEC_FILE, stored_nbytes=1)} if kind == "image" else {"type": "bool[0]"}
    )
    rows = [sound, row, sound]
    with pytest.raises(
        CorruptError, match=rf"^/d/index\.arrow: row 1 \(from 1\.png\), field 'f': .* does not fit .*{reason}"
    ) as caught:
        check(kind, rows, sources=True)
    error = caught.value
    assert (error.sample, error.field, error.source, error.path) == (1, "f", "1.png", "/d")
    with pytest.raises(CorruptError, match=r"row 1, field 'f'"):
        check(kind, rows)


@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_rows_are_numbered_from_the_first_in_every_part(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_checks, "_ROWS_AT_ONCE", at_once)
    rows = [plain(10 * i, 10) for i in range(7)]
    check("bytes", rows)
    with pytest.raises(CorruptError, match="row 4"):
        check("bytes", [*rows[:4], {**rows[4], "raw_nbytes": 9}, *rows[5:]])


@pytest.mark.parametrize(("key", "name"), [("payload_nbytes", "stored_nbytes"), ("raw_nbytes", "raw_nbytes")])
def test_lengths_add_up_to_the_sizes_in_the_manifest(key: str, name: str) -> None:
    with pytest.raises(CorruptError, match=rf"its {name} add up to 15, but manifest\.json states {key} 16"):
        check("bytes", [plain(0, 5), plain(5, 10)], **{key: 16})


def test_a_type_that_does_not_parse_is_named() -> None:
    with pytest.raises(
        FormatError, match=r"^/d/index\.arrow: field 'f': array type 'float32': expected something like"
    ):
        check("array", [{"type": "float32"}])


def test_no_rows_and_no_payloads_are_fine() -> None:
    check("bytes", [])
    check("image", [])
    check("array", [])
    check("int", [{}, {}])


sizes = st.lists(st.sampled_from([0, 1, 2, 7, 10, 999, 10**6, 10**12 - 1]), max_size=8)
sound = st.builds(array_type, st.sampled_from(sorted(ARRAY_DTYPES)), sizes)
odd = st.sampled_from(
    ["", "[", "]", "[]", "float32", "float32[", "float32]", "float32[3", "float32[,]", "float32[3,]", "float32[,3]",
     "float32[3][3]", "float32[3]x", "xfloat32[3]", "float32 [3]", "float32[ 3]", "float32[-3]", "float32[1_0]",
     "float32[3;4]", "object[3]", "Float32[3]", "float32\0[3]", "float32[\0]", "float32[٣]", "float32[1000000000000]",
     "float32[03]", "complex128x[3]", "f" * 40 + "[3]",
     f"bool[{','.join(['1'] * 33)}]", f"bool[{','.join(['1'] * 32)}]"]
) | st.text("float32[],0 ", max_size=14) | st.text(max_size=6)  # fmt: skip


@pytest.mark.parametrize("at_once", [1, 3, 4096])
@example(texts=["float32[3]"], other="float32\0[3]", skipped=0)
@given(texts=st.lists(sound, max_size=8), other=st.none() | odd, skipped=st.integers(0, 2))
def test_lengths_are_those_of_each_type(texts: list[str], other: str | None, skipped: int, at_once: int) -> None:
    texts = texts if other is None else [*texts, other, *texts]
    column = texts_of(["bool[]"] * skipped + texts).part(skipped, skipped + len(texts))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_checks, "_TYPES_AT_ONCE", at_once)
        try:
            wanted = [parse_array_type(text) for text in texts]
        except FormatError:
            with pytest.raises(FormatError, match="expected something like"):
                array_nbytes(column)
            return
        found = array_nbytes(column).tolist()
    for (dtype, shape), nbytes in zip(wanted, found, strict=True):
        itemsize = np.dtype(dtype).itemsize
        product, spread = (
            float(np.prod([itemsize, *part], dtype=np.float64)) for part in (shape, np.maximum(shape, 1))
        )
        assert nbytes == (product if spread <= 2.0**62 else np.inf)


def test_an_array_of_the_largest_sizes_can_be_made() -> None:
    nbytes = array_nbytes(texts_of(["uint8[0,999999999999]", "uint8[0,999999999999,999999999999]"]))
    assert nbytes.tolist() == [0, np.inf]
    assert np.empty(0, np.uint8).reshape(0, 10**12 - 1).nbytes == 0
    with pytest.raises(ValueError, match="too big"):
        np.empty(0, np.uint8).reshape(0, 10**12 - 1, 10**12 - 1)
