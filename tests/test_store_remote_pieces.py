"""The pieces on the disk: which ones ranges touch, what another layout is, and claims of several at once."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import numpy as np
import pytest

from lmdbloader import errors
from lmdbloader.store.remote import cache as cache_module
from lmdbloader.store.remote.pieces import PER_GROUP, PIECE_NBYTES, STATES_NAME, Pieces, claims_of

NBYTES = 300 * PIECE_NBYTES + 17


@pytest.fixture
def pieces(tmp_path: Path) -> Pieces:
    return Pieces(tmp_path, NBYTES)


def fill(pieces: Pieces, first: int, count: int, *, passing: bool) -> None:
    start, stop = pieces.bounds(first, first + count)
    pieces.put(first, memoryview(bytes(stop - start)), np.full(count, passing))


@pytest.mark.parametrize("longest", [1, 3000, PIECE_NBYTES, 5 * PIECE_NBYTES])
def test_ranges_touch_these_pieces_in_their_order(pieces: Pieces, longest: int) -> None:
    rng = np.random.default_rng(longest)
    starts = rng.integers(0, NBYTES - longest, 100)
    stops = starts + rng.integers(1, longest + 1, 100)
    touched = [range(a // PIECE_NBYTES, (b - 1) // PIECE_NBYTES + 1) for a, b in zip(starts, stops, strict=True)]
    assert pieces.of(starts, stops).tolist() == list(dict.fromkeys(piece for each in touched for piece in each))
    here = set(rng.permutation(300)[:250].tolist())
    for piece in here:
        fill(pieces, piece, 1, passing=False)
    assert pieces.are_present(starts, stops).tolist() == [here.issuperset(each) for each in touched]


def test_what_is_kept_does_not_become_passing_by_another_fetch(pieces: Pieces) -> None:
    fill(pieces, 0, 4, passing=False)
    fill(pieces, 2, 4, passing=True)
    assert pieces.passing[:7].tolist() == [0, 0, 0, 0, 1, 1, 0]
    assert pieces.free(4, 6)
    assert pieces.states[:7].tolist() == [1, 1, 1, 1, 0, 0, 0]
    assert Pieces(pieces.folder, NBYTES).passing[:7].tolist() == [0, 0, 0, 0, 1, 1, 0]


def test_the_cache_of_another_layout_is_not_read(tmp_path: Path) -> None:
    fill(Pieces(tmp_path, NBYTES), 0, 4, passing=False)
    with open(tmp_path / STATES_NAME, "r+b") as file:
        file.write(b"lmdbloader pieces 1\n")
    with pytest.raises(errors.CorruptError, match="Delete the folder"):
        Pieces(tmp_path, NBYTES)


def test_a_choice_keeps_groups_up_to_the_limit_and_more_for_more(pieces: Pieces) -> None:
    numbers, before = np.arange(pieces.count), np.zeros(pieces.count, np.bool_)
    for limit in (0, 2**20 - 1, 2**20, 7 * 2**20, NBYTES - 1, NBYTES):
        choice = cache_module.Choice(pieces, limit)
        kept = choice.of(numbers)
        assert kept.sum() * PIECE_NBYTES <= limit + PIECE_NBYTES  # the last piece is shorter
        assert (kept | ~before).all()
        groups = [set(kept[k : k + PER_GROUP].tolist()) for k in range(0, pieces.count, PER_GROUP)]
        assert max(map(len, groups)) == 1
        assert choice.is_all == kept.all() == (limit == NBYTES)
        before = kept


def test_what_is_kept_is_fetched_with_its_neighbours(pieces: Pieces) -> None:
    fill(pieces, 17, 2, passing=False)
    whole = cache_module.Choice(pieces, NBYTES)
    assert whole.widened(np.array([20, 300])).tolist() == [16, *range(19, 32), *range(288, 301)]
    none = cache_module.Choice(pieces, 0)
    assert none.widened(np.array([20, 300, 5])).tolist() == [20, 300, 5]


def test_claims_of_several_are_all_or_none_and_readers_keep_theirs(tmp_path: Path) -> None:
    claims = claims_of(tmp_path / "claims")
    claims.held[3] = 1
    assert claims.claim(0, 8)
    claims.unclaim(0, 8)  # but a shared one of piece 3
    ours, theirs = multiprocessing.Pipe()

    def try_all() -> None:
        theirs.send([claims.claim(0, 8), claims.claim(0, 3), claims.claim(4, 4), claims.claim(3, shared=True)])

    child = multiprocessing.get_context("fork").Process(target=try_all)
    child.start()
    assert ours.recv() == [False, True, True, True]
    child.join()
