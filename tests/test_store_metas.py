"""LMDB's two first pages after a power cut: nothing was committed, or the last transaction is taken back."""

from __future__ import annotations

import itertools
from pathlib import Path

import lmdb
import pytest

from lmdbloader.store.care.metas import last_transactions, take_back_torn
from lmdbloader.store.foreign import page_problems

PAGE = 4096
# What a commit writes of a page, in sectors of 64 bytes.
SECTORS = ((0, 64), (64, 128), (128, 192))


def commit(path: Path, number: int) -> None:
    with lmdb.open(str(path), subdir=False, lock=False, map_size=2**24) as env, env.begin(write=True) as transaction:
        for row in range(6):
            transaction.put(f"{number:04}{row}".encode(), bytes([number]) * 9000)
        for row in range(3):
            transaction.delete(f"{number - 1:04}{row}".encode())


def keys(path: Path) -> list[bytes]:
    with lmdb.open(str(path), subdir=False, lock=False, readonly=True) as env, env.begin() as transaction:
        return [bytes(key) for key, _ in transaction.cursor()]


def transactions(path: Path) -> tuple[int, int]:
    with open(path, "rb") as file:
        return last_transactions(file.fileno())


def test_the_transactions_that_the_pages_tell_of(tmp_path: Path) -> None:
    path = tmp_path / "data.mdb"
    path.touch()
    assert transactions(path) == (0, 0)
    lmdb.open(str(path), subdir=False, lock=False).close()
    assert transactions(path) == (0, 0)
    for number, expected in ((1, (0, 1)), (2, (2, 1)), (3, (2, 3))):
        commit(path, number)
        assert transactions(path) == expected
    data = path.read_bytes()
    path.write_bytes(bytes(PAGE) + data[PAGE:])
    assert transactions(path) == (0, 3)
    path.write_bytes(bytes(len(data)))
    assert transactions(path) == (0, 0)


@pytest.mark.parametrize("number", [1, 2, 5])
def test_a_transaction_whose_page_was_torn_is_taken_back_or_whole(number: int, tmp_path: Path) -> None:
    path = tmp_path / "data.mdb"
    for earlier in range(1, number):
        commit(path, earlier)
    lmdb.open(str(path), subdir=False, lock=False).close()
    before, kept = path.read_bytes(), keys(path)
    commit(path, number)
    after, committed = path.read_bytes(), keys(path)
    at = number % 2 * PAGE
    torn = 0
    for landed in itertools.product((False, True), repeat=len(SECTORS)):
        page = bytearray(before[at : at + PAGE])
        for (first, last), is_there in zip(SECTORS, landed, strict=True):
            if is_there:
                page[first:last] = after[at + first : at + last]
        path.write_bytes(after[:at] + page + after[at + PAGE :])
        if page_problems(path):
            assert take_back_torn(path), landed
            torn += 1
        assert page_problems(path) == []
        # The last sector holds the number. A first one that is as it was before may make no difference.
        assert keys(path) in ((committed,) if all(landed) else (kept, committed) if landed[2] else (kept,))
        commit(path, number)  # again, as a conversion that goes on does
        assert page_problems(path) == [] and keys(path) == committed
    assert torn > 0


def test_damage_elsewhere_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "data.mdb"
    for number in (1, 2, 3):
        commit(path, number)
    data = bytearray(path.read_bytes())
    for at in range(2 * PAGE, len(data), PAGE):  # every page that a tree has
        if data[at + 10] in (1, 2):
            data[at + 12] ^= 0xFF
    path.write_bytes(data)
    assert page_problems(path)
    assert not take_back_torn(path)
    assert path.read_bytes() == data
