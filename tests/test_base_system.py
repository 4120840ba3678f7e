"""Only base/system depends on the operating system, and each of its implementations has the same functions."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from imports import PACKAGE, modules_of
from windows import LACKING, MODULES

from lmdbloader.base import system

FOLDER = PACKAGE / "base" / "system"
# Other things that must not be used elsewhere, because systems differ in them.
OTHERS = {
    "os": "fsync fdatasync rename replace renames link name posix_spawn umask startfile",
    "sys": "platform getwindowsversion",
    "platform": "win32_ver mac_ver libc_ver",
    "ctypes": "WinDLL windll FormatError WinError",
}
OPTIONS = {"dir_fd", "pass_fds", "preexec_fn", "start_new_session", "startupinfo", "creationflags"}
IMPORTS = {*MODULES, "msvcrt", "winreg", "_winapi"}
NAMES = {module.__name__: set(names.split()) for module, names in LACKING.items()}
NAMES = {module: NAMES.get(module, set()) | set(OTHERS.get(module, "").split()) for module in {*NAMES, *OTHERS}}
# The files that build and load the kernels name the system of a library.
ELSEWHERE = ("lmdbloader.base.system", "lmdbloader.kernels")


def uses(source: str) -> Iterator[str]:
    """Yield the names in a module that only some systems have, or that differ between them."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] in IMPORTS)
        elif isinstance(node, ast.ImportFrom) and node.module:
            if node.module in IMPORTS:
                yield node.module
            yield from (f"{node.module}.{a.name}" for a in node.names if a.name in NAMES.get(node.module, ()))
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.attr in NAMES.get(node.value.id, ()):
                yield f"{node.value.id}.{node.attr}"
        elif isinstance(node, ast.Call):
            yield from (f"{keyword.arg}=" for keyword in node.keywords if keyword.arg in OPTIONS)
            if isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr") and len(node.args) > 1:
                module, name = (getattr(node.args[0], "id", ""), getattr(node.args[1], "value", ""))
                if name in NAMES.get(module, ()):
                    yield f"{module}.{name}"


def test_nothing_else_depends_on_the_system() -> None:
    found = {
        name: sorted(set(uses(path.read_text("utf-8"))))
        for name, path in modules_of(PACKAGE).items()
        if not name.startswith(ELSEWHERE)
    }
    assert {name: names for name, names in found.items() if names} == {}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import fcntl", "fcntl"),
        ("def f():\n    import msvcrt", "msvcrt"),
        ("from resource import getrlimit", "resource"),
        ("import os\nos.pread(1, 2, 3)", "os.pread"),
        ("from os import fork", "os.fork"),
        ("import os\nif hasattr(os, 'geteuid'): pass", "os.geteuid"),
        ("import os\nos.fsync(3)", "os.fsync"),
        ("import signal\nx = signal.SIGKILL", "signal.SIGKILL"),
        ("import sys\nif sys.platform == 'linux': pass", "sys.platform"),
        ("import mmap\nmmap.mmap(1, 2, prot=mmap.PROT_READ)", "mmap.PROT_READ"),
        ("import os\nos.open('a', 0, dir_fd=3)", "dir_fd="),
        ("import subprocess\nsubprocess.Popen('a', pass_fds=[3])", "pass_fds="),
    ],
)
def test_a_planted_use_is_found(source: str, expected: str) -> None:
    assert list(uses(source)) == [expected]


def listed(path: Path) -> dict[str, str]:
    """Return the names in a module's __all__, and the arguments of those that are functions there."""
    tree = ast.parse(path.read_text("utf-8"))
    names: list[str] = []
    functions = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            names = ast.literal_eval(node.value)
        elif isinstance(node, ast.FunctionDef):
            functions[node.name] = ast.unparse(node.args)
    assert names, path
    assert {name for name in functions if not name.startswith("_")} <= set(names), path
    return {name: functions.get(name, "") for name in names}


@pytest.mark.parametrize("names", [("defaults", "posix", "macos"), ("defaults", "windows")])
def test_every_system_has_the_same_functions(names: tuple[str, ...]) -> None:
    parts = [listed(FOLDER / f"{name}.py") for name in names]
    linux = [listed(FOLDER / f"{name}.py") for name in ("defaults", "posix", "linux")]
    assert set().union(*parts) == set().union(*linux)
    for part in parts:
        for name, arguments in part.items():
            for other in linux:
                if arguments and other.get(name):
                    assert arguments == other[name], name


def test_every_function_says_what_it_does() -> None:
    for path in FOLDER.glob("*.py"):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.FunctionDef):
                assert ast.get_docstring(node) or node.name.startswith("_"), f"{path.name}: {node.name}"
    assert system.allowed_cores() >= 1
