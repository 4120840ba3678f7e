"""Names of options in messages: every message gets them from `option`, so that a command names its flags."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from pathlib import Path

import lmdbloader
from lmdbloader.conversion.options import RunOptions

PACKAGE = Path(lmdbloader.__file__).parent
NAMES = [f.name for f in fields(RunOptions) if f.metadata["flag"] is not None]
# An option with a value, or a name that is no English word; `{name}` is a place for a name in the text of an option.
BY_HAND = re.compile(rf"\b({'|'.join(NAMES)})=|(?<!{{)\b({'|'.join(name for name in NAMES if '_' in name)})\b")
FOLDERS = ("conversion", "images", "format", "cli")


def texts(path: Path) -> list[str]:
    """Return the sentences in a file that are not docstrings."""
    nodes = [*ast.walk(ast.parse(path.read_text("utf-8")))]
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    constants = (node for node in nodes if isinstance(node, ast.Constant) and id(node) not in docstrings)
    return [node.value for node in constants if isinstance(node.value, str) and " " in node.value]


def test_no_message_names_an_option_by_hand() -> None:
    paths = [path for folder in FOLDERS for path in PACKAGE.glob(f"{folder}/**/*.py")]
    found = {str(path.relative_to(PACKAGE)): [*filter(BY_HAND.search, texts(path))] for path in paths}
    assert {path: lines for path, lines in found.items() if lines} == {}, 'write option("name", value)'
