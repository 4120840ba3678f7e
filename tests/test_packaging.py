"""A release as a whole: its version and command, no pickle, and a docstring on everything public."""

from __future__ import annotations

import ast
import configparser
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from loading_scripts import load_script

import lmdbloader

ROOT = Path(__file__).resolve().parent.parent
MODULES = sorted((ROOT / "lmdbloader").rglob("*.py"))
PICKLERS = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}


@pytest.fixture(scope="module")
def metadata() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", "utf-8")
    return parser


SHIPPING = ROOT / "lmdbloader" / "conversion" / "shipping.py"


def pickle_uses(source: str) -> Iterator[str]:
    """Yield whatever in a module's source could write a pickle or run one."""
    for node in ast.walk(ast.parse(source)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        elif isinstance(node, ast.Call):
            options = {option.arg: ast.unparse(option.value) for option in node.keywords}
            if ast.unparse(node.func) == "torch.load" and options.get("weights_only") != "True":
                yield f"line {node.lineno}: torch.load without weights_only=True"
            if options.get("allow_pickle", "False") != "False":
                yield f"line {node.lineno}: allow_pickle"
        yield from (f"line {node.lineno}: {name}" for name in names if name.split(".")[0] in PICKLERS)


def without_docstring(source: str) -> Iterator[str]:
    """Yield the module, public functions and public classes of a source that say nothing about themselves."""
    tree = ast.parse(source)
    if ast.get_docstring(tree) is None:
        yield "the module"
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            overload = any("overload" in ast.unparse(decorator) for decorator in node.decorator_list)
            if ast.get_docstring(node) is None and not overload:
                yield node.name


def test_the_console_command_is_a_function_that_knows_the_version(metadata: configparser.ConfigParser) -> None:
    name, target = (part.strip() for part in metadata["options.entry_points"]["console_scripts"].split("=", 1))
    module, function = target.split(":")
    assert name == "lmdbloader"
    assert callable(getattr(importlib.import_module(module), function))
    code = f"import sys; from {module} import {function}; sys.argv = ['{name}', '--version']; sys.exit({function}())"
    child = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert lmdbloader.__version__ in child.stdout


@pytest.mark.parametrize(
    "extra", [None, "demo", "test", "dev", "bench", "rasters", "remote", "report", "docs", "release"]
)
def test_every_requirement_is_pinned(metadata: configparser.ConfigParser, extra: str | None) -> None:
    text = metadata["options.extras_require"][extra] if extra else metadata["options"]["install_requires"]
    required = {re.split(r"[\[<>=!~ ]", line, maxsplit=1)[0].lower() for line in text.split("\n") if line}
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pinned = {line.split("==")[0] for line in lines if "==" in line}
    assert required
    assert required <= pinned


def test_the_lowest_versions_that_are_declared_are_those_that_are_tested(metadata: configparser.ConfigParser) -> None:
    def number(version: str) -> tuple[int, ...]:
        return tuple(map(int, version.split(".")))

    lines = (ROOT / "constraints-floors.txt").read_text("utf-8").splitlines()
    tested = dict(line.split("==") for line in lines if not line.startswith("#"))
    declared = dict(line.lower().split(">=") for line in metadata["options"]["install_requires"].split("\n") if line)
    assert tested.keys() == declared.keys()
    for name in declared.keys() - {"torch"}:
        floor = number(declared[name])
        assert number(tested[name])[: len(floor)] == floor, (
            f"{name}: {tested[name]} is tested, {declared[name]} declared"
        )


def test_no_module_touches_pickle() -> None:
    """But for the one that packs what a process sends to its own workers."""
    uses = {str(path): list(pickle_uses(path.read_text("utf-8"))) for path in MODULES if path != SHIPPING}
    assert {path: found for path, found in uses.items() if found} == {}


def test_what_is_pickled_for_workers_gets_into_no_file() -> None:
    source = SHIPPING.read_text("utf-8")
    assert [use.partition(": ")[2] for use in pickle_uses(source)] == ["pickle"]
    called = {ast.unparse(node.func) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)}
    assert {"pickle.dumps", "pickle.loads"} <= called
    written = re.compile(r"(^|\.)(open|fdopen|write\w*|save|tofile|dump|load|memmap|mkstemp|NamedTemporaryFile)$")
    assert not [name for name in called if written.search(name)]


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "def f():\n    from pickle import dumps",
        "import torch\ntorch.load('x')",
        "f(allow_pickle=True)",
    ],
)
def test_a_planted_pickle_is_found(source: str) -> None:
    assert len(list(pickle_uses(source))) == 1


def test_everything_public_has_a_docstring() -> None:
    sources = {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in MODULES}
    assert [path for path, source in sources.items() if not source.strip() and not path.endswith("__init__.py")] == []
    silent = {path: list(without_docstring(source)) for path, source in sources.items() if source.strip()}
    assert {path: found for path, found in silent.items() if found} == {}


def test_pillow_simd_is_in_no_requirement(metadata: configparser.ConfigParser) -> None:
    for section in ("options", "options.extras_require"):
        assert not [value for value in metadata[section].values() if "pillow-simd" in value.lower()]


def test_the_tests_that_scripts_choose_are_there() -> None:
    chosen = [
        *load_script("floors").TESTS,
        *(name for debian in load_script("chroots").DEBIANS for name in debian.tests),
    ]
    assert [name for name in chosen if not [*(ROOT / "tests").glob(f"test_{name}.py")]] == []
