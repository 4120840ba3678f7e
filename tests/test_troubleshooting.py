"""The troubleshooting page: its messages are the package's, and every error class has one."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from lmdbloader import errors

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "troubleshooting.md"
GAP = "\0"  # stands for a value in a message


def text_of(node: ast.AST) -> str | None:
    """Return the text of a string in the source, with `GAP` for each value in it; None for other nodes."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(GAP if text is None else text for text in map(text_of, node.values))
    return None


def class_of(node: ast.AST) -> str | None:
    """Return the error class that an expression such as `CorruptError(...)` makes."""
    named = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in errors.__all__
    return node.func.id if named else None  # type: ignore[attr-defined]


def strings_of(node: ast.AST, kind: str | None = None) -> Iterator[tuple[str, str | None]]:
    """Yield every text below a node, with the error class in whose call it is."""
    kind = class_of(node) or kind
    text = text_of(node)
    if text is not None:
        yield text, kind
    for child in ast.iter_child_nodes(node):
        yield from strings_of(child, kind)


@cache
def strings() -> list[tuple[str, str | None]]:
    """Return every text in the source of the package and the scripts, and the error class in whose call it is."""
    files = [file for folder in ("lmdbloader", "scripts") for file in (ROOT / folder).rglob("*.py")]
    return [found for file in files for found in strings_of(ast.parse(file.read_text("utf-8")))]


def classes_with(message: str) -> set[str | None]:
    """Return the classes whose messages contain this one; None for a text outside of the call of an error class."""
    pattern = re.compile(".*".join(map(re.escape, re.split(r" ?\.\.\. ?", message))), re.DOTALL)
    return {kind for text, kind in strings() if pattern.search(text)}


def messages() -> list[tuple[str, str]]:
    """Return the messages of ours on the page, each with the heading above it."""
    ours = PAGE.read_text("utf-8").partition("## Messages of lmdbloader")[2].partition("\n## ")[0]
    found, heading = [], ""
    for line in ours.splitlines():
        heading = line[4:] if line.startswith("### ") else heading
        if re.fullmatch(r"`[^`]+`", line):
            found.append((heading, line.strip("`")))
    return found


@pytest.mark.parametrize(("kind", "message"), messages())
def test_a_message_of_the_page_is_one_of_the_package(kind: str, message: str) -> None:
    found = classes_with(message)
    assert found, f"no text in lmdbloader/ contains {message!r}"
    assert kind in found or None in found, f"{message!r} is of {found}, the page says {kind}"


def test_every_error_class_has_a_message_on_the_page() -> None:
    assert {kind for kind, _ in messages()} == {*errors.__all__} - {"LmdbloaderError"}


def test_every_message_on_the_page_has_its_explanation() -> None:
    blocks = PAGE.read_text("utf-8").split("\n\n")
    for block, following in itertools.pairwise(blocks):
        if block.startswith("`") and block.rstrip(")").count("`") % 2 == 0:
            assert following.startswith("> "), block
