"""Texts for people: terminals never act on the characters of a file's name."""

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
def test_control_characters_are_escaped(text: str) -> None:
    shown = plain(text)
    assert all(c.isprintable() or unicodedata.category(c) in ALLOWED for c in shown)
    assert plain(shown) == shown
    shown.encode()


@given(ANY)
def test_printable_text_is_unchanged(text: str) -> None:
    kept = "".join(c for c in text if c.isprintable())
    assert plain(kept) == kept
    assert [c for c in plain(text) if c in kept or c == "\\"] or not kept


@given(st.lists(st.tuples(ANY, ANY), max_size=4))
def test_a_table_has_a_line_for_each_row(rows: list[tuple[str, str]]) -> None:
    lines = table(rows).decode().split("\n")
    assert lines.pop() == ""
    assert [tuple(line.split("\t")) for line in lines] == [(plain(a), plain(b)) for a, b in rows]
