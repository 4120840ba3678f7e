"""A user's project is checked by mypy in strict mode, and every public name has a type there."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import lmdbloader

pytest.importorskip("mypy", reason="mypy (the extra `dev`) is not installed")

ROOT = Path(__file__).resolve().parent.parent
PROJECT = ROOT / "tests" / "data" / "typed_project"
MODULES = ("errors", "fields", "integrations", "lab", "ray", "superres", "superres.degradations", "transforms")
# As in an installed package: what mypy would say of the package's own lines is not shown.
MYPY = ("-m", "mypy", "--strict", "--follow-imports=silent", "--ignore-missing-imports", "--no-error-summary")


def check(path: Path, folder: Path) -> str:
    """Return what mypy says of a file, without the package's settings."""
    settings = folder / "mypy.ini"
    # Numba's types say that a compiled function takes no arguments.
    settings.write_text("[mypy]\n[mypy-numba.*,llvmlite.*]\nfollow_imports = skip\n", "utf-8")
    command = [sys.executable, *MYPY, "--config-file", str(settings), "--cache-dir", str(folder / "cache"), str(path)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500).stdout


def public_names() -> list[str]:
    """Return every public name of the package and of its public modules."""
    names = [f"lmdbloader.{name}" for name in lmdbloader.__all__]
    for module in MODULES:
        names += [f"lmdbloader.{module}.{name}" for name in importlib.import_module(f"lmdbloader.{module}").__all__]
    return names


def test_a_strict_project_has_no_errors_and_every_public_name_has_a_type_and_no_other_exists(tmp_path: Path) -> None:
    names = public_names()
    places = ["lmdbloader", *(f"lmdbloader.{module}" for module in MODULES)]
    unknown = [f"{place}.no_such_name" for place in places]
    source = (PROJECT / "training.py").read_text("utf-8")
    imports = [f"import {place}" for place in places]
    lines = [source, *imports, *unknown, *(f"reveal_type({name})" for name in names)]
    program = tmp_path / "names.py"
    program.write_text("\n".join(lines) + "\n", "utf-8")
    said = check(program, tmp_path)
    errors = [line for line in said.splitlines() if ": error:" in line]
    assert [line for line in errors if "no_such_name" not in line] == []
    assert len(errors) == len(unknown)
    revealed = re.findall(r'Revealed type is "(.*)"', said)
    assert len(revealed) == len(names)
    assert [name for name, kind in zip(names, revealed, strict=True) if kind in ("Any", "builtins.object")] == []
