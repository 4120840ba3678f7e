"""Which room of the package may import which: a table of edges, no cycles, and one home for heavy packages."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from imports import PACKAGE, imports_of, module_of, modules_of, reached

# Every room, and the rooms that it imports, highest first: a room imports only rooms below its own row. All of them may
# import `base` too, which imports nothing of the package.
EDGES = {
    "cli": "ray lab conversion show store",
    "integrations": "superres loader batch transforms",
    "ray": "conversion batch store transforms format",
    "lab": "loader conversion batch show store transforms images format",
    "loader": "conversion batch store transforms format kernels",
    "conversion": "superres store images format kernels",
    "superres": "transforms kernels",
    "batch": "store transforms format kernels",
    "show": "store format",
    "store": "format kernels",
    "transforms": "kernels",
    "format": "images kernels",
    "images": "kernels",
    "kernels": "",
    "base": "",
}
# Single files at the top that have public names, and the rooms whose they are.
FACES = {"errors": "base", "fields": "format"}
# Packages that only one room imports.
HOMES = {"lmdb": "store", "numba": "kernels", "llvmlite": "kernels"}

Edges = Mapping[str, str]


def room_of(name: str, faces: Mapping[str, str]) -> str:
    """Return the room of a module; "" of the package itself.

    >>> room_of("lmdbloader.store.reader", {}), room_of("lmdbloader.errors", {"errors": "base"})
    ('store', 'base')
    """
    _, _, rest = name.partition(".")
    top = rest.partition(".")[0]
    return faces.get(top, top)


def violations(package: Path, edges: Edges, homes: Mapping[str, str], faces: Mapping[str, str]) -> list[str]:
    """Return one line for each import that the table does not allow, each room that it lacks, and each unused edge."""
    found, used = [], set()
    modules = modules_of(package)
    for name, path in modules.items():
        room = room_of(name, faces)
        where = path.relative_to(package.parent).as_posix()
        if room in ("", "__main__"):
            continue  # the lazy root: it names its modules for type checkers, and imports them when they are used
        if room not in edges:
            found.append(f"{where}: {room!r} is not in EDGES")
            continue
        for line, target in imports_of(name, path):
            top = target.split(".")[0]
            if homes.get(top, room) != room:
                found.append(f"{where}:{line}: {top} is imported by {homes[top]} only")
            if top != package.name or target == f"{package.name}.__version__":
                continue
            to = room_of(target, faces)
            if to not in edges:
                found.append(f"{where}:{line}: imports {target}; name the module that defines it")
            elif to not in (room, "base"):
                used.add((room, to))
                if to not in edges[room].split():
                    found.append(f"{where}:{line}: {room} imports {to}: no such edge")
    allowed = [(room, to) for room, below in edges.items() for to in below.split()]
    return [*found, *(f"EDGES: no import from {room} to {to}" for room, to in allowed if (room, to) not in used)]


def cycles(package: Path) -> list[list[str]]:
    """Return the groups of modules that import each other, directly or not, lazily and for type checkers included."""
    modules = modules_of(package)
    graph: dict[str, set[str]] = {package.name: set()}
    for name, path in modules.items():
        if name != package.name:
            targets = {module_of(target, modules) for _, target in imports_of(name, path)}
            graph[name] = targets - {"", name, package.name}
    below = {name: reached(name, graph.__getitem__) for name in graph}
    groups = {frozenset(other for other in below[name] if name in below[other]) for name in graph}
    return sorted(sorted(group) for group in groups if len(group) > 1)


def test_rooms_import_each_other_as_the_table_says() -> None:
    assert violations(PACKAGE, EDGES, HOMES, FACES) == []


def test_the_table_points_downwards() -> None:
    rows = {room: row for row, room in enumerate(EDGES)}
    assert [(room, to) for room in EDGES for to in EDGES[room].split() if rows[to] <= rows[room]] == []
    assert sum(len(below.split()) for below in EDGES.values()) <= 50


def test_modules_import_each_other_in_no_cycle() -> None:
    assert cycles(PACKAGE) == []


def test_the_top_of_the_package_is_small() -> None:
    entries = {path.name for path in PACKAGE.iterdir() if path.name != "__pycache__"}
    entries -= {"__init__.py", "__main__.py", "py.typed"}
    assert len(entries) <= 18
    assert {entry.removesuffix(".py") for entry in entries} == {*EDGES, *FACES}


def plant(package: Path, files: Mapping[str, str]) -> Path:
    """Make a package of two rooms, `cli` above `store` above `base`, with some files added or replaced."""
    sound = {
        "__init__.py": "from planted.cli import main",
        "base/text.py": "",
        "store/__init__.py": "import lmdb\nfrom .reader import read",
        "store/reader.py": "from ..base.text import T\nfrom planted.store.pages import p",
        "store/pages.py": "",
        "cli/__init__.py": "from planted import __version__\nfrom planted.store import read",
        "errors.py": "",
    }
    for name, text in {**sound, **files}.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return package


PLANTED = {"cli": "store", "store": "", "base": ""}


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("base/text.py", "from planted.store import read", "base imports store: no such edge"),
        ("base/text.py", "def f():\n    import planted.store.reader", "base imports store: no such edge"),
        ("base/text.py", "from .. import store", "base imports store: no such edge"),
        ("base/text.py", "from ..store import reader", "base imports store: no such edge"),
        ("base/__init__.py", "from ..store import reader", "base imports store: no such edge"),
        ("errors.py", "if TYPE_CHECKING:\n    from .store import reader", "base imports store: no such edge"),
        ("store/pages.py", "from ..cli import main", "store imports cli: no such edge"),
        ("store/pages.py", "from planted import Dataset", "name the module"),
        ("store/pages.py", "import planted", "name the module"),
        ("cli/main.py", "import lmdb", "lmdb is imported by store only"),
        ("cli/main.py", "from lmdb import open", "lmdb is imported by store only"),
        ("novelty.py", "", "'novelty' is not in EDGES"),
        ("cli/__init__.py", "", "no import from cli to store"),
    ],
)  # fmt: skip
def test_a_planted_violation_is_found(tmp_path: Path, file: str, text: str, expected: str) -> None:
    package = plant(tmp_path / "planted", {file: text})
    (found,) = violations(package, PLANTED, {"lmdb": "store"}, {"errors": "base"})
    assert expected in found
