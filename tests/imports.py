"""Which module imports which: the imports of Python files, wherever in them, and the modules that they reach."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "lmdbloader"


def modules_of(package: Path) -> dict[str, Path]:
    """Return the dotted name and the file of every module of a package."""
    names = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


def imports_of(name: str, path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the absolute dotted name of everything that a module imports, wherever in it."""
    here = name.split(".") if path.stem == "__init__" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text("utf-8"), str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield node.lineno, f"{source}.{alias.name}"


def module_of(target: str, modules: Mapping[str, Path]) -> str:
    """Return the module that an imported name belongs to; "" if it is none of `modules`."""
    while target and target not in modules:
        target = target.rpartition(".")[0]
    return target


def reached(start: str, imported_by: Callable[[str], set[str]]) -> set[str]:
    """Return every module that a module imports, directly or through others."""
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        new = imported_by(waiting.pop()) - seen
        seen |= new
        waiting += new
    return seen
