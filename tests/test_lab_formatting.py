"""Tables and paragraphs of reports: columns are aligned, and no text is lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lmdbloader.lab.formatting import Column, Table, align, define, percent, wrap

CELLS = st.text("abc 1,.%", max_size=9)


@given(st.integers(1, 4).flatmap(lambda n: st.lists(st.lists(CELLS, min_size=n, max_size=n), min_size=1, max_size=6)))
def test_columns_are_aligned(rows: list[list[str]]) -> None:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row, line in zip(rows, align(rows, indent="> "), strict=True):
        line = line.ljust(2 + sum(widths) + 2 * (len(widths) - 1))
        assert line.startswith("> ")
        at = 2
        for i, (cell, width) in enumerate(zip(row, widths, strict=True)):
            assert line[at : at + width] == (cell.ljust(width) if i == 0 else cell.rjust(width))
            at += width + 2


@given(st.lists(st.text("abcdefgh-", min_size=1, max_size=12), min_size=1, max_size=40))
def test_a_wrapped_paragraph_keeps_its_words(words: list[str]) -> None:
    lines = wrap(" ".join(words), "- ", "  ", width=40)
    assert lines[0].startswith("- ") and all(line.startswith("  ") for line in lines[1:])
    assert " ".join(line[2:] for line in lines).split() == words
    assert max(map(len, lines)) <= 40


def test_values_are_aligned_under_each_other_and_wrapped() -> None:
    lines = define([("cores", "2"), ("memory", "8 GiB of 16 GiB")], indent=" ", width=18)
    assert lines == [" cores   2", " memory  8 GiB of", "         16 GiB"]


def test_a_table_shows_its_values() -> None:
    table = Table("Waits", (Column("source", is_text=True), Column("share", percent)), (("a", 0.5), ("b", 0.004)))
    assert table.cells() == [["a", "50 %"], ["b", "0.4 %"]]
    assert table.header == ["source", "share"]
