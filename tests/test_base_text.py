"""Texts for people: whatever a file is called, a terminal shows it and does nothing else."""

from __future__ import annotations

import unicodedata

from hypothesis import example, given
from hypothesis import strategies as st

from lmdbloader.base.text import plain, table

ANY = st.text(st.characters())
ALLOWED = {"Zs"}


@given(ANY)
@example("\x1b]0;title\x07\x9b2J\r\n\t\0\x7f")
@example("\u202e\u2066\u200f\u2028\u2029\ufeff")
@example("\ud800 \udcff")
def test_nothing_is_left_that_a_terminal_acts_on(text: str) -> None:
    shown = plain(text)
    assert all(c.isprintable() or unicodedata.category(c) in ALLOWED for c in shown)
    assert plain(shown) == shown
    shown.encode()


@given(ANY)
def test_what_a_terminal_shows_stays_as_it_is(text: str) -> None:
    kept = "".join(c for c in text if c.isprintable())
    assert plain(kept) == kept
    assert [c for c in plain(text) if c in kept or c == "\\"] or not kept


@given(st.lists(st.tuples(ANY, ANY), max_size=4))
def test_a_table_has_a_line_for_each_row(rows: list[tuple[str, str]]) -> None:
    lines = table(rows).decode().split("\n")
    assert lines.pop() == ""
    assert [tuple(line.split("\t")) for line in lines] == [(plain(a), plain(b)) for a, b in rows]
