"""Imports point one way: every module imports only from the layers above its own, and heavy packages have one home."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "lmdbloader"

# A module imports only from the lines above its own. A new one must be given its place here.
LAYERS = (
    "codes",
    "descriptors",
    "words",
    "errors",
    "files",
    "format",
    "cores",
    "limits",
    "units",
    "bars",
    "arguments",
    "machine",
    "planning",
    "kernels",
    "stages",
    "codecs",
    "digests",
    "manifest",
    "imagefiles",
    "images",
    "resize",
    "store",
    "looking",
    "sources",
    "batch_functions",
    "transforms",
    "resolution",
    "programs",
    "sampling",
    "buffers",
    "shared",
    "batches",
    "splits",
    "pipeline",
    "columns",
    "dataset",
    "workers",
    "settings",
    "loading",
    "loader",
    "profiling",
    "tuning",
    "checkup",
    "conversion",
    "staging",
    "checkpoints",
    "superres",
    "classify",
    "extraction",
    "study",
    "reporting",
    "cli",
    "__main__",
)
# Packages that only one layer may import.
HOMES = {"lmdb": "store", "numba": "kernels", "llvmlite": "kernels"}


def imports_of(path: Path, package: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the absolute dotted name of everything that a module imports, wherever in it."""
    here = (package.name, *path.relative_to(package).with_suffix("").parts)
    for node in ast.walk(ast.parse(path.read_text("utf-8"), str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = (*here[: len(here) - node.level],) if node.level else ()
            source = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield node.lineno, f"{source}.{alias.name}"


def violations(package: Path, layers: Sequence[str], homes: dict[str, str]) -> list[str]:
    """Return one line for every import that points down, goes through the package's root, or leaves its one home."""
    found = []
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        if parts == ("__init__",):
            continue  # the lazy root: it names its modules for type checkers, and imports them when asked
        layer = parts[0]
        where = f"{package.name}/{path.relative_to(package)}"
        if layer not in layers:
            found.append(f"{where}: {layer!r} has no place in LAYERS")
            continue
        for line, name in imports_of(path, package):
            target = name.split(".")
            if homes.get(target[0], layer) != layer:
                found.append(f"{where}:{line}: {target[0]} is imported by {homes[target[0]]} only")
            if target[0] != package.name or name == f"{package.name}.__version__":
                continue
            if len(target) == 1 or target[1] not in layers:
                found.append(f"{where}:{line}: imports {name}; name the module that it lives in")
            elif layers.index(target[1]) > layers.index(layer):
                found.append(f"{where}:{line}: {layer} imports {target[1]}, which is below it")
    return found


def test_every_module_imports_only_from_the_layers_above_it() -> None:
    assert violations(PACKAGE, LAYERS, HOMES) == []


def test_every_layer_is_there() -> None:
    present = {path.stem for path in PACKAGE.glob("*.py")} | {
        path.parent.name for path in PACKAGE.glob("*/__init__.py")
    }
    assert [layer for layer in LAYERS if layer not in present] == []


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("errors.py", "from planted.store import open", "errors imports store"),
        ("errors.py", "def f():\n    import planted.store.reader", "errors imports store"),
        ("errors.py", "from . import store", "errors imports store"),
        ("errors.py", "from .store import reader", "errors imports store"),
        ("store/reader.py", "from ..cli import main", "store imports cli"),
        ("store/reader.py", "from planted import Dataset", "name the module"),
        ("store/reader.py", "import planted", "name the module"),
        ("cli.py", "import lmdb", "lmdb is imported by store only"),
        ("cli.py", "from lmdb import open", "lmdb is imported by store only"),
        ("novelty.py", "", "'novelty' has no place"),
    ],
)
def test_a_planted_violation_is_found(tmp_path: Path, file: str, text: str, expected: str) -> None:
    package = tmp_path / "planted"
    (package / "store").mkdir(parents=True)
    (package / file).write_text(text, "utf-8")
    (found,) = violations(package, ("errors", "store", "cli"), {"lmdb": "store"})
    assert found.startswith(f"planted/{file}")
    assert expected in found


def test_what_the_layers_allow_is_not_reported(tmp_path: Path) -> None:
    package = tmp_path / "planted"
    (package / "store").mkdir(parents=True)
    (package / "__init__.py").write_text("from planted.cli import main", "utf-8")
    (package / "store" / "__init__.py").write_text("import lmdb\nfrom .reader import read", "utf-8")
    (package / "store" / "reader.py").write_text("from ..errors import E\nfrom planted.store.map import m", "utf-8")
    (package / "cli.py").write_text("from planted import __version__\nfrom planted.store import read", "utf-8")
    assert violations(package, ("errors", "store", "cli"), {"lmdb": "store"}) == []


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = "import sys, lmdbloader; print(*sorted(m for m in sys.modules if '.' not in m))"
    child = subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent, capture_output=True, text=True, check=True)
    loaded = set(child.stdout.split())
    assert "lmdbloader" in loaded
    assert loaded.isdisjoint({"torch", "numba", "numpy", "pyarrow", "PIL", "lmdb", "lz4", "simplejpeg", "tqdm"})
