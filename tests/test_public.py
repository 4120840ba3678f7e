"""The public names: few, each where the documentation says."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import pkgutil
from collections.abc import Iterator

import pytest
from imports import PACKAGE

import lmdbloader

NAMES = {
    *("LMDBDataset", "Loader", "Clips", "collate", "dataloader", "QuasiRandom", "ProgressiveResize"),
    *("Buckets", "ClassBatches"),
    *("convert", "write", "estimate", "stage", "find_splits", "merge", "append", "mix", "subset"),
    *("verify", "recode", "repair", "info", "preview", "extract"),
    *("errors", "fields", "transforms", "superres", "lab", "integrations", "ray"),
}


def test_there_are_few_public_names() -> None:
    assert {*lmdbloader.__all__} == NAMES | {"__version__"}
    assert {*dir(lmdbloader)} >= NAMES


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_public_name_is_there_and_documented(name: str) -> None:
    found = getattr(lmdbloader, name)
    assert inspect.getdoc(found)


def test_no_subpackage_has_the_name_of_a_function() -> None:
    functions = {name for name in NAMES if not inspect.ismodule(getattr(lmdbloader, name))}
    assert functions.isdisjoint(module.name for module in pkgutil.iter_modules(lmdbloader.__path__))


def test_an_unknown_name_is_an_ordinary_error() -> None:
    with pytest.raises(AttributeError, match=r"^module 'lmdbloader' has no attribute 'loadr'$"):
        lmdbloader.loadr  # noqa: B018
    with pytest.raises(ImportError, match=r"^cannot import name 'loadr' from 'lmdbloader'"):
        exec("from lmdbloader import loadr")
    assert not hasattr(lmdbloader, "tune")


@pytest.mark.parametrize("name", sorted(importlib.import_module("lmdbloader.lab").__all__))
def test_measuring_is_in_the_lab(name: str) -> None:
    assert inspect.getdoc(getattr(lmdbloader.lab, name))
    assert name in dir(lmdbloader.lab)


def test_functions_are_short() -> None:
    public = {*lmdbloader.__all__, *lmdbloader.lab.__all__, *lmdbloader.ray.__all__}
    long = []
    for path in PACKAGE.rglob("*.py"):
        for name, node in functions_of(ast.parse(path.read_text("utf-8"))):
            num_lines = (node.end_lineno or 0) - node.lineno + 1
            num_parameters = len([*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs])
            if "kernels" not in path.parts and name not in public and (num_lines > 60 or num_parameters > 12):
                long.append(f"{path.name}:{node.lineno} {name}: {num_lines} lines, {num_parameters} parameters")
    assert long == []


def functions_of(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yield the functions of a module with their names; a method has the name of its class."""
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    owners = {id(method): node.name for node in classes for method in node.body}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            yield owners.get(id(node), node.name), node
