"""Kernels accept any arguments of their types, and prepared calls use the newest arguments."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from lmdbloader.format.codecs import checksum
from lmdbloader.kernels import entries
from lmdbloader.kernels.codec_numbers import OK

NOTHING = np.empty(0, np.uint8)


def test_the_variant_is_the_one_of_the_arguments() -> None:
    for dtype in (np.uint8, np.uint16):
        image = np.arange(4 * 5 * 3).reshape(4, 5, 3).astype(dtype)
        out = np.zeros(2 * 3 * 3, dtype)
        entries.cut(image, 1, 2, 2, 3, out)
        np.testing.assert_array_equal(out.reshape(3, 2, 3), image[1:3, 2:5].transpose(2, 0, 1))
    with pytest.raises(TypeError, match="cut, argument image: expected a contiguous array"):
        entries.cut(image.astype(np.float32), 1, 2, 2, 3, out)
    with pytest.raises(TypeError, match="cut, argument out"):
        entries.cut(image, 1, 2, 2, 3, out.astype(np.uint8))


def test_an_unsigned_number_may_have_all_its_bits() -> None:
    positions, found = np.arange(20), [np.zeros(20, np.int64) for _ in range(2)]
    call = entries.permute.prepare(positions, 20, 0, 0, 1, found[0])
    set_seed, set_epoch = call.number("seed"), call.number("epoch")
    set_seed(2**64 - 1)
    set_epoch(2**63)
    call()
    entries.permute(positions, 20, 2**64 - 1, 2**63, 1, found[1])
    np.testing.assert_array_equal(*found)


def test_a_call_keeps_none_of_its_arguments() -> None:
    out = np.zeros(3, np.uint16)
    gone = weakref.ref(out)
    gc.disable()
    try:
        entries.cut(np.zeros((1, 1, 3), np.uint16), 0, 0, 1, 1, out)  # of two variants it is the second
        del out
        assert gone() is None
    finally:
        gc.enable()


def gathering(payloads: list[bytes]) -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray, ...]]:
    data = np.frombuffer(b"".join(payloads), np.uint8).copy()
    nbytes = np.array([len(p) for p in payloads], np.uint32)
    offset = np.cumsum(nbytes).astype(np.int64) - nbytes
    sums = np.array([checksum(p) for p in payloads], np.uint64)
    return data, offset, (offset, nbytes, nbytes, sums, np.zeros(len(payloads), np.uint8))


def test_a_prepared_call_uses_what_was_set_last() -> None:
    data, _, columns = gathering([bytes([65 + i]) * (i + 1) for i in range(20)])
    geometry = columns[1], columns[1], columns[4], columns[4]
    failed = np.zeros(1, np.int64)
    call = entries.gather.prepare(
        (data.ctypes.data, data.size, -1, 0, 0), np.zeros(0, np.int64), columns, True, geometry, 1,
        np.empty((0, 4), np.int64), NOTHING, np.zeros(0, np.int64), np.zeros(0, np.int64), NOTHING, NOTHING, NOTHING,
        failed,
    )  # fmt: skip
    set_rows, set_start, set_out = call.copied("rows"), call.copied("out_start"), call.array("out")
    set_nbytes, set_verify = call.copied("out_nbytes"), call.number("verify")
    rng = np.random.default_rng(0)
    for count in (1, 3, 2, 0, 20, 7, 1):
        rows = rng.permutation(20)[:count]
        lengths = rows + 1
        out = np.full(int(lengths.sum()) + 1, 46, np.uint8)
        set_rows(rows)
        set_start(np.cumsum(lengths) - lengths)
        set_nbytes(lengths)
        set_out(out)
        gc.collect()
        assert call() == OK
        assert out.tobytes() == b"".join(bytes([65 + i]) * (i + 1) for i in rows) + b"."
    columns[3][4] ^= np.uint64(1)
    set_rows(np.array([2, 4]))
    set_start(np.array([0, 3]))
    set_nbytes(np.array([3, 5]))
    set_out(out := np.zeros(8, np.uint8))
    assert call() != OK
    assert failed[0] == 1
    set_verify(False)
    assert call() == OK
    assert out.tobytes() == b"CCCEEEEE"
