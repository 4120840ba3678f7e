"""Signatures of kernels are read as written, and arguments become the words that compiled code expects."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmdbloader.kernels.calls.signatures import NUM_RESULTS, Array, Group, Number, address_of, parse
from lmdbloader.kernels.entries import all_entries

KINDS = ["i64", "u64", "i32", "u32", "u16", "u8", "f32", "f64", "bool"]
kinds = st.recursive(
    st.builds(Number, st.sampled_from(KINDS)) | st.builds(Array, st.sampled_from(KINDS), st.integers(1, 3)),
    lambda inner: st.builds(Group, st.lists(inner, max_size=4).map(tuple)),
    max_leaves=8,
)


def written(kind: Any) -> str:
    if isinstance(kind, Group):
        return f"({''.join(f'{written(item)}, ' for item in kind.items)})"
    return kind.code + (f"[{','.join(':' * kind.ndim)}]" if isinstance(kind, Array) else "")


@given(st.lists(kinds, max_size=5), st.lists(st.sampled_from(KINDS), max_size=3))
def test_what_is_written_is_read(arguments: list[Any], results: list[str]) -> None:
    text = ", ".join(f"a{number}: {written(kind)}" for number, kind in enumerate(arguments))
    found = parse(f"some.where.name({text})" + (f" -> {', '.join(results)}" if results else ""))
    assert (found.module, found.name, found.results) == ("some.where", "name", tuple(results))
    assert found.arguments == tuple((f"a{number}", kind) for number, kind in enumerate(arguments))
    places = [found.place(f"a{number}") for number in range(len(arguments))]
    assert places == (NUM_RESULTS + np.cumsum([0, *(kind.num_words for kind in arguments)])).tolist()[: len(arguments)]


@pytest.mark.parametrize("text", ["a.f(x: i65)", "a.f(x: i64) -> y", "a.f(x: (i64, i65))"])
def test_an_unknown_type_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="is not the name of a type"):
        parse(text)


def test_numbers_arrays_and_tuples_become_words() -> None:
    signature = parse("a.f(n: i64, big: u64, real: f64, flag: bool, pair: (u8, i64), data: u16[:,:])")
    data = np.zeros((3, 5), np.uint16)
    words = signature.pack((-7, 2**64 - 1, 0.5, True, (255, -1), data))
    (bits,) = struct.unpack("q", struct.pack("d", 0.5))
    assert words == [0] * NUM_RESULTS + [-7, -1, bits, 1, 255, -1, data.ctypes.data, 3, 5]


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (np.zeros(3, np.int32), r"ndarray of int32, shape \(3,\)"),
        (np.zeros((3, 1), np.int64), r"ndarray of int64, shape \(3, 1\)"),
        (np.zeros(6, np.int64)[::2], r"ndarray of int64, shape \(3,\) and strides \(16,\)"),
        (np.zeros(3, ">i8"), "ndarray of >i8"),
        ([1, 2, 3], "list"),
        (None, "NoneType"),
    ],
)
def test_another_kind_of_array_is_refused(value: Any, found: str) -> None:
    with pytest.raises(TypeError, match=f"f, argument rows: expected a contiguous array of int64 .* got {found}"):
        parse("a.f(rows: i64[:])").pack((value,))


def test_another_number_of_arguments_is_refused() -> None:
    with pytest.raises(TypeError, match="f: expected 2 arguments, got 1"):
        parse("a.f(x: i64, y: i64)").pack((1,))


def test_the_address_of_an_array_is_numpys() -> None:
    writable = np.arange(10)[3:]
    read_only = writable.view()
    read_only.flags.writeable = False
    for array in (writable, read_only, writable[:0], np.frombuffer(b"abc", np.uint8)):
        assert address_of(array) == array.ctypes.data


def test_every_entry_can_be_read_and_has_a_name_of_its_own() -> None:
    names = [name for entry in all_entries() for name in entry.variants]
    assert len(names) == len(set(names)) > 30
